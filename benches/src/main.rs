//! The `tier-bench` command: what the tier claims, measured against what it must beat.
#![forbid(unsafe_code)]

mod admission;
mod campaign;
mod consume;
mod ffn;
mod fill;
mod hit;
mod instructions;
mod machine;
mod measure;
mod pools;
mod prefetch;
mod pressure;
mod report;
mod simulate;
mod stats;

use anyhow::{Context, Result, ensure};
use campaign::{CampaignOptions, Common};
use clap::{Args, Parser, Subcommand};
use engine_example::replay::{BALLOON_COMMAND, CHILD_COMMAND, hold_balloon, serve_task};
use machine::Machine;
use pools::{Layout, Spec};
use report::Report;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

const KIB: usize = 1 << 10;
pub(crate) const P4: Spec = Spec::of_size("p4", Layout::Packed, 16, 4608 * KIB);
pub(crate) const P4_COPY: Spec = Spec::of_size("p4-copy", Layout::Packed, 16, 4608 * KIB);
pub(crate) const U4: Spec = Spec::of_size("u4", Layout::Unaligned, 16, 4608 * KIB);
pub(crate) const P17: Spec = Spec::of_size("p17", Layout::Packed, 32, 17_920 * KIB);
pub(crate) const P17_COPY: Spec = Spec::of_size("p17-copy", Layout::Packed, 8, 17_920 * KIB);
pub(crate) const U17: Spec = Spec::of_size("u17", Layout::Unaligned, 32, 17_920 * KIB);

/// Measures what the expert tier claims. Run it on an otherwise idle machine.
#[derive(Parser, Debug)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Warm experts in place against a locked arena.
    Hit(Options),
    /// Cold routes against O_DIRECT.
    Fill(Options),
    /// A set that fits, kept against read anew; with --definition a campaign.
    Admission(Both),
    /// A real trace in a quarter of its memory against exact LRU; with --definition a campaign.
    Pressure(Both),
    /// Hints of a predictor, an oracle and a liar, by every way of giving them.
    Prefetch(Options),
    /// A campaign over capacities: time and bytes against memory.
    Sweep(Both),
    /// A campaign over arms at equal enforced memory.
    EqualMemory(Both),
    /// A campaign over walls and kinds of reclaim.
    Reclaim(Both),
    /// Expert arithmetic against a plain read of the weights.
    Ffn(Options),
    /// Accesses a second through every replacement policy.
    Simulate(Options),
    /// What the demand watch and the counters add to an adoption, in instructions (valgrind).
    Instructions(Options),
    /// One run of a campaign, started by it.
    #[command(hide = true, name = CHILD_COMMAND)]
    ReplayChild,
    /// The balloon of a campaign, started by it.
    #[command(hide = true, name = BALLOON_COMMAND)]
    ReplayBalloon { bytes: u64 },
    /// One arm of `prefetch`, started by it.
    #[command(hide = true)]
    PrefetchChild {
        pool: PathBuf,
        arm: usize,
        plans: PathBuf,
        warm: usize,
        tokens: usize,
        trace: Option<PathBuf>,
    },
    /// One arm of `pressure`, started by it.
    #[command(hide = true)]
    PressureChild { pool: PathBuf, arm: usize, places: usize, tokens: usize },
    /// One run of `instructions`, started by it.
    #[command(hide = true)]
    InstructionsChild { pool: PathBuf, kind: String, adoptions: usize, arm: usize },
}

#[derive(Args, Debug)]
struct Both {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    campaign: CampaignOptions,
}

#[derive(Args, Debug)]
struct Options {
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Rounds in which every arm has its turn; 5 are the rule.
    #[arg(long)]
    rounds: Option<usize>,
    /// Where pools are made, about 3 GB for all benches.
    #[arg(long, default_value = "target/bench-pool")]
    dir: PathBuf,
    /// Less of everything: shows that it runs, proves nothing.
    #[arg(long)]
    quick: bool,
    /// `pressure`: and `prefetch`: losing arms in every round, not only in the first. Twice the time.
    #[arg(long)]
    every_arm: bool,
    /// `prefetch`: a plan file of the OLMoE trace to be replayed as PILOT's, instead of one that
    /// is made up at a recall of 0.65.
    #[arg(long)]
    plan: Option<PathBuf>,
}

/// What a bench is told.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) rounds: usize,
    pub(crate) dir: PathBuf,
    pub(crate) quick: bool,
    pub(crate) every_arm: bool,
    pub(crate) plan: Option<PathBuf>,
}

impl Settings {
    pub(crate) fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

type Bench = fn(&Settings) -> Result<(Vec<report::Row>, Vec<report::Bar>)>;

fn bench(name: &'static str, options: &Options, default_rounds: usize, run: Bench) -> Result<()> {
    let rounds = options.rounds.unwrap_or(default_rounds);
    ensure!((1..=1000).contains(&rounds), "--rounds {rounds} must be 1 to 1000");
    std::fs::create_dir_all(&options.dir)
        .with_context(|| format!("--dir {}", options.dir.display()))?;
    let Options { quick, every_arm, .. } = *options;
    let (dir, plan) = (options.dir.clone(), options.plan.clone());
    let settings = Settings { rounds, dir, quick, every_arm, plan };
    let machine = Machine::probe(&settings.dir)?;
    let (rows, bars) = run(&settings)?;
    let mut lines = vec![format!("{rounds} rounds in balanced order, ratios inside a round")];
    if options.quick {
        lines.push("--quick: shows that it runs, proves nothing".to_owned());
    }
    Report { bench: name, machine: machine.finish(), settings: lines, rows, bars }
        .print(options.json)
}

/// A campaign where it is one, or where a definition makes it one; else the bench itself.
fn campaign(
    name: &'static str,
    both: &Both,
    bench: impl FnOnce(&Options) -> Result<()>,
) -> Result<()> {
    let Both { options, campaign } = both;
    let always = !matches!(name, "admission" | "pressure");
    if !always && campaign.definition.is_none() {
        ensure!(campaign.out.is_none() && !campaign.fresh, "--out and --fresh need --definition");
        return bench(options);
    }
    let Options { dir, rounds, quick, json, .. } = options;
    std::fs::create_dir_all(dir).with_context(|| format!("--dir {}", dir.display()))?;
    let common = Common { dir, rounds: *rounds, quick: *quick, json: *json };
    campaign::run(name, campaign, common)
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Hit(options) => bench("hit", options, 11, hit::run),
        Command::Fill(options) => bench("fill", options, 11, fill::run),
        Command::Admission(both) => {
            campaign("admission", both, |options| bench("admission", options, 7, admission::run))
        }
        Command::Pressure(both) => {
            campaign("pressure", both, |options| bench("pressure", options, 5, pressure::run))
        }
        Command::Sweep(both) => campaign("sweep", both, |_| Ok(())),
        Command::EqualMemory(both) => campaign("equal-memory", both, |_| Ok(())),
        Command::Reclaim(both) => campaign("reclaim", both, |_| Ok(())),
        Command::ReplayChild => {
            serve_task(io::stdin().lock(), io::stdout().lock()).context("talking to the parent")
        }
        Command::ReplayBalloon { bytes } => {
            hold_balloon(*bytes, io::stdin().lock(), io::stdout().lock())
                .with_context(|| format!("{bytes} bytes cannot be locked"))
        }
        Command::Prefetch(options) => bench("prefetch", options, 5, prefetch::run),
        Command::PrefetchChild { pool, arm, plans, warm, tokens, trace } => {
            prefetch::child::run(pool, *arm, plans, (*warm, *tokens), trace.as_deref())
        }
        Command::Ffn(options) => bench("ffn", options, 7, ffn::run),
        Command::Simulate(options) => bench("simulate", options, 3, simulate::run),
        Command::Instructions(options) => bench("instructions", options, 1, instructions::run),
        Command::InstructionsChild { pool, kind, adoptions, arm } => {
            instructions::child(pool, kind, *adoptions, *arm)
        }
        Command::PressureChild { pool, arm, places, tokens } => {
            pressure::child::run(pool, *arm, *places, *tokens)
        }
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            drop(error.print());
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error[bench]: {error:#}");
            ExitCode::FAILURE
        }
    }
}
