use super::kv_cache::{BLOCK_POSITIONS, KvCache};
use super::norm::{RmsNorm, dot};
use super::rope::Rotation;
use super::{f32_slice, with_f32};
use crate::error::EngineError;
use crate::linear::Linear;
use crate::weights::SpineWeights;
use candle_core::{CpuStorage, CustomOp1, InplaceOp1, Layout, Shape, Tensor};
use rayon::prelude::*;

/// Multiply-adds below which waking other threads costs more than it saves.
const PARALLEL_FROM_OPS: usize = 1 << 20;

/// Sizes of a grouped-query attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionShape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head, even.
    pub head_dim: usize,
}

/// Causal grouped-query attention with a norm on each query and key head.
#[derive(Debug)]
pub struct GroupedQueryAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    shape: AttentionShape,
}

impl GroupedQueryAttention {
    /// The weights `{prefix}.{q,k,v,o}_proj` and `{prefix}.{q,k}_norm`.
    ///
    /// # Errors
    /// A weight that is missing or has another shape.
    pub fn new(
        weights: &SpineWeights,
        prefix: &str,
        shape: AttentionShape,
        bias: bool,
        eps: f32,
    ) -> Result<Self, EngineError> {
        let projection = |name: &str, rows: usize, cols: usize| {
            let name = format!("{prefix}.{name}");
            let linear = weights.linear(&name, rows, cols)?;
            if bias {
                linear.with_bias(weights.vector(&format!("{name}.bias"), rows)?)
            } else {
                Ok(linear)
            }
        };
        let norm = |name: &str| -> Result<RmsNorm, EngineError> {
            let weight = weights.vector(&format!("{prefix}.{name}.weight"), shape.head_dim)?;
            Ok(RmsNorm::new(weight, eps))
        };
        let q_width = shape.heads * shape.head_dim;
        let kv_width = shape.kv_heads * shape.head_dim;
        Ok(Self {
            q_proj: projection("q_proj", q_width, shape.hidden)?,
            k_proj: projection("k_proj", kv_width, shape.hidden)?,
            v_proj: projection("v_proj", kv_width, shape.hidden)?,
            o_proj: projection("o_proj", shape.hidden, q_width)?,
            q_norm: norm("q_norm")?,
            k_norm: norm("k_norm")?,
            shape,
        })
    }

    /// An empty cache for this layer.
    #[must_use]
    pub fn new_cache(&self) -> KvCache {
        KvCache::new(self.shape.kv_heads * self.shape.head_dim)
    }

    /// `x [n, hidden]` at positions `start..start + n`, whose angles `rotation` holds, to
    /// `[n, hidden]`. Keys and values join the cache, which holds all earlier positions.
    ///
    /// # Errors
    /// A failed tensor operation.
    pub fn forward(
        &self,
        x: &Tensor,
        rotation: &Rotation,
        start: usize,
        cache: &mut KvCache,
    ) -> Result<Tensor, EngineError> {
        let q = self.q_proj.forward(x)?;
        let k = self.k_proj.forward(x)?;
        let v = self.v_proj.forward(x)?;
        let heads = self.shape.heads;
        q.inplace_op1(&NormAndRotate { norm: &self.q_norm, rotation, heads })?;
        k.inplace_op1(&NormAndRotate { norm: &self.k_norm, rotation, heads: self.shape.kv_heads })?;
        with_f32(&k, |k| with_f32(&v, |v| cache.write(start, k, v)))??;
        let mixed = q.apply_op1_no_bwd(&CausalMix { cache, start, shape: self.shape })?;
        Ok(self.o_proj.forward(&mixed)?)
    }
}

/// Norm and rotary embedding of every head, in place.
struct NormAndRotate<'a> {
    norm: &'a RmsNorm,
    rotation: &'a Rotation,
    heads: usize,
}

impl InplaceOp1 for NormAndRotate<'_> {
    fn name(&self) -> &'static str {
        "norm-and-rotate"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (CpuStorage::F32(values), Some((start, end))) = (storage, layout.contiguous_offsets())
        else {
            candle_core::bail!("norm-and-rotate needs contiguous f32 heads");
        };
        let width = self.heads * self.norm.width();
        for (token, heads) in values[start..end].chunks_exact_mut(width).enumerate() {
            for head in heads.chunks_exact_mut(self.norm.width()) {
                self.norm.apply(head);
                self.rotation.rotate_half(token, head);
            }
        }
        Ok(())
    }
}

/// Softmax-weighted sum of the cached values: `[n, heads × head_dim]` queries to the same
/// shape. Token `t` sees positions `0..=start + t`.
struct CausalMix<'a> {
    cache: &'a KvCache,
    start: usize,
    shape: AttentionShape,
}

impl CustomOp1 for CausalMix<'_> {
    fn name(&self) -> &'static str {
        "causal-mix"
    }

    fn cpu_fwd(
        &self,
        storage: &CpuStorage,
        layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let queries = f32_slice(storage, layout)?;
        // The query heads of one key head share its rows: work is split by such groups.
        let group_width = self.shape.heads / self.shape.kv_heads * self.shape.head_dim;
        let mut out = vec![0.0; queries.len()];
        let tokens = queries.len() / (self.shape.heads * self.shape.head_dim);
        let ops = queries.len() * (self.start + tokens);
        let groups = out.chunks_exact_mut(group_width).zip(queries.chunks_exact(group_width));
        if ops < PARALLEL_FROM_OPS {
            let mut scores = Vec::new();
            for (index, (out, queries)) in groups.enumerate() {
                self.mix_group(index, queries, out, &mut scores);
            }
        } else {
            out.par_chunks_exact_mut(group_width)
                .zip(queries.par_chunks_exact(group_width))
                .enumerate()
                .for_each_init(Vec::new, |scores, (index, (out, queries))| {
                    self.mix_group(index, queries, out, scores);
                });
        }
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

impl CausalMix<'_> {
    /// One token's query heads of one key head; `index` counts tokens × key heads.
    fn mix_group(&self, index: usize, queries: &[f32], out: &mut [f32], scores: &mut Vec<f32>) {
        let AttentionShape { kv_heads, head_dim, .. } = self.shape;
        let seen = self.start + index / kv_heads + 1;
        let (width, offset) = (kv_heads * head_dim, index % kv_heads * head_dim);
        let scale = 1.0 / (head_dim as f32).sqrt();
        for (query, out) in queries.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)) {
            scores.clear();
            for keys in self.cache.keys(seen) {
                let rows = keys.chunks_exact(width);
                scores.extend(rows.map(|row| scale * dot(query, &row[offset..][..head_dim])));
            }
            softmax(scores);
            for (values, weights) in self.cache.values(seen).zip(scores.chunks(BLOCK_POSITIONS)) {
                add_weighted(out, values, width, offset, weights);
            }
        }
    }
}

/// `out += Σ weights[p] × values[p × width + offset..]`, four positions a pass over `out`:
/// loading and storing it for each one would cost as much as the products.
fn add_weighted(out: &mut [f32], values: &[f32], width: usize, offset: usize, weights: &[f32]) {
    let len = out.len();
    let row = |position: usize| &values[position * width + offset..][..len];
    let (fours, rest) = weights.as_chunks::<4>();
    for (group, &[a, b, c, d]) in fours.iter().enumerate() {
        let first = 4 * group;
        let rows = row(first).iter().zip(row(first + 1)).zip(row(first + 2)).zip(row(first + 3));
        for (y, (((va, vb), vc), vd)) in out.iter_mut().zip(rows) {
            *y += (a * va + b * vb) + (c * vc + d * vd);
        }
    }
    for (position, &weight) in (4 * fours.len()..).zip(rest) {
        for (y, v) in out.iter_mut().zip(row(position)) {
            *y += weight * v;
        }
    }
}

/// Softmax in place.
fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - max).exp();
        sum += *score;
    }
    let inverse = 1.0 / sum;
    for score in scores {
        *score *= inverse;
    }
}
