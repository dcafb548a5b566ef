//! A GGUF file through every command that takes a pool.

use super::cli::{fails, json};
use serde_json::{Value, json as value};
use std::path::{Path, PathBuf};

fn data(relative: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(relative);
    path.to_str().unwrap().to_owned()
}

#[test]
fn greedy_text_from_gguf_is_the_reference_runs() {
    for (file, fixture) in [
        ("qwen3moe-bf16.gguf", "qwen3moe-bf16"),
        ("qwen3moe-edge-f16-00001-of-00008.gguf", "qwen3moe-edge-f16-sharded"),
        ("deepseek-v3-f32.gguf", "deepseek-v3-f32"),
        ("deepseek-v3-noqlora-f16.gguf", "deepseek-v3-noqlora-f16"),
        ("deepseek-v3-noqlora-joint-f16.gguf", "deepseek-v3-noqlora-f16"),
        ("deepseek-v3-bf16.gguf", "deepseek-v3-bf16-mtp"),
        ("kimi-k2-bf16.gguf", "kimi-k2-bf16"),
    ] {
        let text = std::fs::read(data(&format!("fixtures/{fixture}/golden.json"))).unwrap();
        let golden: Value = serde_json::from_slice(&text).unwrap();
        let ids = golden["input_ids"].as_array().unwrap();
        let ids = ids.iter().map(Value::to_string).collect::<Vec<_>>().join(",");
        let model = data(&format!("data/gguf/{file}"));
        let arguments =
            ["generate", "--model", &model, "--ids", &ids, "--max-tokens", "32", "--greedy"];
        let report = json(&[&arguments[..], &["--json"]].concat());
        assert_eq!(report["token_ids"], golden["greedy_ids"], "{file}");
    }
}

#[test]
fn a_quantised_gguf_is_inspected_verified_planned_and_replayed() {
    let pool = data("data/gguf/qwen3moe-mixed.gguf");
    let facts = json(&["inspect", &pool, "--json"]);
    assert_eq!(facts["format"], "gguf");
    assert_eq!((&facts["experts"], &facts["top_k"]), (&value!(64), &value!(4)));
    let types: Vec<&Value> =
        facts["expert_dtypes"].as_array().unwrap().iter().map(|one| &one["dtype"]).collect();
    assert_eq!(types, [&value!("MXFP4"), &value!("Q4_0"), &value!("Q8_0")]);
    // 64 x 32 numbers each of 18, 17 and 34 bytes for 32.
    assert_eq!(facts["expert_bytes"]["max"], 64 * (18 + 17 + 34));
    let sound = json(&["verify", &pool, "--json"]);
    assert_eq!(sound["problems"], value!([]), "{sound}");
    let arms = ["admit", "direct", "drop-behind"].map(|arm| {
        let arguments = ["generate", "--model", &pool, "--ids", "1,2,3", "--max-tokens", "8"];
        json(&[&arguments[..], &["--greedy", "--admission", arm, "--json"]].concat())["token_ids"]
            .clone()
    });
    assert!(arms.iter().all(|tokens| *tokens == arms[0] && tokens.as_array().unwrap().len() == 8));
    let plan = json(&["plan", &pool, "--json"]);
    assert_eq!(plan["sizes"]["pool_bytes"], 64 * 64 * (18 + 17 + 34));
    assert_eq!(plan["sizes"]["token_bytes"], 4 * 4 * 64 * (18 + 17 + 34));
    assert_eq!(json(&["warm", &pool, "--json"])["counters"]["adopted_experts"], 64);
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("routes.jsonl");
    let trace = trace.to_str().unwrap();
    let capture = ["capture", "--model", &pool, "--ids", "1,2,3", "--max-tokens", "8"];
    json(&[&capture[..], &["--out", trace, "--json"]].concat());
    let replay = ["replay", "--pool", &pool, "--trace", trace, "--arms", "mapped", "--rounds", "1"];
    json(&[&replay[..], &["--json"]].concat());
}

#[test]
fn a_packed_gguf_decodes_as_the_file_does() {
    for file in
        ["qwen3moe-mixed.gguf", "qwen3moe-edge-f16-00001-of-00008.gguf", "kimi-k2-q8_0.gguf"]
    {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("packed");
        let (out, model) = (out.to_str().unwrap(), data(&format!("data/gguf/{file}")));
        json(&["pack", &model, "--out", out, "--json"]);
        let sound = json(&["verify", out, "--json"]);
        assert_eq!(sound["problems"], value!([]), "{file}: {sound}");
        let tokens = [model.as_str(), out].map(|model| {
            let arguments = ["generate", "--model", model, "--ids", "1,2,3", "--max-tokens", "16"];
            json(&[&arguments[..], &["--greedy", "--json"]].concat())["token_ids"].clone()
        });
        assert_eq!(tokens[0].as_array().unwrap().len(), 16, "{file}");
        assert_eq!(tokens[0], tokens[1], "{file}");
        let plans =
            [model.as_str(), out].map(|pool| json(&["plan", pool, "--json"])["sizes"].clone());
        assert_eq!(plans[0], plans[1], "{file}");
    }
}

#[test]
fn a_folder_of_two_models_is_ambiguous_by_name() {
    let folder = data("data/gguf");
    let names = ["ambiguous", "qwen3moe-bf16.gguf", "qwen3moe-edge-f16-00001-of-00008.gguf"];
    fails(&["inspect", &folder], 1, &names);
}
