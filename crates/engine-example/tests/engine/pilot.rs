//! Predictors on the routers of every family: shown what a layer sees they name what it chooses,
//! and they change no bit of what is decoded.

use crate::support::{Checkpoint, FIXTURES, Golden, fixture_dir};
use engine_example::Experts;
use engine_example::kernels::Isa;
use engine_example::models::{LogitRows, MoeCall};
use engine_example::pilot::{Fitter, Pilot, Routers};
use engine_example::router::Router;
use engine_example::synth::{SynthDtype, SynthOptions, SynthShape, synth};
use engine_example::weights::WeightFormat;
use expert_tier::pool::CheckpointConfig;
use expert_tier::{Pool, Tier, TierConfig};
use pilot_prefetch::Plan;
use pilot_prefetch::fit::{Correction, Fit};
use pilot_prefetch::predict::{Moment, Needs, PilotConfig, Places, Predict, PredictorKind};
use router_trace::{Phase, Route};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The committed checkpoints with their recorded tokens, and one in Kimi K3's shape.
fn models() -> (tempfile::TempDir, Vec<(String, PathBuf, Vec<u32>)>) {
    let recorded = FIXTURES.map(|name| {
        let dir = fixture_dir(name);
        let tokens = Golden::open(&dir).full_input();
        (name.to_owned(), dir, tokens)
    });
    let k3 = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let shape = SynthShape::named("tiny-kimi-k3").unwrap();
    let options = SynthOptions { dtype: SynthDtype::Bf16, seed: 5, ..SynthOptions::default() };
    synth(&shape, &options, k3.path(), |_, _| ()).unwrap();
    let tokens = (0..48).map(|at| at * 37 % 251).collect();
    let mut models = recorded.to_vec();
    models.push(("tiny-kimi-k3".to_owned(), k3.path().to_owned(), tokens));
    (k3, models)
}

/// A fit that corrects nothing, one layer ahead; some experts are said to be harder to guess.
fn no_correction(routers: &Routers) -> Fit {
    let (places, hidden) = (routers.places(), routers.hidden());
    let (experts, layers) = (places.n_experts(), places.len());
    let correction = |target: usize| Correction {
        source: places.layer(places.behind(target, 1)),
        target: places.layer(target),
        gate: vec![0.0; experts * hidden],
        bias: vec![0.0; experts],
        after: vec![0.0; experts * experts],
        again: vec![0.0; experts * experts],
        sd: (0..experts).map(|expert| 0.1 + (expert % 7) as f32).collect(),
        ridge: 1.0,
    };
    Fitter::fit(routers, (0..layers).map(correction).collect())
}

fn sorted(experts: impl IntoIterator<Item = u16>) -> Vec<u16> {
    let mut experts: Vec<u16> = experts.into_iter().collect();
    experts.sort_unstable();
    experts
}

/// The `top_k` largest.
fn largest(values: &[f32], top_k: usize) -> Vec<u16> {
    let mut order: Vec<u16> = (0..).take(values.len()).collect();
    order.sort_by(|a, b| values[usize::from(*b)].total_cmp(&values[usize::from(*a)]));
    sorted(order.into_iter().take(top_k))
}

/// What a layer saw of a token and chose: its number, the stream, the route.
type Row = (u16, Vec<f32>, Route);

/// A model's routers, whether they are sigmoid ones, and the rows of `tokens`.
fn rows(dir: &Path, tokens: &[u32]) -> (Routers, bool, Vec<Row>) {
    let checkpoint = Checkpoint::open(dir);
    let (experts, mut model) = (checkpoint.experts(), checkpoint.decoder());
    let mut rows = Vec::new();
    let mut run = |call: &MoeCall<'_>, out: &mut [f32]| {
        let streams = call.hidden.chunks_exact(call.hidden.len() / call.routes.len());
        for (routed, hidden) in call.routes.iter().zip(streams) {
            rows.push((call.layer, hidden.to_vec(), routed.route));
        }
        experts.run(call, out)
    };
    model.forward(tokens, LogitRows::Last, &mut run).unwrap();
    let sigmoid = model.gates().iter().all(|gate| matches!(gate.router(), Router::Sigmoid(_)));
    (Routers::new(&model, Isa::detect(), None).unwrap(), sigmoid, rows)
}

#[test]
fn shown_a_layers_own_stream_predictors_name_its_route() {
    let (_k3, models) = models();
    for (name, dir, tokens) in models {
        let (mut routers, sigmoid, rows) = rows(&dir, &tokens);
        let places: Places = routers.places().clone();
        let (top_k, fit) = (places.top_k(), Arc::new(no_correction(&routers)));
        let build = |kind| {
            let parts = (Arc::clone(&fit), routers.rules());
            PilotConfig::new(kind).build(&places, Some(parts)).unwrap()
        };
        let [mut lookahead, mut fitted]: [Box<dyn Predict>; 2] =
            [PredictorKind::Lookahead, PredictorKind::Fitted].map(build);
        let mut plan = Plan::new(0, 0);
        let mut not_by_logits = 0;
        for (layer, hidden, route) in &rows {
            let place = places.of(*layer).unwrap();
            let chosen = sorted(route.experts().iter().copied());
            let ranked = routers.logits(Needs::Gate, place, place, hidden).to_vec();
            // What a fit that made no error would hand over.
            let logits = routers.gate_logits(place, hidden).to_vec();
            for (predictor, logits) in [(&mut lookahead, &ranked), (&mut fitted, &logits)] {
                let moment = Moment { step: 0, target: *layer, route, logits };
                predictor.predict(&moment, top_k, &mut plan);
                let named = sorted(plan.hints().iter().map(|hint| hint.expert));
                assert_eq!(named, chosen, "{name}: {}, layer {layer}", predictor.name());
            }
            not_by_logits += usize::from(largest(&logits, top_k) != chosen);
        }
        println!("{name}: {} choices, {not_by_logits} not by the logits alone", rows.len());
        assert!(rows.len() >= tokens.len(), "{name}");
        // A rule that left out bias and groups would have been found out.
        assert_eq!(not_by_logits > 0, sigmoid, "{name}");
    }
}

/// Where a group was guessed to be dropped and was kept, its experts are found sooner if they come
/// in the order of how near they were than if they all come last.
#[test]
fn experts_of_dropped_groups_come_in_the_order_of_their_nearness() {
    for name in ["deepseek-v3-f32", "deepseek-v3-fp8", "deepseek-v3-noqlora-f16"] {
        // No more than go through the layers together: rows come by layer, then by token.
        let tokens: Vec<u32> = (0..250_u32).map(|at| at.pow(2) * 37 % 251).collect();
        let (mut routers, _, rows) = rows(&fixture_dir(name), &tokens);
        let (rules, top_k) = (routers.rules(), routers.places().top_k());
        let mut found = [[0, 0], [0, 0]];
        let layers: Vec<_> = rows.chunks_exact(tokens.len()).collect();
        for (source, pair) in layers.windows(2).enumerate() {
            let target = source + 1;
            for ((_, hidden, _), (_, _, route)) in pair[0].iter().zip(pair[1]) {
                let near = routers.logits(Needs::Gate, source, target, hidden).to_vec();
                let logits = routers.gate_logits(target, hidden);
                let dropped = |expert: usize| {
                    rules[target].logit_at(expert, near[expert]) < logits[expert] - 1e-3
                };
                let last: Vec<f32> = (0..near.len())
                    .map(|at| if dropped(at) { f32::NEG_INFINITY } else { near[at] })
                    .collect();
                for (found, values) in found.iter_mut().zip([&near, &last]) {
                    for (found, width) in found.iter_mut().zip([top_k, 2 * top_k]) {
                        let guess = largest(values, width);
                        let chosen = route.experts().iter();
                        *found += chosen.filter(|expert| guess.contains(expert)).count();
                    }
                }
            }
        }
        let chosen = (layers.len() - 1) * tokens.len() * top_k;
        println!("{name}: of {chosen}, by nearness {:?}, last {:?}", found[0], found[1]);
        assert_eq!(found[0][0], found[1][0], "{name}: the choice itself is the same");
        assert!(found[0][1] > found[1][1], "{name}: {found:?}");
    }
}

/// A fit of a model's own tokens, one and two layers ahead.
fn fit(dir: &Path, tokens: &[u32]) -> Arc<Fit> {
    let checkpoint = Checkpoint::open(dir);
    let (experts, mut model) = (checkpoint.experts(), checkpoint.decoder());
    let routers = Routers::new(&model, Isa::detect(), None).unwrap();
    let layers = routers.places().len();
    let pairs: Vec<(usize, usize)> = (0..layers)
        .flat_map(|source| (source + 1..layers.min(source + 3)).map(move |target| (source, target)))
        .collect();
    let mut fitter = Fitter::new(routers.clone(), &pairs, 1);
    fitter.begin_text();
    let mut run = |call: &MoeCall<'_>, out: &mut [f32]| {
        fitter.watch(0, call);
        experts.run(call, out)
    };
    model.forward(tokens, LogitRows::Last, &mut run).unwrap();
    Arc::new(Fitter::fit(&routers, fitter.corrections(None).unwrap()))
}

/// Bits of the logits of every token of `tokens`, the first eight read together and the rest one by
/// one, from a tier that begins cold.
fn logit_bits(dir: &Path, tokens: &[u32], pilot: Option<(PilotConfig, Arc<Fit>)>) -> Vec<Vec<u32>> {
    let (checkpoint, isa) = (Checkpoint::open(dir), Isa::detect());
    let mut model = checkpoint.decoder();
    let tier = Tier::open(Pool::open(dir).unwrap(), TierConfig::default()).unwrap();
    tier.evict(None).unwrap();
    let stored = CheckpointConfig::open(&dir.join("config.json")).unwrap();
    let (config, format) = (&checkpoint.config, WeightFormat::from_config(&stored).unwrap());
    let mut experts = Experts::new(tier, config.expert_widths(), format, isa);
    experts.set_activation(config.activation);
    if let Some((config, fit)) = pilot {
        let pilot = Pilot::new(Routers::new(&model, isa, Some(fit)).unwrap(), config).unwrap();
        experts.set_pilot(Some(pilot.advised_by(experts.tier()).unwrap()));
    }
    let mut bits = Vec::new();
    let (prompt, rest) = tokens.split_at(8);
    for (phase, tokens) in [prompt]
        .into_iter()
        .map(|prompt| (Phase::Prefill, prompt))
        .chain(rest.chunks(1).map(|one| (Phase::Decode, one)))
    {
        experts.set_phase(phase);
        let mut run = |call: &MoeCall<'_>, out: &mut [f32]| experts.run(call, out);
        let logits = model.forward(tokens, LogitRows::All, &mut run).unwrap();
        let rows = logits.to_vec2::<f32>().unwrap();
        bits.extend(rows.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()));
    }
    if let Some(pilot) = experts.pilot() {
        let scores = pilot.scores();
        assert_eq!(scores.control.ahead().recall(0), Some(1.0), "{:?}", scores.control);
    }
    bits
}

#[test]
fn no_predictor_changes_a_bit_of_the_logits() {
    let (_k3, models) = models();
    for (name, dir, tokens) in models {
        let plain = logit_bits(&dir, &tokens, None);
        assert_eq!(plain.len(), tokens.len(), "{name}");
        let fit = fit(&dir, &tokens);
        for kind in PredictorKind::ALL {
            // A model with one layer of experts has nothing to fit.
            if kind == PredictorKind::Fitted && fit.corrections.is_empty() {
                continue;
            }
            let with = logit_bits(&dir, &tokens, Some((PilotConfig::new(kind), Arc::clone(&fit))));
            assert!(with == plain, "{name}: {kind}");
        }
    }
}
