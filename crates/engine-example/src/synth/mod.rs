//! Random-weight checkpoints with the shapes of real models: what a machine needs to be
//! measured with experts of the real size when the real weights are not at hand.
//!
//! The weights depend on the seed and the tensors' names only, not on threads, layout or depth:
//! the first layers of a shallow checkpoint are those of the deep one. They are scaled so that
//! activations stay near 1 and the router prefers some experts to others, token by token.

mod config;
mod layers;
mod model;
mod random;
mod shape;
mod shards;
#[cfg(test)]
mod tests;
mod tokenizer;

pub use shape::{K3Sizes, LatentSizes, SynthFamily, SynthShape};

use crate::error::EngineError;
use expert_tier::pack::{PackOptions, pack_from};
use model::Model;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// The form of the experts' weights; the rest is BF16 (gates of a recurrence are F32) but for FP8.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SynthDtype {
    /// BF16.
    #[default]
    Bf16,
    /// Packed 4-bit integers in groups of 32 (compressed-tensors `pack-quantized`).
    Int4,
    /// 4-bit floats with a power of two for each 32 (compressed-tensors `mxfp4-pack-quantized`).
    Mxfp4,
    /// E4M3 with a scale for each block of 128 x 128, as DeepSeek-V3 is published: the dense
    /// projections too, but for Kimi K3, of which only the experts are quantised. Scales are F32,
    /// Qwen3's BF16.
    Fp8,
}

/// What is written. Plain data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SynthOptions {
    /// Only so many layers; `None`: as many as the shape has.
    pub layers: Option<u16>,
    /// Only so many experts a layer; `None`: as many as the shape has.
    pub experts: Option<u16>,
    /// A smaller vocabulary; `None`: the shape's.
    pub vocab: Option<u32>,
    /// The form of the experts' weights.
    pub dtype: SynthDtype,
    /// What all weights follow from.
    pub seed: u64,
    /// Write a packed pool instead of safetensors shards. It can be continued when it was
    /// killed; shards begin anew.
    pub packed: bool,
    /// Threads that make and write weights; the files do not depend on it.
    pub threads: usize,
    /// The most tensor bytes in one shard.
    pub shard_bytes: u64,
}

impl SynthOptions {
    /// The most threads.
    pub const MAX_THREADS: usize = 64;
}

impl Default for SynthOptions {
    fn default() -> Self {
        Self {
            layers: None,
            experts: None,
            vocab: None,
            dtype: SynthDtype::Bf16,
            seed: 0,
            packed: false,
            threads: 4,
            shard_bytes: 5_000_000_000,
        }
    }
}

/// What was written.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SynthReport {
    /// Layers.
    pub layers: u16,
    /// Routed experts in all layers.
    pub experts: usize,
    /// Bytes of one expert.
    pub expert_bytes: u64,
    /// Bytes of all weights.
    pub weight_bytes: u64,
    /// Files that hold weights.
    pub files: usize,
    /// How long it took.
    pub seconds: f64,
}

/// Writes a random checkpoint into the folder `out`, which must be new, empty, or left over
/// from the same call; `progress(done, total)` is called in bytes of weights.
///
/// # Errors
///
/// `limit` or `config-inconsistent` for options that do not fit the shape, `output-refused` for
/// a folder that holds anything else, `disk-full` or `io` for writes that fail.
pub fn synth(
    shape: &SynthShape,
    options: &SynthOptions,
    out: &Path,
    mut progress: impl FnMut(u64, u64),
) -> Result<SynthReport, EngineError> {
    let begun = Instant::now();
    let limit = |what: &str, value: usize, problem: String| {
        Err(EngineError::Limit { what: what.to_owned(), value, problem })
    };
    if !(1..=SynthOptions::MAX_THREADS).contains(&options.threads) {
        let problem = format!("must be 1 to {}", SynthOptions::MAX_THREADS);
        return limit("threads", options.threads, problem);
    }
    if options.shard_bytes == 0 {
        return limit("shard bytes", 0, "must be above 0".to_owned());
    }
    let shape = shape.cut(options)?;
    let model = Model::new(shape, options.dtype, options.seed)?;
    let files = if options.packed {
        let options = PackOptions {
            threads: options.threads,
            spine_shard_bytes: options.shard_bytes,
            created_by: concat!("engine-example ", env!("CARGO_PKG_VERSION"), " synth").to_owned(),
            ..PackOptions::default()
        };
        pack_from(&model, out, &options, |step| progress(step.done_bytes, step.total_bytes))?;
        // The experts, and the spine's files.
        1 + usize::try_from(model.spine_bytes().div_ceil(options.spine_shard_bytes)).unwrap_or(1)
    } else {
        shards::write(&model, options, out, &mut progress)?
    };
    Ok(SynthReport {
        layers: model.shape().layers,
        experts: model.n_experts(),
        expert_bytes: model.expert_bytes(),
        weight_bytes: model.expert_bytes() * model.n_experts() as u64 + model.spine_bytes(),
        files,
        seconds: begun.elapsed().as_secs_f64(),
    })
}
