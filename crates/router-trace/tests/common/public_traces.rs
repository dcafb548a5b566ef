//! The two public traces under `traces`: data files of sqliteai/waste (Apache-2.0), one
//! line a token, `{"tok": n, "layers": [[expert ids], …]}`.

use flate2::read::GzDecoder;
use router_trace::{
    Accesses, Demand, LayerPass, ModelShape, PassInfo, PassKind, Phase, TraceHeader,
};
use std::io::{BufRead, BufReader};

#[derive(serde::Deserialize)]
struct Line {
    layers: Vec<Vec<u16>>,
}

/// OLMoE, 299 tokens: 16 layers of 64 experts, 8 a token.
pub(crate) fn olmoe() -> Accesses {
    load(include_bytes!("../../traces/olmoe_299.jsonl.gz"), 16, 64)
}

/// Kimi-Linear, 300 tokens: 26 layers of 256 experts, 8 a token.
pub(crate) fn kimi_linear() -> Accesses {
    load(include_bytes!("../../traces/kimi_linear_300.jsonl.gz"), 26, 256)
}

fn load(gzip: &[u8], n_layers: u16, n_experts: u16) -> Accesses {
    let shape = ModelShape { moe_layers: (0..n_layers).collect(), n_experts, top_k: 8 };
    let header = TraceHeader {
        model_name: String::new(),
        shape,
        expert_bytes: Some(1_000_000),
        created_by: String::new(),
    };
    let mut passes = Vec::new();
    for (line, step) in BufReader::new(GzDecoder::new(gzip)).lines().zip(0..) {
        let line: Line = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(line.layers.len(), usize::from(n_layers));
        for (experts, layer) in line.layers.into_iter().zip(0..) {
            let (phase, kind) = (Phase::Decode, PassKind::Normal);
            let info = PassInfo { step, position: step, layer, phase, kind };
            passes.push(Ok(LayerPass::new(info, 8, experts).unwrap()));
        }
    }
    Accesses::from_passes(&header, passes, Demand::EachToken).unwrap()
}
