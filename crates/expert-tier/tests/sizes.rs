//! Sizes from a config alone, held to the headers of real checkpoints byte by byte.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use expert_tier::Pool;
use expert_tier::pool::{CheckpointConfig, ModelSizes, SizeSource};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Every checkpoint whose headers lie here.
fn checkpoints() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/headers");
    let mut found: Vec<PathBuf> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    assert!(found.len() >= 14, "{found:?}");
    found
}

/// A checkpoint with these headers and no data: files as long as they say, and empty.
fn hollow(headers: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(headers).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = fs::read(&path).unwrap();
        let Some(shard) = name.strip_suffix(".safetensors.json") else {
            fs::write(dir.path().join(&name), text).unwrap();
            continue;
        };
        let header: Value = serde_json::from_slice(&text).unwrap();
        let end = |tensor: &Value| tensor["data_offsets"][1].as_u64();
        let data = header.as_object().unwrap().values().filter_map(end).max().unwrap();
        let mut file = File::create(dir.path().join(format!("{shard}.safetensors"))).unwrap();
        file.write_all(&(text.len() as u64).to_le_bytes()).unwrap();
        file.write_all(&text).unwrap();
        file.set_len(8 + text.len() as u64 + data).unwrap();
    }
    dir
}

#[test]
fn the_config_alone_gives_the_sizes_of_the_headers() {
    for headers in checkpoints() {
        let dir = hollow(&headers);
        let real = ModelSizes::of_pool(&Pool::open(dir.path()).unwrap()).unwrap();
        let config = CheckpointConfig::open(&headers.join("config.json")).unwrap();
        let planned = ModelSizes::of_config(&config).unwrap();
        assert_eq!(real.source, SizeSource::Headers);
        let planned = ModelSizes { source: SizeSource::Headers, ..planned };
        assert_eq!(planned, real, "{}", headers.display());
        assert!(real.pool_bytes > 0 && real.spine_bytes > real.spine_token_bytes / 2);
    }
}

#[test]
fn nothing_of_a_download_is_left_out() {
    for headers in checkpoints() {
        let dir = hollow(&headers);
        let pool = Pool::open(dir.path()).unwrap();
        let sizes = ModelSizes::of_pool(&pool).unwrap();
        let tensors: u64 = fs::read_dir(&headers)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_str().unwrap().ends_with(".safetensors.json"))
            .map(|path| {
                let header: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
                let end = |tensor: &Value| tensor["data_offsets"][1].as_u64();
                header.as_object().unwrap().values().filter_map(end).max().unwrap()
            })
            .sum();
        let counted = sizes.checkpoint_bytes() + pool.foreign().bytes;
        assert_eq!(counted, tensors, "{}", headers.display());
    }
}

fn config(value: &Value) -> Result<ModelSizes, expert_tier::TierError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    fs::write(&path, value.to_string()).unwrap();
    ModelSizes::of_config(&CheckpointConfig::open(&path).unwrap())
}

fn mla(hidden: u64, heads: u64, q_rank: u64) -> Value {
    json!({
        "hidden_size": hidden, "num_attention_heads": heads, "q_lora_rank": q_rank,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "torch_dtype": "bfloat16",
    })
}

fn with(mut base: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("an object") };
    base.as_object_mut().unwrap().extend(more);
    base
}

/// Layers 4, 8, ... and the last one have full attention, counted from 1.
fn kimi_k3() -> Value {
    let full: Vec<u16> = (1..=93).filter(|layer| layer % 4 == 0 || *layer == 93).collect();
    assert_eq!(full.len(), 24);
    let text = with(
        mla(7168, 96, 1536),
        json!({
            "model_type": "kimi_linear", "num_hidden_layers": 93, "vocab_size": 163_840,
            "first_k_dense_replace": 1, "intermediate_size": 33_792, "mla_use_nope": true,
            "mla_use_output_gate": true, "num_experts": 896, "num_experts_per_token": 16,
            "num_shared_experts": 2, "moe_intermediate_size": 3072,
            "routed_expert_hidden_size": 3584, "tie_word_embeddings": false,
            "linear_attn_config": { "num_heads": 96, "head_dim": 128,
                "short_conv_kernel_size": 4, "full_attn_layers": full, "kda_layers": [] },
            "quantization_config": { "quant_method": "compressed-tensors",
                "format": "mxfp4-pack-quantized",
                "config_groups": { "group_0": { "targets": ["Linear"], "weights": {
                    "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
                    "symmetric": true } } },
                "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "lm_head",
                    "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"] },
        }),
    );
    json!({ "model_type": "kimi_k3", "text_config": text })
}

#[test]
fn the_trillion_parameter_models_have_their_published_sizes() {
    let k3 = config(&kimi_k3()).unwrap();
    assert_eq!(k3.expert_bytes, 17_547_264);
    assert_eq!(k3.pool_bytes, 82_432 * 17_547_264); // 1.446 TB
    assert_eq!(k3.token_bytes, 16 * 92 * 17_547_264); // 25.83 GB
    // The paper gives 114 GB for the spine and 1.45 TB for the pool; the index 1.56 TB in all.
    assert!((112e9..115e9).contains(&(k3.spine_bytes as f64)), "{}", k3.spine_bytes);
    assert!((1.555e12..1.565e12).contains(&(k3.checkpoint_bytes() as f64)));
    let kv = k3.kv.unwrap();
    assert_eq!(kv.elements_per_token, 24 * (512 + 64));
    assert_eq!(kv.fixed_bytes, 69 * 4 * (96 * 128 * 128 + 3 * 96 * 128 * 3));

    let k2 = with(
        mla(7168, 64, 1536),
        json!({ "model_type": "kimi_k2", "num_hidden_layers": 61, "vocab_size": 163_840,
            "first_k_dense_replace": 1, "intermediate_size": 18_432, "n_routed_experts": 384,
            "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
            "quantization_config": { "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": { "group_0": { "weights": { "num_bits": 4, "type": "int",
                    "strategy": "group", "group_size": 32, "symmetric": true } } },
                "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
                    "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"] } }),
    );
    let k2 = config(&k2).unwrap();
    assert_eq!((k2.expert_bytes, k2.pool_bytes), (24_772_608, 23_040 * 24_772_608));
    assert_eq!(k2.token_bytes, 8 * 60 * 24_772_608); // 11.9 GB
}

#[test]
fn deepseek_and_qwen_have_their_published_sizes() {
    let v3 = with(
        mla(7168, 128, 1536),
        json!({ "model_type": "deepseek_v3", "num_hidden_layers": 61, "vocab_size": 129_280,
            "first_k_dense_replace": 3, "intermediate_size": 18_432, "n_routed_experts": 256,
            "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
            "num_nextn_predict_layers": 1, "quantization_config": { "quant_method": "fp8",
                "fmt": "e4m3", "weight_block_size": [128, 128] } }),
    );
    let v3 = config(&v3).unwrap();
    assert_eq!((v3.expert_bytes, v3.pool_bytes), (44_050_944, 14_848 * 44_050_944));
    // Weight files of the published repository, headers included: 688,586,727,753 bytes.
    let total = v3.checkpoint_bytes() as f64;
    assert!((total / 688_586_727_753.0 - 1.0).abs() < 1e-3, "{total}");
    assert_eq!(v3.kv.unwrap().elements_per_token, 61 * 576);

    let qwen = json!({ "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "vocab_size": 151_936, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "torch_dtype": "bfloat16" });
    let qwen = config(&qwen).unwrap();
    assert_eq!((qwen.expert_bytes, qwen.pool_bytes), (9_437_184, 6144 * 9_437_184));
    // 30,532,122,624 parameters of two bytes.
    assert_eq!(qwen.checkpoint_bytes(), 2 * 30_532_122_624);
    let kv = qwen.kv.unwrap();
    assert_eq!(kv.bytes(1000, 2), 1000 * 48 * 2 * 4 * 128 * 2);
}

#[test]
fn what_is_not_known_is_named() {
    let base = kimi_k3();
    let mutate = |pointer: &str, value: Value| {
        let mut changed = base.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        config(&changed).unwrap_err()
    };
    let quant = "/text_config/quantization_config";
    for (pointer, value, kind, word) in [
        ("/text_config/kv_lora_rank", json!(null), "config-inconsistent", "kv_lora_rank"),
        ("/text_config/kv_lora_rank", json!(1_u64 << 40), "config-inconsistent", "kv_lora_rank"),
        ("/text_config/hidden_size", json!(0), "config-inconsistent", "hidden_size"),
        ("/text_config/num_experts", json!(0), "not-a-model", "nothing to plan"),
        ("/text_config/torch_dtype", json!("int3"), "unsupported", "int3"),
        (&format!("{quant}/format"), json!("marlin-24"), "unsupported", "marlin-24"),
        (&format!("{quant}/ignore"), json!(["re:(?<=x)y"]), "unsupported", "ignore"),
        (quant, json!({ "quant_method": "awq" }), "unsupported", "awq"),
        (quant, json!({ "quant_method": "fp8" }), "unsupported", "weight_block_size"),
    ] {
        let error = mutate(pointer, value);
        assert_eq!(error.kind(), kind, "{pointer}: {error}");
        assert!(error.to_string().contains(word), "{pointer}: {error}");
    }
    let other = config(&json!({ "model_type": "mixtral", "num_hidden_layers": 2 })).unwrap_err();
    assert!(other.to_string().contains("qwen3_moe, deepseek_v3"), "{other}");
}
