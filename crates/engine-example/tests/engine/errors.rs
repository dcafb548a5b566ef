//! What the decoder refuses, and that a refused call leaves the sequence as it was.

use crate::support::{Checkpoint, fixture_dir};
use engine_example::EngineError;
use engine_example::config::AttentionConfig;
use engine_example::models::{Decoder, LogitRows, MoeCall};
use engine_example::weights::SpineWeights;

fn checkpoint() -> Checkpoint {
    Checkpoint::open(&fixture_dir("qwen3moe-bf16"))
}

fn no_experts(_: &MoeCall<'_>, _: &mut [f32]) -> Result<(), EngineError> {
    Ok(())
}

#[test]
fn a_token_outside_the_vocabulary_is_named() {
    let mut model = checkpoint().decoder();
    model.forward(&[1, 2], LogitRows::Last, &mut no_experts).unwrap();
    let error = model.forward(&[3, 256, 4], LogitRows::Last, &mut no_experts).unwrap_err();
    assert_eq!(error.kind(), "token-out-of-range");
    assert_eq!(error.to_string(), "token 256 at position 3 is outside the vocabulary of 256");
    assert_eq!(model.position(), 2);
}

#[test]
fn positions_end_where_the_config_says() {
    let mut model = checkpoint().decoder();
    model.forward(&[1; 500], LogitRows::Last, &mut no_experts).unwrap();
    let error = model.forward(&[1; 13], LogitRows::Last, &mut no_experts).unwrap_err();
    assert_eq!(error.kind(), "limit");
    for number in ["513", "512", "500"] {
        assert!(error.to_string().contains(number), "{error}");
    }
    model.forward(&[1; 12], LogitRows::Last, &mut no_experts).unwrap();
    let bytes = model.cache_bytes();
    model.reset();
    assert!(model.cache_bytes() < bytes);
    model.forward(&[1], LogitRows::Last, &mut no_experts).unwrap();
    assert_eq!(model.position(), 1);
}

#[test]
fn a_failed_expert_leaves_the_sequence_as_it_was() {
    let checkpoint = checkpoint();
    let experts = checkpoint.experts();
    let mut run = |call: &MoeCall<'_>, out: &mut [f32]| experts.run(call, out);
    let (mut clean, mut failed) = (checkpoint.decoder(), checkpoint.decoder());
    for model in [&mut clean, &mut failed] {
        model.set_prefill_chunk(4);
        model.forward(&[5, 6, 7], LogitRows::Last, &mut run).unwrap();
    }
    let mut calls = 0;
    let mut fail_late = |_: &MoeCall<'_>, _: &mut [f32]| {
        calls += 1;
        let problem = "a failed read".to_owned();
        if calls < 7 { Ok(()) } else { Err(EngineError::Router { layer: 2, problem }) }
    };
    failed.forward(&[200, 201, 202, 203, 204, 205], LogitRows::Last, &mut fail_late).unwrap_err();
    assert_eq!(failed.position(), 3);
    let logits = |model: &mut Decoder| {
        let mut run = |call: &MoeCall<'_>, out: &mut [f32]| experts.run(call, out);
        model.forward(&[8, 9], LogitRows::Last, &mut run).unwrap().to_vec2::<f32>().unwrap()
    };
    assert_eq!(logits(&mut failed), logits(&mut clean));
}

/// The state of a recurrence has moved on when a later layer fails, in the second of two chunks.
#[test]
fn a_failed_expert_leaves_a_recurrence_as_it_was() {
    let checkpoint = Checkpoint::open(&fixture_dir("kimi-linear-bf16"));
    let experts = checkpoint.experts();
    let mut run = |call: &MoeCall<'_>, out: &mut [f32]| experts.run(call, out);
    let (mut clean, mut failed) = (checkpoint.decoder(), checkpoint.decoder());
    for model in [&mut clean, &mut failed] {
        model.set_prefill_chunk(4);
        model.forward(&[5, 6, 7], LogitRows::Last, &mut run).unwrap();
    }
    let mut calls = 0;
    let mut fail_late = |_: &MoeCall<'_>, _: &mut [f32]| {
        calls += 1;
        let problem = "a failed read".to_owned();
        if calls < 7 { Ok(()) } else { Err(EngineError::Router { layer: 3, problem }) }
    };
    failed.forward(&[200, 201, 202, 203, 204, 205], LogitRows::Last, &mut fail_late).unwrap_err();
    let mut run = |call: &MoeCall<'_>, out: &mut [f32]| experts.run(call, out);
    let mut logits = |model: &mut Decoder| {
        model.forward(&[8, 9], LogitRows::Last, &mut run).unwrap().to_vec2::<f32>().unwrap()
    };
    assert_eq!(logits(&mut failed), logits(&mut clean));
}

#[test]
fn an_empty_pass_is_refused() {
    let error = checkpoint().decoder().forward(&[], LogitRows::Last, &mut no_experts).unwrap_err();
    assert_eq!(error.kind(), "config-inconsistent");
}

#[test]
fn weights_that_do_not_fit_the_config_are_named() {
    let checkpoint = checkpoint();
    let empty = SpineWeights::new(
        Default::default(),
        Default::default(),
        engine_example::kernels::Isa::detect(),
    );
    let error = Decoder::new(checkpoint.config.clone(), &empty).unwrap_err();
    assert_eq!(error.kind(), "config-inconsistent");
    assert!(error.to_string().contains("embed_tokens.weight"), "{error}");

    let mut wider = checkpoint.config.clone();
    let AttentionConfig::Grouped { shape, .. } = &mut wider.attention else { panic!() };
    shape.heads = 8;
    let error = Decoder::new(wider, &checkpoint.weights).unwrap_err();
    assert_eq!(error.kind(), "config-inconsistent");
    for word in ["layers.0.self_attn.q_proj.weight", "[128, 64]", "[64, 64]"] {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn an_untied_model_needs_a_head() {
    let tied = Checkpoint::open(&fixture_dir("qwen3moe-edge-f16-sharded"));
    let mut config = tied.config.clone();
    config.tie_word_embeddings = false;
    let error = Decoder::new(config, &tied.weights).unwrap_err();
    assert_eq!(error.kind(), "config-inconsistent");
    assert!(error.to_string().contains("lm_head.weight"), "{error}");
    assert!(error.to_string().contains("tie_word_embeddings"), "{error}");
}
