//! Activations, with an exponential that is the same bits on every machine.

/// What an MLP does between its projections: `act(gate x, up x)`.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Activation {
    /// `silu(g) · u` (SwiGLU; Shazeer 2020, "GLU variants improve transformer").
    #[default]
    Silu,
    /// `beta · tanh(g / beta) · sigmoid(g) · linear_beta · tanh(u / linear_beta)` (Kimi K3): near
    /// zero it is SiLU, and neither factor leaves its bound.
    Situ {
        /// Bound of the gate.
        beta: f32,
        /// Bound of the other factor.
        linear_beta: f32,
    },
}

impl Activation {
    /// `gate[i] = act(gate[i], up[i])`. Panics when lengths differ.
    pub fn apply(self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "gate and up have one length");
        match self {
            Self::Silu => silu_mul(gate, up),
            Self::Situ { beta, linear_beta } => {
                for (gate, up) in gate.iter_mut().zip(up) {
                    let bounded = beta * tanh(*gate / beta) * sigmoid(*gate);
                    *gate = bounded * (linear_beta * tanh(up / linear_beta));
                }
            }
        }
    }
}

/// `1 / (1 + exp(-x))`.
#[inline]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The hyperbolic tangent to within 3 ulp: below 0.625 the odd polynomial of Cephes `tanhf`
/// (Moshier 1989), above it `1 - 2 / (e^2x + 1)`.
#[inline]
#[must_use]
pub fn tanh(x: f32) -> f32 {
    let size = x.abs();
    let square = x * x;
    let mut sum = -5.704_988_7e-3;
    for factor in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        sum = sum * square + factor;
    }
    let near = x + x * square * sum;
    let far = (1.0 - 2.0 / (exp(2.0 * size) + 1.0)).copysign(x);
    if size < 0.625 { near } else { far }
}

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
#[must_use]
pub fn exp(x: f32) -> f32 {
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
    use super::{Activation, exp, sigmoid, silu, silu_mul, tanh};

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

    #[test]
    fn tanh_is_within_three_ulp() {
        let mut worst = 0.0f64;
        for i in -200_000..200_000 {
            let x = i as f32 * 5e-5;
            let exact = f64::from(x).tanh();
            let ulp = f64::from(f32::EPSILON) * exact.abs().max(f64::from(f32::MIN_POSITIVE));
            worst = worst.max((f64::from(tanh(x)) - exact).abs() / ulp);
        }
        assert!(worst < 3.0, "{worst}");
        assert_eq!((tanh(100.0), tanh(-100.0)), (1.0, -1.0));
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn situ_is_bounded_and_near_zero_it_is_silu() {
        let situ = Activation::Situ { beta: 4.0, linear_beta: 25.0 };
        let of = |gate: f32, up: f32| {
            let mut gate = [gate];
            situ.apply(&mut gate, &[up]);
            gate[0]
        };
        assert!((of(1e-3, 1e-3) - silu(1e-3) * 1e-3).abs() < 1e-9);
        assert!((of(50.0, 1000.0) - 100.0).abs() < 1e-3);
        let (g, u) = (1.5_f32, -3.0_f32);
        let wanted = 4.0 * (g / 4.0).tanh() * sigmoid(g) * 25.0 * (u / 25.0).tanh();
        assert!((of(g, u) - wanted).abs() < 1e-5);
    }
}
