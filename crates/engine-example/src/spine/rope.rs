//! Rotary position embedding: which angle each pair of dimensions turns by, and the
//! dialects in which configs say so.

use crate::config::Keys;
use crate::error::EngineError;
use serde_json::{Map, Value};
use std::f64::consts::PI;

/// The base that the model families assume when a config names none.
const DEFAULT_THETA: f64 = 10_000.0;

/// Rotary embedding of a config.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of frequencies.
    pub theta: f64,
    /// How the frequencies are changed for long contexts.
    pub scaling: RopeScaling,
}

/// How frequencies are changed so that more positions than in training can be told apart.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every position divided by `factor`.
    Linear {
        /// How many times more positions.
        factor: f64,
    },
    /// YaRN: slow dimensions divided by `factor`, fast ones kept, a ramp between.
    Yarn {
        /// How many times more positions.
        factor: f64,
        /// Positions of the training.
        original_max_positions: f64,
        /// Rotations over the original context above which a dimension is kept.
        beta_fast: f64,
        /// Rotations below which a dimension is fully divided.
        beta_slow: f64,
        /// Whether the ends of the ramp are rounded to whole dimensions.
        truncate: bool,
        /// Factor on cosine and sine.
        attention_factor: f64,
        /// Weight of `ln(factor)` in the attention scale of latent attention; 0 if absent.
        mscale_all_dim: f64,
    },
}

impl RopeConfig {
    /// Reads `rope_theta` and `rope_scaling`, or `rope_parameters` of newer configs, from
    /// the text part of a config. `max_positions` is `max_position_embeddings`.
    ///
    /// # Errors
    /// `unsupported` naming an unknown type, `config-inconsistent` naming the key.
    pub fn from_text_config(
        text: &Map<String, Value>,
        max_positions: usize,
    ) -> Result<Self, EngineError> {
        let keys = Keys::new(text);
        let dict_name = match (present(keys, "rope_parameters"), present(keys, "rope_scaling")) {
            (true, true) if text["rope_parameters"] != text["rope_scaling"] => {
                return Err(keys.bad("rope_scaling", "differs from rope_parameters"));
            }
            (true, _) => "rope_parameters",
            (false, _) => "rope_scaling",
        };
        let top_theta = keys.opt_positive("rope_theta")?;
        refuse_partial(keys)?;
        let Some(dict) = keys.get(dict_name) else {
            return Ok(Self {
                theta: top_theta.unwrap_or(DEFAULT_THETA),
                scaling: RopeScaling::None,
            });
        };
        let Some(dict) = dict.as_object() else {
            return Err(keys.bad(dict_name, "must be an object or null"));
        };
        let inner = Keys::new(dict);
        let theta = match (inner.opt_positive("rope_theta")?, top_theta) {
            (Some(inner), Some(top)) if inner != top => {
                return Err(keys.bad("rope_theta", format!("{dict_name} says {inner}")));
            }
            (inner, top) => inner.or(top).unwrap_or(DEFAULT_THETA),
        };
        refuse_partial(inner)?;
        Ok(Self { theta, scaling: RopeScaling::from_dict(inner, dict_name, max_positions)? })
    }

    /// The angle per position of each pair of `dim` dimensions (`dim / 2` values), radians.
    #[must_use]
    pub fn inverse_frequencies(&self, dim: usize) -> Vec<f32> {
        let pairs = dim / 2;
        let plain = |pair: usize| self.theta.powf(-((2 * pair) as f64) / dim as f64);
        match &self.scaling {
            RopeScaling::None => (0..pairs).map(|pair| plain(pair) as f32).collect(),
            RopeScaling::Linear { factor } => {
                (0..pairs).map(|pair| (plain(pair) / factor) as f32).collect()
            }
            RopeScaling::Yarn {
                factor,
                original_max_positions,
                beta_fast,
                beta_slow,
                truncate,
                ..
            } => {
                // The dimension that turns `rotations` times within the original context.
                let dimension_of = |rotations: f64| {
                    dim as f64 * (original_max_positions / (rotations * 2.0 * PI)).ln()
                        / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (dimension_of(*beta_fast), dimension_of(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                low = low.max(0.0);
                high = high.min(dim as f64 - 1.0);
                if low == high {
                    high += 0.001;
                }
                (0..pairs)
                    .map(|pair| {
                        let divided = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        (plain(pair) * (divided / factor + (1.0 - divided))) as f32
                    })
                    .collect()
            }
        }
    }

    /// The factor on cosine and sine.
    #[must_use]
    pub fn attention_factor(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor as f32,
            RopeScaling::None | RopeScaling::Linear { .. } => 1.0,
        }
    }
}

fn refuse_partial(keys: Keys<'_>) -> Result<(), EngineError> {
    match keys.opt_number("partial_rotary_factor")? {
        Some(factor) if factor != 1.0 => Err(keys.unsupported("partial_rotary_factor", "only 1")),
        _ => Ok(()),
    }
}

fn present(keys: Keys<'_>, key: &str) -> bool {
    keys.get(key).is_some()
}

impl RopeScaling {
    fn from_dict(
        keys: Keys<'_>,
        dict_name: &str,
        max_positions: usize,
    ) -> Result<Self, EngineError> {
        let kind = match (keys.opt_str("type")?, keys.opt_str("rope_type")?) {
            (Some(old), Some(new)) if old != new => {
                let problem = format!("but rope_type = \"{new}\"");
                return Err(EngineError::config(format!("{dict_name}.type"), &old, problem));
            }
            (old, new) => old.or(new),
        };
        match kind {
            Some("default") => Ok(Self::None),
            None if present(keys, "factor") => {
                Err(keys.bad("factor", format!("{dict_name} names no rope_type")))
            }
            None => Ok(Self::None),
            Some("linear") => Ok(Self::Linear { factor: needed_factor(keys)? }),
            Some("yarn") => Self::yarn(keys, max_positions),
            Some(other) => Err(EngineError::unsupported(
                format!("{dict_name}.rope_type"),
                &other,
                "only default, linear and yarn",
            )),
        }
    }

    fn yarn(keys: Keys<'_>, max_positions: usize) -> Result<Self, EngineError> {
        let original = keys.opt_positive("original_max_position_embeddings")?;
        let original_max_positions = original.unwrap_or(max_positions as f64);
        let factor = match keys.opt_positive("factor")? {
            Some(factor) => factor,
            // A config that names the original context only means "up to the new maximum".
            None if original.is_some() => max_positions as f64 / original_max_positions,
            None => return Err(keys.bad("factor", "yarn needs it")),
        };
        let mscale = keys.opt_number("mscale")?.unwrap_or(0.0);
        let mscale_all_dim = keys.opt_number("mscale_all_dim")?.unwrap_or(0.0);
        let attention_factor = match keys.opt_positive("attention_factor")? {
            Some(given) => given,
            None if mscale != 0.0 && mscale_all_dim != 0.0 => {
                yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)
            }
            None => yarn_mscale(factor, 1.0),
        };
        let beta_fast = keys.opt_positive("beta_fast")?.unwrap_or(32.0);
        let beta_slow = keys.opt_positive("beta_slow")?.unwrap_or(1.0);
        if beta_fast < beta_slow {
            return Err(keys.bad("beta_fast", format!("is below beta_slow = {beta_slow}")));
        }
        let truncate = keys.opt_bool("truncate")?.unwrap_or(true);
        Ok(Self::Yarn {
            factor,
            original_max_positions,
            beta_fast,
            beta_slow,
            truncate,
            attention_factor,
            mscale_all_dim,
        })
    }
}

fn needed_factor(keys: Keys<'_>) -> Result<f64, EngineError> {
    keys.opt_positive("factor")?.ok_or_else(|| keys.bad("factor", "is needed"))
}

fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// The softmax scale of latent attention (DeepSeek-V3, Kimi): `1 / sqrt(qk_nope + qk_rope)`,
/// times `mscale²` where the config stretches positions with YaRN and `mscale_all_dim`.
///
/// # Errors
/// As [`RopeConfig::from_text_config`].
pub fn mla_attention_scale(text: &Map<String, Value>) -> Result<f64, EngineError> {
    let keys = Keys::new(text);
    let width = keys.size("qk_nope_head_dim")? + keys.size("qk_rope_head_dim")?;
    let max_positions = keys.opt_size("max_position_embeddings")?.unwrap_or(4096);
    let scale = (width as f64).sqrt().recip();
    Ok(match RopeConfig::from_text_config(text, max_positions)?.scaling {
        RopeScaling::Yarn { factor, mscale_all_dim, .. } if mscale_all_dim != 0.0 => {
            scale * yarn_mscale(factor, mscale_all_dim).powi(2)
        }
        _ => scale,
    })
}

/// Makes the angles of a pass.
#[derive(Clone, Debug)]
pub struct Rotary {
    inverse_frequencies: Vec<f32>,
    attention_factor: f32,
}

impl Rotary {
    /// For heads of `head_dim` values.
    #[must_use]
    pub fn new(config: &RopeConfig, head_dim: usize) -> Self {
        Self {
            inverse_frequencies: config.inverse_frequencies(head_dim),
            attention_factor: config.attention_factor(),
        }
    }

    /// Cosines and sines of positions `start..start + tokens`, used by every layer of a pass.
    ///
    /// They are made anew each pass: a table of all positions of a long-context model would
    /// be hundreds of megabytes, and one token needs only `head_dim / 2` pairs.
    #[must_use]
    pub fn at(&self, start: usize, tokens: usize) -> Rotation {
        let half = self.inverse_frequencies.len();
        let mut rotation = Rotation {
            half,
            cos: Vec::with_capacity(tokens * half),
            sin: Vec::with_capacity(tokens * half),
        };
        for position in start..start + tokens {
            for frequency in &self.inverse_frequencies {
                // The angle is rounded to f32 as in the reference implementation.
                let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
                rotation.cos.push(cos as f32 * self.attention_factor);
                rotation.sin.push(sin as f32 * self.attention_factor);
            }
        }
        rotation
    }
}

/// Cosines and sines of the tokens of one pass, `[tokens, head_dim / 2]` each.
#[derive(Clone, Debug)]
pub struct Rotation {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rotation {
    /// Turns the pairs `(head[i], head[i + head_dim / 2])` by the angles of `token`, which
    /// counts from the start of the pass.
    pub fn rotate_half(&self, token: usize, head: &mut [f32]) {
        let cos = &self.cos[token * self.half..][..self.half];
        let sin = &self.sin[token * self.half..][..self.half];
        let (first, second) = head.split_at_mut(self.half);
        for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }

    /// Turns the pairs `(head[2 i], head[2 i + 1])`: the order in which latent attention stores
    /// them.
    pub fn rotate_pairs(&self, token: usize, head: &mut [f32]) {
        let cos = &self.cos[token * self.half..][..self.half];
        let sin = &self.sin[token * self.half..][..self.half];
        for (([a, b], cos), sin) in head.as_chunks_mut().0.iter_mut().zip(cos).zip(sin) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: &Value) -> Result<RopeConfig, EngineError> {
        RopeConfig::from_text_config(value.as_object().unwrap(), 512)
    }

    fn yarn(extra: &[(&str, Value)]) -> RopeConfig {
        let mut dict = json!({"rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 64, "rope_theta": 100.0});
        for (key, value) in extra {
            dict[*key] = value.clone();
        }
        parse(&json!({ "rope_parameters": dict })).unwrap()
    }

    #[test]
    fn absent_null_and_default_are_plain() {
        let plain = RopeConfig { theta: 10_000.0, scaling: RopeScaling::None };
        assert_eq!(parse(&json!({})).unwrap(), plain);
        assert_eq!(parse(&json!({"rope_scaling": null, "rope_theta": 1e4})).unwrap(), plain);
        assert_eq!(parse(&json!({"rope_scaling": {"type": "default"}})).unwrap(), plain);
        let new = parse(&json!({"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}}));
        assert_eq!(new.unwrap().theta, 5e6);
        assert_eq!(plain.inverse_frequencies(4), [1.0, 0.01]);
    }

    #[test]
    fn linear_divides_every_frequency() {
        let config = parse(&json!({"rope_scaling": {"type": "linear", "factor": 2}})).unwrap();
        assert_eq!(config.inverse_frequencies(4), [0.5, 0.005]);
        assert_eq!(config.attention_factor(), 1.0);
    }

    #[test]
    fn yarn_keeps_fast_and_divides_slow_dimensions() {
        // dimension_of(32) < 0 and dimension_of(1) = 8 ln(64 / 2 pi) / (2 ln 100) = 2.016.
        let truncated = yarn(&[]).inverse_frequencies(8);
        let plain: Vec<f64> = (0..4).map(|i| 100_f64.powf(-f64::from(i) / 4.0)).collect();
        for (i, (got, plain)) in truncated.iter().zip(&plain).enumerate() {
            let ramp = (i as f64 / 3.0).min(1.0);
            assert!((f64::from(*got) - plain * (1.0 - 0.75 * ramp)).abs() < 1e-7, "{i}");
        }
        let exact = yarn(&[("truncate", false.into())]).inverse_frequencies(8);
        let ramp = 1.0 / (4.0 * (64.0 / (2.0 * PI)).ln() / 100_f64.ln());
        assert!((f64::from(exact[1]) - plain[1] * (1.0 - 0.75 * ramp)).abs() < 1e-7);
        assert!((f64::from(exact[3]) - plain[3] / 4.0).abs() < 1e-7);
    }

    #[test]
    fn yarn_attention_factor_in_all_spellings() {
        let by_factor = yarn(&[]).attention_factor();
        assert!((by_factor - (0.1 * 4_f32.ln() + 1.0)).abs() < 1e-7);
        assert_eq!(yarn(&[("attention_factor", 1.5.into())]).attention_factor(), 1.5);
        let same = yarn(&[("mscale", 1.0.into()), ("mscale_all_dim", 1.0.into())]);
        assert_eq!(same.attention_factor(), 1.0);
        assert_eq!(yarn(&[("factor", 1.0.into())]).attention_factor(), 1.0);
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let spiral = json!({"rope_scaling": {"rope_type": "spiral", "factor": 2}});
        let two = json!({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2}});
        let untyped = json!({"rope_scaling": {"factor": 2}});
        let dynamic = json!({"rope_scaling": {"type": "dynamic", "factor": 2}});
        let negative = json!({"rope_scaling": {"type": "linear", "factor": -2}});
        let thetas = json!({"rope_theta": 1.0, "rope_parameters": {"rope_theta": 2.0}});
        let partial = json!({"partial_rotary_factor": 0.5});
        for (config, kind, word) in [
            (spiral, "unsupported", "spiral"),
            (dynamic, "unsupported", "dynamic"),
            (two, "config-inconsistent", "yarn"),
            (untyped, "config-inconsistent", "rope_type"),
            (negative, "config-inconsistent", "-2"),
            (thetas, "config-inconsistent", "rope_theta"),
            (partial, "unsupported", "partial_rotary_factor"),
        ] {
            let error = parse(&config).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn neighbours_turn_as_halves_do() {
        let config = RopeConfig { theta: 100.0, scaling: RopeScaling::None };
        let rotation = Rotary::new(&config, 4).at(3, 2);
        let (mut halves, mut pairs) = ([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]);
        rotation.rotate_half(1, &mut halves);
        rotation.rotate_pairs(1, &mut pairs);
        assert_eq!([halves[0], halves[2], halves[1], halves[3]], pairs);
    }

    #[test]
    fn rotation_turns_pairs_half_a_head_apart() {
        let config = RopeConfig { theta: 100.0, scaling: RopeScaling::None };
        let rotation = Rotary::new(&config, 4).at(3, 2);
        let mut head = [1.0, 2.0, 0.0, 0.0];
        rotation.rotate_half(1, &mut head);
        let (a, b) = (4.0_f32, 0.4_f32);
        let wanted = [a.cos(), 2.0 * b.cos(), a.sin(), 2.0 * b.sin()];
        for (got, wanted) in head.iter().zip(wanted) {
            assert!((got - wanted).abs() < 1e-6);
        }
    }
}
