//! From ggml's names of tensors to the checkpoint's own, as `gguf-py/gguf/tensor_mapping.py` has
//! them in the other direction.

use crate::error::TierError;
use crate::pool::expert::PartRole;
use crate::pool::names::{StackKind, narrow, split_number};
use std::path::Path;

/// What a tensor is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::pool) enum Name {
    /// All experts of a layer in one tensor.
    Stack { layer: u16, kind: StackKind },
    /// Of experts, but of a kind that is not served.
    UnknownExpertTensor,
    /// Used by every token, by its canonical name.
    Spine(String),
}

/// Parts of a layer: ggml's name, the checkpoint's.
const IN_LAYER: [(&str, &str); 31] = [
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_k_b", "self_attn.k_b_proj"),
    ("attn_v_b", "self_attn.v_b_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("nextn.eh_proj", "eh_proj"),
    ("nextn.embed_tokens", "embed_tokens"),
    ("nextn.enorm", "enorm"),
    ("nextn.hnorm", "hnorm"),
    ("nextn.shared_head_head", "shared_head.head"),
    ("nextn.shared_head_norm", "shared_head.norm"),
    ("post_attention_norm", "post_attention_layernorm"),
];

const TOP: [(&str, &str); 3] =
    [("token_embd", "embed_tokens"), ("output_norm", "norm"), ("output", "lm_head")];

/// Says what the tensor `name` is. A name that is not known stays what it is.
///
/// # Errors
///
/// `limit` for layer numbers above 65534, `unsupported` for experts that are tensors of their own
/// (files of before March 2024, which ggml itself reads no more).
pub(in crate::pool) fn classify(name: &str, path: &Path) -> Result<Name, TierError> {
    let Some((layer, rest)) = name.strip_prefix("blk.").and_then(split_number) else {
        return Ok(Name::Spine(renamed(&TOP, "", name)));
    };
    let small = || narrow(layer, "layer", name, path);
    let stem = rest.strip_suffix(".weight");
    let kind = match stem {
        Some("ffn_gate_exps") => Some(StackKind::One(PartRole::Gate)),
        Some("ffn_up_exps") => Some(StackKind::One(PartRole::Up)),
        Some("ffn_down_exps") => Some(StackKind::One(PartRole::Down)),
        Some("ffn_gate_up_exps") => Some(StackKind::GateUp),
        _ => None,
    };
    if let Some(kind) = kind {
        return Ok(Name::Stack { layer: small()?, kind });
    }
    if rest.split_once('.').is_some_and(|(block, _)| block.ends_with("_exps")) {
        return Ok(Name::UnknownExpertTensor);
    }
    if let Some(projection) = ["ffn_gate.", "ffn_up.", "ffn_down."]
        .iter()
        .find_map(|block| rest.strip_prefix(block).and_then(split_number))
    {
        return Err(TierError::Unsupported {
            path: path.to_owned(),
            thing: format!("tensor {name}"),
            reason: format!(
                "expert {} is a tensor of its own; convert the model again, so that a layer's \
                 experts are one tensor (ffn_gate_exps and so on)",
                projection.0
            ),
        });
    }
    if rest == "exp_probs_b.bias" || rest == "exp_probs_b" {
        return Ok(Name::Spine(format!("layers.{layer}.mlp.gate.e_score_correction_bias")));
    }
    Ok(Name::Spine(renamed(&IN_LAYER, &format!("layers.{layer}."), rest)))
}

/// `attn_q.weight` → `{before}self_attn.q_proj.weight`.
fn renamed(known: &[(&str, &str)], before: &str, name: &str) -> String {
    let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
    match known.iter().find(|known| known.0 == stem) {
        Some((_, canonical)) => format!("{before}{canonical}.{ending}"),
        None => format!("{before}{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Name {
        classify(name, Path::new("f")).unwrap()
    }

    #[test]
    fn names_become_the_checkpoints_own() {
        for (name, canonical) in [
            ("token_embd.weight", "embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("output_norm.weight", "norm.weight"),
            ("blk.3.attn_q.weight", "layers.3.self_attn.q_proj.weight"),
            ("blk.3.attn_q.bias", "layers.3.self_attn.q_proj.bias"),
            ("blk.0.ffn_gate_inp.weight", "layers.0.mlp.gate.weight"),
            ("blk.0.ffn_gate.weight", "layers.0.mlp.gate_proj.weight"),
            ("blk.61.nextn.eh_proj.weight", "layers.61.eh_proj.weight"),
            ("blk.2.exp_probs_b.bias", "layers.2.mlp.gate.e_score_correction_bias"),
            ("blk.2.something", "layers.2.something"),
            ("rope_freqs.weight", "rope_freqs.weight"),
            ("blk.x.attn_q.weight", "blk.x.attn_q.weight"),
            ("", ""),
        ] {
            assert_eq!(of(name), Name::Spine(canonical.to_owned()), "{name}");
        }
    }

    #[test]
    fn experts_are_stacks() {
        let stack = |kind| Name::Stack { layer: 7, kind };
        assert_eq!(of("blk.7.ffn_down_exps.weight"), stack(StackKind::One(PartRole::Down)));
        assert_eq!(of("blk.7.ffn_gate_up_exps.weight"), stack(StackKind::GateUp));
        assert_eq!(of("blk.7.ffn_gate_exps.bias"), Name::UnknownExpertTensor);
        let alone = classify("blk.0.ffn_down.3.weight", Path::new("f")).unwrap_err();
        assert_eq!(alone.kind(), "unsupported");
        let far = classify("blk.65535.ffn_up_exps.weight", Path::new("f")).unwrap_err();
        assert_eq!(far.kind(), "limit");
    }
}
