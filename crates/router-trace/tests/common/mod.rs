//! What the tests of the trace formats share.
#![allow(dead_code, reason = "each test file uses its part")]

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

/// A small generator with a fixed seed, so that a failure can be run again.
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// Damages `bytes` in a few places, as disks, editors and malice do. Never leaves none.
pub(crate) fn mutate(bytes: &mut Vec<u8>, random: &mut SplitMix) {
    const PIECES: [&str; 16] = [
        "[",
        "]",
        "{",
        "}",
        ",",
        "-1",
        "65536",
        "1e9",
        "\"end\"",
        "null",
        "\n",
        "\"\\ud800\"",
        ":",
        " ",
        "\0",
        "99999999999999999999",
    ];
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes[at] = random.below(256) as u8,
            1 => bytes.truncate(at + 1),
            2 => drop(bytes.remove(at)),
            3 => {
                let piece = PIECES[random.below(PIECES.len())];
                bytes.splice(at..at, piece.bytes());
            }
            _ => {
                let to = (at + random.below(80)).min(bytes.len());
                let copy = bytes[at..to].to_vec();
                let place = random.below(bytes.len());
                bytes.splice(place..place, copy);
            }
        }
        if bytes.is_empty() {
            bytes.push(b'\n');
        }
    }
}
