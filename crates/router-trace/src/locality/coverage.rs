use super::chance::none_drawn;
use serde::{Deserialize, Serialize};

/// How many different experts a trace has touched after so many tokens.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct GrowthPoint {
    /// Tokens so far (of each layer).
    pub tokens: u64,
    /// Experts touched so far.
    pub used_experts: u64,
    /// `used_experts` of the pool, 0 to 1.
    pub coverage: f64,
    /// The exact mean of `coverage` over all orders of the same tokens (rarefaction). At
    /// the last token it is `coverage` itself; below it, the trace keeps to few experts
    /// for a while where the mean does not.
    pub shuffled: f64,
}

/// The growth of coverage over a whole trace.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Growth {
    /// From the first token to the last, at tokens spaced evenly in their logarithm.
    pub points: Vec<GrowthPoint>,
    /// Experts touched for the first time a token, over the last quarter of the tokens, all
    /// layers together. Zero would mean that coverage has saturated.
    pub late_new_experts_per_token: f64,
}

/// What growth needs to know of one layer.
pub(super) struct LayerFirsts<'a> {
    /// The token (from 1) at which each used expert appeared first, ascending.
    pub(super) firsts: &'a [u64],
    /// Tokens that chose each used expert, descending.
    pub(super) counts: &'a [u64],
    /// Tokens of the layer.
    pub(super) tokens: u64,
}

/// The curve of a pool of `pool_experts` in these layers; `None` without tokens.
pub(super) fn growth(
    layers: &[LayerFirsts<'_>],
    pool_experts: u64,
    points: usize,
) -> Option<Growth> {
    let last = layers.iter().map(|layer| layer.tokens).max().filter(|&tokens| tokens > 0)?;
    let used_at = |tokens: u64| -> u64 {
        let used = |layer: &LayerFirsts<'_>| layer.firsts.partition_point(|&first| first <= tokens);
        layers.iter().map(|layer| used(layer) as u64).sum()
    };
    let pool = pool_experts as f64;
    let curve = checkpoints(last, points).into_iter().map(|tokens| {
        let used_experts = used_at(tokens);
        let expected: f64 = layers.iter().map(|layer| expected_used(layer, tokens)).sum();
        let (coverage, shuffled) = (used_experts as f64 / pool, expected / pool);
        GrowthPoint { tokens, used_experts, coverage, shuffled }
    });
    let late = last.div_ceil(4);
    let new = used_at(last) - used_at(last - late);
    Some(Growth { points: curve.collect(), late_new_experts_per_token: new as f64 / late as f64 })
}

/// Different experts that `tokens` random ones of the layer's tokens would touch.
fn expected_used(layer: &LayerFirsts<'_>, tokens: u64) -> f64 {
    let drawn = tokens.min(layer.tokens);
    let same = layer.counts.chunk_by(|a, b| a == b);
    let each =
        same.map(|same| (same.len() as f64) * (1.0 - none_drawn(layer.tokens, same[0], drawn)));
    each.sum()
}

/// At most `points` token numbers from 1 to `last`, evenly spaced in their logarithm,
/// without repetition.
fn checkpoints(last: u64, points: usize) -> Vec<u64> {
    let step = (last as f64).ln() / (points - 1) as f64;
    let at = |i: usize| ((step * i as f64).exp().round() as u64).clamp(1, last);
    let mut tokens: Vec<u64> = (0..points - 1).map(at).collect();
    tokens.push(last);
    tokens.dedup();
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_reach_both_ends() {
        assert_eq!(checkpoints(1, 33), [1]);
        assert_eq!(checkpoints(4, 3), [1, 2, 4]);
        let many = checkpoints(1_000_000, 7);
        assert_eq!(many, [1, 10, 100, 1000, 10_000, 100_000, 1_000_000]);
        assert!(checkpoints(300, 33).windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn growth_by_hand() {
        // Tokens a b a c with one expert each, of a pool of 4.
        let layer = LayerFirsts { firsts: &[1, 2, 4], counts: &[2, 1, 1], tokens: 4 };
        let growth = growth(&[layer], 4, 5).unwrap();
        let points: Vec<_> = growth.points.iter().map(|p| (p.tokens, p.used_experts)).collect();
        assert_eq!(points, [(1, 1), (2, 2), (3, 2), (4, 3)]);
        // Two of {a, a, b, c}: 6 pairs, one of them with a single expert: 11/6 experts.
        assert!((growth.points[1].shuffled - 11.0 / 6.0 / 4.0).abs() < 1e-12);
        assert_eq!((growth.points[3].coverage, growth.points[3].shuffled), (0.75, 0.75));
        assert_eq!(growth.late_new_experts_per_token, 1.0);
    }

    #[test]
    fn nothing_has_no_growth() {
        assert_eq!(growth(&[], 8, 5), None);
        assert_eq!(growth(&[LayerFirsts { firsts: &[], counts: &[], tokens: 0 }], 8, 5), None);
    }
}
