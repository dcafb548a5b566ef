//! `--metrics` and `tier top`.

use super::cli::{fails, json};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn top_watches_a_running_tier_and_a_pool() {
    // Long enough to be watched; ended below.
    let mut running = Command::new(env!("CARGO_BIN_EXE_tier"))
        .args([
            "generate",
            "--ids",
            "1,2,3",
            "--max-tokens",
            "1000",
            "--ignore-eos",
            "--threads",
            "1",
        ])
        .args(["--metrics", "127.0.0.1:0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines();
    let address = lines
        .find_map(|line| Some(line.unwrap().strip_prefix("metrics: ")?.to_owned()))
        .expect("it says where it listens");
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/model");
    let report = json(&["top", model, "--from", &address, "--interval", "0.2", "--json"]);
    let rate = |name: &str| report["tier_per_s"][name].as_f64().unwrap();
    assert!(rate("adopted_experts") >= 4.0 * rate("adoptions") * 0.99, "{report}");
    assert!(rate("adoptions") > 0.0 && report["warm_share"].as_f64().is_some(), "{report}");
    assert_eq!(report["tier"]["pool_experts"], 384.0);
    assert_eq!(report["pool"]["layers"].as_array().unwrap().len(), 6);
    let total = &report["pool"]["total"];
    assert!(total["resident_bytes"].as_u64().unwrap() > 0, "{total}");
    running.kill().unwrap();
    running.wait().unwrap();
    fails(&["top", "--from", &address, "--json"], 1, &["no metrics there"]);
}

#[test]
fn top_names_what_it_cannot_watch() {
    fails(&["top", "/nowhere/pool", "--json"], 1, &["/nowhere/pool"]);
    fails(&["top", "--interval", "0", "--json"], 1, &["--interval"]);
    fails(&["generate", "--metrics", "nowhere", "--max-tokens", "1"], 1, &["--metrics nowhere"]);
    let alone = json(&["top", "--interval", "0.1", "--json"]);
    assert!(alone["tier_per_s"].as_object().unwrap().is_empty());
    assert!(alone["pool"].is_null());
}
