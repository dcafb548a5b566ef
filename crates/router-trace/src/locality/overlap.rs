use super::stats::Spread;
use serde::{Deserialize, Serialize};

/// How alike the busiest experts of two traces are.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Jaccard {
    /// Size of the busiest sets, in experts a layer.
    pub top: u16,
    /// Common experts / experts in either set: mean, least and greatest over the layers
    /// that both traces have.
    pub jaccard: Spread,
    /// What two random sets of this size would show on average.
    pub random: f64,
}

/// The overlap of the busiest sets of two traces, at each size.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PairOverlap {
    /// Name of the one trace.
    pub a: String,
    /// Name of the other.
    pub b: String,
    /// One entry a size; none where no layer has tokens in both.
    pub sizes: Vec<Jaccard>,
}

/// The overlap of a trace's first part with its second: what a set learned on the start
/// of a trace still has of the rest. Two traces that differ by more than this differ by
/// more than chance and drift.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SplitOverlap {
    /// Tokens of the first part, about half of them.
    pub first_tokens: u64,
    /// Tokens of the second part.
    pub second_tokens: u64,
    /// One entry a size.
    pub sizes: Vec<Jaccard>,
}

/// For each layer, the experts from the busiest down, as far as they are compared; used
/// ones only. Of equally busy ones the lower number is first.
pub(super) struct TopSets {
    n_experts: u16,
    layers: Vec<Vec<u16>>,
}

impl TopSets {
    pub(super) fn new<'a>(
        n_experts: u16,
        largest: u16,
        layers: impl Iterator<Item = Option<&'a [u64]>>,
    ) -> Self {
        let layers = layers.map(|counts| counts.map_or_else(Vec::new, |c| busiest(c, largest)));
        Self { n_experts, layers: layers.collect() }
    }

    /// The overlap with `other`, of a model with the same layers, at each size of `tops`
    /// that is not the whole layer.
    pub(super) fn overlap(&self, other: &Self, tops: &[u16]) -> Vec<Jaccard> {
        let sizes = tops.iter().filter(|&&top| top < self.n_experts);
        let overlap = |&top: &u16| {
            let cut = |layer: &[u16]| -> Vec<u16> {
                let mut set = layer[..layer.len().min(top.into())].to_vec();
                set.sort_unstable();
                set
            };
            let both = self.layers.iter().zip(&other.layers);
            let both = both.filter(|(a, b)| !a.is_empty() && !b.is_empty());
            let jaccard = Spread::of(both.map(|(a, b)| jaccard(&cut(a), &cut(b))))?;
            Some(Jaccard { top, jaccard, random: random_jaccard(self.n_experts, top) })
        };
        sizes.filter_map(overlap).collect()
    }
}

fn busiest(counts: &[u64], largest: u16) -> Vec<u16> {
    let mut used: Vec<u16> = (0..).zip(counts).filter(|(_, c)| **c > 0).map(|(e, _)| e).collect();
    // Stable: equally busy ones stay in the order of their numbers.
    used.sort_by_key(|&expert| std::cmp::Reverse(counts[usize::from(expert)]));
    used.truncate(largest.into());
    used
}

/// Common members / members of either, of two sorted sets of which one is not empty.
fn jaccard(a: &[u16], b: &[u16]) -> f64 {
    let common = a.iter().filter(|expert| b.binary_search(expert).is_ok()).count();
    common as f64 / (a.len() + b.len() - common) as f64
}

/// The mean Jaccard index of two independent uniformly random sets of `top` of
/// `n_experts`: the sum over x of P(x common) x / (2 top - x), x hypergeometric.
///
/// 0 for an empty set, 1 where `top` is the whole layer or more.
#[must_use]
pub fn random_jaccard(n_experts: u16, top: u16) -> f64 {
    let (n, k) = (f64::from(n_experts), f64::from(top.min(n_experts)));
    if k == 0.0 {
        return 0.0;
    }
    let ln_choose =
        |n: f64, k: f64| libm::lgamma(n + 1.0) - libm::lgamma(k + 1.0) - libm::lgamma(n - k + 1.0);
    let least = (2.0 * k - n).max(0.0) as u32;
    let each = (least..=k as u32).map(|x| {
        let x = f64::from(x);
        let ln = ln_choose(k, x) + ln_choose(n - k, k - x) - ln_choose(n, k);
        ln.exp() * x / (2.0 * k - x)
    });
    each.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busiest_breaks_ties_by_number_and_skips_the_unused() {
        assert_eq!(busiest(&[2, 0, 5, 2, 1], 3), [2, 0, 3]);
        assert_eq!(busiest(&[0, 0, 1], 3), [2]);
    }

    #[test]
    fn jaccard_by_hand() {
        assert_eq!(jaccard(&[1, 2, 3], &[2, 3, 4]), 0.5);
        assert_eq!(jaccard(&[1], &[2]), 0.0);
        assert_eq!(jaccard(&[1, 7], &[1, 7]), 1.0);
    }

    #[test]
    fn random_sets_by_enumeration() {
        for (n, k) in [(4_u16, 2_u16), (6, 3), (7, 5), (9, 1), (5, 5)] {
            let sets: Vec<Vec<u16>> = (0..1_u32 << n)
                .filter(|mask| mask.count_ones() == u32::from(k))
                .map(|mask| (0..n).filter(|bit| mask >> bit & 1 == 1).collect())
                .collect();
            let all = sets.iter().flat_map(|a| sets.iter().map(|b| jaccard(a, b)));
            let mean = all.sum::<f64>() / (sets.len() * sets.len()) as f64;
            assert!((random_jaccard(n, k) - mean).abs() < 1e-12, "{n} {k}");
        }
        assert_eq!((random_jaccard(8, 0), random_jaccard(0, 3)), (0.0, 0.0));
        // The model card's 0.143 is the ratio of the means; the mean of the ratio is near.
        assert!((random_jaccard(64, 16) - 0.143).abs() < 0.004);
    }

    #[test]
    fn layers_without_tokens_are_left_out() {
        let sets = |layers: [Option<&[u64]>; 3]| TopSets::new(3, 2, layers.into_iter());
        let a = sets([Some(&[9, 1, 1]), Some(&[1, 1, 0]), None]);
        let b = sets([Some(&[0, 1, 9]), None, Some(&[1, 0, 0])]);
        let overlap = a.overlap(&b, &[1, 2, 3]);
        assert_eq!(overlap.len(), 2); // three of three is every expert
        assert_eq!((overlap[0].top, overlap[0].jaccard.mean), (1, 0.0));
        assert_eq!(overlap[1].jaccard.mean, 1.0 / 3.0); // {0, 1} and {1, 2}
    }
}
