//! `tier replay` as the README shows it.

use super::cli::{fails, json, tier};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn trace(name: &str) -> String {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../router-trace");
    traces.join(name).to_str().unwrap().to_owned()
}

/// A pool of our own: of the bundled model's, other tests keep pages in the page cache.
fn pool(layers: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("pool");
    json(&[
        "synth",
        "--shape",
        "tiny",
        "--layers",
        layers,
        "--packed",
        "--out",
        path.to_str().unwrap(),
        "--json",
    ]);
    (dir, path)
}

/// A trace of that shape: decoded by the model itself.
fn capture(pool: &Path, dir: &Path) -> String {
    let out = dir.join("trace.jsonl").to_str().unwrap().to_owned();
    json(&[
        "capture",
        "--model",
        pool.to_str().unwrap(),
        "--ids",
        "1,2,3",
        "--max-tokens",
        "6",
        "--greedy",
        "--out",
        &out,
        "--json",
    ]);
    out
}

fn replay(pool: &Path, trace: &str, more: &[&str]) -> Value {
    let mut arguments =
        vec!["replay", "--pool", pool.to_str().unwrap(), "--trace", trace, "--threads", "3"];
    arguments.extend(more);
    arguments.push("--json");
    json(&arguments)
}

/// Whether pages of this place can be evicted at all, so that runs can be kept.
fn evictable(report: &Value) -> bool {
    let discarded = report["discarded"].as_array().unwrap();
    let warm = discarded.iter().any(|run| run["reason"].as_str().unwrap().contains("not cold"));
    if warm {
        println!("SKIPPED: this file system keeps its pages");
    }
    !warm
}

#[test]
fn arms_are_measured_or_discarded_with_the_reason() {
    let (dir, pool) = pool("3");
    let trace = capture(&pool, dir.path());
    let report = replay(&pool, &trace, &["--rounds", "2", "--budget", "8"]);
    let arms = report["arms"].as_array().unwrap();
    assert_eq!((arms.len(), report["runs"].as_array().unwrap().len()), (7, 14));
    if !evictable(&report) {
        return;
    }
    for arm in arms {
        let count = |key: &str| arm[key].as_u64().unwrap_or(u64::MAX);
        assert_eq!(count("kept_runs") + count("discarded_runs"), 2, "{arm}");
        if count("kept_runs") == 0 {
            println!("SKIPPED {}: discarded", arm["arm"]);
            continue;
        }
        assert_eq!(count("logical_accesses"), report["plan"]["logical_accesses"], "{arm}");
        let misses = count("nominal_miss_experts");
        match arm["arm"].as_str().unwrap() {
            "direct" | "drop-behind" => assert_eq!(misses, count("logical_accesses"), "{arm}"),
            "lru-arena" => assert_eq!(count("budget_experts"), 8, "{arm}"),
            "mapped" => assert_eq!((misses, arm["ratio"].clone()), (0, Value::Null), "{arm}"),
            _ => {}
        }
        assert!(arm["iteration_ms"]["median"].as_f64() <= arm["iteration_ms"]["p95"].as_f64());
    }
}

#[test]
fn every_other_arm_replays_the_same_bytes() {
    let (dir, pool) = pool("3");
    let trace = capture(&pool, dir.path());
    let arms = "mapped,willneed,faults,pread-random,pinned-equal,hybrid,locked-live";
    let report = replay(&pool, &trace, &["--rounds", "1", "--budget", "8", "--arms", arms]);
    if !evictable(&report) {
        return;
    }
    // A run that read other bytes would have ended the replay.
    for run in report["runs"].as_array().unwrap() {
        let arm = run["arm"].as_str().unwrap();
        if let Some(reason) = run["discarded"].as_str() {
            println!("SKIPPED {arm}: {reason}");
            continue;
        }
        let measured = &run["measurement"];
        let locked = measured["wanted_locked_bytes"].as_u64().unwrap();
        // Too few iterations for a choice from what was seen; an LRU that misses everything equals
        // an empty set.
        if arm != "pinned-equal" {
            assert_eq!(locked > 0, arm == "hybrid", "{arm}");
        }
        assert!(measured["whole"]["adopted_bytes"].as_u64() > Some(0), "{arm}");
    }
}

#[test]
fn a_plan_can_be_held_against_a_replay() {
    let (dir, pool) = pool("3");
    let trace = capture(&pool, dir.path());
    let report = replay(&pool, &trace, &["--rounds", "1", "--arms", "mapped"]);
    if !evictable(&report) {
        return;
    }
    let run = dir.path().join("run.json");
    std::fs::write(&run, report.to_string()).unwrap();
    let model = pool.to_str().unwrap();
    let verified = json(&["plan", model, "--verify", run.to_str().unwrap(), "--json"]);
    let rows = verified["rows"].as_array().unwrap();
    let missing = rows.iter().find(|row| row["what"] == "experts missing").unwrap();
    // All fits: each expert is missed once, and both know it.
    assert_eq!(missing["ratio"], 1.0, "{missing}");
    assert!(!verified["notices"].to_string().contains("cold"), "{verified}");
}

#[test]
fn a_boot_is_a_wall_or_says_that_it_is_none() {
    let (dir, pool) = pool("2");
    let trace = capture(&pool, dir.path());
    let report = replay(&pool, &trace, &["--rounds", "1", "--wall", "mem", "--arms", "lru-arena"]);
    let wall = &report["wall"];
    assert_eq!(wall["kind"], "mem");
    let booted = std::fs::read_to_string("/proc/cmdline").unwrap();
    let limited = booted.split_whitespace().any(|word| {
        word.strip_prefix("mem=").is_some_and(|size| size.starts_with(|c: char| c.is_ascii_digit()))
    });
    assert_eq!(wall["enforced"], limited);
    assert_eq!(wall["reason"].is_null(), limited, "{wall}");
    assert!(wall["mem_total_bytes"].as_u64() > Some(0));
}

#[test]
fn a_wall_stands_or_says_why_it_does_not() {
    let (dir, pool) = pool("2");
    let trace = capture(&pool, dir.path());
    for (wall, target) in [("cgroup=200M", 200_u64 << 20), ("balloon=8M", 8 << 20)] {
        let report =
            replay(&pool, &trace, &["--rounds", "1", "--wall", wall, "--arms", "mapped,lru-arena"]);
        assert_eq!(report["wall"]["target_bytes"], target);
        if report["wall"]["enforced"] != true {
            assert!(!report["wall"]["reason"].as_str().unwrap().is_empty());
            println!("SKIPPED {wall}: {}", report["wall"]["reason"]);
            continue;
        }
        if !evictable(&report) || !wall.starts_with("cgroup") {
            continue;
        }
        for run in report["runs"].as_array().unwrap() {
            assert_eq!(run["discarded"], Value::Null);
            assert_eq!(run["measurement"]["limit_bytes"], target);
            assert_eq!(run["measurement"]["limit_bytes_after"], target);
            assert_eq!(run["scope"]["oom_kills"], 0);
            assert!(run["scope"]["peak_bytes"].as_u64().unwrap() <= target);
            assert!(!run["scope"]["timeline"].as_array().unwrap().is_empty());
        }
    }
}

#[test]
fn what_cannot_be_replayed_is_one_error() {
    let (_dir, pool) = pool("2");
    let pool = pool.to_str().unwrap();
    let olmoe = trace("traces/olmoe_299.jsonl.gz");
    let with = |more: &[&'static str]| {
        let mut arguments = vec!["replay", "--pool", pool, "--trace", &olmoe];
        arguments.extend(more);
        arguments.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()
    };
    let run = |words: &[String], code, said: &[&str]| {
        fails(&words.iter().map(String::as_str).collect::<Vec<_>>(), code, said);
    };
    run(&with(&[]), 1, &["16 layers (0 to 15) of 64 experts", "2 layers (0 to 1) of 16 experts"]);
    run(&with(&["--wall", "fence=1G"]), 2, &["cgroup=BYTES"]);
    run(&with(&["--arms", "mapped,magic"]), 2, &["lru-arena"]);
    run(&with(&["--rounds", "0"]), 1, &["--rounds 0"]);
    let help = String::from_utf8(tier(&["--help"]).stdout).unwrap();
    assert!(help.contains("replay") && !help.contains("replay-child"), "{help}");
}

#[test]
fn a_wall_without_room_for_one_expert_is_refused_with_the_numbers() {
    let (dir, pool) = pool("2");
    let trace = capture(&pool, dir.path());
    let pool = pool.to_str().unwrap();
    let words = ["replay", "--pool", pool, "--trace", &trace, "--wall", "cgroup=1M"];
    fails(&words, 1, &["cgroup=1048576", "--slack"]);
}
