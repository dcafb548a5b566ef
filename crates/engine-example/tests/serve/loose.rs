//! Checkpoints cut into a file an expert, without an index.

use super::cli::json;
use super::{fixture, golden};
use safetensors::tensor::TensorView;
use safetensors::{SafeTensors, serialize_to_file};
use serde_json::json as value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// `model.layers.3.mlp.experts.7.up_proj.weight` → `l3-e7`; dense tensors are one file.
fn file_of(tensor: &str) -> String {
    let number = |behind: &str| {
        let (_, rest) = tensor.split_once(behind)?;
        rest.split('.').next().filter(|number| number.parse::<u32>().is_ok())
    };
    match (number("layers."), number(".experts.")) {
        (Some(layer), Some(expert)) => format!("l{layer}-e{expert}.safetensors"),
        _ => "dense.safetensors".to_owned(),
    }
}

/// Writes the checkpoint `from` anew; the number of its files. Experts go into `below` of `to`.
fn cut(from: &Path, to: &Path, below: &str) -> usize {
    fs::create_dir_all(to.join(below)).unwrap();
    fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let is_weights = |name: &str| name.starts_with("model") && name.ends_with(".safetensors");
    let names = fs::read_dir(from).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap()).filter(|name| is_weights(name));
    let data: Vec<Vec<u8>> = names.map(|name| fs::read(from.join(name)).unwrap()).collect();
    let mut files: BTreeMap<String, Vec<(String, TensorView<'_>)>> = BTreeMap::new();
    for bytes in &data {
        for (name, view) in SafeTensors::deserialize(bytes).unwrap().tensors() {
            files.entry(file_of(&name)).or_default().push((name, view));
        }
    }
    for (file, tensors) in &files {
        let dir = if file.starts_with("dense") { to.to_owned() } else { to.join(below) };
        let tensors = tensors.iter().map(|(name, view)| (name, view));
        serialize_to_file(tensors, None, &dir.join(file)).unwrap();
    }
    files.len()
}

#[test]
fn a_file_an_expert_decodes_as_the_checkpoint_it_was_cut_from() {
    for (name, below) in [
        ("qwen3moe-fp8", ""),
        ("qwen3moe-edge-f16-sharded", "experts"),
        ("deepseek-v3-bf16-mtp", ""),
        ("kimi-k26-int4", "experts"),
        ("kimi-linear-bf16", ""),
    ] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (loose, packed) = (dir.path().join("loose"), dir.path().join("packed"));
        let files = cut(&fixture(name), &loose, below);
        let [loose, packed] = [&loose, &packed].map(|path| path.to_str().unwrap());
        let facts = json(&["inspect", loose, "--json"]);
        assert_eq!(facts["files"].as_array().unwrap().len(), files, "{name}");
        assert!(files > 8 && facts["format"] == "safetensors-shards", "{name}: {files}");
        json(&["pack", loose, "--out", packed, "--json"]);
        let (prompt, wanted) = golden(name);
        let prompt = prompt.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        for model in [loose, packed] {
            let arguments = ["generate", "--model", model, "--ids", &prompt, "--max-tokens", "32"];
            let report = json(&[&arguments[..], &["--greedy", "--json"]].concat());
            assert_eq!(report["token_ids"], value!(wanted), "{name}: {model}");
        }
    }
}
