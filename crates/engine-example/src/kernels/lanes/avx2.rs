//! Lanes as two AVX2 registers. Every function needs `avx2,fma,f16c`.

use std::arch::x86_64::*;

use bytemuck::{cast, cast_ref};

use super::super::number::E2M1;

/// Lanes 0..8 and 8..16.
pub(in super::super) type V = [__m256; 2];
/// Words 0..8 and 8..16.
pub(in super::super) type W = [__m256i; 2];

pub(in super::super) const WIDE: bool = false;

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn splat(x: f32) -> V {
    [_mm256_set1_ps(x); 2]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn load(x: &[f32; 16]) -> V {
    f32s(cast_ref(x))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn store(v: V, out: &mut [f32; 16]) {
    *out = cast(v);
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn fma(a: V, b: V, c: V) -> V {
    [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn sum(v: V) -> f32 {
    sum_8(_mm256_add_ps(v[0], v[1]))
}

/// The last three levels of the contract's tree.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn sum_8(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn pick(v: V, index: &[u32; 16]) -> V {
    let index: &[[u8; 32]; 2] = cast_ref(index);
    [pick_8(v, cast(index[0])), pick_8(v, cast(index[1]))]
}

/// Eight lanes out of sixteen: looks in both halves, then bit 3 of the index chooses.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn pick_8(v: V, index: __m256i) -> __m256 {
    let low = _mm256_permutevar8x32_ps(v[0], index);
    let high = _mm256_permutevar8x32_ps(v[1], index);
    _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index)))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn f32s(bytes: &[u8; 64]) -> V {
    let [low, high] = words(bytes);
    [_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn f16s(bytes: &[u8; 32]) -> V {
    let [low, high]: [[u8; 16]; 2] = cast(*bytes);
    [f16s_8(cast(low)), f16s_8(cast(high))]
}

/// The smallest normal half, 2^-14.
pub(in super::super) const SMALLEST_HALF: f32 = 1.0 / 16384.0;

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn f16s_8(halves: __m128i) -> __m256 {
    // A subnormal has the exponent of the smallest normal number but not its leading one: that is
    // put on before the conversion and taken off after it.
    let magnitude = _mm_and_si128(halves, _mm_set1_epi16(i16::MAX));
    let one = _mm_set1_epi16(0x0400);
    let subnormal = _mm_cmpgt_epi16(one, magnitude);
    let value = _mm256_cvtph_ps(_mm_or_si128(magnitude, _mm_and_si128(subnormal, one)));
    let wide = _mm256_castsi256_ps(_mm256_cvtepi16_epi32(subnormal));
    let value = _mm256_sub_ps(value, _mm256_and_ps(wide, _mm256_set1_ps(SMALLEST_HALF)));
    let sign = _mm256_castsi256_ps(_mm256_cvtepi16_epi32(halves));
    _mm256_or_ps(value, _mm256_and_ps(sign, _mm256_set1_ps(-0.0)))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn bf16s(bytes: &[u8; 32]) -> V {
    let [low, high]: [[u8; 16]; 2] = cast(*bytes);
    [bf16s_8(cast(low)), bf16s_8(cast(high))]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn bf16s_8(halves: __m128i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn fp8s(bytes: &[u8; 32]) -> [V; 2] {
    let [low, high]: [[u8; 16]; 2] = cast(*bytes);
    [fp8s_16(cast(low)), fp8s_16(cast(high))]
}

/// E4M3 by way of a half, whose normal numbers hold all of it: shifted and with the bias moved.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fp8s_16(codes: __m128i) -> V {
    let moved = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(codes));
    let magnitude = _mm256_and_si256(moved, _mm256_set1_epi16(0x3F80));
    let normal = _mm256_add_epi16(magnitude, _mm256_set1_epi16(8 << 10));
    // Magnitudes 0 to 7 in units of 2^-9: upper bytes of halves, whose lower bytes are zero.
    let table = cast([[0u8, 0x18, 0x1C, 0x1E, 0x20, 0x21, 0x22, 0x23, 0, 0, 0, 0, 0, 0, 0, 0]; 2]);
    let looked_up = _mm256_shuffle_epi8(table, _mm256_slli_epi16::<1>(magnitude));
    let subnormal = _mm256_cmpgt_epi16(_mm256_set1_epi16(8 << 7), magnitude);
    let halves = _mm256_blendv_epi8(normal, looked_up, subnormal);
    // The one NaN code of each sign becomes a half's: all exponent bits on.
    let nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3F80));
    let halves = _mm256_or_si256(halves, _mm256_and_si256(nan, _mm256_set1_epi16(0x7E00)));
    let sign = _mm256_and_si256(moved, _mm256_set1_epi16(i16::MIN));
    let halves = _mm256_or_si256(halves, sign);
    [
        _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
        _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)),
    ]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn words(bytes: &[u8; 64]) -> W {
    let [low, high]: &[[u8; 32]; 2] = cast_ref(bytes);
    [cast(*low), cast(*high)]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn low_nibbles(words: W) -> V {
    [low_nibbles_8(words[0]), low_nibbles_8(words[1])]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn low_nibbles_8(words: __m256i) -> __m256 {
    // 2^23 + nibble has the nibble as its last bits: one subtraction makes it a number.
    let biased =
        _mm256_or_si256(_mm256_and_si256(words, _mm256_set1_epi32(15)), _mm256_set1_epi32(BIAS));
    _mm256_sub_ps(_mm256_castsi256_ps(biased), _mm256_set1_ps(8_388_616.0))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn e8m0s(bytes: &[u8; 16]) -> V {
    let [low, high]: [[u8; 8]; 2] = cast(*bytes);
    [e8m0s_8(low), e8m0s_8(high)]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn e8m0s_8(codes: [u8; 8]) -> __m256 {
    let codes = _mm256_cvtepu8_epi32(cast([codes, [0; 8]]));
    // 2^-127 is subnormal, and the bit that makes it one makes NaN of the largest code.
    let least = _mm256_cmpeq_epi32(codes, _mm256_setzero_si256());
    let most = _mm256_cmpeq_epi32(codes, _mm256_set1_epi32(255));
    let last = _mm256_and_si256(_mm256_or_si256(least, most), _mm256_set1_epi32(1 << 22));
    _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32::<23>(codes), last))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn low_e2m1s(words: W) -> V {
    [low_e2m1s_8(words[0]), low_e2m1s_8(words[1])]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn low_e2m1s_8(words: __m256i) -> __m256 {
    // A permutation looks at the low three bits of its index: the magnitude.
    let magnitude = _mm256_permutevar8x32_ps(cast(E2M1), words);
    let sign = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(words));
    _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0)))
}

/// Bits of 2^23.
const BIAS: i32 = (127 + 23) << 23;

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn drop_nibbles(words: W) -> W {
    [_mm256_srli_epi32::<4>(words[0]), _mm256_srli_epi32::<4>(words[1])]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn mul(a: V, b: V) -> V {
    [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn add(a: V, b: V) -> V {
    [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn values(v: V) -> [f32; 16] {
    cast(v)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn u8s(bytes: &[u8; 16]) -> W {
    let bytes: __m128i = cast(*bytes);
    [_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes))]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn i8s(bytes: &[u8; 16]) -> V {
    let bytes: __m128i = cast(*bytes);
    let wide = [_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))];
    float(wide)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn and(words: W, mask: u32) -> W {
    let mask = _mm256_set1_epi32(mask.cast_signed());
    [_mm256_and_si256(words[0], mask), _mm256_and_si256(words[1], mask)]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn or(a: W, b: W) -> W {
    [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn shift(words: W, left: i32) -> W {
    if left < 0 {
        let count = _mm_cvtsi32_si128(-left);
        [_mm256_srl_epi32(words[0], count), _mm256_srl_epi32(words[1], count)]
    } else {
        let count = _mm_cvtsi32_si128(left);
        [_mm256_sll_epi32(words[0], count), _mm256_sll_epi32(words[1], count)]
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn float(words: W) -> V {
    [_mm256_cvtepi32_ps(words[0]), _mm256_cvtepi32_ps(words[1])]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in super::super) fn look_up(table: V, words: W) -> V {
    [pick_8(table, words[0]), pick_8(table, words[1])]
}
