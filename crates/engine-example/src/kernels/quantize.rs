//! Weights to packed int4.

use half::bf16;

/// Ratios of a group's largest magnitude to the end of the code range. Below 1 the largest
/// weights are clipped so that the many small ones get finer steps.
const CLIP_RATIOS: [f32; 8] = [1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.74, 0.68];
/// Ends of the code range that the largest magnitude may be put at: 8 exists on one side only.
const CODE_ENDS: [f32; 3] = [7.0, 7.5, 8.0];

/// An int4 matrix in the form of [`super::MatrixData::Int4`], with bfloat16 scales.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Int4 {
    /// `[rows, ceil(cols / 8)]` little-endian 32-bit words.
    pub packed: Vec<u8>,
    /// `[rows, ceil(cols / group)]` bfloat16 scales.
    pub scales: Vec<u8>,
}

/// Quantises `weights` `[rows, cols]` to symmetric 4 bit codes, -8 to 7, with one scale for
/// `group` columns of a row.
///
/// A group's scale is the one with the least squared error among clip ratios, ends of the code
/// range and both signs (a negative scale gives the 16th code to the largest positive weight),
/// each rounded to bfloat16 before its codes are computed. Weights that are not finite count as
/// 0. Panics when `weights` does not fit the shape or `group` is neither a multiple of 8 nor
/// `cols`.
#[must_use]
pub fn quantize_int4(weights: &[f32], rows: usize, cols: usize, group: usize) -> Int4 {
    assert_eq!(weights.len(), rows * cols, "weights of a {rows}x{cols} matrix");
    assert!(group > 0 && (group.is_multiple_of(8) || group == cols), "group of {group} columns");
    let mut packed = Vec::with_capacity(rows * cols.div_ceil(8) * 4);
    let mut scales = Vec::with_capacity(rows * cols.div_ceil(group) * 2);
    let mut codes = Vec::with_capacity(cols);
    for row in weights.chunks_exact(cols.max(1)) {
        codes.clear();
        for weights in row.chunks(group) {
            let scale = best_scale(weights);
            scales.extend(scale.to_le_bytes());
            codes.extend(weights.iter().map(|w| code(*w, inverse(scale))));
        }
        for codes in codes.chunks(8) {
            // Columns past the end hold zero weights.
            let mut word = 0x8888_8888_u32;
            for (j, code) in codes.iter().enumerate() {
                let nibble = (code + 8.0) as u32;
                word = word & !(0xF << (4 * j)) | nibble << (4 * j);
            }
            packed.extend(word.to_le_bytes());
        }
    }
    Int4 { packed, scales }
}

fn best_scale(weights: &[f32]) -> bf16 {
    let finite = weights.iter().filter(|w| w.is_finite());
    let largest = finite.fold(0.0f32, |most, w| most.max(w.abs()));
    let mut best = (f64::INFINITY, bf16::ZERO);
    for ratio in CLIP_RATIOS {
        for end in CODE_ENDS {
            for sign in [1.0, -1.0] {
                let scale = bf16::from_f32(sign * largest * ratio / end);
                let error = squared_error(weights, scale);
                if error < best.0 {
                    best = (error, scale);
                }
            }
        }
    }
    best.1
}

fn squared_error(weights: &[f32], scale: bf16) -> f64 {
    let (scale, inverse) = (scale.to_f32(), inverse(scale));
    let error = |w: f32| f64::from(if w.is_finite() { code(w, inverse) * scale - w } else { 0.0 });
    weights.iter().map(|w| error(*w).powi(2)).sum()
}

/// `1 / scale`, and 0 where that is no number: all codes are 0 then.
fn inverse(scale: bf16) -> f32 {
    let inverse = scale.to_f32().recip();
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The nearest code.
fn code(weight: f32, inverse: f32) -> f32 {
    let scaled = if weight.is_finite() { weight * inverse } else { 0.0 };
    scaled.round_ties_even().clamp(-8.0, 7.0)
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::kernels::{Matrix, MatrixData, ScaleType};

    fn dequantised(int4: &Int4, rows: usize, cols: usize, group: usize) -> Vec<f32> {
        let Int4 { packed, scales } = int4;
        let data = MatrixData::Int4 { packed, scales, scale_type: ScaleType::Bf16, group };
        let matrix = Matrix::new(rows, cols, data).unwrap();
        let mut all = vec![0.0; rows * cols];
        for r in 0..rows {
            matrix.row_to_f32(r, &mut all[r * cols..][..cols]);
        }
        all
    }

    fn error(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum()
    }

    /// Round to nearest with the scale `largest / 7`.
    fn naive(weights: &[f32], group: usize) -> Vec<f32> {
        let mut all = Vec::new();
        for weights in weights.chunks(group) {
            let largest = weights.iter().fold(0.0f32, |most, w| most.max(w.abs()));
            let scale = bf16::from_f32(largest / 7.0).to_f32();
            all.extend(weights.iter().map(|w| (w / scale).round().clamp(-8.0, 7.0) * scale));
        }
        all
    }

    #[test]
    fn beats_naive_rounding() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let (rows, cols) = (16, 256);
        let bell = |rng: &mut ChaCha8Rng| (0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0;
        let weights: Vec<f32> = (0..rows * cols).map(|_| bell(&mut rng) * 0.02).collect();
        for (group, bar) in [(32, 0.88), (128, 0.80)] {
            let ours = dequantised(&quantize_int4(&weights, rows, cols, group), rows, cols, group);
            let ratio = error(&ours, &weights) / error(&naive(&weights, group), &weights);
            assert!(ratio < bar, "group {group}: squared error {ratio} of naive rounding");
        }
    }

    #[test]
    fn keeps_what_codes_can_say() {
        let weights: Vec<f32> = (0..40).map(|c| ((c * 7 % 16) as f32 - 8.0) * 0.25).collect();
        let int4 = quantize_int4(&weights, 2, 20, 8);
        assert_eq!((int4.packed.len(), int4.scales.len()), (2 * 3 * 4, 2 * 3 * 2));
        let back = dequantised(&int4, 2, 20, 8);
        assert!(error(&back, &weights) < 1e-2, "{back:?}");
        let mirrored: Vec<f32> = weights.iter().map(|w| -w).collect();
        let back = dequantised(&quantize_int4(&mirrored, 2, 20, 20), 2, 20, 20);
        assert_eq!(back, mirrored, "a negative scale reaches +8");
    }

    #[test]
    fn zeros_and_no_numbers_become_zero() {
        let int4 = quantize_int4(&[0.0; 24], 1, 24, 8);
        assert_eq!(dequantised(&int4, 1, 24, 8), [0.0; 24]);
        let int4 = quantize_int4(&[f32::NAN, f32::INFINITY, 1.0, -1.0], 1, 4, 4);
        let back = dequantised(&int4, 1, 4, 4);
        assert_eq!(back[..2], [0.0, 0.0]);
        assert!((back[2] - 1.0).abs() < 0.01 && (back[3] + 1.0).abs() < 0.01, "{back:?}");
    }
}
