//! Accesses of a scenario, written for a program that replays them elsewhere, and what
//! policies would make of them. `expert-accesses --help` says how.
//!
//! The kernel lab uses it: the virtual machine reads a file in this order, and the misses
//! that are computed here stand beside the bytes that it read. It needs nothing but this
//! crate, so that a lab from cold does not wait for the rest of the workspace.
#![forbid(unsafe_code)]

mod args;
mod scenario;

use args::Args;
use router_trace::simulate::{Pins, Replay, Span, play};
use router_trace::{Accesses, TraceError, policy::Hindsight, policy::PolicyKind};
use serde::Serialize;
use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::process::ExitCode;

#[derive(Serialize)]
struct Report {
    keys: usize,
    iterations: usize,
    accesses: usize,
    first_scored_iteration: usize,
    scored_accesses: usize,
    /// Different keys that are scored.
    scored_keys: usize,
    /// [`Accesses::order_hash`].
    order: String,
    rows: Vec<Row>,
}

/// A policy at a capacity, in keys. A capacity between two whole ones is told as the mean of
/// theirs, weighed by how near they are.
#[derive(Serialize)]
struct Row {
    policy: PolicyKind,
    capacity: f64,
    misses: f64,
}

fn main() -> ExitCode {
    let done = match Args::parse(std::env::args().skip(1)) {
        Ok(Some(args)) => run(&args),
        Ok(None) => {
            println!("{}", args::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("error[usage]: {error}\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let scenario = scenario::make(args)?;
    let (accesses, first) = (&scenario.accesses, scenario.first_scored);
    if let Some(path) = &args.out {
        let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
        accesses.write_list(BufWriter::new(file), first, args.seed)?;
    }
    let scored = accesses.keys_in(first..accesses.n_iterations());
    let mut seen = scored.to_vec();
    seen.sort_unstable();
    seen.dedup();
    let report = Report {
        keys: accesses.n_keys(),
        iterations: accesses.n_iterations(),
        accesses: accesses.keys().len(),
        first_scored_iteration: first,
        scored_accesses: scored.len(),
        scored_keys: seen.len(),
        order: format!("{:016x}", accesses.order_hash()),
        rows: simulate(args, accesses, first)?,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// Every policy at every capacity, warmed on what is not scored.
fn simulate(args: &Args, accesses: &Accesses, first: usize) -> Result<Vec<Row>, TraceError> {
    let span = |iterations| Span { trace: accesses, iterations };
    let warm = span(0..first);
    let scored = span(first..accesses.n_iterations());
    let replay = Replay { trained: warm.clone(), warm, scored };
    let mut rows = Vec::new();
    for &policy in &args.policies {
        for &capacity in &args.capacities {
            let whole = capacity.floor();
            let low = misses(&replay, policy, whole as usize);
            let part = capacity - whole;
            let misses = match part > 0.0 {
                true => low + part * (misses(&replay, policy, whole as usize + 1) - low),
                false => low,
            };
            rows.push(Row { policy, capacity, misses });
        }
    }
    Ok(rows)
}

fn misses(replay: &Replay<'_>, policy: PolicyKind, capacity: usize) -> f64 {
    let uses = |span: &Span<'_>| {
        let mut uses = vec![0; replay.n_keys()];
        for &key in span.keys() {
            uses[key as usize] += 1;
        }
        uses
    };
    let (warm_uses, scored_uses) = (uses(&replay.warm), uses(&replay.scored));
    let accesses = replay.keys();
    let hindsight =
        Hindsight { warm_uses: &warm_uses, scored_uses: &scored_uses, accesses: &accesses };
    let policy = policy.build(capacity, replay.n_keys(), &hindsight);
    play(replay, policy, Pins::None).total().misses() as f64
}
