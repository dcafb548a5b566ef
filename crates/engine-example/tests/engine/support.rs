//! A model folder read whole into memory, and the plainest experts there can be: the twin
//! that the tier's own path is compared with.

use engine_example::EngineError;
use engine_example::config::ModelConfig;
use engine_example::linear::Linear;
use engine_example::models::{MoeCall, Qwen3Moe};
use engine_example::weights::{SharedBytes, SpineWeights, StoredTensor, WeightFormat};
use expert_tier::pool::Dtype;
use safetensors::SafeTensors;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The committed Qwen3-MoE checkpoints.
pub(crate) const FIXTURES: [&str; 6] = [
    "qwen3moe-f32",
    "qwen3moe-bf16",
    "qwen3moe-edge-f16-sharded",
    "qwen3moe-fp8",
    "qwen3moe-int4",
    "qwen3moe-yarn-bf16",
];

pub(crate) fn data_path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(relative)
}

pub(crate) fn fixture_dir(name: &str) -> PathBuf {
    data_path("fixtures").join(name)
}

pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every tensor of a model folder.
pub(crate) struct Checkpoint {
    pub(crate) config: ModelConfig,
    pub(crate) weights: SpineWeights,
}

impl Checkpoint {
    pub(crate) fn open(dir: &Path) -> Self {
        let text: Map<String, Value> = read_json(&dir.join("config.json"));
        let mut tensors = BTreeMap::new();
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name.starts_with("model") && name.ends_with(".safetensors") {
                let bytes = std::fs::read(&path).unwrap();
                for (name, view) in SafeTensors::deserialize(&bytes).unwrap().iter() {
                    let name = name.strip_prefix("model.").unwrap_or(name).to_owned();
                    // Tensors that no layer asks for may have any type.
                    let Some(dtype) = Dtype::from_safetensors(&view.dtype().to_string()) else {
                        continue;
                    };
                    let bytes = SharedBytes::new(view.data().to_vec());
                    tensors
                        .insert(name, StoredTensor { dtype, shape: view.shape().to_vec(), bytes });
                }
            }
        }
        Self {
            config: ModelConfig::qwen3_moe(&text).unwrap(),
            weights: SpineWeights::new(
                tensors,
                weight_format(&text),
                engine_example::kernels::Isa::detect(),
            ),
        }
    }

    pub(crate) fn decoder(&self) -> Qwen3Moe {
        Qwen3Moe::new(self.config.clone(), &self.weights).unwrap()
    }

    pub(crate) fn experts(&self) -> PlainExperts {
        let (hidden, width) = (self.config.hidden_size, self.config.moe_intermediate_size);
        let mut experts = BTreeMap::new();
        for layer in 0..self.config.num_hidden_layers {
            for index in 0..self.config.num_experts {
                if !self.config.is_moe_layer(usize::from(layer)) {
                    continue;
                }
                let linear = |part: &str, rows, cols| {
                    let name = format!("layers.{layer}.mlp.experts.{index}.{part}_proj");
                    self.weights.linear(&name, rows, cols).unwrap()
                };
                let parts = [
                    linear("gate", width, hidden),
                    linear("up", width, hidden),
                    linear("down", hidden, width),
                ];
                experts.insert((layer, u16::try_from(index).unwrap()), parts);
            }
        }
        PlainExperts { experts }
    }
}

fn weight_format(text: &Map<String, Value>) -> WeightFormat {
    let quantization = text.get("quantization_config").unwrap_or(&Value::Null);
    let size = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let block = quantization["weight_block_size"].as_array().map(|b| [size(&b[0]), size(&b[1])]);
    let group = &quantization["config_groups"]["group_0"]["weights"]["group_size"];
    WeightFormat { fp8_block: block, int4_group: (!group.is_null()).then(|| size(group)) }
}

/// Gate, up and down of every expert.
pub(crate) struct PlainExperts {
    experts: BTreeMap<(u16, u16), [Linear; 3]>,
}

impl PlainExperts {
    /// Adds each token's weighted expert outputs to `out`, one expert at a time.
    pub(crate) fn run(&self, call: &MoeCall<'_>, out: &mut [f32]) -> Result<(), EngineError> {
        let hidden = out.len() / call.routes.len();
        for (token, routed) in call.routes.iter().enumerate() {
            let rows = token * hidden..(token + 1) * hidden;
            for (index, weight) in routed.iter() {
                let [gate, up, down] = &self.experts[&(call.layer, index)];
                let x = &call.x[rows.clone()];
                let mut inner = vec![0.0; gate.weight().rows()];
                let mut upper = inner.clone();
                gate.apply(x, &mut inner);
                up.apply(x, &mut upper);
                for (g, u) in inner.iter_mut().zip(&upper) {
                    *g = *g / (1.0 + (-*g).exp()) * u;
                }
                let mut y = vec![0.0; hidden];
                down.apply(&inner, &mut y);
                for (out, y) in out[rows.clone()].iter_mut().zip(&y) {
                    *out += weight * y;
                }
            }
        }
        Ok(())
    }
}

/// The recorded tensors of a reference run.
pub(crate) struct Golden {
    bytes: Vec<u8>,
    pub(crate) info: Value,
}

impl Golden {
    pub(crate) fn open(dir: &Path) -> Self {
        Self {
            bytes: std::fs::read(dir.join("golden.safetensors")).unwrap(),
            info: read_json(&dir.join("golden.json")),
        }
    }

    /// Rows of a recorded f32 tensor.
    pub(crate) fn rows(&self, name: &str) -> Vec<Vec<f32>> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(view.dtype(), safetensors::Dtype::F32, "{name}");
        let values: Vec<f32> =
            view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        values.chunks(*view.shape().last().unwrap()).map(<[f32]>::to_vec).collect()
    }

    /// A list of ids in golden.json.
    pub(crate) fn ids(&self, key: &str) -> Vec<u32> {
        serde_json::from_value(self.info[key].clone()).unwrap()
    }

    /// Prompt and continuation without the last token: what the full forward saw.
    pub(crate) fn full_input(&self) -> Vec<u32> {
        let mut ids = self.ids("input_ids");
        ids.extend(self.ids("greedy_ids"));
        ids.pop();
        ids
    }
}

/// The largest difference of two tables of one shape.
pub(crate) fn max_difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    let mut max = 0.0_f32;
    for (a, b) in a.iter().zip(b) {
        assert_eq!(a.len(), b.len());
        for (a, b) in a.iter().zip(b) {
            let difference = (a - b).abs();
            assert!(!difference.is_nan());
            max = max.max(difference);
        }
    }
    max
}

pub(crate) fn argmax(row: &[f32]) -> u32 {
    let best = (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best });
    u32::try_from(best.unwrap()).unwrap()
}
