//! `tier pack`: any pool to a packed one.

use super::args::PackArgs;
use super::output::{self, bytes};
use super::progress;
use super::session::print_warnings;
use anyhow::Result;
use expert_tier::Pool;
use expert_tier::pack::{PackOptions, pack};
use std::process::ExitCode;

pub(crate) fn run(args: &PackArgs) -> Result<ExitCode> {
    let pool = Pool::open(&args.source)?;
    print_warnings(pool.notices());
    let options = PackOptions {
        threads: args.threads,
        restart: args.restart,
        recheck: args.recheck,
        created_by: format!("tier {}", env!("CARGO_PKG_VERSION")),
        ..PackOptions::default()
    };
    let bar = progress::bytes_bar(0, "packing");
    let report = pack(&pool, &args.out, &options, |step| {
        bar.set_length(step.total_bytes);
        bar.set_position(step.done_bytes);
    })?;
    bar.finish_and_clear();
    print_warnings(&report.notices);
    output::report(args.json, &report, |out| {
        writeln!(
            out,
            "{} experts ({}), {} of them from an earlier run, and a spine of {}: {} written in {:.1} s to {}",
            report.experts,
            bytes(report.expert_bytes),
            report.resumed_experts,
            bytes(report.spine_bytes),
            bytes(report.written_bytes),
            report.seconds,
            args.out.display(),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
