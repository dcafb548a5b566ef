//! The command line: parse to plain data, resolve once, report as text or as one JSON object.

mod args;
mod args_pilot;
mod args_plan;
mod args_trace;
mod bundled;
mod capture;
mod cat;
mod compare;
mod doctor;
mod generate;
mod inspect;
mod lock;
mod metrics;
mod output;
mod pack;
mod pilot;
mod plan;
mod progress;
mod promised;
mod quantize;
mod replay;
mod score;
mod session;
mod simulate;
mod synth;
mod top;
mod touch;
mod trace;
mod verify;
mod warm;

use args::{Cli, Command};
use clap::Parser;
use engine_example::EngineError;
use expert_tier::TierError;
use router_trace::TraceError;
use std::error::Error;
use std::io;
use std::process::ExitCode;

/// Run the command line. 0: done, 1: failed, 2: not understood.
pub(crate) fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging();
    // A model may have more files than the customary limit; those who cannot raise it go on.
    let _ = expert_tier::observe::raise_open_files_limit();
    let done = match cli.command.unwrap_or(Command::Generate(cli.generate)) {
        Command::Generate(args) => generate::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Pack(args) => pack::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Warm(args) => warm::warm(&args),
        Command::Evict(args) => warm::evict(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Lock(args) => lock::run(&args),
        Command::Touch(args) => touch::run(&args),
        Command::Cat(args) => cat::run(&args),
        Command::Score(args) => score::run(&args),
        Command::Trace(args) => trace::run(&args.command),
        Command::Simulate(args) => simulate::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Pilot(args) => pilot::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::ReplayChild => replay::run_child(),
        Command::ReplayBalloon { bytes } => replay::run_balloon(bytes),
    };
    match done {
        Ok(code) => code,
        // Whoever reads our output has seen enough: `tier inspect | head` is no failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error[{}]: {}", kind(&error), message(&error));
            ExitCode::FAILURE
        }
    }
}

/// The stable category of an error, for scripts.
fn kind(error: &anyhow::Error) -> &'static str {
    error
        .chain()
        .find_map(|cause| {
            let engine = cause.downcast_ref::<EngineError>().map(EngineError::kind);
            let tier = || cause.downcast_ref::<TierError>().map(TierError::kind);
            let trace = || cause.downcast_ref::<TraceError>().map(TraceError::kind);
            engine.or_else(tier).or_else(trace)
        })
        .unwrap_or("failed")
}

/// The whole chain on one line, without causes that their parents already spell out.
fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let part = cause.to_string();
        if !text.ends_with(&part) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&part);
        }
    }
    text.replace('\n', " ")
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let as_io =
            |cause: &(dyn Error + 'static)| cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let as_json = cause.downcast_ref::<serde_json::Error>();
        as_io(cause) == Some(io::ErrorKind::BrokenPipe)
            || as_json.and_then(serde_json::Error::io_error_kind) == Some(io::ErrorKind::BrokenPipe)
    })
}

/// Library logs go to standard error when `TIER_LOG` asks for them (for example `debug`).
fn start_logging() {
    if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("TIER_LOG") {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    }
}
