use super::ranking::Ranking;
use super::{Calibrator, Moment, Needs, Places, Predict};
use crate::plan::{Hint, Plan};
use router_trace::Route;

/// Gives every expert of a layer a score; higher is likelier.
///
/// `place` counts the layers that have experts.
pub trait Score: Send {
    /// Its name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// What [`Moment::logits`] must hold.
    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    /// Fills `scores`, one an expert of the layer at `place`; `false` where it knows nothing.
    fn score(&mut self, place: usize, moment: &Moment<'_>, scores: &mut Vec<f32>) -> bool;

    /// Learns what the layer at `place` chose; `scored` says whether [`Score::score`] was asked
    /// about just this token and layer, and knew something.
    fn learn(&mut self, place: usize, truth: &Route, scored: bool);
}

/// A predictor made of a score for every expert: the best ones, with calibrated probabilities.
#[derive(Clone, Debug)]
pub struct Ranked<S> {
    score: S,
    places: Places,
    layers: Vec<Layer>,
    ranking: Ranking,
}

#[derive(Clone, Debug)]
struct Layer {
    calibrator: Calibrator,
    scores: Vec<f32>,
    pending: bool,
}

impl<S: Score> Ranked<S> {
    /// Makes a predictor of `score` for a model with these layers.
    #[must_use]
    pub fn new(score: S, places: &Places) -> Self {
        let layer = Layer {
            calibrator: Calibrator::new(places.top_k(), places.n_experts()),
            scores: Vec::with_capacity(places.n_experts()),
            pending: false,
        };
        let layers = vec![layer; places.len()];
        Self { score, places: places.clone(), layers, ranking: Ranking::default() }
    }
}

impl<S: Score> Predict for Ranked<S> {
    fn name(&self) -> &'static str {
        self.score.name()
    }

    fn needs(&self) -> Needs {
        self.score.needs()
    }

    fn predict(&mut self, moment: &Moment<'_>, width: usize, plan: &mut Plan) {
        plan.restart(moment.step, moment.target);
        let Some(place) = self.places.of(moment.target) else { return };
        let Layer { calibrator, scores, pending } = &mut self.layers[place];
        *pending = self.score.score(place, moment, scores);
        if *pending {
            let best = self.ranking.top(scores, width);
            let hints = best.iter().map(|&expert| {
                let probability = calibrator.probability(scores[usize::from(expert)]);
                Hint { expert, probability }
            });
            plan.rank(hints, width);
        }
    }

    fn observe(&mut self, truth: &Route) {
        let Some(place) = self.places.of(truth.layer()) else { return };
        let Layer { calibrator, scores, pending } = &mut self.layers[place];
        if *pending {
            calibrator.learn(scores, truth.experts());
        }
        self.score.learn(place, truth, *pending);
        *pending = false;
    }
}
