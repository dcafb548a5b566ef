use crate::linear::Linear;
use crate::spine::RmsNorm;

/// The router of one layer, which can be asked about any layer's hidden state.
///
/// On its own layer's hidden state it gives the logits that the layer routed by, bit for bit;
/// on an earlier layer's it looks ahead (the residual stream changes little from layer to layer).
#[derive(Clone, Debug)]
pub struct LayerGate {
    layer: u16,
    norm: RmsNorm,
    gate: Linear,
}

impl LayerGate {
    pub(super) fn new(layer: u16, norm: RmsNorm, gate: Linear) -> Self {
        Self { layer, norm, gate }
    }

    /// The layer, numbered as in the checkpoint.
    #[must_use]
    pub fn layer(&self) -> u16 {
        self.layer
    }

    /// The norm in front of the router.
    #[must_use]
    pub fn norm(&self) -> &RmsNorm {
        &self.norm
    }

    /// The router's weights, `[experts, hidden]`.
    #[must_use]
    pub fn gate(&self) -> &Linear {
        &self.gate
    }

    /// Router logits, one an expert, of the residual stream `hidden` of one token; `normed` is
    /// room for the normed values. Both are resized, which costs nothing once they were used.
    ///
    /// # Panics
    /// If `hidden` does not have the model's width.
    pub fn logits(&self, hidden: &[f32], normed: &mut Vec<f32>, out: &mut Vec<f32>) {
        normed.resize(self.norm.width(), 0.0);
        self.norm.apply_into(hidden, normed);
        out.resize(self.gate.weight().rows(), 0.0);
        self.gate.apply(normed, out);
    }
}
