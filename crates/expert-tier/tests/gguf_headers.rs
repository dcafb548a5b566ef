//! Sizes of GGUF models by the headers that are there, and that opening refuses them as before.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use expert_tier::pool::{HeaderSizes, KnownSizes, ModelSizes, PartSizes};
use expert_tier::{Pool, TierError};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)
}

fn cut(path: &Path, len: u64) {
    File::options().write(true).open(path).unwrap().set_len(len).unwrap();
}

fn all(headers: HeaderSizes) -> ModelSizes {
    match headers.sizes {
        KnownSizes::All(sizes) => sizes,
        KnownSizes::Part(part) => panic!("{part:?}"),
    }
}

fn part(headers: HeaderSizes) -> PartSizes {
    match headers.sizes {
        KnownSizes::Part(part) => part,
        KnownSizes::All(sizes) => panic!("{sizes:?}"),
    }
}

#[test]
fn a_header_alone_has_the_sizes_of_the_file_to_the_byte() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mixed.gguf");
    fs::copy(case("O12/mixed.gguf"), &path).unwrap();
    let pool = Pool::open(&path).unwrap();
    let wanted = ModelSizes::of_pool(&pool).unwrap();
    let spine = pool.spine().values().map(|tensor| tensor.extent);
    let experts = pool.layout().iter().flat_map(|(_, expert)| expert.extents.iter().copied());
    let start = spine.chain(experts).map(|extent| extent.offset).min().unwrap();
    let whole = fs::metadata(&path).unwrap().len();
    for len in [whole, whole - 1, start + 1, start] {
        cut(&path, len);
        let headers = HeaderSizes::read(&path).unwrap().unwrap();
        let lacking: Vec<_> = headers.lacking.iter().map(TierError::kind).collect();
        let opened = Pool::open(&path).map(drop);
        match len == whole {
            true => assert!(opened.is_ok() && lacking.is_empty()),
            false => assert_eq!(
                (opened.unwrap_err().kind(), &lacking[..]),
                ("truncated-data", &["truncated-data"][..])
            ),
        }
        assert_eq!(all(headers), wanted, "{len} of {whole} bytes");
    }
    // Alignment may stand between the header and its data; no header ends 32 bytes before it.
    cut(&path, start - 32);
    assert_eq!(HeaderSizes::read(&path).unwrap_err().kind(), "header-truncated");
}

#[test]
fn a_part_of_a_set_is_told_by_what_is_there() {
    let set = |number: u32| format!("m-{number:05}-of-00003.gguf");
    let from = case("O11/ok_metadata_only_first");
    let dir = tempfile::tempdir().unwrap();
    let whole = Pool::open(&from).unwrap();
    fs::copy(from.join(set(1)), dir.path().join(set(1))).unwrap();
    let first = HeaderSizes::read(dir.path()).unwrap().unwrap();
    assert_eq!(first.lacking.len(), 1);
    assert!(first.lacking[0].to_string().contains(&set(3)), "{}", first.lacking[0]);
    let first = part(first);
    assert_eq!((first.files, first.files_in_all), (1, 3));
    assert_eq!((first.tensors, first.tensors_in_all), (0, Some(6)));
    assert_eq!((first.pool_bytes, first.spine_bytes, first.expert_bytes), (0, 0, None));
    assert_eq!(first.model_type, whole.config().unwrap().model_type);

    fs::copy(from.join(set(2)), dir.path().join(set(2))).unwrap();
    fs::copy(from.join(set(3)), dir.path().join(set(3))).unwrap();
    let spine: u64 = whole.spine().values().map(|tensor| tensor.extent.len).sum();
    let mut seen = (0, 0);
    for number in [2, 3] {
        let (path, away) = (dir.path().join(set(number)), dir.path().join("away"));
        fs::rename(&path, &away).unwrap();
        let other = part(HeaderSizes::read(dir.path()).unwrap().unwrap());
        assert_eq!(other.files, 2);
        seen = (seen.0 + other.pool_bytes, seen.1 + other.spine_bytes);
        fs::rename(&away, &path).unwrap();
    }
    // What each of the two files holds, told while the other was away.
    assert_eq!(seen, (whole.layout().total_bytes(), spine));
    assert!(seen.0 > 0);
}

#[test]
fn what_is_wrong_with_a_set_stays_wrong() {
    for (name, kind) in [
        ("O11/two_sets", "ambiguous"),
        ("O11/count_differs", "shard-set-inconsistent"),
        ("O11/no_repeated", "shard-set-inconsistent"),
        ("O11/total_differs", "shard-set-inconsistent"),
        ("O11/tensor_twice", "duplicate-name"),
        ("O11/renamed/model.gguf", "shard-set-inconsistent"),
        ("O09/b_bytes_wrap_to_zero.gguf", "overflow"),
        ("O09/j_offset_not_aligned.gguf", "bad-alignment"),
    ] {
        assert_eq!(HeaderSizes::read(case(name)).unwrap_err().kind(), kind, "{name}");
        assert_eq!(Pool::open(case(name)).unwrap_err().kind(), kind, "{name}");
    }
    for name in ["O11/middle_missing", "O11/first_missing"] {
        assert_eq!(part(HeaderSizes::read(case(name)).unwrap().unwrap()).files, 2, "{name}");
        assert_eq!(Pool::open(case(name)).unwrap_err().kind(), "missing-shard", "{name}");
    }
    // Not of this format: nothing is said.
    assert!(HeaderSizes::read(case("O07/complete")).unwrap().is_none());
    assert!(HeaderSizes::read(case("O05/whole.safetensors")).unwrap().is_none());
}
