//! The tables of a locality report.

use super::table::{Cell, Column, Table};
use crate::locality::{Jaccard, LayerStats, LocalityReport, PhaseStats, Spread, TraceStats};

/// Decimals of slopes and counts that people see.
const DECIMALS: u8 = 3;

/// Windows of the summary, in tokens; the table of all windows stands beside it.
const PAPER_WINDOWS: [u32; 3] = [1, 8, 64];

/// Every table of the report. A terminal shows those that are not `detail`; CSV has all,
/// one file each, under [`Table::name`].
///
/// | name | one row is |
/// |---|---|
/// | `summary` | a figure; a column for each trace, and for all merged |
/// | `zipf` | a method of fitting the slope of a trace |
/// | `reuse` | a window of a trace |
/// | `top_share` | a size of the busiest set of a trace |
/// | `overlap` | a size of the busiest set of two traces, or of one trace's halves |
/// | `shared_passes` | what the tokens of a trace's wider passes share |
/// | `batch` | a number of traces decoded together |
/// | `warnings` | something to know about a trace |
/// | `layers` | a layer of a trace |
/// | `layer_reuse` | a window of a layer |
/// | `growth` | a point of the growth of coverage |
/// | `ranks` | an expert of a layer, by rank |
#[must_use]
pub fn locality_tables(report: &LocalityReport) -> Vec<Table> {
    let all = [
        summary(report),
        zipf(report),
        reuse(report),
        top_share(report),
        overlap(report),
        shared_passes(report),
        batch(report),
        warnings(report),
        layers(report),
        layer_reuse(report),
        growth(report),
        ranks(report),
    ];
    // The summary is there even if it says that there is nothing.
    let kept = all.into_iter().filter(|table| table.name == "summary" || !table.rows.is_empty());
    kept.collect()
}

/// Every trace and the merged one.
pub(super) fn everyone(report: &LocalityReport) -> impl Iterator<Item = &TraceStats> {
    report.traces.iter().chain(&report.merged)
}

/// The phases that have tokens, with their names.
pub(super) fn phases(trace: &TraceStats) -> impl Iterator<Item = (&'static str, &PhaseStats)> {
    let both = [("decode", &trace.decode), ("prefill", &trace.prefill)];
    both.into_iter().filter(|(_, phase)| phase.tokens > 0)
}

fn number(figure: f64) -> Cell {
    Cell::Number(figure, DECIMALS)
}

fn columns(names: &[(&str, &str)]) -> Vec<Column> {
    names.iter().map(|(name, title)| Column::new(name, title)).collect()
}

fn spread(spread: &Spread, cell: fn(f64) -> Cell) -> [Cell; 3] {
    [cell(spread.mean), cell(spread.min), cell(spread.max)]
}

fn summary(report: &LocalityReport) -> Table {
    let mut heads = columns(&[("figure", "figure")]);
    heads.extend(everyone(report).map(|trace| Column::new(&trace.name, &trace.name)));
    let note = "Decode tokens that were accepted. In brackets: least and greatest layer.";
    let mut table = Table::new("summary", "Summary", note, heads);
    let mut row = |name: &str, cell: &dyn Fn(&TraceStats) -> Cell| {
        let mut row = vec![Cell::from(name)];
        row.extend(everyone(report).map(cell));
        table.push(row);
    };
    row("model", &|t| t.model_name.as_str().into());
    row("layers x experts, top-k", &|t| {
        Cell::Text(format!("{} x {}, top-{}", t.layers, t.n_experts, t.top_k))
    });
    row("decode tokens", &|t| t.decode.tokens.into());
    row("decode selections", &|t| t.decode.selections.into());
    row("prefill tokens (apart)", &|t| t.prefill.tokens.into());
    row("rejected tokens (layer sum)", &|t| t.decode.superseded_tokens.into());
    row("experts used", &|t| t.decode.used_experts.into());
    row("coverage", &|t| Cell::of(t.decode.coverage, Cell::Share));
    row("new experts a token, last quarter", &|t| {
        Cell::of(t.decode.growth.as_ref().map(|g| g.late_new_experts_per_token), number)
    });
    let range = |text: &dyn Fn(&Spread) -> String, spread: Option<Spread>| {
        spread.map_or(Cell::Missing, |spread| Cell::Text(text(&spread)))
    };
    let slope = |s: &Spread| format!("{:.3} ({:.3} to {:.3})", s.mean, s.min, s.max);
    row("Zipf slope, least squares", &|t| range(&slope, t.decode.zipf.map(|z| z.alpha)));
    row("Zipf slope, maximum likelihood", &|t| {
        range(&slope, t.decode.zipf.and_then(|z| z.alpha_ml))
    });
    row("Zipf slope, all layers in one list", &|t| {
        Cell::of(t.decode.zipf.map(|z| z.pooled.alpha), number)
    });
    let share = |s: &Spread| {
        format!("{:.1} % ({:.1} to {:.1})", 100.0 * s.mean, 100.0 * s.min, 100.0 * s.max)
    };
    for &top in &report.options.top {
        let of = |t: &TraceStats| range(&share, t.decode.share_of(top).map(|s| s.share));
        row(&format!("top-{top} share"), &of);
    }
    let windows = &report.options.windows;
    let paper: Vec<u32> = windows.iter().copied().filter(|w| PAPER_WINDOWS.contains(w)).collect();
    for window in if paper.is_empty() { windows.clone() } else { paper } {
        let within = |t: &TraceStats| t.decode.reuse_within(window).copied();
        row(&format!("reuse W{window}"), &|t| Cell::of(within(t).map(|r| r.measured), Cell::Share));
        row(&format!("reuse W{window}, any order"), &|t| {
            Cell::of(within(t).map(|r| r.shuffled), Cell::Share)
        });
    }
    table
}

fn zipf(report: &LocalityReport) -> Table {
    let mut table = Table::new(
        "zipf",
        "Zipf slope",
        "Least squares in logarithms over the used experts, and maximum likelihood over all \
         experts, of each layer; pooled: one least-squares fit over the experts of all layers.",
        columns(&[
            ("trace", "trace"),
            ("phase", "phase"),
            ("method", "method"),
            ("mean", "mean layer"),
            ("min", "least layer"),
            ("max", "greatest layer"),
        ]),
    );
    table.detail = true;
    for trace in everyone(report) {
        for (phase, stats) in phases(trace) {
            let Some(zipf) = &stats.zipf else { continue };
            let one = |figure| Spread { mean: figure, min: figure, max: figure };
            let methods = [
                ("least squares", Some(zipf.alpha)),
                ("maximum likelihood", zipf.alpha_ml),
                ("pooled least squares", Some(one(zipf.pooled.alpha))),
                ("pooled maximum likelihood", zipf.pooled.alpha_ml.map(one)),
            ];
            for (method, slopes) in methods {
                let Some(slopes) = slopes else { continue };
                let mut row = vec![trace.name.as_str().into(), phase.into(), method.into()];
                row.extend(spread(&slopes, number));
                table.push(row);
            }
        }
    }
    table
}

fn reuse(report: &LocalityReport) -> Table {
    let mut table = Table::new(
        "reuse",
        "Reuse by window",
        "Selections whose expert the same layer chose within the tokens before; any order: the \
         exact mean over all orders of the same tokens, what popularity alone gives; recency: \
         the difference.",
        columns(&[
            ("trace", "trace"),
            ("phase", "phase"),
            ("window_tokens", "window (tokens)"),
            ("scored", "selections"),
            ("reused", "reused"),
            ("measured", "measured"),
            ("shuffled", "any order"),
            ("recency", "recency"),
        ]),
    );
    for trace in everyone(report) {
        for (phase, stats) in phases(trace) {
            for reuse in &stats.reuse {
                table.push(vec![
                    trace.name.as_str().into(),
                    phase.into(),
                    u64::from(reuse.window_tokens).into(),
                    reuse.scored.into(),
                    reuse.reused.into(),
                    Cell::Share(reuse.measured),
                    Cell::Share(reuse.shuffled),
                    Cell::Share(reuse.recency()),
                ]);
            }
        }
    }
    table
}

fn top_share(report: &LocalityReport) -> Table {
    let mut table = Table::new(
        "top_share",
        "Share of the busiest experts",
        "Part of a layer's selections that its busiest experts took; even: what a router \
         without preference would give them.",
        columns(&[
            ("trace", "trace"),
            ("phase", "phase"),
            ("top", "experts a layer"),
            ("mean", "mean layer"),
            ("min", "least layer"),
            ("max", "greatest layer"),
            ("uniform", "even"),
        ]),
    );
    for trace in everyone(report) {
        for (phase, stats) in phases(trace) {
            for share in &stats.top_share {
                let mut row = vec![trace.name.as_str().into(), phase.into()];
                row.push(u64::from(share.top).into());
                row.extend(spread(&share.share, Cell::Share));
                row.push(Cell::Share(share.uniform));
                table.push(row);
            }
        }
    }
    table
}

fn overlap(report: &LocalityReport) -> Table {
    let mut table = Table::new(
        "overlap",
        "Overlap of the busiest experts",
        "Common experts / experts in either set, over the layers (Jaccard index); random: the \
         mean of two random sets. A trace's own halves tell how much of a difference is only \
         chance and drift.",
        columns(&[
            ("a", "trace"),
            ("b", "and"),
            ("top", "experts a layer"),
            ("mean", "mean layer"),
            ("min", "least layer"),
            ("max", "greatest layer"),
            ("random", "random"),
        ]),
    );
    let mut rows = |a: &str, b: &str, sizes: &[Jaccard]| {
        for size in sizes {
            let mut row = vec![a.into(), b.into(), u64::from(size.top).into()];
            row.extend(spread(&size.jaccard, number));
            row.push(number(size.random));
            table.push(row);
        }
    };
    for pair in &report.overlaps {
        rows(&pair.a, &pair.b, &pair.sizes);
    }
    for trace in &report.traces {
        if let Some(halves) = &trace.decode.halves {
            let b = format!("its tokens after {}", halves.first_tokens);
            rows(&trace.name, &b, &halves.sizes);
        }
    }
    table
}

fn shared_passes(report: &LocalityReport) -> Table {
    let mut table = Table::new(
        "shared_passes",
        "Tokens of one pass",
        "Passes of more than one token (prompts, accepted drafts): their selections, and the \
         different experts of each pass, which is what must be read.",
        columns(&[
            ("trace", "trace"),
            ("phase", "phase"),
            ("passes", "layer passes"),
            ("tokens", "tokens"),
            ("selections", "selections"),
            ("distinct", "different experts"),
            ("dedup", "selections / different"),
        ]),
    );
    for trace in everyone(report) {
        for (phase, stats) in phases(trace) {
            let Some(shared) = &stats.shared_passes else { continue };
            table.push(vec![
                trace.name.as_str().into(),
                phase.into(),
                shared.passes.into(),
                shared.tokens.into(),
                shared.selections.into(),
                shared.distinct.into(),
                number(shared.dedup),
            ]);
        }
    }
    table
}

fn batch(report: &LocalityReport) -> Table {
    let mut table = Table::new(
        "batch",
        "Decoded together",
        "Expert reads an iteration if the first traces ran as one batch: apart, each its own \
         different experts; together, the union. Every pass counts, rejected ones included.",
        columns(&[
            ("streams", "traces"),
            ("iterations", "iterations"),
            ("accepted_tokens", "accepted tokens"),
            ("apart_per_iteration", "reads apart"),
            ("together_per_iteration", "reads together"),
            ("dedup", "apart / together"),
            ("together_gb_per_iteration", "GB together"),
        ]),
    );
    let Some(batch) = &report.batch else { return table };
    let same = |trace: &TraceStats| trace.expert_bytes == report.traces[0].expert_bytes;
    let first = report.traces.first().filter(|_| report.traces.iter().all(same));
    let expert_bytes = first.and_then(|trace| trace.expert_bytes);
    for step in &batch.steps {
        let each = |sum: u64| {
            let of = sum as f64 / batch.iterations as f64;
            Cell::of((batch.iterations > 0).then_some(of), number)
        };
        let bytes = expert_bytes.and_then(|b| step.bytes_per_iteration(batch.iterations, b));
        table.push(vec![
            (step.streams as u64).into(),
            batch.iterations.into(),
            step.accepted_tokens.into(),
            each(step.apart),
            each(step.together),
            Cell::of(step.dedup(), number),
            Cell::of(bytes.map(|bytes| bytes / 1e9), number),
        ]);
    }
    table
}

fn warnings(report: &LocalityReport) -> Table {
    let heads = columns(&[("trace", "trace"), ("warning", "warning")]);
    let mut table = Table::new("warnings", "Warnings", "What to know about the traces.", heads);
    for trace in &report.traces {
        for warning in &trace.warnings {
            table.push(vec![trace.name.as_str().into(), warning.as_str().into()]);
        }
    }
    table
}

/// A table with a row for every layer of every trace, under the columns `heads`.
fn by_layer<F>(
    name: &str,
    title: &str,
    note: &str,
    heads: &[(&str, &str)],
    report: &LocalityReport,
    rows: F,
) -> Table
where
    F: Fn(&LayerStats) -> Vec<Vec<Cell>>,
{
    let mut all = vec![("trace", "trace"), ("phase", "phase"), ("layer", "layer")];
    all.extend(heads);
    let mut table = Table::new(name, title, note, columns(&all));
    table.detail = true;
    for trace in everyone(report) {
        for (phase, stats) in phases(trace) {
            for layer in &stats.per_layer {
                for cells in rows(layer) {
                    let mut row = vec![trace.name.as_str().into(), phase.into()];
                    row.push(u64::from(layer.layer).into());
                    row.extend(cells);
                    table.push(row);
                }
            }
        }
    }
    table
}

fn layers(report: &LocalityReport) -> Table {
    let top = report.options.top.iter().find(|&&top| top >= 8).or(report.options.top.last());
    let top = top.copied().unwrap_or(0);
    let (share, title) = (format!("top{top}_share"), format!("top-{top} share"));
    let heads = [
        ("tokens", "tokens"),
        ("used_experts", "experts used"),
        ("coverage", "coverage"),
        ("effective_experts", "effective experts"),
        ("zipf_alpha", "slope"),
        ("zipf_r2", "r²"),
        ("zipf_alpha_ml", "slope (likelihood)"),
        (share.as_str(), title.as_str()),
    ];
    let note = "Effective experts: the exponential of the entropy of their shares.";
    by_layer("layers", "Layers", note, &heads, report, |layer| {
        let zipf = layer.zipf.as_ref();
        let share = layer.top_share.iter().find(|share| share.top == top);
        vec![vec![
            layer.tokens.into(),
            layer.used_experts.into(),
            Cell::Share(layer.coverage),
            Cell::Number(layer.effective_experts, 1),
            Cell::of(zipf.map(|zipf| zipf.alpha), number),
            Cell::of(zipf.and_then(|zipf| zipf.r2), number),
            Cell::of(zipf.and_then(|zipf| zipf.alpha_ml), number),
            Cell::of(share.map(|share| share.share), Cell::Share),
        ]]
    })
}

fn layer_reuse(report: &LocalityReport) -> Table {
    let heads = [
        ("window_tokens", "window (tokens)"),
        ("scored", "selections"),
        ("reused", "reused"),
        ("measured", "measured"),
        ("shuffled", "any order"),
    ];
    let note = "As the reuse by window, of each layer.";
    by_layer("layer_reuse", "Reuse by window and layer", note, &heads, report, |layer| {
        let row = |reuse: &crate::locality::Reuse| {
            vec![
                u64::from(reuse.window_tokens).into(),
                reuse.scored.into(),
                reuse.reused.into(),
                Cell::Share(reuse.measured),
                Cell::Share(reuse.shuffled),
            ]
        };
        layer.reuse.iter().map(row).collect()
    })
}

fn ranks(report: &LocalityReport) -> Table {
    let heads = [("rank", "rank"), ("tokens", "tokens that chose it")];
    let note = "Experts of a layer from the busiest down.";
    by_layer("ranks", "Rank and frequency", note, &heads, report, |layer| {
        let ranked = (1_u64..).zip(&layer.rank_counts);
        ranked.map(|(rank, &count)| vec![rank.into(), count.into()]).collect()
    })
}

fn growth(report: &LocalityReport) -> Table {
    let mut table = Table::new(
        "growth",
        "Growth of coverage",
        "Experts touched after so many tokens, all layers together; any order: the exact mean \
         over all orders of the same tokens.",
        columns(&[
            ("trace", "trace"),
            ("phase", "phase"),
            ("tokens", "tokens"),
            ("used_experts", "experts used"),
            ("coverage", "coverage"),
            ("shuffled", "any order"),
        ]),
    );
    table.detail = true;
    for trace in everyone(report) {
        for (phase, stats) in phases(trace) {
            for point in stats.growth.iter().flat_map(|growth| &growth.points) {
                table.push(vec![
                    trace.name.as_str().into(),
                    phase.into(),
                    point.tokens.into(),
                    point.used_experts.into(),
                    Cell::Share(point.coverage),
                    Cell::Share(point.shuffled),
                ]);
            }
        }
    }
    table
}
