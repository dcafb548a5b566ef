use super::super::config::{CheckpointConfig, Family};
use crate::error::TierError;
use regex::Regex;
use serde_json::{Map, Value};

/// Bytes of tensors: `data` is what a forward pass reads, `shapes` is what only says how large a
/// packed weight is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tally {
    pub(super) data: u128,
    pub(super) shapes: u128,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, more: Self) {
        self.data += more.data;
        self.shapes += more.shapes;
    }
}

impl std::iter::Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |mut sum, tally| {
            sum += tally;
            sum
        })
    }
}

/// How linear layers are stored.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Form {
    Plain,
    /// One byte a weight; a scale for each block.
    Fp8 {
        block: [u64; 2],
        scale_bytes: u64,
    },
    /// compressed-tensors `pack-quantized`: 32-bit words along the row, a scale of the model's
    /// type a group (a row without groups), and the shape as two integers.
    Packed {
        bits: u64,
        group: Option<u64>,
        shape_bytes: u64,
    },
    /// Two weights a byte, one scale byte for each group of a row.
    Mxfp4 {
        group: u64,
    },
}

/// The stored form of every weight of a checkpoint, by its config.
#[derive(Debug)]
pub(super) struct Stored {
    /// Bytes of an element that is not quantised.
    pub(super) element_bytes: u64,
    form: Form,
    /// Modules that stay as they are.
    ignored: Vec<Pattern>,
    experts_only: bool,
}

#[derive(Debug)]
enum Pattern {
    Name(String),
    Regex(Regex),
}

impl Stored {
    pub(super) fn of(config: &CheckpointConfig) -> Result<Self, TierError> {
        let unsupported = |thing: &str, reason: String| TierError::Unsupported {
            path: config.path.clone(),
            thing: thing.to_owned(),
            reason,
        };
        let element_bytes = match config.dtype.as_deref().unwrap_or("bfloat16") {
            "bfloat16" | "float16" => 2,
            "float32" => 4,
            other => {
                let reason = format!("is {other:?}, wanted bfloat16, float16 or float32");
                return Err(unsupported("torch_dtype", reason));
            }
        };
        let quant = &config.quantization_config;
        let form = form(config, quant).map_err(|why| unsupported("quantization_config", why))?;
        let mut ignored = Vec::new();
        for key in ["ignore", "modules_to_not_convert"] {
            let names = quant.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            for name in names.iter().filter_map(Value::as_str) {
                ignored.push(match name.strip_prefix("re:") {
                    None => Pattern::Name(name.to_owned()),
                    // As `re.match` of the library that writes them: from the start, to no end.
                    Some(text) => Regex::new(&format!("^(?:{text})"))
                        .map(Pattern::Regex)
                        .map_err(|error| unsupported(key, error.to_string()))?,
                });
            }
        }
        // The latent projections of Kimi K3 are in no list, and stored as BF16.
        let experts_only = config.family == Family::KimiK3;
        Ok(Self { element_bytes, form, ignored, experts_only })
    }

    /// Elements that are never quantised: norms, routers, biases, embeddings.
    pub(super) fn plain(&self, elements: u64) -> Tally {
        bytes(u128::from(elements) * u128::from(self.element_bytes))
    }

    /// The same, stored as F32 whatever the model's type.
    pub(super) fn f32(&self, elements: u64) -> Tally {
        bytes(u128::from(elements) * 4)
    }

    /// The weight of the linear layer `module` (its name without `.weight` and without a
    /// wrapper's prefix), `[rows, cols]`.
    pub(super) fn linear(&self, module: &str, rows: u64, cols: u64) -> Tally {
        let (wide, form) = (u128::from(rows), &self.form);
        let plain = || self.plain(rows.saturating_mul(cols));
        if self.ignored.iter().any(|pattern| pattern.matches(module))
            || (self.experts_only && !module.contains(".experts."))
        {
            return plain();
        }
        match *form {
            Form::Plain => plain(),
            // Every converter leaves the head alone.
            Form::Fp8 { .. } if module == "lm_head" => plain(),
            Form::Fp8 { block: [down, across], scale_bytes } => {
                let scales = u128::from(rows.div_ceil(down)) * u128::from(cols.div_ceil(across));
                bytes(wide * u128::from(cols) + scales * u128::from(scale_bytes))
            }
            Form::Packed { bits, group, shape_bytes } => {
                let words = (u128::from(cols) * u128::from(bits)).div_ceil(32);
                let scales = group.map_or(1, |group| cols.div_ceil(group));
                let scale_bytes = u128::from(scales) * u128::from(self.element_bytes);
                Tally { data: wide * (words * 4 + scale_bytes), shapes: shape_bytes.into() }
            }
            Form::Mxfp4 { group } => {
                bytes(wide * u128::from(cols.div_ceil(2) + cols.div_ceil(group)))
            }
        }
    }
}

impl Pattern {
    fn matches(&self, module: &str) -> bool {
        match self {
            Self::Name(name) => {
                // Names of a wrapper's text model carry its prefix.
                name == module || name.strip_prefix("language_model.") == Some(module)
            }
            Self::Regex(regex) => regex.is_match(module),
        }
    }
}

fn bytes(data: u128) -> Tally {
    Tally { data, shapes: 0 }
}

/// The form, or what about it is not known.
fn form(config: &CheckpointConfig, quant: &Map<String, Value>) -> Result<Form, String> {
    if quant.is_empty() {
        return Ok(Form::Plain);
    }
    let text = |key: &str| quant.get(key).and_then(Value::as_str).unwrap_or_default();
    match (text("quant_method"), text("format")) {
        ("fp8", _) => {
            let block = quant.get("weight_block_size").and_then(Value::as_array);
            let sides: Option<Vec<u64>> = block.and_then(|sides| {
                sides.iter().map(|side| side.as_u64().filter(|&side| side > 0)).collect()
            });
            let Some(&[down, across]) = sides.as_deref() else {
                return Err(
                    "FP8 without weight_block_size: the size of its scales is not known".to_owned()
                );
            };
            // Qwen's files have BF16 scales, DeepSeek's and Kimi's F32.
            let scale_bytes = if config.family == Family::Qwen3Moe { 2 } else { 4 };
            Ok(Form::Fp8 { block: [down, across], scale_bytes })
        }
        ("compressed-tensors", format) => compressed(config, quant, format),
        (method, _) => Err(format!("quant_method {method:?}: the stored size is not known")),
    }
}

fn compressed(
    config: &CheckpointConfig,
    quant: &Map<String, Value>,
    format: &str,
) -> Result<Form, String> {
    let groups = quant.get("config_groups").and_then(Value::as_object);
    let mut schemes = groups.into_iter().flat_map(Map::values).filter_map(|g| g.get("weights"));
    let first = schemes.next().filter(|first| first.is_object());
    let Some(weights) = first.filter(|first| schemes.all(|other| other == *first)) else {
        return Err(format!("{format}: one weight scheme for all modules is wanted"));
    };
    let number = |key: &str| weights.get(key).and_then(Value::as_u64).filter(|&n| n > 0);
    let group = number("group_size");
    match format {
        "pack-quantized" => {
            if weights.get("symmetric").and_then(Value::as_bool) == Some(false) {
                return Err(format!("{format}: zero points are not known"));
            }
            let bits = number("num_bits").filter(|&bits| bits <= 32);
            let bits = bits.ok_or_else(|| format!("{format}: num_bits must be 1 to 32"))?;
            let by_group = weights.get("strategy").and_then(Value::as_str) == Some("group");
            if by_group && group.is_none() {
                return Err(format!("{format}: group_size is needed"));
            }
            // The writer uses I64; Kimi's own files have I32.
            let shape_bytes = if config.family == Family::Qwen3Moe { 16 } else { 8 };
            Ok(Form::Packed { bits, group: group.filter(|_| by_group), shape_bytes })
        }
        "mxfp4-pack-quantized" => Ok(Form::Mxfp4 { group: group.unwrap_or(32) }),
        _ => Err(format!("compressed-tensors {format:?}: the stored size is not known")),
    }
}
