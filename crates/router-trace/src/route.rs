use crate::ids::ExpertId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most experts one token may choose in one layer (Kimi K3 uses 16).
pub const MAX_TOP_K: usize = 32;

/// The experts that one token chose at one layer, best score first.
///
/// `Copy` and bounded, so that recording, predicting and adopting a route never touch the heap.
#[derive(Clone, Copy)]
pub struct Route {
    layer: u16,
    len: u8,
    experts: [u16; MAX_TOP_K],
}

impl Route {
    /// A route of `experts` at `layer`; `None` if there are more than [`MAX_TOP_K`].
    #[must_use]
    pub fn new(layer: u16, experts: &[u16]) -> Option<Self> {
        let mut route =
            Self { layer, len: u8::try_from(experts.len()).ok()?, experts: [0; MAX_TOP_K] };
        route.experts.get_mut(..experts.len())?.copy_from_slice(experts);
        Some(route)
    }

    /// The layer, numbered as in the checkpoint.
    #[must_use]
    pub fn layer(&self) -> u16 {
        self.layer
    }

    /// Expert indices in the order the router ranked them.
    #[must_use]
    pub fn experts(&self) -> &[u16] {
        &self.experts[..usize::from(self.len)]
    }

    /// The same as full ids.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = ExpertId> + '_ {
        self.experts().iter().map(|&index| ExpertId::new(self.layer, index))
    }
}

impl PartialEq for Route {
    fn eq(&self, other: &Self) -> bool {
        self.layer == other.layer && self.experts() == other.experts()
    }
}

impl Eq for Route {}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Route({}: {:?})", self.layer, self.experts())
    }
}

/// Whether the pass read a prompt or produced a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Tokens of the prompt, several a pass.
    Prefill,
    /// Tokens the model produced.
    Decode,
}

/// What kind of forward pass the route belongs to.
///
/// Speculative passes route tokens that may be thrown away; a locality figure that mixes
/// them with accepted tokens is wrong, so every record says which it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PassKind {
    /// An ordinary pass: every token counts.
    Normal,
    /// A speculative pass whose draft tokens were accepted.
    SpecAccept,
    /// The pass that runs again after a draft was rejected, at the same position; or the
    /// attempt itself, whose tokens are thrown away, where its writer knew how it ended.
    SpecFallback,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_keeps_rank_order_and_layer() {
        let route = Route::new(7, &[5, 0, 511]).unwrap();
        assert_eq!(route.experts(), [5, 0, 511]);
        let ids: Vec<_> = route.ids().collect();
        assert_eq!(ids, [ExpertId::new(7, 5), ExpertId::new(7, 0), ExpertId::new(7, 511)]);
    }

    #[test]
    fn route_is_bounded() {
        assert!(Route::new(0, &[1; MAX_TOP_K]).is_some());
        assert!(Route::new(0, &[1; MAX_TOP_K + 1]).is_none());
        assert!(Route::new(0, &[1; 300]).is_none());
        assert!(Route::new(0, &[]).unwrap().experts().is_empty());
    }

    #[test]
    fn unused_slots_do_not_matter_for_equality() {
        assert_eq!(Route::new(1, &[2, 3]), Route::new(1, &[2, 3]));
        assert_ne!(Route::new(1, &[2, 3]), Route::new(1, &[3, 2]));
        assert_ne!(Route::new(1, &[2, 3]), Route::new(2, &[2, 3]));
    }
}
