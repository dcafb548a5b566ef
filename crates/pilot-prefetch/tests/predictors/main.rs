//! Predictors on a made-up model whose choices are known: what they rank, how well their
//! probabilities hold, and that they leave the heap alone.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pilot_prefetch::fit::{Fit, Level, NormalEquations, solve};
use pilot_prefetch::predict::{
    ByLogits, Moment, Needs, PilotConfig, Places, Predict, PredictorKind, SelectionRule,
};
use pilot_prefetch::{Plan, Scorecard};
use router_trace::{ModelShape, Route};
use std::sync::Arc;

const EXPERTS: usize = 24;
const TOP_K: usize = 3;
const LAYERS: usize = 4;
/// The stream of the made-up model; its routers read it as it is.
const HIDDEN: usize = 12;

fn places() -> Places {
    let shape = ModelShape { moe_layers: vec![0, 1, 2, 3], n_experts: 24, top_k: 3 };
    Places::new(&shape)
}

/// Numbers without a pattern, -1 to 1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn many(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

/// A layer of a token: its stream, logits, and choice.
#[derive(Clone)]
struct Row {
    stream: Vec<f32>,
    logits: Vec<f32>,
    route: Route,
}

struct Model {
    gates: Vec<Vec<f32>>,
    outputs: Vec<Vec<f32>>,
    noise: Noise,
    before: Vec<Option<Route>>,
}

impl Model {
    /// `seed` is that of the tokens: the weights are always the same.
    fn new(seed: u64) -> Self {
        let mut weights = Noise(42);
        Self {
            gates: (0..LAYERS).map(|_| weights.many(EXPERTS * HIDDEN)).collect(),
            outputs: (0..LAYERS).map(|_| weights.many(EXPERTS * HIDDEN)).collect(),
            noise: Noise(seed),
            before: vec![None; LAYERS],
        }
    }

    fn logits(&self, layer: usize, stream: &[f32]) -> Vec<f32> {
        let rows = self.gates[layer].chunks_exact(HIDDEN);
        rows.map(|row| row.iter().zip(stream).map(|(w, x)| w * x).sum()).collect()
    }

    /// Every layer adds its experts' outputs and something unknown to the stream; what the layer
    /// chose for the token before it likes again.
    fn token(&mut self) -> Vec<Row> {
        let mut stream = self.noise.many(HIDDEN);
        let mut rows = Vec::new();
        for layer in 0..LAYERS {
            let mut logits = self.logits(layer, &stream);
            for expert in self.before[layer].iter().flat_map(|route| route.experts().to_vec()) {
                logits[usize::from(expert)] += 0.8;
            }
            let mut order: Vec<u16> = (0..).take(EXPERTS).collect();
            order.sort_by(|a, b| logits[usize::from(*b)].total_cmp(&logits[usize::from(*a)]));
            let route = Route::new(u16::try_from(layer).unwrap(), &order[..TOP_K]).unwrap();
            rows.push(Row { stream: stream.clone(), logits, route });
            self.before[layer] = Some(route);
            for expert in route.experts() {
                let output = &self.outputs[layer][usize::from(*expert) * HIDDEN..][..HIDDEN];
                stream.iter_mut().zip(output).for_each(|(x, y)| *x += 0.25 * y);
            }
            stream.iter_mut().for_each(|x| *x += 0.15 * self.noise.next());
        }
        rows
    }
}

fn fit() -> Arc<Fit> {
    let mut corrections = Vec::new();
    for source in 0..LAYERS - 1 {
        let mut groups = Vec::new();
        for seed in [1, 2, 3] {
            let mut model = Model::new(seed);
            let mut equations = NormalEquations::new(HIDDEN, EXPERTS, Level::Free);
            let mut before = None;
            for _ in 0..600 {
                let token = model.token();
                let (from, to) = (&token[source], &token[source + 1]);
                let lookahead = model.logits(source + 1, &from.stream);
                let again = before.map_or_else(Vec::new, |route: Route| route.experts().to_vec());
                equations.push(&from.stream, from.route.experts(), &again, &to.logits, &lookahead);
                before = Some(to.route);
            }
            groups.push(equations);
        }
        let layers = [source, source + 1].map(|layer| u16::try_from(layer).unwrap());
        corrections.push(solve(layers, &Model::new(0).gates[source + 1], &mut groups).unwrap());
    }
    let model = "made up".to_owned();
    Arc::new(Fit { model, hidden: HIDDEN, n_experts: EXPERTS, top_k: TOP_K, corrections })
}

/// What the engine does: observe, then guess the next layer.
struct Driver {
    predictor: Box<dyn Predict>,
    plans: Vec<Plan>,
    fit: Arc<Fit>,
}

impl Driver {
    fn new(kind: PredictorKind, fit: &Arc<Fit>) -> Self {
        let rules = (0..LAYERS).map(|_| Box::new(ByLogits) as Box<dyn SelectionRule>).collect();
        let parts = Some((Arc::clone(fit), rules));
        let predictor = PilotConfig::new(kind).build(&places(), parts).unwrap();
        Self { predictor, plans: vec![Plan::new(0, 0); LAYERS], fit: Arc::clone(fit) }
    }

    fn logits(&self, model: &Model, layer: usize, stream: &[f32]) -> Vec<f32> {
        let target = layer + 1;
        match self.predictor.needs() {
            _ if target == LAYERS => Vec::new(),
            Needs::Nothing => Vec::new(),
            Needs::Gate => model.logits(target, stream),
            Needs::Fitted => {
                let layers = [layer, target].map(|layer| u16::try_from(layer).unwrap());
                let correction = self.fit.correction(layers[0], layers[1]).unwrap();
                let rows = correction.gate.chunks_exact(HIDDEN).zip(&correction.bias);
                rows.map(|(row, bias)| {
                    bias + row.iter().zip(stream).map(|(w, x)| w * x).sum::<f32>()
                })
                .collect()
            }
        }
    }

    fn live(&mut self, model: &mut Model, tokens: usize, mut card: Option<&mut Scorecard>) {
        for _ in 0..tokens {
            for (layer, row) in model.token().iter().enumerate() {
                if let Some(card) = &mut card {
                    card.score(&self.plans[layer], &row.route);
                }
                let logits = self.logits(model, layer, &row.stream);
                self.step(layer, &row.route, &logits);
            }
        }
    }

    fn step(&mut self, layer: usize, route: &Route, logits: &[f32]) {
        self.predictor.observe(route);
        let target = (layer + 1) % LAYERS;
        let moment = Moment { step: 0, target: u16::try_from(target).unwrap(), route, logits };
        self.predictor.predict(&moment, 4 * TOP_K, &mut self.plans[target]);
    }
}

const SCORED: [PredictorKind; 5] = [
    PredictorKind::Repeat,
    PredictorKind::Transition,
    PredictorKind::Lookahead,
    PredictorKind::Fitted,
    PredictorKind::Blend,
];

/// Cards of all predictors on tokens that neither they nor the fit have seen.
fn cards() -> Vec<Scorecard> {
    let fit = fit();
    let card = |kind| {
        let mut driver = Driver::new(kind, &fit);
        driver.live(&mut Model::new(77), 1500, None);
        let mut card = Scorecard::new(kind.name(), 1, &places());
        driver.live(&mut Model::new(99), 1500, Some(&mut card));
        card
    };
    SCORED.map(card).to_vec()
}

#[test]
fn probabilities_hold_on_unseen_tokens_and_the_fit_is_worth_its_while() {
    let cards = cards();
    for card in &cards {
        let off = card.calibration_error().unwrap();
        println!("{}: off by {off:.4}, {:?}", card.predictor, card.ahead());
        assert!(off < 0.02, "{}: {off}: {:?}", card.predictor, card.reliability);
        let spread = card.reliability.iter().filter(|range| range.hints > 0).count();
        assert!(spread >= 2, "{}: all probabilities are alike", card.predictor);
    }
    let chance = TOP_K as f64 / EXPERTS as f64;
    let [repeat, transition, lookahead, fitted, blend] = &cards[..] else { unreachable!() };
    let recall = |card: &Scorecard, width| card.ahead().recall(width).unwrap();
    for width in 0..3 {
        assert!(recall(fitted, width) > recall(lookahead, width) + 0.01, "{fitted:?}");
        assert!(recall(lookahead, width) > recall(repeat, width), "{lookahead:?}");
        assert!(recall(blend, width) > recall(lookahead, width), "{blend:?}");
    }
    assert!(recall(repeat, 0) > 1.5 * chance && recall(transition, 0) > 1.5 * chance);
    // Nothing can look ahead to a token that is not known; the past still says something.
    assert_eq!((lookahead.first().rows, fitted.first().rows), (0, 0));
    assert!(blend.first().recall(0).unwrap() > 1.5 * chance);
}

#[test]
fn a_control_names_all_and_none_names_nothing() {
    let mut card = Scorecard::new("none", 1, &places());
    let fit = fit();
    Driver::new(PredictorKind::None, &fit).live(&mut Model::new(3), 20, Some(&mut card));
    assert_eq!((card.ahead().rows, card.ahead().unscored), (0, 3 * 20));
    assert_eq!(card.ahead().recall(0), None);
}

#[test]
fn guessing_leaves_the_heap_alone() {
    let fit = fit();
    let mut model = Model::new(5);
    let tokens: Vec<Vec<Row>> = (0..200).map(|_| model.token()).collect();
    for kind in PredictorKind::ALL {
        let mut driver = Driver::new(kind, &fit);
        // All that is needed of the model, before anything is counted.
        let logits: Vec<Vec<Vec<f32>>> = tokens
            .iter()
            .map(|token| {
                let rows = token.iter().enumerate();
                rows.map(|(layer, row)| driver.logits(&model, layer, &row.stream)).collect()
            })
            .collect();
        let mut card = Scorecard::new(kind.name(), 1, &places());
        let mut live = |range: std::ops::Range<usize>| {
            for token in range {
                for (layer, row) in tokens[token].iter().enumerate() {
                    card.score(&driver.plans[layer], &row.route);
                    driver.step(layer, &row.route, &logits[token][layer]);
                }
            }
        };
        live(0..10);
        let counted = allocation_counter::measure(|| live(10..200));
        assert_eq!(counted.count_total, 0, "{kind}: {counted:?}");
    }
}
