use super::ranked::Score;
use super::{Fitted, FittedParts, Lookahead, Moment, Needs, Places, Ranked, Repeat, Transition};
use router_trace::Route;

/// How far one token moves the weights at first; AdaGrad shrinks it with what came before.
const STEP: f32 = 0.1;
/// Weights before the first token: chance is added to the first; then what the scores are worth
/// in log-odds on the models that this was tried on.
const START: [f32; WEIGHTS] = [0.0, 2.0, 0.5, 0.5];
const WEIGHTS: usize = 4;

/// Several scores in one: an expert's log-odds of being chosen are a weighted sum of its margin
/// by the lookahead (or the fitted one), its recency and its transitions.
///
/// The weights of each layer are learnt as tokens come, by logistic regression with AdaGrad steps
/// (Duchi, Hazan and Singer 2011), so that a layer whose lookahead is poor leans on the rest.
pub struct Blend {
    ahead: Box<dyn Score>,
    repeat: Repeat,
    transition: Transition,
    layers: Vec<Layer>,
    /// Scores of one layer, before they are copied to it.
    room: [Vec<f32>; WEIGHTS - 1],
}

#[derive(Clone, Debug)]
struct Layer {
    weights: [f32; WEIGHTS],
    squares: [f32; WEIGHTS],
    /// `[experts]`: inputs of the last guess.
    inputs: Vec<[f32; WEIGHTS]>,
}

impl std::fmt::Debug for Blend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blend").field("ahead", &self.ahead.name()).finish_non_exhaustive()
    }
}

impl Blend {
    /// The predictor; with a fit its lookahead is the fitted one.
    #[must_use]
    pub fn predictor(places: &Places, depth: usize, fit: Option<FittedParts>) -> Ranked<Self> {
        let ahead: Box<dyn Score> = match fit {
            Some(parts) => Box::new(Fitted::score(places, depth, parts)),
            None => Box::new(Lookahead::score(places)),
        };
        let chance = places.top_k() as f32 / places.n_experts().max(2) as f32;
        let mut weights = START;
        weights[0] += (chance / (1.0 - chance).max(1e-3)).ln();
        let layer = Layer {
            weights,
            squares: [1.0; WEIGHTS],
            inputs: vec![[0.0; WEIGHTS]; places.n_experts()],
        };
        let blend = Self {
            ahead,
            repeat: Repeat::score(places),
            transition: Transition::score(places, depth),
            layers: vec![layer; places.len()],
            room: Default::default(),
        };
        Ranked::new(blend, places)
    }
}

impl Score for Blend {
    fn name(&self) -> &'static str {
        "blend"
    }

    fn needs(&self) -> Needs {
        self.ahead.needs()
    }

    fn score(&mut self, place: usize, moment: &Moment<'_>, scores: &mut Vec<f32>) -> bool {
        let [ahead, repeat, transition] = &mut self.room;
        let known = [
            self.ahead.score(place, moment, ahead),
            self.repeat.score(place, moment, repeat),
            self.transition.score(place, moment, transition),
        ];
        let Layer { weights, inputs, .. } = &mut self.layers[place];
        for (expert, inputs) in inputs.iter_mut().enumerate() {
            let of = |at: usize, scores: &[f32]| if known[at] { scores[expert] } else { 0.0 };
            // A lift of 3 and one of 30 differ less than 1 and 3 do.
            let lift = of(2, transition);
            *inputs = [
                1.0,
                of(0, ahead).clamp(-8.0, 8.0),
                of(1, repeat),
                2.0 * lift / (1.0 + lift.abs()),
            ];
        }
        scores.clear();
        scores.extend(inputs.iter().map(|inputs| dot(weights, inputs)));
        known.contains(&true)
    }

    fn learn(&mut self, place: usize, truth: &Route, scored: bool) {
        self.ahead.learn(place, truth, scored);
        self.repeat.learn(place, truth, scored);
        self.transition.learn(place, truth, scored);
        if !scored {
            return;
        }
        let Layer { weights, squares, inputs } = &mut self.layers[place];
        let mut gradient = [0.0; WEIGHTS];
        let mut add = |inputs: &[f32; WEIGHTS], error: f32| {
            gradient.iter_mut().zip(inputs).for_each(|(sum, input)| *sum += error * input);
        };
        for inputs in inputs.iter() {
            add(inputs, sigmoid(dot(weights, inputs)));
        }
        for inputs in truth.experts().iter().filter_map(|&expert| inputs.get(usize::from(expert))) {
            add(inputs, -1.0);
        }
        for ((weight, square), slope) in weights.iter_mut().zip(squares).zip(gradient) {
            *square += slope * slope;
            *weight -= STEP * slope / square.sqrt();
        }
    }
}

fn dot(weights: &[f32; WEIGHTS], inputs: &[f32; WEIGHTS]) -> f32 {
    weights.iter().zip(inputs).map(|(weight, input)| weight * input).sum()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
