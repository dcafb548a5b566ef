//! Which tensors there are, and what fills them.

use super::random::{self, Fill};
use super::shape::SynthShape;
use super::{SynthDtype, tokenizer};
use crate::error::EngineError;
use expert_tier::TierError;
use expert_tier::pack::{PackExpert, PackFile, PackPart, PackSource, PackTensor};
use expert_tier::pool::{Dtype, PartRole};
use router_trace::ExpertId;
use serde_json::json;

/// Columns that share a scale.
pub(super) const GROUP: u32 = 32;
/// A weight's spread is this over the root of its inputs: a little above what keeps activations
/// at 1, as SiLU and the mean over experts take some away.
const GAIN: f32 = 1.2;

/// One tensor and what fills it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Tensor {
    /// The name in a checkpoint.
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    fill: Fill,
}

impl Tensor {
    pub(super) fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.dtype.size_bytes()
    }
}

#[derive(Debug)]
pub(super) struct Model {
    shape: SynthShape,
    dtype: SynthDtype,
    seed: u64,
    /// Not the experts, in the order of a checkpoint.
    spine: Vec<Tensor>,
}

const PROJECTIONS: [(&str, PartRole, PartRole); 3] = [
    ("gate_proj", PartRole::Gate, PartRole::GateScale),
    ("up_proj", PartRole::Up, PartRole::UpScale),
    ("down_proj", PartRole::Down, PartRole::DownScale),
];

impl Model {
    pub(super) fn new(
        shape: SynthShape,
        dtype: SynthDtype,
        seed: u64,
    ) -> Result<Self, EngineError> {
        for (key, cols) in [("hidden", shape.hidden), ("moe_intermediate", shape.moe_intermediate)]
        {
            if dtype == SynthDtype::Int4 && !cols.is_multiple_of(GROUP) {
                let problem = format!("is no multiple of the group of {GROUP} 4-bit weights");
                return Err(EngineError::config(key, &cols, problem));
            }
        }
        let mut model = Self { shape, dtype, seed, spine: Vec::new() };
        let mut spine = vec![model.embedding()];
        for layer in 0..model.shape.layers {
            spine.extend(model.layer(layer));
        }
        spine.push(norm("model.norm.weight".to_owned(), model.shape.hidden));
        let (vocab, hidden) = (model.shape.vocab, model.shape.hidden);
        spine.push(linear("lm_head.weight".to_owned(), vocab, hidden));
        model.spine = spine;
        Ok(model)
    }

    fn embedding(&self) -> Tensor {
        let name = "model.embed_tokens.weight".to_owned();
        let fill = Fill::Normal { mean: 0.0, std: 1.0 };
        Tensor { fill, ..linear(name, self.shape.vocab, self.shape.hidden) }
    }

    fn layer(&self, layer: u16) -> Vec<Tensor> {
        let SynthShape { hidden, heads, kv_heads, head_dim, experts, .. } = self.shape;
        let name = |tensor: &str| format!("model.layers.{layer}.{tensor}.weight");
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
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

    pub(super) fn shape(&self) -> &SynthShape {
        &self.shape
    }

    pub(super) fn n_experts(&self) -> usize {
        usize::from(self.shape.layers) * usize::from(self.shape.experts)
    }

    /// Bytes of what is served of one expert.
    pub(super) fn expert_bytes(&self) -> u64 {
        let tensors = PROJECTIONS.iter().flat_map(|&(name, ..)| self.projection("", name));
        tensors.map(|(tensor, _)| tensor.bytes()).sum()
    }

    pub(super) fn spine_bytes(&self) -> u64 {
        self.spine.iter().map(Tensor::bytes).sum()
    }

    /// Weights and scales of one projection, with whether they are scales.
    fn projection(&self, expert: &str, projection: &str) -> Vec<(Tensor, bool)> {
        let SynthShape { hidden, moe_intermediate: inner, .. } = self.shape;
        let (rows, cols) =
            if projection == "down_proj" { (hidden, inner) } else { (inner, hidden) };
        let name = |suffix: &str| format!("{expert}{projection}.{suffix}");
        let weight = linear(name("weight"), rows, cols);
        match self.dtype {
            SynthDtype::Bf16 => vec![(weight, false)],
            SynthDtype::Int4 => {
                let scale = random::scale_for(std_for(cols));
                let packed = Tensor {
                    name: name("weight_packed"),
                    dtype: Dtype::I32,
                    shape: vec![rows.into(), (cols / 8).into()],
                    fill: Fill::Codes,
                };
                let scales = Tensor {
                    name: name("weight_scale"),
                    dtype: Dtype::Bf16,
                    shape: vec![rows.into(), (cols / GROUP).into()],
                    fill: Fill::Scales { scale },
                };
                vec![(packed, false), (scales, true)]
            }
        }
    }

    /// All tensors, as a checkpoint has them: layer by layer, by name.
    pub(super) fn checkpoint(&self) -> Vec<Tensor> {
        let mut tensors = Vec::new();
        for tensor in &self.spine {
            tensors.push(tensor.clone());
            let prefix = tensor.name.strip_suffix("input_layernorm.weight");
            let Some(prefix) = prefix else { continue };
            for index in 0..self.shape.experts {
                let expert = format!("{prefix}mlp.experts.{index}.");
                for projection in ["down_proj", "gate_proj", "up_proj"] {
                    let weights = self.projection(&expert, projection);
                    tensors.extend(weights.into_iter().map(|(tensor, _)| tensor));
                    if self.dtype == SynthDtype::Int4 {
                        tensors.push(self.weight_shape(&expert, projection));
                    }
                }
            }
        }
        tensors
    }

    fn weight_shape(&self, expert: &str, projection: &str) -> Tensor {
        let SynthShape { hidden, moe_intermediate: inner, .. } = self.shape;
        let pair = if projection == "down_proj" { [hidden, inner] } else { [inner, hidden] };
        Tensor {
            name: format!("{expert}{projection}.weight_shape"),
            dtype: Dtype::I64,
            shape: vec![2],
            fill: Fill::Pair(pair.map(u64::from)),
        }
    }

    /// Bytes of a tensor from `offset` on.
    pub(super) fn fill(&self, tensor: &Tensor, offset: u64, out: &mut [u8]) {
        let seed = random::tensor_seed(self.seed, &tensor.name);
        random::fill(tensor.fill, seed, offset, out);
    }

    /// Config, generation config, tokenizer.
    pub(super) fn small_files(&self) -> Vec<(&'static str, Vec<u8>)> {
        let vocab = self.shape.vocab;
        let end = tokenizer::end_of_text(vocab);
        let pretty = |value: &serde_json::Value| format!("{value:#}\n").into_bytes();
        let mut files = vec![
            ("config.json", pretty(&self.shape.config(self.dtype, end))),
            ("generation_config.json", pretty(&json!({ "do_sample": false, "eos_token_id": end }))),
        ];
        if let Some(tokenizer) = tokenizer::tokenizer(vocab) {
            files.push(("tokenizer.json", tokenizer.to_string().into_bytes()));
        }
        files
    }
}

fn std_for(inputs: u32) -> f32 {
    GAIN / (inputs as f32).sqrt()
}

fn linear(name: String, rows: u32, cols: u32) -> Tensor {
    let fill = Fill::Normal { mean: 0.0, std: std_for(cols) };
    Tensor { name, dtype: Dtype::Bf16, shape: vec![rows.into(), cols.into()], fill }
}

fn norm(name: String, width: u32) -> Tensor {
    let fill = Fill::Normal { mean: 1.0, std: 0.1 };
    Tensor { name, dtype: Dtype::Bf16, shape: vec![width.into()], fill }
}

impl PackSource for Model {
    fn identity(&self) -> Vec<String> {
        vec![format!("random weights, seed {}, {:?}, {:?}", self.seed, self.dtype, self.shape)]
    }

    fn experts(&self) -> Vec<PackExpert> {
        let mut parts = Vec::new();
        for (projection, weight, scale) in PROJECTIONS {
            for (tensor, is_scale) in self.projection("", projection) {
                let role = if is_scale { scale } else { weight };
                // Sizes are 32 bits wide in a shape.
                let (rows, cols) = (tensor.shape[0] as u32, tensor.shape[1] as u32);
                parts.push(PackPart { role, dtype: tensor.dtype, rows, cols });
            }
        }
        let layers = 0..self.shape.layers;
        let ids = layers.flat_map(|layer| {
            (0..self.shape.experts).map(move |index| ExpertId::new(layer, index))
        });
        ids.map(|id| PackExpert { id, parts: parts.clone() }).collect()
    }

    fn read_part(&self, id: ExpertId, role: PartRole, out: &mut [u8]) -> Result<(), TierError> {
        let expert = format!("model.layers.{}.mlp.experts.{}.", id.layer, id.index);
        for (projection, weight, scale) in PROJECTIONS {
            for (tensor, is_scale) in self.projection(&expert, projection) {
                if role == (if is_scale { scale } else { weight }) {
                    self.fill(&tensor, 0, out);
                }
            }
        }
        Ok(())
    }

    fn spine(&self) -> Vec<PackTensor> {
        let canonical =
            |tensor: &Tensor| tensor.name.strip_prefix("model.").unwrap_or(&tensor.name).to_owned();
        let tensors = self.spine.iter().map(|tensor| PackTensor {
            name: canonical(tensor),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
        });
        tensors.collect()
    }

    fn read_spine(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        self.fill(&self.spine[tensor], offset, out);
        Ok(())
    }

    fn files(&self) -> Result<Vec<PackFile>, TierError> {
        let files = self.small_files().into_iter();
        Ok(files.map(|(name, bytes)| PackFile { name: name.to_owned(), bytes }).collect())
    }

    fn check_unchanged(&self) -> Result<(), TierError> {
        Ok(())
    }
}
