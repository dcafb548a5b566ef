//! Tiles of ggml's block formats: a step's weights become numbers in registers, then multiply.
#![expect(
    clippy::needless_range_loop,
    reason = "one index runs over several arrays of a tile; plain loops unroll and stay in registers"
)]

use super::super::blocks::{BlockType, E2M1_DOUBLED, half_power_of_two, scales_and_minima};
use super::super::lanes::Lanes;
use super::super::layout::{LANES, Step};
use super::super::number::half_to_f32;
use super::{DotRows, Format, add_step};

/// Runs the product of a matrix of blocks.
#[inline(always)]
pub(super) fn run<L: Lanes>(work: DotRows<'_>, lanes: L, kind: BlockType, bytes: &[u8]) {
    let cols = work.matrix.cols();
    match kind {
        BlockType::Q8_0 => work.all(lanes, &Blocks { bytes, cols, block: Q8 }),
        BlockType::Q4_0 => work.all(lanes, &Blocks { bytes, cols, block: Q4 }),
        BlockType::Q4K => work.all(lanes, &Blocks { bytes, cols, block: Q4K }),
        BlockType::Q5K => work.all(lanes, &Blocks { bytes, cols, block: Q5K }),
        BlockType::Q6K => work.all(lanes, &Blocks { bytes, cols, block: Q6K }),
        BlockType::Mxfp4 => work.all(lanes, &Blocks { bytes, cols, block: Mx }),
    }
}

/// How one format's blocks are stored and become numbers.
trait Block: Copy {
    type Raw: Copy;
    /// Scales of one block, decoded once.
    type Scales: Copy;
    /// Bytes of a block.
    const BYTES: usize;
    /// Steps of sixteen numbers in a block.
    const STEPS: usize;

    fn blocks(bytes: &[u8]) -> &[Self::Raw];
    fn scales<L: Lanes>(lanes: L, raw: &Self::Raw) -> Self::Scales;
    /// Numbers `16 step ..` of a block.
    fn numbers<L: Lanes>(lanes: L, raw: &Self::Raw, scales: &Self::Scales, step: usize) -> L::V;
}

/// What all formats have alike.
macro_rules! stored {
    ($bytes:literal, $steps:literal, $scales:ty) => {
        type Raw = [u8; $bytes];
        type Scales = $scales;
        const BYTES: usize = $bytes;
        const STEPS: usize = $steps;

        #[inline(always)]
        fn blocks(bytes: &[u8]) -> &[Self::Raw] {
            bytes.as_chunks().0
        }
    };
}

struct Blocks<'a, B> {
    bytes: &'a [u8],
    cols: usize,
    /// Only its type matters.
    #[expect(dead_code, reason = "names the type")]
    block: B,
}

impl<B: Block> Format for Blocks<'_, B> {
    #[inline(always)]
    fn tile<L: Lanes, const R: usize, const N: usize>(
        &self,
        lanes: L,
        row: usize,
        x: [&[Step]; N],
    ) -> [[L::V; N]; R] {
        let per_row = self.cols / (B::STEPS * LANES);
        let row_bytes = per_row * B::BYTES;
        let mut rows: [&[B::Raw]; R] = [&[]; R];
        for r in 0..R {
            rows[r] = &B::blocks(&self.bytes[(row + r) * row_bytes..][..row_bytes])[..per_row];
        }
        let mut sums = [[lanes.splat(0.0); N]; R];
        let mut weights = [lanes.splat(0.0); R];
        for block in 0..per_row {
            let mut x = x;
            for x in &mut x {
                *x = &x[block * B::STEPS..][..B::STEPS];
            }
            let mut scales = [None; R];
            for r in 0..R {
                scales[r] = Some(B::scales(lanes, &rows[r][block]));
                for line in (0..B::BYTES).step_by(64) {
                    lanes.prefetch(&rows[r][block], R * row_bytes + line);
                }
            }
            for step in 0..B::STEPS {
                for r in 0..R {
                    if let Some(scales) = &scales[r] {
                        weights[r] = B::numbers(lanes, &rows[r][block], scales, step);
                    }
                }
                add_step(lanes, &mut sums, weights, x, step);
            }
        }
        sums
    }
}

/// Sixteen bytes from `at` on.
#[inline(always)]
fn sixteen<const N: usize>(raw: &[u8; N], at: usize) -> &[u8; 16] {
    raw[at..].first_chunk().expect("a block has them")
}

/// An IEEE half. By integers: two bytes that are brought into a vector through memory wait there.
#[inline(always)]
fn half(raw: &[u8], at: usize) -> f32 {
    half_to_f32(u16::from_le_bytes([raw[at], raw[at + 1]]))
}

#[derive(Clone, Copy)]
struct Q8;

impl Block for Q8 {
    stored!(34, 2, f32);

    #[inline(always)]
    fn scales<L: Lanes>(_lanes: L, raw: &Self::Raw) -> f32 {
        half(raw, 0)
    }

    #[inline(always)]
    fn numbers<L: Lanes>(lanes: L, raw: &Self::Raw, scale: &f32, step: usize) -> L::V {
        lanes.mul(lanes.i8s(sixteen(raw, 2 + 16 * step)), lanes.splat(*scale))
    }
}

#[derive(Clone, Copy)]
struct Q4;

impl Block for Q4 {
    stored!(18, 2, f32);

    #[inline(always)]
    fn scales<L: Lanes>(_lanes: L, raw: &Self::Raw) -> f32 {
        half(raw, 0)
    }

    #[inline(always)]
    fn numbers<L: Lanes>(lanes: L, raw: &Self::Raw, scale: &f32, step: usize) -> L::V {
        let bytes = lanes.u8s(sixteen(raw, 2));
        let nibbles = if step == 0 { bytes } else { lanes.drop_nibbles(bytes) };
        lanes.mul(lanes.low_nibbles(nibbles), lanes.splat(*scale))
    }
}

#[derive(Clone, Copy)]
struct Mx;

impl Block for Mx {
    stored!(17, 2, f32);

    #[inline(always)]
    fn scales<L: Lanes>(_lanes: L, raw: &Self::Raw) -> f32 {
        half_power_of_two(raw[0])
    }

    #[inline(always)]
    fn numbers<L: Lanes>(lanes: L, raw: &Self::Raw, scale: &f32, step: usize) -> L::V {
        let bytes = lanes.u8s(sixteen(raw, 1));
        let nibbles = if step == 0 { bytes } else { lanes.drop_nibbles(bytes) };
        let values = lanes.look_up(lanes.load(&E2M1_DOUBLED), nibbles);
        lanes.mul(values, lanes.splat(*scale))
    }
}

/// `d` times each of the eight scales, then `-dmin` times each minimum.
#[inline(always)]
fn scales_of_k<L: Lanes>(lanes: L, raw: &[u8]) -> [f32; 16] {
    let (d, dmin) = (half(raw, 0), half(raw, 2));
    let packed = lanes.float(lanes.u8s(&scales_and_minima(&raw[4..16])));
    let (d, dmin) = ([d; 8], [-dmin; 8]);
    let mut factors = [0.0; 16];
    factors[..8].copy_from_slice(&d);
    factors[8..].copy_from_slice(&dmin);
    lanes.values(lanes.mul(packed, lanes.load(&factors)))
}

#[derive(Clone, Copy)]
struct Q4K;

impl Block for Q4K {
    stored!(144, 16, [f32; 16]);

    #[inline(always)]
    fn scales<L: Lanes>(lanes: L, raw: &Self::Raw) -> [f32; 16] {
        scales_of_k(lanes, raw)
    }

    #[inline(always)]
    fn numbers<L: Lanes>(lanes: L, raw: &Self::Raw, scales: &[f32; 16], step: usize) -> L::V {
        let sub = step / 2;
        let bytes = lanes.u8s(sixteen(raw, 16 + sub / 2 * 32 + step % 2 * 16));
        let nibbles =
            if sub.is_multiple_of(2) { lanes.and(bytes, 15) } else { lanes.drop_nibbles(bytes) };
        lanes.fma(lanes.float(nibbles), lanes.splat(scales[sub]), lanes.splat(scales[8 + sub]))
    }
}

#[derive(Clone, Copy)]
struct Q5K;

impl Block for Q5K {
    stored!(176, 16, [f32; 16]);

    #[inline(always)]
    fn scales<L: Lanes>(lanes: L, raw: &Self::Raw) -> [f32; 16] {
        scales_of_k(lanes, raw)
    }

    #[inline(always)]
    fn numbers<L: Lanes>(lanes: L, raw: &Self::Raw, scales: &[f32; 16], step: usize) -> L::V {
        let sub = step / 2;
        let bytes = lanes.u8s(sixteen(raw, 48 + sub / 2 * 32 + step % 2 * 16));
        let nibbles =
            if sub.is_multiple_of(2) { lanes.and(bytes, 15) } else { lanes.drop_nibbles(bytes) };
        let fifth = lanes.u8s(sixteen(raw, 16 + step % 2 * 16));
        let fifth = lanes.and(lanes.shift(fifth, 4 - sub as i32), 16);
        let numbers = lanes.float(lanes.or(nibbles, fifth));
        lanes.fma(numbers, lanes.splat(scales[sub]), lanes.splat(scales[8 + sub]))
    }
}

#[derive(Clone, Copy)]
struct Q6K;

impl Block for Q6K {
    stored!(210, 16, [f32; 16]);

    #[inline(always)]
    fn scales<L: Lanes>(lanes: L, raw: &Self::Raw) -> [f32; 16] {
        let d = lanes.splat(half(raw, 208));
        lanes.values(lanes.mul(lanes.i8s(sixteen(raw, 192)), d))
    }

    #[inline(always)]
    fn numbers<L: Lanes>(lanes: L, raw: &Self::Raw, scales: &[f32; 16], step: usize) -> L::V {
        // Halves of eight steps, in each four quarters of two.
        let (half_of, quarter, part) = (step / 8, step / 2 % 4, step % 2);
        let bytes = lanes.u8s(sixteen(raw, half_of * 64 + quarter % 2 * 32 + part * 16));
        let low = if quarter < 2 { lanes.and(bytes, 15) } else { lanes.drop_nibbles(bytes) };
        let pairs = lanes.u8s(sixteen(raw, 128 + half_of * 32 + part * 16));
        let high = lanes.and(lanes.shift(pairs, 4 - 2 * quarter as i32), 48);
        let numbers = lanes.add(lanes.float(lanes.or(low, high)), lanes.splat(-32.0));
        lanes.mul(numbers, lanes.splat(scales[step]))
    }
}
