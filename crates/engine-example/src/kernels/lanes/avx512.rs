//! Lanes as one AVX-512 register. Every function needs the features of [`super::super::isa`].

use std::arch::x86_64::*;

use bytemuck::{cast, cast_ref};

use super::super::isa::load_512;
use super::avx2::{SMALLEST_HALF, sum_8};

pub(in super::super) type V = __m512;
pub(in super::super) type W = __m512i;

pub(in super::super) const WIDE: bool = true;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn splat(x: f32) -> V {
    _mm512_set1_ps(x)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn load(x: &[f32; 16]) -> V {
    f32s(cast_ref(x))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn store(v: V, out: &mut [f32; 16]) {
    // Two halves: there is no safe cast of the whole register.
    *out = cast([_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)]);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn fma(a: V, b: V, c: V) -> V {
    _mm512_fmadd_ps(a, b, c)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn sum(v: V) -> f32 {
    sum_8(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn pick(v: V, index: &[u32; 16]) -> V {
    _mm512_permutexvar_ps(words(cast_ref(index)), v)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn f32s(bytes: &[u8; 64]) -> V {
    _mm512_castsi512_ps(words(bytes))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn f16s(bytes: &[u8; 32]) -> V {
    let halves: __m256i = cast(*bytes);
    // A subnormal has the exponent of the smallest normal number but not its leading one: that is
    // put on before the conversion and taken off after it.
    let subnormal = _mm256_testn_epi16_mask(halves, _mm256_set1_epi16(0x7C00));
    let magnitude = _mm256_and_si256(halves, _mm256_set1_epi16(i16::MAX));
    let one = _mm256_set1_epi16(0x0400);
    let value = _mm512_cvtph_ps(_mm256_mask_add_epi16(magnitude, subnormal, magnitude, one));
    let value = _mm512_mask_sub_ps(value, subnormal, value, _mm512_set1_ps(SMALLEST_HALF));
    let signs = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves));
    // 0xF8 is "a or (b and c)".
    let sign = _mm512_set1_epi32(i32::MIN);
    _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xF8>(_mm512_castps_si512(value), signs, sign))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn bf16s(bytes: &[u8; 32]) -> V {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(cast(*bytes))))
}

/// Halves of the E4M3 magnitudes 0 to 7 (in units of 2^-9), and of 0x7F in the last place.
const SPECIAL: [u16; 32] = {
    let mut halves = [0; 32];
    [halves[1], halves[2], halves[3], halves[4]] = [0x1800, 0x1C00, 0x1E00, 0x2000];
    [halves[5], halves[6], halves[7], halves[31]] = [0x2100, 0x2200, 0x2300, 0x7E00];
    halves
};

/// E4M3 by way of a half, whose normal numbers hold all of it: shifted and with the bias moved.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn fp8s(bytes: &[u8; 32]) -> [V; 2] {
    let codes = _mm512_cvtepi8_epi16(cast(*bytes));
    let moved = _mm512_slli_epi16::<7>(codes);
    let magnitude = _mm512_and_si512(moved, _mm512_set1_epi16(0x3F80));
    let normal = _mm512_add_epi16(magnitude, _mm512_set1_epi16(8 << 10));
    // Magnitudes 0 to 7 and 0x7F are looked up: one unsigned comparison finds both ends, and
    // their low five bits tell them apart.
    let from_first = _mm512_sub_epi16(magnitude, _mm512_set1_epi16(8 << 7));
    let special = _mm512_cmpgt_epu16_mask(from_first, _mm512_set1_epi16(0x76 << 7));
    let halves =
        _mm512_mask_permutexvar_epi16(normal, special, codes, load_512(cast_ref(&SPECIAL)));
    // 0xF8 is "a or (b and c)": adds the sign.
    let sign = _mm512_set1_epi16(i16::MIN);
    let halves = _mm512_ternarylogic_epi32::<0xF8>(halves, moved, sign);
    [
        _mm512_cvtph_ps(_mm512_castsi512_si256(halves)),
        _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(halves)),
    ]
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn words(bytes: &[u8; 64]) -> W {
    load_512(bytes)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn low_nibbles(words: W) -> V {
    // A permutation looks at the low four bits of its index, so it is the whole decoding.
    let values =
        _mm512_setr_ps(-8., -7., -6., -5., -4., -3., -2., -1., 0., 1., 2., 3., 4., 5., 6., 7.);
    _mm512_permutexvar_ps(words, values)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn drop_nibbles(words: W) -> W {
    _mm512_srli_epi32::<4>(words)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn e8m0s(bytes: &[u8; 16]) -> V {
    let codes = _mm512_cvtepu8_epi32(cast(*bytes));
    // 2^-127 is subnormal, and the bit that makes it one makes NaN of the largest code.
    let least = _mm512_cmpeq_epi32_mask(codes, _mm512_setzero_si512());
    let most = _mm512_cmpeq_epi32_mask(codes, _mm512_set1_epi32(255));
    let powers = _mm512_slli_epi32::<23>(codes);
    let last = _mm512_set1_epi32(1 << 22);
    _mm512_castsi512_ps(_mm512_mask_or_epi32(powers, least | most, powers, last))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn mul(a: V, b: V) -> V {
    _mm512_mul_ps(a, b)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn low_e2m1s(words: W) -> V {
    // A permutation looks at the low four bits of its index, so it is the whole decoding.
    let values =
        _mm512_setr_ps(0., 0.5, 1., 1.5, 2., 3., 4., 6., -0., -0.5, -1., -1.5, -2., -3., -4., -6.);
    _mm512_permutexvar_ps(words, values)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn add(a: V, b: V) -> V {
    _mm512_add_ps(a, b)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn values(v: V) -> [f32; 16] {
    cast([_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)])
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn u8s(bytes: &[u8; 16]) -> W {
    _mm512_cvtepu8_epi32(cast(*bytes))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn i8s(bytes: &[u8; 16]) -> V {
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(cast(*bytes)))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn and(words: W, mask: u32) -> W {
    _mm512_and_si512(words, _mm512_set1_epi32(mask.cast_signed()))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn or(a: W, b: W) -> W {
    _mm512_or_si512(a, b)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn shift(words: W, left: i32) -> W {
    if left < 0 {
        _mm512_srl_epi32(words, _mm_cvtsi32_si128(-left))
    } else {
        _mm512_sll_epi32(words, _mm_cvtsi32_si128(left))
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn float(words: W) -> V {
    _mm512_cvtepi32_ps(words)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
pub(in super::super) fn look_up(table: V, words: W) -> V {
    _mm512_permutexvar_ps(words, table)
}
