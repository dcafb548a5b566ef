//! `tier capture`: generate, and write every router decision to a trace.

use super::args::CaptureArgs;
use super::output::{self, bytes};
use super::session::Session;
use anyhow::{Context, Result};
use expert_tier::Admission;
use router_trace::format::{OutputFormat, TraceWriter};
use router_trace::{DEFAULT_CAPACITY_BYTES, Recorder};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Serialize)]
struct Report {
    out: PathBuf,
    records: u64,
    tokens: u64,
    /// Records that the recorder had no room for.
    dropped: u64,
    bytes: u64,
    token_ids: Vec<u32>,
    text: Option<String>,
}

pub(crate) fn run(args: &CaptureArgs) -> Result<ExitCode> {
    let mut session = Session::open(&args.model, Admission::Admit)?;
    let created_by = format!("tier {}", env!("CARGO_PKG_VERSION"));
    let mut header = session.engine.trace_header(created_by);
    if args.model.model.is_none() {
        // Its folder's name says what it is for, not what it is.
        header.model_name = super::bundled::NAME.to_owned();
    }
    // Whatever the file is called, lines are what most readers take.
    let form = OutputFormat::for_path(&args.out).unwrap_or(OutputFormat::Jsonl);
    let writer = TraceWriter::create(&args.out, form, &header)?;
    session.engine.record_to(Recorder::spawn(writer, DEFAULT_CAPACITY_BYTES)?);
    let generated = super::generate::generate(&mut session, &args.prompt, None, !args.json);
    let recorder = session.engine.take_recorder().context("the recorder is there until now")?;
    let summary = recorder.finish()?;
    let generated = generated?;
    let report = Report {
        out: args.out.clone(),
        records: summary.records,
        tokens: summary.tokens,
        dropped: summary.dropped.records,
        bytes: summary.bytes,
        token_ids: generated.token_ids,
        text: generated.text,
    };
    output::report(args.json, &report, |out| {
        writeln!(
            out,
            "\ntrace     {} records, {} dropped, {} in {}",
            report.records,
            report.dropped,
            bytes(report.bytes),
            report.out.display(),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
