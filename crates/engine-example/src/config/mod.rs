//! The dense part of a model's config, resolved once: absent and `null` keys become the
//! family's defaults, contradictions become errors that name the key and its value.
//!
//! One file a family says what its keys mean. They all resolve to one [`ModelConfig`], made of the
//! parts that a decoder is built from.

mod deepseek_v3;
mod keys;
mod kimi_linear;
mod qwen3_moe;
#[cfg(test)]
mod tests;

pub(crate) use keys::Keys;

use crate::error::EngineError;
use crate::kernels::Activation;
use crate::spine::{AttentionShape, DeltaConfig, LatentConfig, RopeConfig};
use expert_tier::pool::Family;
use router_trace::MAX_TOP_K;
use serde_json::{Map, Value};

/// What the decoder must know of a checkpoint. Sizes count elements.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Tokens the model knows.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of dense MLP layers; unused where every layer has experts.
    pub intermediate_size: usize,
    /// Layers, without extra prediction layers.
    pub num_hidden_layers: u16,
    /// Epsilon of the RMS norms of the residual stream.
    pub rms_norm_eps: f32,
    /// Positions the model was made for.
    pub max_position_embeddings: usize,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// How layers look at earlier tokens.
    pub attention: AttentionConfig,
    /// What every MLP and expert does between its projections.
    pub activation: Activation,
    /// Every how many layers the residual stream begins anew, the streams before being mixed into
    /// what attention, MLPs and the head read (attention residuals); `None`: it is one stream.
    pub residual_block: Option<u16>,
    /// The routed experts.
    pub moe: MoeConfig,
}

/// How layers look at earlier tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum AttentionConfig {
    /// Grouped-query attention in every layer.
    Grouped {
        /// Sizes.
        shape: AttentionShape,
        /// Whether q, k, v and o projections have a bias.
        bias: bool,
        /// Rotary embedding of whole heads.
        rope: RopeConfig,
    },
    /// Latent attention in every layer.
    Latent(LatentConfig),
    /// Delta attention in some layers, latent attention in the others.
    Hybrid {
        /// The latent layers.
        latent: LatentConfig,
        /// The delta layers.
        delta: DeltaConfig,
        /// Which layers are delta layers, ascending.
        delta_layers: Vec<u16>,
    },
}

/// The routed experts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeConfig {
    /// The layers that have experts, ascending.
    pub layers: Vec<u16>,
    /// What the block is called in tensor names.
    pub block: &'static str,
    /// Routed experts a layer.
    pub num_experts: usize,
    /// Experts a token uses in a layer.
    pub num_experts_per_tok: usize,
    /// Width of one expert.
    pub moe_intermediate_size: usize,
    /// What routed experts read and write where it is not the residual stream.
    pub latent: Option<LatentMoeConfig>,
    /// Width of all shared experts together; 0: there are none.
    pub shared_intermediate_size: usize,
    /// Whether the chosen experts' weights are scaled to sum 1.
    pub norm_topk_prob: bool,
    /// How the router scores.
    pub router: RouterConfig,
}

/// Projections around the routed experts, which work on a stream of their own width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatentMoeConfig {
    /// Width of what an expert reads and writes.
    pub width: usize,
    /// Whether the sum of the experts is normed before it is projected back.
    pub norm: bool,
}

/// How a router turns logits into scores.
#[derive(Clone, Debug, PartialEq)]
pub enum RouterConfig {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each, a bias that selects only, groups.
    Sigmoid {
        /// Equal groups of experts (`n_group`).
        groups: usize,
        /// Groups that take part (`topk_group`).
        groups_kept: usize,
        /// Factor on the weights (`routed_scaling_factor`).
        scale: f32,
    },
}

impl ModelConfig {
    /// Resolves the text part of a `config.json`.
    ///
    /// # Errors
    /// `config-inconsistent` or `unsupported`, naming key and value.
    pub fn of_family(family: Family, text: &Map<String, Value>) -> Result<Self, EngineError> {
        let keys = Keys::new(text);
        let config = match family {
            Family::Qwen3Moe => qwen3_moe::resolve(keys, text)?,
            Family::DeepseekV3 | Family::KimiK2 => deepseek_v3::resolve(keys, text)?,
            Family::KimiLinear | Family::KimiK3 => kimi_linear::resolve(keys, text)?,
            _ => {
                let reason = "this engine decodes qwen3_moe, deepseek_v3, kimi_k2, kimi_linear \
                              and kimi_k3";
                return Err(keys.unsupported("model_type", reason));
            }
        };
        config.moe.check(keys)?;
        Ok(config)
    }

    /// Whether `layer` has routed experts; the others have a dense MLP.
    #[must_use]
    pub fn is_moe_layer(&self, layer: u16) -> bool {
        self.moe.layers.binary_search(&layer).is_ok()
    }

    /// Widths `[read and written, inner]` of every routed expert.
    #[must_use]
    pub fn expert_widths(&self) -> [usize; 2] {
        let stream = self.moe.latent.map_or(self.hidden_size, |latent| latent.width);
        [stream, self.moe.moe_intermediate_size]
    }
}

impl MoeConfig {
    fn check(&self, keys: Keys<'_>) -> Result<(), EngineError> {
        let top_k_key =
            keys.first_of(&["num_experts_per_tok", "num_experts_per_token"]).unwrap_or_default();
        if self.num_experts_per_tok > self.num_experts {
            let problem = format!("is more than the {} experts of a layer", self.num_experts);
            return Err(keys.bad(top_k_key, problem));
        }
        if self.num_experts_per_tok > MAX_TOP_K {
            let reason = format!("at most {MAX_TOP_K} experts a token");
            return Err(keys.unsupported(top_k_key, reason));
        }
        if self.num_experts > usize::from(u16::MAX) {
            let key = keys.first_of(&["num_experts", "n_routed_experts"]).unwrap_or_default();
            return Err(keys.unsupported(key, "at most 65535 experts a layer"));
        }
        Ok(())
    }
}

/// A key that changes the arithmetic and of which one value is known.
fn only(keys: Keys<'_>, key: &str, known: &str) -> Result<(), EngineError> {
    match keys.opt_str(key)? {
        Some(found) if found != known => Err(keys.unsupported(key, format!("only {known}"))),
        _ => Ok(()),
    }
}
