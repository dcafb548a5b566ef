//! `tier trace` and `tier simulate` as the README shows them.

use super::cli::{fails, json, tier};
use router_trace::Phase;
use router_trace::format::{self, OpenOptions};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn public(name: &str) -> String {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../router-trace/traces");
    traces.join(name).to_str().unwrap().to_owned()
}

fn rate(row: &Value) -> String {
    format!("{:.3}", row["hit_rate"].as_f64().unwrap())
}

#[test]
fn simulate_gives_the_published_hit_rates() {
    let olmoe = public("olmoe_299.jsonl.gz");
    let report = json(&[
        "simulate",
        "--trace",
        &olmoe,
        "--budgets",
        "61,128,256,512",
        "--policies",
        "lru,belady",
        "--window",
        "0/100",
        "--json",
    ]);
    let rows = report["runs"][0]["rows"].as_array().unwrap();
    let found: Vec<String> = rows.iter().map(rate).collect();
    let expected = ["0.000", "0.395", "0.319", "0.602", "0.565", "0.766", "0.784", "0.913"];
    assert_eq!(found, expected);
    assert_eq!(rows[0]["layers"].as_array().unwrap().len(), 16);
}

#[test]
fn stats_write_a_page_tables_and_json() {
    let dir = tempfile::tempdir().unwrap();
    let (html, csv) = (dir.path().join("report.html"), dir.path().join("tables"));
    let report = json(&[
        "trace",
        "stats",
        &public("olmoe_299.jsonl.gz"),
        &public("kimi_linear_300.jsonl.gz"),
        "--html",
        html.to_str().unwrap(),
        "--csv",
        csv.to_str().unwrap(),
        "--json",
    ]);
    assert_eq!(report["traces"].as_array().unwrap().len(), 2);
    let page = fs::read_to_string(html).unwrap();
    assert!(page.contains("<svg") && page.contains("olmoe_299"));
    assert!(fs::read_dir(csv).unwrap().count() > 3);
}

#[test]
fn a_trace_goes_through_every_form_and_keeps_its_hit_rates() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let captured = path("a.rtc");
    let capture = ["capture", "--out", &captured, "--max-tokens", "24", "--ignore-eos", "--json"];
    assert_eq!(json(&capture)["dropped"], 0);
    let lines = path("b.jsonl");
    let converted = json(&["trace", "convert", &captured, &lines, "--json"]);
    assert_eq!(converted["written"]["records"], converted["read"]["records"]);
    let again = path("c.rtc");
    json(&["trace", "convert", &lines, &again, "--json"]);
    assert_eq!(fs::read(&captured).unwrap(), fs::read(&again).unwrap());
    let rates = |trace: &str| {
        let run = json(&["simulate", "--trace", trace, "--budgets", "24,25%", "--json"]);
        let rows = run["runs"][0]["rows"].as_array().unwrap().clone();
        rows.iter().map(rate).collect::<Vec<_>>()
    };
    assert_eq!(rates(&captured), rates(&lines));
    let checked = json(&["trace", "check", &lines, "--json"]);
    assert_eq!(checked["format"], "jsonl");
    assert_eq!(checked["records"], 6 * 24);
    let batch = path("batch.rtc");
    let union = json(&["trace", "union", &captured, &lines, "--out", &batch, "--json"]);
    // A trace merged with itself wants every expert once instead of twice.
    assert_eq!(union["dedup_factor"], 2.0);
    assert_eq!(union["union"]["iterations"], 23);
    let text = tier(&["trace", "check", &batch]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("compact"));
}

#[test]
fn scenarios_and_windows_change_what_is_asked() {
    let olmoe = public("olmoe_299.jsonl.gz");
    let run = |more: &[&str]| {
        let base = ["simulate", "--trace", &olmoe, "--budgets", "25%", "--policies", "lru,static"];
        json(&[&base[..], more, &["--json"]].concat())["runs"][0].clone()
    };
    let plain = run(&[]);
    assert_eq!(
        (&plain["warm_iterations"], &plain["scored_iterations"]),
        (&179.into(), &120.into())
    );
    let scanned = run(&["--one-off", "0.2"]);
    assert!(rate(&scanned["rows"][0]) < rate(&plain["rows"][0]));
    let split = run(&["--per-layer"]);
    assert_eq!(split["rows"].as_array().unwrap().len(), 4);
    let kimi = public("kimi_linear_300.jsonl.gz");
    fails(&["simulate", "--trace", &olmoe, "--train", &kimi], 1, &["16", "26"]);
    fails(&["simulate", "--trace", &olmoe, "--budgets", "8GB"], 1, &["budget", "expert"]);
    fails(&["simulate", "--trace", &olmoe, "--policies", "best"], 2, &["best", "two-list"]);
}

#[test]
fn a_wrong_trace_is_one_error_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.jsonl");
    fs::write(&path, "{\"tok\":0,\"layers\":[[1,2],[3,4]]}\n{\"tok\":1,\"layers\":[[1,2],[3]]}\n")
        .unwrap();
    let bad = path.to_str().unwrap();
    for command in
        [&["trace", "check", bad][..], &["trace", "stats", bad], &["simulate", "--trace", bad]]
    {
        fails(command, 1, &["bad.jsonl", "line 2"]);
    }
    let out: PathBuf = dir.path().join("out.txt");
    fails(&["trace", "convert", bad, out.to_str().unwrap()], 1, &["out.txt", ".jsonl", ".rtc"]);
    fails(&["trace", "convert", bad, bad], 1, &["one of the traces"]);
    assert!(!out.exists());
}

/// The first tokens of a bundled trace, captured again as its script does it.
#[test]
fn the_bundled_traces_are_what_the_bundled_model_does() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("code.rtc");
    let prompt = "/// Reads the next record.\npub fn";
    let base = ["capture", prompt, "--seed", "1", "--temperature", "1", "--top-p", "1"];
    let more = ["--max-tokens", "40", "--ignore-eos", "--json", "--out", out.to_str().unwrap()];
    json(&[&base[..], &more].concat());
    let read = |path: &Path| {
        let reader = format::open(path, &OpenOptions::default()).unwrap();
        let header = reader.header().clone();
        (header, reader.map(Result::unwrap).collect::<Vec<_>>())
    };
    let (header, again) = read(&out);
    let (committed_header, committed) = read(Path::new(&public("tiny-moe-code.rtc")));
    assert_eq!(
        (header.shape, header.model_name),
        (committed_header.shape, committed_header.model_name)
    );
    assert_eq!(again.len(), 6 * 40);
    assert!(again[..] == committed[..again.len()]);
    for domain in ["code", "fiction", "math", "systems"] {
        let (_, passes) = read(Path::new(&public(&format!("tiny-moe-{domain}.rtc"))));
        let decode = passes.iter().filter(|pass| pass.info.phase == Phase::Decode);
        assert_eq!(decode.count(), 6 * 1007, "{domain}");
    }
}
