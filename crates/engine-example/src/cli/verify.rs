//! `tier verify`: reads all data of a pool and says what is wrong with it.

use super::args::PoolArgs;
use super::inspect::{Rope, open_pool, plural, warn};
use super::{kind, message, output, progress};
use anyhow::Result;
use expert_tier::Pool;
use expert_tier::pool::{PoolFormat, Problem, VerifyReport, verify};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

/// Enough to keep any single device busy with large reads.
const MAX_THREADS: usize = 8;

pub(crate) fn run(args: &PoolArgs) -> Result<ExitCode> {
    let pool = open_pool(args)?;
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let bytes = pool.files().iter().map(|file| file.identity.len).sum();
    let bar = progress::bytes_bar(bytes, "verify");
    let started = Instant::now();
    let progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let report = match pool.format() {
        PoolFormat::Packed => verify_packed(&pool, progress),
        _ => verify(&pool, threads, progress).map_err(anyhow::Error::from),
    };
    bar.finish_and_clear();
    let mut report = report?;
    // What the library cannot know: whether positions can be made of this config.
    if let Some(Err(error)) = pool.config().map(Rope::of) {
        report.problems.push(Problem { kind: kind(&error), text: message(&error) });
    }
    for warning in &report.warnings {
        warn(warning);
    }
    if args.json {
        output::json(&report)?;
    } else {
        let elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        io::stdout().lock().write_all(text(&report, elapsed_ns).as_bytes())?;
    }
    let Some(first) = report.problems.first() else { return Ok(ExitCode::SUCCESS) };
    let more = match report.problems.len() {
        1 => String::new(),
        n => format!(" (and {})", plural(n - 1, "more problem")),
    };
    eprintln!("error[{}]: {}{more}", first.kind, first.text.replace('\n', " "));
    Ok(ExitCode::FAILURE)
}

/// A packed pool carries a checksum for every expert and spine file; what it was made of was
/// read when it was packed.
fn verify_packed(pool: &Pool, progress: impl FnMut(u64, u64)) -> Result<VerifyReport> {
    let checked = expert_tier::pack::verify(pool, progress)?;
    let parts: usize = pool.layout().iter().map(|(_, expert)| expert.parts.len()).sum();
    let mut problems: Vec<Problem> = checked
        .mismatches
        .iter()
        .map(|mismatch| Problem { kind: "checksum-mismatch", text: mismatch.to_string() })
        .collect();
    if let Err(error) = pool.check_head() {
        problems.push(Problem { kind: error.kind(), text: error.to_string() });
    }
    Ok(VerifyReport {
        files: pool.files().len(),
        bytes_read: checked.bytes,
        tensors: parts + pool.spine().len(),
        experts: checked.experts,
        problems,
        warnings: Vec::new(),
    })
}

fn text(report: &VerifyReport, elapsed_ns: u64) -> String {
    let VerifyReport { files, bytes_read, tensors, experts, .. } = report;
    let mut text = format!(
        "read {} of {} in {}: {}, {}\n",
        output::bytes(*bytes_read),
        plural(*files, "file"),
        output::duration(elapsed_ns),
        plural(*tensors, "tensor"),
        plural(*experts, "expert")
    );
    for Problem { kind, text: problem } in &report.problems {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "problem[{kind}]: {problem}");
    }
    let (problems, warnings) = (report.problems.len(), report.warnings.len());
    let problems = plural(problems, "problem");
    let _ = writeln!(text, "{problems}, {}", plural(warnings, "warning"));
    text.push_str(
        "what was read was dropped from the page cache again, and what was cached before with it\n",
    );
    text
}
