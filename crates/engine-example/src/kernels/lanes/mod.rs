//! Sixteen `f32` lanes and the few operations that the kernels need, for each instruction set.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub(super) mod portable;

/// An instruction set, as a value: who holds one may run it.
///
/// Every operation gives the same bits in every implementation. Methods are inlined into a
/// function that enables the features, so implementations must be `#[inline(always)]`.
pub(super) trait Lanes: Copy {
    /// Sixteen `f32`.
    type V: Copy;
    /// Sixteen `u32`.
    type W: Copy;

    /// Enough registers for tiles of 4 rows x 4 tokens.
    const WIDE: bool;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// A vector from memory.
    fn load(self, x: &[f32; 16]) -> Self::V;
    /// A vector to memory.
    fn store(self, v: Self::V, out: &mut [f32; 16]);
    /// Starts to bring in the cache line that lies `ahead` bytes after `at`,
    /// which may be anywhere.
    fn prefetch<T>(self, at: &T, ahead: usize);
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The contract's tree: `l + 8`, `l + 4`, `l + 2`, `l + 1`.
    fn sum(self, v: Self::V) -> f32;
    /// Lane `l` of the result is lane `index[l]` (below 16) of `v`.
    fn pick(self, v: Self::V, index: &[u32; 16]) -> Self::V;

    /// Stored singles.
    fn f32s(self, bytes: &[u8; 64]) -> Self::V;
    /// Stored halves.
    fn f16s(self, bytes: &[u8; 32]) -> Self::V;
    /// Stored bfloat16s.
    fn bf16s(self, bytes: &[u8; 32]) -> Self::V;
    /// Stored FP8 E4M3.
    ///
    /// Neither this nor `f16s` may hand a subnormal to an instruction: the processor takes some 65
    /// cycles for one, wherever it stands in a vector, and stored weights have many.
    fn fp8s(self, bytes: &[u8; 32]) -> [Self::V; 2];

    /// Sixteen E8M0 scales: `2^(code - 127)`, NaN for 255 (OCP Microscaling Formats 1.0, 2023).
    fn e8m0s(self, bytes: &[u8; 16]) -> Self::V;

    /// Stored 32-bit words.
    fn words(self, bytes: &[u8; 64]) -> Self::W;
    /// `nibble - 8` of each word's lowest nibble.
    fn low_nibbles(self, words: Self::W) -> Self::V;
    /// The E2M1 value of each word's lowest nibble: sign, two bits of exponent, one of mantissa.
    fn low_e2m1s(self, words: Self::W) -> Self::V;
    /// Each word without its lowest nibble.
    fn drop_nibbles(self, words: Self::W) -> Self::W;

    /// `a * b`, rounded once.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a + b`, rounded once.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// A vector to memory, from where a lane becomes a `splat` cheaply.
    fn values(self, v: Self::V) -> [f32; 16];
    /// Stored bytes as words.
    fn u8s(self, bytes: &[u8; 16]) -> Self::W;
    /// Stored signed bytes.
    fn i8s(self, bytes: &[u8; 16]) -> Self::V;
    /// The bits of `mask` in each word.
    fn and(self, words: Self::W, mask: u32) -> Self::W;
    /// The bits of both.
    fn or(self, a: Self::W, b: Self::W) -> Self::W;
    /// Each word shifted left by `left` bits, right if that is below 0.
    fn shift(self, words: Self::W, left: i32) -> Self::W;
    /// Words below 2^31 as numbers.
    fn float(self, words: Self::W) -> Self::V;
    /// Lane `l` of the result is the lane of `table` that the lowest nibble of word `l` names.
    fn look_up(self, table: Self::V, words: Self::W) -> Self::V;
}
