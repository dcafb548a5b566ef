//! From a router's logits to the experts a token uses and how much each counts.
//!
//! All of it in f32, ranked by score and then by the lower id, without touching the heap.

mod sigmoid_grouped;
mod softmax_topk;

pub use sigmoid_grouped::{GroupScratch, SigmoidGrouped};
pub use softmax_topk::SoftmaxTopK;

use crate::error::EngineError;
use router_trace::{MAX_TOP_K, Route};

/// The router of a layer, whichever kind its family has.
#[derive(Clone, Debug)]
pub enum Router {
    /// Ranks by the logits themselves.
    Softmax(SoftmaxTopK),
    /// Ranks by sigmoid scores with a bias, in groups.
    Sigmoid(SigmoidGrouped),
}

impl Router {
    /// The experts of one token.
    ///
    /// # Errors
    /// `router-invalid` if a logit cannot be ranked.
    pub fn route(
        &self,
        layer: u16,
        logits: &[f32],
        scratch: &mut GroupScratch,
    ) -> Result<Routed, EngineError> {
        match self {
            Self::Softmax(router) => router.route(layer, logits),
            Self::Sigmoid(router) => router.route(layer, logits, scratch),
        }
    }

    /// Turns logits into what the router ranks by: its choice are the `top_k` largest of them, of
    /// equal ones the lower ids.
    pub fn rank_values(&self, logits: &mut [f32], scratch: &mut GroupScratch) {
        match self {
            Self::Softmax(_) => {}
            Self::Sigmoid(router) => router.rank_values(logits, scratch),
        }
    }

    /// What is added to the scores before they are compared; empty where nothing is.
    #[must_use]
    pub fn bias(&self) -> &[f32] {
        match self {
            Self::Softmax(_) => &[],
            Self::Sigmoid(router) => router.bias(),
        }
    }
}

/// One token's experts at one layer with their weights, best score first.
#[derive(Clone, Copy, Debug)]
pub struct Routed {
    /// The experts.
    pub route: Route,
    weights: [f32; MAX_TOP_K],
}

impl Routed {
    /// What each expert's output is multiplied by, in the route's order.
    #[must_use]
    pub fn weights(&self) -> &[f32] {
        &self.weights[..self.route.experts().len()]
    }

    /// Expert index and weight, best score first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u16, f32)> + '_ {
        self.route.experts().iter().copied().zip(self.weights().iter().copied())
    }

    /// The experts of `best` with the weights that `weight` gives their ids.
    fn new(layer: u16, best: &Best, weight: impl Fn(u16) -> f32) -> Self {
        let route = Route::new(layer, best.ids()).expect("top_k was checked against MAX_TOP_K");
        let mut weights = [0.0; MAX_TOP_K];
        for (slot, &id) in weights.iter_mut().zip(best.ids()) {
            *slot = weight(id);
        }
        Self { route, weights }
    }

    fn scale_weights(&mut self, factor: f32) {
        let len = self.route.experts().len();
        for weight in &mut self.weights[..len] {
            *weight *= factor;
        }
    }
}

/// The best `k` scores so far, sorted; equal scores keep the order they came in.
struct Best {
    k: usize,
    len: usize,
    ids: [u16; MAX_TOP_K],
    scores: [f32; MAX_TOP_K],
}

impl Best {
    fn new(k: usize) -> Self {
        assert!(k <= MAX_TOP_K);
        Self { k, len: 0, ids: [0; MAX_TOP_K], scores: [0.0; MAX_TOP_K] }
    }

    /// Ids must be offered in ascending order, so that ties go to the lowest.
    fn offer(&mut self, id: u16, score: f32) {
        if self.len == self.k && score <= self.scores[self.k - 1] {
            return;
        }
        let at = self.scores[..self.len].partition_point(|&better| better >= score);
        self.len = (self.len + 1).min(self.k);
        self.ids.copy_within(at..self.len - 1, at + 1);
        self.scores.copy_within(at..self.len - 1, at + 1);
        self.ids[at] = id;
        self.scores[at] = score;
    }

    fn ids(&self) -> &[u16] {
        &self.ids[..self.len]
    }
}

fn check_top_k(top_k: usize, n_experts: usize) -> Result<(), EngineError> {
    let key = "num_experts_per_tok";
    if top_k == 0 || top_k > n_experts {
        Err(EngineError::config(key, &top_k, format!("there are {n_experts} experts")))
    } else if top_k > MAX_TOP_K || n_experts > usize::from(u16::MAX) {
        let reason = format!("at most {MAX_TOP_K} of {} experts", u16::MAX);
        Err(EngineError::unsupported(key, &format!("{top_k} of {n_experts}"), reason))
    } else {
        Ok(())
    }
}

/// Refuses logits that cannot be ranked, naming the first.
fn check_logits(layer: u16, logits: &[f32], n_experts: usize) -> Result<(), EngineError> {
    if logits.len() != n_experts {
        let problem = format!("{} logits for {n_experts} experts", logits.len());
        return Err(EngineError::Router { layer, problem });
    }
    match logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        Some(expert) => {
            let problem = format!("logit of expert {expert} is {}", logits[expert]);
            Err(EngineError::Router { layer, problem })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn best_equals_a_stable_sort(
            scores in prop::collection::vec(-4_i8..4, 1..64),
            k in 1..=MAX_TOP_K,
        ) {
            let mut best = Best::new(k);
            for (id, &score) in (0..).zip(&scores) {
                best.offer(id, f32::from(score));
            }
            let mut ids: Vec<u16> = (0..).take(scores.len()).collect();
            ids.sort_by_key(|&id| -scores[usize::from(id)]);
            ids.truncate(k);
            prop_assert_eq!(best.ids(), ids);
        }
    }
}
