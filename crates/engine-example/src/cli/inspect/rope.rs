//! What the config says about positions, and the scale of latent attention.

use anyhow::{Context, Result};
use engine_example::spine::{RopeConfig, RopeScaling, mla_attention_scale};
use expert_tier::pool::{CheckpointConfig, Family};
use serde::Serialize;
use serde_json::Value;

/// What the families' own code assumes for a config that does not say.
const DEFAULT_MAX_POSITIONS: u64 = 4096;

/// Rotary embedding, as far as the family's rules are known.
#[derive(Clone, Debug, Serialize)]
pub(in crate::cli) struct Rope {
    pub(super) theta: f64,
    /// `none`, `linear` or `yarn`.
    pub(super) scaling: &'static str,
    /// How many times more positions than in training.
    pub(super) factor: Option<f64>,
    /// Positions of the training, for YaRN.
    pub(super) original_max_positions: Option<f64>,
    /// The factor on cosine and sine.
    pub(super) attention_factor: f32,
    /// The softmax scale of latent attention; `None` for other attention.
    #[serde(skip)]
    pub(super) attention_scale: Option<f64>,
}

impl Rope {
    /// `None` for a family whose rules are not known.
    ///
    /// # Errors
    /// `unsupported` for an unknown type, `config-inconsistent` for keys that disagree.
    pub(in crate::cli) fn of(config: &CheckpointConfig) -> Result<Option<Self>> {
        let set = |key: &str| config.text.get(key).is_some_and(|value| !value.is_null());
        let latent = set("qk_nope_head_dim") || set("qk_rope_head_dim");
        if config.family == Family::Other && !latent {
            return Ok(None);
        }
        // A value of another type is the decoder's to refuse: the scale does not depend on it.
        let max_positions = config.text.get("max_position_embeddings").and_then(Value::as_u64);
        let max_positions = max_positions.unwrap_or(DEFAULT_MAX_POSITIONS);
        let max_positions = usize::try_from(max_positions).unwrap_or(usize::MAX);
        let file = || config.path.display().to_string();
        let rope = RopeConfig::from_text_config(&config.text, max_positions).with_context(file)?;
        let attention_scale = match latent {
            true => Some(mla_attention_scale(&config.text).with_context(file)?),
            false => None,
        };
        let (scaling, factor, original_max_positions) = match &rope.scaling {
            RopeScaling::None => ("none", None, None),
            RopeScaling::Linear { factor } => ("linear", Some(*factor), None),
            RopeScaling::Yarn { factor, original_max_positions, .. } => {
                ("yarn", Some(*factor), Some(*original_max_positions))
            }
            _ => ("other", None, None),
        };
        Ok(Some(Self {
            theta: rope.theta,
            scaling,
            factor,
            original_max_positions,
            attention_factor: rope.attention_factor(),
            attention_scale,
        }))
    }
}
