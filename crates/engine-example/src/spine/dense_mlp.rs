use crate::error::EngineError;
use crate::kernels::Activation;
use crate::linear::Linear;
use crate::weights::SpineWeights;
use candle_core::{Device, Tensor};

use super::with_f32;

/// A gated MLP that every token uses: `down(act(gate(x), up(x)))`.
#[derive(Debug)]
pub struct DenseMlp {
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl DenseMlp {
    /// The weights `{prefix}.{gate,up,down}_proj`.
    ///
    /// # Errors
    /// A weight that is missing or has another shape.
    pub fn new(
        weights: &SpineWeights,
        prefix: &str,
        hidden: usize,
        intermediate: usize,
        activation: Activation,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            gate: weights.linear(&format!("{prefix}.gate_proj"), intermediate, hidden)?,
            up: weights.linear(&format!("{prefix}.up_proj"), intermediate, hidden)?,
            down: weights.linear(&format!("{prefix}.down_proj"), hidden, intermediate)?,
            activation,
        })
    }

    /// `[n, hidden]` to `[n, hidden]`.
    ///
    /// # Errors
    /// A failed tensor operation.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, EngineError> {
        let y = with_f32(x, |x| {
            let mut inner = self.gate.product(x);
            self.activation.apply(&mut inner, &self.up.product(x));
            self.down.product(&inner)
        })?;
        Ok(Tensor::from_vec(y, x.shape(), &Device::Cpu)?)
    }
}
