//! What the tests of the trace format share.

use router_trace::{ModelShape, PassInfo, PassKind, Phase, TraceHeader};

pub(crate) fn header() -> TraceHeader {
    TraceHeader {
        model_name: "test \"model\"\n".into(),
        shape: ModelShape { moe_layers: vec![1, 2, 5], n_experts: 8, top_k: 2 },
        expert_bytes: Some(4096),
        created_by: "a test".into(),
    }
}

pub(crate) fn decode(step: u64, layer: u16) -> PassInfo {
    PassInfo { step, position: step, layer, phase: Phase::Decode, kind: PassKind::Normal }
}
