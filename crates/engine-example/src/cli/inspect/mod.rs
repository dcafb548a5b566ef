//! `tier inspect`: what lies where in a pool. Reads headers and the config, never data.

mod facts;
mod rope;
mod text;

use super::args::PoolArgs;
use super::{bundled, output};
use anyhow::Result;
use expert_tier::Pool;
use facts::Facts;
use std::io::{self, Write};
use std::process::ExitCode;

pub(super) use rope::Rope;
pub(super) use text::plural;

pub(crate) fn run(args: &PoolArgs) -> Result<ExitCode> {
    let pool = open_pool(args)?;
    let facts = Facts::of(&pool)?;
    for warning in &facts.warnings {
        warn(warning);
    }
    if args.json {
        output::json(&facts)?;
    } else {
        io::stdout().lock().write_all(text::report(&facts).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The pool that was named, or the bundled model.
pub(super) fn open_pool(args: &PoolArgs) -> Result<Pool> {
    let pool = match &args.pool {
        Some(path) => Pool::open(path)?,
        None => Pool::open(bundled::model_dir()?)?,
    };
    Ok(pool)
}

/// One line on standard error, whatever the text holds.
pub(super) fn warn(text: &str) {
    eprintln!("warning: {}", text.replace('\n', " "));
}
