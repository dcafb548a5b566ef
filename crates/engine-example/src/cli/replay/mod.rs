//! `tier replay`: a recorded trace through the tier and through what it is held against, compute
//! left out, each run a process of its own behind a wall, from a state that a probe found cold.

mod args;
mod child;
mod report;
mod text;

pub(crate) use args::ReplayArgs;
pub(crate) use child::run as run_child;

use super::output;
use super::pairs::balanced_order;
use super::session::print_warnings;
use super::trace;
use anyhow::{Context, Result, bail};
use child::{Answer, Task};
use engine_example::replay::{
    Balloon, CellRun, Measurement, ReplayArm, ReplayPlan, Wall, hold_balloon, run_cell,
};
use expert_tier::host::{Host, Storage};
use expert_tier::observe::{MemoryScope, SystemRoot};
use expert_tier::{Pool, Tier, TierConfig};
use report::{Arm, Discarded, Nominal, PlanFacts, Report, Run, ScopeFacts, WallFacts};
use router_trace::simulate::Budget;
use std::io;
use std::process::{Command, ExitCode};

/// The most rounds.
const MAX_ROUNDS: usize = 1000;
/// For a process without its reads: code, threads, the pool's layout.
const PROCESS_BYTES: u64 = 48 << 20;
/// For each access of the plan that a process holds.
const ACCESS_BYTES: u64 = 16;

pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode> {
    if !(1..=MAX_ROUNDS).contains(&args.rounds) || args.arms.is_empty() {
        bail!("--rounds {} must be 1 to {MAX_ROUNDS}, with at least one of --arms", args.rounds);
    }
    let pool = Pool::open(&args.pool)?;
    print_warnings(pool.notices());
    let reader = trace::open(&args.trace, &args.input)?;
    let header = reader.header().clone();
    let iterations = args.iterations.unwrap_or(usize::MAX);
    let plan = ReplayPlan::new(&pool, &header, reader, args.prefill, iterations)
        .with_context(|| args.trace.display().to_string())?;
    print_warnings(plan.notices());
    let mut session = Session::new(args, pool, &plan)?;
    let mut runs = Vec::new();
    for (round, order) in (1..).zip(balanced_order(args.arms.len(), args.rounds)) {
        for (place, index) in (1..).zip(order) {
            let run = session.cell(args.arms[index], round, place)?;
            runs.push(run);
        }
    }
    let nominal = Nominal { plan: &plan, lru: plan.lru() };
    let report = session.report(runs, &nominal);
    output::report(args.json, &report, |out| text::write(&report, out))?;
    if report.arms.iter().all(|arm| arm.kept_runs == 0) {
        bail!("no run could be kept");
    }
    Ok(ExitCode::SUCCESS)
}

/// Locks memory until the parent lets go: what `--wall balloon` starts.
pub(crate) fn run_balloon(bytes: u64) -> Result<ExitCode> {
    hold_balloon(bytes, io::stdin().lock(), io::stdout().lock())
        .with_context(|| format!("{bytes} bytes cannot be locked"))?;
    Ok(ExitCode::SUCCESS)
}

struct Session<'a> {
    args: &'a ReplayArgs,
    pool: Pool,
    plan: &'a ReplayPlan,
    wall: WallFacts,
    balloon: Option<Balloon>,
    places: usize,
    slack_bytes: Option<u64>,
    checksum: Option<u64>,
    discarded: Vec<Discarded>,
    root: SystemRoot,
}

impl<'a> Session<'a> {
    fn new(args: &'a ReplayArgs, pool: Pool, plan: &'a ReplayPlan) -> Result<Self> {
        let root = SystemRoot::default();
        let (places, slack_bytes) = room(args, plan)?;
        let mut session = Self {
            args,
            pool,
            plan,
            wall: WallFacts { wall: args.wall, enforced: true, reason: None, version: None },
            balloon: None,
            places,
            slack_bytes,
            checksum: None,
            discarded: Vec::new(),
            root,
        };
        // Found out once, before any run depends on it.
        let stood = match args.wall {
            Wall::None => Ok(()),
            Wall::Cgroup { .. } => match session.scope("probe") {
                Ok(scope) => {
                    session.wall.version = scope.map(|scope| scope.version());
                    Ok(())
                }
                Err(error) => Err(format!("{error:#}")),
            },
            Wall::Balloon { target_bytes } => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("replay-balloon").arg(target_bytes.to_string());
                match Balloon::inflate(command, target_bytes, &session.root) {
                    Ok(balloon) => {
                        session.balloon = Some(balloon);
                        Ok(())
                    }
                    Err(error) => Err(error.to_string()),
                }
            }
        };
        if let Err(reason) = stood {
            eprintln!("warning: no wall, every number is without it: {reason}");
            session.wall.enforced = false;
            session.wall.reason = Some(reason);
        }
        Ok(session)
    }

    /// A fresh control group, where the wall is one and stands.
    fn scope(&self, what: &str) -> Result<Option<MemoryScope>> {
        let Wall::Cgroup { target_bytes } = self.wall.wall else { return Ok(None) };
        if !self.wall.enforced {
            return Ok(None);
        }
        let name = format!("tier-replay-{}-{what}", std::process::id());
        Ok(Some(MemoryScope::create(&name, target_bytes, &self.root)?))
    }

    /// One run of one arm, kept or thrown away with the reason.
    fn cell(&mut self, arm: ReplayArm, round: usize, place: usize) -> Result<Run> {
        // Pages that another process left would be charged to it, not to the run.
        let tier = Tier::open(self.pool.clone(), TierConfig::default())?;
        let resident_before_bytes = tier.evict(None)?.resident_bytes;
        drop(tier);
        let hot = if arm.needs_hot_set() { self.plan.hottest(self.places) } else { Vec::new() };
        let task = Task {
            pool: self.pool.root().to_owned(),
            arm,
            places: self.places,
            hot,
            threads: self.args.threads,
            fill_threads: self.args.fill_threads,
            fill: self.args.fill.map(|method| method.name().to_owned()),
            resident_before_bytes,
            iterations: self.plan.iterations(),
        };
        let mut input = serde_json::to_vec(&task)?;
        input.push(b'\n');
        let scope = self.scope(&format!("{arm}-{round}"))?;
        let mut command = Command::new(std::env::current_exe()?);
        let cell = run_cell(command.arg("replay-child"), scope.as_ref(), &input)
            .with_context(|| format!("the process of {arm}"))?;
        let (measurement, reason) = self.judge(&cell)?;
        drop(scope);
        let scope = cell.peak_bytes.map(|peak| ScopeFacts {
            peak_bytes: peak.ok(),
            oom_kills: cell.oom_kills.and_then(Result::ok),
            timeline: cell.timeline,
        });
        let kept = reason.is_none();
        if let Some(reason) = reason {
            eprintln!("discarded: {arm} in round {round}: {reason}");
            self.discarded.push(Discarded { arm, round, reason });
        }
        Ok(Run { arm, round, place, kept, scope, measurement })
    }

    /// What the run measured, and why it must be thrown away.
    fn judge(&mut self, cell: &CellRun) -> Result<(Option<Measurement>, Option<String>)> {
        if let Some(fault) = cell.fault() {
            return Ok((None, Some(fault)));
        }
        let measurement = match serde_json::from_slice(&cell.output) {
            Ok(Answer::Measured(measurement)) => *measurement,
            Ok(Answer::Failed { kind, reason }) => {
                return Ok((None, Some(format!("{reason} ({kind})"))));
            }
            Err(error) => {
                let reason = format!("what the process said is not understood: {error}");
                return Ok((None, Some(reason)));
            }
        };
        let sums = measurement.iterations.iter().map(|one| one.checksum);
        let checksum = sums.fold(0, u64::wrapping_add);
        if checksum != *self.checksum.get_or_insert(checksum) {
            bail!("{}: read other bytes than the runs before", measurement.channel);
        }
        let limit = match self.wall {
            WallFacts { wall: Wall::Cgroup { target_bytes }, enforced: true, .. } => {
                Some(target_bytes)
            }
            _ => None,
        };
        let balloon = self.balloon.as_ref().filter(|balloon| !balloon.holds(&self.root));
        let deflated =
            balloon.map(|balloon| format!("the balloon lost its {} bytes", balloon.locked_bytes()));
        let fault = measurement.fault(limit).or(deflated);
        Ok((Some(measurement), fault))
    }

    fn report(self, runs: Vec<Run>, nominal: &Nominal<'_>) -> Report {
        let arms = self.args.arms.iter().map(|&arm| Arm::of(arm, &runs, nominal)).collect();
        Report {
            pool: self.args.pool.clone(),
            trace: self.args.trace.clone(),
            plan: PlanFacts {
                iterations: self.plan.accesses().n_iterations(),
                logical_accesses: self.plan.accesses().keys().len() as u64,
                expert_bytes: self.plan.expert_bytes(),
                pool_experts: self.pool.layout().total_experts(),
            },
            wall: self.wall,
            places: self.places,
            slack_bytes: self.slack_bytes,
            threads: self.args.threads,
            fill_threads: self.args.fill_threads,
            rounds: self.args.rounds,
            arms,
            discarded: self.discarded,
            runs,
            host: Host::probe(&self.root),
            storage: Storage::probe(self.pool.root(), &self.root).ok(),
            notices: self.plan.notices().iter().map(ToString::to_string).collect(),
        }
    }
}

/// Experts that arenas and locked sets keep, and what a control group keeps free beside them.
fn room(args: &ReplayArgs, plan: &ReplayPlan) -> Result<(usize, Option<u64>)> {
    let total = plan.accesses().key_space().n_keys();
    let expert_bytes = plan.expert_bytes().max(1);
    let Wall::Cgroup { target_bytes } = args.wall else {
        let budget = args.budget.unwrap_or(Budget::Percent(25.0));
        return Ok((budget.experts(plan.accesses())?.min(total), None));
    };
    let staged = (args.threads * plan.widest_pass()) as u64 * expert_bytes;
    let held = plan.accesses().keys().len() as u64 * ACCESS_BYTES;
    let slack = args.slack.unwrap_or(PROCESS_BYTES + held + staged);
    if let Some(budget) = args.budget {
        return Ok((budget.experts(plan.accesses())?.min(total), Some(slack)));
    }
    let left = target_bytes.saturating_sub(slack) / expert_bytes;
    if left == 0 {
        bail!(
            "--wall cgroup={target_bytes} leaves no room for an expert of {expert_bytes} bytes: \
             {slack} bytes are for the process and for reads under way (--slack, --threads)"
        );
    }
    Ok((usize::try_from(left).unwrap_or(usize::MAX).min(total), Some(slack)))
}
