//! SiLU, with an exponential that is the same bits on every machine.

/// `x / (1 + exp(-x))` (Elfwing et al. 2017, "Sigmoid-weighted linear units").
///
/// Only additions, products and one division, each rounded to `f32`: every platform gives the
/// same bits. `-inf` gives NaN, as the formula does.
#[inline]
#[must_use]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `gate[i] = silu(gate[i]) * up[i]`: the middle of a SwiGLU. Panics when lengths differ.
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up have one length");
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = silu(*gate) * up;
    }
}

/// `e^x` to within 2 ulp; 0 below -87.3, where a result would be subnormal.
///
/// `x = n ln 2 + r`, `|r| <= ln 2 / 2`; `e^r` is its Taylor series to the 7th power (the next
/// term is below `2^-27`).
#[inline]
pub(super) fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves no bits for a fraction: it rounds to an integer without a call.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts; the upper has 9 bits, so its product with n is exact.
    const LN_2_UPPER: f32 = 0.693_359_4;
    const LN_2_LOWER: f32 = -2.121_944_4e-4;
    let inside = x.clamp(-87.3, 88.8);
    let n = (inside * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (inside - n * LN_2_UPPER) - n * LN_2_LOWER;
    let mut sum = 1.0 / 5040.0;
    for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * r + factor;
    }
    // n reaches 128, whose power of two is no f32: scale twice.
    #[expect(clippy::cast_possible_truncation, reason = "|n| <= 128; NaN gives 0, and sum is NaN")]
    let n = n as i32;
    let (half, rest) = (n / 2, n - n / 2);
    let value = sum * power_of_two(half) * power_of_two(rest);
    if x < -87.3 { 0.0 } else { value }
}

/// `2^n` for `-126 <= n <= 127`.
#[inline]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::{exp, silu, silu_mul};

    #[test]
    fn exp_is_within_two_ulp() {
        let mut worst = 0.0f64;
        for i in -872_000..887_000 {
            let x = i as f32 * 1e-4;
            let exact = f64::from(x).exp();
            let ulp = f64::from(f32::EPSILON) * 2f64.powf(exact.log2().floor());
            worst = worst.max((f64::from(exp(x)) - exact).abs() / ulp);
        }
        assert!(worst < 2.0, "worst error {worst} ulp");
    }

    #[test]
    fn exp_keeps_its_ends() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(89.0), f32::INFINITY);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn silu_follows_its_formula() {
        for i in -4000..4000 {
            let x = i as f32 * 0.01;
            let exact = f64::from(x) / (1.0 + (-f64::from(x)).exp());
            let error = (f64::from(silu(x)) - exact).abs();
            assert!(error <= 4e-7 * exact.abs() + 1e-37, "silu({x}) is off by {error}");
        }
        let mut gate = [1.0, -2.0];
        silu_mul(&mut gate, &[3.0, 0.5]);
        assert_eq!(gate, [silu(1.0) * 3.0, silu(-2.0) * 0.5]);
    }
}
