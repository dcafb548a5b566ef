//! `tier quantize`: float experts to int4.

use super::args::QuantizeArgs;
use super::output::{self, bytes};
use super::progress;
use super::session::print_warnings;
use anyhow::Result;
use engine_example::quantize::quantize;
use expert_tier::Pool;
use std::process::ExitCode;

pub(crate) fn run(args: &QuantizeArgs) -> Result<ExitCode> {
    let pool = Pool::open(&args.source)?;
    print_warnings(pool.notices());
    let bar = progress::count_bar(pool.layout().total_experts() as u64, "quantising");
    let report = quantize(&pool, &args.out, args.group, |done, _| bar.set_position(done))?;
    bar.finish_and_clear();
    output::report(args.json, &report, |out| {
        writeln!(
            out,
            "{} experts, {} to {}, relative RMS error {:.4}, in {}",
            report.experts,
            bytes(report.expert_bytes_before),
            bytes(report.expert_bytes_after),
            report.relative_rms_error,
            report.out.display(),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
