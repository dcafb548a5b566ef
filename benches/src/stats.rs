//! Medians, spreads, and the orders in which arms take turns.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

/// Middle and range of some numbers.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) n: usize,
}

impl Spread {
    /// `None` of no numbers, or of one that is not a number.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        if values.is_empty() || values.iter().any(|value| value.is_nan()) {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let median = (values[(n - 1) / 2] + values[n / 2]) / 2.0;
        Some(Self { median, min: values[0], max: values[n - 1], n })
    }

    /// Of `over[i] / under[i]`: each ratio lies inside one round.
    pub(crate) fn of_ratios(over: &[f64], under: &[f64]) -> Option<Self> {
        Self::of(over.iter().zip(under).map(|(over, under)| over / under))
    }
}

/// Who runs when in `round`: a shuffle in even rounds, the same backwards in the odd one behind
/// it, so that over each pair every arm has the same mean place.
pub(crate) fn order(arms: usize, round: usize, seed: u64) -> Vec<usize> {
    let pair = (round / 2) as u64;
    let mut order: Vec<usize> = (0..arms).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed.wrapping_add(pair)));
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_between_the_middle_two() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max, spread.n), (2.5, 1.0, 4.0, 4));
        assert_eq!(Spread::of([7.0, 9.0, 8.0]).unwrap().median, 8.0);
    }

    #[test]
    fn nothing_and_no_number_have_no_median() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([1.0, f64::NAN]), None);
    }

    #[test]
    fn ratios_are_taken_inside_rounds() {
        // A machine ten times slower in the second round changes neither ratio.
        let ratio = Spread::of_ratios(&[2.0, 20.0], &[1.0, 10.0]).unwrap();
        assert_eq!((ratio.min, ratio.max), (2.0, 2.0));
    }

    #[test]
    fn pairs_of_rounds_are_balanced_and_repeatable() {
        for arms in 1..7 {
            for pair in 0..20 {
                let (there, back) = (order(arms, 2 * pair, 5), order(arms, 2 * pair + 1, 5));
                let mut sorted = there.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..arms).collect::<Vec<_>>());
                assert!(there.iter().eq(back.iter().rev()));
                assert_eq!(there, order(arms, 2 * pair, 5));
            }
        }
        assert!((0..20).any(|pair| order(5, 2 * pair, 1) != order(5, 0, 1)));
    }
}
