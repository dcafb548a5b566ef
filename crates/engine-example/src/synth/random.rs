//! Random weights as a function of a seed and a place: no state, so any thread can make any
//! piece.

use crate::kernels::fp8_to_f32;
use half::bf16;

/// What fills a tensor.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Fill {
    /// BF16, nearly normal around `mean`.
    Normal { mean: f32, std: f32 },
    /// 4-bit integers from -7 to 7 in offset form (code = integer + 8), eight in a word.
    Codes,
    /// BF16 between 0.75 and 1.25 times `scale`.
    Scales { scale: f32 },
    /// Two 64-bit integers.
    Pair([u64; 2]),
    /// F32, nearly normal around `mean`.
    Singles { mean: f32, std: f32 },
    /// Any bits: two E2M1 codes a byte.
    Bits,
    /// E8M0 scales: half of them `code`, the others half and twice that.
    Powers { code: u8 },
    /// E4M3 codes of numbers that are equally likely from -448 to 448.
    Eights,
    /// F32 between 0.75 and 1.25 times `scale`.
    SingleScales { scale: f32 },
}

/// Standard deviation of what [`Fill::Codes`] makes: zero counts twice among 16 codes.
const CODES_STD: f32 = 4.183_3;
/// Root mean square of the factor in [`Fill::Scales`].
const SCALES_RMS: f32 = 1.010_4;

/// The scale with which codes have standard deviation `std`.
pub(super) fn scale_for(std: f32) -> f32 {
    std / (CODES_STD * SCALES_RMS)
}

/// Root mean square of the sixteen E2M1 values: of 0, 1/4, 1, 9/4, 4, 9, 16, 36.
const E2M1_RMS: f32 = 2.926_175_6;
/// Root mean square of 1/2, 1, 1 and 2.
const POWERS_RMS: f32 = 1.25;

/// The E8M0 code with which random E2M1 codes have a standard deviation nearest to `std`.
pub(super) fn power_for(std: f32) -> u8 {
    let power = (std / (E2M1_RMS * POWERS_RMS)).log2().round();
    (power.clamp(-126.0, 126.0) + 127.0) as u8
}

/// The scale with which [`Fill::Eights`] have standard deviation `std`.
pub(super) fn block_scale_for(std: f32) -> f32 {
    let squares = eight_table().map(|code| fp8_to_f32(code).powi(2));
    std / ((squares.iter().sum::<f32>() / squares.len() as f32).sqrt() * SCALES_RMS)
}

/// A tensor's own seed.
pub(super) fn tensor_seed(seed: u64, name: &str) -> u64 {
    name.bytes().fold(mix(seed), |hash, byte| mix(hash ^ u64::from(byte)))
}

/// The output function of SplitMix64.
#[inline(always)]
fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// The `block`-th 64 bits of a tensor: SplitMix64 at any place of its sequence.
#[inline(always)]
fn bits(seed: u64, block: u64) -> u64 {
    mix(seed.wrapping_add(block.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Fills `out` with the tensor's bytes from `offset` on, which is a multiple of 8.
pub(super) fn fill(kind: Fill, seed: u64, offset: u64, out: &mut [u8]) {
    debug_assert!(offset.is_multiple_of(8), "pieces begin at whole blocks");
    match kind {
        Fill::Normal { mean, std } => {
            let table = normal_table(mean, std);
            blocks(out, offset / 4, |block| two_normals(bits(seed, block), &table));
        }
        Fill::Codes => blocks(out, offset / 8, |block| codes(bits(seed, block)).to_le_bytes()),
        Fill::Scales { scale } => {
            let table = scale_table(scale);
            blocks(out, offset / 8, |block| four_scales(bits(seed, block), &table));
        }
        Fill::Singles { mean, std } => {
            let table = normal_values(mean, std);
            blocks(out, offset / 8, |block| two_singles(bits(seed, block), &table));
        }
        Fill::Bits => blocks(out, offset / 8, |block| bits(seed, block).to_le_bytes()),
        Fill::Powers { code } => {
            // Two bits a scale: the sum of their halves is 0, 1, 1 or 2.
            blocks(out, offset / 8, |block| {
                let bits = bits(seed, block).to_le_bytes();
                bits.map(|bits| code - 1 + (bits & 1) + (bits >> 1 & 1))
            });
        }
        Fill::Eights => {
            let table = eight_table();
            blocks(out, offset / 8, |block| {
                bits(seed, block).to_le_bytes().map(|step| table[usize::from(step)])
            });
        }
        Fill::SingleScales { scale } => {
            let table = scale_values(scale);
            blocks(out, offset / 8, |block| two_scales(bits(seed, block), &table));
        }
        Fill::Pair(pair) => {
            blocks(out, offset / 8, |block| pair[(block % 2) as usize].to_le_bytes());
        }
    }
}

/// `make(n)` is the `n`-th group of `N` bytes.
#[inline(always)]
fn blocks<const N: usize>(out: &mut [u8], first: u64, make: impl Fn(u64) -> [u8; N]) {
    let (whole, rest) = out.as_chunks_mut::<N>();
    let mut block = first;
    for bytes in whole {
        *bytes = make(block);
        block += 1;
    }
    let last = make(block);
    rest.copy_from_slice(&last[..rest.len()]);
}

/// BF16 values by the sum of four random bytes, which is nearly normal.
fn normal_table(mean: f32, std: f32) -> [u16; 1024] {
    normal_values(mean, std).map(|value| bf16::from_f32(value).to_bits())
}

fn normal_values(mean: f32, std: f32) -> [f32; 1024] {
    // Four times the variance of a byte, (2^16 - 1) / 12.
    let unit = (4.0_f32 * 65_535.0 / 12.0).sqrt();
    std::array::from_fn(|sum| mean + std * (sum as f32 - 4.0 * 127.5) / unit)
}

#[inline(always)]
fn two_singles(bits: u64, table: &[f32; 1024]) -> [u8; 8] {
    let [a, b] = two_sums(bits).map(|sum| table[sum].to_le_bytes());
    let mut both = [0; 8];
    both[..4].copy_from_slice(&a);
    both[4..].copy_from_slice(&b);
    both
}

/// Two sums of four random bytes each.
#[inline(always)]
fn two_sums(bits: u64) -> [usize; 2] {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    let pairs = (bits & EVEN) + ((bits >> 8) & EVEN);
    let fours = pairs + (pairs >> 16);
    [(fours & 1023) as usize, ((fours >> 32) & 1023) as usize]
}

#[inline(always)]
fn two_normals(bits: u64, table: &[u16; 1024]) -> [u8; 4] {
    let [[a, b], [c, d]] = two_sums(bits).map(|sum| table[sum].to_le_bytes());
    [a, b, c, d]
}

/// Sixteen codes from 1 to 15: what would be 0 becomes 8, the code of zero.
#[inline(always)]
fn codes(bits: u64) -> u64 {
    const LOW: u64 = 0x1111_1111_1111_1111;
    let any = bits | (bits >> 1) | (bits >> 2) | (bits >> 3);
    bits | ((!any & LOW) << 3)
}

/// BF16 values in equal steps.
fn scale_table(scale: f32) -> [u16; 256] {
    scale_values(scale).map(|value| bf16::from_f32(value).to_bits())
}

fn scale_values(scale: f32) -> [f32; 256] {
    std::array::from_fn(|step| scale * (0.75 + (step as f32 + 0.5) / 512.0))
}

#[inline(always)]
fn two_scales(bits: u64, table: &[f32; 256]) -> [u8; 8] {
    let [a, b] = [bits & 255, bits >> 32 & 255].map(|step| table[step as usize].to_bits());
    (u64::from(a) | u64::from(b) << 32).to_le_bytes()
}

/// The E4M3 codes nearest to 256 numbers in equal steps; none is the code of a NaN.
fn eight_table() -> [u8; 256] {
    /// The largest number that E4M3 has.
    const LARGEST: f32 = 448.0;
    /// Its code.
    const LAST: u8 = 0x7e;
    std::array::from_fn(|step| {
        let number = LARGEST * (step as f32 - 127.5) / 127.5;
        let off = |code: &u8| (fp8_to_f32(*code) - number.abs()).abs();
        let nearest = (0..=LAST).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or(0);
        if number < 0.0 { nearest | 0x80 } else { nearest }
    })
}

#[inline(always)]
fn four_scales(bits: u64, table: &[u16; 256]) -> [u8; 8] {
    let one = |shift: u32| table[((bits >> shift) & 255) as usize].to_le_bytes();
    let [[a, b], [c, d], [e, f], [g, h]] = [one(0), one(16), one(32), one(48)];
    [a, b, c, d, e, f, g, h]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(kind: Fill, seed: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        fill(kind, seed, 0, &mut out);
        out
    }

    fn values(bytes: &[u8]) -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|pair| bf16::from_le_bytes(*pair).to_f32()).collect()
    }

    fn mean_and_std(values: &[f32]) -> (f64, f64) {
        let n = values.len() as f64;
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let square = values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
        (mean, square.sqrt())
    }

    #[test]
    fn pieces_are_parts_of_the_whole() {
        for kind in [
            Fill::Normal { mean: 0.0, std: 1.0 },
            Fill::Codes,
            Fill::Scales { scale: 2.0 },
            Fill::Pair([3, 5]),
            Fill::Singles { mean: 0.0, std: 1.0 },
            Fill::Bits,
            Fill::Powers { code: 120 },
            Fill::Eights,
            Fill::SingleScales { scale: 3.0 },
        ] {
            let whole = bytes(kind, 9, 1002);
            for offset in (0..1000).step_by(8) {
                let mut piece = vec![0; whole.len() - offset];
                fill(kind, 9, offset as u64, &mut piece);
                assert!(piece == whole[offset..], "{kind:?} {offset}");
            }
            if !matches!(kind, Fill::Pair(_)) {
                assert!(whole != bytes(kind, 10, 1002));
            }
        }
    }

    #[test]
    fn values_have_the_spread_they_should() {
        let normal = values(&bytes(Fill::Normal { mean: 0.0, std: 0.25 }, 1, 400_000));
        let (mean, std) = mean_and_std(&normal);
        assert!(mean.abs() < 0.002 && (std - 0.25).abs() < 0.002, "{mean} {std}");
        let beyond = normal.iter().filter(|x| x.abs() > 0.5).count() as f64;
        assert!((0.02..0.07).contains(&(beyond / normal.len() as f64)), "two sigma: {beyond}");
        let norms = mean_and_std(&values(&bytes(Fill::Normal { mean: 1.0, std: 0.1 }, 2, 40_000)));
        assert!((norms.0 - 1.0).abs() < 0.01 && (norms.1 - 0.1).abs() < 0.005, "{norms:?}");
        let codes = bytes(Fill::Codes, 3, 100_000);
        let scales = values(&bytes(Fill::Scales { scale: scale_for(0.5) }, 4, 12_500));
        let nibbles = codes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
        let weights: Vec<f32> = nibbles
            .enumerate()
            .map(|(at, code)| (f32::from(code) - 8.0) * scales[at / 32])
            .collect();
        assert!(codes.iter().all(|byte| byte & 15 != 0 && byte >> 4 != 0));
        let (mean, std) = mean_and_std(&weights);
        assert!(mean.abs() < 0.005 && (std - 0.5).abs() < 0.005, "{mean} {std}");
    }

    #[test]
    fn single_and_mx_values_have_the_spread_they_should() {
        let singles = bytes(Fill::Singles { mean: -1.0, std: 0.5 }, 5, 400_000);
        let singles: Vec<f32> =
            singles.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let (mean, std) = mean_and_std(&singles);
        assert!((mean + 1.0).abs() < 0.01 && (std - 0.5).abs() < 0.01, "{mean} {std}");
        let codes = bytes(Fill::Bits, 6, 160_000);
        let powers = bytes(Fill::Powers { code: power_for(0.02) }, 7, 10_000);
        let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let nibbles = codes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
        let weights: Vec<f32> = nibbles
            .enumerate()
            .map(|(at, code)| {
                let magnitude: f32 = magnitudes[usize::from(code & 7)];
                let sign = if code > 7 { -1.0 } else { 1.0 };
                sign * magnitude * 2f32.powi(i32::from(powers[at / 32]) - 127)
            })
            .collect();
        let (mean, std) = mean_and_std(&weights);
        // The nearest power of two: off by the root of two at most.
        assert!(mean.abs() < 0.001 && (0.0141..0.0283).contains(&std), "{mean} {std}");
    }

    #[test]
    fn eight_bit_values_have_the_spread_they_should() {
        let codes = bytes(Fill::Eights, 8, 160_000);
        let scales = bytes(Fill::SingleScales { scale: block_scale_for(0.02) }, 9, 40_000);
        let scales: Vec<f32> =
            scales.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let weight = |(at, code): (usize, &u8)| fp8_to_f32(*code) * scales[at / 16];
        let weights: Vec<f32> = codes.iter().enumerate().map(weight).collect();
        assert!(weights.iter().all(|weight| weight.is_finite()));
        let (mean, std) = mean_and_std(&weights);
        assert!(mean.abs() < 0.0005 && (std - 0.02).abs() < 0.0005, "{mean} {std}");
        let largest = codes.iter().map(|&code| fp8_to_f32(code)).fold(0.0, f32::max);
        assert_eq!(largest, 448.0, "as a converter scales a block");
    }

    #[test]
    #[ignore = "prints times and checks none: run on an idle machine with --ignored --nocapture"]
    fn measure_bytes_a_second() {
        for kind in [Fill::Normal { mean: 0.0, std: 1.0 }, Fill::Codes, Fill::Scales { scale: 2.0 }]
        {
            let mut out = vec![0; 8 << 20];
            let begun = std::time::Instant::now();
            for round in 0..32 {
                fill(kind, round, 0, &mut out);
            }
            let rate = (32.0 * out.len() as f64) / begun.elapsed().as_secs_f64() / 1e9;
            println!("{kind:?}: {rate:.2} GB/s on one thread");
        }
    }
}
