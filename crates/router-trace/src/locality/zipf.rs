use super::stats::Spread;
use serde::{Deserialize, Serialize};

/// The slope of a rank-frequency curve, by two methods.
///
/// Experts are ranked by how often they were chosen; frequency ~ 1 / rank^alpha.
///
/// - `alpha` is least squares of ln(frequency) on ln(rank) over the experts that were
///   used, each with equal weight, sign turned so that a falling curve is positive. This
///   is what "the fitted slope of the rank-frequency curve" means by default; the paper
///   (section 3, table 1) names such a slope without saying how it was fitted. The tail of
///   experts seen once or twice weighs as much as the head and bends it, so it moves with
///   the length of the trace.
/// - `alpha_ml` is the maximum-likelihood exponent of the Zipf law cut off at the number
///   of experts (Clauset, Shalizi and Newman 2009, section 3, for a finite support): each
///   selection weighs the same, unused experts count as evidence. It says what the mass
///   does, `alpha` what the curve looks like.
///
/// Both rank and count come from the same sample, which makes either a little steep on a
/// short trace (Piantadosi 2014).
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ZipfFit {
    /// Least-squares slope, positive where the curve falls.
    pub alpha: f64,
    /// Natural logarithm of the fitted frequency at rank 1, in selections.
    pub ln_first: f64,
    /// Share of the variance of ln(frequency) that the line explains; none on a flat curve.
    pub r2: Option<f64>,
    /// Maximum-likelihood exponent; none if no finite one exists.
    pub alpha_ml: Option<f64>,
    /// Experts that were used: points of the fit.
    pub used_experts: u64,
}

/// Slopes of a whole model.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ZipfSummary {
    /// Least-squares slope: mean, least and greatest of the layers' own fits. The mean is
    /// the figure to hold against the paper's table 1 and the bundled model's card.
    pub alpha: Spread,
    /// Maximum-likelihood exponent of the layers.
    pub alpha_ml: Option<Spread>,
    /// One fit over the experts of all layers together, ranked in one list.
    pub pooled: ZipfFit,
}

impl ZipfFit {
    /// Fits `counts`, in selections, descending, of a pool of `n_experts`.
    ///
    /// `None` with fewer than two used experts: one point has no slope.
    #[must_use]
    pub fn new(counts: &[u64], n_experts: usize) -> Option<Self> {
        let used = counts.partition_point(|&count| count > 0);
        if used < 2 {
            return None;
        }
        let counts = &counts[..used];
        debug_assert!(counts.is_sorted_by(|a, b| a >= b));
        let n = used as f64;
        let points = || {
            let ranked = counts.iter().enumerate();
            ranked.map(|(at, &count)| (((at + 1) as f64).ln(), (count as f64).ln()))
        };
        let mean_x = points().map(|(x, _)| x).sum::<f64>() / n;
        let mean_y = points().map(|(_, y)| y).sum::<f64>() / n;
        let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
        for (x, y) in points() {
            xx += (x - mean_x) * (x - mean_x);
            xy += (x - mean_x) * (y - mean_y);
            yy += (y - mean_y) * (y - mean_y);
        }
        let slope = xy / xx;
        let flat = counts[0] == counts[used - 1];
        Some(Self {
            // Not minus zero on a flat curve.
            alpha: if flat { 0.0 } else { -slope },
            ln_first: mean_y - slope * mean_x,
            r2: (!flat).then(|| (xy * xy) / (xx * yy)),
            alpha_ml: maximum_likelihood(counts, n_experts.max(used)),
            used_experts: used as u64,
        })
    }

    /// The fitted line at `rank` (from 1), in selections.
    #[must_use]
    pub fn at(&self, rank: f64) -> f64 {
        (self.ln_first - self.alpha * rank.ln()).exp()
    }
}

/// The exponent s at which the mean of ln(rank) under rank^-s on 1..=support is the
/// observed one: where the likelihood's derivative is zero. The mean falls as s grows, so
/// the root is bracketed and Newton's steps cannot leave it.
fn maximum_likelihood(counts: &[u64], support: usize) -> Option<f64> {
    const STEEPEST: f64 = 64.0;
    let ln_rank: Vec<f64> = (1..=support).map(|rank| (rank as f64).ln()).collect();
    let total = counts.iter().map(|&count| count as f64).sum::<f64>();
    let weighted = counts.iter().zip(&ln_rank).map(|(&count, ln)| count as f64 * ln).sum::<f64>();
    let observed = weighted / total;
    let moments = |s: f64| {
        let (mut mass, mut first, mut second) = (0.0, 0.0, 0.0);
        for ln in &ln_rank {
            let weight = (-s * ln).exp();
            mass += weight;
            first += weight * ln;
            second += weight * ln * ln;
        }
        let mean = first / mass;
        (mean, second / mass - mean * mean)
    };
    let (mut low, mut high) = (0.0, STEEPEST);
    if moments(low).0 <= observed {
        return Some(0.0); // flat: ranks carry no information
    }
    if moments(high).0 >= observed {
        return None;
    }
    let mut s = 1.0;
    for _ in 0..100 {
        let (mean, variance) = moments(s);
        if mean > observed {
            low = s;
        } else {
            high = s;
        }
        let newton = s + (mean - observed) / variance;
        let next = if low < newton && newton < high { newton } else { f64::midpoint(low, high) };
        if (next - s).abs() <= 1e-12 * s.max(1.0) {
            return Some(next);
        }
        s = next;
    }
    Some(s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_exact_power_law_is_found() {
        // 64/rank at ranks 1, 2, 4, 8 would need the ranks between; use 1/rank at 1..4.
        let fit = ZipfFit::new(&[12, 6, 4, 3], 4).unwrap();
        assert!((fit.alpha - 1.0).abs() < 1e-12 && (fit.r2.unwrap() - 1.0).abs() < 1e-12);
        assert!((fit.alpha_ml.unwrap() - 1.0).abs() < 1e-9);
        assert!((fit.at(1.0) - 12.0).abs() < 1e-9 && (fit.at(4.0) - 3.0).abs() < 1e-9);
    }

    #[test]
    fn flat_single_and_empty() {
        let flat = ZipfFit::new(&[5, 5, 5], 3).unwrap();
        assert_eq!((flat.alpha, flat.r2, flat.alpha_ml), (0.0, None, Some(0.0)));
        assert!(flat.alpha.is_sign_positive());
        assert_eq!(ZipfFit::new(&[9, 0, 0], 3), None);
        assert_eq!(ZipfFit::new(&[], 3), None);
        // An unused tail makes the likelihood steeper, not the line.
        let cut = ZipfFit::new(&[5, 5, 5], 100).unwrap();
        assert!(cut.alpha == 0.0 && cut.alpha_ml.unwrap() > 0.5);
    }

    fn ln_likelihood(counts: &[u64], support: usize, s: f64) -> f64 {
        let norm: f64 = (1..=support).map(|r| (r as f64).powf(-s)).sum();
        let each = counts.iter().zip(1..);
        each.map(|(&c, r)| c as f64 * ((f64::from(r)).powf(-s) / norm).ln()).sum()
    }

    proptest! {
        #[test]
        fn equals_the_naive_twins(
            mut counts in prop::collection::vec(1_u64..1000, 2..40),
            unused in 0_usize..40,
        ) {
            counts.sort_unstable_by(|a, b| b.cmp(a));
            let support = counts.len() + unused;
            let fit = ZipfFit::new(&counts, support).unwrap();
            // Normal equations, undivided.
            let (mut n, mut sx, mut sy, mut sxx, mut sxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
            for (rank, &count) in (1..).zip(&counts) {
                let (x, y) = (f64::from(rank).ln(), (count as f64).ln());
                n += 1.0; sx += x; sy += y; sxx += x * x; sxy += x * y;
            }
            let slope = (n * sxy - sx * sy) / (n * sxx - sx * sx);
            prop_assert!((fit.alpha + slope).abs() < 1e-9);
            prop_assert!((fit.ln_first - (sy - slope * sx) / n).abs() < 1e-9);
            // The likelihood is lower on either side.
            let s = fit.alpha_ml.unwrap();
            let best = ln_likelihood(&counts, support, s);
            prop_assert!(best >= ln_likelihood(&counts, support, s + 1e-3));
            prop_assert!(s == 0.0 || best >= ln_likelihood(&counts, support, s - 1e-3));
        }
    }
}
