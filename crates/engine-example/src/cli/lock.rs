//! `tier lock`: whether the dense part can be locked in memory here, by locking it.

use super::args::LockArgs;
use super::inspect::warn;
use super::output::{self, bytes};
use super::{bundled, message, progress};
use anyhow::{Context, Result};
use expert_tier::observe::{MemoryLimits, ProcessLimits, SystemRoot};
use expert_tier::{Pool, Spine, SpinePlacement, TierError};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Serialize)]
struct Report {
    pool: PathBuf,
    /// Bytes of the dense part.
    wanted_bytes: u64,
    /// All of them, or none.
    locked_bytes: u64,
    /// Why they are not locked.
    refused: Option<String>,
    process_limits: ProcessLimits,
    memory_limits: MemoryLimits,
    /// Bytes that can still be locked as far as memory goes.
    headroom_bytes: Option<u64>,
}

pub(crate) fn run(args: &LockArgs) -> Result<ExitCode> {
    let pool = match &args.pool {
        Some(path) => Pool::open_spine(path)?,
        None => Pool::open_spine(bundled::model_dir()?)?,
    };
    let root = SystemRoot::default();
    let memory_limits = MemoryLimits::read(&root);
    let mut report = Report {
        pool: pool.root().to_owned(),
        wanted_bytes: pool.spine().values().map(|tensor| tensor.extent.len).sum(),
        locked_bytes: 0,
        refused: None,
        process_limits: ProcessLimits::read(&root),
        headroom_bytes: memory_limits.headroom_bytes(),
        memory_limits,
    };
    let bar = progress::bytes_bar(report.wanted_bytes, "locking");
    let locked = Spine::load(&pool, SpinePlacement::Locked, |done, _| bar.set_position(done));
    bar.finish_and_clear();
    let failed = match locked {
        Ok(_) => {
            report.locked_bytes = report.wanted_bytes;
            None
        }
        Err(error @ TierError::Lock { .. }) => {
            let error = anyhow::Error::from(error);
            report.refused = Some(message(&error));
            Some(error)
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(path) = &args.report {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        output::json_to(file, &report)?;
    }
    match failed {
        Some(error) if args.require => return Err(error),
        Some(_) => warn(&format!(
            "goes on unlocked ({} of {} bytes locked): {}",
            report.locked_bytes,
            report.wanted_bytes,
            report.refused.as_deref().unwrap_or_default()
        )),
        None => {}
    }
    if args.json {
        output::json(&report)?;
    } else {
        let (locked, wanted) = (bytes(report.locked_bytes), bytes(report.wanted_bytes));
        writeln!(io::stdout().lock(), "lock: {locked} of {wanted} of the dense part locked")?;
    }
    Ok(ExitCode::SUCCESS)
}
