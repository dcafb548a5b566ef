use super::ranked::Score;
use super::{Moment, Needs, Places, Ranked, margins};
use router_trace::Route;

/// The target layer's own router on today's hidden state.
///
/// The residual stream changes little from layer to layer, so that a later router often ranks it
/// as it will rank its own input (Eliseev and Mazur 2023, "Fast inference of mixture-of-experts
/// language models with offloading", section 3.2; PILOT of colibri).
#[derive(Clone, Debug)]
pub struct Lookahead {
    top_k: usize,
    scratch: Vec<f32>,
}

impl Lookahead {
    /// The score alone, for a blend.
    #[must_use]
    pub fn score(places: &Places) -> Self {
        Self { top_k: places.top_k(), scratch: Vec::with_capacity(places.n_experts()) }
    }

    /// The predictor.
    #[must_use]
    pub fn predictor(places: &Places) -> Ranked<Self> {
        Ranked::new(Self::score(places), places)
    }
}

impl Score for Lookahead {
    fn name(&self) -> &'static str {
        "lookahead"
    }

    fn needs(&self) -> Needs {
        Needs::Gate
    }

    fn score(&mut self, _place: usize, moment: &Moment<'_>, scores: &mut Vec<f32>) -> bool {
        margins(moment.logits, self.top_k, scores, &mut self.scratch);
        !moment.logits.is_empty()
    }

    fn learn(&mut self, _place: usize, _truth: &Route, _scored: bool) {}
}
