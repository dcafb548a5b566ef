use crate::linear::Linear;
use crate::router::{GroupScratch, Router};
use crate::spine::RmsNorm;

/// The router of one layer, which can be asked about any layer's hidden state.
///
/// On its own layer's hidden state it gives the values that the layer routed by, bit for bit;
/// on an earlier layer's it looks ahead (the residual stream changes little from layer to layer).
#[derive(Clone, Debug)]
pub struct LayerGate {
    layer: u16,
    norm: RmsNorm,
    gate: Linear,
    router: Router,
}

impl LayerGate {
    pub(super) fn new(layer: u16, norm: RmsNorm, gate: Linear, router: Router) -> Self {
        Self { layer, norm, gate, router }
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

    /// How the layer chooses.
    #[must_use]
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// What the router ranks the experts by, one value each, for the residual stream `hidden` of
    /// one token: its logits, or its biased scores. `room` is for what lies between. All are
    /// resized, which costs nothing once they were used.
    ///
    /// # Panics
    /// If `hidden` does not have the model's width.
    pub fn rank_values(&self, hidden: &[f32], room: &mut GateRoom, out: &mut Vec<f32>) {
        self.logits(hidden, room, out);
        self.router.rank_values(out, &mut room.scores);
    }

    /// The router's logits, one an expert, for the residual stream `hidden` of one token; the rest
    /// as for [`LayerGate::rank_values`].
    ///
    /// # Panics
    /// If `hidden` does not have the model's width.
    pub fn logits(&self, hidden: &[f32], room: &mut GateRoom, out: &mut Vec<f32>) {
        room.normed.resize(self.norm.width(), 0.0);
        self.norm.apply_into(hidden, &mut room.normed);
        out.resize(self.gate.weight().rows(), 0.0);
        self.gate.apply(&room.normed, out);
    }
}

/// Room that [`LayerGate::rank_values`] uses again and again.
#[derive(Clone, Debug, Default)]
pub struct GateRoom {
    normed: Vec<f32>,
    scores: GroupScratch,
}
