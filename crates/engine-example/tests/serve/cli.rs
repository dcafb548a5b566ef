//! The commands as a person or a script calls them.

use super::{fixture, golden};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

pub(crate) fn tier(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tier")).args(arguments).output().unwrap()
}

pub(crate) fn json(arguments: &[&str]) -> Value {
    let output = tier(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

pub(crate) fn fails(arguments: &[&str], code: i32, words: &[&str]) {
    let output = tier(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    for word in words {
        assert!(errors.contains(word), "{arguments:?}: no {word:?} in {errors}");
    }
    let lines = errors.lines().filter(|line| line.starts_with("error"));
    assert_eq!(lines.count(), 1, "one error: {errors}");
}

fn ids(of: &[u32]) -> String {
    of.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn generate_reproduces_a_golden_as_json() {
    for name in ["qwen3moe-fp8", "qwen3moe-edge-f16-sharded"] {
        let (prompt, wanted) = golden(name);
        let dir = fixture(name);
        let report = json(&[
            "generate",
            "--model",
            dir.to_str().unwrap(),
            "--ids",
            &ids(&prompt),
            "--max-tokens",
            "32",
            "--greedy",
            "--json",
        ]);
        assert_eq!(report["token_ids"], serde_json::json!(wanted), "{name}");
        assert_eq!(report["text"], Value::Null, "no tokenizer, no text");
        let count = |key: &str| report["counters"][key].as_u64().unwrap();
        assert_eq!(count("adopted_experts"), count("warm_experts") + count("cold_experts"));
        assert!(count("adopted_experts") > 0 && count("adopt_ns") > 0);
    }
}

#[test]
fn what_auto_chose_is_reported_and_changes_no_token() {
    let run = |arm: &str| {
        json(&[
            "generate",
            "Mornings",
            "--max-tokens",
            "8",
            "--admission",
            arm,
            "--greedy",
            "--json",
        ])
    };
    let (admit, auto) = (run("admit"), run("auto"));
    assert_eq!(admit["token_ids"], auto["token_ids"]);
    assert_eq!(admit["admission"], Value::Null);
    assert_eq!(auto["admission"]["mode"], "admit", "{auto}");
    assert!(!auto["admission"]["why"].as_str().unwrap().is_empty());
    let output = tier(&["generate", "Mornings", "--max-tokens", "8", "--admission", "auto"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\nadmission admits: ") && text.contains("0 changes"), "{text}");
}

#[test]
fn generate_is_the_default_command_and_seeds_repeat() {
    let run = |seed: &str| json(&["One morning", "--max-tokens", "12", "--seed", seed, "--json"]);
    let (one, again, other) = (run("5"), run("5"), run("6"));
    assert_eq!(one["token_ids"], again["token_ids"]);
    assert_ne!(one["token_ids"], other["token_ids"]);
    assert!(!one["text"].as_str().unwrap().is_empty());
}

#[test]
fn text_goes_first_and_then_where_the_experts_came_from() {
    let output = tier(&["generate", "One morning", "--max-tokens", "8", "--greedy"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("One morning"), "{text}");
    for word in ["experts ", " warm", " cold", "bytes ", "speed ", "waiting "] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    assert!(output.stderr.is_empty(), "no bars and no warnings where nobody looks");
}

#[test]
fn compare_reports_identical_outputs_and_paired_medians() {
    let report = json(&["compare", "--max-tokens", "6", "--rounds", "2", "--json"]);
    assert_eq!(report["identical_outputs"], true);
    let arms = report["arms"].as_array().unwrap();
    assert_eq!(arms[0]["name"], "admit");
    let skipped = report["skipped"].as_array().unwrap().len();
    assert_eq!(arms.len() + skipped, 4, "{report}");
    assert_eq!(report["settings"]["read_channel"], "mapping");
    assert!(arms.iter().all(|arm| arm["median_ms"].as_f64().unwrap() > 0.0));
    assert_eq!(report["pairs"].as_array().unwrap().len(), 2 * (arms.len() - 1));
    assert_eq!(report["sha256"].as_str().unwrap().len(), 64);
}

#[test]
fn compare_holds_auto_against_admission() {
    let report =
        json(&["compare", "--arms", "auto", "--max-tokens", "6", "--rounds", "2", "--json"]);
    assert_eq!(
        (&report["arms"][1]["name"], &report["identical_outputs"]),
        (&"auto".into(), &true.into())
    );
    let runs = report["runs"].as_array().unwrap();
    let chose = |run: &&Value| run["admission"]["mode"] == "admit";
    assert_eq!(runs.iter().filter(chose).count(), 2, "{report}");
}

#[test]
fn capture_writes_a_trace_that_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("trace.jsonl");
    let report = json(&[
        "capture",
        "--out",
        out.to_str().unwrap(),
        "--max-tokens",
        "5",
        "--greedy",
        "--json",
    ]);
    let trace = router_trace::read_all(&out, router_trace::Tail::Strict).unwrap();
    assert_eq!(trace.header.shape.n_experts, 64);
    assert_eq!(report["records"].as_u64().unwrap(), trace.passes.len() as u64);
    // One pass for the prompt, one for each token but the last: its successor is never asked for.
    assert_eq!(trace.passes.len(), 6 * 5);
    let decode = trace.passes.iter().filter(|pass| pass.info.phase == router_trace::Phase::Decode);
    assert_eq!(decode.count(), 6 * 4);
}

#[test]
fn mistakes_are_one_error_that_names_the_thing() {
    let dir = fixture("qwen3moe-f32");
    let dir = dir.to_str().unwrap();
    fails(&["generate", "--model", "/nowhere/at/all", "x"], 1, &["/nowhere/at/all", "[io]"]);
    fails(&["generate", "--model", dir, "x"], 1, &["tokenizer.json", "--ids"]);
    fails(&["generate", "--model", dir, "--ids", "999"], 1, &["token-out-of-range", "999", "256"]);
    fails(&["generate", "--admission", "sometimes"], 2, &["sometimes", "drop-behind"]);
    fails(&["generate", "--threads", "0"], 1, &["[limit]", "threads"]);
    fails(&["generate", ""], 1, &["prompt is empty"]);
    fails(&["compare", "--rounds", "0"], 1, &["--rounds"]);
    fails(&["capture", "--out", "/nowhere/trace.jsonl"], 1, &["/nowhere/trace.jsonl"]);
    let out = Path::new(dir).join("config.json");
    fails(&["quantize", dir, "--out", out.to_str().unwrap()], 1, &["config.json"]);
    fails(&["quantize", dir, "--out", "/nowhere/x", "--group", "7"], 1, &["group", "7"]);
}
