use crate::error::EngineError;
use crate::spine::{RmsNorm, with_f32};
use crate::weights::SpineWeights;
use candle_core::{Device, Tensor};

/// The residual stream of a pass, `[tokens, hidden]`.
///
/// With attention residuals (Kimi K3) it begins anew every so many layers, and what it was before
/// is kept: readers get a mix of all of them.
#[derive(Debug)]
pub(super) struct Stream {
    /// What the stream was at the end of each block, the embedding first.
    blocks: Vec<Tensor>,
    /// The sum since then; `None` right after a block has begun.
    live: Option<Tensor>,
    block_layers: Option<u16>,
}

impl Stream {
    pub(super) fn new(embedding: Tensor, block_layers: Option<u16>) -> Self {
        Self { blocks: Vec::new(), live: Some(embedding), block_layers }
    }

    /// What a reader with this mix gets.
    pub(super) fn read(&self, mix: Option<&ResidualMix>) -> Result<Tensor, EngineError> {
        let all: Vec<&Tensor> = self.blocks.iter().chain(&self.live).collect();
        match (mix, all.as_slice()) {
            (Some(mix), [_, _, ..]) => mix.apply(&all),
            // Nothing to mix: the stream itself.
            (_, [.., last]) => Ok((*last).clone()),
            (_, []) => unreachable!("a stream is never empty"),
        }
    }

    /// Layer `number` begins, its attention having read the stream: a block may end here.
    pub(super) fn begin_layer(&mut self, number: u16) {
        if self.block_layers.is_some_and(|layers| number.is_multiple_of(layers)) {
            self.blocks.extend(self.live.take());
        }
    }

    pub(super) fn add(&mut self, y: Tensor) -> Result<(), EngineError> {
        self.live = Some(match self.live.take() {
            Some(live) => (live + y)?,
            None => y,
        });
        Ok(())
    }
}

/// A reader's mix of streams: `softmax_i(proj · norm(v_i))`-weighted sum of the streams `v_i`.
#[derive(Clone, Debug)]
pub(super) struct ResidualMix {
    norm: RmsNorm,
    projection: Vec<f32>,
}

impl ResidualMix {
    /// The weights `{prefix}_norm` and `{prefix}_proj`.
    pub(super) fn new(
        weights: &SpineWeights,
        prefix: &str,
        hidden: usize,
        eps: f32,
    ) -> Result<Self, EngineError> {
        let vector = |part: &str| weights.vector(&format!("{prefix}_{part}.weight"), hidden);
        Ok(Self { norm: RmsNorm::new(vector("norm")?, eps), projection: vector("proj")? })
    }

    fn apply(&self, streams: &[&Tensor]) -> Result<Tensor, EngineError> {
        let shape = streams[0].shape();
        let mut out = vec![0.0; shape.elem_count()];
        let mut scores = Vec::with_capacity(streams.len());
        for stream in streams {
            scores.push(with_f32(stream, |rows| self.scores(rows))?);
        }
        weigh(&mut scores);
        let width = self.projection.len();
        for (stream, weights) in streams.iter().zip(&scores) {
            with_f32(stream, |rows| {
                let rows = rows.chunks_exact(width).zip(out.chunks_exact_mut(width));
                for ((row, out), weight) in rows.zip(weights) {
                    out.iter_mut().zip(row).for_each(|(y, x)| *y += weight * x);
                }
            })?;
        }
        Ok(Tensor::from_vec(out, shape, &Device::Cpu)?)
    }

    /// One score a token.
    fn scores(&self, rows: &[f32]) -> Vec<f32> {
        let mut normed = vec![0.0; self.projection.len()];
        let score = |row: &[f32]| {
            self.norm.apply_into(row, &mut normed);
            normed.iter().zip(&self.projection).map(|(x, w)| x * w).sum()
        };
        rows.chunks_exact(self.projection.len()).map(score).collect()
    }
}

/// Softmax over the streams, token by token: `scores[stream][token]`.
fn weigh(scores: &mut [Vec<f32>]) {
    for token in 0..scores[0].len() {
        let max = scores.iter().map(|of| of[token]).fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for of in &mut *scores {
            of[token] = (of[token] - max).exp();
            sum += of[token];
        }
        scores.iter_mut().for_each(|of| of[token] /= sum);
    }
}
