//! Qwen3-MoE: grouped-query attention with normed heads, softmax router, no shared expert.

use super::{AttentionConfig, Keys, ModelConfig, MoeConfig, RouterConfig, only};
use crate::error::EngineError;
use crate::kernels::Activation;
use crate::spine::{AttentionShape, RopeConfig};
use serde_json::{Map, Value};

pub(super) fn resolve(
    keys: Keys<'_>,
    text: &Map<String, Value>,
) -> Result<ModelConfig, EngineError> {
    refuse_unsupported(keys)?;
    let hidden_size = keys.size("hidden_size")?;
    let max_position_embeddings = keys.size("max_position_embeddings")?;
    let num_hidden_layers = keys.layers()?;
    Ok(ModelConfig {
        vocab_size: keys.size("vocab_size")?,
        hidden_size,
        intermediate_size: keys.opt_size("intermediate_size")?.unwrap_or(hidden_size),
        num_hidden_layers,
        rms_norm_eps: keys.opt_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        max_position_embeddings,
        tie_word_embeddings: keys.opt_bool("tie_word_embeddings")?.unwrap_or(false),
        attention: AttentionConfig::Grouped {
            shape: shape(keys, hidden_size)?,
            bias: keys.opt_bool("attention_bias")?.unwrap_or(false),
            rope: RopeConfig::from_text_config(text, max_position_embeddings)?,
        },
        activation: Activation::Silu,
        residual_block: None,
        moe: MoeConfig {
            layers: moe_layers(keys, num_hidden_layers)?,
            block: "mlp",
            num_experts: keys.size("num_experts")?,
            num_experts_per_tok: keys.size("num_experts_per_tok")?,
            moe_intermediate_size: keys.size("moe_intermediate_size")?,
            latent: None,
            shared_intermediate_size: 0,
            norm_topk_prob: keys.opt_bool("norm_topk_prob")?.unwrap_or(false),
            router: RouterConfig::Softmax,
        },
    })
}

fn shape(keys: Keys<'_>, hidden: usize) -> Result<AttentionShape, EngineError> {
    let heads = keys.size("num_attention_heads")?;
    let kv_heads = keys.opt_size("num_key_value_heads")?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        let problem = format!("must divide num_attention_heads = {heads}");
        return Err(keys.bad("num_key_value_heads", problem));
    }
    let head_dim = match keys.opt_size("head_dim")? {
        Some(head_dim) => head_dim,
        None => hidden / heads,
    };
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        let problem = format!("rotary embedding needs pairs, but head_dim is {head_dim}");
        return Err(keys.bad("head_dim", problem));
    }
    Ok(AttentionShape { hidden, heads, kv_heads, head_dim })
}

fn moe_layers(keys: Keys<'_>, layers: u16) -> Result<Vec<u16>, EngineError> {
    let step = keys.opt_size("decoder_sparse_step")?.unwrap_or(1);
    let dense = keys.opt_list("mlp_only_layers")?;
    if let Some(layer) = dense.iter().find(|&&layer| layer >= usize::from(layers)) {
        let problem = format!("layer {layer} does not exist, num_hidden_layers = {layers}");
        return Err(keys.bad("mlp_only_layers", problem));
    }
    let sparse = |layer: &u16| {
        let layer = usize::from(*layer);
        (layer + 1).is_multiple_of(step) && !dense.contains(&layer)
    };
    Ok((0..layers).filter(sparse).collect())
}

/// Settings that change the arithmetic in ways the decoder does not know.
fn refuse_unsupported(keys: Keys<'_>) -> Result<(), EngineError> {
    only(keys, "hidden_act", "silu")?;
    if keys.opt_bool("use_sliding_window")? == Some(true) {
        return Err(keys.unsupported("use_sliding_window", "only full attention"));
    }
    if let Some(types) = keys.get("layer_types")
        && types.as_array().is_none_or(|types| types.iter().any(|t| t != "full_attention"))
    {
        return Err(keys.unsupported("layer_types", "only full_attention"));
    }
    Ok(())
}
