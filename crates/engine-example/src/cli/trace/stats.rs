use super::{name, names, open, options, write_file};
use crate::cli::args_trace::TraceStatsArgs;
use crate::cli::output;
use anyhow::{Context, Result};
use router_trace::format::{self, TraceReader};
use router_trace::locality::{BatchStats, LocalityBuilder, LocalityOptions, LocalityReport};
use router_trace::report::{Table, locality_page, locality_tables, write_csv};
use std::fs::{self, File};
use std::path::Path;

pub(super) fn run(args: &TraceStatsArgs) -> Result<()> {
    let report = measure(args)?;
    let tables = locality_tables(&report);
    if let Some(path) = &args.html {
        write_file(path, &locality_page(&report).to_html()?)?;
    }
    if let Some(dir) = &args.csv {
        write_tables(dir, &tables)?;
    }
    output::report(args.json, &report, |out| {
        for table in tables.iter().filter(|table| !table.detail) {
            writeln!(out, "{}", table.to_text())?;
        }
        let html = args.html.iter().map(|path| path.display().to_string());
        let csv = args.csv.iter().map(|dir| format!("{}/*.csv", dir.display()));
        html.chain(csv).try_for_each(|path| writeln!(out, "written: {path}"))
    })
}

/// Each table as a file of its own.
pub(crate) fn write_tables(dir: &Path, tables: &[Table]) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    for table in tables {
        let path = dir.join(format!("{}.csv", table.name));
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        write_csv(table, file)?;
    }
    Ok(())
}

fn measure(args: &TraceStatsArgs) -> Result<LocalityReport> {
    let defaults = LocalityOptions::default();
    let settings = LocalityOptions {
        windows: args.windows.clone().unwrap_or(defaults.windows),
        top: args.top.clone().unwrap_or(defaults.top),
        ..LocalityOptions::default()
    };
    let mut builder = LocalityBuilder::new(settings)?;
    let mut shapes = Vec::new();
    for (path, name) in args.traces.iter().zip(names(&args.traces)) {
        let mut reader = open(path, &args.input)?;
        let header = reader.header().clone();
        builder.add(&name, &header, &mut reader)?;
        for warning in warnings(&reader) {
            builder.warn(warning);
        }
        shapes.push(header.shape);
    }
    // What a batch of them would share; a question that makes sense for one model only.
    if shapes.len() > 1 && shapes.iter().all(|shape| *shape == shapes[0]) {
        let options = options(&args.input);
        let open = |path| Ok((name(path), format::open(path, &options)?));
        let streams = args.traces.iter().map(|path| open(path)).collect::<Result<Vec<_>>>()?;
        builder.set_batch(BatchStats::count(&shapes[0], streams)?);
    }
    Ok(builder.finish())
}

/// What is odd in a trace that was read to its end.
pub(crate) fn warnings(reader: &TraceReader) -> Vec<String> {
    let mut warnings: Vec<String> = reader.notices().iter().map(ToString::to_string).collect();
    let dropped = reader.summary().map_or(0, |summary| summary.dropped.records);
    if dropped > 0 {
        warnings.push(format!("the recorder dropped {dropped} records"));
    }
    warnings
}
