//! Converts a trace of any format into one of this project's two, and says what it found.
//!
//! `cargo run --release -p router-trace --example trace_convert -- FROM TO.rtc|TO.jsonl`

use router_trace::format::{self, OpenOptions, OutputFormat, TraceWriter};
use std::path::PathBuf;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [from, to] = &paths[..] else { return Err("two files are needed: FROM and TO".into()) };
    let output = OutputFormat::for_path(to).ok_or("TO must end in .jsonl or .rtc")?;
    let start = Instant::now();
    let mut reader = format::open(from, &OpenOptions::default())?;
    let writer = TraceWriter::create(to, output, reader.header())?;
    let converted = format::convert(&mut reader, writer)?;
    for notice in reader.notices() {
        eprintln!("{notice}");
    }
    let seconds = start.elapsed().as_secs_f64();
    let uses = converted.read.tokens * u64::from(reader.header().shape.top_k);
    println!(
        "{} to {output:?}: {} records, {uses} uses, {} bytes in {seconds:.3} s",
        reader.format(),
        converted.written.records,
        converted.written.bytes,
    );
    Ok(())
}
