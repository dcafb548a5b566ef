//! The report as text.

use super::report::Report;
use crate::cli::output::bytes;
use engine_example::replay::ArmSummary;
use std::io::{self, Write};

pub(crate) fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let plan = &report.plan;
    writeln!(
        out,
        "{} over {}: {} iterations, {} experts of {} asked for, {} in the pool",
        report.trace.display(),
        report.pool.display(),
        plan.iterations,
        plan.logical_accesses,
        bytes(plan.expert_bytes),
        plan.pool_experts,
    )?;
    let stands = if report.wall.enforced { "" } else { " (did not stand)" };
    writeln!(
        out,
        "wall {}{stands}; {} experts kept by arenas and locked sets; {} demand threads, {} fill \
         threads; each run: one replay to warm up, one measured\n",
        report.wall.wall, report.places, report.threads, report.fill_threads,
    )?;
    writeln!(
        out,
        "{:<13} {:>10} {:>10} {:>20} {:>10} {:>10} {:>10} {:>10} {:>10} {:>7} {:>5}",
        "arm",
        "median",
        "p95",
        "time / mapped",
        "block",
        "own",
        "LRU misses",
        "in cache",
        "locked",
        "block/",
        "runs"
    )?;
    writeln!(
        out,
        "{:<13} {:>10} {:>10} {:>20} {:>10} {:>10} {:>10} {:>10} {:>10} {:>7} {:>5}",
        "",
        "ms",
        "ms",
        "median (range)",
        "layer",
        "reads",
        "nominal",
        "mean",
        "VmLck",
        "LRU",
        "kept"
    )?;
    report.arms.iter().try_for_each(|arm| write_arm(arm, out))?;
    for run in &report.discarded {
        writeln!(out, "discarded: {} in round {}: {}", run.arm, run.round, run.reason)?;
    }
    Ok(())
}

fn write_arm(arm: &ArmSummary, out: &mut dyn Write) -> io::Result<()> {
    let dash = || "-".to_owned();
    let size = |value: Option<u64>| value.map_or_else(dash, bytes);
    let ms = |value: Option<f64>| value.map_or_else(dash, |ms| format!("{ms:.2}"));
    let ratio = arm.ratio.map_or_else(dash, |ratio| {
        format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.min, ratio.max)
    });
    writeln!(
        out,
        "{:<13} {:>10} {:>10} {:>20} {:>10} {:>10} {:>10} {:>10} {:>10} {:>7} {:>5}",
        arm.arm.name(),
        ms(arm.iteration_ms.map(|times| times.median)),
        ms(arm.iteration_ms.map(|times| times.p95)),
        ratio,
        size(arm.block_layer_bytes),
        size(arm.process_read_bytes),
        size(arm.nominal_miss_bytes),
        size(arm.resident_file_bytes),
        size(arm.locked_bytes),
        arm.amplification.map_or_else(dash, |value| format!("{value:.2}")),
        format!("{}/{}", arm.kept_runs, arm.kept_runs + arm.discarded_runs),
    )
}
