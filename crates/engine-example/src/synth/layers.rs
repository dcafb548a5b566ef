//! The tensors of a layer that every token uses, family by family.

use super::model::{Tensor, floats, linear, norm};
use super::shape::{K3Sizes, LatentSizes, SynthFamily, SynthShape};

/// A layer's tensors; the first is its `input_layernorm`.
pub(super) fn layer(shape: &SynthShape, layer: u16) -> Vec<Tensor> {
    let names = Names { prefix: format!("{}model.layers.{layer}", shape.prefix()) };
    match shape.family {
        SynthFamily::Qwen3Moe => qwen3_moe(shape, &names),
        SynthFamily::DeepseekV3(latent) => {
            let mut tensors = norms(shape, &names);
            tensors.extend(latent_attention(shape, &latent, &names));
            tensors.extend(mlp(shape, &latent, &names, layer));
            tensors
        }
        SynthFamily::KimiK3(latent, k3) => {
            let mut tensors = norms(shape, &names);
            tensors.extend(residual_mixes(shape, &names));
            if shape.is_latent(layer) {
                tensors.extend(latent_attention(shape, &latent, &names));
                let width = shape.heads * latent.value;
                tensors.push(linear(names.weight("self_attn.g_proj"), width, shape.hidden));
            } else {
                tensors.extend(delta_attention(shape, &k3, &names));
            }
            tensors.extend(mlp(shape, &latent, &names, layer));
            if shape.is_moe(layer) {
                tensors.extend(latent_moe(shape, &k3, &names));
            }
            tensors
        }
    }
}

/// What the whole model has beside its layers, embedding, last norm and head.
pub(super) fn further(shape: &SynthShape) -> Vec<Tensor> {
    match shape.family {
        SynthFamily::KimiK3(..) => {
            let name = |part: &str| format!("{}model.output_attn_res_{part}", shape.prefix());
            vec![
                norm(name("norm.weight"), shape.hidden),
                linear(name("proj.weight"), 1, shape.hidden),
            ]
        }
        _ => Vec::new(),
    }
}

struct Names {
    prefix: String,
}

impl Names {
    fn weight(&self, module: &str) -> String {
        self.plain(&format!("{module}.weight"))
    }

    fn plain(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }
}

fn qwen3_moe(shape: &SynthShape, names: &Names) -> Vec<Tensor> {
    let SynthShape { hidden, heads, kv_heads, head_dim, experts, .. } = *shape;
    let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
    let name = |module: &str| names.weight(module);
    vec![
        norm(name("input_layernorm"), hidden),
        linear(name("mlp.gate"), experts.into(), hidden),
        norm(name("post_attention_layernorm"), hidden),
        norm(name("self_attn.k_norm"), head_dim),
        linear(name("self_attn.k_proj"), keys, hidden),
        linear(name("self_attn.o_proj"), hidden, queries),
        norm(name("self_attn.q_norm"), head_dim),
        linear(name("self_attn.q_proj"), queries, hidden),
        linear(name("self_attn.v_proj"), keys, hidden),
    ]
}

fn norms(shape: &SynthShape, names: &Names) -> Vec<Tensor> {
    ["input_layernorm", "post_attention_layernorm"]
        .map(|module| norm(names.weight(module), shape.hidden))
        .into()
}

fn residual_mixes(shape: &SynthShape, names: &Names) -> Vec<Tensor> {
    let mix = |name: &str| {
        [
            norm(names.weight(&format!("{name}_norm")), shape.hidden),
            linear(names.weight(&format!("{name}_proj")), 1, shape.hidden),
        ]
    };
    [mix("self_attention_res"), mix("mlp_res")].into_iter().flatten().collect()
}

fn latent_attention(shape: &SynthShape, sizes: &LatentSizes, names: &Names) -> Vec<Tensor> {
    let LatentSizes { q_rank, kv_rank, nope, rope, value, .. } = *sizes;
    let (hidden, heads) = (shape.hidden, shape.heads);
    let name = |module: &str| names.weight(&format!("self_attn.{module}"));
    vec![
        norm(name("kv_a_layernorm"), kv_rank),
        linear(name("kv_a_proj_with_mqa"), kv_rank + rope, hidden),
        linear(name("kv_b_proj"), heads * (nope + value), kv_rank),
        linear(name("o_proj"), hidden, heads * value),
        norm(name("q_a_layernorm"), q_rank),
        linear(name("q_a_proj"), q_rank, hidden),
        linear(name("q_b_proj"), heads * (nope + rope), q_rank),
    ]
}

fn delta_attention(shape: &SynthShape, sizes: &K3Sizes, names: &Names) -> Vec<Tensor> {
    let (hidden, heads, rank) = (shape.hidden, shape.heads, sizes.delta_dim);
    let width = heads * rank;
    let plain = |name: &str| names.plain(&format!("self_attn.{name}"));
    let name = |module: &str| plain(&format!("{module}.weight"));
    let mut tensors = vec![
        // Padded to whole vectors, as published.
        floats(plain("A_log"), vec![heads.next_multiple_of(128)], 0.7, 0.5),
        linear(name("b_proj"), heads, hidden),
        floats(plain("dt_bias"), vec![width], -1.0, 1.0),
        linear(name("f_a_proj"), rank, hidden),
        linear(name("f_b_proj"), width, rank),
        linear(name("g_proj"), width, hidden),
        floats(name("o_norm"), vec![rank], 1.0, 0.1),
        linear(name("o_proj"), hidden, width),
    ];
    for stream in ["q", "k", "v"] {
        tensors.push(linear(name(&format!("{stream}_proj")), width, hidden));
        tensors.push(floats(name(&format!("{stream}_conv1d")), vec![width, 1, 4], 0.0, 0.5));
    }
    tensors
}

/// The router and the shared experts, or the dense MLP.
fn mlp(shape: &SynthShape, sizes: &LatentSizes, names: &Names, layer: u16) -> Vec<Tensor> {
    let (hidden, block) = (shape.hidden, shape.expert_names().0);
    let gated = |name: &str, inner: u32| {
        [
            linear(names.weight(&format!("{name}.down_proj")), hidden, inner),
            linear(names.weight(&format!("{name}.gate_proj")), inner, hidden),
            linear(names.weight(&format!("{name}.up_proj")), inner, hidden),
        ]
    };
    if !shape.is_moe(layer) {
        return gated("mlp", shape.intermediate).into();
    }
    let bias = names.plain(&format!("{block}.gate.e_score_correction_bias"));
    let mut tensors = vec![
        linear(names.weight(&format!("{block}.gate")), shape.experts.into(), hidden),
        floats(bias, vec![shape.experts.into()], 0.0, 0.05),
    ];
    let inner = sizes.shared * shape.moe_intermediate;
    tensors.extend(gated(&format!("{block}.shared_experts"), inner));
    tensors
}

fn latent_moe(shape: &SynthShape, sizes: &K3Sizes, names: &Names) -> Vec<Tensor> {
    let name = |part: &str| names.weight(&format!("block_sparse_moe.routed_expert_{part}"));
    vec![
        linear(name("down_proj"), sizes.expert_hidden, shape.hidden),
        norm(name("norm"), sizes.expert_hidden),
        linear(name("up_proj"), shape.hidden, sizes.expert_hidden),
    ]
}
