use super::ranked::Score;
use super::{Moment, Places, Ranked};
use router_trace::Route;

/// The experts that the layer chose last: those of the previous token first, in its order, then
/// those of the token before it, and so on.
///
/// At the width of a route this is previous-token recurrence, the comparison that every report of
/// PILOT carries.
#[derive(Clone, Debug)]
pub struct Repeat {
    layers: Vec<Layer>,
}

#[derive(Clone, Debug)]
struct Layer {
    /// Tokens that this layer has seen.
    tokens: u32,
    /// Of each expert: the token that chose it last, from 1, and its rank there.
    last: Vec<(u32, u32)>,
}

impl Repeat {
    /// The score alone, for a blend.
    #[must_use]
    pub fn score(places: &Places) -> Self {
        let layer = Layer { tokens: 0, last: vec![(0, 0); places.n_experts()] };
        Self { layers: vec![layer; places.len()] }
    }

    /// The predictor.
    #[must_use]
    pub fn predictor(places: &Places) -> Ranked<Self> {
        Ranked::new(Self::score(places), places)
    }
}

impl Score for Repeat {
    fn name(&self) -> &'static str {
        "repeat"
    }

    /// `1 / (age + rank / 64)`, with an age of 1 for the previous token; 0 for an expert that was
    /// never chosen.
    fn score(&mut self, place: usize, _moment: &Moment<'_>, scores: &mut Vec<f32>) -> bool {
        let Layer { tokens, last } = &self.layers[place];
        scores.clear();
        scores.extend(last.iter().map(|&(token, rank)| {
            let age = (tokens + 1 - token) as f32 + rank as f32 / 64.0;
            if token == 0 { 0.0 } else { 1.0 / age }
        }));
        *tokens > 0
    }

    fn learn(&mut self, place: usize, truth: &Route, _scored: bool) {
        let Layer { tokens, last } = &mut self.layers[place];
        if *tokens == u32::MAX - 1 {
            // Ages beyond 24 bits are one score anyway: start over.
            *tokens = 0;
            last.fill((0, 0));
        }
        *tokens += 1;
        for (rank, &expert) in (0..).zip(truth.experts()) {
            if let Some(last) = last.get_mut(usize::from(expert)) {
                *last = (*tokens, rank);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::predict::Predict;
    use proptest::prelude::*;
    use router_trace::ModelShape;

    fn places() -> Places {
        Places::new(&ModelShape { moe_layers: vec![2], n_experts: 16, top_k: 3 })
    }

    proptest! {
        #[test]
        fn the_last_token_comes_first_then_the_one_before(
            routes in prop::collection::vec(
                prop::sample::subsequence((0_u16..16).collect::<Vec<_>>(), 3).prop_shuffle(),
                1..30,
            ),
        ) {
            let mut repeat = Repeat::predictor(&places());
            let mut plan = Plan::new(0, 0);
            let route = Route::new(2, &[]).unwrap();
            let moment = Moment { step: 0, target: 2, route: &route, logits: &[] };
            for chosen in &routes {
                repeat.predict(&moment, 16, &mut plan);
                repeat.observe(&Route::new(2, chosen).unwrap());
            }
            repeat.predict(&moment, 16, &mut plan);
            let mut naive: Vec<u16> = Vec::new();
            for expert in routes.iter().rev().flatten() {
                if !naive.contains(expert) {
                    naive.push(*expert);
                }
            }
            let ranked = plan.hints().iter().map(|hint| hint.expert);
            prop_assert!(ranked.take(naive.len()).eq(naive));
        }
    }
}
