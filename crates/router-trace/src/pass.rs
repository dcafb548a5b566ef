use crate::route::{PassKind, Phase, Route};
use serde::{Deserialize, Serialize};

/// Which layer of which forward pass a record is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PassInfo {
    /// Number of the forward pass; never goes back within a trace.
    pub step: u64,
    /// Position of the first token in its sequence, in tokens.
    pub position: u64,
    /// The layer, numbered as in the checkpoint.
    pub layer: u16,
    /// Prompt or produced tokens.
    pub phase: Phase,
    /// Ordinary or speculative.
    pub kind: PassKind,
}

/// One layer of one forward pass: where it belongs, and the route of each of its tokens.
///
/// Decode passes have one token (a few when speculating), prefill passes a chunk. The
/// routes lie flat, one after the other, so that a pass is one allocation that is reused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerPass {
    /// Which layer of which forward pass.
    pub info: PassInfo,
    top_k: u16,
    experts: Vec<u16>,
}

impl LayerPass {
    /// A pass whose tokens chose `experts`, `top_k` a token, one token after the other.
    ///
    /// `None` if `top_k` is zero or more than [`MAX_TOP_K`](crate::MAX_TOP_K), or
    /// `experts` is not a whole number of routes.
    #[must_use]
    pub fn new(info: PassInfo, top_k: u16, experts: Vec<u16>) -> Option<Self> {
        let width = usize::from(top_k);
        let whole = (1..=crate::MAX_TOP_K).contains(&width) && experts.len().is_multiple_of(width);
        whole.then_some(Self { info, top_k, experts })
    }

    /// Experts that one token chose.
    #[must_use]
    pub fn top_k(&self) -> u16 {
        self.top_k
    }

    /// Tokens in this pass.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.experts.len() / usize::from(self.top_k)
    }

    /// All routes, one after the other, best score first in each.
    #[must_use]
    pub fn experts(&self) -> &[u16] {
        &self.experts
    }

    /// The route of each token, in token order.
    pub fn routes(&self) -> impl ExactSizeIterator<Item = Route> + '_ {
        self.experts.chunks_exact(usize::from(self.top_k)).map(|ids| {
            Route::new(self.info.layer, ids).expect("`new` allows at most MAX_TOP_K experts")
        })
    }

    /// An empty pass with room for `capacity` expert ids.
    pub(crate) fn with_capacity(top_k: u16, capacity: usize) -> Self {
        debug_assert!(top_k > 0);
        let info = PassInfo {
            step: 0,
            position: 0,
            layer: 0,
            phase: Phase::Decode,
            kind: PassKind::Normal,
        };
        Self { info, top_k, experts: Vec::with_capacity(capacity) }
    }

    /// Expert ids that fit without an allocation.
    pub(crate) fn capacity(&self) -> usize {
        self.experts.capacity()
    }

    /// Becomes another pass, keeping the allocation where it fits.
    pub(crate) fn set(&mut self, info: PassInfo, experts: &[u16]) {
        self.info = info;
        self.experts.clear();
        self.experts.extend_from_slice(experts);
    }

    /// Empties the pass and gives it an allocation of exactly `capacity` ids.
    pub(crate) fn reset(&mut self, capacity: usize) {
        self.experts = Vec::with_capacity(capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_lie_flat() {
        let info = PassInfo {
            step: 3,
            position: 10,
            layer: 5,
            phase: Phase::Prefill,
            kind: PassKind::Normal,
        };
        let pass = LayerPass::new(info, 2, vec![1, 2, 3, 4]).unwrap();
        assert_eq!(pass.n_tokens(), 2);
        let routes: Vec<_> = pass.routes().collect();
        assert_eq!(routes, [Route::new(5, &[1, 2]).unwrap(), Route::new(5, &[3, 4]).unwrap()]);
        assert!(LayerPass::new(info, 2, vec![1, 2, 3]).is_none());
        assert!(LayerPass::new(info, 0, vec![]).is_none());
        assert!(LayerPass::new(info, 33, vec![]).is_none());
    }
}
