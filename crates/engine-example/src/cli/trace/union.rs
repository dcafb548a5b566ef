use super::{model, open, output as output_format};
use crate::cli::args_trace::TraceUnionArgs;
use crate::cli::output;
use anyhow::{Context, Result};
use router_trace::format::TraceWriter;
use router_trace::union::{BatchUnion, UnionSummary};
use router_trace::{Dropped, TraceSummary};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Debug, Serialize)]
struct Report {
    traces: Vec<PathBuf>,
    out: PathBuf,
    model: String,
    union: UnionSummary,
    /// Experts that the traces want by themselves, divided by those that the batch wants.
    dedup_factor: Option<f64>,
    records: u64,
    bytes: u64,
}

pub(super) fn run(args: &TraceUnionArgs) -> Result<()> {
    let form = output_format(&args.out, &args.traces)?;
    let mut inputs = Vec::new();
    for path in &args.traces {
        let reader = open(path, &args.input)?;
        inputs.push((reader.header().clone(), reader));
    }
    let mut batch = BatchUnion::new(inputs)?;
    let model = model(batch.header());
    let mut writer = TraceWriter::create(&args.out, form, batch.header())?;
    for pass in &mut batch {
        writer.write_pass(&pass?)?;
    }
    let written: TraceSummary = writer.finish(Dropped::default())?;
    let union = batch.summary().context("the batch was read to its end")?.clone();
    let report = Report {
        traces: args.traces.clone(),
        out: args.out.clone(),
        model,
        dedup_factor: union.dedup_factor(),
        union,
        records: written.records,
        bytes: written.bytes,
    };
    output::report(args.json, &report, |out| {
        let union = &report.union;
        writeln!(out, "model     {}", report.model)?;
        for (path, part) in report.traces.iter().zip(&union.traces) {
            writeln!(
                out,
                "trace     {}: {} iterations, {} tokens, {} of them in the window",
                path.display(),
                part.iterations,
                part.accepted_tokens,
                part.window_tokens
            )?;
        }
        writeln!(
            out,
            "batch     {} iterations, {} passes, {} tokens",
            union.iterations, union.passes, union.accepted_tokens
        )?;
        let dedup = report.dedup_factor.map_or("n/a".to_owned(), |factor| format!("{factor:.3}"));
        writeln!(
            out,
            "experts   {} apart, {} together: dedup {dedup}",
            union.separate_experts, union.union_experts
        )?;
        writeln!(out, "written   {}, {}", report.out.display(), output::bytes(report.bytes))
    })
}
