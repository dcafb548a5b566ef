//! Router arithmetic against recorded vectors: ids exact and in order, weights to 1e-6.

use crate::support::{data_path, read_json};
use engine_example::EngineError;
use engine_example::router::{GroupScratch, Routed, SigmoidGrouped, SoftmaxTopK};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Vectors {
    tolerance: f32,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    logits: Vec<Value>,
    top_k: usize,
    #[serde(default)]
    score: String,
    bias: Option<Vec<f32>>,
    #[serde(default)]
    norm: bool,
    scale: Option<f32>,
    n_group: Option<usize>,
    topk_group: Option<usize>,
    #[serde(default)]
    expect_ids: Vec<u16>,
    #[serde(default)]
    expect_weights: Vec<f32>,
    #[serde(default)]
    expect: String,
}

impl Case {
    fn logits(&self) -> Vec<f32> {
        self.logits.iter().map(|v| v.as_f64().map_or(f32::NAN, |v| v as f32)).collect()
    }

    /// Errors leave the kind of score open: a bias or groups mean sigmoid.
    fn route(&self) -> Result<Routed, EngineError> {
        let logits = self.logits();
        if self.score != "sigmoid" && self.bias.is_none() && self.n_group.is_none() {
            return SoftmaxTopK::new(logits.len(), self.top_k, self.norm)?.route(0, &logits);
        }
        let bias = self.bias.clone().unwrap_or_else(|| vec![0.0; logits.len()]);
        SigmoidGrouped::new(logits.len(), self.top_k)?
            .with_bias(bias)?
            .with_groups(self.n_group.unwrap_or(1), self.topk_group.unwrap_or(1))?
            .with_weights(self.norm, self.scale.unwrap_or(1.0))
            .route(0, &logits, &mut GroupScratch::default())
    }
}

#[test]
fn recorded_vectors() {
    let vectors: Vectors = read_json(&data_path("data/router/vectors.json"));
    assert_eq!(vectors.cases.len(), 11);
    for case in &vectors.cases {
        let routed = case.route().unwrap();
        assert_eq!(routed.route.experts(), case.expect_ids, "{}", case.name);
        assert_eq!(routed.weights().len(), case.expect_weights.len(), "{}", case.name);
        for (got, wanted) in routed.weights().iter().zip(&case.expect_weights) {
            assert!((got - wanted).abs() < vectors.tolerance, "{}: {got} {wanted}", case.name);
        }
    }
}

#[test]
fn recorded_errors() {
    let cases: Vec<Case> = read_json(&data_path("data/router/errors.json"));
    assert_eq!(cases.len(), 4);
    for case in &cases {
        let error = case.route().unwrap_err();
        assert_eq!(error.kind(), case.expect, "{}: {error}", case.name);
    }
}

#[test]
fn a_bad_logit_is_named() {
    let softmax = SoftmaxTopK::new(3, 2, true).unwrap();
    let grouped = SigmoidGrouped::new(3, 2).unwrap();
    for bad in [f32::NAN, f32::INFINITY] {
        let logits = [0.0, 1.0, bad];
        let errors = [
            softmax.route(7, &logits).unwrap_err(),
            grouped.route(7, &logits, &mut GroupScratch::default()).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), "router-invalid");
            assert!(error.to_string().contains("layer 7"), "{error}");
            assert!(error.to_string().contains("expert 2"), "{error}");
        }
    }
    assert_eq!(softmax.route(0, &[f32::NEG_INFINITY; 3]).unwrap_err().kind(), "router-invalid");
    let masked = softmax.route(0, &[f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]).unwrap();
    assert_eq!(masked.route.experts(), [1, 0]);
    assert_eq!(masked.weights(), [1.0, 0.0]);
}

#[test]
fn a_bias_that_is_not_finite_is_refused() {
    for bad in [f32::NAN, f32::NEG_INFINITY] {
        let router = SigmoidGrouped::new(2, 1).unwrap().with_bias(vec![0.0, bad]).unwrap();
        let error = router.route(0, &[0.0, 0.0], &mut GroupScratch::default()).unwrap_err();
        assert_eq!(error.kind(), "router-invalid");
    }
}

#[test]
fn tied_groups_keep_the_lowest() {
    let router = SigmoidGrouped::new(6, 2).unwrap().with_groups(3, 1).unwrap();
    let routed = router.route(0, &[0.5; 6], &mut GroupScratch::default()).unwrap();
    assert_eq!(routed.route.experts(), [0, 1]);
}

#[test]
fn kept_groups_must_hold_top_k() {
    let error = SigmoidGrouped::new(8, 3).unwrap().with_groups(4, 1).unwrap_err();
    assert_eq!(error.kind(), "config-inconsistent");
}

proptest! {
    /// What predictors rank by puts the route first, and experts of groups that were dropped after
    /// it, those of the group that came nearest to being kept before others as good.
    #[test]
    fn rank_values_put_the_route_first(
        logits in prop::collection::vec(-64_i8..64, 16),
        bias in prop::collection::vec(-32_i8..32, 16),
        (groups, kept) in prop::sample::select(vec![(1, 1), (2, 1), (4, 1), (4, 2), (8, 3), (16, 5)]),
        top_k in 1_usize..5,
    ) {
        prop_assume!(kept * (16 / groups) >= top_k);
        let logits: Vec<f32> = logits.into_iter().map(|logit| f32::from(logit) / 16.0).collect();
        let bias = bias.into_iter().map(|bias| f32::from(bias) / 32.0).collect();
        let router = SigmoidGrouped::new(16, top_k).unwrap().with_bias(bias).unwrap();
        let router = router.with_groups(groups, kept).unwrap();
        let mut scratch = GroupScratch::default();
        let routed = router.route(0, &logits, &mut scratch).unwrap();
        let mut values = logits.clone();
        router.rank_values(&mut values, &mut scratch);
        prop_assert!(values.iter().all(|value| value.is_finite()), "{:?}", values);
        let mut order: Vec<u16> = (0..16).collect();
        order.sort_by(|a, b| values[usize::from(*b)].total_cmp(&values[usize::from(*a)]));
        prop_assert_eq!(&order[..top_k], routed.route.experts(), "{:?}", values);
        for (expert, (&value, &logit)) in values.iter().zip(&logits).enumerate() {
            let back = router.logit_at(expert, value);
            prop_assert!(back < logit + 1e-3, "expert {}: {} of {}", expert, back, logit);
            if groups == 1 {
                prop_assert!((back - logit).abs() < 1e-3, "expert {}: {}", expert, back);
            }
        }
    }
}

#[test]
fn no_logit_gives_more_than_a_whole_score() {
    let router = SigmoidGrouped::new(2, 1).unwrap().with_bias(vec![0.25, -0.5]).unwrap();
    assert_eq!(router.logit_at(0, 0.75), 0.0);
    assert_eq!(router.logit_at(0, 0.25), f32::NEG_INFINITY);
    assert_eq!(router.logit_at(0, 0.0), f32::NEG_INFINITY);
    assert_eq!(router.logit_at(1, 0.75), f32::INFINITY);
}
