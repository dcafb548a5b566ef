//! What `config.json` says about the experts, the head and the stored form of the weights.

use super::quant::{self, Quantization};
use crate::error::TierError;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// No config is near this size; a larger file is something else.
const CONFIG_CAP: u64 = 64 << 20;

/// Model families whose rules for expert layers and defaults are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are the models' own")]
pub enum Family {
    Qwen2Moe,
    Qwen3Moe,
    DeepseekV3,
    KimiK2,
    KimiLinear,
    KimiK3,
    /// A model whose rules are not known here.
    Other,
}

/// Where a setting comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingSource {
    /// It stands in the config.
    Config,
    /// The key is absent (or null); the model family's own code has this default.
    FamilyDefault,
}

/// A value and where it comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Its origin.
    pub source: SettingSource,
}

impl<T: fmt::Display> fmt::Display for Setting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.source {
            SettingSource::Config => "",
            SettingSource::FamilyDefault => " (the family's default)",
        };
        write!(f, "{}{source}", self.value)
    }
}

/// The parts of a checkpoint's `config.json` that the pool needs, parsed and checked, and
/// the whole of its text part for the engine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CheckpointConfig {
    /// The file.
    pub path: PathBuf,
    /// `model_type` of the text model; empty if there is none.
    pub model_type: String,
    /// The family it belongs to.
    pub family: Family,
    /// Layers of the model, without extra prediction layers.
    pub num_hidden_layers: Option<u16>,
    /// Width of the residual stream.
    pub hidden_size: Option<u32>,
    /// Width of what routed experts read and write, where it is not `hidden_size` (Kimi K3).
    pub routed_expert_hidden_size: Option<u32>,
    /// Rows of an expert's gate and up projections.
    pub moe_intermediate_size: Option<u32>,
    /// Routed experts in each expert layer.
    pub n_experts: Option<u16>,
    /// Experts one token chooses in one layer.
    pub top_k: Option<u16>,
    /// The layers that have routed experts, ascending; `None` where the rule or a value that
    /// it needs is not known.
    pub expert_layers: Option<Vec<u16>>,
    /// Extra layers behind the last one that predict further tokens.
    pub num_nextn_predict_layers: u16,
    /// Whether the chosen experts' weights are renormalised; `None`: neither set nor known.
    pub norm_topk_prob: Option<Setting<bool>>,
    /// Whether the head is the embedding; `None`: neither set nor known.
    pub tie_word_embeddings: Option<Setting<bool>>,
    /// The stored form of quantised weights.
    pub quantization: Quantization,
    /// `quantization_config` as it stands there; empty without one.
    pub quantization_config: Map<String, Value>,
    /// `torch_dtype` (or `dtype`) of weights that are not quantised, for example `bfloat16`.
    pub dtype: Option<String>,
    /// The text model's config as it stands there.
    pub text: Map<String, Value>,
}

impl CheckpointConfig {
    /// Whether the router renormalises the chosen experts' weights.
    ///
    /// # Errors
    ///
    /// `config-inconsistent` if the key is absent and the family's default is not known.
    pub fn require_norm_topk_prob(&self) -> Result<Setting<bool>, TierError> {
        self.norm_topk_prob.ok_or_else(|| self.missing("norm_topk_prob"))
    }

    /// Experts one token chooses in one layer.
    ///
    /// # Errors
    ///
    /// `config-inconsistent` if the key is absent.
    pub fn require_top_k(&self) -> Result<u16, TierError> {
        self.top_k.ok_or_else(|| self.missing("num_experts_per_tok"))
    }

    /// Width of what a routed expert reads and writes.
    #[must_use]
    pub fn expert_width(&self) -> Option<u32> {
        self.routed_expert_hidden_size.or(self.hidden_size)
    }

    fn missing(&self, key: &str) -> TierError {
        TierError::ConfigValue {
            path: self.path.clone(),
            key: key.to_owned(),
            reason: format!("absent, and model_type {:?} has no known default", self.model_type),
        }
    }

    /// Reads a `config.json` by itself: before a download there is nothing beside it.
    ///
    /// # Errors
    ///
    /// `io` where it is not there, `config-inconsistent` for values of the wrong type.
    pub fn open(path: &Path) -> Result<Self, TierError> {
        Self::read(path)?.ok_or_else(|| TierError::Io {
            path: path.to_owned(),
            operation: "open",
            source: std::io::ErrorKind::NotFound.into(),
        })
    }

    /// Typed access to the text model's part.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader { path: &self.path, prefix: String::new(), map: &self.text }
    }

    /// Reads `path`; `None` if there is no such file.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, TierError> {
        let io = |operation, source| TierError::Io { path: path.to_owned(), operation, source };
        let file = match File::open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|source| io("open", source))?,
        };
        let mut text = Vec::new();
        file.take(CONFIG_CAP).read_to_end(&mut text).map_err(|source| io("read", source))?;
        Self::parse(&text, path).map(Some)
    }

    pub(super) fn parse(text: &[u8], path: &Path) -> Result<Self, TierError> {
        let root: Map<String, Value> =
            serde_json::from_slice(text).map_err(|error| TierError::ConfigValue {
                path: path.to_owned(),
                key: "(whole file)".to_owned(),
                reason: format!("not a JSON object: {error}"),
            })?;
        Self::of_map(&root, path)
    }

    /// The same from an object; `path` is what errors name.
    pub(super) fn of_map(root: &Map<String, Value>, path: &Path) -> Result<Self, TierError> {
        let outer = Reader { path, prefix: String::new(), map: root };
        let text = outer.object("text_config")?;
        let inner = text.as_ref().unwrap_or(&outer);
        let outer_type = outer.string("model_type")?.unwrap_or_default();
        let model_type = inner.string("model_type")?.unwrap_or(outer_type);
        let family = family(outer_type, model_type);
        let tie = match inner.bool("tie_word_embeddings")? {
            None => outer.bool("tie_word_embeddings")?,
            set => set,
        };
        let quantization = match quant::parse(inner)? {
            Quantization::None => quant::parse(&outer)?,
            nested => nested,
        };
        let mut dtype = None;
        let mut quantization_config = Map::new();
        for reader in [inner, &outer] {
            for key in ["torch_dtype", "dtype"] {
                dtype = dtype.or(reader.string(key)?.map(str::to_owned));
            }
            let quant = reader.value("quantization_config").and_then(Value::as_object);
            if let Some(quant) = quant.filter(|_| quantization_config.is_empty()) {
                quantization_config.clone_from(quant);
            }
        }
        let norm = match inner.bool("norm_topk_prob")? {
            None => inner.bool("moe_renormalize")?,
            set => set,
        };
        let n_experts = n_experts(inner)?;
        let num_hidden_layers = inner.small("num_hidden_layers")?;
        let top_k = match inner.small("num_experts_per_tok")? {
            None => inner.small("num_experts_per_token")?,
            set => set,
        };
        Ok(Self {
            path: path.to_owned(),
            model_type: model_type.to_owned(),
            family,
            num_hidden_layers,
            hidden_size: inner.size("hidden_size")?,
            routed_expert_hidden_size: inner.size("routed_expert_hidden_size")?,
            moe_intermediate_size: inner.size("moe_intermediate_size")?,
            n_experts,
            top_k,
            expert_layers: expert_layers(inner, family, num_hidden_layers, n_experts)?,
            num_nextn_predict_layers: inner.small("num_nextn_predict_layers")?.unwrap_or(0),
            norm_topk_prob: setting(norm, default_norm(family)),
            tie_word_embeddings: setting(tie, default_tie(family)),
            quantization,
            quantization_config,
            dtype,
            text: inner.map.clone(),
        })
    }
}

fn family(outer: &str, inner: &str) -> Family {
    match (outer, inner) {
        ("kimi_k3", _) | (_, "kimi_k3") => Family::KimiK3,
        (_, "qwen2_moe") => Family::Qwen2Moe,
        (_, "qwen3_moe") => Family::Qwen3Moe,
        (_, "deepseek_v3") => Family::DeepseekV3,
        (_, "kimi_k2") => Family::KimiK2,
        (_, "kimi_linear") => Family::KimiLinear,
        _ => Family::Other,
    }
}

fn default_norm(family: Family) -> Option<bool> {
    match family {
        Family::Qwen2Moe | Family::Qwen3Moe => Some(false),
        Family::DeepseekV3 | Family::KimiK2 | Family::KimiLinear | Family::KimiK3 => Some(true),
        Family::Other => None,
    }
}

fn default_tie(family: Family) -> Option<bool> {
    (family != Family::Other).then_some(false)
}

fn setting(config: Option<bool>, default: Option<bool>) -> Option<Setting<bool>> {
    let of = |source| move |value| Setting { value, source };
    config.map(of(SettingSource::Config)).or_else(|| default.map(of(SettingSource::FamilyDefault)))
}

/// The number of routed experts: the families call it differently, some configs say it twice.
fn n_experts(reader: &Reader<'_>) -> Result<Option<u16>, TierError> {
    let mut found: Option<(&str, u16)> = None;
    for key in ["num_experts", "n_routed_experts", "num_local_experts"] {
        let Some(value) = reader.small(key)? else { continue };
        match found {
            Some((other, first)) if first != value => {
                return Err(reader.error(key, format!("is {value}, but {other} is {first}")));
            }
            _ => found = Some((key, value)),
        }
    }
    Ok(found.map(|(_, value)| value))
}

/// The layers that have experts, by the family's rule.
fn expert_layers(
    reader: &Reader<'_>,
    family: Family,
    layers: Option<u16>,
    n_experts: Option<u16>,
) -> Result<Option<Vec<u16>>, TierError> {
    let Some(layers) = layers else { return Ok(None) };
    let step = |key| match reader.small(key)? {
        Some(0) => Err(reader.wrong(key, "a whole number above 0")),
        step => Ok(step.unwrap_or(1)),
    };
    Ok(match family {
        Family::Qwen2Moe | Family::Qwen3Moe => {
            let step = step("decoder_sparse_step")?;
            let dense = reader.layer_list("mlp_only_layers")?;
            let any = n_experts != Some(0);
            let sparse = |&layer: &u16| {
                any && (u32::from(layer) + 1).is_multiple_of(u32::from(step))
                    && !dense.contains(&layer)
            };
            Some((0..layers).filter(sparse).collect())
        }
        Family::DeepseekV3 | Family::KimiK2 | Family::KimiLinear | Family::KimiK3 => {
            let step = step("moe_layer_freq")?;
            // Without the key the sets cannot be checked; a guess would refuse sound files.
            reader
                .small("first_k_dense_replace")?
                .map(|first| (first..layers).filter(|layer| layer.is_multiple_of(step)).collect())
        }
        Family::Other => None,
    })
}

/// Typed access to an object of the config; errors name the key and the value.
pub(super) struct Reader<'a> {
    path: &'a Path,
    /// What stands before a key, for example `quantization_config.`.
    prefix: String,
    map: &'a Map<String, Value>,
}

impl<'a> Reader<'a> {
    /// The value, unless it is absent or null (which mean the same everywhere).
    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn error(&self, key: &str, reason: String) -> TierError {
        TierError::ConfigValue {
            path: self.path.to_owned(),
            key: format!("{}{key}", self.prefix),
            reason,
        }
    }

    pub(super) fn wrong(&self, key: &str, wanted: &str) -> TierError {
        let found = self.map.get(key).map_or_else(|| "absent".to_owned(), Value::to_string);
        // A whole array or object would hide the message.
        let found: String = found.chars().take(80).collect();
        self.error(key, format!("must be {wanted}, is {found}"))
    }

    pub(super) fn nested(&self, key: &str, map: &'a Map<String, Value>) -> Reader<'a> {
        Reader { path: self.path, prefix: format!("{}{key}.", self.prefix), map }
    }

    pub(super) fn object(&self, key: &str) -> Result<Option<Reader<'a>>, TierError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(self.nested(key, map))),
            Some(_) => Err(self.wrong(key, "an object")),
        }
    }

    pub(super) fn string(&self, key: &str) -> Result<Option<&'a str>, TierError> {
        let value = self.value(key);
        let text = value.map(|value| value.as_str().ok_or_else(|| self.wrong(key, "a string")));
        text.transpose()
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>, TierError> {
        let value = self.value(key);
        value
            .map(|value| value.as_bool().ok_or_else(|| self.wrong(key, "true or false")))
            .transpose()
    }

    pub(super) fn number(&self, key: &str, most: u64) -> Result<Option<u64>, TierError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_u64() {
            Some(number) if number <= most => Ok(Some(number)),
            _ => Err(self.wrong(key, &format!("a whole number from 0 to {most}"))),
        }
    }

    /// A count of layers or experts. The largest 16-bit number stays free, see `names`.
    fn small(&self, key: &str) -> Result<Option<u16>, TierError> {
        Ok(self.number(key, u64::from(u16::MAX) - 1)?.map(|number| number as u16))
    }

    fn size(&self, key: &str) -> Result<Option<u32>, TierError> {
        Ok(self.number(key, u64::from(u32::MAX))?.map(|number| number as u32))
    }

    pub(super) fn layer_list(&self, key: &str) -> Result<Vec<u16>, TierError> {
        let Some(value) = self.value(key) else { return Ok(Vec::new()) };
        let layers: Option<Vec<u16>> = value.as_array().and_then(|layers| {
            layers.iter().map(|layer| layer.as_u64()?.try_into().ok()).collect()
        });
        layers.ok_or_else(|| self.wrong(key, "a list of layer numbers"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(config: &Value) -> Result<CheckpointConfig, TierError> {
        CheckpointConfig::parse(config.to_string().as_bytes(), Path::new("config.json"))
    }

    #[test]
    fn absent_settings_take_the_familys_default() {
        let default = |value| Some(Setting { value, source: SettingSource::FamilyDefault });
        for (model_type, norm, tie) in [
            ("qwen3_moe", default(false), default(false)),
            ("deepseek_v3", default(true), default(false)),
            ("kimi_linear", default(true), default(false)),
            ("somebody", None, None),
        ] {
            let config = parse(&json!({ "model_type": model_type })).unwrap();
            assert_eq!((config.norm_topk_prob, config.tie_word_embeddings), (norm, tie));
        }
        let config = parse(&json!({ "model_type": "somebody" })).unwrap();
        assert_eq!(config.require_norm_topk_prob().unwrap_err().kind(), "config-inconsistent");
        let config = parse(&json!({ "model_type": "kimi_linear", "moe_renormalize": false }));
        let set = Setting { value: false, source: SettingSource::Config };
        assert_eq!(config.unwrap().require_norm_topk_prob().unwrap(), set);
    }

    #[test]
    fn wrong_types_name_the_key_and_the_value() {
        for (key, value) in [
            ("num_hidden_layers", json!("six")),
            ("hidden_size", json!(-1)),
            ("tie_word_embeddings", json!(1)),
            ("mlp_only_layers", json!([0.5])),
            ("decoder_sparse_step", json!(0)),
            ("num_experts", json!(70000)),
            ("text_config", json!([1])),
            ("quantization_config", json!("fp8")),
        ] {
            let mut config = json!({ "model_type": "qwen3_moe", "num_hidden_layers": 4 });
            config[key] = value.clone();
            let error = parse(&config).unwrap_err();
            assert_eq!(error.kind(), "config-inconsistent");
            let text = error.to_string();
            assert!(text.contains(key) && text.contains(&value.to_string()), "{text}");
        }
        let twice = parse(&json!({ "num_experts": 2, "n_routed_experts": 3 })).unwrap_err();
        assert!(twice.to_string().contains("num_experts is 2"), "{twice}");
        assert!(CheckpointConfig::parse(b"[]", Path::new("c")).is_err());
        assert!(CheckpointConfig::parse(b"", Path::new("c")).is_err());
    }

    #[test]
    fn quantization_is_found_where_it_stands() {
        let scheme = |weights: Value| {
            json!({ "quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": { "group_0": { "weights": weights } } })
        };
        let int4 = scheme(json!({ "num_bits": 4, "type": "int", "strategy": "group",
            "group_size": 32, "symmetric": true, "actorder": null }));
        let wanted = Quantization::PackQuantized {
            bits: 4,
            group: Some(32),
            symmetric: true,
            act_order: false,
        };
        for config in [
            json!({ "quantization_config": int4 }),
            json!({ "text_config": {}, "quantization_config": int4 }),
            json!({ "text_config": { "quantization_config": int4 } }),
        ] {
            assert_eq!(parse(&config).unwrap().quantization, wanted);
        }
        let odd = scheme(json!({ "num_bits": 8, "strategy": "channel", "symmetric": false,
            "actorder": "group" }));
        let odd = parse(&json!({ "quantization_config": odd })).unwrap().quantization;
        let wanted =
            Quantization::PackQuantized { bits: 8, group: None, symmetric: false, act_order: true };
        assert_eq!(odd, wanted);
        for (config, wanted) in [
            (json!({ "quant_method": "fp8" }), Quantization::Fp8 { block: None }),
            (
                json!({ "quant_method": "fp8", "weight_block_size": [64, 32] }),
                Quantization::Fp8 { block: Some([64, 32]) },
            ),
            (json!({ "quant_method": "awq" }), Quantization::Other("awq".to_owned())),
        ] {
            let config = parse(&json!({ "quantization_config": config })).unwrap();
            assert_eq!(config.quantization, wanted);
        }
        for bad in [
            json!({ "quant_method": "fp8", "weight_block_size": [128] }),
            json!({ "quant_method": "fp8", "weight_block_size": [128, 0] }),
            json!({ "quant_method": 8 }),
            scheme(json!({ "num_bits": 4, "strategy": "group" })),
            scheme(json!({ "strategy": "channel" })),
            scheme(json!(7)),
        ] {
            let error = parse(&json!({ "quantization_config": bad })).unwrap_err();
            assert!(error.to_string().contains("quantization_config."), "{error}");
        }
    }
}
