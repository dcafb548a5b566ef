//! From a file's metadata to the config that the checkpoint had before it was converted: one
//! reader of configs serves both.

use super::value::{Array, Metadata, Value as Stored};
use crate::error::TierError;
use crate::pool::SpineTensor;
use crate::pool::config::CheckpointConfig;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Keys below the architecture's name that mean the same everywhere: ggml's, the config's.
const NUMBERS: [(&str, &str); 17] = [
    ("embedding_length", "hidden_size"),
    ("context_length", "max_position_embeddings"),
    ("feed_forward_length", "intermediate_size"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("nextn_predict_layers", "num_nextn_predict_layers"),
    ("vocab_size", "vocab_size"),
];

const FLOATS: [(&str, &str); 2] = [
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("expert_weights_scale", "routed_scaling_factor"),
];

/// ggml's `LLAMA_EXPERT_GATING_FUNC_SIGMOID`.
const SIGMOID: u64 = 2;

/// The config behind `metadata`, for a file or set whose spine is `spine`. `any_experts` says
/// whether there are routed experts: without them the layers are not counted, since such a file
/// is a part of a model or none.
///
/// # Errors
/// `config-inconsistent`, naming the key and its value.
pub(in crate::pool) fn checkpoint(
    metadata: &Metadata,
    spine: &BTreeMap<String, SpineTensor>,
    any_experts: bool,
) -> Result<CheckpointConfig, TierError> {
    let source = Source { metadata, arch: metadata.text("general.architecture")?.unwrap_or("") };
    let mut config = Map::new();
    config.insert("model_type".to_owned(), source.model_type()?.into());
    for (key, name) in NUMBERS {
        if let Some(number) = source.number(key)? {
            config.insert(name.to_owned(), number.into());
        }
    }
    for (key, name) in FLOATS {
        if let Some(number) = source.float(key)? {
            config.insert(name.to_owned(), number.into());
        }
    }
    source.layers(&mut config, any_experts)?;
    source.latent_attention(&mut config)?;
    source.router(&mut config)?;
    source.deepseek(&mut config);
    source.rope(&mut config)?;
    if !config.contains_key("vocab_size")
        && let Some(rows) = vocabulary(metadata, spine)?
    {
        config.insert("vocab_size".to_owned(), rows.into());
    }
    // A tied head is one that is not stored; files that are no whole model say nothing.
    if spine.contains_key("embed_tokens.weight") {
        let tied = !spine.contains_key("lm_head.weight");
        config.insert("tie_word_embeddings".to_owned(), tied.into());
    }
    if spine.contains_key("layers.0.self_attn.q_proj.bias") {
        config.insert("attention_bias".to_owned(), true.into());
    }
    dense_layers(&mut config, spine);
    CheckpointConfig::of_map(&config, metadata.path())
}

/// Rows of the embedding, or tokens of the vocabulary.
fn vocabulary(
    metadata: &Metadata,
    spine: &BTreeMap<String, SpineTensor>,
) -> Result<Option<u64>, TierError> {
    if let Some([rows, _]) = spine.get("embed_tokens.weight").map(|tensor| &tensor.shape[..]) {
        return Ok(Some(*rows));
    }
    Ok(metadata.array("tokenizer.ggml.tokens")?.map(Array::len))
}

/// Whether only the tensors of a `model_type` tell which of its layers have no experts.
pub(in crate::pool) fn tensors_tell_dense_layers(model_type: &str) -> bool {
    matches!(model_type, "qwen3_moe" | "qwen2_moe")
}

/// The format has no key for layers without experts between others; that they have a dense block
/// shows it.
fn dense_layers(config: &mut Map<String, Value>, spine: &BTreeMap<String, SpineTensor>) {
    if !config.get("model_type").and_then(Value::as_str).is_some_and(tensors_tell_dense_layers) {
        return;
    }
    let dense: BTreeSet<u64> = spine
        .keys()
        .filter(|name| name.ends_with(".mlp.gate_proj.weight"))
        .filter_map(|name| crate::pool::names::spine_layer(name))
        .collect();
    if !dense.is_empty() {
        config.insert("mlp_only_layers".to_owned(), json!(dense));
    }
}

struct Source<'a> {
    metadata: &'a Metadata,
    /// `general.architecture`; empty without one.
    arch: &'a str,
}

impl Source<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    /// A number; of an array, its largest (a value a layer, where the layers may differ).
    fn number(&self, key: &str) -> Result<Option<u64>, TierError> {
        let full = self.key(key);
        match self.metadata.get(&full) {
            Some(Stored::Array(Array::Unsigned(items))) => Ok(items.iter().copied().max()),
            Some(Stored::Array(Array::Signed(items))) => {
                let most = items.iter().copied().max();
                most.map(|most| {
                    u64::try_from(most)
                        .map_err(|_| self.metadata.error(&full, format!("is at most {most}")))
                })
                .transpose()
            }
            _ => self.metadata.unsigned(&full),
        }
    }

    /// A number stored as F32, as the shortest decimal that is the same F32.
    fn float(&self, key: &str) -> Result<Option<f64>, TierError> {
        let number = self.metadata.float(&self.key(key))?;
        Ok(number.map(|number| {
            let single = number as f32;
            let shortest = single.to_string().parse().unwrap_or(number);
            if f64::from(single) == number { shortest } else { number }
        }))
    }

    fn model_type(&self) -> Result<&str, TierError> {
        Ok(match self.arch {
            "qwen3moe" => "qwen3_moe",
            "qwen2moe" => "qwen2_moe",
            // One architecture for V2, whose router is a softmax, and V3, Kimi-K2 and others.
            "deepseek2" if self.number("expert_gating_func")? == Some(SIGMOID) => "deepseek_v3",
            "deepseek2" => "deepseek_v2",
            "kimi-linear" => "kimi_linear",
            "kimi-k3" => "kimi_k3",
            arch => arch,
        })
    }

    /// Layers that predict further tokens are counted in `block_count`.
    fn layers(&self, config: &mut Map<String, Value>, any: bool) -> Result<(), TierError> {
        let Some(blocks) = self.number("block_count")?.filter(|_| any) else { return Ok(()) };
        let extra = self.number("nextn_predict_layers")?.unwrap_or(0);
        let layers = blocks.checked_sub(extra).ok_or_else(|| {
            let reason = format!("is {blocks}, fewer than nextn_predict_layers = {extra}");
            self.metadata.error(&self.key("block_count"), reason)
        })?;
        config.insert("num_hidden_layers".to_owned(), layers.into());
        Ok(())
    }

    /// `deepseek2` stores the widths of what is cached or of whole heads.
    fn latent_attention(&self, config: &mut Map<String, Value>) -> Result<(), TierError> {
        if !config.contains_key("kv_lora_rank") {
            return Ok(());
        }
        // In files with an absorbed form, `key_length` is the width of the cache.
        let whole = match self.number("attention.key_length_mla")? {
            Some(width) => Some(width),
            None => self.number("attention.key_length")?,
        };
        let value = match self.number("attention.value_length_mla")? {
            Some(width) => Some(width),
            None => self.number("attention.value_length")?,
        };
        let rotated = self.number("rope.dimension_count")?;
        config.remove("head_dim");
        // Of these files the cache has one head; the config counts the keys' own.
        if let Some(heads) = config.get("num_attention_heads").cloned() {
            config.insert("num_key_value_heads".to_owned(), heads);
        }
        if let (Some(whole), Some(rotated)) = (whole, rotated) {
            let plain = whole.checked_sub(rotated).ok_or_else(|| {
                let reason = format!("is {whole}, less than rope.dimension_count = {rotated}");
                self.metadata.error(&self.key("attention.key_length"), reason)
            })?;
            config.insert("qk_nope_head_dim".to_owned(), plain.into());
            config.insert("qk_rope_head_dim".to_owned(), rotated.into());
        }
        if let Some(value) = value {
            config.insert("v_head_dim".to_owned(), value.into());
        }
        Ok(())
    }

    fn router(&self, config: &mut Map<String, Value>) -> Result<(), TierError> {
        let norm = self.metadata.bool(&self.key("expert_weights_norm"))?;
        // llama.cpp's own code renormalises in every qwen3moe and in no qwen2moe; its converters
        // write the key of a deepseek2 only where it is true.
        let norm = norm.or(match self.arch {
            "qwen3moe" => Some(true),
            "qwen2moe" | "deepseek2" => Some(false),
            _ => None,
        });
        if let Some(norm) = norm {
            config.insert("norm_topk_prob".to_owned(), norm.into());
        }
        match self.number("expert_gating_func")? {
            Some(SIGMOID) => {
                config.insert("scoring_func".to_owned(), "sigmoid".into());
                config.insert("topk_method".to_owned(), "noaux_tc".into());
            }
            Some(1) => {
                config.insert("scoring_func".to_owned(), "softmax".into());
            }
            Some(other) => {
                config.insert("scoring_func".to_owned(), format!("ggml's {other}").into());
            }
            None => {}
        }
        Ok(())
    }

    /// What a `deepseek2` means where it has no key is what llama.cpp does then, and not what the
    /// defaults of the config's class are: no groups (files of before the end of 2025 do not say
    /// that there were some), no factor, no dense layers first.
    fn deepseek(&self, config: &mut Map<String, Value>) {
        if self.arch != "deepseek2" {
            return;
        }
        if let Some(experts) = config.remove("num_experts") {
            config.insert("n_routed_experts".to_owned(), experts);
        }
        for (name, value) in [
            ("n_group", json!(1)),
            ("topk_group", json!(1)),
            ("routed_scaling_factor", json!(1.0)),
            ("first_k_dense_replace", json!(0)),
            ("n_shared_experts", json!(0)),
        ] {
            config.entry(name).or_insert(value);
        }
    }

    fn rope(&self, config: &mut Map<String, Value>) -> Result<(), TierError> {
        if let Some(theta) = self.float("rope.freq_base")? {
            config.insert("rope_theta".to_owned(), theta.into());
        }
        let kind = self.metadata.text(&self.key("rope.scaling.type"))?.unwrap_or("none");
        if kind == "none" {
            return Ok(());
        }
        let mut scaling = Map::new();
        scaling.insert("rope_type".to_owned(), kind.into());
        for (key, name) in [
            ("rope.scaling.factor", "factor"),
            ("rope.scaling.original_context_length", "original_max_position_embeddings"),
            ("rope.scaling.yarn_beta_fast", "beta_fast"),
            ("rope.scaling.yarn_beta_slow", "beta_slow"),
        ] {
            if let Some(number) = self.float(key)? {
                scaling.insert(name.to_owned(), number.into());
            }
        }
        // `conversion/deepseek.py`: what is stored is a tenth of `mscale_all_dim`; its factor on
        // cosines and the one on the scores are the config's `mscale` and `mscale_all_dim`.
        if let Some(log) = self.float("rope.scaling.yarn_log_multiplier")? {
            let mscale = ((log * 10.0) as f32).to_string().parse().unwrap_or(log * 10.0);
            scaling.insert("mscale".to_owned(), f64::into(mscale));
            scaling.insert("mscale_all_dim".to_owned(), f64::into(mscale));
        }
        config.insert("rope_scaling".to_owned(), scaling.into());
        Ok(())
    }
}
