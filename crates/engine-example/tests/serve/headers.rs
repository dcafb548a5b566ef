//! Models that are not there yet: GGUF headers without data, an index or a config alone.

use super::cli::{fails, json, tier};
use super::fixture;
use expert_tier::Pool;
use serde_json::{Value, json as value};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf").join(file)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The place of the first tensor's data in `file`, which belongs to `pool`.
fn data_start(pool: &Pool, file: &Path) -> u64 {
    let index = pool.files().iter().position(|known| known.path == file).unwrap() as u32;
    let spine = pool.spine().values().map(|tensor| tensor.extent);
    let experts = pool.layout().iter().flat_map(|(_, expert)| expert.extents.iter().copied());
    let starts = spine.chain(experts).filter(|extent| extent.file == index);
    starts.map(|extent| extent.offset).min().unwrap()
}

/// Copies the files of the model that `file` belongs to, cut behind their headers.
fn copy_headers(file: &str, to: &Path) -> PathBuf {
    let pool = Pool::open(data(file)).unwrap();
    for known in pool.files() {
        let copy = to.join(known.path.file_name().unwrap());
        fs::copy(&known.path, &copy).unwrap();
        File::options()
            .write(true)
            .open(&copy)
            .unwrap()
            .set_len(data_start(&pool, &known.path))
            .unwrap();
    }
    to.join(file)
}

const SPLIT: &str = "qwen3moe-edge-f16-00001-of-00008.gguf";

#[test]
fn a_gguf_header_alone_plans_what_the_file_plans() {
    for file in [
        "qwen3moe-bf16.gguf",
        "qwen3moe-mixed.gguf",
        "qwen3moe-q8_0.gguf",
        "deepseek-v3-f32.gguf",
        "deepseek-v3-noqlora-joint-f16.gguf",
        "kimi-k2-bf16.gguf",
        "kimi-k2-q8_0.gguf",
        SPLIT,
    ] {
        let dir = TempDir::new().unwrap();
        let cut = copy_headers(file, dir.path());
        let dram = ["--dram", "2G", "--json"];
        let whole = json(&[&["plan", text(&data(file))], &dram[..]].concat());
        for place in [cut.as_path(), dir.path()] {
            let plan = json(&[&["plan", text(place)], &dram[..]].concat());
            assert_eq!(plan["sizes"]["source"], "headers", "{file}");
            for key in ["sizes", "rows", "kv_bytes", "fixed_bytes", "checkpoint_bytes"] {
                assert_eq!(plan[key], whole[key], "{file}: {key}");
            }
            let notices = plan["notices"].to_string();
            assert!(notices.contains("headers alone") && notices.contains("cut file"), "{notices}");
        }
        // Reserved at full length but never written: the header is all that is looked at, too.
        let header = fs::metadata(&cut).unwrap().len();
        let sparse = File::options().write(true).open(&cut).unwrap();
        sparse.set_len(fs::metadata(data(file)).unwrap().len()).unwrap();
        let plan = json(&[&["plan", text(&cut)], &dram[..]].concat());
        assert_eq!(plan["sizes"], whole["sizes"], "{file}");
        // Whoever opens it for anything else is told as before.
        sparse.set_len(header).unwrap();
        fails(&["inspect", text(&cut)], 1, &["error[truncated-data]", file]);
        sparse.set_len(header / 2).unwrap();
        fails(&["plan", text(&cut)], 1, &["error[header-truncated]", file]);
    }
}

#[test]
fn the_first_file_of_a_set_says_what_it_knows() {
    let dir = TempDir::new().unwrap();
    let first = dir.path().join(SPLIT);
    fs::copy(data(SPLIT), &first).unwrap();
    let whole = json(&["plan", text(&data(SPLIT)), "--json"]);
    let part = json(&["plan", text(&first), "--json"]);
    assert_eq!(part["sizes"], Value::Null);
    assert_eq!((&part["part"]["files"], &part["part"]["files_in_all"]), (&value!(1), &value!(8)));
    for key in ["n_experts", "top_k"] {
        assert_eq!(part["part"][key], whole["sizes"]["shape"][key]);
    }
    // This model has dense layers among the others, which only their tensors tell.
    assert_eq!(part["part"]["expert_layers"], Value::Null);
    assert_eq!(part["part"]["kv"], whole["sizes"]["kv"]);
    assert_eq!(part["kv_bytes"], whole["kv_bytes"]);
    let pool = Pool::open(data(SPLIT)).unwrap();
    let tensors = part["part"]["tensors_in_all"].as_u64().unwrap();
    let experts = 3 * pool.layout().moe_layers().count();
    assert_eq!(tensors, (pool.spine().len() + experts) as u64, "three stacks a layer");
    let unknown = part["unknown"].to_string();
    assert!(unknown.contains("pool") && unknown.contains("spine"), "{unknown}");
    let notices = part["notices"].to_string();
    assert!(notices.contains("00008-of-00008") && notices.contains("1 of 8"), "{notices}");
    let shown = tier(&["plan", text(&first)]);
    assert!(shown.status.success());
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("1 of 8 files") && shown.contains("unknown"), "{shown}");
    fails(&["plan", text(&first), "--verify", "run.json"], 1, &["cannot be predicted", "1 of 8"]);
    fails(&["inspect", text(&first)], 1, &["error[missing-shard]", "00008-of-00008"]);

    // With every header but one the lower bounds are nearly the sizes; with all of them, a plan.
    copy_headers(SPLIT, dir.path());
    // The last file has all experts of this model.
    let [second, last] =
        ["00002-of", "00008-of"].map(|number| dir.path().join(SPLIT.replace("00001-of", number)));
    fs::rename(&second, dir.path().join("away")).unwrap();
    let more = json(&["plan", dir.path().to_str().unwrap(), "--json"]);
    let bytes = |plan: &Value, of: &str, key: &str| plan[of][key].as_u64().unwrap();
    for key in ["pool_bytes", "spine_bytes"] {
        assert!(bytes(&part, "part", key) <= bytes(&more, "part", key), "{key}");
        assert!(bytes(&more, "part", key) <= bytes(&whole, "sizes", key), "{key}");
    }
    let sum =
        |plan: &Value, of: &str| bytes(plan, of, "pool_bytes") + bytes(plan, of, "spine_bytes");
    assert!(sum(&part, "part") < sum(&more, "part") && sum(&more, "part") < sum(&whole, "sizes"));
    assert_eq!(more["part"]["expert_bytes"], whole["sizes"]["expert_bytes"]);
    assert_eq!(more["part"]["whole_layers"], whole["sizes"]["shape"]["moe_layers"]);
    // Without the file that has the metadata, only bytes are known.
    fs::rename(dir.path().join("away"), &second).unwrap();
    fs::remove_file(&first).unwrap();
    let rest = json(&["plan", text(&last), "--json"]);
    assert_eq!((&rest["part"]["n_experts"], &rest["part"]["files"]), (&Value::Null, &value!(7)));
    assert!(rest["unknown"].to_string().contains("which layers have experts"));
}

#[test]
fn a_config_or_an_index_alone_is_inspected() {
    for name in [
        "qwen3moe-fp8",
        "qwen3moe-edge-f16-sharded",
        "deepseek-v3-fp8",
        "kimi-k2-int4",
        "kimi-linear-bf16",
    ] {
        let from = fixture(name);
        let dir = TempDir::new().unwrap();
        let config = dir.path().join("config.json");
        fs::copy(from.join("config.json"), &config).unwrap();
        let whole = json(&["plan", text(&from), "--json"]);
        let promise = json(&["inspect", text(&config), "--json"]);
        assert_eq!(promise["format"], "config");
        assert_eq!(promise["sizes"]["source"], "config");
        for key in ["pool_bytes", "expert_bytes", "spine_bytes", "token_bytes", "shape", "kv"] {
            assert_eq!(promise["sizes"][key], whole["sizes"][key], "{name}: {key}");
        }
        assert_eq!(promise["checkpoint_bytes"], whole["checkpoint_bytes"], "{name}");
        let shown = String::from_utf8(tier(&["inspect", text(&config)]).stdout).unwrap();
        assert!(shown.contains("the config promises"), "{shown}");
    }
    let from = fixture("qwen3moe-edge-f16-sharded");
    let dir = TempDir::new().unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    fs::copy(from.join("model.safetensors.index.json"), &index).unwrap();
    fails(&["inspect", text(&index)], 1, &["error[io]", "config.json"]);
    fs::copy(from.join("config.json"), dir.path().join("config.json")).unwrap();
    let promise = json(&["inspect", text(&index), "--json"]);
    assert_eq!(promise["index_total_bytes"], promise["checkpoint_bytes"]);
    // The folder is a download that has not begun, and a set with some shards is unfinished.
    fails(&["inspect", text(dir.path())], 1, &["error[missing-shard]"]);
    let shard = fs::read_dir(&from).unwrap().map(|entry| entry.unwrap().file_name());
    let shard =
        shard.into_iter().find(|name| text(name.as_ref()).ends_with(".safetensors")).unwrap();
    fs::copy(from.join(&shard), dir.path().join(&shard)).unwrap();
    fails(&["inspect", text(&index)], 1, &["error[missing-shard]"]);
    // Where all is there, the index is the model, as before.
    let there = json(&["inspect", text(&from.join("model.safetensors.index.json")), "--json"]);
    assert_eq!(there["format"], "safetensors-shards");
    // A text that is no config is told as what it is not.
    let other = dir.path().join("tokenizer.json");
    fs::write(&other, format!("{{\"version\": \"{}\"}}", "1".repeat(99))).unwrap();
    fails(&["inspect", text(&other)], 1, &["tokenizer.json"]);
}

/// The file with pairs in front that make it the first of a set of two.
fn as_first_of_two(gguf: &[u8]) -> Vec<u8> {
    const U32: u32 = 4;
    let pair = |key: &str, value: u32| {
        let text = [&(key.len() as u64).to_le_bytes()[..], key.as_bytes()].concat();
        [&text[..], &U32.to_le_bytes(), &value.to_le_bytes()].concat()
    };
    // Magic, version, number of tensors; then the number of pairs.
    let (head, rest) = gguf.split_at(16);
    let (pairs, rest) = rest.split_at(8);
    let pairs = u64::from_le_bytes(pairs.try_into().unwrap()) + 2;
    let more = [pair("split.no", 0), pair("split.count", 2)].concat();
    [head, &pairs.to_le_bytes(), &more, rest].concat()
}

#[test]
fn the_layers_with_experts_are_told_where_the_metadata_has_them() {
    let dir = TempDir::new().unwrap();
    let whole = data("deepseek-v3-f32.gguf");
    let first = dir.path().join("m-00001-of-00002.gguf");
    fs::write(&first, as_first_of_two(&fs::read(&whole).unwrap())).unwrap();
    let whole = json(&["plan", text(&whole), "--json"]);
    let part = json(&["plan", text(&first), "--json"]);
    assert_eq!(part["part"]["expert_layers"], whole["sizes"]["shape"]["moe_layers"]);
    assert_eq!(part["part"]["kv"], whole["sizes"]["kv"]);
    assert_eq!(part["part"]["whole_layers"], whole["sizes"]["shape"]["moe_layers"]);
    assert_eq!(part["part"]["expert_bytes"], whole["sizes"]["expert_bytes"]);
    assert!(!part["unknown"].to_string().contains("which layers"), "{part}");
}
