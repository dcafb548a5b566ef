//! How fast a trace is counted: selections a second, against merely counting each expert.
//!
//! `cargo bench -p router-trace --bench locality` prints one line a shape. The ratio is
//! what carries over to other machines: both loops read the same passes, take turns, and
//! the median of 5 is compared. The answer is checked, so a wrong one cannot win.
#![forbid(unsafe_code)]

use router_trace::locality::{LocalityBuilder, LocalityOptions};
use router_trace::{LayerPass, ModelShape, PassInfo, PassKind, Phase, TraceHeader};
use std::hint::black_box;
use std::time::Instant;

const SELECTIONS: usize = 10_000_000;
const ROUNDS: usize = 5;

/// xorshift64 (Marsaglia 2003): the trace is the same on every machine.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Skewed towards low numbers, and every second expert of a token is one of the token
/// before: reuse at all distances.
fn trace(shape: &ModelShape) -> Vec<LayerPass> {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (layers, width) = (shape.moe_layers.len(), usize::from(shape.top_k));
    let mut before: Vec<Vec<u16>> = vec![Vec::new(); layers];
    let tokens = SELECTIONS / (layers * width);
    let mut passes = Vec::with_capacity(tokens * layers);
    for step in 0..tokens as u64 {
        for (layer, before) in (0..).zip(&mut before) {
            let mut route: Vec<u16> = before.iter().copied().step_by(2).collect();
            while route.len() < width {
                let uniform = (numbers.next() >> 11) as f64 / (1_u64 << 53) as f64;
                let expert = (uniform * uniform * f64::from(shape.n_experts)) as u16;
                if !route.contains(&expert) {
                    route.push(expert);
                }
            }
            before.clone_from(&route);
            let (phase, kind) = (Phase::Decode, PassKind::Normal);
            let info = PassInfo { step, position: step, layer, phase, kind };
            passes.push(LayerPass::new(info, shape.top_k, route).expect("a whole route"));
        }
    }
    passes
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn bench(name: &str, layers: u16, n_experts: u16, top_k: u16) {
    let shape = ModelShape { moe_layers: (0..layers).collect(), n_experts, top_k };
    let header = TraceHeader {
        model_name: name.to_owned(),
        shape: shape.clone(),
        expert_bytes: None,
        created_by: String::new(),
    };
    let passes = trace(&shape);
    let total: usize = passes.iter().map(|pass| pass.experts().len()).sum();
    let (mut counting, mut measuring) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut counts = vec![0_u64; shape.total_experts()];
        for pass in &passes {
            let base = usize::from(pass.info.layer) * usize::from(n_experts);
            for &expert in black_box(pass.experts()) {
                counts[base + usize::from(expert)] += 1;
            }
        }
        counting.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        let options = LocalityOptions::default();
        let mut builder = LocalityBuilder::new(options).expect("the defaults are valid");
        // `add` takes passes by value, as a reader gives them: the copy is in the time.
        builder.add(name, &header, passes.iter().cloned().map(Ok)).expect("a valid trace");
        let report = builder.finish();
        measuring.push(start.elapsed().as_secs_f64());
        let stats = &report.traces[0].decode;
        assert_eq!(stats.selections, total as u64);
        assert!(stats.reuse[0].measured >= 0.5, "every second expert repeats");
        let ranked: u64 = stats.per_layer.iter().flat_map(|layer| &layer.rank_counts).sum();
        assert_eq!(ranked, counts.iter().sum::<u64>());
    }
    let (counting, measuring) = (median(counting), median(measuring));
    println!(
        "{name}: {:.1} M selections/s, {:.1} x merely counting ({total} selections)",
        total as f64 / measuring / 1e6,
        measuring / counting
    );
}

fn main() {
    bench("16 layers x 64, top-8", 16, 64, 8);
    bench("92 layers x 896, top-16", 92, 896, 16);
}
