//! What the capture tools wrote from other engines, read strictly and held to known routes.
//!
//! `tests/data/capture/README.md` has the commands. The tools' own tests, which need their
//! engines, are in `capture/tests`.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use router_trace::{Dropped, LayerPass, ModelShape, PassKind, Phase, Tail, Trace};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

const PROMPT_TOKENS: u64 = 24;
const DECODED_TOKENS: u64 = 31;
const LAYERS: u64 = 4;

/// The experts of each (layer, position), best score first.
type Routes = BTreeMap<(u16, u64), Vec<u16>>;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/capture").join(name)
}

fn read(name: &str) -> Trace {
    router_trace::read_all(&data(name), Tail::Strict).unwrap()
}

fn golden() -> Routes {
    let text = std::fs::read_to_string(data("golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let mut routes = Routes::new();
    for (layer, rows) in golden["topk"].as_object().unwrap() {
        for (position, ids) in (0..).zip(rows["ids"].as_array().unwrap()) {
            let ids = ids.as_array().unwrap().iter();
            let ids = ids.map(|id| u16::try_from(id.as_u64().unwrap()).unwrap()).collect();
            routes.insert((layer.parse().unwrap(), position), ids);
        }
    }
    assert_eq!(routes.len() as u64, LAYERS * (PROMPT_TOKENS + DECODED_TOKENS));
    routes
}

fn routes_of(passes: &[LayerPass]) -> Routes {
    let mut routes = Routes::new();
    for pass in passes {
        for (position, route) in (pass.info.position..).zip(pass.routes()) {
            let again = routes.insert((pass.info.layer, position), route.experts().to_vec());
            assert_eq!(again, None, "layer {} position {position} is there twice", pass.info.layer);
        }
    }
    routes
}

fn check_header(trace: &Trace, created_by: &str) {
    let shape = ModelShape { moe_layers: vec![0, 1, 2, 3], n_experts: 16, top_k: 4 };
    assert_eq!(trace.header.shape, shape);
    assert_eq!(trace.header.model_name, "qwen3moe-f32");
    // gate, up and down of 32 x 64 float32 each.
    assert_eq!(trace.header.expert_bytes, Some(3 * 32 * 64 * 4));
    assert_eq!(trace.header.created_by, created_by);
}

fn check_decode(passes: &[LayerPass]) {
    assert_eq!(passes.len() as u64, LAYERS * DECODED_TOKENS);
    for (token, layers) in (0..).zip(passes.chunks_exact(LAYERS as usize)) {
        for (layer, pass) in (0..).zip(layers) {
            // The prompt was one pass, whether or not it was written.
            assert_eq!((pass.info.step, pass.info.position), (1 + token, PROMPT_TOKENS + token));
            assert_eq!((pass.info.layer, pass.info.phase), (layer, Phase::Decode));
            assert_eq!((pass.info.kind, pass.n_tokens()), (PassKind::Normal, 1));
        }
    }
}

#[test]
fn transformers_prompt_and_decode_equal_golden() {
    let trace = read("transformers.jsonl");
    let engine = "capture_transformers.py (transformers 5.24.0, torch 2.15.0+cu132)";
    check_header(&trace, engine);
    let (prompt, decode) = trace.passes.split_at(LAYERS as usize);
    for pass in prompt {
        assert_eq!((pass.info.step, pass.info.phase), (0, Phase::Prefill));
        assert_eq!(pass.n_tokens() as u64, PROMPT_TOKENS);
    }
    check_decode(decode);
    assert_eq!(routes_of(&trace.passes), golden());
}

#[test]
fn llama_cpp_decode_equals_golden_and_its_warm_up_is_counted() {
    let trace = read("llamacpp.jsonl");
    check_header(&trace, "capture_llamacpp.py (llama-cpp-python 0.3.36)");
    // One token through all sixteen experts of each layer, which no decoded token asked for.
    let dropped = trace.end.map(|end| end.dropped);
    assert_eq!(dropped, Some(Dropped { records: LAYERS, tokens: LAYERS }));
    check_decode(&trace.passes);
    let mut known = golden();
    known.retain(|&(_, position), _| position >= PROMPT_TOKENS);
    assert_eq!(routes_of(&trace.passes), known);
}
