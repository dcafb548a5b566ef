//! `tier trace`: what router traces hold, whatever program wrote them.

mod check;
mod convert;
mod stats;
mod union;

pub(crate) use stats::write_tables;

use super::args_trace::{TraceCommand, TraceInput};
use anyhow::{Result, bail};
use router_trace::format::{self, OpenOptions, OutputFormat, ShapeHints, TraceReader};
use router_trace::{Tail, TraceHeader};
use std::fs::{File, OpenOptions as FileOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) fn run(command: &TraceCommand) -> Result<ExitCode> {
    match command {
        TraceCommand::Stats(args) => stats::run(args),
        TraceCommand::Check(args) => check::run(args),
        TraceCommand::Union(args) => union::run(args),
        TraceCommand::Convert(args) => convert::run(args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// How the traces of a command line are opened.
pub(crate) fn options(input: &TraceInput) -> OpenOptions {
    OpenOptions {
        format: input.format,
        shape: ShapeHints {
            moe_layers: input.layers.as_ref().map(|layers| layers.0.clone()),
            n_experts: input.experts,
            top_k: input.top_k,
            model_name: input.name.clone(),
            expert_bytes: input.expert_bytes,
        },
        tail: if input.strict { Tail::Strict } else { Tail::Tolerate },
        ..OpenOptions::default()
    }
}

pub(crate) fn open(path: &Path, input: &TraceInput) -> Result<TraceReader> {
    Ok(format::open(path, &options(input))?)
}

/// What a trace is called in reports: its file's name without the ending.
pub(crate) fn name(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Names for `paths`; where two files are called the same, their paths.
pub(crate) fn names(paths: &[PathBuf]) -> Vec<String> {
    let short: Vec<String> = paths.iter().map(|path| name(path)).collect();
    let twice = |name: &String| short.iter().filter(|other| *other == name).count() > 1;
    paths
        .iter()
        .zip(&short)
        .map(|(path, name)| if twice(name) { path.display().to_string() } else { name.clone() })
        .collect()
}

/// The form of a trace that is written to `path`; never one of the traces that are read.
fn output(path: &Path, inputs: &[PathBuf]) -> Result<OutputFormat> {
    let Some(format) = OutputFormat::for_path(path) else {
        bail!("{}: a trace ends in .jsonl, or in .rtc for the compact form", path.display());
    };
    let real = path.canonicalize().ok();
    if real.is_some() && inputs.iter().any(|input| input.canonicalize().ok() == real) {
        bail!("{}: is one of the traces that are read", path.display());
    }
    Ok(format)
}

/// One line about the model of a trace.
fn model(header: &TraceHeader) -> String {
    let shape = &header.shape;
    let name = if header.model_name.is_empty() { "unnamed" } else { &header.model_name };
    let layers = shape.moe_layers.len();
    format!("{name}: {layers} layers of {} experts, top {}", shape.n_experts, shape.top_k)
}

/// Write a whole report file at once: half a page helps nobody.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<()> {
    let at = |error: io::Error| anyhow::anyhow!("{}: {error}", path.display());
    let mut file: File =
        FileOptions::new().write(true).create(true).truncate(true).open(path).map_err(at)?;
    file.write_all(text.as_bytes()).map_err(at)
}
