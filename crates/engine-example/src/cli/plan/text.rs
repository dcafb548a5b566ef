//! A plan as a person reads it.

use super::{Report, Target};
use crate::cli::output::bytes;
use expert_tier::plan::{AdmissionChoice, CurveBasis, PromotionAdvice};
use expert_tier::pool::SizeSource;
use router_trace::report::{Cell, Column, Table};
use std::io::{self, Write};

pub(super) fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let sizes = &report.sizes;
    let source = match sizes.source {
        SizeSource::Headers => "by its headers",
        SizeSource::Config => "by its config alone",
    };
    let shape = &sizes.shape;
    writeln!(
        out,
        "model     {}: {} layers of {} experts, top {}, {} in all ({source})",
        sizes.model_type,
        shape.moe_layers.len(),
        shape.n_experts,
        shape.top_k,
        bytes(report.checkpoint_bytes),
    )?;
    let place = if report.spine_in_hbm { " (in accelerator memory)" } else { "" };
    writeln!(
        out,
        "sizes     pool {} in experts of {}; spine {} and key-value cache {} for {} tokens{place}",
        bytes(sizes.pool_bytes),
        bytes(sizes.expert_bytes),
        bytes(sizes.spine_bytes),
        bytes(report.kv_bytes),
        report.context_tokens,
    )?;
    writeln!(
        out,
        "token     uses {} of experts and {} of the spine",
        bytes(sizes.token_bytes),
        bytes(sizes.spine_token_bytes),
    )?;
    let rates = &report.rates;
    writeln!(
        out,
        "rates     device {} ({}), memory {} ({}), a filled byte costs {:.2} unbuffered ones",
        rate(rates.rates.device_bytes_per_s),
        rates.device_from,
        rate(rates.rates.memory_bytes_per_s),
        rates.memory_from,
        rates.fill_cost,
    )?;
    if let Some(measured) = &rates.measured {
        writeln!(
            out,
            "measured  {} experts of {} with {} threads: {} past the page cache ({} with one), {} \
             into it; {}",
            measured.experts,
            bytes(measured.expert_bytes),
            measured.threads,
            rate(measured.direct_bytes_per_s),
            rate(measured.direct_one_thread_bytes_per_s),
            rate(Some(measured.fill_bytes_per_s)),
            measured.cold.reason.as_deref().unwrap_or("proved cold"),
        )?;
    }
    writeln!(out, "misses    {}", basis(&report.basis))?;
    writeln!(out, "\n{}", table(report).to_text())?;
    if let Some(target) = &report.target {
        print_target(target, out)?;
    }
    if let Some(hbm) = &report.hbm {
        print_hbm(hbm, out)?;
    }
    Ok(())
}

fn rate(bytes_per_s: Option<f64>) -> String {
    bytes_per_s.map_or_else(|| "unknown".to_owned(), |rate| format!("{}/s", bytes(rate as u64)))
}

fn basis(basis: &CurveBasis) -> String {
    match basis {
        CurveBasis::Trace { name, accesses, trace_experts } => format!(
            "exact LRU over {accesses} accesses of the trace {name} ({trace_experts} experts)"
        ),
        CurveBasis::Points { points } => format!("a table of {points} sizes"),
        CurveBasis::Zipf { slope } => format!("independent draws, Zipf slope {slope}"),
        CurveBasis::Uniform => "assumed: every expert equally likely, an upper bound".to_owned(),
    }
}

fn table(report: &Report) -> Table {
    let columns = ["memory", "for experts", "of the pool", "missing", "read a token"];
    let times = ["device ms", "memory ms", "token ms", "admission"];
    let columns = columns.iter().chain(&times).map(|name| Column::new(name, name)).collect();
    let note = "Seconds of bytes alone: misses at the device's rate, then everything a token uses \
                at the memory's. Compute is not in it.";
    let mut table = Table::new("plan", "One token, by the memory of the machine", note, columns);
    let ms = |seconds: Option<f64>| {
        Cell::of(seconds.map(|seconds| seconds * 1e3), |ms| Cell::Number(ms, 1))
    };
    for row in &report.rows {
        let forecast = &row.forecast;
        let admission = match row.admission.choice {
            _ if !forecast.runs => "does not run",
            AdmissionChoice::Fits => "helps: all fits",
            AdmissionChoice::Recency => "helps: reuse",
            AdmissionChoice::Unbuffered => "unbuffered is faster",
            AdmissionChoice::Unknown => "unknown",
        };
        table.push(vec![
            Cell::Text(bytes(forecast.dram_bytes)),
            Cell::Text(bytes(forecast.cache_bytes)),
            Cell::Share(forecast.pool_share),
            Cell::Share(forecast.miss_rate),
            Cell::Text(bytes(forecast.miss_bytes)),
            ms(forecast.device_s),
            ms(forecast.memory_s),
            ms(forecast.token_s),
            admission.into(),
        ]);
    }
    table
}

fn print_target(target: &Target, out: &mut dyn Write) -> io::Result<()> {
    match &target.least {
        Some(row) => writeln!(
            out,
            "target    {} ms a token: at least {} of memory, {} of it for experts",
            target.target_ms,
            bytes(row.dram_bytes),
            bytes(row.cache_bytes),
        ),
        None => writeln!(
            out,
            "target    {} ms a token: no memory is enough, or a rate is unknown",
            target.target_ms
        ),
    }
}

fn print_hbm(hbm: &PromotionAdvice, out: &mut dyn Write) -> io::Result<()> {
    let breakeven = match hbm.breakeven_uses {
        Some(uses) => format!("a promotion repays itself after r* = {uses:.2} uses"),
        None => "a promotion never repays itself: accelerator memory is no faster".to_owned(),
    };
    let uses = match hbm.uses_per_promotion {
        Some(uses) => format!("one sees {uses:.2}"),
        None => "one is never evicted".to_owned(),
    };
    writeln!(
        out,
        "HBM       {} for experts hit {:.1} % of uses; {breakeven}, {uses}: {} ({:+.3} ms a token)",
        bytes(hbm.hbm_bytes),
        100.0 * hbm.hit_rate,
        if hbm.pays { "pays" } else { "does not pay" },
        -1e3 * hbm.saved_s,
    )
}
