//! Which tensors there are, and what fills them.

use super::random::{self, Fill};
use super::shape::{SynthFamily, SynthShape};
use super::{SynthDtype, config, layers, tokenizer};
use crate::error::EngineError;
use expert_tier::TierError;
use expert_tier::pack::{PackExpert, PackFile, PackPart, PackSource, PackTensor};
use expert_tier::pool::{Dtype, PartRole};
use router_trace::ExpertId;
use serde_json::json;

/// Columns that share a scale.
pub(super) const GROUP: u32 = 32;
/// Rows and columns of a block of FP8 weights, which shares a scale.
pub(super) const BLOCK: u32 = 128;
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

/// Weights and scales of gate, up and down.
const ROLES: [(PartRole, PartRole); 3] = [
    (PartRole::Gate, PartRole::GateScale),
    (PartRole::Up, PartRole::UpScale),
    (PartRole::Down, PartRole::DownScale),
];
/// Which of them is down: its shape is the others' turned.
const DOWN: usize = 2;

impl Model {
    pub(super) fn new(
        shape: SynthShape,
        dtype: SynthDtype,
        seed: u64,
    ) -> Result<Self, EngineError> {
        let widths =
            [("hidden", shape.expert_hidden()), ("moe_intermediate", shape.moe_intermediate)];
        for (key, cols) in widths {
            let grouped = matches!(dtype, SynthDtype::Int4 | SynthDtype::Mxfp4);
            if grouped && !cols.is_multiple_of(GROUP) {
                let problem = format!("is no multiple of the group of {GROUP} 4-bit weights");
                return Err(EngineError::config(key, &cols, problem));
            }
        }
        let mut model = Self { shape, dtype, seed, spine: Vec::new() };
        let mut spine = vec![model.embedding()];
        for layer in 0..model.shape.layers {
            spine.extend(layers::layer(&model.shape, layer));
        }
        let (vocab, hidden, prefix) = (model.shape.vocab, model.shape.hidden, model.shape.prefix());
        spine.push(norm(format!("{prefix}model.norm.weight"), hidden));
        spine.extend(layers::further(&model.shape));
        spine.push(linear(format!("{prefix}lm_head.weight"), vocab, hidden));
        model.spine = spine.into_iter().flat_map(|tensor| model.as_stored(tensor)).collect();
        Ok(model)
    }

    /// A dense tensor in the form of this model. Published FP8 checkpoints keep embedding, head,
    /// norms and routers; Kimi K3 keeps all that is dense.
    fn as_stored(&self, tensor: Tensor) -> Vec<Tensor> {
        let projection = ["_proj.weight", "_proj_with_mqa.weight"];
        let projection = projection.iter().any(|ending| tensor.name.ends_with(ending));
        let experts_only = matches!(self.shape.family, SynthFamily::KimiK3(..));
        match self.dtype {
            SynthDtype::Fp8 if projection && !experts_only => self.in_blocks(tensor).into(),
            _ => vec![tensor],
        }
    }

    /// A weight as FP8 in blocks, and the scales of its blocks.
    fn in_blocks(&self, tensor: Tensor) -> [Tensor; 2] {
        // Sizes are 32 bits wide in a shape.
        let inputs = tensor.shape.last().map_or(1, |&cols| cols as u32);
        let scale = random::block_scale_for(std_for(inputs));
        let (dtype, fill) = match self.shape.family {
            SynthFamily::Qwen3Moe => (Dtype::Bf16, Fill::Scales { scale }),
            _ => (Dtype::F32, Fill::SingleScales { scale }),
        };
        let scales = Tensor {
            name: format!("{}_scale_inv", tensor.name),
            dtype,
            shape: tensor.shape.iter().map(|size| size.div_ceil(BLOCK.into())).collect(),
            fill,
        };
        [Tensor { dtype: Dtype::F8E4m3, fill: Fill::Eights, ..tensor }, scales]
    }

    fn embedding(&self) -> Tensor {
        let name = format!("{}model.embed_tokens.weight", self.shape.prefix());
        let fill = Fill::Normal { mean: 0.0, std: 1.0 };
        Tensor { fill, ..linear(name, self.shape.vocab, self.shape.hidden) }
    }

    pub(super) fn shape(&self) -> &SynthShape {
        &self.shape
    }

    pub(super) fn n_experts(&self) -> usize {
        self.moe_layers().count() * usize::from(self.shape.experts)
    }

    fn moe_layers(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.shape.layers).filter(|&layer| self.shape.is_moe(layer))
    }

    /// Bytes of what is served of one expert.
    pub(super) fn expert_bytes(&self) -> u64 {
        let tensors = (0..ROLES.len()).flat_map(|which| self.projection("", which));
        tensors.map(|(tensor, _)| tensor.bytes()).sum()
    }

    pub(super) fn spine_bytes(&self) -> u64 {
        self.spine.iter().map(Tensor::bytes).sum()
    }

    /// Rows and columns of gate, up or down.
    fn projection_shape(&self, which: usize) -> [u32; 2] {
        let (stream, inner) = (self.shape.expert_hidden(), self.shape.moe_intermediate);
        if which == DOWN { [stream, inner] } else { [inner, stream] }
    }

    /// Weights and scales of gate, up or down of the expert whose tensors begin with `expert`, with
    /// whether they are scales.
    fn projection(&self, expert: &str, which: usize) -> Vec<(Tensor, bool)> {
        let [rows, cols] = self.projection_shape(which);
        let projection = self.shape.expert_names().1[which];
        let name = |suffix: &str| format!("{expert}{projection}.{suffix}");
        let tensor = |suffix: &str, dtype, cols: u32, fill| Tensor {
            name: name(suffix),
            dtype,
            shape: vec![rows.into(), cols.into()],
            fill,
        };
        match self.dtype {
            SynthDtype::Bf16 => vec![(linear(name("weight"), rows, cols), false)],
            SynthDtype::Fp8 => {
                let [codes, scales] = self.in_blocks(linear(name("weight"), rows, cols));
                vec![(codes, false), (scales, true)]
            }
            SynthDtype::Int4 => {
                let scale = random::scale_for(std_for(cols));
                vec![
                    (tensor("weight_packed", Dtype::I32, cols / 8, Fill::Codes), false),
                    (
                        tensor("weight_scale", Dtype::Bf16, cols / GROUP, Fill::Scales { scale }),
                        true,
                    ),
                ]
            }
            SynthDtype::Mxfp4 => {
                let code = random::power_for(std_for(cols));
                vec![
                    (tensor("weight_packed", Dtype::U8, cols / 2, Fill::Bits), false),
                    (tensor("weight_scale", Dtype::U8, cols / GROUP, Fill::Powers { code }), true),
                ]
            }
        }
    }

    /// What the tensors of an expert begin with.
    fn expert_prefix(&self, layer: u16, index: u16) -> String {
        let (prefix, block) = (self.shape.prefix(), self.shape.expert_names().0);
        format!("{prefix}model.layers.{layer}.{block}.experts.{index}.")
    }

    /// All tensors, as a checkpoint has them: layer by layer, the experts of a layer behind its
    /// first tensor.
    pub(super) fn checkpoint(&self) -> Vec<Tensor> {
        let mut tensors = Vec::new();
        let mut layers = 0..self.shape.layers;
        // An expert's projections by name.
        let mut projections = [0, 1, DOWN];
        projections.sort_by_key(|&which| self.shape.expert_names().1[which]);
        for tensor in &self.spine {
            tensors.push(tensor.clone());
            if !tensor.name.ends_with(".input_layernorm.weight") {
                continue;
            }
            let Some(layer) = layers.next().filter(|&layer| self.shape.is_moe(layer)) else {
                continue;
            };
            for index in 0..self.shape.experts {
                let expert = self.expert_prefix(layer, index);
                for which in projections {
                    let weights = self.projection(&expert, which);
                    tensors.extend(weights.into_iter().map(|(tensor, _)| tensor));
                    if self.dtype == SynthDtype::Int4 {
                        tensors.push(self.weight_shape(&expert, which));
                    }
                }
            }
        }
        tensors
    }

    fn weight_shape(&self, expert: &str, which: usize) -> Tensor {
        let projection = self.shape.expert_names().1[which];
        Tensor {
            name: format!("{expert}{projection}.weight_shape"),
            dtype: Dtype::I64,
            shape: vec![2],
            fill: Fill::Pair(self.projection_shape(which).map(u64::from)),
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
            ("config.json", pretty(&config::config(&self.shape, self.dtype, end))),
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

pub(super) fn linear(name: String, rows: u32, cols: u32) -> Tensor {
    let fill = Fill::Normal { mean: 0.0, std: std_for(cols) };
    Tensor { name, dtype: Dtype::Bf16, shape: vec![rows.into(), cols.into()], fill }
}

pub(super) fn norm(name: String, width: u32) -> Tensor {
    let fill = Fill::Normal { mean: 1.0, std: 0.1 };
    Tensor { name, dtype: Dtype::Bf16, shape: vec![width.into()], fill }
}

/// Single-precision values around `mean`.
pub(super) fn floats(name: String, shape: Vec<u32>, mean: f32, std: f32) -> Tensor {
    let shape = shape.into_iter().map(u64::from).collect();
    Tensor { name, dtype: Dtype::F32, shape, fill: Fill::Singles { mean, std } }
}

impl PackSource for Model {
    fn identity(&self) -> Vec<String> {
        vec![format!("random weights, seed {}, {:?}, {:?}", self.seed, self.dtype, self.shape)]
    }

    fn experts(&self) -> Vec<PackExpert> {
        let mut parts = Vec::new();
        for (which, (weight, scale)) in ROLES.into_iter().enumerate() {
            for (tensor, is_scale) in self.projection("", which) {
                let role = if is_scale { scale } else { weight };
                // Sizes are 32 bits wide in a shape.
                let (rows, cols) = (tensor.shape[0] as u32, tensor.shape[1] as u32);
                parts.push(PackPart { role, dtype: tensor.dtype, rows, cols });
            }
        }
        let ids = self.moe_layers().flat_map(|layer| {
            (0..self.shape.experts).map(move |index| ExpertId::new(layer, index))
        });
        ids.map(|id| PackExpert { id, parts: parts.clone() }).collect()
    }

    fn read_part(&self, id: ExpertId, role: PartRole, out: &mut [u8]) -> Result<(), TierError> {
        let expert = self.expert_prefix(id.layer, id.index);
        for (which, (weight, scale)) in ROLES.into_iter().enumerate() {
            for (tensor, is_scale) in self.projection(&expert, which) {
                if role == (if is_scale { scale } else { weight }) {
                    self.fill(&tensor, 0, out);
                }
            }
        }
        Ok(())
    }

    fn spine(&self) -> Vec<PackTensor> {
        let canonical = |tensor: &Tensor| {
            let name = tensor.name.strip_prefix(self.shape.prefix()).unwrap_or(&tensor.name);
            name.strip_prefix("model.").unwrap_or(name).to_owned()
        };
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
