//! What becomes of the experts that a prompt reads.

use super::cli::json;
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

fn run(model: &Path, more: &[&str]) -> Value {
    let ids: Vec<String> = (1..40).map(|id| id.to_string()).collect();
    let model = model.to_str().unwrap();
    let ids = ids.join(",");
    let mut words = vec!["generate", "--model", model, "--ids", &ids, "--greedy"];
    words.extend(["--max-tokens", "1", "--prefill-chunk", "16", "--json"]);
    words.extend(more);
    json(&words)
}

#[test]
fn a_prompt_that_passes_leaves_nothing_and_changes_no_token() {
    // A model of our own: other tests warm the bundled one. Not in a tmpfs, where nothing is cold.
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let model = dir.path().join("pool");
    let out = model.to_str().unwrap();
    json(&["synth", "--shape", "tiny", "--layers", "3", "--packed", "--out", out, "--json"]);
    let cold = |report: &Value| report["prefill"]["cold_experts"].as_u64().unwrap();
    let first = run(&model, &["--cold", "--prompt-reads", "pass"]);
    assert_eq!(first["settings"]["prompt_reads"], "pass");
    if first["cold_start"]["resident_bytes"] != 0 {
        println!("SKIPPED: this file system keeps its pages");
        return;
    }
    let passed = first["prefill"]["passed_bytes"].as_u64().unwrap();
    if passed == 0 {
        println!("SKIPPED: nothing can pass the page cache here");
        return;
    }
    // A chunk's experts are cold for the next chunk, and for the next prompt.
    let again = run(&model, &["--prompt-reads", "pass"]);
    assert_eq!(cold(&again), cold(&first));
    let stay = run(&model, &["--cold", "--prompt-reads", "stay"]);
    assert!(cold(&stay) < cold(&first), "{} and {}", cold(&stay), cold(&first));
    assert_eq!(cold(&run(&model, &[])), 0);
    assert_eq!(first["token_ids"], stay["token_ids"]);
    assert_eq!(stay["prefill"]["passed_bytes"], 0);
}
