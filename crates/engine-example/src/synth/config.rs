//! `config.json` of a synthetic checkpoint.

use super::SynthDtype;
use super::model::{BLOCK, GROUP};
use super::shape::{K3Sizes, LatentSizes, SynthFamily, SynthShape};
use serde_json::{Value, json};

/// The config of a model of this shape.
pub(super) fn config(shape: &SynthShape, dtype: SynthDtype, end_of_text: Option<u32>) -> Value {
    let mut config = match shape.family {
        SynthFamily::Qwen3Moe => qwen3_moe(shape),
        SynthFamily::DeepseekV3(latent) => deepseek_v3(shape, &latent),
        SynthFamily::KimiK3(latent, k3) => kimi_k3(shape, &latent, &k3),
    };
    config["eos_token_id"] = json!(end_of_text);
    config["torch_dtype"] = json!("bfloat16");
    config["tie_word_embeddings"] = json!(false);
    config["vocab_size"] = json!(shape.vocab);
    config["num_hidden_layers"] = json!(shape.layers);
    config["hidden_size"] = json!(shape.hidden);
    config["intermediate_size"] = json!(shape.intermediate);
    config["moe_intermediate_size"] = json!(shape.moe_intermediate);
    config["num_attention_heads"] = json!(shape.heads);
    config["initializer_range"] = json!(0.02);
    if let Some(quantization) = quantization(dtype) {
        config["quantization_config"] = quantization;
    }
    match shape.family {
        SynthFamily::KimiK3(..) => json!({
            "architectures": ["KimiK3ForConditionalGeneration"],
            "model_type": "kimi_k3",
            "text_config": config,
        }),
        _ => config,
    }
}

fn qwen3_moe(shape: &SynthShape) -> Value {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": false,
        "attention_dropout": 0.0,
        "decoder_sparse_step": 1,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.positions,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "norm_topk_prob": true,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_scaling": null,
        "rope_theta": 1_000_000.0,
        "use_sliding_window": false,
    })
}

fn latent(shape: &SynthShape, sizes: &LatentSizes) -> Value {
    json!({
        "first_k_dense_replace": sizes.dense_layers,
        "kv_lora_rank": sizes.kv_rank,
        "model_type": sizes.model_type,
        "moe_layer_freq": 1,
        "num_key_value_heads": shape.heads,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": sizes.q_rank,
        "qk_nope_head_dim": sizes.nope,
        "qk_rope_head_dim": sizes.rope,
        "rms_norm_eps": f64::from((sizes.eps * 1e7).round()) / 1e7,
        "routed_scaling_factor": f64::from((sizes.scale * 1e3).round()) / 1e3,
        "topk_method": "noaux_tc",
        "topk_group": sizes.groups[1],
        "v_head_dim": sizes.value,
    })
}

fn deepseek_v3(shape: &SynthShape, sizes: &LatentSizes) -> Value {
    let [theta, factor, beta_fast] = sizes.yarn;
    let mut config = latent(shape, sizes);
    let more = json!({
        "architectures": ["DeepseekV3ForCausalLM"],
        "attention_bias": false,
        "hidden_act": "silu",
        "max_position_embeddings": shape.positions,
        "n_group": sizes.groups[0],
        "n_routed_experts": shape.experts,
        "n_shared_experts": sizes.shared,
        "norm_topk_prob": true,
        "num_experts_per_tok": shape.top_k,
        "rope_scaling": {
            "beta_fast": beta_fast, "beta_slow": 1.0, "factor": factor, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "rope_theta": theta,
        "scoring_func": "sigmoid",
    });
    merge(&mut config, more);
    config
}

fn kimi_k3(shape: &SynthShape, sizes: &LatentSizes, k3: &K3Sizes) -> Value {
    // Layers are counted from 1 there.
    let (full, delta): (Vec<u16>, Vec<u16>) =
        (1..=shape.layers).partition(|layer| shape.is_latent(layer - 1));
    let mut config = latent(shape, sizes);
    let more = json!({
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "attn_res_block_size": k3.residual_block,
        "hidden_act": "situ",
        "latent_moe_use_norm": true,
        "linear_attn_config": {
            "full_attn_layers": full, "gate_lower_bound": -5.0, "head_dim": k3.delta_dim,
            "kda_layers": delta, "num_heads": shape.heads, "short_conv_kernel_size": 4,
            "use_full_rank_gate": true,
        },
        "mla_use_nope": true,
        "mla_use_output_gate": true,
        "model_max_length": shape.positions,
        "moe_renormalize": true,
        "moe_router_activation_func": "sigmoid",
        "num_expert_group": sizes.groups[0],
        "num_experts": shape.experts,
        "num_experts_per_token": shape.top_k,
        "num_shared_experts": sizes.shared,
        "rope_scaling": null,
        "routed_expert_hidden_size": k3.expert_hidden,
    });
    merge(&mut config, more);
    config
}

fn merge(config: &mut Value, more: Value) {
    if let (Value::Object(config), Value::Object(more)) = (config, more) {
        config.extend(more);
    }
}

/// What the config says of a form; `None` where nothing is quantised.
fn quantization(dtype: SynthDtype) -> Option<Value> {
    let (format, kind) = match dtype {
        SynthDtype::Bf16 => return None,
        SynthDtype::Fp8 => {
            return Some(json!({
                "activation_scheme": "dynamic",
                "fmt": "e4m3",
                "quant_method": "fp8",
                "weight_block_size": [BLOCK, BLOCK],
            }));
        }
        SynthDtype::Mxfp4 => ("mxfp4-pack-quantized", "float"),
        SynthDtype::Int4 => ("pack-quantized", "int"),
    };
    Some(json!({
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": { "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4, "type": kind, "symmetric": true, "strategy": "group",
                "group_size": GROUP, "actorder": null,
            },
        } },
        "ignore": [
            "lm_head", "re:.*self_attn.*", "re:.*mlp\\.gate$", "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        ],
    }))
}
