use super::margin::sure_margins;
use super::ranked::Score;
use super::{Moment, Needs, Places, Ranked};
use crate::fit::Fit;
use router_trace::Route;
use std::sync::Arc;

/// The lookahead with a learned correction: see [`Fit`].
///
/// [`Moment::logits`] holds the dense part, by the fitted gate. What the experts of the source
/// layer are about to add to the stream, and what the target layer chose for the token before,
/// are a row of values each.
#[derive(Clone, Debug)]
pub struct Fitted {
    places: Places,
    depth: usize,
    fit: Arc<Fit>,
    /// The last route seen at each place.
    routes: Vec<Option<Route>>,
    logits: Vec<f32>,
    scratch: Vec<f32>,
}

impl Fitted {
    /// The score alone, for a blend.
    #[must_use]
    pub fn score(places: &Places, depth: usize, fit: Arc<Fit>) -> Self {
        let room = Vec::with_capacity(places.n_experts());
        Self {
            places: places.clone(),
            depth,
            fit,
            routes: vec![None; places.len()],
            logits: room.clone(),
            scratch: room,
        }
    }

    /// The predictor.
    #[must_use]
    pub fn predictor(places: &Places, depth: usize, fit: Arc<Fit>) -> Ranked<Self> {
        Ranked::new(Self::score(places, depth, fit), places)
    }
}

impl Score for Fitted {
    fn name(&self) -> &'static str {
        "fitted"
    }

    fn needs(&self) -> Needs {
        Needs::Fitted
    }

    fn score(&mut self, place: usize, moment: &Moment<'_>, scores: &mut Vec<f32>) -> bool {
        let source = self.places.layer(self.places.behind(place, self.depth));
        let Some(correction) = self.fit.correction(source, moment.target) else { return false };
        if moment.logits.len() != self.places.n_experts() {
            return false;
        }
        self.logits.clear();
        self.logits.extend_from_slice(moment.logits);
        let before = self.routes[place].as_ref();
        correction.add_routes(moment.route, before, &mut self.logits);
        let k = self.places.top_k();
        sure_margins(&self.logits, &correction.sd, k, scores, &mut self.scratch);
        true
    }

    fn learn(&mut self, place: usize, truth: &Route, _scored: bool) {
        self.routes[place] = Some(*truth);
    }
}
