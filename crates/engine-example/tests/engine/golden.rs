//! The decoder against reference runs of small checkpoints of every family: float types, FP8
//! blocks, packed 4 bit, dense layers, shared experts, biases, a tied head, YaRN, latent attention.

use crate::support::{
    Checkpoint, FIXTURES, Golden, PlainExperts, argmax, fixture_dir, max_difference,
};
use engine_example::models::{Decoder, GateRoom, LayerGate, LogitRows, MoeCall};
use engine_example::router::Routed;
use proptest::prelude::*;

fn forward(
    model: &mut Decoder,
    experts: &PlainExperts,
    tokens: &[u32],
    rows: LogitRows,
) -> Vec<Vec<f32>> {
    let mut run = |call: &MoeCall<'_>, out: &mut [f32]| experts.run(call, out);
    model.forward(tokens, rows, &mut run).unwrap().to_vec2().unwrap()
}

/// As the recordings have it; a bias that selects only makes that another order than the route's.
pub(crate) fn by_weight(routed: &Routed) -> Vec<(u16, f32)> {
    let mut chosen: Vec<(u16, f32)> = routed.iter().collect();
    chosen.sort_by(|a, b| b.1.total_cmp(&a.1));
    chosen
}

/// Compares what the experts of one call got and gave with the recording.
fn check_call(
    checkpoint: &Checkpoint,
    golden: &Golden,
    call: &MoeCall<'_>,
    out: &[f32],
    what: &str,
) {
    let layer = call.layer;
    let table = |flat: &[f32]| -> Vec<Vec<f32>> {
        flat.chunks(flat.len() / call.routes.len()).map(<[f32]>::to_vec).collect()
    };
    let mlp_in = max_difference(&table(call.x), &golden.rows(&format!("mlp_in.{layer}")));
    assert!(mlp_in < 1e-3, "{what}: input of the experts of layer {layer} off by {mlp_in}");
    let wanted: Vec<Vec<u16>> =
        serde_json::from_value(golden.info["topk"][layer.to_string()]["ids"].clone()).unwrap();
    let weights = golden.rows(&format!("topk_weights.{layer}"));
    for (position, routed) in call.routes.iter().enumerate() {
        let place = format!("{what}: layer {layer} position {position}");
        let chosen = by_weight(routed);
        let experts: Vec<u16> = chosen.iter().map(|one| one.0).collect();
        assert_eq!(experts, wanted[position], "{place}");
        for ((_, got), wanted) in chosen.iter().zip(&weights[position]) {
            assert!((got - wanted).abs() < 1e-5, "{place}: weight {got} wanted {wanted}");
        }
    }
    // The recording has the shared experts' part in it.
    let mut all = out.to_vec();
    checkpoint.add_shared(layer, call.x, &mut all);
    let mlp_out = max_difference(&table(&all), &golden.rows(&format!("mlp_out.{layer}")));
    assert!(mlp_out < 1e-3, "{what}: output of the experts of layer {layer} off by {mlp_out}");
}

#[test]
fn full_forward_gives_the_recorded_routes_and_logits() {
    for name in FIXTURES {
        let dir = fixture_dir(name);
        let (checkpoint, golden) = (Checkpoint::open(&dir), Golden::open(&dir));
        let experts = checkpoint.experts();
        let mut moe_layers = Vec::new();
        let mut run = |call: &MoeCall<'_>, out: &mut [f32]| {
            experts.run(call, out)?;
            moe_layers.push(u64::from(call.layer));
            check_call(&checkpoint, &golden, call, out, name);
            Ok(())
        };
        let mut model = checkpoint.decoder();
        let logits = model.forward(&golden.full_input(), LogitRows::All, &mut run).unwrap();
        assert_eq!(serde_json::json!(moe_layers), golden.info["moe_layers"], "{name}");
        let off = max_difference(&logits.to_vec2().unwrap(), &golden.rows("logits"));
        println!("{name}: full forward off by {off:.1e}");
        let tolerance = golden.info["suggested_logit_atol"].as_f64().unwrap() as f32;
        assert!(off < tolerance, "{name}: logits off by {off}");
    }
}

#[test]
fn greedy_decoding_gives_the_recorded_tokens_and_logits() {
    for name in FIXTURES {
        let dir = fixture_dir(name);
        let (checkpoint, golden) = (Checkpoint::open(&dir), Golden::open(&dir));
        let (experts, mut model) = (checkpoint.experts(), checkpoint.decoder());
        let wanted = golden.ids("greedy_ids");
        let mut rows = forward(&mut model, &experts, &golden.ids("input_ids"), LogitRows::Last);
        let mut ids = vec![argmax(&rows[0])];
        while ids.len() < wanted.len() {
            let step = forward(&mut model, &experts, &[ids[ids.len() - 1]], LogitRows::Last);
            rows.extend(step);
            ids.push(argmax(&rows[rows.len() - 1]));
        }
        assert_eq!(ids, wanted, "{name}");
        let off = max_difference(&rows, &golden.rows("decode_logits"));
        println!("{name}: cached decoding off by {off:.1e}");
        let tolerance = golden.info["suggested_logit_atol"].as_f64().unwrap() as f32;
        assert!(off < tolerance, "{name}: logits off by {off}");
    }
}

#[test]
fn a_gate_on_its_own_layers_hidden_state_ranks_as_the_router_did() {
    for name in FIXTURES {
        let dir = fixture_dir(name);
        let (checkpoint, golden) = (Checkpoint::open(&dir), Golden::open(&dir));
        let (experts, mut model) = (checkpoint.experts(), checkpoint.decoder());
        let gates = model.gates();
        let (mut room, mut logits, mut layers) = (GateRoom::default(), Vec::new(), Vec::new());
        let mut run = |call: &MoeCall<'_>, out: &mut [f32]| {
            let gate = &gates[layers.len()];
            layers.push(call.layer);
            assert_eq!(gate.layer(), call.layer);
            let width = call.hidden.len() / call.routes.len();
            for (routed, hidden) in call.routes.iter().zip(call.hidden.chunks_exact(width)) {
                gate.rank_values(hidden, &mut room, &mut logits);
                let chosen = routed.route.experts();
                let worst = chosen.iter().map(|&expert| logits[usize::from(expert)]);
                let worst = worst.fold(f32::INFINITY, f32::min);
                let better = logits.iter().filter(|&&logit| logit > worst).count();
                assert!(better < chosen.len(), "{name}: layer {}", call.layer);
            }
            experts.run(call, out)
        };
        model.forward(&golden.ids("input_ids"), LogitRows::Last, &mut run).unwrap();
        assert!(gates.iter().map(LayerGate::layer).eq(layers), "{name}");
    }
}

/// One row of `rank + rope` values a layer and token, never a key or a value of a head.
#[test]
fn the_latent_cache_holds_only_what_is_compressed() {
    for (name, layers, row) in
        [("deepseek-v3-f32", 4, 24 + 8), ("deepseek-v3-fp8", 3, 40 + 8), ("kimi-k2-int4", 4, 32)]
    {
        let mut model = Checkpoint::open(&fixture_dir(name)).decoder();
        assert_eq!(model.cache_bytes_per_token(), layers * row * 4, "{name}");
        let block = layers * row * 4 * 256;
        assert_eq!(model.cache_bytes(), block, "{name}");
        let mut nothing = |_: &MoeCall<'_>, _: &mut [f32]| Ok(());
        model.forward(&[1; 257], LogitRows::Last, &mut nothing).unwrap();
        assert_eq!(model.cache_bytes(), 2 * block, "{name}");
    }
}

/// Of Kimi Linear's five layers four are delta layers, which keep one size.
#[test]
fn a_delta_layer_keeps_one_size_whatever_the_context() {
    let mut model = Checkpoint::open(&fixture_dir("kimi-linear-bf16")).decoder();
    assert_eq!(model.cache_bytes_per_token(), (24 + 8) * 4);
    let mut nothing = |_: &MoeCall<'_>, _: &mut [f32]| Ok(());
    let mut sizes = Vec::new();
    for _ in 0..3 {
        model.forward(&[1; 256], LogitRows::Last, &mut nothing).unwrap();
        sizes.push(model.cache_bytes());
    }
    let latent_block = 256 * (24 + 8) * 4;
    assert_eq!([sizes[1] - sizes[0], sizes[2] - sizes[1]], [latent_block; 2]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_chunking_of_a_prompt_gives_the_same_logits(
        fixture in 0..FIXTURES.len(),
        chunk in 1_usize..24,
        calls in prop::collection::vec(1_usize..20, 1..4),
    ) {
        let dir = fixture_dir(FIXTURES[fixture]);
        let (checkpoint, golden) = (Checkpoint::open(&dir), Golden::open(&dir));
        let (experts, mut model) = (checkpoint.experts(), checkpoint.decoder());
        let tokens = golden.ids("input_ids");
        let mut one_by_one = Vec::new();
        for &token in &tokens {
            one_by_one.extend(forward(&mut model, &experts, &[token], LogitRows::Last));
        }
        model.reset();
        model.set_prefill_chunk(chunk);
        let (mut chunked, mut rest) = (Vec::new(), tokens.as_slice());
        for count in calls.into_iter().chain([tokens.len()]) {
            let (now, later) = rest.split_at(count.min(rest.len()));
            if !now.is_empty() {
                chunked.extend(forward(&mut model, &experts, now, LogitRows::All));
            }
            rest = later;
        }
        let off = max_difference(&one_by_one, &chunked);
        prop_assert!(off < 1e-4, "{} off by {off}", FIXTURES[fixture]);
    }
}
