//! `tier plan`: before a download, on this machine, and after a run.

use super::cli::{fails, json, tier};
use super::fixture;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The notices of a plan as one text.
fn notices(plan: &Value) -> String {
    plan["notices"].to_string()
}

#[test]
fn a_config_alone_plans_what_the_files_say() {
    for name in ["qwen3moe-fp8", "qwen3moe-int4", "qwen3moe-edge-f16-sharded", "qwen3moe-f32"] {
        let dir = fixture(name);
        let dram = ["--dram", "2G", "--reserve", "1G", "--json"];
        let real = json(&[&["plan", text(&dir)], &dram[..]].concat());
        let config = dir.join("config.json");
        let planned = json(&[&["plan", "--config", text(&config)], &dram[..]].concat());
        assert_eq!(
            (&real["sizes"]["source"], &planned["sizes"]["source"]),
            (&json!("headers"), &json!("config"))
        );
        for key in ["pool_bytes", "token_bytes", "spine_bytes", "expert_bytes", "kv", "shape"] {
            assert_eq!(planned["sizes"][key], real["sizes"][key], "{name}: {key}");
        }
        assert_eq!(planned["rows"], real["rows"], "{name}");
        assert_eq!(planned["rows"][0]["admission"]["choice"], "fits");
    }
}

#[test]
fn an_unfinished_download_is_planned_from_its_config() {
    let from = fixture("qwen3moe-edge-f16-sharded");
    let dir = TempDir::new().unwrap();
    for file in ["config.json", "model.safetensors.index.json"] {
        fs::copy(from.join(file), dir.path().join(file)).unwrap();
    }
    let whole = json(&["plan", text(&from), "--json"]);
    let index = dir.path().join("model.safetensors.index.json");
    for place in [dir.path(), &index, &dir.path().join("config.json")] {
        let plan = json(&["plan", text(place), "--json"]);
        assert_eq!(plan["sizes"]["source"], "config", "{}", place.display());
        assert_eq!(plan["checkpoint_bytes"], whole["checkpoint_bytes"]);
        assert_eq!(plan["index_total_bytes"], whole["checkpoint_bytes"], "as the index says");
    }
    let plan = json(&["plan", text(dir.path()), "--json"]);
    assert!(notices(&plan).contains("config.json alone"), "{}", notices(&plan));

    // An index that names less than the model has is of another model.
    let mut other: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    other["metadata"]["total_size"] = json!(1000);
    fs::write(&index, other.to_string()).unwrap();
    fails(&["plan", text(dir.path())], 1, &["total_size is 1000"]);
}

/// Kimi K3's own numbers.
fn kimi_k3(dir: &Path) -> String {
    let full: Vec<u16> = (1..=93).filter(|layer| layer % 4 == 0 || *layer == 93).collect();
    let config = json!({ "model_type": "kimi_k3", "text_config": {
        "model_type": "kimi_linear", "hidden_size": 7168, "num_hidden_layers": 93,
        "vocab_size": 163_840, "first_k_dense_replace": 1, "intermediate_size": 33_792,
        "num_attention_heads": 96, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "mla_use_output_gate": true, "num_experts": 896, "num_experts_per_token": 16,
        "num_shared_experts": 2, "moe_intermediate_size": 3072, "routed_expert_hidden_size": 3584,
        "linear_attn_config": { "num_heads": 96, "head_dim": 128, "short_conv_kernel_size": 4,
            "full_attn_layers": full },
        "quantization_config": { "quant_method": "compressed-tensors",
            "format": "mxfp4-pack-quantized", "config_groups": { "group_0": { "weights": {
                "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32 } } } },
    } });
    let path = dir.join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    text(&path).to_owned()
}

/// Section 8 of the paper: about 128 GB for an iteration of two seconds. Table 2's device bytes by
/// capacity; rates from its rows of 448 and 256 GB.
#[test]
fn the_papers_machine_is_planned_before_its_model_is_there() {
    let dir = TempDir::new().unwrap();
    let config = kimi_k3(dir.path());
    let plan = json(&[
        "plan",
        "--config",
        &config,
        "--dram",
        "64G,128G,256G,448G",
        "--spine-in-hbm",
        "--reserve",
        "0GB",
        "--misses",
        "64GB:33.6GB,128GB:17.4GB,256GB:9.8GB,448GB:5.3GB",
        "--device-rate",
        "11.84GB/s",
        // 0.542 s for what a token uses.
        "--memory-rate",
        "47.66GB/s",
        "--target-ms",
        "2000",
        "--hbm",
        "400GB",
        "--json",
    ]);
    assert_eq!(plan["sizes"]["pool_bytes"], 82_432 * 17_547_264_u64);
    let seconds = |row: usize| plan["rows"][row]["token_s"].as_f64().unwrap();
    for (row, measured) in [(1, 1.95), (2, 1.37), (3, 0.99)] {
        assert!((seconds(row) / measured - 1.0).abs() < 0.04, "{row}: {}", seconds(row));
    }
    let least = plan["target"]["least"]["dram_bytes"].as_f64().unwrap();
    assert!((least / 128e9 - 1.0).abs() < 0.03, "{least}");
    let uses = plan["hbm"]["breakeven_uses"].as_f64().unwrap();
    assert!((uses - 1.0632).abs() < 1e-3, "{uses}");
    // 400 GB less spine and key-value cache, which lie there too.
    let room = 400e9 - plan["sizes"]["spine_bytes"].as_f64().unwrap();
    let room = room - plan["kv_bytes"].as_f64().unwrap();
    assert!((plan["hbm"]["hbm_bytes"].as_f64().unwrap() - room).abs() < 1.0);
    assert!(notices(&plan).contains("GH200"));
}

#[test]
fn nothing_is_invented_where_nothing_is_known() {
    let output = tier(&["plan"]);
    assert!(output.status.success());
    let (shown, warned) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    for word in ["an upper bound", "device unknown", "n/a"] {
        assert!(shown.contains(word), "no {word:?} in {shown}");
    }
    assert!(warned.contains("equally likely") && warned.contains("--device-rate"), "{warned}");
    let plan = json(&["plan", "--target-ms", "5", "--json"]);
    assert_eq!(plan["target"]["least"], Value::Null);
    assert_eq!(plan["rows"][0]["token_s"], Value::Null);
    assert_eq!(plan["basis"]["kind"], "uniform");
    let zipf = json(&["plan", "--zipf", "1.0", "--json"]);
    let missing = |plan: &Value| plan["rows"][0]["miss_rate"].as_f64().unwrap();
    assert!(missing(&zipf) < missing(&plan));
}

#[test]
fn a_trace_gives_the_misses_that_simulate_gives() {
    let dir = TempDir::new().unwrap();
    let trace = dir.path().join("trace.jsonl");
    let trace = text(&trace);
    json(&["capture", "--out", trace, "--max-tokens", "40", "--greedy", "--json"]);
    let simulated =
        json(&["simulate", "--trace", trace, "--policies", "lru", "--budgets", "25%", "--json"]);
    let hit_rate = simulated["runs"][0]["rows"][0]["hit_rate"].as_f64().unwrap();
    let bare = json(&["plan", "--json"]);
    let pool = bare["sizes"]["pool_bytes"].as_u64().unwrap();
    let memory = format!("{}B", bare["fixed_bytes"].as_u64().unwrap() + pool / 4);
    let plan = json(&["plan", "--trace", trace, "--dram", &memory, "--json"]);
    let miss_rate = plan["rows"][0]["miss_rate"].as_f64().unwrap();
    assert!((miss_rate - (1.0 - hit_rate)).abs() < 1e-12, "{miss_rate} and {hit_rate}");
    assert_eq!(plan["basis"]["kind"], "trace");
    // Another model's plan takes it at the same share of the pool, and says so.
    let other = json(&["plan", text(&fixture("qwen3moe-f32")), "--trace", trace, "--json"]);
    assert!(notices(&other).contains("of another model"), "{}", notices(&other));
}

#[test]
fn a_run_is_verified_against_its_trace_and_against_itself() {
    // A model of our own: other tests warm the bundled one. Not in a tmpfs, where nothing is cold.
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("model");
    let model = dir.path().join("model");
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(bundled).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
        }
    }
    let (trace, run) = (dir.path().join("trace.rtc"), dir.path().join("run.json"));
    let (model, trace, run) = (text(&model), text(&trace), text(&run));
    let same = ["One morning", "--max-tokens", "24", "--greedy", "--model", model];
    json(&[&["capture", "--out", trace, "--json"], &same[..]].concat());
    let report = json(&[&["generate", "--cold", "--json"], &same[..]].concat());
    assert!(report["demand"]["computed_misses"].as_u64().unwrap() > 0);
    fs::write(run, report.to_string()).unwrap();
    let by_trace = json(&[
        "plan",
        model,
        "--verify",
        run,
        "--trace",
        trace,
        "--device-rate",
        "1GB/s",
        "--memory-rate",
        "10GB/s",
        "--json",
    ]);
    let by_itself = json(&["plan", model, "--verify", run, "--json"]);
    let row = |report: &Value, what: &str| {
        let rows = report["rows"].as_array().unwrap();
        rows.iter().find(|row| row["what"] == what).unwrap().clone()
    };
    let predicted = row(&by_trace, "experts missing")["predicted"].clone();
    assert_eq!(predicted, row(&by_itself, "experts missing")["predicted"], "trace = live");
    assert!(row(&by_trace, "a produced token")["predicted"].as_f64().unwrap() > 0.0);
    assert_eq!(row(&by_itself, "waiting")["predicted"], Value::Null, "no rate was given");
    // A replay has no tokens; its misses are compared all the same.
    let replay = json!({ "counters": report["counters"], "demand": report["demand"] });
    fs::write(run, replay.to_string()).unwrap();
    let by_replay = json(&["plan", model, "--verify", run, "--json"]);
    assert_eq!(row(&by_replay, "device reads"), row(&by_itself, "device reads"));
    assert_eq!(row(&by_replay, "a produced token")["measured"], Value::Null);
    assert!(by_replay["notices"].to_string().contains("did not begin cold"));
    if report["cold_start"]["resident_bytes"] != 0 {
        fails(&["plan", model, "--measure", model], 1, &["not measured cold"]);
        println!("SKIPPED measured misses: the experts could not be evicted here");
        return;
    }
    // Measured rates: from this small pool they are given with a warning.
    let measured = json(&["plan", model, "--measure", model, "--memory-rate", "9GB/s", "--json"]);
    assert_eq!(measured["rates"]["memory_from"], "given");
    assert_eq!(measured["rates"]["device_from"], "measured");
    assert!(measured["rows"][0]["token_s"].as_f64().unwrap() > 0.0);
    assert!(notices(&measured).contains("vary"), "{}", notices(&measured));
    // Everything fits: exact LRU misses each expert once, and so does the page cache, but for
    // small experts that come in with a neighbour's page.
    let ratio = row(&by_trace, "experts missing")["ratio"].as_f64().unwrap();
    assert!((0.9..=1.0).contains(&ratio), "{ratio}");
}

#[test]
fn what_cannot_be_planned_is_one_error() {
    fails(&["plan", "--dram", "many"], 2, &["many", "64GiB"]);
    fails(&["plan", "--device-rate", "0GB/s"], 2, &["above 0"]);
    fails(&["plan", "--zipf", "9"], 1, &["Zipf slope is 9"]);
    fails(&["plan", "--misses", "2G:1G,1G:1G"], 1, &["point 1", "1000000000"]);
    fails(&["plan", "/nonexistent/model"], 1, &["error[io]", "/nonexistent/model"]);
    fails(&["plan", "--config", "/nonexistent/config.json"], 1, &["error[io]", "config.json"]);
    fails(&["plan", "--verify", "/nonexistent/run.json"], 1, &["run.json"]);
    let dir = TempDir::new().unwrap();
    let config = dir.path().join("config.json");
    fs::write(&config, r#"{ "model_type": "mixtral", "num_hidden_layers": 32 }"#).unwrap();
    fails(&["plan", "--config", text(&config)], 1, &["unsupported", "mixtral"]);
    fs::write(&config, "{}").unwrap();
    fails(&["plan", "--verify", text(&config)], 1, &["tier generate --json"]);
}
