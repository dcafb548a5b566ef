//! `tier doctor`: what this machine and its kernel can do for a pool, in plain language.

mod facts;
mod machine;
mod verdict;

use super::args::PoolArgs;
use super::inspect::open_pool;
use super::output;
use anyhow::Result;
use facts::Facts;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;
use verdict::Verdict;

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    facts: Facts,
    verdicts: Vec<Verdict>,
}

pub(crate) fn run(args: &PoolArgs) -> Result<ExitCode> {
    let pool = open_pool(args)?;
    let facts = Facts::gather(&pool);
    let verdicts = verdict::all(&facts);
    if args.json {
        output::json(&Report { facts, verdicts })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for Verdict { topic, grade, text: line } in &verdicts {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{topic:<12} {:<8} {line}", grade.word());
    }
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
