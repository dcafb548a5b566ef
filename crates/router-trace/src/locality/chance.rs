//! Sampling without replacement: what an unordered trace would show.

/// The longest product that is multiplied out; beyond it logarithms of factorials are
/// faster and as good to nine digits.
const PRODUCT_TERMS: u64 = 32;

/// The probability that `drawn` items taken at random, without replacement, from
/// `population` hold none of its `marked` ones: C(population - marked, drawn) /
/// C(population, drawn), the hypergeometric distribution at zero.
pub(super) fn none_drawn(population: u64, marked: u64, drawn: u64) -> f64 {
    if marked == 0 || drawn == 0 {
        return 1.0;
    }
    if marked.saturating_add(drawn) > population {
        return 0.0;
    }
    // The formula is symmetric in `marked` and `drawn`.
    let (few, many) = (marked.min(drawn), marked.max(drawn));
    if few <= PRODUCT_TERMS {
        let term = |i| (population - many - i) as f64 / (population - i) as f64;
        return (0..few).map(term).product();
    }
    let ln_factorial = |n: u64| libm::lgamma(n as f64 + 1.0);
    let ln = ln_factorial(population - marked) - ln_factorial(population - marked - drawn)
        + ln_factorial(population - drawn)
        - ln_factorial(population);
    ln.exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_cases_by_hand() {
        // One of four is marked, two are drawn: C(3,2)/C(4,2) = 3/6.
        assert!((none_drawn(4, 1, 2) - 0.5).abs() < 1e-15);
        assert!((none_drawn(4, 3, 1) - 0.25).abs() < 1e-15);
        assert_eq!(
            (none_drawn(4, 3, 2), none_drawn(0, 0, 0), none_drawn(9, 0, 9)),
            (0.0, 1.0, 1.0)
        );
    }

    proptest! {
        #[test]
        fn both_ways_agree(population in 600_u64..100_000, a in 33_u64..300, b in 33_u64..300) {
            let product: f64 =
                (0..a).map(|i| (population - b - i) as f64 / (population - i) as f64).product();
            let got = none_drawn(population, a, b);
            prop_assert!((got - product).abs() <= 1e-8 * product.max(1e-12), "{got} {product}");
        }

        #[test]
        fn symmetric_and_a_probability(population in 0_u64..400, a in 0_u64..400, b in 0_u64..400) {
            let (ab, ba) = (none_drawn(population, a, b), none_drawn(population, b, a));
            prop_assert!((ab - ba).abs() < 1e-12 && (0.0..=1.0).contains(&ab));
        }
    }
}
