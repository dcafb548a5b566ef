use super::margin::sure_margins;
use super::ranked::Score;
use super::{Moment, Needs, Places, Ranked, SelectionRule};
use crate::fit::Fit;
use router_trace::Route;
use std::sync::Arc;

/// What a fitted predictor is made of: a fit, and how each place's router chooses.
pub type FittedParts = (Arc<Fit>, Vec<Box<dyn SelectionRule>>);

/// The lookahead with a learned correction: see [`Fit`].
///
/// [`Moment::logits`] holds the dense part, by the fitted gate. What the experts of the source
/// layer are about to add to the stream, and what the target layer chose for the token before,
/// are a row of values each. The layer's own rule says what the corrected logits would choose.
pub struct Fitted {
    places: Places,
    depth: usize,
    fit: Arc<Fit>,
    /// By place.
    rules: Vec<Box<dyn SelectionRule>>,
    /// The last route seen at each place.
    routes: Vec<Option<Route>>,
    logits: Vec<f32>,
    room: [Vec<f32>; 2],
}

impl std::fmt::Debug for Fitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fitted").field("depth", &self.depth).finish_non_exhaustive()
    }
}

impl Fitted {
    /// The score alone, for a blend.
    ///
    /// # Panics
    /// If there is not one rule a place.
    #[must_use]
    pub fn score(places: &Places, depth: usize, (fit, rules): FittedParts) -> Self {
        assert_eq!(rules.len(), places.len(), "one rule a place");
        let room = || Vec::with_capacity(places.n_experts());
        Self {
            places: places.clone(),
            depth,
            fit,
            rules,
            routes: vec![None; places.len()],
            logits: room(),
            room: [room(), room()],
        }
    }

    /// The predictor.
    ///
    /// # Panics
    /// If there is not one rule a place.
    #[must_use]
    pub fn predictor(places: &Places, depth: usize, parts: FittedParts) -> Ranked<Self> {
        Ranked::new(Self::score(places, depth, parts), places)
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
        let (k, rule) = (self.places.top_k(), &mut *self.rules[place]);
        sure_margins(&self.logits, &correction.sd, k, rule, scores, &mut self.room);
        true
    }

    fn learn(&mut self, place: usize, truth: &Route, _scored: bool) {
        self.routes[place] = Some(*truth);
    }
}
