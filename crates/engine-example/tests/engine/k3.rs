//! Kimi K3 against a second implementation: slow, in double precision, with nothing in common but
//! the checkpoint and its published description.

use crate::k3_reference::Reference;
use crate::support::Checkpoint;
use engine_example::kernels::Isa;
use engine_example::models::{LogitRows, MoeCall};
use engine_example::synth::{SynthDtype, SynthOptions, SynthShape, synth};
use engine_example::{Engine, EngineOptions, PromptReads};
use expert_tier::{SpinePlacement, TierConfig};
use std::path::Path;

const TOKENS: [u32; 20] =
    [3, 411, 17, 256, 99, 0, 511, 42, 42, 7, 300, 128, 5, 77, 490, 12, 1, 64, 333, 8];

fn write(dir: &Path, dtype: SynthDtype) {
    let shape = SynthShape::named("tiny-kimi-k3").unwrap();
    let options = SynthOptions { dtype, seed: 5, ..SynthOptions::default() };
    synth(&shape, &options, dir, |_, _| ()).unwrap();
}

#[test]
fn kimi_k3_equals_the_reference_in_routes_and_logits() {
    for dtype in [SynthDtype::Mxfp4, SynthDtype::Bf16] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), dtype);
        let expected = Reference::open(dir.path()).run(&TOKENS);
        // Nearer choices could fall either way in single precision.
        assert!(expected.least_margin > 1e-5, "choose another seed: {}", expected.least_margin);
        let checkpoint = Checkpoint::open(dir.path());
        let (experts, mut model) = (checkpoint.experts(), checkpoint.decoder());
        let mut routes = Vec::new();
        let mut run = |call: &MoeCall<'_>, out: &mut [f32]| {
            let chosen = call.routes.iter().map(|routed| {
                let mut experts = routed.route.experts().to_vec();
                experts.sort_unstable();
                experts
            });
            routes.push((call.layer, chosen.collect::<Vec<_>>()));
            experts.run(call, out)
        };
        let logits = model.forward(&TOKENS, LogitRows::All, &mut run).unwrap();
        assert_eq!(routes, expected.routes, "{dtype:?}");
        let mut worst = 0.0_f64;
        let rows = logits.to_vec2::<f32>().unwrap();
        for (row, wanted) in rows.iter().zip(&expected.logits) {
            for (got, wanted) in row.iter().zip(wanted) {
                worst = worst.max((f64::from(*got) - wanted).abs());
            }
        }
        println!("{dtype:?}: off by {worst:.1e}, logits up to {:.1}", expected.largest_logit());
        assert!(worst < 1e-3, "{dtype:?}: logits off by {worst}");

        // Token by token, the state of the delta layers goes from call to call.
        model.reset();
        let mut one = |call: &MoeCall<'_>, out: &mut [f32]| experts.run(call, out);
        for (token, wanted) in TOKENS.iter().zip(&expected.logits) {
            let row = model.forward(&[*token], LogitRows::Last, &mut one).unwrap();
            for (got, wanted) in row.to_vec2::<f32>().unwrap()[0].iter().zip(wanted) {
                assert!((f64::from(*got) - wanted).abs() < 1e-3, "{dtype:?}");
            }
        }
    }
}

#[test]
fn kimi_k3_through_the_tier_equals_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), SynthDtype::Mxfp4);
    let expected = Reference::open(dir.path()).run(&TOKENS).loss(&TOKENS);
    let options = EngineOptions {
        tier: TierConfig::default(),
        spine: SpinePlacement::Anonymous,
        threads: 2,
        prefill_chunk: 7,
        prompt_reads: PromptReads::Stay,
        isa: Isa::detect(),
    };
    let mut engine = Engine::open(dir.path(), &options, |_, _| ()).unwrap();
    let loss = engine.negative_log_likelihood(&TOKENS).unwrap();
    assert!((loss - expected).abs() < 1e-4, "{loss}, not {expected}");
}

/// Latent layers grow by what their config says a token; delta layers do not grow at all.
#[test]
fn what_is_kept_of_a_sequence_has_the_size_of_its_config() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), SynthDtype::Bf16);
    let checkpoint = Checkpoint::open(dir.path());
    let mut model = checkpoint.decoder();
    // Layers 4, 8 and the last of 10 are latent: rank 32 and 8 of the keys that heads share.
    assert_eq!(model.cache_bytes_per_token(), 3 * (32 + 8) * 4);
    let mut nothing = |_: &MoeCall<'_>, _: &mut [f32]| Ok(());
    let latent_block = 3 * 256 * (32 + 8) * 4;
    let fixed = model.cache_bytes() - latent_block;
    // Seven layers, four heads: a state of 16x16, three inputs of three filters, all twice.
    assert_eq!(fixed, 7 * 2 * 4 * (4 * 16 * 16 + 3 * 3 * 4 * 16));
    model.forward(&[1; 250], LogitRows::Last, &mut nothing).unwrap();
    assert_eq!(model.cache_bytes(), fixed + latent_block);
    model.forward(&[2; 600], LogitRows::Last, &mut nothing).unwrap();
    assert_eq!(model.cache_bytes(), fixed + 4 * latent_block);
    model.reset();
    assert_eq!(model.cache_bytes(), fixed + latent_block);
}
