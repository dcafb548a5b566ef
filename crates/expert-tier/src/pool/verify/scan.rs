//! What the bits of a tensor show, without turning them into numbers.

use crate::pool::Dtype;

/// What a run of elements shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Scan {
    /// Elements that are NaN or infinite.
    pub(super) not_finite: u64,
    /// The first of them.
    pub(super) first: usize,
    /// Whether that one is infinite.
    pub(super) infinite: bool,
    /// Whether every element is zero (of either sign).
    pub(super) zero: bool,
}

/// Looks at little-endian elements of type `dtype`. Of integers only the bytes are looked at;
/// `packed_zero` is the byte that a word of packed zeros consists of, if it is known.
pub(super) fn scan(dtype: Dtype, bytes: &[u8], packed_zero: Option<u8>) -> Scan {
    match dtype {
        Dtype::F64 => scan64(bytes, Bits::of(0x7ff0 << 48, u64::MAX >> 1)),
        Dtype::F32 => scan32(bytes, Bits::of(0x7f80_0000, u32::MAX >> 1)),
        Dtype::F16 => scan16(bytes, Bits::of(0x7c00, u16::MAX >> 1)),
        Dtype::Bf16 => scan16(bytes, Bits::of(0x7f80, u16::MAX >> 1)),
        // Only the largest code of either sign is not finite, and it is NaN.
        Dtype::F8E4m3 => Scan { infinite: false, ..scan8(bytes, Bits::of(0x7f, 0x7f)) },
        Dtype::F8E5m2 => scan8(bytes, Bits::of(0x7c, 0x7f)),
        Dtype::F8E8m0 => Scan { infinite: false, ..scan8(bytes, Bits::of(0xff, 0xff)) },
        _ if dtype.is_block() => scan_blocks(dtype, bytes),
        Dtype::I32 | Dtype::U32 => {
            let only = |wanted: u8| bytes.iter().all(|&byte| byte == wanted);
            Scan { zero: only(0) || packed_zero.is_some_and(only), ..Scan::default() }
        }
        _ => Scan { zero: bytes.iter().all(|&byte| byte == 0), ..Scan::default() },
    }
}

/// Where the scales of a block lie: 16-bit floats at these bytes; of MXFP4 one E8M0 byte.
fn block_scales(dtype: Dtype) -> &'static [usize] {
    match dtype {
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => &[0, 2],
        Dtype::Q2K => &[80, 82],
        Dtype::Q3K => &[108],
        Dtype::Q6K => &[208],
        Dtype::Tq1_0 => &[52],
        Dtype::Tq2_0 => &[64],
        // Its scale is spread over the upper bits of four words.
        Dtype::Iq1M => &[],
        _ => &[0],
    }
}

/// Blocks whose scales are not finite: one such scale makes all numbers of its block so. A tensor
/// is zero if all its bytes are.
fn scan_blocks(dtype: Dtype, bytes: &[u8]) -> Scan {
    let bad = |block: &[u8]| match dtype {
        Dtype::Mxfp4 => block[0] == 0xff,
        _ => block_scales(dtype).iter().any(|&at| block[at + 1] & 0x7c == 0x7c),
    };
    let infinite = |block: &[u8]| {
        let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        dtype != Dtype::Mxfp4 && block_scales(dtype).iter().any(|&at| half(at) & 0x7fff == 0x7c00)
    };
    let blocks = || bytes.chunks_exact(dtype.size_bytes() as usize);
    let mut scan = Scan { zero: bytes.iter().all(|&byte| byte == 0), ..Scan::default() };
    scan.not_finite = blocks().filter(|block| bad(block)).count() as u64;
    if let Some((first, block)) = blocks().enumerate().find(|(_, block)| bad(block)) {
        (scan.first, scan.infinite) = (first, infinite(block));
    }
    scan
}

/// How many elements are zero.
pub(super) fn zeros(dtype: Dtype, bytes: &[u8]) -> usize {
    (0..bytes.len() / dtype.size_bytes() as usize)
        .filter(|&index| is_zero(dtype, bytes, index))
        .count()
}

/// Whether element `index` is zero, of either sign; false for types that scales do not have.
pub(super) fn is_zero(dtype: Dtype, bytes: &[u8], index: usize) -> bool {
    let size = dtype.size_bytes() as usize;
    let Some(element) = bytes.get(index * size..(index + 1) * size) else { return false };
    let float = matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16);
    // Little-endian: the sign is the last byte's highest bit.
    float && element[..size - 1].iter().all(|&byte| byte == 0) && element[size - 1] & 0x7f == 0
}

/// Which bits make an element what it is.
#[derive(Clone, Copy)]
struct Bits<T> {
    /// All set: not finite.
    exponent: T,
    /// All but the sign.
    magnitude: T,
}

impl<T> Bits<T> {
    fn of(exponent: T, magnitude: T) -> Self {
        Self { exponent, magnitude }
    }
}

/// One function a width, so that the loops become vector code.
macro_rules! scan_words {
    ($name:ident, $word:ty) => {
        fn $name(bytes: &[u8], bits: Bits<$word>) -> Scan {
            let (words, _) = bytes.as_chunks::<{ size_of::<$word>() }>();
            let bad = |word: &[u8; size_of::<$word>()]| {
                <$word>::from_le_bytes(*word) & bits.exponent == bits.exponent
            };
            let (mut seen, mut not_finite): ($word, u64) = (0, 0);
            for block in words.chunks(1 << 12) {
                let mut in_block = 0_u32;
                for word in block {
                    seen |= <$word>::from_le_bytes(*word);
                    in_block += u32::from(bad(word));
                }
                not_finite += u64::from(in_block);
            }
            let mut scan = Scan { not_finite, ..Scan::default() };
            scan.zero = seen & bits.magnitude == 0;
            if not_finite > 0 {
                scan.first = words.iter().position(bad).unwrap_or(0);
                let word = <$word>::from_le_bytes(words[scan.first]);
                scan.infinite = word & bits.magnitude == bits.exponent;
            }
            scan
        }
    };
}

scan_words!(scan8, u8);
scan_words!(scan16, u16);
scan_words!(scan32, u32);
scan_words!(scan64, u64);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The naive twin for 32 bits.
    fn naive(values: &[f32]) -> Scan {
        let first = values.iter().position(|value| !value.is_finite());
        Scan {
            not_finite: values.iter().filter(|value| !value.is_finite()).count() as u64,
            first: first.unwrap_or(0),
            infinite: first.is_some_and(|first| values[first].is_infinite()),
            zero: values.iter().all(|&value| value == 0.0),
        }
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_twin(bits in prop::collection::vec(prop_oneof![
            any::<u32>(), Just(0), Just(1 << 31), Just(0x7f80_0000), Just(0xffc0_0000)], 0..9000)
        ) {
            let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            prop_assert_eq!(scan(Dtype::F32, &bytes(&values), None), naive(&values));
            let wanted = values.iter().filter(|value| **value == 0.0).count();
            prop_assert_eq!(zeros(Dtype::F32, &bytes(&values)), wanted);
        }
    }

    #[test]
    fn every_type_knows_its_codes() {
        let one = |dtype, code: u64| {
            let size = dtype_size(dtype);
            scan(
                dtype,
                &[[0; 8], code.to_le_bytes()].map(|word| word[..size].to_vec()).concat(),
                None,
            )
        };
        for (dtype, nan, infinite, largest) in [
            (Dtype::F64, 0x7ff8 << 48, Some(0x7ff0_u64 << 48), 0x7fef_u64 << 48),
            (Dtype::F16, 0x7e00, Some(0xfc00), 0x7bff),
            (Dtype::Bf16, 0xffc0, Some(0x7f80), 0x7f7f),
            (Dtype::F8E4m3, 0xff, None, 0x7e),
            (Dtype::F8E5m2, 0x7d, Some(0xfc), 0x7b),
        ] {
            let found = one(dtype, nan);
            assert_eq!((found.not_finite, found.first, found.infinite), (1, 1, false), "{dtype:?}");
            if let Some(infinite) = infinite {
                assert!(one(dtype, infinite).infinite, "{dtype:?}");
            }
            let found = one(dtype, largest);
            assert_eq!((found.not_finite, found.zero), (0, false), "{dtype:?}");
            let sign = 1 << (8 * dtype_size(dtype) - 1);
            assert!(one(dtype, sign).zero, "{dtype:?}: minus zero is zero");
        }
    }

    #[test]
    fn packed_zeros_are_zeros() {
        assert!(scan(Dtype::I32, &[0x88; 8], Some(0x88)).zero);
        assert!(!scan(Dtype::I32, &[0x88; 8], None).zero);
        assert!(scan(Dtype::I32, &[0; 8], Some(0x88)).zero);
        assert!(!scan(Dtype::I32, &[0x88, 0x88, 0x88, 0x89], Some(0x88)).zero);
        assert!(scan(Dtype::I64, &[], None).zero);
    }

    #[test]
    fn a_blocks_scale_is_looked_at() {
        let block = |dtype: Dtype, at: usize, bytes: &[u8]| {
            let mut all = vec![0; 3 * dtype_size(dtype)];
            let start = dtype_size(dtype) + at;
            all[start..start + bytes.len()].copy_from_slice(bytes);
            scan(dtype, &all, None)
        };
        for (dtype, at) in [
            (Dtype::Q8_0, 0),
            (Dtype::Q4_0, 0),
            (Dtype::Q4K, 2),
            (Dtype::Q5K, 0),
            (Dtype::Q6K, 208),
            (Dtype::Q3K, 108),
        ] {
            let nan = block(dtype, at, &[0x01, 0xfe]);
            assert_eq!((nan.not_finite, nan.first, nan.infinite), (1, 1, false), "{dtype:?}");
            assert!(block(dtype, at, &[0x00, 0x7c]).infinite);
            let largest = block(dtype, at, &[0xff, 0x7b]);
            assert_eq!((largest.not_finite, largest.zero), (0, false), "{dtype:?}");
            assert!(block(dtype, at, &[]).zero);
        }
        assert_eq!(block(Dtype::Mxfp4, 0, &[0xff]).not_finite, 1);
        assert_eq!(block(Dtype::Mxfp4, 1, &[0xff]).not_finite, 0);
    }

    fn dtype_size(dtype: Dtype) -> usize {
        dtype.size_bytes() as usize
    }
}
