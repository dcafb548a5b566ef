//! `--metrics` and `tier top`.

use super::cli::{fails, json, tier};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A tier that runs for as long as its context lasts, and where it exports its counters.
fn running_tier() -> (Child, String) {
    let mut running = Command::new(env!("CARGO_BIN_EXE_tier"))
        .args(["generate", "--ids", "1,2,3", "--max-tokens", "1000", "--ignore-eos"])
        .args(["--threads", "1", "--metrics", "127.0.0.1:0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines();
    let address = lines
        .find_map(|line| Some(line.unwrap().strip_prefix("metrics: ")?.to_owned()))
        .expect("it says where it listens");
    (running, address)
}

#[test]
fn top_watches_a_running_tier_and_a_pool() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/model");
    // A busy machine may start `top` after the tier has ended: then once more.
    let seen = (0..10).find_map(|_| {
        let (mut running, address) = running_tier();
        let watch = ["top", model, "--from", &address, "--interval", "0.2", "--json"];
        let output = tier(&watch);
        drop(running.kill());
        running.wait().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).ok()?;
        (report["tier_per_s"]["adoptions"].as_f64()? > 0.0).then_some((report, address))
    });
    let (report, address) = seen.expect("ten tiers, and none was seen at work");
    let rate = |name: &str| report["tier_per_s"][name].as_f64().unwrap();
    assert!(rate("adopted_experts") >= 3.9 * rate("adoptions"), "{report}");
    assert!(report["warm_share"].as_f64().is_some(), "{report}");
    assert_eq!(report["tier"]["pool_experts"], 384.0);
    assert_eq!(report["pool"]["layers"].as_array().unwrap().len(), 6);
    let total = &report["pool"]["total"];
    assert!(total["resident_bytes"].as_u64().unwrap() > 0, "{total}");
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
