//! From logits to one token.

use crate::config::Keys;
use crate::error::EngineError;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value};

/// How tokens are drawn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SamplingConfig {
    /// Divides the logits; 0 means greedy.
    pub temperature: f64,
    /// Only the `top_k` best tokens take part; 0 means all.
    pub top_k: usize,
    /// Only the best tokens that together have at least this probability take part; 1 means all.
    pub top_p: f64,
    /// Divides the positive and multiplies the negative logits of tokens already there; 1 means off.
    pub repetition_penalty: f64,
    /// Seed of the random numbers: the same seed and logits give the same tokens.
    pub seed: u64,
}

impl SamplingConfig {
    /// The best token, always.
    pub const GREEDY: Self =
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0, seed: 0 };

    /// The settings of a `generation_config.json`; greedy if it does not say `do_sample`.
    ///
    /// # Errors
    /// `config-inconsistent`, naming the key.
    pub fn from_generation_config(map: &Map<String, Value>) -> Result<Self, EngineError> {
        let keys = Keys::new(map);
        let repetition_penalty = keys.opt_positive("repetition_penalty")?.unwrap_or(1.0);
        if !keys.opt_bool("do_sample")?.unwrap_or(false) {
            return Ok(Self { repetition_penalty, ..Self::GREEDY });
        }
        let top_k = match keys.get("top_k") {
            Some(value) if value == 0 => 0,
            _ => keys.opt_size("top_k")?.unwrap_or(0),
        };
        let config = Self {
            temperature: keys.opt_number("temperature")?.unwrap_or(1.0),
            top_k,
            top_p: keys.opt_number("top_p")?.unwrap_or(1.0),
            repetition_penalty,
            seed: 0,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), EngineError> {
        let bad = |key, value: f64, problem| Err(EngineError::config(key, &value, problem));
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return bad("temperature", self.temperature, "must be 0 or more");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return bad("top_p", self.top_p, "must be above 0 and at most 1");
        }
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            return bad("repetition_penalty", self.repetition_penalty, "must be above 0");
        }
        Ok(())
    }
}

/// Draws tokens; holds the state of the random numbers.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplingConfig,
    rng: ChaCha8Rng,
    candidates: Vec<(u32, f64)>,
}

impl Sampler {
    /// A sampler at the start of its seed's sequence.
    ///
    /// # Errors
    /// `config-inconsistent` if a setting is out of its range.
    pub fn new(config: SamplingConfig) -> Result<Self, EngineError> {
        config.check()?;
        let rng = ChaCha8Rng::seed_from_u64(config.seed);
        Ok(Self { config, rng, candidates: Vec::new() })
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &SamplingConfig {
        &self.config
    }

    /// One token from `logits` (one a token of the vocabulary). `seen` are the tokens that
    /// the repetition penalty is about; one that occurs twice is penalised once.
    ///
    /// # Errors
    /// `sampling-invalid` if there are no logits, one is NaN, or the largest is not finite.
    pub fn sample(&mut self, logits: &[f32], seen: &[u32]) -> Result<u32, EngineError> {
        check_logits(logits)?;
        if self.config.repetition_penalty == 1.0 {
            return Ok(self.draw(logits));
        }
        let mut penalised = logits.to_vec();
        for &token in seen {
            let Some(&logit) = logits.get(token as usize) else { continue };
            let penalty = self.config.repetition_penalty as f32;
            penalised[token as usize] = if logit > 0.0 { logit / penalty } else { logit * penalty };
        }
        Ok(self.draw(&penalised))
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        if self.config.temperature == 0.0 {
            return argmax(logits);
        }
        let candidates = &mut self.candidates;
        candidates.clear();
        candidates.extend((0..).zip(logits).map(|(id, &logit)| (id, f64::from(logit))));
        let best_first = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if self.config.top_k > 0 && self.config.top_k < candidates.len() {
            candidates.select_nth_unstable_by(self.config.top_k - 1, best_first);
            candidates.truncate(self.config.top_k);
        }
        candidates.sort_unstable_by(best_first);
        let max = candidates[0].1;
        for (_, weight) in candidates.iter_mut() {
            *weight = exp((*weight - max) / self.config.temperature);
        }
        if self.config.top_p < 1.0 {
            let total: f64 = candidates.iter().map(|(_, weight)| weight).sum();
            let mut cumulative = 0.0;
            let kept = candidates.iter().position(|(_, weight)| {
                cumulative += weight;
                cumulative >= self.config.top_p * total
            });
            candidates.truncate(kept.map_or(candidates.len(), |last| last + 1));
        }
        let total: f64 = candidates.iter().map(|(_, weight)| weight).sum();
        let mut left = self.rng.random::<f64>() * total;
        for &(id, weight) in candidates.iter() {
            left -= weight;
            if left < 0.0 {
                return id;
            }
        }
        // Only rounding leads here; the best token is never wrong.
        candidates[0].0
    }
}

/// The best token, the lowest id of several; what a greedy sampler draws.
fn argmax(logits: &[f32]) -> u32 {
    let best = (0_u32..).zip(logits).reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.map_or(0, |(id, _)| id)
}

fn check_logits(logits: &[f32]) -> Result<(), EngineError> {
    if let Some(token) = logits.iter().position(|logit| logit.is_nan()) {
        return Err(EngineError::Sampling(format!("the logit of token {token} is NaN")));
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max.is_finite() {
        Ok(())
    } else {
        let count = logits.len();
        Err(EngineError::Sampling(format!("the largest of {count} logits is {max}")))
    }
}

/// `e^x` for `x <= 0` from additions and products only: the system's `exp` may differ in the
/// last bit between platforms, and then one seed would give two texts.
fn exp(x: f64) -> f64 {
    use std::f64::consts::{LN_2, LOG2_E};
    let power = (x * LOG2_E).round();
    if power < -1000.0 {
        return 0.0;
    }
    let rest = x - power * LN_2;
    let series = (1..=16).rev().fold(1.0, |sum, n| 1.0 + sum * rest / f64::from(n));
    series * f64::from_bits(((1023 + power as i64) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sampling(temperature: f64, top_k: usize, top_p: f64) -> SamplingConfig {
        SamplingConfig { temperature, top_k, top_p, repetition_penalty: 1.0, seed: 7 }
    }

    fn counts(config: SamplingConfig, logits: &[f32]) -> Vec<u32> {
        let mut sampler = Sampler::new(config).unwrap();
        let mut counts = vec![0; logits.len()];
        for _ in 0..20_000 {
            counts[sampler.sample(logits, &[]).unwrap() as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        let mut sampler = Sampler::new(SamplingConfig::GREEDY).unwrap();
        assert_eq!(sampler.sample(&[0.0, 3.0, 1.0, 3.0], &[]).unwrap(), 1);
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY, -1.0], &[]).unwrap(), 1);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [0.0, 2.0_f32.ln(), 5.0_f32.ln()];
        let counts = counts(sampling(1.0, 0, 1.0), &logits);
        for (count, share) in counts.iter().zip([0.125, 0.25, 0.625]) {
            assert!((f64::from(*count) / 20_000.0 - share).abs() < 0.02, "{counts:?}");
        }
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let logits = [0.0, 1.0, 2.0, 3.0];
        let two = counts(sampling(1.0, 2, 1.0), &logits);
        assert!(two[0] == 0 && two[1] == 0 && two[2] > 0 && two[3] > 0, "{two:?}");
        // Shares are .03 .09 .24 .64: the best alone has less than .65.
        let nucleus = counts(sampling(1.0, 0, 0.65), &logits);
        assert!(nucleus[1] == 0 && nucleus[2] > 0 && nucleus[3] > 0, "{nucleus:?}");
        let best = counts(sampling(1.0, 0, 0.6), &logits);
        assert_eq!(best[3], 20_000);
    }

    #[test]
    fn a_seed_fixes_the_sequence_on_every_platform() {
        let logits: Vec<f32> = (0..50).map(|i| (i * 37 % 50) as f32 * 0.1).collect();
        let draw = |seed| {
            let config = SamplingConfig { seed, ..sampling(0.8, 20, 0.95) };
            let mut sampler = Sampler::new(config).unwrap();
            (0..8).map(|_| sampler.sample(&logits, &[]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_eq!(draw(1), [8, 27, 12, 4, 31, 16, 35, 4]);
    }

    #[test]
    fn repetition_penalty_pushes_seen_tokens_down() {
        let config = SamplingConfig { repetition_penalty: 2.0, ..SamplingConfig::GREEDY };
        let mut sampler = Sampler::new(config).unwrap();
        assert_eq!(sampler.sample(&[1.0, 3.0, 2.0], &[1, 1, 900]).unwrap(), 2);
        assert_eq!(sampler.sample(&[-1.0, -1.5], &[0]).unwrap(), 1);
    }

    #[test]
    fn logits_without_a_best_are_refused() {
        let mut sampler = Sampler::new(SamplingConfig::GREEDY).unwrap();
        for logits in [&[1.0, f32::NAN][..], &[], &[f32::INFINITY], &[f32::NEG_INFINITY; 2]] {
            assert_eq!(sampler.sample(logits, &[]).unwrap_err().kind(), "sampling-invalid");
        }
    }

    #[test]
    fn settings_come_from_the_generation_config() {
        let parse =
            |value: Value| SamplingConfig::from_generation_config(value.as_object().unwrap());
        let bundled = include_str!("../model/generation_config.json");
        let bundled = parse(serde_json::from_str(bundled).unwrap()).unwrap();
        assert_eq!(bundled, SamplingConfig { seed: 0, ..sampling(0.7, 40, 0.95) });
        assert_eq!(parse(json!({"temperature": 0.7})).unwrap(), SamplingConfig::GREEDY);
        for (key, value) in [("temperature", -1.0), ("top_p", 0.0), ("top_p", 1.5)] {
            let error = parse(json!({"do_sample": true, key: value})).unwrap_err();
            assert!(error.kind() == "config-inconsistent" && error.to_string().contains(key));
        }
    }

    #[test]
    fn exp_is_exact_enough() {
        for x in [0.0, -1e-9, -0.3, -1.0, -20.5, -600.0] {
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-13, "{x}");
        }
        assert_eq!(exp(-1e6), 0.0);
    }
}
