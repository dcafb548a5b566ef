//! CPU kernels that multiply by weights where they lie.
//!
//! A [`Matrix`] borrows stored bytes (F32, F16, BF16, FP8 with block scales, int4, MXFP4, ggml's
//! blocks) at any alignment; [`matmul`] and [`moe_ffn`] multiply by it with `f32` activations and
//! `f32` sums.
//! Nothing is unpacked to memory first: an expert's bytes are read once, from the page cache.
//!
//! # The contract: one order of arithmetic
//!
//! The result for one row and one token is a fixed sequence of IEEE `f32` operations, so it is
//! the same bit for bit on every [`Isa`], for every thread count, every split of the rows and
//! every batch size (the payload of a NaN excepted). For a row `w` and activations `x`:
//!
//! 1. Sixteen lanes. The columns are walked in *spans*, a span in *steps*, and in a step each lane
//!    takes one column. A column that does not exist counts as `x = 0` (with `w = 0`, or for int4
//!    the code of a zero nibble).
//! 2. In a span, `t[l] = +0`, then for each step `t[l] = fma(w, x, t[l])`.
//! 3. After a span, `acc[l] = fma(t[l], scale[l], acc[l])`, from `acc[l] = +0`. Float formats have
//!    one span and no scale: there `acc[l] = t[l]`.
//! 4. The lanes are added as a tree: `l` with `l + 8`, then `l + 4`, `l + 2`, `l + 1`.
//!
//! | format | span | step `s` of a span, lane `l` | `w` | scale of lane `l` |
//! |---|---|---|---|---|
//! | F32, F16, BF16 | all columns | column `16 s + l` | the value | none |
//! | FP8 | `block_cols` columns | the span's column `16 s + l` | the value | block scale |
//! | int4 | 128 columns | the span's column `8 l + s`, `s < 8` | nibble − 8 | of column `min(8 l, last)` |
//! | MXFP4 | 128 columns | the same | the E2M1 value | the same |
//! | ggml blocks | all columns | column `16 s + l` | the number, see [`BlockType`] | none |
//!
//! A number of a ggml block is computed as its formula is written there: the block's scale (and
//! minimum) first, rounded to `f32`, then the product with the code, with the minimum in one fused
//! operation. For int4 and MXFP4 a lane takes a
//! whole 32-bit word: step `s` is a shift by `4 s`, and no nibble crosses lanes.
//!
//! `moe_ffn` adds experts in the order of its tasks, `sum += weight * y` with the product rounded
//! first, and then `out += sum`; the [`Activation`] is our own, because `f32::exp` may differ between
//! platforms.

mod activation;
mod blocks;
mod delta;
mod isa;
mod lanes;
mod latent;
mod layout;
mod matmul;
mod matrix;
mod moe;
mod nibbles;
mod number;
mod quantize;
mod read;
mod tile;
mod tokens;

#[cfg(test)]
mod latent_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;

pub use activation::{Activation, exp, sigmoid, silu, silu_mul, tanh};
pub use blocks::BlockType;
pub use delta::{DeltaStep, delta_step};
pub use isa::{Isa, IsaError};
pub use latent::{LatentHeads, LatentPass, LatentWeights, latent_attention};
pub use matmul::{Scratch, matmul};
pub use matrix::{MXFP4_GROUP, Matrix, MatrixData, MatrixError, ScaleType};
pub use moe::{ExpertTask, ExpertWeights, MoeSum, moe_ffn};
pub(crate) use number::fp8_to_f32;
pub use quantize::{Int4, quantize_int4};
pub use read::read_sum;
