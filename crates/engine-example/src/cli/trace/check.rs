use super::stats::warnings;
use super::{model, open};
use crate::cli::args_trace::TraceCheckArgs;
use crate::cli::output;
use anyhow::Result;
use router_trace::format::{Format, ReadSummary};
use router_trace::{ExpertId, ModelShape};
use serde::Serialize;
use std::collections::HashSet;
use std::path::PathBuf;

#[derive(Debug, Serialize)]
struct Report {
    path: PathBuf,
    format: Format,
    model: String,
    expert_bytes: Option<u64>,
    shape: ModelShape,
    /// Layer passes.
    records: u64,
    /// Routed experts: every id of every record.
    uses: u64,
    /// Different (layer, expert) pairs.
    distinct_experts: usize,
    summary: Option<ReadSummary>,
    notices: Vec<String>,
}

/// Reads all of a trace; whatever is wrong with it is an error with its line and reason.
pub(super) fn run(args: &TraceCheckArgs) -> Result<()> {
    let mut reader = open(&args.trace, &args.input)?;
    let mut distinct = HashSet::new();
    let (mut records, mut uses) = (0, 0);
    for pass in reader.by_ref() {
        let pass = pass?;
        records += 1;
        uses += pass.experts().len() as u64;
        let layer = pass.info.layer;
        distinct.extend(pass.experts().iter().map(|&index| ExpertId::new(layer, index)));
    }
    let report = Report {
        path: args.trace.clone(),
        format: reader.format(),
        model: reader.header().model_name.clone(),
        expert_bytes: reader.header().expert_bytes,
        shape: reader.header().shape.clone(),
        records,
        uses,
        distinct_experts: distinct.len(),
        summary: reader.summary(),
        notices: warnings(&reader),
    };
    output::report(args.json, &report, |out| {
        writeln!(out, "{}: {}", report.path.display(), report.format)?;
        writeln!(out, "model     {}", model(reader.header()))?;
        writeln!(out, "records   {records}, {uses} uses, {} experts", report.distinct_experts)?;
        if let Some(counts) = report.summary.as_ref().and_then(|found| found.canonical.as_ref()) {
            writeln!(
                out,
                "passes    {} normal, {} spec-accept, {} spec-fallback; {} accepted tokens",
                counts.normal, counts.spec_accept, counts.spec_fallback, counts.accepted_tokens
            )?;
            writeln!(
                out,
                "left out  {} prompt passes, {} dry-run passes, {} padding rows, {} other records",
                counts.prefill_passes,
                counts.dry_run_passes,
                counts.padding_rows,
                counts.skipped_records
            )?;
        }
        report.notices.iter().try_for_each(|notice| writeln!(out, "notice    {notice}"))
    })
}
