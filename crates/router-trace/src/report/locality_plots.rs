//! The page of a locality report.

use super::chart::{Axis, Chart, Mark, Series};
use super::html::{Page, Section};
use super::locality_tables::{everyone, locality_tables, phases};
use super::matrix::Matrix;
use super::table::Table;
use crate::locality::{LayerStats, LocalityReport, TraceStats};

/// Points of a rank-frequency curve, evenly spaced in their logarithm.
const RANK_POINTS: usize = 96;

/// The size of the busiest sets in the matrix, if it was asked for; the largest otherwise.
const MATRIX_TOP: u16 = 16;

/// The report as a page with the plots of the paper's section 3 and every table but the
/// ranks of single experts.
#[must_use]
pub fn locality_page(report: &LocalityReport) -> Page {
    let mut tables: Vec<Table> = locality_tables(report);
    let mut take = |name: &str| -> Option<Table> {
        let at = tables.iter().position(|table| table.name == name)?;
        Some(tables.remove(at))
    };
    let mut summary = Section::new("Summary");
    summary.tables.extend(take("summary").into_iter().chain(take("warnings")));
    let mut reuse = Section::new("Reuse").figure(reuse_chart(report)).figure(recency_chart(report));
    reuse.tables.extend(take("reuse").into_iter().chain(take("layer_reuse")));
    let mut concentration = Section::new("Concentration").figure(overall_ranks(report));
    for trace in &report.traces {
        for (phase, stats) in phases(trace) {
            concentration = concentration.figure(layer_ranks(trace, phase, &stats.per_layer));
        }
    }
    let by_layer = layer_chart(
        report,
        "Effective experts by layer",
        Axis::linear("effective experts of the layer"),
        |layer| Some(layer.effective_experts),
    );
    concentration = concentration.figure(share_chart(report)).figure(by_layer);
    concentration
        .tables
        .extend(take("top_share").into_iter().chain(take("zipf")).chain(take("layers")));
    let coverage =
        layer_chart(report, "Coverage by layer", Axis::percent("experts used"), |layer| {
            Some(layer.coverage * 100.0)
        });
    let mut growth = Section::new("Coverage").figure(growth_chart(report)).figure(coverage);
    growth.tables.extend(take("growth"));
    let mut page = Page::new("Router locality")
        .paragraph(
            "How a mixture-of-experts router reuses its experts. A selection is one expert \
             chosen by one token in one layer. Dashed lines and the columns named 'any order' \
             are exact means over all orders of the same tokens: what popularity alone gives. \
             What lies above them is recency.",
        )
        .section(summary)
        .section(reuse)
        .section(concentration)
        .section(growth);
    if let Some(table) = take("overlap") {
        let mut overlap = Section::new("Overlap between traces");
        overlap.figures.extend(overlap_matrix(report).map(Into::into));
        page = page.section(overlap.table(table));
    }
    let shared: Vec<Table> = take("shared_passes").into_iter().chain(take("batch")).collect();
    if !shared.is_empty() {
        let mut section = Section::new("Shared reads");
        section.tables = shared;
        page = page.section(section);
    }
    page
}

fn percent(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    points.map(|(x, share)| (x, share * 100.0)).collect()
}

/// The name of a series: the trace, and the phase if it is not decode.
fn called(trace: &TraceStats, phase: &str) -> String {
    if phase == "decode" { trace.name.clone() } else { format!("{} ({phase})", trace.name) }
}

fn reuse_chart(report: &LocalityReport) -> Chart {
    let (x, y) = (Axis::log2("window (tokens before)"), Axis::percent("selections repeated"));
    let mut chart = Chart::new("Reuse by window", x, y).noted(
        "Solid: measured. Dashed: the same tokens in any order. Where the lines meet, recency \
         adds nothing to popularity; below the dashed line, bursts have left long gaps.",
    );
    for trace in everyone(report) {
        for (phase, stats) in phases(trace) {
            let points = |of: fn(&crate::locality::Reuse) -> f64| {
                percent(stats.reuse.iter().map(|r| (f64::from(r.window_tokens), of(r))))
            };
            let name = called(trace, phase);
            chart = chart
                .with(Series::new(&name, Mark::Dotted, points(|reuse| reuse.measured)))
                .with(Series::new("", Mark::Dashed, points(|reuse| reuse.shuffled)));
        }
    }
    chart
}

fn recency_chart(report: &LocalityReport) -> Chart {
    let x = Axis::log2("window (tokens before)");
    let y = Axis::linear("measured - any order (percentage points)");
    let mut chart = Chart::new("Recency: reuse beyond popularity", x, y)
        .noted("Above zero, recent experts are worth more than popular ones; below, less.");
    for trace in everyone(report) {
        for (phase, stats) in phases(trace) {
            let points = stats.reuse.iter().map(|r| (f64::from(r.window_tokens), r.recency()));
            let name = called(trace, phase);
            chart = chart.with(Series::new(&name, Mark::Dotted, percent(points)));
        }
    }
    chart
}

fn growth_chart(report: &LocalityReport) -> Chart {
    let (x, y) = (Axis::log10("tokens"), Axis::percent("experts touched"));
    let mut chart = Chart::new("Growth of coverage", x, y).noted(
        "Part of all experts touched after so many tokens. Dashed: the same tokens in any \
         order; a trace below it keeps to few experts for a while.",
    );
    for trace in everyone(report) {
        for (phase, stats) in phases(trace) {
            let points = || stats.growth.iter().flat_map(|growth| &growth.points);
            let measured = points().map(|point| (point.tokens as f64, point.coverage));
            let shuffled = points().map(|point| (point.tokens as f64, point.shuffled));
            let name = called(trace, phase);
            chart = chart
                .with(Series::new(&name, Mark::Line, percent(measured)))
                .with(Series::new("", Mark::Dashed, percent(shuffled)));
        }
    }
    chart
}

/// Ranks from 1 to `last`, at most [`RANK_POINTS`] of them.
fn rank_points(last: usize) -> Vec<usize> {
    let step = (last.max(1) as f64).ln() / (RANK_POINTS - 1) as f64;
    let mut ranks: Vec<usize> =
        (0..RANK_POINTS).map(|i| ((step * i as f64).exp().round() as usize).min(last)).collect();
    ranks.dedup();
    ranks.retain(|&rank| rank > 0);
    ranks
}

/// (rank, share of all selections in per cent) from counts that descend.
fn rank_curve(counts: &[u64]) -> Vec<(f64, f64)> {
    let total = counts.iter().sum::<u64>() as f64;
    let at = |rank: usize| (rank as f64, 100.0 * counts[rank - 1] as f64 / total);
    rank_points(counts.len()).into_iter().map(at).collect()
}

fn rank_chart(title: &str) -> Chart {
    let (x, y) = (Axis::log10("rank of the expert"), Axis::log10("share of selections (%)"));
    Chart::new(title, x, y)
}

fn overall_ranks(report: &LocalityReport) -> Chart {
    let mut chart = rank_chart("Rank and frequency, experts of all layers in one list").noted(
        "Dashed: least squares in logarithms over the experts that were used. A straight line \
         would be Zipf's law.",
    );
    for trace in everyone(report) {
        for (phase, stats) in phases(trace) {
            let mut counts: Vec<u64> =
                stats.per_layer.iter().flat_map(|layer| &layer.rank_counts).copied().collect();
            counts.sort_unstable_by(|a, b| b.cmp(a));
            let curve = rank_curve(&counts);
            let total = counts.iter().sum::<u64>() as f64;
            let fit = stats.zipf.map(|zipf| zipf.pooled);
            let line = fit.iter().flat_map(|fit| {
                [1.0, counts.len() as f64].map(|rank| (rank, 100.0 * fit.at(rank) / total))
            });
            let line = Series::new("", Mark::Dashed, line.collect());
            chart = chart.with(Series::new(&called(trace, phase), Mark::Line, curve)).with(line);
        }
    }
    chart
}

/// All layers of a trace, with the most and the least concentrated one named.
fn layer_ranks(trace: &TraceStats, phase: &str, layers: &[LayerStats]) -> Chart {
    let title = format!("Rank and frequency by layer: {}", called(trace, phase));
    let mut chart = rank_chart(&title).noted(
        "Pale: each layer. Coloured: the layers with the fewest and the most effective \
         experts; dashed: their fits.",
    );
    let by_mix =
        |a: &&LayerStats, b: &&LayerStats| a.effective_experts.total_cmp(&b.effective_experts);
    let ends = [("fewest", layers.iter().min_by(by_mix)), ("most", layers.iter().max_by(by_mix))];
    for (at, layer) in layers.iter().enumerate() {
        let name = if at == 0 { "every layer" } else { "" };
        chart = chart.with(Series::new(name, Mark::Faint, rank_curve(&layer.rank_counts)));
    }
    for (word, layer) in ends {
        let Some(layer) = layer else { continue };
        let name = format!("layer {} ({word})", layer.layer);
        let total = layer.rank_counts.iter().sum::<u64>() as f64;
        let last = layer.rank_counts.len() as f64;
        let line = layer
            .zipf
            .iter()
            .flat_map(|fit| [1.0, last].map(|rank| (rank, 100.0 * fit.at(rank) / total)));
        let line = Series::new("", Mark::Dashed, line.collect());
        let curve = rank_curve(&layer.rank_counts);
        chart = chart.with(Series::new(&name, Mark::Line, curve)).with(line);
    }
    chart
}

fn share_chart(report: &LocalityReport) -> Chart {
    let top = report.options.top.iter().find(|&&top| top >= 8).or(report.options.top.last());
    let top = top.copied().unwrap_or(0);
    let title = format!("Share of the {top} busiest experts by layer");
    layer_chart(report, &title, Axis::linear("share of selections (%)"), |layer| {
        let share = layer.top_share.iter().find(|share| share.top == top)?;
        Some(share.share * 100.0)
    })
}

fn layer_chart(
    report: &LocalityReport,
    title: &str,
    y: Axis,
    of: impl Fn(&LayerStats) -> Option<f64>,
) -> Chart {
    let mut chart = Chart::new(title, Axis::linear("layer"), y);
    for trace in everyone(report) {
        for (phase, stats) in phases(trace) {
            let points = stats.per_layer.iter();
            let points = points.filter_map(|layer| Some((f64::from(layer.layer), of(layer)?)));
            let name = called(trace, phase);
            chart = chart.with(Series::new(&name, Mark::Dotted, points.collect()));
        }
    }
    chart
}

/// Traces against traces; on the diagonal a trace's halves.
fn overlap_matrix(report: &LocalityReport) -> Option<Matrix> {
    let tops = &report.options.jaccard_top;
    let top = tops.iter().find(|&&top| top == MATRIX_TOP).or(tops.last()).copied()?;
    let mean = |sizes: &[crate::locality::Jaccard]| {
        sizes.iter().find(|size| size.top == top).map(|size| size.jaccard.mean)
    };
    let cell = |row: &TraceStats, column: &TraceStats| {
        if row.name == column.name {
            return row.decode.halves.as_ref().and_then(|halves| mean(&halves.sizes));
        }
        let pair = report.overlaps.iter().find(|pair| {
            (pair.a == row.name && pair.b == column.name)
                || (pair.a == column.name && pair.b == row.name)
        });
        pair.and_then(|pair| mean(&pair.sizes))
    };
    let row = |row: &TraceStats| report.traces.iter().map(|column| cell(row, column)).collect();
    (report.traces.len() > 1).then(|| Matrix {
        title: format!("Jaccard index of the {top} busiest experts a layer"),
        names: report.traces.iter().map(|trace| trace.name.clone()).collect(),
        cells: report.traces.iter().map(row).collect(),
        note: "Mean over the layers. On the diagonal: the trace's first half against its second."
            .to_owned(),
    })
}
