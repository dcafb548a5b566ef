//! The committed traces, as the tests want them.

use flate2::read::GzDecoder;
use router_trace::locality::{LocalityBuilder, LocalityOptions, LocalityReport};
use router_trace::{LayerPass, ModelShape, PassInfo, PassKind, Phase, TraceHeader};
use std::io::Read;
use std::path::Path;

/// The bundled model's four domains: 2,048 tokens each, 6 layers, 4 of 64 experts.
pub(crate) const DOMAINS: [&str; 4] = ["systems", "code", "math", "fiction"];

/// A trace in memory.
pub(crate) struct Real {
    pub(crate) header: TraceHeader,
    pub(crate) passes: Vec<LayerPass>,
}

fn unzip(name: &str) -> Vec<u8> {
    // The public traces are for everyone, the held-out ones for tests.
    let dir = if name.contains('/') { "tests/data" } else { "traces" };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(dir).join(name);
    let file = std::fs::File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

pub(crate) fn decode(step: u64, layer: u16) -> PassInfo {
    PassInfo { step, position: step, layer, phase: Phase::Decode, kind: PassKind::Normal }
}

pub(crate) fn header(model: &str, layers: u16, n_experts: u16, top_k: u16) -> TraceHeader {
    TraceHeader {
        model_name: model.to_owned(),
        shape: ModelShape { moe_layers: (0..layers).collect(), n_experts, top_k },
        expert_bytes: None,
        created_by: "a test".to_owned(),
    }
}

/// A public trace (Apache-2.0, sqliteai/waste): one line a token, its layers in order.
pub(crate) fn public(name: &str, n_experts: u16) -> Real {
    #[derive(serde::Deserialize)]
    struct Token {
        layers: Vec<Vec<u16>>,
    }
    let bytes = unzip(&format!("{name}.jsonl.gz"));
    let mut passes = Vec::new();
    let mut layers = 0;
    for (step, line) in (0..).zip(bytes.split(|&b| b == b'\n').filter(|line| !line.is_empty())) {
        let token: Token = serde_json::from_slice(line).unwrap();
        layers = token.layers.len() as u16;
        for (layer, experts) in (0..).zip(token.layers) {
            passes.push(LayerPass::new(decode(step, layer), 8, experts).unwrap());
        }
    }
    Real { header: header(name, layers, n_experts, 8), passes }
}

/// A domain of the bundled model: one byte an expert, token by token, layer by layer.
pub(crate) fn domain(name: &str) -> Real {
    let bytes = unzip(&format!("locality/{name}.heldout.u8.gz"));
    let routes = (0..).zip(bytes.chunks_exact(4));
    let passes = routes.map(|(at, route): (u64, &[u8])| {
        let experts = route.iter().map(|&expert| expert.into()).collect();
        LayerPass::new(decode(at / 6, (at % 6) as u16), 4, experts).unwrap()
    });
    Real { header: header("tiny-moe", 6, 64, 4), passes: passes.collect() }
}

pub(crate) fn report(traces: &[(&str, &Real)], options: LocalityOptions) -> LocalityReport {
    let mut builder = LocalityBuilder::new(options).unwrap();
    for (name, trace) in traces {
        builder.add(name, &trace.header, trace.passes.iter().cloned().map(Ok)).unwrap();
    }
    builder.finish()
}
