//! The bundled model: readable text, and the same text whatever serves it.

use super::{arms, greedy, open, options};
use expert_tier::Admission;
use std::path::{Path, PathBuf};

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("model")
}

#[test]
fn it_is_small_and_its_experts_are_one_extent_each() {
    let pool = expert_tier::Pool::open(model()).unwrap();
    let size = std::fs::metadata(model().join("model.safetensors")).unwrap().len();
    assert!(size < 26_000_000, "{size} bytes");
    assert_eq!(pool.layout().total_experts(), 384);
    for (id, expert) in pool.layout().iter() {
        assert_eq!(expert.extents.len(), 1, "{id}");
    }
    assert!(pool.notices().iter().all(|notice| !notice.warning), "{:?}", pool.notices());
}

#[test]
fn arms_agree_on_its_text() {
    let engine = open(&model(), &options(Admission::Admit, 1));
    let prompt = engine.text().unwrap().encode("The server writes the log file").unwrap();
    let texts: Vec<String> = arms(&model())
        .into_iter()
        .map(|admission| {
            let mut engine = open(&model(), &options(admission, 2));
            let ids = greedy(&mut engine, &prompt, 24);
            engine.text().unwrap().decode(&ids, true).unwrap()
        })
        .collect();
    assert!(texts[0].is_ascii() && texts[0].split_whitespace().count() > 10, "{:?}", texts[0]);
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}

/// Losses of the BF16 model on the same texts, from the README: int4 may cost 0.01 at most.
#[test]
fn quantisation_costs_no_more_than_the_readme_says() {
    let texts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/texts");
    let mut engine = open(&model(), &options(Admission::Admit, 2));
    for (name, before) in [("code", 1.4615), ("fiction", 2.2384), ("math", 0.8345)] {
        let text = std::fs::read_to_string(texts.join(format!("{name}.generated.txt"))).unwrap();
        let tokens = engine.text().unwrap().encode(&text).unwrap();
        let (mut nats, mut predicted) = (0.0, 0);
        for start in (0..tokens.len() - 1).step_by(255) {
            let window = &tokens[start..(start + 256).min(tokens.len())];
            let count = window.len() - 1;
            nats += engine.negative_log_likelihood(window).unwrap() * count as f64;
            predicted += count;
        }
        let loss = nats / f64::from(u32::try_from(predicted).unwrap());
        assert!((before - 0.01..before + 0.01).contains(&loss), "{name}: {loss} after {before}");
    }
}
