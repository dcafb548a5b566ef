//! A model folder read whole into memory, and the plainest experts there can be: the twin
//! that the tier's own path is compared with.

use engine_example::EngineError;
use engine_example::config::ModelConfig;
use engine_example::kernels::Activation;
use engine_example::linear::Linear;
use engine_example::models::{Decoder, MoeCall};
use engine_example::weights::{SharedBytes, SpineWeights, StoredTensor, WeightFormat};
use expert_tier::pool::{CheckpointConfig, Dtype};
use safetensors::SafeTensors;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The committed checkpoints.
pub(crate) const FIXTURES: [&str; 14] = [
    "deepseek-v3-f32",
    "deepseek-v3-bf16-mtp",
    "deepseek-v3-fp8",
    "deepseek-v3-noqlora-f16",
    "kimi-k2-bf16",
    "kimi-k2-int4",
    "kimi-k26-int4",
    "kimi-linear-bf16",
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
        let parsed = CheckpointConfig::open(&dir.join("config.json")).unwrap();
        let mut tensors = BTreeMap::new();
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name.starts_with("model") && name.ends_with(".safetensors") {
                let bytes = std::fs::read(&path).unwrap();
                for (name, view) in SafeTensors::deserialize(&bytes).unwrap().iter() {
                    let name = name.strip_prefix("language_model.").unwrap_or(name);
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
            config: ModelConfig::of_family(parsed.family, &parsed.text).unwrap(),
            weights: SpineWeights::new(
                tensors,
                weight_format(&parsed.quantization_config),
                engine_example::kernels::Isa::detect(),
            ),
        }
    }

    pub(crate) fn decoder(&self) -> Decoder {
        Decoder::new(self.config.clone(), &self.weights).unwrap()
    }

    pub(crate) fn experts(&self) -> PlainExperts {
        let moe = &self.config.moe;
        let [hidden, width] = self.config.expert_widths();
        let mut experts = BTreeMap::new();
        for &layer in &moe.layers {
            for index in 0..moe.num_experts {
                let prefix = format!("layers.{layer}.{}.experts.{index}", moe.block);
                let parts = self.feed_forward(&prefix, hidden, width);
                experts.insert((layer, u16::try_from(index).unwrap()), parts);
            }
        }
        PlainExperts { experts, activation: self.config.activation }
    }

    /// Gate, up and down, in either spelling.
    fn feed_forward(&self, prefix: &str, hidden: usize, width: usize) -> [Linear; 3] {
        let linear = |spellings: [&str; 2], rows, cols| {
            let stored = |name: &String| {
                let weight = |end: &str| self.weights.get(&format!("{name}.{end}")).is_some();
                weight("weight") || weight("weight_packed")
            };
            let names = spellings.map(|part| format!("{prefix}.{part}"));
            let name = names.iter().find(|name| stored(name)).unwrap();
            self.weights.linear(name, rows, cols).unwrap()
        };
        [
            linear(["gate_proj", "w1"], width, hidden),
            linear(["up_proj", "w3"], width, hidden),
            linear(["down_proj", "w2"], hidden, width),
        ]
    }

    /// Adds what the shared experts of `layer` make of `x [n, hidden]` to `out`.
    pub(crate) fn add_shared(&self, layer: u16, x: &[f32], out: &mut [f32]) {
        let (moe, hidden) = (&self.config.moe, self.config.hidden_size);
        if moe.shared_intermediate_size > 0 {
            let prefix = format!("layers.{layer}.{}.shared_experts", moe.block);
            let parts = self.feed_forward(&prefix, hidden, moe.shared_intermediate_size);
            for (x, out) in x.chunks_exact(hidden).zip(out.chunks_exact_mut(hidden)) {
                add_feed_forward(self.config.activation, &parts, 1.0, x, out);
            }
        }
    }
}

fn weight_format(quantization: &Map<String, Value>) -> WeightFormat {
    let size = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let block = quantization.get("weight_block_size").and_then(Value::as_array);
    let block = block.map(|b| [size(&b[0]), size(&b[1])]);
    let groups = quantization.get("config_groups").unwrap_or(&Value::Null);
    let group = &groups["group_0"]["weights"]["group_size"];
    WeightFormat { fp8_block: block, int4_group: (!group.is_null()).then(|| size(group)) }
}

/// Gate, up and down of every expert.
pub(crate) struct PlainExperts {
    experts: BTreeMap<(u16, u16), [Linear; 3]>,
    activation: Activation,
}

impl PlainExperts {
    /// Adds each token's weighted expert outputs to `out`, one expert at a time.
    pub(crate) fn run(&self, call: &MoeCall<'_>, out: &mut [f32]) -> Result<(), EngineError> {
        let hidden = out.len() / call.routes.len();
        for (token, routed) in call.routes.iter().enumerate() {
            let rows = token * hidden..(token + 1) * hidden;
            for (index, weight) in routed.iter() {
                let parts = &self.experts[&(call.layer, index)];
                let (x, out) = (&call.x[rows.clone()], &mut out[rows.clone()]);
                add_feed_forward(self.activation, parts, weight, x, out);
            }
        }
        Ok(())
    }
}

/// `out += weight · down(act(gate x, up x))` for one token.
fn add_feed_forward(
    activation: Activation,
    [gate, up, down]: &[Linear; 3],
    weight: f32,
    x: &[f32],
    out: &mut [f32],
) {
    let mut inner = gate.product(x);
    match activation {
        Activation::Silu => {
            for (g, u) in inner.iter_mut().zip(&up.product(x)) {
                *g = *g / (1.0 + (-*g).exp()) * u;
            }
        }
        other => other.apply(&mut inner, &up.product(x)),
    }
    for (out, y) in out.iter_mut().zip(&down.product(&inner)) {
        *out += weight * y;
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
