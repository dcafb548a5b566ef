use crate::error::TraceError;
use crate::ids::{ExpertId, ModelShape};
use crate::policy::{Key, MAX_KEYS};

/// The layer is not one that routes.
const NO_SLOT: u16 = u16::MAX;

/// Converts between experts and the dense keys that policies work on.
///
/// Key = position of the layer among those that route × experts a layer + index, so keys
/// ascend by layer, then by expert.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeySpace {
    shape: ModelShape,
    /// For each layer number its position among the layers that route.
    slots: Vec<u16>,
}

impl KeySpace {
    /// The keys of a model of this shape.
    ///
    /// # Errors
    ///
    /// [`TraceError::TooMany`] above [`MAX_KEYS`] experts.
    pub fn new(shape: &ModelShape) -> Result<Self, TraceError> {
        if shape.total_experts() > MAX_KEYS {
            return Err(TraceError::TooMany {
                what: "experts in the model",
                value: shape.total_experts() as u64,
                limit: MAX_KEYS as u64,
            });
        }
        let layers = shape.moe_layers.last().map_or(0, |&layer| usize::from(layer) + 1);
        let mut slots = vec![NO_SLOT; layers];
        for (slot, &layer) in (0..NO_SLOT).zip(&shape.moe_layers) {
            slots[usize::from(layer)] = slot;
        }
        Ok(Self { shape: shape.clone(), slots })
    }

    /// The model's shape.
    #[must_use]
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// How many keys there are.
    #[must_use]
    pub fn n_keys(&self) -> usize {
        self.shape.total_experts()
    }

    /// The position of `layer` among the layers that route.
    #[must_use]
    #[inline]
    pub fn slot(&self, layer: u16) -> Option<u16> {
        self.slots.get(usize::from(layer)).copied().filter(|&slot| slot != NO_SLOT)
    }

    /// The key of an expert; `None` if the model does not have it.
    #[must_use]
    #[inline]
    pub fn key(&self, id: ExpertId) -> Option<Key> {
        let slot = self.slot(id.layer)?;
        let n_experts = u32::from(self.shape.n_experts);
        (id.index < self.shape.n_experts).then(|| u32::from(slot) * n_experts + u32::from(id.index))
    }

    /// The error for an expert that the model does not have, met after `pass` passes.
    pub(crate) fn foreign(&self, pass: u64, id: ExpertId) -> TraceError {
        let (layers, n_experts) = (self.shape.moe_layers.len(), self.shape.n_experts);
        TraceError::ForeignExpert { pass, id, layers, n_experts }
    }

    /// The expert of a key; `None` if the key is not one of the model's.
    #[must_use]
    pub fn id(&self, key: Key) -> Option<ExpertId> {
        let n_experts = u32::from(self.shape.n_experts);
        let slot = key.checked_div(n_experts)? as usize;
        let layer = *self.shape.moe_layers.get(slot)?;
        // A remainder of a division by a u16.
        Some(ExpertId::new(layer, (key % n_experts) as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_dense_and_convert_back() {
        let shape = ModelShape { moe_layers: vec![1, 2, 5], n_experts: 4, top_k: 2 };
        let space = KeySpace::new(&shape).unwrap();
        let ids = shape.moe_layers.iter().flat_map(|&l| (0..4).map(move |i| ExpertId::new(l, i)));
        for (key, id) in (0..).zip(ids) {
            assert_eq!((space.key(id), space.id(key)), (Some(key), Some(id)));
        }
        assert_eq!(space.n_keys(), 12);
        assert_eq!(space.id(12), None);
        for id in [(0, 0), (3, 0), (6, 0), (1, 4)] {
            assert_eq!(space.key(ExpertId::new(id.0, id.1)), None);
        }
    }

    #[test]
    fn too_large_a_model_is_refused() {
        let shape = ModelShape { moe_layers: (0..300).collect(), n_experts: 65535, top_k: 2 };
        assert_eq!(KeySpace::new(&shape).unwrap_err().kind(), "limit");
    }
}
