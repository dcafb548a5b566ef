use crate::sources;
use expert_tier::pack::{PackOptions, pack};
use expert_tier::pool::{Extent, Pool};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn packed() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (from, out) = (dir.path().join("from"), dir.path().join("out"));
    fs::create_dir(&from).unwrap();
    sources::write_int4(&from);
    pack(&Pool::open(&from).unwrap(), &out, &PackOptions::default(), |_| ()).unwrap();
    (dir, out)
}

fn refused(out: &Path, kind: &str, says: &str) {
    let error = Pool::open(out).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(says), "{text} does not say {says}");
}

#[test]
fn every_fault_of_an_index_has_its_name() {
    let (_dir, out) = packed();
    let path = out.join("pool.json");
    let whole: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    const MIB: u64 = 1 << 20;
    let row = |n: usize| whole["experts"][n].clone();
    type Edit<'a> = Box<dyn Fn(&mut Value) + 'a>;
    let set = |at: &'static str, value: Value| -> Edit<'_> {
        Box::new(move |index| *index.pointer_mut(at).unwrap() = value.clone())
    };
    let cases: Vec<(Edit<'_>, &str, &str)> = vec![
        (set("/version", json!(3)), "unsupported", "version"),
        (set("/version", json!(2)), "header-invalid", "spine.safetensors"),
        (set("/version", json!("1")), "header-invalid", "string \"1\""),
        (set("/format", json!("other")), "not-a-model", "other"),
        (set("/align", json!(4096)), "unsupported", "4096"),
        (set("/schemas/0/parts/1/dtype", json!("F3")), "unsupported", "F3"),
        (set("/schemas/0/parts/1/role", json!("bias")), "header-invalid", "bias"),
        (set("/schemas/0/parts/1/role", json!("gate")), "duplicate-name", "schema 0 gate"),
        (set("/schemas/0/parts/2/role", json!("gate")), "header-invalid", "stands behind"),
        (set("/schemas/0/parts/0/rows", json!(129)), "size-mismatch", "schema 0 gate"),
        (set("/schemas/0/parts/0/rows", json!(1_u64 << 40)), "header-invalid", ""),
        (set("/schemas/0/parts/1/offset", json!(16390)), "bad-alignment", "16390"),
        (set("/schemas/0/parts/1/offset", json!(64)), "bad-offsets", "overlaps"),
        (set("/schemas/0/parts/1/offset", json!(32768)), "bad-offsets", "belong to no tensor"),
        (set("/schemas/0/len", json!(5)), "header-invalid", "schema 0"),
        (set("/schemas/0/parts", json!([])), "header-invalid", "schema 0"),
        (set("/schemas", json!([])), "header-invalid", "schema 0 of 0"),
        (set("/experts", json!([])), "header-invalid", "no experts"),
        (set("/experts/1/0", json!(65535)), "limit", "65535"),
        (set("/experts/1/1", json!(70000)), "limit", "70000"),
        (set("/experts/1/2", json!(1)), "header-invalid", "schema 1 of 1"),
        (set("/experts/1/3", json!(2 * MIB + 64)), "bad-alignment", "layer 0 expert 1"),
        (set("/experts/1/3", json!(0)), "bad-offsets", "overlaps"),
        (set("/experts/1/3", json!(64 * MIB)), "bad-offsets", "past the data"),
        (set("/experts/1/3", json!(u64::MAX - 2 * MIB + 1)), "bad-offsets", "past the data"),
        (set("/experts/1/4", json!(5)), "header-invalid", "len is 5"),
        (set("/experts/1/5", json!("00")), "header-invalid", "hex"),
        (set("/experts/1/5", json!("ABCDEF0123456789")), "header-invalid", "hex"),
        (set("/experts/1", row(0)), "duplicate-name", "layer 0 expert 0"),
        (set("/experts/1/1", json!(0)), "duplicate-name", "layer 0 expert 0"),
        (set("/experts/7/1", json!(9)), "config-inconsistent", "expert 3 is missing"),
        (set("/experts/7/0", json!(9)), "config-inconsistent", "layer 1"),
        (set("/experts_len", json!(18 * MIB)), "bad-offsets", "has 18874368 bytes"),
        (set("/experts_len", json!(10 * MIB)), "bad-offsets", "past the data"),
        (set("/spine/0/file", json!("../x.safetensors")), "unsafe-path", "goes up"),
        (set("/spine/0/file", json!("a/x.safetensors")), "unsafe-path", "own folder"),
        (set("/spine/0/file", json!("/etc/passwd")), "unsafe-path", "absolute"),
        (set("/spine/0/file", json!("gone.safetensors")), "missing-shard", "gone.safetensors"),
        (set("/spine/0/len", json!(7)), "shard-set-inconsistent", "7 bytes"),
        (set("/spine", json!([whole["spine"][0], whole["spine"][0]])), "duplicate-name", "spine"),
        (Box::new(|index| drop(index["experts"].as_array_mut().unwrap().pop())), "bad-offsets", ""),
        (Box::new(|index| *index = json!([])), "header-invalid", ""),
    ];
    for (edit, kind, says) in cases {
        let mut index = whole.clone();
        edit(&mut index);
        fs::write(&path, index.to_string()).unwrap();
        refused(&out, kind, says);
    }
    // What readers must not mind: other orders, more keys.
    let mut index = whole.clone();
    index["experts"].as_array_mut().unwrap().reverse();
    index["later"] = json!({ "x": [1] });
    fs::write(&path, index.to_string()).unwrap();
    Pool::open(&out).unwrap();
}

#[test]
fn files_must_be_there_whole_and_alone() {
    let (dir, out) = packed();
    let experts = out.join("experts.bin");
    let len = fs::metadata(&experts).unwrap().len();
    let set_len = |len| File::options().write(true).open(&experts).unwrap().set_len(len).unwrap();
    set_len(len - 1);
    refused(&out, "truncated-data", "layer 1 expert 3");
    set_len(len + 1);
    refused(&out, "bad-offsets", "experts.bin");
    // The right length again, but the bytes are gone: it opens, with a warning.
    set_len(0);
    set_len(len);
    let pool = Pool::open(&out).unwrap();
    if pool.holes().is_empty() {
        println!("SKIPPED holes: this file system does not tell");
    } else {
        assert_eq!(pool.holes().len(), 8);
        assert!(pool.notices().iter().any(|notice| notice.warning));
    }
    fs::remove_file(&experts).unwrap();
    refused(&out, "missing-shard", "8 of 8 tensors are unreachable");
    fs::create_dir(&experts).unwrap();
    refused(&out, "not-a-model", "folder");
    fs::write(out.join("model.safetensors"), "x").unwrap();
    refused(&out, "ambiguous", "two models");
    let config = dir.path().join("from/config.json");
    let (_dir, out) = packed();
    let text =
        fs::read_to_string(config).unwrap().replace("\"num_experts\":4", "\"num_experts\":5");
    fs::write(out.join("config.json"), text).unwrap();
    refused(&out, "config-inconsistent", "expert 4 is missing");
    // The spine must not bring experts.
    let (_dir, out) = packed();
    let spine = dir.path().join("from/model.safetensors");
    fs::copy(&spine, out.join("spine.safetensors")).unwrap();
    let path = out.join("pool.json");
    let mut index: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    index["spine"][0]["len"] = json!(fs::metadata(spine).unwrap().len());
    fs::write(&path, index.to_string()).unwrap();
    refused(&out, "shard-set-inconsistent", "routed experts");
}

/// xorshift: the same bytes in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

fn mutate(text: &mut Vec<u8>, random: &mut Random) {
    const TOKENS: [&[u8]; 20] = [
        b"0",
        b"1",
        b"-1",
        b"64",
        b"2097152",
        b"4294967295",
        b"18446744073709551615",
        b"1e99",
        b"18446744073707454464",
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b"null",
        b"\"gate\"",
        b"\"F8_E8M0\"",
        b"\"\\u0000\"",
        b"\"..\"",
        b"true",
    ];
    let at = random.below(text.len());
    match random.below(6) {
        0 => text[at] ^= 1 << random.below(8),
        1 => text.truncate(at),
        2 => {
            let end = (at + random.below(40)).min(text.len());
            text.drain(at..end);
        }
        3 => {
            let from = random.below(text.len());
            let piece = text[from..(from + random.below(80)).min(text.len())].to_vec();
            text.splice(at..at, piece);
        }
        // A whole number is replaced.
        4 => {
            let digit = |b: &u8| b.is_ascii_digit();
            let Some(start) = text[at..].iter().position(digit).map(|n| n + at) else { return };
            let end =
                text[start..].iter().position(|b| !digit(b)).map_or(text.len(), |n| n + start);
            text.splice(start..end, TOKENS[random.below(TOKENS.len())].iter().copied());
        }
        _ => {
            text.splice(at..at, TOKENS[random.below(TOKENS.len())].iter().copied());
        }
    }
}

#[test]
fn no_mutation_of_an_index_panics_or_points_outside() {
    let (_dir, out) = packed();
    let path = out.join("pool.json");
    let whole = fs::read(&path).unwrap();
    let mut random = Random(0x5eed_1234_5678_9abc);
    let mut opened = 0;
    for _ in 0..15_000 {
        let mut text = whole.clone();
        for _ in 0..=random.below(3) {
            mutate(&mut text, &mut random);
            if text.is_empty() {
                break;
            }
        }
        // A new file: to write over an old one, some file systems wait for the device.
        fs::remove_file(&path).unwrap();
        fs::write(&path, &text).unwrap();
        let Ok(pool) = Pool::open(&out) else { continue };
        opened += 1;
        let mut extents: Vec<Extent> = Vec::new();
        for (_, expert) in pool.layout().iter() {
            assert_eq!(expert.extents.len(), 1);
            extents.extend(&expert.extents);
        }
        extents.sort();
        let len = pool.files()[0].identity.len;
        assert!(extents.iter().all(|extent| extent.end() <= len));
        assert!(extents.array_windows::<2>().all(|[a, b]| a.end() <= b.offset));
    }
    println!("{opened} of 15000 mutations still open");
    assert!(opened > 100);
}
