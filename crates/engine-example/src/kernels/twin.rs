//! The contract of the module docs, word for word and one number at a time.
//!
//! Written apart from the kernels, with decoders of its own: tests compare the two bit for bit.

use half::{bf16, f16};

use super::{Activation, BlockType, ExpertTask, Matrix, MatrixData, ScaleType};

/// One lane's part of one step: a weight, and the column it belongs to if there is one.
type Place = (f32, Option<usize>);

/// Row `row` of `matrix` times `x`.
pub(super) fn dot(matrix: &Matrix<'_>, row: usize, x: &[f32]) -> f32 {
    let cols = matrix.cols();
    let mut acc = [0.0f32; 16];
    match matrix.data() {
        MatrixData::F32(_)
        | MatrixData::F16(_)
        | MatrixData::Bf16(_)
        | MatrixData::Blocks { .. } => {
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
        MatrixData::Blocks { kind, bytes } => {
            let (elements, size) = (kind.elements(), kind.size_bytes());
            block_numbers(kind, &bytes[index / elements * size..][..size])[index % elements]
        }
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

/// All numbers of a block, walked in the order in which ggml's own decoders write them.
fn block_numbers(kind: BlockType, block: &[u8]) -> Vec<f32> {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    let nibbles = |bytes: &[u8]| -> Vec<u8> {
        bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4)).collect()
    };
    match kind {
        BlockType::Q8_0 => block[2..].iter().map(|&q| f32::from(q as i8) * half(0)).collect(),
        BlockType::Q4_0 => {
            nibbles(&block[2..]).iter().map(|&q| (f32::from(q) - 8.0) * half(0)).collect()
        }
        BlockType::Mxfp4 => {
            let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0_f32];
            let scale = 2f64.powi(i32::from(block[0]) - 127);
            let value = |&code: &u8| {
                let size = f64::from(values[usize::from(code & 7)]) * scale;
                // The negative zero is a plain one.
                (if code >= 8 && size != 0.0 { -size } else { size }) as f32
            };
            nibbles(&block[1..]).iter().map(value).collect()
        }
        BlockType::Q4K | BlockType::Q5K => k_numbers(kind, block),
        BlockType::Q6K => {
            let mut all = vec![0.0; 256];
            for part in 0..2 {
                let (low, high) = (&block[64 * part..], &block[128 + 32 * part..]);
                for l in 0..32 {
                    for (place, q) in [
                        (l, low[l] & 15 | (high[l] & 3) << 4),
                        (l + 32, low[l + 32] & 15 | (high[l] >> 2 & 3) << 4),
                        (l + 64, low[l] >> 4 | (high[l] >> 4 & 3) << 4),
                        (l + 96, low[l + 32] >> 4 | (high[l] >> 6) << 4),
                    ] {
                        let scale = half(208) * f32::from(block[192 + 8 * part + place / 16] as i8);
                        all[128 * part + place] = (f32::from(q) - 32.0) * scale;
                    }
                }
            }
            all
        }
    }
}

fn k_numbers(kind: BlockType, block: &[u8]) -> Vec<f32> {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    let packed = &block[4..16];
    let scale_and_minimum = |j: usize| {
        if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
        }
    };
    let (fifths, bytes) = match kind {
        BlockType::Q5K => (Some(&block[16..48]), &block[48..]),
        _ => (None, &block[16..]),
    };
    let mut all = Vec::new();
    for sub in 0..8 {
        let (scale, minimum) = scale_and_minimum(sub);
        let (scale, minimum) = (half(0) * f32::from(scale), half(2) * f32::from(minimum));
        for l in 0..32 {
            let byte = bytes[sub / 2 * 32 + l];
            let mut q = if sub % 2 == 0 { byte & 15 } else { byte >> 4 };
            q += fifths.map_or(0, |fifths| (fifths[l] >> sub & 1) * 16);
            all.push(f32::from(q).mul_add(scale, -minimum));
        }
    }
    all
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
