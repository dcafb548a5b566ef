//! `tier inspect`: what lies where in a pool. Reads headers and the config, never data.

mod facts;
mod promise;
mod rope;
mod text;

use super::args::PoolArgs;
use super::promised::{Model, is_index, is_json};
use super::{bundled, output};
use anyhow::Result;
use expert_tier::{Pool, TierError};
use facts::Facts;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

pub(super) use rope::Rope;
pub(super) use text::plural;

pub(crate) fn run(args: &PoolArgs) -> Result<ExitCode> {
    if let Some(model) = args.pool.as_deref().map(promised).transpose()?.flatten() {
        promise::report(&model, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
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

/// What a config promises, or an index of which no shard is there yet; `None` for what is there.
fn promised(path: &Path) -> Result<Option<Model>> {
    if !is_json(path) || !path.is_file() {
        return Ok(None);
    }
    match Pool::open(path) {
        Err(TierError::MissingShard { present: 0, .. }) => {}
        Err(TierError::NotAModel { .. }) if !is_index(path) => {}
        // Also a packed pool's index, and a set of which some shards are missing.
        _ => return Ok(None),
    }
    Model::of_json(path).map(Some)
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
