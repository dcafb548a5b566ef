//! Commands about the machine under a pool: `lock`, `touch`, `cat`, `doctor`, `evict`.

use super::cli::{fails, json, tier};
use super::fixture;
use expert_tier::Pool;
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn report(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn doctor_judges_every_topic_and_never_prints_zero_for_unknown() {
    let found = json(&["doctor", "--json"]);
    for key in ["host", "process_limits", "memory_limits", "memory_pressure", "pool", "verdicts"] {
        assert!(!found[key].is_null(), "{key}");
    }
    let verdicts = found["verdicts"].as_array().unwrap();
    let topics: Vec<&str> = verdicts.iter().filter_map(|v| v["topic"].as_str()).collect();
    for topic in ["kernel", "memory", "pressure", "dense part", "storage", "fill", "direct"] {
        assert!(topics.contains(&topic), "{topic} in {topics:?}");
    }
    for topic in [
        "topology",
        "nodes",
        "reserved",
        "reclaim",
        "locked",
        "kswapd",
        "io pressure",
        "io_uring",
        "cachestat",
        "disk rate",
    ] {
        assert!(topics.contains(&topic), "{topic} in {topics:?}");
    }
    let rate = &found["machine"]["device"]["Ok"];
    if rate["cold"]["proved"] == true {
        let asked = rate["cold"]["asked_bytes"].as_f64().unwrap();
        let read = rate["cold"]["process_bytes"].as_f64().unwrap();
        assert!(read >= 0.98 * asked && rate["cold"]["resident_bytes"] == 0, "{rate}");
    }
    for verdict in verdicts {
        let grade = verdict["grade"].as_str().unwrap();
        assert!(["good", "fair", "bad", "unknown"].contains(&grade), "{verdict}");
    }
    let output = tier(&["doctor"]);
    assert!(output.status.success());
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(lines.lines().count(), verdicts.len(), "one line a verdict: {lines}");
    fails(&["doctor", "/nonexistent/pool"], 1, &["error[io]", "/nonexistent/pool"]);
}

#[test]
fn lock_reports_what_it_locked_or_why_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lock.json");
    let model = fixture("qwen3moe-bf16");
    let printed = json(&["lock", text(&model), "--report", text(&file), "--json"]);
    let written = report(&file);
    assert_eq!(printed["wanted_bytes"], written["wanted_bytes"]);
    let count = |key: &str| written[key].as_u64().unwrap();
    assert!(count("wanted_bytes") > 0);
    if written["refused"].is_null() {
        assert_eq!(count("locked_bytes"), count("wanted_bytes"));
    } else {
        assert_eq!(count("locked_bytes"), 0);
        let require = ["lock", text(&model), "--require"];
        fails(&require, 1, &["error[limit]", "cannot be locked"]);
    }
    assert!(written["process_limits"].is_object() && written["memory_limits"].is_object());
}

#[test]
fn touch_counts_and_repeats_and_fails_on_a_cut_file() {
    let found = json(&["touch", "--seconds", "0.2", "--json"]);
    let adopted = found["counters"]["adopted_experts"].as_u64().unwrap();
    assert!(adopted > 0 && found["bytes"].as_u64().unwrap() > 0);
    assert_eq!(found["bytes"], found["counters"]["adopted_bytes"]);
    assert!(found["cold_start"].is_null());
    fails(&["touch", "--seconds", "0"], 2, &["--seconds"]);

    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(fixture("qwen3moe-f32").join(name), dir.path().join(name)).unwrap();
    }
    let running = Command::new(env!("CARGO_BIN_EXE_tier"))
        .args(["touch", text(dir.path()), "--seconds", "20"])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    let model = File::options().write(true).open(dir.path().join("model.safetensors")).unwrap();
    model.set_len(4096).unwrap();
    let output = running.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{:?}: {errors}", output.status);
    assert!(errors.contains("error[io-changed]") && errors.contains("model.safetensors"));
    assert_eq!(errors.lines().count(), 1, "one error: {errors}");
    assert!(output.stdout.is_empty(), "no summary of a run that failed");
}

#[test]
fn cat_shows_stored_bytes_by_either_way_and_either_name() {
    let model = fixture("qwen3moe-bf16");
    let pool = Pool::open(&model).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("read.json");
    let file = text(&file);
    let expert = "layers.1.mlp.experts.2.down_proj.weight";
    let norm = "norm.weight";
    for canonical in [expert, norm] {
        let stored = format!("model.{canonical}");
        let extent = pool.find(&stored).unwrap();
        assert_eq!(pool.find(canonical), Some(extent));
        let all = fs::read(pool.path_of(extent.file)).unwrap();
        let wanted = &all[extent.offset as usize..extent.end() as usize];
        for io in ["buffered", "direct"] {
            let arguments =
                ["cat", text(&model), "--tensor", &stored, "--io", io, "--report", file];
            let output = tier(&arguments);
            assert!(output.status.success());
            assert!(output.stdout == wanted, "{stored} {io}");
            let report = report(Path::new(file));
            assert_eq!(report["bytes"].as_u64(), Some(extent.len));
            let direct = report["direct_io"].as_bool().unwrap();
            assert!(io == "direct" || !direct);
            assert_eq!(output.stderr.is_empty(), direct || io == "buffered", "fallbacks are told");
        }
    }
    fails(&["cat", text(&model), "--tensor", "no.such"], 1, &["no.such", "qwen3moe-bf16"]);
    fails(&["cat", text(&model)], 2, &["--tensor"]);
}

#[test]
fn evicting_one_expert_leaves_its_neighbours_whole() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(fixture("qwen3moe-f32").join(name), dir.path().join(name)).unwrap();
    }
    File::open(dir.path().join("model.safetensors")).unwrap().sync_all().unwrap();
    json(&["warm", text(dir.path()), "--json"]);
    json(&["evict", text(dir.path()), "--layer", "0", "--experts", "1", "--json"]);
    let others = "0,2-7";
    let left = json(&["warm", text(dir.path()), "--layer", "0", "--experts", others, "--json"]);
    assert_eq!(left["before"]["resident_bytes"], left["before"]["total_bytes"], "{left}");
}
