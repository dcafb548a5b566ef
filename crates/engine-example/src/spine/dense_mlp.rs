use crate::error::EngineError;
use crate::linear::Linear;
use crate::weights::SpineWeights;
use candle_core::Tensor;

/// The gated MLP of a layer without experts: `down(silu(gate(x)) × up(x))`.
#[derive(Debug)]
pub struct DenseMlp {
    gate: Linear,
    up: Linear,
    down: Linear,
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
    ) -> Result<Self, EngineError> {
        Ok(Self {
            gate: weights.linear(&format!("{prefix}.gate_proj"), intermediate, hidden)?,
            up: weights.linear(&format!("{prefix}.up_proj"), intermediate, hidden)?,
            down: weights.linear(&format!("{prefix}.down_proj"), hidden, intermediate)?,
        })
    }

    /// `[n, hidden]` to `[n, hidden]`.
    ///
    /// # Errors
    /// A failed tensor operation.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, EngineError> {
        let gate = self.gate.forward(x)?.silu()?;
        let up = self.up.forward(x)?;
        Ok(self.down.forward(&(gate * up)?)?)
    }
}
