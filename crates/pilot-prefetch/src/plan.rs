use router_trace::{ExpertId, Route};
use serde::{Deserialize, Serialize};

/// The most experts that one plan names: no layer's guess is worth more, and what is handed over
/// has a bound.
pub const MAX_WIDTH: usize = 128;

/// One expert of a plan.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Hint {
    /// Its number in the plan's layer.
    pub expert: u16,
    /// How likely the router chooses it, 0 to 1.
    pub probability: f32,
}

/// A predicted route: experts of one layer of one forward pass, the most likely first, each once,
/// at most [`MAX_WIDTH`].
///
/// A plan is reused from layer to layer, so that predicting does not touch the heap.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    step: u64,
    layer: u16,
    hints: Vec<Hint>,
}

impl Plan {
    /// An empty plan of layer `layer` in forward pass `step`.
    #[must_use]
    pub fn new(step: u64, layer: u16) -> Self {
        Self { step, layer, hints: Vec::with_capacity(MAX_WIDTH) }
    }

    /// Forgets its hints and becomes the plan of another layer.
    pub fn restart(&mut self, step: u64, layer: u16) {
        (self.step, self.layer) = (step, layer);
        self.hints.clear();
    }

    /// Takes the `width` most likely of `hints`, ranked; equal ones by their number. Probabilities
    /// that are no numbers are left out, others kept within 0 to 1; of a repeated expert the more
    /// likely stays.
    pub fn rank(&mut self, hints: impl IntoIterator<Item = Hint>, width: usize) {
        let usable = hints.into_iter().filter(|hint| !hint.probability.is_nan());
        self.hints.clear();
        self.hints.extend(
            usable.map(|hint| Hint { probability: hint.probability.clamp(0.0, 1.0), ..hint }),
        );
        self.hints.sort_unstable_by(|a, b| {
            a.expert.cmp(&b.expert).then(b.probability.total_cmp(&a.probability))
        });
        self.hints.dedup_by_key(|hint| hint.expert);
        self.hints.sort_unstable_by(|a, b| {
            b.probability.total_cmp(&a.probability).then(a.expert.cmp(&b.expert))
        });
        self.hints.truncate(width.min(MAX_WIDTH));
    }

    /// Takes hints that are in order already: the likeliest first, each expert once. What is more
    /// than [`MAX_WIDTH`] is left out.
    pub(crate) fn set_ranked(&mut self, hints: impl IntoIterator<Item = Hint>) {
        self.hints.clear();
        self.hints.extend(hints.into_iter().take(MAX_WIDTH));
    }

    /// Becomes the `width` likeliest hints of `other`, without touching the heap.
    pub fn copy_first(&mut self, other: &Self, width: usize) {
        self.restart(other.step, other.layer);
        self.hints.extend_from_slice(&other.hints[..width.min(other.hints.len())]);
    }

    /// Number of the forward pass that it is for.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The layer that it is for, numbered as in the checkpoint.
    #[must_use]
    pub fn layer(&self) -> u16 {
        self.layer
    }

    /// The experts, the most likely first.
    #[must_use]
    pub fn hints(&self) -> &[Hint] {
        &self.hints
    }

    /// The same as full ids.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = ExpertId> + '_ {
        self.hints.iter().map(|hint| ExpertId::new(self.layer, hint.expert))
    }

    /// How many of the first `width` hints `route` chose.
    #[must_use]
    pub fn hits(&self, route: &Route, width: usize) -> usize {
        let first = self.hints.iter().take(width);
        first.filter(|hint| route.experts().contains(&hint.expert)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(expert: u16, probability: f32) -> Hint {
        Hint { expert, probability }
    }

    #[test]
    fn the_likely_come_first_each_once_and_bounded() {
        let mut plan = Plan::new(3, 7);
        plan.rank([hint(4, 0.2), hint(1, 0.9), hint(4, 0.5), hint(2, 0.5), hint(3, f32::NAN)], 3);
        assert_eq!(plan.hints(), [hint(1, 0.9), hint(2, 0.5), hint(4, 0.5)]);
        plan.rank((0..1000).map(|expert| hint(expert, 1.5)), usize::MAX);
        assert_eq!((plan.hints().len(), plan.hints()[5]), (MAX_WIDTH, hint(5, 1.0)));
        let mut copy = Plan::new(0, 0);
        copy.copy_first(&plan, 2);
        assert_eq!((copy.layer(), copy.hints()), (7, &plan.hints()[..2]));
        plan.restart(4, 8);
        assert_eq!((plan.step(), plan.layer(), plan.hints().len()), (4, 8, 0));
    }

    #[test]
    fn hits_count_what_the_route_chose() {
        let mut plan = Plan::new(0, 7);
        plan.rank([hint(4, 0.2), hint(1, 0.9), hint(2, 0.5)], 8);
        let route = Route::new(7, &[9, 4, 1]).unwrap();
        assert_eq!([1, 2, 3, 8].map(|width| plan.hits(&route, width)), [1, 1, 2, 2]);
        assert!(plan.ids().eq([1, 2, 4].map(|expert| ExpertId::new(7, expert))));
    }
}
