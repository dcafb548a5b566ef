/// Ranges of scores whose hits are counted apart.
const BINS: usize = 48;
/// Tokens after which the past counts half.
const HALF_LIFE_TOKENS: u32 = 4096;
/// Tokens between two updates of the probabilities, at most.
const REFRESH_TOKENS: u32 = 64;
/// What a bin is believed to have seen before it saw anything, at the rate of chance.
const PRIOR: f32 = 0.5;
/// Share of a probability that only keeps equal ones in the order of their scores.
const TILT: f32 = 1e-3;

/// Learns how often an expert with a certain score is chosen.
///
/// Scores fall into bins of the position `s / (1 + |s|)`; in each are counted the experts seen and
/// those that were chosen. Probabilities are the isotonic regression of these rates (pool adjacent
/// violators: Ayer, Brunk, Ewing, Reid and Silverman 1955; for classifiers Zadrozny and Elkan
/// 2002), so that a higher score never means a lower probability.
#[derive(Clone, Debug)]
pub struct Calibrator {
    seen: [f32; BINS],
    hits: [f32; BINS],
    rates: [f32; BINS],
    chance: f32,
    tokens: u32,
    next_refresh: u32,
}

impl Calibrator {
    /// Knows only the rate of chance: a token's choices over the layer's experts.
    #[must_use]
    pub fn new(top_k: usize, n_experts: usize) -> Self {
        let chance = top_k as f32 / n_experts.max(1) as f32;
        let counts = [0.0; BINS];
        Self {
            seen: counts,
            hits: counts,
            rates: [chance; BINS],
            chance,
            tokens: 0,
            next_refresh: 1,
        }
    }

    /// How likely an expert with this score is chosen, 0 to 1: rises with the score.
    #[must_use]
    pub fn probability(&self, score: f32) -> f32 {
        let position = position(score);
        self.rates[bin(position)] * (1.0 - TILT) + position * TILT
    }

    /// Takes in one token: the scores of all experts of a layer, and which it chose.
    pub fn learn(&mut self, scores: &[f32], chosen: &[u16]) {
        for &score in scores {
            self.seen[bin(position(score))] += 1.0;
        }
        for score in chosen.iter().filter_map(|&expert| scores.get(usize::from(expert))) {
            self.hits[bin(position(*score))] += 1.0;
        }
        self.tokens += 1;
        if self.tokens >= self.next_refresh {
            self.refresh();
            self.next_refresh = self.tokens + self.tokens.clamp(1, REFRESH_TOKENS);
        }
        if self.tokens >= HALF_LIFE_TOKENS {
            self.seen.iter_mut().chain(&mut self.hits).for_each(|count| *count *= 0.5);
            self.tokens /= 2;
            self.next_refresh = self.tokens + REFRESH_TOKENS;
        }
    }

    fn refresh(&mut self) {
        let mut blocks = [(0.0_f32, 0.0_f32, 0_usize); BINS];
        let mut len = 0;
        for (&seen, &hits) in self.seen.iter().zip(&self.hits) {
            let mut block = (hits + PRIOR * self.chance, seen + PRIOR, 1);
            // hits / seen must rise: one that does not joins the block before it.
            while len > 0 && blocks[len - 1].0 * block.1 >= block.0 * blocks[len - 1].1 {
                len -= 1;
                let before = blocks[len];
                block = (before.0 + block.0, before.1 + block.1, before.2 + block.2);
            }
            blocks[len] = block;
            len += 1;
        }
        let mut at = 0;
        for (hits, seen, bins) in &blocks[..len] {
            self.rates[at..at + bins].fill(hits / seen);
            at += bins;
        }
    }
}

/// 0 to 1, rising with the score; a half for a score of zero.
fn position(score: f32) -> f32 {
    let position = 0.5 + 0.5 * score / (1.0 + score.abs());
    if position.is_finite() { position } else { 0.0 }
}

fn bin(position: f32) -> usize {
    // A cast of a float saturates, so that no position falls outside.
    ((position * BINS as f32) as usize).min(BINS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Isotonic regression by its min-max formula: the largest, over starts at or before a bin,
    /// of the smallest, over ends at or after it, of the mean between.
    fn naive(hits: &[f32], seen: &[f32]) -> Vec<f32> {
        let mean = |from: usize, to: usize| {
            hits[from..=to].iter().sum::<f32>() / seen[from..=to].iter().sum::<f32>()
        };
        let at = |bin: usize| {
            let from = |from| (bin..hits.len()).map(|to| mean(from, to)).fold(f32::MAX, f32::min);
            (0..=bin).map(from).fold(f32::MIN, f32::max)
        };
        (0..hits.len()).map(at).collect()
    }

    proptest! {
        #[test]
        fn rates_are_the_isotonic_regression(
            tokens in prop::collection::vec(
                (prop::collection::vec(-40_i8..40, 8), prop::collection::btree_set(0_u16..8, 0..4)),
                1..60,
            ),
        ) {
            let mut calibrator = Calibrator::new(2, 8);
            for (scores, chosen) in &tokens {
                let scores: Vec<f32> = scores.iter().map(|score| f32::from(*score) / 8.0).collect();
                let chosen: Vec<u16> = chosen.iter().copied().collect();
                calibrator.learn(&scores, &chosen);
            }
            calibrator.refresh();
            let hits: Vec<f32> = calibrator.hits.iter().map(|hits| hits + PRIOR * 0.25).collect();
            let seen: Vec<f32> = calibrator.seen.iter().map(|seen| seen + PRIOR).collect();
            for (bin, (rate, wanted)) in
                calibrator.rates.iter().zip(naive(&hits, &seen)).enumerate()
            {
                prop_assert!((rate - wanted).abs() < 1e-4, "bin {bin}: {rate}, not {wanted}");
            }
            let probabilities: Vec<f32> =
                (-60..60).map(|score| calibrator.probability(score as f32 / 10.0)).collect();
            prop_assert!(probabilities.windows(2).all(|two| two[0] < two[1]));
            prop_assert!(probabilities.iter().all(|p| (0.0..=1.0).contains(p)));
        }
    }

    #[test]
    fn odd_scores_are_worst_and_nothing_is_lost_with_age() {
        let mut calibrator = Calibrator::new(1, 4);
        assert!((calibrator.probability(0.0) - 0.25).abs() < 1e-3);
        for _ in 0..3 * HALF_LIFE_TOKENS {
            calibrator.learn(&[f32::NAN, f32::NEG_INFINITY, 2.0, -1.0], &[2, 9]);
        }
        assert!(calibrator.probability(2.0) > 0.98);
        assert!(calibrator.probability(f32::NAN) < 0.02);
        assert!(calibrator.seen.iter().sum::<f32>() <= 4.0 * HALF_LIFE_TOKENS as f32);
    }
}
