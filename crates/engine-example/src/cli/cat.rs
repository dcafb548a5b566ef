//! `tier cat`: the bytes of one tensor as they are stored.

use super::args::{CatArgs, ReadMode};
use super::inspect::warn;
use super::{bundled, output};
use anyhow::{Context, Result, bail};
use expert_tier::{Pool, RawRead, read_extent};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Serialize)]
struct Report {
    tensor: String,
    file: PathBuf,
    offset: u64,
    #[serde(flatten)]
    read: RawRead,
}

pub(crate) fn run(args: &CatArgs) -> Result<ExitCode> {
    let pool = match &args.pool {
        Some(path) => Pool::open(path)?,
        None => Pool::open(bundled::model_dir()?)?,
    };
    let Some(extent) = pool.find(&args.tensor) else {
        bail!("{}: no tensor {}; tier inspect lists them", pool.root().display(), args.tensor);
    };
    let mut out = io::stdout().lock();
    let read =
        read_extent(&pool, extent, args.io == ReadMode::Direct, |piece| out.write_all(piece))?;
    out.flush()?;
    if let Some(reason) = &read.not_direct_because {
        warn(&format!("read buffered, not direct: {reason}"));
    }
    let file = pool.path_of(extent.file).to_owned();
    let report = Report { tensor: args.tensor.clone(), file, offset: extent.offset, read };
    if let Some(path) = &args.report {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        output::json_to(file, &report)?;
    }
    Ok(ExitCode::SUCCESS)
}
