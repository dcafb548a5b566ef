use super::kv_cache::RowCache;
use super::norm::RmsNorm;
use super::rope::{RopeConfig, Rotation};
use crate::error::EngineError;
use crate::kernels::{Isa, LatentHeads, LatentPass, LatentWeights, latent_attention, sigmoid};
use crate::linear::{Linear, StoredMatrix};
use crate::weights::SpineWeights;

/// Epsilon of the norms of the compressed queries and keys: the reference implementations use
/// their norm class's default here, whatever `rms_norm_eps` says.
const LATENT_EPS: f32 = 1e-6;

/// Sizes of a latent attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatentShape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Width of the compressed queries; `None`: queries are projected at once.
    pub q_rank: Option<usize>,
    /// Width of the compressed keys and values.
    pub rank: usize,
    /// Width of a head's part without rotation.
    pub nope: usize,
    /// Width of the part with rotation, even; its key is shared by all heads.
    pub rope: usize,
    /// Width of a head's value.
    pub value: usize,
}

/// A latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentConfig {
    /// Sizes.
    pub shape: LatentShape,
    /// Whether the first projections and the last have a bias.
    pub bias: bool,
    /// Rotary embedding of the shared part of the keys; `None`: nothing is rotated.
    pub rope: Option<RopeConfig>,
    /// Factor on scores before the softmax.
    pub scale: f32,
    /// Whether the heads' outputs are multiplied by the sigmoid of a projection.
    pub output_gate: bool,
}

impl LatentShape {
    fn heads(&self) -> LatentHeads {
        let Self { heads, nope, rope, value, rank: latent, .. } = *self;
        LatentHeads { heads, nope, rope, value, latent }
    }
}

/// Causal multi-head latent attention (DeepSeek-V2, 2024): keys and values are projections of one
/// compressed row a position, and only that row is cached. The projections are absorbed into
/// queries and outputs, so that the cache is never expanded.
#[derive(Debug)]
pub struct LatentAttention {
    queries: Queries,
    kv_a: Linear,
    kv_norm: RmsNorm,
    up: Up,
    output: Linear,
    gate: Option<Linear>,
    config: LatentConfig,
    isa: Isa,
}

#[derive(Debug)]
enum Queries {
    Direct(Linear),
    LowRank { a: Linear, norm: RmsNorm, b: Linear },
}

/// The up-projections of keys and values.
#[derive(Debug)]
enum Up {
    Joint(StoredMatrix),
    /// Keys by head transposed, as GGUF files have them.
    Split {
        keys: StoredMatrix,
        values: StoredMatrix,
    },
}

impl Up {
    fn new(weights: &SpineWeights, prefix: &str, shape: LatentShape) -> Result<Self, EngineError> {
        let LatentShape { heads, rank, nope, value, .. } = shape;
        let keys = format!("{prefix}.k_b_proj");
        if weights.get(&format!("{keys}.weight")).is_some() {
            return Ok(Self::Split {
                keys: weights.stack(&keys, [heads, rank, nope])?,
                values: weights.stack(&format!("{prefix}.v_b_proj"), [heads, value, rank])?,
            });
        }
        weights
            .matrix(&format!("{prefix}.kv_b_proj"), heads * (nope + value), rank)
            .map(Self::Joint)
    }
}

impl LatentAttention {
    /// The weights `{prefix}.{q_proj | q_a_proj, q_a_layernorm, q_b_proj}`,
    /// `kv_a_proj_with_mqa`, `kv_a_layernorm`, `kv_b_proj` (or `k_b_proj`, by head and transposed,
    /// and `v_b_proj`), `o_proj` and, for an output gate, `g_proj`.
    ///
    /// # Errors
    /// A weight that is missing or has another shape.
    pub fn new(
        weights: &SpineWeights,
        prefix: &str,
        config: LatentConfig,
    ) -> Result<Self, EngineError> {
        let (shape, bias) = (config.shape, config.bias);
        let LatentShape { hidden, heads, rank, nope, rope, value, .. } = shape;
        let linear = |name: &str, rows: usize, cols: usize| {
            weights.linear(&format!("{prefix}.{name}"), rows, cols)
        };
        let outer = |name: &str, rows: usize, cols: usize| {
            let linear = linear(name, rows, cols)?;
            if bias {
                linear.with_bias(weights.vector(&format!("{prefix}.{name}.bias"), rows)?)
            } else {
                Ok(linear)
            }
        };
        let norm = |name: &str, width: usize| -> Result<RmsNorm, EngineError> {
            let weight = weights.vector(&format!("{prefix}.{name}.weight"), width)?;
            Ok(RmsNorm::new(weight, LATENT_EPS))
        };
        let query_rows = heads * (nope + rope);
        let queries = match shape.q_rank {
            None => Queries::Direct(linear("q_proj", query_rows, hidden)?),
            Some(q_rank) => Queries::LowRank {
                a: outer("q_a_proj", q_rank, hidden)?,
                norm: norm("q_a_layernorm", q_rank)?,
                b: linear("q_b_proj", query_rows, q_rank)?,
            },
        };
        Ok(Self {
            queries,
            kv_a: outer("kv_a_proj_with_mqa", rank + rope, hidden)?,
            kv_norm: norm("kv_a_layernorm", rank)?,
            up: Up::new(weights, prefix, shape)?,
            output: outer("o_proj", hidden, heads * value)?,
            gate: match config.output_gate {
                true => Some(linear("g_proj", heads * value, hidden)?),
                false => None,
            },
            config,
            isa: weights.workspace().isa(),
        })
    }

    /// An empty cache for this layer: one row of `rank + rope` values a position.
    #[must_use]
    pub fn new_cache(&self) -> RowCache {
        RowCache::new(self.config.shape.rank + self.config.shape.rope)
    }

    /// `x [n, hidden]` at positions `start..start + n`, whose angles `rotation` holds (`None`:
    /// nothing is rotated), to `[n, hidden]`. The compressed rows join the cache, which holds all
    /// earlier positions.
    ///
    /// # Panics
    /// If `x` is not whole rows.
    pub fn forward(
        &self,
        x: &[f32],
        rotation: Option<&Rotation>,
        start: usize,
        cache: &mut RowCache,
    ) -> Vec<f32> {
        let LatentShape { heads, rank, nope, rope, value, .. } = self.config.shape;
        let mut q = match &self.queries {
            Queries::Direct(projection) => projection.product(x),
            Queries::LowRank { a, norm, b } => {
                let mut low = a.product(x);
                low.chunks_exact_mut(norm.width()).for_each(|row| norm.apply(row));
                b.product(&low)
            }
        };
        let mut rows = self.kv_a.product(x);
        for row in rows.chunks_exact_mut(rank + rope) {
            self.kv_norm.apply(&mut row[..rank]);
        }
        if let Some(rotation) = rotation {
            for (token, row) in rows.chunks_exact_mut(rank + rope).enumerate() {
                rotation.rotate_pairs(token, &mut row[rank..]);
            }
            for (index, head) in q.chunks_exact_mut(nope + rope).enumerate() {
                rotation.rotate_pairs(index / heads, &mut head[nope..]);
            }
        }
        cache.write(start, &rows);
        let n = rows.len() / (rank + rope);
        let pieces: Vec<&[f32]> = cache.rows(start + n).collect();
        let mut mixed = vec![0.0; n * heads * value];
        let mut attend = |weights: LatentWeights<'_>| {
            let (heads, scale) = (self.config.shape.heads(), self.config.scale);
            let pass = LatentPass { heads, weights, rows: &pieces, start, scale };
            latent_attention(self.isa, &pass, &q, &mut mixed);
        };
        match &self.up {
            Up::Joint(matrix) => attend(LatentWeights::Joint(&matrix.view())),
            Up::Split { keys, values } => {
                attend(LatentWeights::Split { keys: &keys.view(), values: &values.view() });
            }
        }
        if let Some(gate) = &self.gate {
            let gate = gate.product(x);
            mixed.iter_mut().zip(&gate).for_each(|(y, gate)| *y *= sigmoid(*gate));
        }
        self.output.product(&mixed)
    }
}
