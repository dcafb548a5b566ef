//! Interleaved comparison: which arm runs when, and what the paired times say.

use serde::Serialize;

/// Median, smallest and largest of some ratios.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Spread {
    /// The middle, or between the middle two.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// `None` for no values.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self { median, min, max })
    }
}

/// The arm indices of each round: forwards and backwards in turn (ABBA), each round starting one
/// arm further, so that no arm always follows the same one and drift hits all alike.
#[must_use]
pub fn balanced_order(arms: usize, rounds: usize) -> Vec<Vec<usize>> {
    (0..rounds)
        .map(|round| {
            let mut order: Vec<usize> = (0..arms).map(|i| (i + round / 2) % arms).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            order
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_even_and_odd_counts() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0]).map(|spread| spread.median), Some(2.5));
    }

    #[test]
    fn two_arms_are_abba() {
        assert_eq!(balanced_order(2, 4), [[0, 1], [1, 0], [1, 0], [0, 1]]);
    }

    #[test]
    fn every_arm_is_first_as_often_as_last() {
        for arms in 1..5 {
            let orders = balanced_order(arms, 2 * arms);
            for arm in 0..arms {
                let first = orders.iter().filter(|order| order[0] == arm).count();
                let last = orders.iter().filter(|order| order[arms - 1] == arm).count();
                assert_eq!((first, last), (2, 2), "arm {arm} of {arms}");
            }
        }
    }
}
