use crate::router::{GroupScratch, Router, SigmoidGrouped};
use pilot_prefetch::fit::Level;
use pilot_prefetch::predict::{ByLogits, SelectionRule};

/// How `router` chooses, for predictors.
pub(super) fn selection_rule(router: &Router) -> Box<dyn SelectionRule> {
    match router {
        Router::Softmax(_) => Box::new(ByLogits),
        Router::Sigmoid(router) => {
            Box::new(BiasedScores { router: router.clone(), scratch: GroupScratch::default() })
        }
    }
}

/// Whether a choice of `router` depends on what all logits have in common.
pub(super) fn level(router: &Router) -> Level {
    match router {
        Router::Softmax(_) => Level::Free,
        Router::Sigmoid(_) => Level::Counts,
    }
}

/// The rule of a sigmoid router: its own code, with room for the scores.
struct BiasedScores {
    router: SigmoidGrouped,
    scratch: GroupScratch,
}

impl SelectionRule for BiasedScores {
    fn rank_values(&mut self, logits: &mut [f32]) {
        self.router.rank_values(logits, &mut self.scratch);
    }

    fn logit_at(&self, expert: usize, value: f32) -> f32 {
        self.router.logit_at(expert, value)
    }
}
