//! Making pools and moving experts in and out of the page cache, by command.

use super::cli::{fails, json};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tempfile::TempDir;

/// Under the target folder: the system's temporary folder may be memory, which nothing evicts.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_synthetic_checkpoint_is_packed_verified_and_decoded_alike() {
    for dtype in ["int4", "fp8"] {
        packed_verified_and_decoded_alike(dtype);
    }
}

fn packed_verified_and_decoded_alike(dtype: &str) {
    let dir = folder();
    let (plain, packed) = (dir.path().join("plain"), dir.path().join("packed"));
    let made = json(&[
        "synth",
        "--shape",
        "tiny",
        "--layers",
        "2",
        "--dtype",
        dtype,
        "--out",
        text(&plain),
        "--json",
    ]);
    let report = json(&["pack", text(&plain), "--out", text(&packed), "--json"]);
    assert_eq!(report["experts"], made["experts"]);
    for (pool, format) in [(&plain, "safetensors"), (&packed, "packed")] {
        let facts = json(&["inspect", text(pool), "--json"]);
        assert!(facts["format"].as_str().unwrap().starts_with(format), "{facts}");
        assert_eq!(facts["experts"], made["experts"]);
        let sound = json(&["verify", text(pool), "--json"]);
        assert_eq!(sound["problems"], serde_json::json!([]), "{sound}");
    }
    let tokens = |pool: &Path| {
        let arguments = [
            "generate",
            "--model",
            text(pool),
            "--ids",
            "1,2,3",
            "--max-tokens",
            "6",
            "--greedy",
            "--json",
        ];
        json(&arguments)["token_ids"].clone()
    };
    assert_eq!(tokens(&plain), tokens(&packed));
    fails(&["pack", text(&plain), "--out", text(&packed)], 1, &["finished pool"]);
}

#[test]
fn one_changed_byte_of_a_packed_pool_is_found() {
    let dir = folder();
    let packed = dir.path().join("packed");
    json(&[
        "synth",
        "--shape",
        "tiny",
        "--layers",
        "1",
        "--packed",
        "--out",
        text(&packed),
        "--json",
    ]);
    let file = File::options().read(true).write(true).open(packed.join("experts.bin")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 100).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 100).unwrap();
    fails(&["verify", text(&packed)], 1, &["checksum-mismatch", "layer 0 expert 0"]);
}

#[test]
fn warm_and_evict_move_exactly_what_was_named() {
    let dir = folder();
    let pool = dir.path().join("pool");
    json(&[
        "synth",
        "--shape",
        "tiny",
        "--layers",
        "1",
        "--packed",
        "--out",
        text(&pool),
        "--json",
    ]);
    let resident =
        |report: &serde_json::Value, when: &str| report[when]["resident_bytes"].as_u64().unwrap();
    let all = json(&["evict", text(&pool), "--json"]);
    if resident(&all, "after") > 0 {
        println!("SKIPPED warm_and_evict: this file system keeps pages");
        return;
    }
    let one = json(&["warm", text(&pool), "--layer", "0", "--experts", "2,4-5", "--json"]);
    assert_eq!(one["experts"], 3);
    assert_eq!(one["after"]["resident_bytes"], one["after"]["total_bytes"]);
    let gone = json(&["evict", text(&pool), "--layer", "0", "--experts", "4", "--json"]);
    assert_eq!((resident(&gone, "after"), gone["experts"].as_u64()), (0, Some(1)));
    let left = json(&["warm", text(&pool), "--layer", "0", "--experts", "2,4,5", "--json"]);
    assert_eq!(left["counters"]["warm_experts"], 2, "2 and 5 stayed");
    fails(&["warm", text(&pool), "--experts", "9999"], 1, &["9999", "layer 0"]);
    fails(&["evict", text(&pool), "--layer", "7"], 1, &["layer 7"]);
}

#[test]
fn an_unknown_shape_is_answered_with_the_known_ones() {
    let dir = folder();
    let out = dir.path().join("x");
    fails(&["synth", "--shape", "gpt-9", "--out", text(&out)], 1, &["gpt-9", "qwen3-30b-a3b"]);
    assert!(!out.exists());
}
