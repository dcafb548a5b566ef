//! `tier replay`: a recorded trace through the tier and through what it is held against, compute
//! left out, each run a process of its own behind a wall, from a state that a probe found cold.

mod args;
mod report;
mod text;

pub(crate) use args::ReplayArgs;

use super::output;
use super::session::print_warnings;
use super::trace;
use anyhow::{Context, Result, bail};
use engine_example::pairs::balanced_order;
use engine_example::replay::{
    Nominal, ReplayArm, ReplayPlan, ReplayRun, ReplaySession, ReplaySetup, TimeLeft, hold_balloon,
    serve_task,
};
use expert_tier::Pool;
use expert_tier::observe::SystemRoot;
use report::Report;
use std::io;
use std::process::ExitCode;

/// The most rounds.
const MAX_ROUNDS: usize = 1000;

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
    let setup = ReplaySetup {
        wall: args.wall,
        budget: args.budget,
        slack_bytes: args.slack,
        threads: args.threads,
        fill_threads: args.fill_threads,
        fill: args.fill,
    };
    let program = std::env::current_exe()?;
    let root = SystemRoot::default();
    let mut session = ReplaySession::open(program, pool.clone(), &plan, setup, &root)?;
    if let Some(reason) = &session.wall().reason {
        eprintln!("warning: no wall, every number is without it: {reason}");
    }
    let mut runs = Vec::new();
    let mut left = TimeLeft::new(args.arms.len() * args.rounds);
    for (round, order) in (1..).zip(balanced_order(args.arms.len(), args.rounds)) {
        let mut order: Vec<ReplayArm> = order.iter().map(|&index| args.arms[index]).collect();
        ReplayArm::mapped_first(&mut order);
        for (place, arm) in (1..).zip(order) {
            let run = session.run(arm, round, place)?;
            eprintln!("{} {}, round {round}: {}", left.done(), run.arm, outcome(&run));
            runs.push(run);
        }
    }
    let nominal = Nominal::of(&plan);
    let report = Report::new(args, &session, &nominal, &pool, runs);
    output::report(args.json, &report, |out| text::write(&report, out))?;
    if report.arms.iter().all(|arm| arm.kept_runs == 0) {
        bail!("no run could be kept");
    }
    Ok(ExitCode::SUCCESS)
}

/// What became of a run, in a few words.
fn outcome(run: &ReplayRun) -> String {
    if let Some(reason) = &run.discarded {
        return format!("discarded: {reason}");
    }
    let Some(measured) = &run.measurement else { return String::new() };
    let ns = run.wall_ns().unwrap_or(0) / measured.iterations.len().max(1) as u64;
    let read = measured.block_layer_bytes.map_or_else(|| "unknown".to_owned(), output::bytes);
    format!("{} an iteration, {read} read", output::duration(ns))
}

/// One run, in a process that a session started.
pub(crate) fn run_child() -> Result<ExitCode> {
    serve_task(io::stdin().lock(), io::stdout().lock()).context("talking to the parent")?;
    Ok(ExitCode::SUCCESS)
}

/// Locks memory until the parent lets go: what `--wall balloon` starts.
pub(crate) fn run_balloon(bytes: u64) -> Result<ExitCode> {
    hold_balloon(bytes, io::stdin().lock(), io::stdout().lock())
        .with_context(|| format!("{bytes} bytes cannot be locked"))?;
    Ok(ExitCode::SUCCESS)
}
