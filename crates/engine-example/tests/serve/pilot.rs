//! Predictors in the engine: they never change a token or a route, and their scores are those of
//! what they saw.

use super::cli::{fails, json};
use super::{FIXTURES, fixture, golden, greedy, open, options};
use engine_example::pilot::{Fitter, Pilot};
use engine_example::{Engine, EngineError};
use expert_tier::Admission;
use pilot_prefetch::PlanReader;
use pilot_prefetch::fit::Fit;
use pilot_prefetch::predict::{PilotConfig, PredictorKind};
use router_trace::Recorder;
use router_trace::format::{OutputFormat, TraceWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn text(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("pilot").join(name)
}

/// A fit of a fixture's own tokens, of two layers ahead too.
fn fit(engine: &mut Engine, tokens: &[u32]) -> Arc<Fit> {
    let routers = engine.routers(None).unwrap();
    let layers = routers.places().len();
    let pairs: Vec<(usize, usize)> = (0..layers)
        .flat_map(|source| (source + 1..layers.min(source + 3)).map(move |target| (source, target)))
        .collect();
    let mut fitter = Fitter::new(routers.clone(), &pairs, 2);
    for group in 0..2 {
        fitter.begin_text();
        engine
            .watch(tokens, &mut |call| {
                fitter.watch(group, call);
                Ok(())
            })
            .unwrap();
    }
    Arc::new(Fitter::fit(&routers, fitter.corrections(None).unwrap()))
}

/// Tokens, and the bytes of the trace of their routes.
fn tokens_and_routes(engine: &mut Engine, prompt: &[u32]) -> (Vec<u32>, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.rtc");
    let header = engine.trace_header("test".to_owned());
    let writer = TraceWriter::create(&path, OutputFormat::Compact, &header).unwrap();
    engine.record_to(Recorder::spawn(writer, 1 << 20).unwrap());
    let tokens = greedy(engine, prompt, 24);
    assert_eq!(engine.take_recorder().unwrap().finish().unwrap().dropped.records, 0);
    (tokens, std::fs::read(path).unwrap())
}

#[test]
fn no_predictor_changes_a_token_or_a_route() {
    for name in FIXTURES {
        let (prompt, _) = golden(name);
        // A trace numbers an engine's passes from its first: each run has an engine of its own.
        let fresh = || open(&fixture(name), &options(Admission::Admit, 2));
        let plain = tokens_and_routes(&mut fresh(), &prompt);
        let mut engine = fresh();
        let routers = engine.routers(None).unwrap();
        let layers = routers.places().len();
        let fit = Some(fit(&mut engine, &prompt));
        for kind in PredictorKind::ALL {
            for depth in 1..layers.min(3) {
                let config = PilotConfig { depth, ..PilotConfig::new(kind) };
                let mut engine = fresh();
                let routers = engine.routers(fit.clone()).unwrap();
                let pilot = Pilot::new(routers, config).unwrap();
                engine.set_pilot(Some(pilot.advised_by(engine.tier()).unwrap()));
                let with = tokens_and_routes(&mut engine, &prompt);
                assert!(with == plain, "{name}: {config}");
                let scores = engine.pilot().unwrap().scores();
                let (ahead, control) = (scores.predictor.ahead(), scores.control.ahead());
                assert_eq!(control.recall(0), Some(1.0), "{name}: {control:?}");
                assert_eq!(scores.recurrence.ahead().rows, 23 * (layers - depth) as u64);
                let rows = if kind == PredictorKind::None { 0 } else { ahead.rows };
                assert_eq!(ahead.rows + ahead.unscored, 23 * (layers - depth) as u64);
                assert!(ahead.rows == rows && (rows > 0 || kind == PredictorKind::None));
            }
        }
    }
}

/// Lines of ids that nothing orders, below 256.
fn noise_ids(seed: u32, lines: u32) -> String {
    let mut state = seed;
    let mut id = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24).to_string()
    };
    let line = |_| (0..200).map(|_| id()).collect::<Vec<_>>().join(" ") + "\n";
    (0..lines).map(line).collect()
}

/// Routers of random checkpoints on random tokens: what one layer leaves of the stream says little
/// of the next, and a fit knows what it adds to it.
#[test]
fn a_fit_of_a_sigmoid_router_beats_its_plain_lookahead_on_texts_it_has_not_seen() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let texts: Vec<String> = ["one.ids", "two.ids", "three.ids"].map(path).to_vec();
    for (seed, text) in (1..).zip(&texts) {
        std::fs::write(text, noise_ids(seed, 5)).unwrap();
    }
    let k3 = path("k3");
    json(&["synth", "--shape", "tiny-kimi-k3", "--out", &k3, "--json"]);
    let fixtures = [
        "deepseek-v3-f32",
        "deepseek-v3-fp8",
        "deepseek-v3-noqlora-f16",
        "kimi-k2-bf16",
        "kimi-k2-int4",
        "kimi-k26-int4",
        "kimi-linear-bf16",
    ];
    let fixtures = fixtures.map(|name| fixture(name).to_str().unwrap().to_owned());
    for model in fixtures.iter().chain([&k3]) {
        let mut arguments = vec!["pilot", "score", "--model", model, "--json", "--ids"];
        arguments.extend(texts.iter().map(String::as_str));
        let report = json(&arguments);
        assert_eq!(report["control_recall"], 1.0, "{model}");
        let cards = report["predictors"].as_array().unwrap();
        let recalls = |name: &str| {
            let card = cards.iter().find(|card| card["predictor"] == name).unwrap();
            let ahead = card["layers"].as_array().unwrap().iter().filter(|l| l["first"] == false);
            let ahead: Vec<&serde_json::Value> = ahead.collect();
            let sum = |of: &dyn Fn(&serde_json::Value) -> u64| -> f64 {
                ahead.iter().map(|layer| of(layer)).sum::<u64>() as f64
            };
            let chosen = sum(&|layer| layer["chosen"].as_u64().unwrap());
            [0, 1].map(|at| sum(&|layer| layer["hits"][at].as_u64().unwrap()) / chosen)
        };
        let ([fitted, lookahead], repeat) =
            (["fitted", "lookahead"].map(recalls), recalls("repeat"));
        println!("{model}: fitted {fitted:.3?}, lookahead {lookahead:.3?}, repeat {repeat:.3?}");
        for width in 0..2 {
            assert!(fitted[width] > lookahead[width], "{model}: {fitted:?} {lookahead:?}");
        }
    }
}

/// From ids to hints: a fit is made, found beside the model, and its plans reach the kernel.
#[test]
fn a_sigmoid_model_is_fitted_and_its_hints_are_given() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (model, ids, plans) = (path("model"), path("one.ids"), path("plans.jsonl.gz"));
    std::fs::create_dir(&model).unwrap();
    for entry in std::fs::read_dir(fixture("deepseek-v3-f32")).unwrap() {
        let file = entry.unwrap().path();
        std::fs::copy(&file, Path::new(&model).join(file.file_name().unwrap())).unwrap();
    }
    std::fs::write(&ids, noise_ids(7, 20)).unwrap();
    let fit = json(&["pilot", "fit", "--ids", &ids, "--model", &model, "--json"]);
    assert_eq!(fit["pairs"].as_array().unwrap().len(), 2, "three layers of experts: {fit}");
    let (prompt, _) = golden("deepseek-v3-f32");
    let prompt = prompt.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let generate = ["generate", "--model", &model, "--ids", &prompt, "--max-tokens", "120"];
    let run = |more: &[&str]| json(&[&generate[..], &["--seed", "3", "--json"], more].concat());
    let plain = run(&[]);
    let with = run(&["--cold", "--pilot", "fitted,width=4", "--pilot-plan", &plans]);
    assert_eq!(plain["token_ids"], with["token_ids"]);
    let card = &with["pilot"]["predictor"];
    let delivery = &with["pilot"]["delivered"];
    println!("{delivery}");
    let given = delivery["given_plans"].as_u64().unwrap();
    let made = PlanReader::open(Path::new(&plans)).unwrap().map(Result::unwrap);
    let made = made.inspect(|plan| assert!((1..=4).contains(&plan.hints().len()))).count() as u64;
    assert!((1..=made).contains(&given), "{given} of {made} plans: {delivery}");
    assert_eq!(delivery["worker"]["plans"]["submitted"], given);
    assert!(delivery["worker"]["hints"]["hints"].as_u64().unwrap() > 0, "{delivery}");
    assert_eq!(delivery["worker"]["hints"]["errors"], 0);
    assert!(card["layers"][1]["rows"].as_u64().unwrap() > 0, "{card}");
}

/// What a router adds to its scores belongs to its identity.
#[test]
fn a_fit_of_other_biases_is_of_another_model() {
    let dir = tempfile::tempdir().unwrap();
    let name = "deepseek-v3-f32";
    for entry in std::fs::read_dir(fixture(name)).unwrap() {
        let file = entry.unwrap().path();
        std::fs::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
    }
    let (prompt, _) = golden(name);
    let mut engine = open(dir.path(), &options(Admission::Admit, 1));
    let fit = fit(&mut engine, &prompt);
    assert_eq!(
        fit.model,
        open(&fixture(name), &options(Admission::Admit, 1)).routers(None).unwrap().model()
    );
    let path = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let (header, about) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let bias = about.info("model.layers.2.mlp.gate.e_score_correction_bias").unwrap();
    bytes[8 + header + bias.data_offsets.0 + 3] ^= 0x80;
    std::fs::write(&path, bytes).unwrap();
    let other = open(dir.path(), &options(Admission::Admit, 1));
    let error = other.routers(Some(fit)).unwrap_err();
    assert_eq!(error.kind(), "fit-of-another-model");
    assert!(error.to_string().contains("routers"), "{error}");
}

#[test]
fn a_fit_is_refused_by_another_model_and_asked_for_where_it_lacks() {
    let (prompt, _) = golden("qwen3moe-f32");
    let mut engine = open(&fixture("qwen3moe-f32"), &options(Admission::Admit, 1));
    let fit = fit(&mut engine, &prompt);
    // The same routers, stored otherwise: the experts' format does not matter.
    assert_eq!(fit.model, engine.routers(None).unwrap().model());
    let other = open(&fixture("qwen3moe-edge-f16-sharded"), &options(Admission::Admit, 1));
    let error = other.routers(Some(Arc::clone(&fit))).unwrap_err();
    assert_eq!(error.kind(), "fit-of-another-model");
    let config = PilotConfig::new(PredictorKind::Fitted);
    let error = Pilot::new(engine.routers(None).unwrap(), config).unwrap_err();
    assert!(matches!(error, EngineError::FitMissing { .. }), "{error}");
    assert!(error.to_string().contains("tier pilot fit --depth 1"), "{error}");
}

#[test]
fn what_is_fitted_is_the_same_file_again_and_is_found_beside_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for entry in std::fs::read_dir(fixture("qwen3moe-bf16")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, model.join(path.file_name().unwrap())).unwrap();
    }
    let (prompt, _) = golden("qwen3moe-bf16");
    let line = prompt.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    for name in ["one-1.ids", "one-2.ids", "two.ids"] {
        std::fs::write(dir.path().join(name), format!("{line}\n{line}\n")).unwrap();
    }
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (one, two, model) = (path("one-1.ids"), path("two.ids"), path("model"));
    let arguments = ["pilot", "fit", "--ids", &one, &two, "--model", &model, "--json"];
    let report = json(&arguments);
    assert_eq!(report["domains"], serde_json::json!(["one", "two"]));
    assert_eq!(report["tokens"], 4 * prompt.len());
    let beside = Path::new(&model).join(Fit::FILE_NAME);
    let first = std::fs::read(&beside).unwrap();
    // Sums that do not fit the memory together are made one pair after the other.
    let other = path("other.safetensors");
    let small = [&arguments[..], &["--memory", "1", "--out", &other]].concat();
    assert_eq!(json(&small)["model"], report["model"]);
    assert!(first == std::fs::read(other).unwrap(), "not the same bytes");
    let ids = prompt.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let generate = ["generate", "--ids", &ids, "--max-tokens", "40", "--greedy", "--json"];
    let run = |more: &[&str]| json(&[&generate[..], &["--model", &model], more].concat());
    let plans = path("plans.jsonl.gz");
    let with = run(&["--pilot", "fitted,width=6", "--pilot-plan", &plans]);
    let read: Vec<_> = PlanReader::open(Path::new(&plans)).unwrap().map(Result::unwrap).collect();
    // While nothing is missing most tokens are not guessed; the first are.
    assert!(read.len() >= 16, "{} plans", read.len());
    assert!(read.iter().all(|plan| (1..=6).contains(&plan.hints().len())));
    assert_eq!(with["token_ids"], run(&[])["token_ids"]);
    assert_eq!(with["pilot"]["config"]["width"], 6);
    assert!(with["pilot"]["predictor"]["layers"][1]["rows"].as_u64().unwrap() >= 15);
    assert_eq!(with["pilot"]["delivery"]["evicted_unread_bytes"], 0);
    fails(&["pilot", "fit", "--model", &model, "--json"], 1, &["which texts?"]);
    fails(&["pilot", "score", "--model", &model, "--ids", &two], 1, &["one domain, two"]);
    fails(
        &["generate", "--ids", &ids, "--model", &model, "--pilot", "fitted,depth=9"],
        2,
        &["depth=9: must be 1 to 8"],
    );
    let bad = path("bad.ids");
    std::fs::write(&bad, "1 2 x\n").unwrap();
    fails(&["pilot", "fit", "--ids", &bad, "--model", &model], 1, &["bad.ids, line 1", "\"x\""]);
}

/// The bundled model on a text of each domain, each scored by what the three others taught.
#[test]
fn on_domains_it_has_not_seen_the_fitted_lookahead_beats_the_plain_one() {
    let files: Vec<String> = [
        "code-101",
        "code-104",
        "fiction-107",
        "fiction-110",
        "math-115",
        "math-117",
        "systems-120",
        "systems-123",
    ]
    .map(|name| text(&format!("{name}.txt")).to_str().unwrap().to_owned())
    .to_vec();
    let mut arguments = vec!["pilot", "score", "--json"];
    arguments.extend(files.iter().map(String::as_str));
    let report = json(&arguments);
    assert_eq!(report["control_recall"], 1.0);
    let card = |name: &str| {
        let cards = report["predictors"].as_array().unwrap();
        cards.iter().find(|card| card["predictor"] == name).unwrap().clone()
    };
    let [fitted, lookahead, repeat] = ["fitted", "lookahead", "repeat"].map(card);
    for layer in 1..6 {
        for width in 0..3 {
            let recall = |card: &serde_json::Value| {
                let layer = &card["layers"][layer];
                layer["hits"][width].as_f64().unwrap() / layer["chosen"].as_f64().unwrap()
            };
            let [fitted, lookahead, repeat] = [&fitted, &lookahead, &repeat].map(recall);
            println!("layer {layer}, width {width}: {fitted:.4} {lookahead:.4} {repeat:.4}");
            assert!(fitted > lookahead && fitted > repeat, "layer {layer}, width {width}");
        }
    }
    // Every domain was held out, so every token was scored.
    let tokens =
        report["domains"].as_array().unwrap().iter().map(|d| d["tokens"].as_u64().unwrap());
    assert_eq!(fitted["layers"][3]["rows"].as_u64().unwrap(), tokens.sum::<u64>());
}
