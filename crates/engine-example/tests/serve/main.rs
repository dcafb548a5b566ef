//! The engine over a tier: goldens, and the rule that placement never changes arithmetic.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bundled;
mod cli;
mod families;
mod gguf;
mod headers;
mod loose;
mod machine;
mod pilot;
mod plan;
mod pools;
mod prompt;
mod replay;
mod top;
mod traces;

use engine_example::kernels::Isa;
use engine_example::sampling::SamplingConfig;
use engine_example::{Engine, EngineOptions, GenerateOptions};
use expert_tier::{Admission, Pool, SpinePlacement, Tier, TierConfig};
use std::path::{Path, PathBuf};

const FIXTURES: [&str; 14] = [
    "deepseek-v3-f32",
    "deepseek-v3-bf16-mtp",
    "deepseek-v3-fp8",
    "deepseek-v3-noqlora-f16",
    "kimi-k2-bf16",
    "kimi-k2-int4",
    "kimi-k26-int4",
    "kimi-linear-bf16",
    "qwen3moe-f32",
    "qwen3moe-bf16",
    "qwen3moe-edge-f16-sharded",
    "qwen3moe-fp8",
    "qwen3moe-int4",
    "qwen3moe-yarn-bf16",
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn options(admission: Admission, threads: usize) -> EngineOptions {
    EngineOptions {
        tier: TierConfig { admission, ..TierConfig::default() },
        spine: SpinePlacement::Anonymous,
        threads,
        prefill_chunk: 256,
        prompt_reads: engine_example::PromptReads::Stay,
        isa: Isa::detect(),
    }
}

fn open(dir: &Path, options: &EngineOptions) -> Engine {
    Engine::open(dir, options, |_, _| ()).unwrap()
}

/// The arms that this kernel and the file system of `dir` have.
fn arms(dir: &Path) -> Vec<Admission> {
    let usable = |admission: &Admission| {
        let config = TierConfig { admission: *admission, ..TierConfig::default() };
        match Tier::open(Pool::open(dir).unwrap(), config) {
            Ok(_) => true,
            Err(error) if error.kind() == "device-unavailable" => {
                println!("SKIPPED {admission}: {error}");
                false
            }
            Err(error) => panic!("{error}"),
        }
    };
    Admission::ALL.into_iter().filter(usable).collect()
}

fn golden(name: &str) -> (Vec<u32>, Vec<u32>) {
    let text = std::fs::read_to_string(fixture(name).join("golden.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids = |key: &str| serde_json::from_value(golden[key].clone()).unwrap();
    (ids("input_ids"), ids("greedy_ids"))
}

fn greedy(engine: &mut Engine, prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let options = GenerateOptions { max_tokens, sampling: SamplingConfig::GREEDY, stop_ids: &[] };
    let mut streamed = Vec::new();
    let done = engine
        .generate(prompt, options, &mut |token| {
            streamed.push(token);
            Ok(())
        })
        .unwrap();
    assert_eq!(done.token_ids, streamed);
    done.token_ids
}

#[test]
fn every_golden_is_reproduced_through_every_arm() {
    for name in FIXTURES {
        let (prompt, wanted) = golden(name);
        for admission in arms(&fixture(name)) {
            let mut engine = open(&fixture(name), &options(admission, 2));
            assert_eq!(greedy(&mut engine, &prompt, wanted.len()), wanted, "{name} {admission}");
            let used = engine.tier().snapshot();
            assert!(used.adopted_experts > 0, "{name} {admission}: nothing was adopted");
            assert_eq!(used.adopted_experts, used.warm_experts + used.cold_experts);
        }
    }
}

/// Losses are sums over all logits of all positions, compared to the last bit: any change of
/// any operation would show.
#[test]
fn output_is_bit_identical_over_admission_threads_and_cold_or_warm() {
    for name in FIXTURES {
        let (prompt, continued) = golden(name);
        let tokens = [prompt, continued].concat();
        let mut reference = None;
        for admission in arms(&fixture(name)) {
            for threads in [1, 2, 3, 5] {
                let mut engine = open(&fixture(name), &options(admission, threads));
                for cold in [true, false] {
                    if cold {
                        engine.tier().evict(None).unwrap();
                    }
                    let loss = engine.negative_log_likelihood(&tokens).unwrap();
                    assert!(loss.is_finite() && loss > 0.0);
                    let reference = *reference.get_or_insert(loss.to_bits());
                    let what = format!("{name} {admission} {threads} threads, cold {cold}");
                    assert_eq!(loss.to_bits(), reference, "{what}");
                }
            }
        }
    }
}

#[test]
fn output_is_bit_identical_over_instruction_sets() {
    for name in ["qwen3moe-int4", "deepseek-v3-fp8", "kimi-k2-int4", "kimi-linear-bf16"] {
        let (prompt, continued) = golden(name);
        let tokens = [prompt, continued].concat();
        let losses: Vec<u64> = Isa::available()
            .into_iter()
            .map(|isa| {
                let options = EngineOptions { isa, ..options(Admission::Admit, 2) };
                let mut engine = open(&fixture(name), &options);
                engine.negative_log_likelihood(&tokens).unwrap().to_bits()
            })
            .collect();
        assert!(losses.windows(2).all(|pair| pair[0] == pair[1]), "{name}: {losses:?}");
    }
}

#[test]
fn a_prompt_touches_each_expert_once_a_chunk() {
    let (prompt, _) = golden("qwen3moe-bf16");
    let mut engine = open(&fixture("qwen3moe-bf16"), &options(Admission::Admit, 1));
    let options =
        GenerateOptions { max_tokens: 1, sampling: SamplingConfig::GREEDY, stop_ids: &[] };
    let done = engine.generate(&prompt, options, &mut |_| Ok(())).unwrap();
    let experts = engine.pool().layout().total_experts() as u64;
    assert!(done.prefill.tier.adopted_experts <= experts, "{:?}", done.prefill.tier);
    let picks = prompt.len() as u64 * 4 * 4;
    assert!(done.prefill.tier.adopted_experts < picks, "24 tokens of 4 experts in 4 layers");
}

#[test]
fn a_generation_ends_where_it_should() {
    use engine_example::Stop;
    let (prompt, wanted) = golden("qwen3moe-f32");
    let mut engine = open(&fixture("qwen3moe-f32"), &options(Admission::Admit, 1));
    let mut run = |max_tokens, stop_ids: &[u32]| {
        let options = GenerateOptions { max_tokens, sampling: SamplingConfig::GREEDY, stop_ids };
        let done = engine.generate(&prompt, options, &mut |_| Ok(())).unwrap();
        (done.token_ids.len(), done.stop)
    };
    assert_eq!(run(0, &[]), (0, Stop::MaxTokens));
    assert_eq!(run(1, &[]), (1, Stop::MaxTokens));
    assert_eq!(run(32, &[wanted[5]]), (5, Stop::EndOfText));
    assert_eq!(run(10_000, &[]), (512 - prompt.len() + 1, Stop::ContextFull));
}

#[test]
fn what_cannot_be_decoded_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("qwen3moe-f32");
    std::fs::copy(source.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let kind = |dir: &Path| {
        let error = Engine::open(dir, &options(Admission::Admit, 1), |_, _| ()).unwrap_err();
        (error.kind(), error.to_string())
    };
    assert_eq!(kind(dir.path()).0, "not-a-model");
    let text = std::fs::read_to_string(source.join("config.json")).unwrap();
    let config = text.replace("\"silu\"", "\"gelu\"");
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let (found, message) = kind(dir.path());
    assert_eq!(found, "unsupported");
    assert!(message.contains("hidden_act") && message.contains("gelu"), "{message}");
    let error = Engine::open(&source, &options(Admission::Admit, 0), |_, _| ()).unwrap_err();
    assert_eq!(error.kind(), "limit");
}
