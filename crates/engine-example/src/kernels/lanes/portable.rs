//! Lanes in plain Rust: NEON on aarch64, and a slow fallback on an x86 without AVX2 (where a fused
//! multiply-add is a call).

use half::f16;

use super::super::number::{e2m1_to_f32, e8m0_to_f32};
use super::Lanes;

/// Needs nothing but the target's baseline.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Portable;

#[inline(always)]
fn lanes<T: Copy + Default>(lane: impl Fn(usize) -> T) -> [T; 16] {
    let mut all = [T::default(); 16];
    for (l, one) in all.iter_mut().enumerate() {
        *one = lane(l);
    }
    all
}

impl Lanes for Portable {
    type V = [f32; 16];
    type W = [u32; 16];

    // NEON has 32 registers of 4 lanes: too few for 4 x 4 tiles.
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; 16]
    }

    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Self::V {
        *x
    }

    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32; 16]) {
        *out = v;
    }

    #[inline(always)]
    fn prefetch<T>(self, _at: &T, _ahead: usize) {}

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        lanes(|l| a[l].mul_add(b[l], c[l]))
    }

    #[inline(always)]
    fn sum(self, mut v: Self::V) -> f32 {
        for width in [8, 4, 2, 1] {
            for l in 0..width {
                v[l] += v[l + width];
            }
        }
        v[0]
    }

    #[inline(always)]
    fn pick(self, v: Self::V, index: &[u32; 16]) -> Self::V {
        lanes(|l| v[(index[l] & 15) as usize])
    }

    #[inline(always)]
    fn f32s(self, bytes: &[u8; 64]) -> Self::V {
        self.words(bytes).map(f32::from_bits)
    }

    #[inline(always)]
    fn f16s(self, bytes: &[u8; 32]) -> Self::V {
        lanes(|l| f16::from_le_bytes([bytes[2 * l], bytes[2 * l + 1]]).to_f32_const())
    }

    #[inline(always)]
    fn bf16s(self, bytes: &[u8; 32]) -> Self::V {
        lanes(|l| f32::from_bits(u32::from_le_bytes([0, 0, bytes[2 * l], bytes[2 * l + 1]])))
    }

    #[inline(always)]
    fn fp8s(self, bytes: &[u8; 32]) -> [Self::V; 2] {
        let half = |first: usize| lanes(|l| fp8(bytes[first + l]));
        [half(0), half(16)]
    }

    #[inline(always)]
    fn e8m0s(self, bytes: &[u8; 16]) -> Self::V {
        lanes(|l| e8m0_to_f32(bytes[l]))
    }

    #[inline(always)]
    fn words(self, bytes: &[u8; 64]) -> Self::W {
        let (words, _) = bytes.as_chunks::<4>();
        lanes(|l| u32::from_le_bytes(words[l]))
    }

    #[inline(always)]
    fn low_nibbles(self, words: Self::W) -> Self::V {
        lanes(|l| ((words[l] & 15) as i32 - 8) as f32)
    }

    #[inline(always)]
    fn low_e2m1s(self, words: Self::W) -> Self::V {
        lanes(|l| e2m1_to_f32(words[l] as u8))
    }

    #[inline(always)]
    fn drop_nibbles(self, words: Self::W) -> Self::W {
        lanes(|l| words[l] >> 4)
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(|l| a[l] * b[l])
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(|l| a[l] + b[l])
    }

    #[inline(always)]
    fn values(self, v: Self::V) -> [f32; 16] {
        v
    }

    #[inline(always)]
    fn u8s(self, bytes: &[u8; 16]) -> Self::W {
        lanes(|l| u32::from(bytes[l]))
    }

    #[inline(always)]
    fn i8s(self, bytes: &[u8; 16]) -> Self::V {
        lanes(|l| f32::from(bytes[l].cast_signed()))
    }

    #[inline(always)]
    fn and(self, words: Self::W, mask: u32) -> Self::W {
        lanes(|l| words[l] & mask)
    }

    #[inline(always)]
    fn or(self, a: Self::W, b: Self::W) -> Self::W {
        lanes(|l| a[l] | b[l])
    }

    #[inline(always)]
    fn shift(self, words: Self::W, left: i32) -> Self::W {
        lanes(|l| if left < 0 { words[l] >> -left } else { words[l] << left })
    }

    #[inline(always)]
    fn float(self, words: Self::W) -> Self::V {
        lanes(|l| words[l].cast_signed() as f32)
    }

    #[inline(always)]
    fn look_up(self, table: Self::V, words: Self::W) -> Self::V {
        lanes(|l| table[(words[l] & 15) as usize])
    }
}

/// The value of an E4M3 code, without a branch.
#[inline(always)]
fn fp8(code: u8) -> f32 {
    let magnitude = u32::from(code & 0x7F);
    let sign = u32::from(code & 0x80) << 24;
    // 2^-9 is the unit of E4M3's subnormals; 120 = 127 - 7 moves the bias of the others.
    let subnormal = magnitude as f32 * f32::from_bits((127 - 9) << 23);
    let normal = f32::from_bits((magnitude << 20) + (120 << 23));
    let value = if magnitude < 8 { subnormal } else { normal };
    let value = if magnitude == 0x7F { f32::NAN } else { value };
    f32::from_bits(value.to_bits() | sign)
}
