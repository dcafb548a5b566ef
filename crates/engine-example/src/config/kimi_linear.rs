//! Kimi Linear and Kimi K3: delta attention in most layers, latent attention without rotation in
//! the others, sigmoid router, shared experts. K3 adds experts on a narrower stream, attention
//! residuals, a bounded activation and full output gates; each by its own key.

use super::deepseek_v3::{latent_shape, moe_layers};
use super::{AttentionConfig, Keys, LatentMoeConfig, ModelConfig, MoeConfig, RouterConfig, only};
use crate::error::EngineError;
use crate::kernels::Activation;
use crate::spine::{DeltaConfig, LatentConfig, mla_attention_scale};
use serde_json::{Map, Value};

/// Positions where a config names none: there is no rotation that would limit them.
const DEFAULT_POSITIONS: usize = 1 << 20;

pub(super) fn resolve(
    keys: Keys<'_>,
    text: &Map<String, Value>,
) -> Result<ModelConfig, EngineError> {
    only(keys, "moe_router_activation_func", "sigmoid")?;
    only(keys, "topk_method", "noaux_tc")?;
    let hidden_size = keys.size("hidden_size")?;
    let num_hidden_layers = keys.layers()?;
    let moe_intermediate_size = keys.size("moe_intermediate_size")?;
    let shared = keys.opt_count("num_shared_experts")?.unwrap_or(0);
    let rms_norm_eps = keys.opt_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32;
    let positions = match keys.opt_size("model_max_length")? {
        None => keys.opt_size("max_position_embeddings")?,
        given => given,
    };
    let latent_moe = match keys.opt_size("routed_expert_hidden_size")? {
        None => None,
        Some(width) => {
            let norm = keys.opt_bool("latent_moe_use_norm")?.unwrap_or(true);
            Some(LatentMoeConfig { width, norm })
        }
    };
    Ok(ModelConfig {
        vocab_size: keys.size("vocab_size")?,
        hidden_size,
        intermediate_size: keys.size("intermediate_size")?,
        num_hidden_layers,
        rms_norm_eps,
        max_position_embeddings: positions.unwrap_or(DEFAULT_POSITIONS),
        tie_word_embeddings: keys.opt_bool("tie_word_embeddings")?.unwrap_or(false),
        attention: attention(keys, text, hidden_size, num_hidden_layers, rms_norm_eps)?,
        activation: activation(keys)?,
        residual_block: residual_block(keys)?,
        moe: MoeConfig {
            layers: moe_layers(keys, num_hidden_layers)?,
            block: "block_sparse_moe",
            num_experts: keys.size("num_experts")?,
            num_experts_per_tok: keys.size("num_experts_per_token")?,
            moe_intermediate_size,
            latent: latent_moe,
            shared_intermediate_size: shared * moe_intermediate_size,
            norm_topk_prob: keys.opt_bool("moe_renormalize")?.unwrap_or(true),
            router: RouterConfig::Sigmoid {
                groups: keys.opt_size("num_expert_group")?.unwrap_or(1),
                groups_kept: keys.opt_size("topk_group")?.unwrap_or(1),
                scale: keys.opt_positive("routed_scaling_factor")?.unwrap_or(1.0) as f32,
            },
        },
    })
}

fn activation(keys: Keys<'_>) -> Result<Activation, EngineError> {
    match keys.opt_str("hidden_act")? {
        None | Some("silu") => Ok(Activation::Silu),
        Some("situ") => {
            let bound = |key: &str| {
                let value = keys.opt_positive(key)?;
                value.map(|value| value as f32).ok_or_else(|| keys.bad(key, "situ needs it"))
            };
            let (beta, linear_beta) =
                (bound("activation_situ_beta")?, bound("activation_situ_linear_beta")?);
            Ok(Activation::Situ { beta, linear_beta })
        }
        Some(_) => Err(keys.unsupported("hidden_act", "only silu and situ")),
    }
}

fn residual_block(keys: Keys<'_>) -> Result<Option<u16>, EngineError> {
    let key = "attn_res_block_size";
    let block = keys.opt_size(key)?.map(u16::try_from).transpose();
    block.map_err(|_| keys.unsupported(key, "at most 65535 layers"))
}

fn attention(
    keys: Keys<'_>,
    text: &Map<String, Value>,
    hidden: usize,
    layers: u16,
    eps: f32,
) -> Result<AttentionConfig, EngineError> {
    // The families were only published without rotation.
    if keys.opt_bool("mla_use_nope")? != Some(true) {
        return Err(keys.unsupported("mla_use_nope", "only true"));
    }
    let latent = LatentConfig {
        shape: latent_shape(keys, hidden)?,
        bias: false,
        rope: None,
        scale: mla_attention_scale(text)? as f32,
        output_gate: keys.opt_bool("mla_use_output_gate")?.unwrap_or(false),
    };
    let linear = keys.object("linear_attn_config")?;
    let linear = linear.ok_or_else(|| keys.bad("linear_attn_config", "is needed"))?;
    let delta = DeltaConfig {
        hidden,
        heads: linear.size("num_heads")?,
        head_dim: linear.size("head_dim")?,
        taps: linear.opt_size("short_conv_kernel_size")?.unwrap_or(4),
        decay_bound: linear.opt_number("gate_lower_bound")?.map(|bound| bound as f32),
        full_rank_gate: linear.opt_bool("use_full_rank_gate")?.unwrap_or(false),
        eps,
    };
    let delta_layers = delta_layers(linear, layers)?;
    Ok(AttentionConfig::Hybrid { latent, delta, delta_layers })
}

/// The layers that are delta layers. The config counts from 1, and names the others too: the two
/// lists must be all layers, each once.
fn delta_layers(linear: Keys<'_>, layers: u16) -> Result<Vec<u16>, EngineError> {
    let delta = linear.opt_list("kda_layers")?;
    let full = linear.opt_list("full_attn_layers")?;
    let mut all = [delta.as_slice(), &full].concat();
    all.sort_unstable();
    if !all.iter().copied().eq(1..=usize::from(layers)) {
        let problem = format!("with full_attn_layers it must name layers 1 to {layers} once each");
        return Err(linear.bad("kda_layers", problem));
    }
    let mut delta: Vec<u16> =
        delta.into_iter().filter_map(|layer| u16::try_from(layer - 1).ok()).collect();
    delta.sort_unstable();
    Ok(delta)
}
