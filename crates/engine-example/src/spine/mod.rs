//! The parts of a decoder that every token uses, written as candle operations on slices.
//!
//! One decode step is about a hundred small operations, so each of them is one pass over
//! one slice: a chain of general tensor operations would spend its time allocating.

mod attention;
mod dense_mlp;
mod kda;
mod kv_cache;
mod mla;
mod norm;
mod rope;

pub use attention::{AttentionShape, GroupedQueryAttention};
pub use dense_mlp::DenseMlp;
pub use kda::{DeltaAttention, DeltaConfig, DeltaState};
pub use kv_cache::{BLOCK_POSITIONS, KvCache, RowCache};
pub use mla::{LatentAttention, LatentConfig, LatentShape};
pub use norm::RmsNorm;
pub use rope::{RopeConfig, RopeScaling, Rotary, Rotation, mla_attention_scale};

use candle_core::{CpuStorage, Layout, Tensor};

/// The values that `layout` selects, if they lie together as f32.
pub(crate) fn f32_slice<'a>(
    storage: &'a CpuStorage,
    layout: &Layout,
) -> candle_core::Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<f32>()?[start..end]),
        None => candle_core::bail!("values do not lie together: {:?}", layout.stride()),
    }
}

/// Lends the values of a contiguous f32 CPU tensor, without a copy.
pub(crate) fn with_f32<T>(
    tensor: &Tensor,
    use_values: impl FnOnce(&[f32]) -> T,
) -> candle_core::Result<T> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        candle_core::Storage::Cpu(storage) => Ok(use_values(f32_slice(storage, layout)?)),
        _ => candle_core::bail!("the dense part runs on the CPU"),
    }
}
