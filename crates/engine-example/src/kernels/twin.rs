//! The contract of the module docs, word for word and one number at a time.
//!
//! Written apart from the kernels, with decoders of its own: tests compare the two bit for bit.

use half::{bf16, f16};

use super::{Activation, ExpertTask, Matrix, MatrixData, ScaleType};

/// One lane's part of one step: a weight, and the column it belongs to if there is one.
type Place = (f32, Option<usize>);

/// Row `row` of `matrix` times `x`.
pub(super) fn dot(matrix: &Matrix<'_>, row: usize, x: &[f32]) -> f32 {
    let cols = matrix.cols();
    let mut acc = [0.0f32; 16];
    match matrix.data() {
        MatrixData::F32(_) | MatrixData::F16(_) | MatrixData::Bf16(_) => {
            for (l, acc) in acc.iter_mut().enumerate() {
                *acc = chain((0..cols.div_ceil(16)).map(|s| float(matrix, row, 16 * s + l)), x);
            }
        }
        MatrixData::Fp8 { codes, scales, scale_type, block } => {
            for (across, first) in (0..cols).step_by(block[1]).enumerate() {
                let end = cols.min(first + block[1]);
                let index = row / block[0] * cols.div_ceil(block[1]) + across;
                let scale = scale_at(scales, scale_type, index);
                for (l, acc) in acc.iter_mut().enumerate() {
                    let places = (0..(end - first).div_ceil(16)).map(|s| {
                        let column = first + 16 * s + l;
                        let inside = column < end;
                        let code = if inside { codes[row * cols + column] } else { 0 };
                        (fp8(code), inside.then_some(column))
                    });
                    *acc = chain(places, x).mul_add(scale, *acc);
                }
            }
        }
        MatrixData::Int4 { packed, scales, scale_type, group } => {
            let words = cols.div_ceil(8);
            for first in (0..cols).step_by(128) {
                for (l, acc) in acc.iter_mut().enumerate() {
                    let places = (0..8).map(|s| {
                        let column = first + 8 * l + s;
                        let at = (row * words + column / 8) * 4;
                        let inside = column / 8 < words;
                        let word = if inside { u32_at(packed, at) } else { 0 };
                        let nibble = (word >> (4 * s)) & 15;
                        (nibble as f32 - 8.0, (column < cols).then_some(column))
                    });
                    let own = (first + 8 * l).min(cols - 1) / group;
                    let scale = scale_at(scales, scale_type, row * cols.div_ceil(group) + own);
                    *acc = chain(places, x).mul_add(scale, *acc);
                }
            }
        }
        MatrixData::Mxfp4 { packed, scales } => {
            for first in (0..cols).step_by(128) {
                for (l, acc) in acc.iter_mut().enumerate() {
                    let places = (0..8).map(|s| {
                        let column = first + 8 * l + s;
                        let inside = column < cols;
                        let byte = if inside { packed[(row * cols + column) / 2] } else { 0 };
                        let nibble = if column % 2 == 0 { byte & 15 } else { byte >> 4 };
                        (e2m1(nibble), inside.then_some(column))
                    });
                    let own = (first + 8 * l).min(cols - 1) / 32;
                    let scale = e8m0(scales[row * cols / 32 + own]);
                    *acc = chain(places, x).mul_add(scale, *acc);
                }
            }
        }
    }
    for width in [8, 4, 2, 1] {
        for l in 0..width {
            acc[l] += acc[l + width];
        }
    }
    acc[0]
}

/// `out[t, r]` of `matmul`.
pub(super) fn matmul(matrix: &Matrix<'_>, x: &[f32], n: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for t in 0..n {
        let x = &x[t * matrix.cols()..][..matrix.cols()];
        out.extend((0..matrix.rows()).map(|row| dot(matrix, row, x)));
    }
    out
}

/// `out` of a [`MoeSum`](super::MoeSum).
pub(super) fn moe_ffn(
    activation: Activation,
    tasks: &[ExpertTask<'_>],
    x: &[f32],
    hidden: usize,
    out: &mut [f32],
) {
    for (t, out) in out.chunks_mut(hidden).enumerate() {
        let mut sum = vec![0.0f32; hidden];
        for task in tasks {
            for (_, weight) in task.tokens.iter().filter(|(token, _)| *token as usize == t) {
                let x = &x[t * hidden..][..hidden];
                let gate = matmul(&task.weights.gate, x, 1);
                let up = matmul(&task.weights.up, x, 1);
                let mut inner = gate;
                activation.apply(&mut inner, &up);
                let y = matmul(&task.weights.down, &inner, 1);
                for (sum, y) in sum.iter_mut().zip(&y) {
                    *sum += weight * y;
                }
            }
        }
        for (out, sum) in out.iter_mut().zip(&sum) {
            *out += sum;
        }
    }
}

fn chain(places: impl Iterator<Item = Place>, x: &[f32]) -> f32 {
    places.fold(0.0, |t, (w, column)| w.mul_add(column.map_or(0.0, |c| x[c]), t))
}

fn float(matrix: &Matrix<'_>, row: usize, column: usize) -> Place {
    if column >= matrix.cols() {
        return (0.0, None);
    }
    let index = row * matrix.cols() + column;
    let value = match matrix.data() {
        MatrixData::F32(bytes) => scale_at(bytes, ScaleType::F32, index),
        MatrixData::F16(bytes) => scale_at(bytes, ScaleType::F16, index),
        MatrixData::Bf16(bytes) => scale_at(bytes, ScaleType::Bf16, index),
        _ => unreachable!("no float format"),
    };
    (value, Some(column))
}

/// Any stored float, although it is called a scale.
fn scale_at(bytes: &[u8], scale_type: ScaleType, index: usize) -> f32 {
    let pair = || [bytes[index * 2], bytes[index * 2 + 1]];
    match scale_type {
        ScaleType::F32 => f32::from_bits(u32_at(bytes, index * 4)),
        ScaleType::F16 => f16::from_le_bytes(pair()).to_f32(),
        ScaleType::Bf16 => bf16::from_le_bytes(pair()).to_f32(),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    (0..4).map(|i| u32::from(bytes[at + i]) << (8 * i)).sum()
}

/// E4M3 as its standard defines it.
pub(super) fn fp8(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, f32::from(code & 7));
    let magnitude = match exponent {
        15 if code & 7 == 7 => return f32::NAN,
        0 => mantissa / 512.0,
        _ => (8.0 + mantissa) / 8.0 * 2f32.powi(i32::from(exponent) - 7),
    };
    if code >= 128 { -magnitude } else { magnitude }
}

/// E2M1 as its standard defines it.
fn e2m1(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 1 & 3, f32::from(code & 1));
    let magnitude = match exponent {
        0 => mantissa / 2.0,
        _ => (1.0 + mantissa / 2.0) * 2f32.powi(i32::from(exponent) - 1),
    };
    if code >= 8 { -magnitude } else { magnitude }
}

/// E8M0 as its standard defines it.
fn e8m0(code: u8) -> f32 {
    // A single's own power would lose the smallest, which is subnormal.
    if code == 255 { f32::NAN } else { 2f64.powi(i32::from(code) - 127) as f32 }
}
