//! ggml's block formats: what a stored number is, one at a time.
//!
//! Layouts and formulas are those of ggml (`ggml-common.h`, `ggml-quants.c: dequantize_row_*`).

use half::f16;

use super::number::pair;

/// A format whose rows are blocks of 32 or 256 numbers that share their scales.
///
/// `d` and `dmin` are IEEE halves, `e` is a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockType {
    /// 32 numbers in 34 bytes: `d`, 32 signed bytes `q`. `W = d q`.
    Q8_0,
    /// 32 numbers in 18 bytes: `d`, 16 bytes; number `i` is the low nibble of byte `i`, number
    /// `16 + i` the high one. `W = d (q - 8)`.
    Q4_0,
    /// 256 numbers in 144 bytes: `d`, `dmin`, 12 bytes with a 6-bit scale and minimum for each 32
    /// numbers, 128 bytes of nibbles. `W = (d s) q - (dmin m)`.
    Q4K,
    /// 256 numbers in 176 bytes: as `Q4K`, with a fifth bit of each number in 32 bytes before the
    /// nibbles.
    Q5K,
    /// 256 numbers in 210 bytes: 128 bytes of low nibbles, 64 of upper bit pairs, a signed byte
    /// of scale for each 16 numbers, `d`. `W = (d s) (q - 32)`.
    Q6K,
    /// 32 numbers in 17 bytes: exponent byte `e`, nibbles as in `Q4_0` that are E2M1 codes.
    /// `W = 2^(e-127) q`.
    Mxfp4,
}

/// E2M1 codes as twice their value.
pub(super) const E2M1_DOUBLED: [f32; 16] =
    [0., 1., 2., 3., 4., 6., 8., 12., 0., -1., -2., -3., -4., -6., -8., -12.];

impl BlockType {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Q8_0, Self::Q4_0, Self::Q4K, Self::Q5K, Self::Q6K, Self::Mxfp4];

    /// Numbers in a block.
    #[must_use]
    pub fn elements(self) -> usize {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Mxfp4 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub fn size_bytes(self) -> usize {
        match self {
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Mxfp4 => 17,
        }
    }

    /// Number `i` of a block: the formula with its scale rounded first, then one rounding.
    pub(super) fn read(self, block: &[u8], i: usize) -> f32 {
        let half = |at: usize| f16::from_le_bytes(pair(&block[at..], 0)).to_f32();
        match self {
            Self::Q8_0 => f32::from(block[2 + i].cast_signed()) * half(0),
            Self::Q4_0 => (f32::from(nibble(&block[2..], i)) - 8.0) * half(0),
            Self::Mxfp4 => {
                E2M1_DOUBLED[usize::from(nibble(&block[1..], i))] * half_power_of_two(block[0])
            }
            Self::Q4K | Self::Q5K => {
                let sub = i / 32;
                let packed = scales_and_minima(&block[4..]);
                let scale = half(0) * f32::from(packed[sub]);
                let minimum = half(2) * f32::from(packed[8 + sub]);
                let nibbles = if self == Self::Q4K { &block[16..] } else { &block[48..] };
                let byte = nibbles[i / 64 * 32 + i % 32];
                let mut q = byte >> (sub % 2 * 4) & 15;
                if self == Self::Q5K {
                    q |= (block[16 + i % 32] >> sub & 1) << 4;
                }
                f32::from(q).mul_add(scale, -minimum)
            }
            Self::Q6K => {
                // Halves of 128 numbers, in each four quarters of 32.
                let (half_of, quarter, l) = (i / 128, i / 32 % 4, i % 32);
                let low = block[half_of * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
                let high = block[128 + half_of * 32 + l] >> (2 * quarter) & 3;
                let scale = half(208) * f32::from(block[192 + i / 16].cast_signed());
                (f32::from(low | high << 4) - 32.0) * scale
            }
        }
    }
}

/// Number `i` of 32: the first sixteen in the low nibbles.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 16] >> (i / 16 * 4) & 15
}

/// `2^(e-128)`, half the scale that belongs to [`E2M1_DOUBLED`]; 255 is no NaN here, as in ggml.
#[inline(always)]
pub(super) fn half_power_of_two(e: u8) -> f32 {
    let bits = match e {
        0 | 1 => 0x0020_0000 << e,
        _ => u32::from(e - 1) << 23,
    };
    f32::from_bits(bits)
}

/// The eight 6-bit scales, then the eight minima, of the 12 packed bytes: the first four of each
/// are whole, the upper two bits of the last four stand in the upper bits of the first.
#[inline(always)]
pub(super) fn scales_and_minima(packed: &[u8]) -> [u8; 16] {
    let word = |at: usize| {
        u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]])
    };
    let (scales, minima, last) = (word(0), word(4), word(8));
    let (low, high) = (0x0f0f_0f0f, 0x3030_3030);
    let words = [
        scales & 0x3f3f_3f3f,
        last & low | scales >> 2 & high,
        minima & 0x3f3f_3f3f,
        last >> 4 & low | minima >> 2 & high,
    ];
    let mut bytes = [0; 16];
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
