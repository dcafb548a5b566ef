//! DeepSeek-V3 and R1, Kimi-K2: latent attention, sigmoid router with groups, shared experts.
//!
//! Absent keys have the defaults of the family's configuration class (transformers,
//! `configuration_deepseek_v3.py`).

use super::{AttentionConfig, Keys, ModelConfig, MoeConfig, RouterConfig, only};
use crate::error::EngineError;
use crate::kernels::Activation;
use crate::spine::{LatentConfig, LatentShape, RopeConfig, mla_attention_scale};
use serde_json::{Map, Value};

pub(super) fn resolve(
    keys: Keys<'_>,
    text: &Map<String, Value>,
) -> Result<ModelConfig, EngineError> {
    only(keys, "hidden_act", "silu")?;
    only(keys, "scoring_func", "sigmoid")?;
    only(keys, "topk_method", "noaux_tc")?;
    let num_hidden_layers = keys.layers()?;
    let hidden_size = keys.size("hidden_size")?;
    let max_position_embeddings = keys.opt_size("max_position_embeddings")?.unwrap_or(4096);
    if keys.opt_bool("rope_interleave")? == Some(false) {
        return Err(keys.unsupported("rope_interleave", "only rotation of neighbouring pairs"));
    }
    let bias = keys.opt_bool("attention_bias")?.unwrap_or(false);
    let moe_intermediate_size = keys.size("moe_intermediate_size")?;
    let shared = keys.opt_count("n_shared_experts")?.unwrap_or(1);
    Ok(ModelConfig {
        vocab_size: keys.size("vocab_size")?,
        hidden_size,
        intermediate_size: keys.size("intermediate_size")?,
        num_hidden_layers,
        rms_norm_eps: keys.opt_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        max_position_embeddings,
        tie_word_embeddings: keys.opt_bool("tie_word_embeddings")?.unwrap_or(false),
        attention: AttentionConfig::Latent(LatentConfig {
            shape: latent_shape(keys, hidden_size)?,
            bias,
            rope: Some(RopeConfig::from_text_config(text, max_position_embeddings)?),
            scale: mla_attention_scale(text)? as f32,
            output_gate: false,
        }),
        activation: Activation::Silu,
        residual_block: None,
        moe: MoeConfig {
            layers: moe_layers(keys, num_hidden_layers)?,
            block: "mlp",
            num_experts: keys.size("n_routed_experts")?,
            num_experts_per_tok: keys.size("num_experts_per_tok")?,
            moe_intermediate_size,
            latent: None,
            shared_intermediate_size: shared * moe_intermediate_size,
            norm_topk_prob: keys.opt_bool("norm_topk_prob")?.unwrap_or(true),
            router: RouterConfig::Sigmoid {
                groups: keys.opt_size("n_group")?.unwrap_or(8),
                groups_kept: keys.opt_size("topk_group")?.unwrap_or(4),
                scale: keys.opt_positive("routed_scaling_factor")?.unwrap_or(2.5) as f32,
            },
        },
    })
}

/// The sizes of a latent attention. `q_lora_rank` absent or `null`: one query projection.
pub(super) fn latent_shape(keys: Keys<'_>, hidden: usize) -> Result<LatentShape, EngineError> {
    let shape = LatentShape {
        hidden,
        heads: keys.size("num_attention_heads")?,
        q_rank: keys.opt_size("q_lora_rank")?,
        rank: keys.size("kv_lora_rank")?,
        nope: keys.size("qk_nope_head_dim")?,
        rope: keys.size("qk_rope_head_dim")?,
        value: keys.size("v_head_dim")?,
    };
    if !shape.rope.is_multiple_of(2) {
        return Err(keys.bad("qk_rope_head_dim", "rotary embedding needs pairs"));
    }
    Ok(shape)
}

/// Every `moe_layer_freq`-th layer from `first_k_dense_replace` on.
pub(super) fn moe_layers(keys: Keys<'_>, layers: u16) -> Result<Vec<u16>, EngineError> {
    let first = keys.opt_count("first_k_dense_replace")?.unwrap_or(3);
    let step = keys.opt_size("moe_layer_freq")?.unwrap_or(1);
    let sparse = |layer: &u16| {
        let layer = usize::from(*layer);
        layer >= first && layer.is_multiple_of(step)
    };
    Ok((0..layers).filter(sparse).collect())
}
