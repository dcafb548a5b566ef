//! Headers with bytes changed, cut, doubled and swapped: opening ends with a pool or an error,
//! never with a panic, and what opens lies inside its files.
//!
//! Ten minutes of it: `cargo test --release -p expert-tier --test mutations -- --ignored`.
//! The first such run opened 622,880 changed files on a busy machine, of which 34,875 were pools
//! and the others refused in sixteen ways: no panic, nothing outside a file.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use expert_tier::Pool;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A file that is changed, in a folder of its own.
struct Target {
    dir: tempfile::TempDir,
    file: PathBuf,
    bytes: Vec<u8>,
    /// Changes hit the header, which is what is parsed.
    header: usize,
}

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)
}

fn targets() -> Vec<Target> {
    let target = |folder: Option<&str>, name: &str, header: usize| {
        let dir = tempfile::tempdir().unwrap();
        let file = match folder {
            Some(folder) => {
                for entry in fs::read_dir(case(folder)).unwrap() {
                    let path = entry.unwrap().path();
                    fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
                }
                dir.path().join(name)
            }
            None => {
                let file = dir.path().join(Path::new(name).file_name().unwrap());
                fs::copy(case(name), &file).unwrap();
                file
            }
        };
        let bytes = fs::read(&file).unwrap();
        let header = header.min(bytes.len());
        Target { dir, file, bytes, header }
    };
    vec![
        target(None, "O12/mixed.gguf", 900),
        target(None, "O10/s_ok_version_2.gguf", 160),
        target(Some("O11/ok_metadata_only_first"), "m-00002-of-00003.gguf", 500),
        target(None, "O05/whole.safetensors", 1100),
        target(Some("O07/complete"), "model.safetensors.index.json", usize::MAX),
        target(Some("O07/complete"), "model-00002-of-00004.safetensors", 1000),
    ]
}

/// One to four changes.
fn mutate(rng: &mut ChaCha8Rng, target: &Target) -> Vec<u8> {
    let mut bytes = target.bytes.clone();
    for _ in 0..rng.random_range(1..=4) {
        let end = target.header.min(bytes.len());
        if end < 9 {
            break;
        }
        let at = rng.random_range(0..end);
        match rng.random_range(0..7) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 => bytes.truncate(at),
            3 => {
                let piece = bytes[at..end.min(at + rng.random_range(1..40))].to_vec();
                bytes.splice(at..at, piece);
            }
            4 => {
                bytes.drain(at..end.min(at + rng.random_range(1..40)));
            }
            // Numbers at the ends of their ranges, where arithmetic wraps.
            5 => {
                let number = [0_u64, 1, u64::MAX, 1 << 63, (1 << 62) + 1, u64::from(u32::MAX)];
                let number = number[rng.random_range(0..number.len())].to_le_bytes();
                let at = at.min(bytes.len() - 8);
                bytes[at..at + 8].copy_from_slice(&number);
            }
            _ => {
                let other = rng.random_range(0..end);
                bytes.swap(at, other);
            }
        }
    }
    bytes
}

fn check(pool: &Pool) {
    let inside = |extent: expert_tier::pool::Extent| {
        let file = &pool.files()[extent.file as usize];
        assert!(extent.offset.checked_add(extent.len).is_some_and(|end| end <= file.identity.len));
    };
    pool.spine().values().for_each(|tensor| inside(tensor.extent));
    for (_, expert) in pool.layout().iter() {
        expert.parts.iter().for_each(|part| inside(part.extent));
        expert.extents.iter().for_each(|&extent| inside(extent));
    }
}

/// Mutations until `done`; how each kind of answer was met.
fn run(seed: u64, mut done: impl FnMut(u64) -> bool) -> BTreeMap<&'static str, u64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let targets = targets();
    let (mut met, mut count) = (BTreeMap::new(), 0);
    while !done(count) {
        let target = &targets[count as usize % targets.len()];
        fs::write(&target.file, mutate(&mut rng, target)).unwrap();
        let path = if count % 2 == 0 { target.file.as_path() } else { target.dir.path() };
        let kind = match Pool::open(path) {
            Ok(pool) => {
                check(&pool);
                "ok"
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                error.kind()
            }
        };
        *met.entry(kind).or_default() += 1;
        count += 1;
    }
    met
}

#[test]
fn thousands_of_changed_headers_are_opened_or_refused() {
    let met = run(1, |count| count == 3000);
    println!("{met:?}");
    // The changes reach behind the first check: many different answers come.
    for kind in ["ok", "header-invalid", "header-truncated", "overflow", "unsupported"] {
        assert!(met.contains_key(kind), "no {kind} in {met:?}");
    }
    assert!(met.len() >= 10, "{met:?}");
}

#[test]
#[ignore = "ten minutes; the command stands at the top of the file"]
fn ten_minutes_of_changed_headers() {
    let seed = std::process::id().into();
    let until = Instant::now() + Duration::from_secs(600);
    println!("seed {seed}: {:?}", run(seed, |_| Instant::now() >= until));
}
