use super::SynthDtype;
use crate::error::EngineError;
use serde_json::{Value, json};

/// Sizes of a Qwen3-MoE model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SynthShape {
    /// What it is called.
    pub name: String,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Layers; all of them have experts.
    pub layers: u16,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Width of one head.
    pub head_dim: u32,
    /// Width of a dense MLP, which no layer has.
    pub intermediate: u32,
    /// Width of one expert.
    pub moe_intermediate: u32,
    /// Routed experts a layer.
    pub experts: u16,
    /// Experts one token chooses in one layer.
    pub top_k: u16,
    /// Tokens.
    pub vocab: u32,
    /// Positions.
    pub positions: u32,
}

impl SynthShape {
    /// The names that [`SynthShape::named`] knows.
    pub const NAMES: [&'static str; 3] = ["qwen3-30b-a3b", "qwen3-235b-a22b", "tiny"];

    /// The shape of a model.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let qwen3 = |hidden, layers, heads, intermediate, moe_intermediate| Self {
            name: name.to_owned(),
            hidden,
            layers,
            heads,
            kv_heads: 4,
            head_dim: 128,
            intermediate,
            moe_intermediate,
            experts: 128,
            top_k: 8,
            vocab: 151_936,
            positions: 40_960,
        };
        Some(match name {
            "qwen3-30b-a3b" => qwen3(2048, 48, 32, 6144, 768),
            "qwen3-235b-a22b" => qwen3(4096, 94, 64, 12_288, 1536),
            "tiny" => Self {
                kv_heads: 2,
                head_dim: 32,
                experts: 16,
                top_k: 4,
                vocab: 512,
                positions: 2048,
                ..qwen3(128, 4, 4, 256, 64)
            },
            _ => return None,
        })
    }

    /// The same model with fewer layers and tokens.
    pub(super) fn cut(&self, layers: Option<u16>, vocab: Option<u32>) -> Result<Self, EngineError> {
        let limit = |what: &str, value: usize, max: usize| {
            let problem = format!("must be 1 to {max} for {}", self.name);
            Err(EngineError::Limit { what: what.to_owned(), value, problem })
        };
        let cut = Self {
            layers: layers.unwrap_or(self.layers),
            vocab: vocab.unwrap_or(self.vocab),
            ..self.clone()
        };
        if !(1..=self.layers).contains(&cut.layers) {
            return limit("layers", cut.layers.into(), self.layers.into());
        }
        if !(1..=self.vocab).contains(&cut.vocab) {
            return limit("vocab", cut.vocab as usize, self.vocab as usize);
        }
        cut.check()?;
        Ok(cut)
    }

    fn check(&self) -> Result<(), EngineError> {
        let sizes = [
            ("hidden", self.hidden),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("moe_intermediate", self.moe_intermediate),
            ("experts", self.experts.into()),
            ("top_k", self.top_k.into()),
            ("positions", self.positions),
        ];
        for (key, size) in sizes {
            if size == 0 || size > 1 << 24 {
                return Err(EngineError::config(key, &size, "must be 1 to 2^24"));
            }
        }
        if self.top_k > self.experts {
            return Err(EngineError::config("top_k", &self.top_k, "is more than the experts"));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(EngineError::config(
                "kv_heads",
                &self.kv_heads,
                "does not divide the heads",
            ));
        }
        Ok(())
    }

    /// `config.json`.
    pub(super) fn config(&self, dtype: SynthDtype, end_of_text: Option<u32>) -> Value {
        let mut config = json!({
            "architectures": ["Qwen3MoeForCausalLM"],
            "attention_bias": false,
            "attention_dropout": 0.0,
            "decoder_sparse_step": 1,
            "eos_token_id": end_of_text,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.positions,
            "mlp_only_layers": [],
            "model_type": "qwen3_moe",
            "moe_intermediate_size": self.moe_intermediate,
            "norm_topk_prob": true,
            "num_attention_heads": self.heads,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_scaling": null,
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": false,
            "torch_dtype": "bfloat16",
            "use_sliding_window": false,
            "vocab_size": self.vocab,
        });
        if dtype == SynthDtype::Int4 {
            config["quantization_config"] = json!({
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "quantization_status": "compressed",
                "config_groups": { "group_0": {
                    "targets": ["Linear"],
                    "weights": {
                        "num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
                        "group_size": super::model::GROUP, "actorder": null,
                    },
                } },
                "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp\\.gate$"],
            });
        }
        config
    }
}
