use super::f32_slice;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

/// Root-mean-square normalisation over the last dimension, in f32:
/// `x / sqrt(mean(x²) + eps) × weight`.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Vec<f32>,
    eps: f32,
}

impl RmsNorm {
    /// A norm over rows of `weight.len()` values.
    #[must_use]
    pub fn new(weight: Vec<f32>, eps: f32) -> Self {
        assert!(!weight.is_empty(), "a norm over rows of no values");
        Self { weight, eps }
    }

    /// Values a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.weight.len()
    }

    /// One weight a value.
    #[must_use]
    pub fn weight(&self) -> &[f32] {
        &self.weight
    }

    /// The same norm with weights of 1: `x / sqrt(mean(x²) + eps)`.
    #[must_use]
    pub fn without_weights(&self) -> Self {
        Self { weight: vec![1.0; self.width()], eps: self.eps }
    }

    /// Normalises one row in place.
    pub fn apply(&self, row: &mut [f32]) {
        let scale = self.scale(row);
        for (x, w) in row.iter_mut().zip(&self.weight) {
            *x = *x * scale * w;
        }
    }

    /// Normalises `row` into `out`, both of the norm's width.
    pub fn apply_into(&self, row: &[f32], out: &mut [f32]) {
        let scale = self.scale(row);
        for ((y, x), w) in out.iter_mut().zip(row).zip(&self.weight) {
            *y = x * scale * w;
        }
    }

    /// `[n, width]` to the same shape.
    ///
    /// # Errors
    /// If `x` is not a contiguous f32 CPU tensor whose last dimension is the norm's width.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.apply_op1_no_bwd(self)
    }

    fn scale(&self, row: &[f32]) -> f32 {
        let mean_square = dot(row, row) / row.len() as f32;
        1.0 / (mean_square + self.eps).sqrt()
    }
}

impl CustomOp1 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = f32_slice(storage, layout)?;
        if layout.dims().last() != Some(&self.width()) {
            candle_core::bail!("rms-norm over {} values got {:?}", self.width(), layout.dims());
        }
        let mut out = vec![0.0; x.len()];
        for (row, out) in x.chunks_exact(self.width()).zip(out.chunks_exact_mut(self.width())) {
            self.apply_into(row, out);
        }
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

/// Sum of products in f32. Sixteen partial sums let the compiler use vector registers, and
/// their fixed order gives the same bits for the same row whatever else is in the batch.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_lanes, a_rest) = a.as_chunks::<16>();
    let (b_lanes, b_rest) = b.as_chunks::<16>();
    let mut sums = [0.0_f32; 16];
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for lane in 0..16 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn rows_are_normalised_one_by_one() {
        let norm = RmsNorm::new(vec![1.0, 2.0], 0.0);
        let x = Tensor::new(&[[3.0_f32, 4.0], [0.0, 2.0]], &Device::Cpu).unwrap();
        let y = norm.forward(&x).unwrap().to_vec2::<f32>().unwrap();
        let rms = 12.5_f32.sqrt();
        assert!((y[0][0] - 3.0 / rms).abs() < 1e-6 && (y[0][1] - 8.0 / rms).abs() < 1e-6);
        assert!(y[1][0] == 0.0 && (y[1][1] - 2.0 * 2.0_f32.sqrt()).abs() < 1e-6);
        assert!(norm.forward(&x.t().unwrap().contiguous().unwrap()).is_ok());
        assert!(norm.forward(&x.flatten_all().unwrap()).is_err());
    }

    #[test]
    fn dot_equals_the_plain_sum() {
        for len in [0, 1, 15, 16, 17, 64, 100] {
            let a: Vec<f32> = (0..len).map(|i| i as f32 * 0.25 - 3.0).collect();
            let b: Vec<f32> = (0..len).map(|i| 1.0 - i as f32 * 0.5).collect();
            let plain: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((f64::from(dot(&a, &b)) - plain).abs() < 1e-2, "{len}");
        }
    }
}
