use serde::{Deserialize, Serialize};
use std::fmt;

/// One routed expert: its layer in the model and its index in that layer.
///
/// Layers are numbered as in the checkpoint (dense layers count too), so an id can be
/// looked up in a pool, a trace and a model without a translation table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ExpertId {
    /// Layer number, 0-based, counting every layer of the model.
    pub layer: u16,
    /// Expert number inside the layer, 0-based.
    pub index: u16,
}

impl ExpertId {
    /// The expert `index` of layer `layer`.
    #[must_use]
    pub const fn new(layer: u16, index: u16) -> Self {
        Self { layer, index }
    }
}

impl fmt::Display for ExpertId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {} expert {}", self.layer, self.index)
    }
}

/// What a trace or a policy must know of a model: which layers route, among how many experts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ModelShape {
    /// The layers that have routed experts, ascending.
    pub moe_layers: Vec<u16>,
    /// Routed experts in each of these layers.
    pub n_experts: u16,
    /// Experts that one token chooses in one layer.
    pub top_k: u16,
}

impl ModelShape {
    /// Experts in the whole model.
    #[must_use]
    pub fn total_experts(&self) -> usize {
        self.moe_layers.len() * usize::from(self.n_experts)
    }

    /// Whether `id` names an expert of this model.
    #[must_use]
    pub fn contains(&self, id: ExpertId) -> bool {
        id.index < self.n_experts && self.moe_layers.binary_search(&id.layer).is_ok()
    }
}
