use super::stats::warnings;
use super::{model, open, output as output_format};
use crate::cli::args_trace::TraceConvertArgs;
use crate::cli::output;
use anyhow::Result;
use router_trace::format::{self, Converted, Format, TraceWriter};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Debug, Serialize)]
struct Report {
    from: PathBuf,
    format: Format,
    to: PathBuf,
    model: String,
    #[serde(flatten)]
    converted: Converted,
    notices: Vec<String>,
}

pub(super) fn run(args: &TraceConvertArgs) -> Result<()> {
    let form = output_format(&args.to, std::slice::from_ref(&args.from))?;
    let mut reader = open(&args.from, &args.input)?;
    let writer = TraceWriter::create(&args.to, form, reader.header())?;
    let converted = format::convert(&mut reader, writer)?;
    let report = Report {
        from: args.from.clone(),
        format: reader.format(),
        to: args.to.clone(),
        model: model(reader.header()),
        converted,
        notices: warnings(&reader),
    };
    output::report(args.json, &report, |out| {
        let written = &report.converted.written;
        writeln!(
            out,
            "{} ({}) to {}: {} records, {}",
            report.from.display(),
            report.format,
            report.to.display(),
            written.records,
            output::bytes(written.bytes),
        )?;
        writeln!(out, "model     {}", report.model)?;
        report.notices.iter().try_for_each(|notice| writeln!(out, "notice    {notice}"))
    })
}
