//! Random matrices in every format, at odd addresses.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::super::*;

/// Bytes of a matrix, to be borrowed at an odd address.
#[derive(Clone, Debug)]
pub(in super::super) struct Stored {
    rows: usize,
    cols: usize,
    kind: Stores,
    pub(super) weights: Vec<u8>,
    scales: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) enum Stores {
    F32,
    F16,
    Bf16,
    Fp8 { block: [usize; 2], scale_type: ScaleType },
    Int4 { group: usize, scale_type: ScaleType },
    Mxfp4,
    Blocks(BlockType),
}

pub(super) const SCALE_TYPES: [ScaleType; 3] = [ScaleType::F32, ScaleType::F16, ScaleType::Bf16];

impl Stored {
    pub(in super::super) fn random(
        rng: &mut ChaCha8Rng,
        rows: usize,
        cols: usize,
        kind: Stores,
    ) -> Self {
        let float = |rng: &mut ChaCha8Rng| rng.random_range(-1.0f32..1.0);
        let count = rows * cols;
        let bytes = |rng: &mut ChaCha8Rng, n: usize| (0..n).map(|_| rng.random()).collect();
        let stored = |rng: &mut ChaCha8Rng, scale_type, n: usize| -> Vec<u8> {
            (0..n).flat_map(|_| write(float(rng) * 0.1, scale_type)).collect()
        };
        let none = Vec::new();
        let (mut weights, mut scales): (Vec<u8>, _) = match kind {
            Stores::F32 => (stored(rng, ScaleType::F32, count), none),
            Stores::F16 => (stored(rng, ScaleType::F16, count), none),
            Stores::Bf16 => (stored(rng, ScaleType::Bf16, count), none),
            Stores::Fp8 { block, scale_type } => {
                let scales = rows.div_ceil(block[0]) * cols.div_ceil(block[1]);
                let mut codes: Vec<u8> = bytes(rng, count);
                // NaN has a test of its own: here it would hide everything else.
                codes.iter_mut().filter(|code| **code & 0x7F == 0x7F).for_each(|code| *code = 1);
                (codes, stored(rng, scale_type, scales))
            }
            Stores::Int4 { group, scale_type } => {
                let scales = rows * cols.div_ceil(group);
                (bytes(rng, rows * cols.div_ceil(8) * 4), stored(rng, scale_type, scales))
            }
            Stores::Mxfp4 => {
                let scales = (0..count / 32).map(|_| rng.random_range(120..128)).collect();
                (bytes(rng, count / 2), scales)
            }
            Stores::Blocks(kind) => (blocks(rng, kind, count / kind.elements()), none),
        };
        // One byte before the data makes its address odd.
        weights.insert(0, 0);
        scales.insert(0, 0);
        Self { rows, cols, kind, weights, scales }
    }

    pub(in super::super) fn matrix(&self) -> Matrix<'_> {
        let (weights, scales) = (&self.weights[1..], &self.scales[1..]);
        let data = match self.kind {
            Stores::F32 => MatrixData::F32(weights),
            Stores::F16 => MatrixData::F16(weights),
            Stores::Bf16 => MatrixData::Bf16(weights),
            Stores::Fp8 { block, scale_type } => {
                MatrixData::Fp8 { codes: weights, scales, scale_type, block }
            }
            Stores::Int4 { group, scale_type } => {
                MatrixData::Int4 { packed: weights, scales, scale_type, group }
            }
            Stores::Mxfp4 => MatrixData::Mxfp4 { packed: weights, scales },
            Stores::Blocks(kind) => MatrixData::Blocks { kind, bytes: weights },
        };
        Matrix::new(self.rows, self.cols, data).unwrap()
    }
}

/// Any codes, with scales of weights' size.
fn blocks(rng: &mut ChaCha8Rng, kind: BlockType, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for _ in 0..count {
        let mut block: Vec<u8> = (0..kind.size_bytes()).map(|_| rng.random()).collect();
        let halves: &[usize] = match kind {
            BlockType::Mxfp4 => {
                block[0] = rng.random_range(115..125);
                &[]
            }
            BlockType::Q4K | BlockType::Q5K => &[0, 2],
            BlockType::Q6K => &[208],
            BlockType::Q8_0 | BlockType::Q4_0 => &[0],
        };
        for &at in halves {
            let scale = write(rng.random_range(-0.01f32..0.01), ScaleType::F16);
            block[at..at + 2].copy_from_slice(&scale);
        }
        all.extend(block);
    }
    all
}

pub(super) fn write(value: f32, scale_type: ScaleType) -> Vec<u8> {
    match scale_type {
        ScaleType::F32 => value.to_le_bytes().to_vec(),
        ScaleType::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
        ScaleType::Bf16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
    }
}
