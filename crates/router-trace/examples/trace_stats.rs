//! The locality of traces in this project's own JSONL format.
//!
//! ```text
//! cargo run --release -p router-trace --example trace_stats -- a.jsonl b.jsonl \
//!     [--html report.html] [--json report.json] [--csv DIR]
//! ```
//!
//! Prints the tables; a torn trace is used as far as it is whole, and the report says so.
#![forbid(unsafe_code)]

use router_trace::locality::{BatchStats, LocalityBuilder, LocalityOptions, LocalityReport};
use router_trace::report::{locality_page, locality_tables, write_csv};
use router_trace::{JsonlReader, Tail, TraceError};
use std::error::Error;
use std::ffi::OsString;
use std::fs::{File, create_dir_all, write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Default)]
struct Request {
    traces: Vec<PathBuf>,
    html: Option<PathBuf>,
    json: Option<PathBuf>,
    csv: Option<PathBuf>,
}

fn parse(args: impl Iterator<Item = OsString>) -> Option<Request> {
    let mut request = Request::default();
    let mut args = args;
    while let Some(arg) = args.next() {
        let place = match arg.to_str() {
            Some("--html") => &mut request.html,
            Some("--json") => &mut request.json,
            Some("--csv") => &mut request.csv,
            _ => {
                request.traces.push(arg.into());
                continue;
            }
        };
        *place = Some(args.next()?.into());
    }
    (!request.traces.is_empty()).then_some(request)
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn measure(paths: &[PathBuf]) -> Result<LocalityReport, TraceError> {
    let mut builder = LocalityBuilder::new(LocalityOptions::default())?;
    let mut shapes = Vec::new();
    for path in paths {
        let mut reader = JsonlReader::open(path, Tail::Tolerate)?;
        let header = reader.header().clone();
        builder.add(&name(path), &header, &mut reader)?;
        if let Some(torn) = reader.torn() {
            builder.warn(torn.to_string());
        }
        if let Some(end) = reader.end().filter(|end| end.dropped.records > 0) {
            builder.warn(format!("the recorder dropped {} records", end.dropped.records));
        }
        shapes.push(header.shape);
    }
    if shapes.len() > 1 && shapes.iter().all(|shape| *shape == shapes[0]) {
        let open = |path| Ok((name(path), JsonlReader::open(path, Tail::Tolerate)?));
        let streams = paths.iter().map(|path| open(path)).collect::<Result<_, TraceError>>()?;
        builder.set_batch(BatchStats::count(&shapes[0], streams)?);
    }
    Ok(builder.finish())
}

fn run(request: &Request) -> Result<(), Box<dyn Error>> {
    let report = measure(&request.traces)?;
    let tables = locality_tables(&report);
    for table in tables.iter().filter(|table| !table.detail) {
        println!("{}", table.to_text());
    }
    if let Some(path) = &request.html {
        write(path, locality_page(&report).to_html()?)?;
    }
    if let Some(path) = &request.json {
        write(path, serde_json::to_string_pretty(&report)?)?;
    }
    if let Some(dir) = &request.csv {
        create_dir_all(dir)?;
        for table in &tables {
            write_csv(table, File::create(dir.join(format!("{}.csv", table.name)))?)?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let Some(request) = parse(std::env::args_os().skip(1)) else {
        eprintln!("usage: trace_stats TRACE.jsonl... [--html FILE] [--json FILE] [--csv DIR]");
        return ExitCode::from(2);
    };
    match run(&request) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trace_stats: {error}");
            ExitCode::FAILURE
        }
    }
}
