//! The dense part of a model's config, resolved once: absent and `null` keys become the
//! family's defaults, contradictions become errors that name the key and its value.

use crate::error::EngineError;
use crate::spine::RopeConfig;
use router_trace::MAX_TOP_K;
use serde_json::{Map, Value};

/// No size in a config may be larger: it keeps every product of two sizes inside `usize`.
const MAX_SIZE: usize = 1 << 28;

/// What the decoder must know of a Qwen3-MoE checkpoint. Sizes count elements.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Tokens the model knows.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of dense MLP layers; unused where every layer has experts.
    pub intermediate_size: usize,
    /// Width of one expert.
    pub moe_intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: u16,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Width of one head; need not be `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Whether q, k, v and o projections have a bias.
    pub attention_bias: bool,
    /// Epsilon of every RMS norm.
    pub rms_norm_eps: f32,
    /// Positions the model was made for.
    pub max_position_embeddings: usize,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// Routed experts a layer.
    pub num_experts: usize,
    /// Experts a token uses in a layer.
    pub num_experts_per_tok: usize,
    /// Whether the chosen experts' weights are scaled to sum 1.
    pub norm_topk_prob: bool,
    /// Every how many layers there are experts.
    pub decoder_sparse_step: usize,
    /// Layers that are dense whatever the step says.
    pub mlp_only_layers: Vec<usize>,
}

impl ModelConfig {
    /// Resolves the text part of a `config.json` of the family `qwen3_moe`.
    ///
    /// # Errors
    /// `config-inconsistent` or `unsupported`, naming key and value.
    pub fn qwen3_moe(text: &Map<String, Value>) -> Result<Self, EngineError> {
        let keys = Keys::new(text);
        refuse_unsupported(keys)?;
        let hidden_size = keys.size("hidden_size")?;
        let num_attention_heads = keys.size("num_attention_heads")?;
        let head_dim = match keys.opt_size("head_dim")? {
            Some(head_dim) => head_dim,
            None => hidden_size / num_attention_heads,
        };
        let max_position_embeddings = keys.size("max_position_embeddings")?;
        let config = Self {
            vocab_size: keys.size("vocab_size")?,
            hidden_size,
            intermediate_size: keys.opt_size("intermediate_size")?.unwrap_or(hidden_size),
            moe_intermediate_size: keys.size("moe_intermediate_size")?,
            num_hidden_layers: keys.layers()?,
            num_attention_heads,
            num_key_value_heads: keys
                .opt_size("num_key_value_heads")?
                .unwrap_or(num_attention_heads),
            head_dim,
            attention_bias: keys.opt_bool("attention_bias")?.unwrap_or(false),
            rms_norm_eps: keys.opt_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            max_position_embeddings,
            rope: RopeConfig::from_text_config(text, max_position_embeddings)?,
            tie_word_embeddings: keys.opt_bool("tie_word_embeddings")?.unwrap_or(false),
            num_experts: keys.size("num_experts")?,
            num_experts_per_tok: keys.size("num_experts_per_tok")?,
            norm_topk_prob: keys.opt_bool("norm_topk_prob")?.unwrap_or(false),
            decoder_sparse_step: keys.opt_size("decoder_sparse_step")?.unwrap_or(1),
            mlp_only_layers: keys.opt_list("mlp_only_layers")?,
        };
        config.check(keys)?;
        Ok(config)
    }

    /// Whether `layer` has routed experts; the others have a dense MLP.
    #[must_use]
    pub fn is_moe_layer(&self, layer: usize) -> bool {
        !self.mlp_only_layers.contains(&layer)
            && (layer + 1).is_multiple_of(self.decoder_sparse_step)
    }

    fn check(&self, keys: Keys<'_>) -> Result<(), EngineError> {
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let problem = format!("must divide num_attention_heads = {}", self.num_attention_heads);
            return Err(keys.bad("num_key_value_heads", problem));
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            let problem =
                format!("rotary embedding needs pairs, but head_dim is {}", self.head_dim);
            return Err(keys.bad("head_dim", problem));
        }
        if self.num_experts_per_tok > self.num_experts {
            let problem = format!("is more than num_experts = {}", self.num_experts);
            return Err(keys.bad("num_experts_per_tok", problem));
        }
        if self.num_experts_per_tok > MAX_TOP_K {
            let reason = format!("at most {MAX_TOP_K} experts a token");
            return Err(keys.unsupported("num_experts_per_tok", reason));
        }
        if self.num_experts > usize::from(u16::MAX) {
            return Err(keys.unsupported("num_experts", "at most 65535 experts a layer"));
        }
        let layers = usize::from(self.num_hidden_layers);
        if let Some(layer) = self.mlp_only_layers.iter().find(|&&layer| layer >= layers) {
            let problem = format!("layer {layer} does not exist, num_hidden_layers = {layers}");
            return Err(keys.bad("mlp_only_layers", problem));
        }
        Ok(())
    }
}

/// Settings that change the arithmetic in ways the decoder does not know.
fn refuse_unsupported(keys: Keys<'_>) -> Result<(), EngineError> {
    if let Some(act) = keys.opt_str("hidden_act")?
        && act != "silu"
    {
        return Err(keys.unsupported("hidden_act", "only silu"));
    }
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

/// Typed look-ups in a config; a `null` counts as absent.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    map: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>) -> Self {
        Self { map }
    }

    pub(crate) fn get(self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// A `config-inconsistent` error about `key`.
    pub(crate) fn bad(self, key: &str, problem: impl Into<String>) -> EngineError {
        EngineError::config(key, &self.shown(key), problem)
    }

    pub(crate) fn unsupported(self, key: &str, reason: impl Into<String>) -> EngineError {
        EngineError::unsupported(key, &self.shown(key), reason)
    }

    /// The value as written, cut so that a hostile config cannot flood the terminal.
    fn shown(self, key: &str) -> String {
        let text = self.map.get(key).map_or_else(|| "absent".to_owned(), Value::to_string);
        match text.char_indices().nth(80) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text,
        }
    }

    /// A size from 1 to [`MAX_SIZE`].
    pub(crate) fn size(self, key: &str) -> Result<usize, EngineError> {
        self.opt_size(key)?.ok_or_else(|| self.bad(key, "is needed"))
    }

    pub(crate) fn opt_size(self, key: &str) -> Result<Option<usize>, EngineError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        match size {
            Some(size) if (1..=MAX_SIZE).contains(&size) => Ok(Some(size)),
            _ => Err(self.bad(key, format!("must be a whole number from 1 to {MAX_SIZE}"))),
        }
    }

    fn layers(self) -> Result<u16, EngineError> {
        let key = "num_hidden_layers";
        u16::try_from(self.size(key)?).map_err(|_| self.unsupported(key, "at most 65535 layers"))
    }

    pub(crate) fn opt_bool(self, key: &str) -> Result<Option<bool>, EngineError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.bad(key, "must be true or false"))
    }

    pub(crate) fn opt_str(self, key: &str) -> Result<Option<&'a str>, EngineError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.bad(key, "must be a string"))
    }

    /// A finite number.
    pub(crate) fn opt_number(self, key: &str) -> Result<Option<f64>, EngineError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.bad(key, "must be a number"))
    }

    /// A finite number above zero.
    pub(crate) fn opt_positive(self, key: &str) -> Result<Option<f64>, EngineError> {
        match self.opt_number(key)? {
            Some(number) if number <= 0.0 => Err(self.bad(key, "must be above 0")),
            number => Ok(number),
        }
    }

    fn opt_list(self, key: &str) -> Result<Vec<usize>, EngineError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let list: Option<Vec<usize>> = value.as_array().and_then(|list| {
            list.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
        });
        list.ok_or_else(|| self.bad(key, "must be a list of whole numbers"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_with(key: &str, value: Value) -> Result<ModelConfig, EngineError> {
        let text = include_str!("../model/config.json");
        let mut map: Map<String, Value> = serde_json::from_str(text).unwrap();
        map.insert(key.to_owned(), value);
        ModelConfig::qwen3_moe(&map)
    }

    #[test]
    fn the_bundled_config_resolves() {
        let config = config_with("norm_topk_prob", true.into()).unwrap();
        assert_eq!((config.hidden_size, config.head_dim, config.num_experts), (256, 64, 64));
        assert!((0..6).all(|layer| config.is_moe_layer(layer)));
    }

    #[test]
    fn absent_settings_become_the_family_defaults() {
        for null_key in ["norm_topk_prob", "tie_word_embeddings"] {
            let config = config_with(null_key, Value::Null).unwrap();
            assert!(!config.tie_word_embeddings);
            assert_eq!(config.norm_topk_prob, null_key != "norm_topk_prob");
        }
        let config = config_with("mlp_only_layers", Value::Null).unwrap();
        assert!(config.mlp_only_layers.is_empty());
        assert_eq!(config_with("head_dim", Value::Null).unwrap().head_dim, 64);
    }

    #[test]
    fn errors_name_key_and_value() {
        let cases = [
            ("use_sliding_window", Value::from(true), "unsupported"),
            ("hidden_act", "gelu".into(), "unsupported"),
            ("num_experts_per_tok", 65.into(), "config-inconsistent"),
            ("num_key_value_heads", 3.into(), "config-inconsistent"),
            ("head_dim", 63.into(), "config-inconsistent"),
            ("hidden_size", (-1).into(), "config-inconsistent"),
            ("vocab_size", 1e18.into(), "config-inconsistent"),
            ("mlp_only_layers", vec![6].into(), "config-inconsistent"),
            ("tie_word_embeddings", "yes".into(), "config-inconsistent"),
            ("decoder_sparse_step", 0.into(), "config-inconsistent"),
            ("layer_types", vec!["sliding_attention"].into(), "unsupported"),
        ];
        for (key, value, kind) in cases {
            let error = config_with(key, value.clone()).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(key), "{error}");
            assert!(error.to_string().contains(&value.to_string()), "{error}");
        }
    }
}
