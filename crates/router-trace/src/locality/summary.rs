//! From counters to figures.

use super::concentration::{TopShare, effective_experts};
use super::counter::{LayerCounter, PhaseCounter, Seen};
use super::coverage::{Growth, LayerFirsts, growth};
use super::options::LocalityOptions;
use super::overlap::{SplitOverlap, TopSets};
use super::reuse::{Reuse, Windows, shuffled};
use super::stats::{LayerStats, PassCounts, PhaseStats, SharedPasses, Spread, TopShareSpread};
use super::zipf::{ZipfFit, ZipfSummary};
use crate::ids::ModelShape;

/// One layer's counts in the orders that the figures want.
struct Sorted {
    layer: u16,
    tokens: u64,
    /// Descending, used experts only.
    counts: Vec<u64>,
    /// Ascending, used experts only.
    firsts: Vec<u64>,
}

impl Sorted {
    fn new(layer: u16, counter: &LayerCounter) -> Self {
        let used = counter.seen.iter().filter(|seen| seen.count > 0);
        let (mut counts, mut firsts): (Vec<_>, Vec<_>) =
            used.map(|seen| (seen.count, seen.first)).unzip();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        firsts.sort_unstable();
        Self { layer, tokens: counter.tokens, counts, firsts }
    }

    fn for_growth(&self) -> LayerFirsts<'_> {
        LayerFirsts { firsts: &self.firsts, counts: &self.counts, tokens: self.tokens }
    }
}

/// The figures of one phase.
pub(super) fn phase(
    counter: &PhaseCounter,
    shape: &ModelShape,
    windows: &Windows,
    options: &LocalityOptions,
) -> PhaseStats {
    let layers: Vec<(Sorted, &LayerCounter)> = shape
        .moe_layers
        .iter()
        .zip(&counter.layers)
        .filter_map(|(&layer, counter)| Some((layer, counter.as_ref()?)))
        .map(|(layer, counter)| (Sorted::new(layer, counter), counter))
        .collect();
    let per_layer: Vec<LayerStats> = layers
        .iter()
        .map(|(sorted, counter)| layer(sorted, counter, shape, windows, options))
        .collect();
    let [normal, spec_accept, spec_fallback] = counter.kinds;
    let layer_tokens = per_layer.iter().map(|layer| layer.tokens).sum::<u64>();
    let used_experts = per_layer.iter().map(|layer| layer.used_experts).sum();
    PhaseStats {
        records: counter.records,
        passes: PassCounts { normal, spec_accept, spec_fallback },
        tokens: per_layer.iter().map(|layer| layer.tokens).max().unwrap_or(0),
        layer_tokens,
        superseded_tokens: counter.superseded_tokens,
        selections: layer_tokens * u64::from(shape.top_k),
        used_experts,
        coverage: (layer_tokens > 0).then(|| used_experts as f64 / shape.total_experts() as f64),
        zipf: zipf(&per_layer, shape),
        top_share: top_share(&per_layer, options),
        reuse: pooled_reuse(&per_layer, options),
        growth: pooled_growth(&layers, shape, options),
        shared_passes: shared_passes(&layers),
        halves: halves(counter, shape, options),
        per_layer,
    }
}

fn layer(
    sorted: &Sorted,
    counter: &LayerCounter,
    shape: &ModelShape,
    windows: &Windows,
    options: &LocalityOptions,
) -> LayerStats {
    let (counts, tokens, n_experts) = (&sorted.counts, sorted.tokens, shape.n_experts);
    let reuse = windows.tokens().iter().zip(counter.reused()).filter_map(|(&window, reused)| {
        let scored = tokens.saturating_sub(window.into()) * u64::from(shape.top_k);
        let expected = if scored > 0 { shuffled(counts, tokens, window) } else { 0.0 };
        Reuse::new(window, scored, reused, expected)
    });
    let shares = options.top.iter().filter(|&&top| top < n_experts);
    LayerStats {
        layer: sorted.layer,
        tokens,
        used_experts: counts.len() as u64,
        coverage: counts.len() as f64 / f64::from(n_experts),
        effective_experts: effective_experts(counts).unwrap_or(0.0),
        zipf: ZipfFit::new(counts, n_experts.into()),
        top_share: shares.filter_map(|&top| TopShare::new(counts, n_experts, top)).collect(),
        reuse: reuse.collect(),
        growth: growth(&[sorted.for_growth()], n_experts.into(), options.curve_points),
        rank_counts: counts.clone(),
    }
}

fn zipf(layers: &[LayerStats], shape: &ModelShape) -> Option<ZipfSummary> {
    let fits = || layers.iter().filter_map(|layer| layer.zipf);
    let mut pooled: Vec<u64> =
        layers.iter().flat_map(|layer| &layer.rank_counts).copied().collect();
    pooled.sort_unstable_by(|a, b| b.cmp(a));
    Some(ZipfSummary {
        alpha: Spread::of(fits().map(|fit| fit.alpha))?,
        alpha_ml: Spread::of(fits().filter_map(|fit| fit.alpha_ml)),
        pooled: ZipfFit::new(&pooled, shape.total_experts())?,
    })
}

fn top_share(layers: &[LayerStats], options: &LocalityOptions) -> Vec<TopShareSpread> {
    let of = |&top: &u16| {
        let shares = || layers.iter().flat_map(|l| &l.top_share).filter(move |s| s.top == top);
        let uniform = shares().next()?.uniform;
        Some(TopShareSpread { top, share: Spread::of(shares().map(|s| s.share))?, uniform })
    };
    options.top.iter().filter_map(of).collect()
}

/// Selections of all layers together: a layer weighs as many as it has.
fn pooled_reuse(layers: &[LayerStats], options: &LocalityOptions) -> Vec<Reuse> {
    let of = |&window: &u32| {
        let all = layers.iter().flat_map(|layer| &layer.reuse);
        let (mut scored, mut reused, mut expected) = (0, 0, 0.0);
        for reuse in all.filter(|reuse| reuse.window_tokens == window) {
            scored += reuse.scored;
            reused += reuse.reused;
            expected += reuse.shuffled * reuse.scored as f64;
        }
        Reuse::new(window, scored, reused, expected / scored as f64)
    };
    options.windows.iter().filter_map(of).collect()
}

fn pooled_growth(
    layers: &[(Sorted, &LayerCounter)],
    shape: &ModelShape,
    options: &LocalityOptions,
) -> Option<Growth> {
    let layers: Vec<_> = layers.iter().map(|(sorted, _)| sorted.for_growth()).collect();
    growth(&layers, shape.total_experts() as u64, options.curve_points)
}

fn shared_passes(layers: &[(Sorted, &LayerCounter)]) -> Option<SharedPasses> {
    let sum = |of: fn(&LayerCounter) -> u64| layers.iter().map(|(_, layer)| of(layer)).sum::<u64>();
    let (selections, distinct) = (sum(|l| l.shared.selections), sum(|l| l.shared.distinct));
    (distinct > 0).then(|| SharedPasses {
        passes: sum(|l| l.shared.passes),
        tokens: sum(|l| l.shared.tokens),
        selections,
        distinct,
        dedup: selections as f64 / distinct as f64,
    })
}

/// Counts of a layer's experts in the two halves of a trace.
type Halves = (Vec<u64>, Vec<u64>);

/// Each layer's first half against its second; the tokens named are those of the first
/// layer that has two.
fn halves(
    counter: &PhaseCounter,
    shape: &ModelShape,
    options: &LocalityOptions,
) -> Option<SplitOverlap> {
    let split = |layer: &LayerCounter| {
        let (_, first) = layer.first_half()?;
        let second = layer.seen.iter().zip(first).map(|(all, first)| all.count - first);
        Some((first.to_vec(), second.collect::<Vec<u64>>()))
    };
    let mut layers = counter.layers.iter().flatten();
    let (first_tokens, second_tokens) = layers.find_map(|layer| {
        let (first_tokens, _) = layer.first_half()?;
        Some((first_tokens, layer.tokens - first_tokens))
    })?;
    let halves: Vec<Option<Halves>> =
        counter.layers.iter().map(|layer| split(layer.as_ref()?)).collect();
    let largest = options.jaccard_top.last().copied().unwrap_or(0);
    let sets = |half: fn(&Halves) -> &[u64]| {
        let counts = halves.iter().map(|layer| layer.as_ref().map(&half));
        TopSets::new(shape.n_experts, largest, counts)
    };
    let (first, second) = (sets(|halves| &halves.0), sets(|halves| &halves.1));
    let sizes = first.overlap(&second, &options.jaccard_top);
    Some(SplitOverlap { first_tokens, second_tokens, sizes })
}

/// The busiest experts of each layer, for comparison with another trace.
pub(super) fn top_sets(
    counter: &PhaseCounter,
    shape: &ModelShape,
    options: &LocalityOptions,
) -> TopSets {
    let largest = options.jaccard_top.last().copied().unwrap_or(0);
    let counts: Vec<Option<Vec<u64>>> = counter
        .layers
        .iter()
        .map(|layer| Some(layer.as_ref()?.seen.iter().map(|seen: &Seen| seen.count).collect()))
        .collect();
    TopSets::new(shape.n_experts, largest, counts.iter().map(Option::as_deref))
}
