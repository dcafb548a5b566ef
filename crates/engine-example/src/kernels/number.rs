//! Stored numbers to `f32`, one at a time.

use super::ScaleType;

/// Value of an FP8 E4M3 code (OCP 8-bit floating point, 2023: bias 7, no infinities, `S.1111.111`
/// is NaN).
pub(crate) fn fp8_to_f32(code: u8) -> f32 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(code >> 3 & 0xF);
    let mantissa = f32::from(code & 7);
    match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => sign * mantissa * 2f32.powi(-9),
        _ => sign * (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    }
}

/// Magnitudes of E2M1 codes 0 to 7 (OCP Microscaling Formats 1.0, 2023, section 5.3.3).
pub(super) const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Value of the E2M1 code in the low four bits.
#[inline(always)]
pub(super) fn e2m1_to_f32(code: u8) -> f32 {
    let sign = u32::from(code & 8) << 28;
    f32::from_bits(E2M1[usize::from(code & 7)].to_bits() | sign)
}

/// Value of an E8M0 scale: `2^(code - 127)`, NaN for 255.
#[inline(always)]
pub(super) fn e8m0_to_f32(code: u8) -> f32 {
    // 2^-127 is subnormal, and the bit that makes it one makes NaN of the largest code.
    let last = if code == 0 || code == 255 { 1 << 22 } else { 0 };
    f32::from_bits(u32::from(code) << 23 | last)
}

/// Value of an IEEE half, without a branch and without an operation that takes or gives a
/// subnormal single.
#[inline(always)]
pub(super) fn half_to_f32(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff);
    // 2^-24 is the unit of a half's subnormals; 112 = 127 - 15 moves the bias of the others, and
    // once more that of infinity and NaN.
    let subnormal = (magnitude as f32 * f32::from_bits((127 - 24) << 23)).to_bits();
    let normal = (magnitude << 13) + (112 << 23);
    let bits = if magnitude < 0x400 { subnormal } else { normal };
    let bits = if magnitude < 0x7c00 { bits } else { bits + (112 << 23) };
    f32::from_bits(bits | u32::from(half & 0x8000) << 16)
}

impl ScaleType {
    /// The `index`th scale of a slice. Panics past its end.
    #[inline(always)]
    pub(super) fn read(self, scales: &[u8], index: usize) -> f32 {
        match self {
            Self::F32 => {
                let at = index * 4;
                f32::from_le_bytes([scales[at], scales[at + 1], scales[at + 2], scales[at + 3]])
            }
            Self::F16 => half::f16::from_le_bytes(pair(scales, index)).to_f32(),
            // A bfloat16 is the upper half of a single.
            Self::Bf16 => f32::from_bits(u32::from(u16::from_le_bytes(pair(scales, index))) << 16),
        }
    }
}

/// The `index`th two bytes of a slice.
#[inline(always)]
pub(super) fn pair(bytes: &[u8], index: usize) -> [u8; 2] {
    [bytes[index * 2], bytes[index * 2 + 1]]
}

#[cfg(test)]
mod tests {
    use super::{e2m1_to_f32, e8m0_to_f32, fp8_to_f32, half_to_f32};

    #[test]
    fn every_half_is_what_the_crate_makes_of_it() {
        for bits in 0..=u16::MAX {
            let (got, wanted) = (half_to_f32(bits), half::f16::from_bits(bits).to_f32());
            let same = got.to_bits() == wanted.to_bits() || (got.is_nan() && wanted.is_nan());
            assert!(same, "{bits:#06x}: {got} {wanted}");
        }
    }

    #[test]
    fn fp8_follows_the_standard_at_its_landmarks() {
        assert_eq!(fp8_to_f32(0x00).to_bits(), 0f32.to_bits());
        assert_eq!(fp8_to_f32(0x80).to_bits(), (-0f32).to_bits());
        assert_eq!(fp8_to_f32(0x01), 0.001953125);
        assert_eq!(fp8_to_f32(0x07), 0.013671875);
        assert_eq!(fp8_to_f32(0x08), 0.015625);
        assert_eq!(fp8_to_f32(0x38), 1.0);
        assert_eq!(fp8_to_f32(0x7E), 448.0);
        assert_eq!(fp8_to_f32(0xFE), -448.0);
        assert!(fp8_to_f32(0x7F).is_nan() && fp8_to_f32(0xFF).is_nan());
    }

    #[test]
    fn fp8_codes_rise_with_their_value() {
        for code in 0..0x7E {
            assert!(fp8_to_f32(code) < fp8_to_f32(code + 1), "code {code}");
            assert_eq!(fp8_to_f32(code), -fp8_to_f32(code | 0x80), "code {code}");
        }
    }

    #[test]
    fn mx_numbers_follow_the_standard() {
        let values: Vec<f32> = (0..16).map(e2m1_to_f32).collect();
        assert_eq!(values[..8], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert!((0..8).all(|code| values[code + 8].to_bits() == (-values[code]).to_bits()));
        for code in 0..255_u8 {
            assert_eq!(f64::from(e8m0_to_f32(code)), 2f64.powi(i32::from(code) - 127));
        }
        assert!(e8m0_to_f32(255).is_nan());
    }
}
