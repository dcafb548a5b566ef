//! What a GGUF pool says of its experts and its model, against the case's own numbers.

use expert_tier::pack::{self, PackOptions, pack};
use expert_tier::pool::gguf::{Array, Metadata, Value};
use expert_tier::pool::packed::ALIGN;
use expert_tier::pool::{Dtype, Extent, Family, Part, PartRole, PoolFormat, verify};
use expert_tier::{Pool, Tier, TierConfig};
use router_trace::{ExpertId, Route};
use std::fs;
use std::path::{Path, PathBuf};

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)
}

const ROLES: [(&str, PartRole); 3] =
    [("gate", PartRole::Gate), ("up", PartRole::Up), ("down", PartRole::Down)];

#[test]
fn every_expert_has_its_own_three_ranges_and_types() {
    let path = case("O12/mixed.gguf");
    let bytes = fs::read(&path).unwrap();
    let expected: serde_json::Value =
        serde_json::from_slice(&fs::read(case("O12/expected.json")).unwrap()).unwrap();
    let pool = Pool::open(&path).unwrap();
    assert_eq!((pool.format(), pool.layout().total_experts()), (PoolFormat::Gguf, 8));
    assert_eq!(pool.layout().total_bytes(), expected["all_expert_bytes"].as_u64().unwrap());
    for layer in 0..2_u16 {
        for index in 0..4_u16 {
            let expert = pool.layout().expert(ExpertId::new(layer, index)).unwrap();
            let own = &expected[format!("layer{layer}_bytes_per_expert")];
            assert_eq!(expert.nominal_bytes(), own.as_u64().unwrap());
            for (name, role) in ROLES {
                let wanted = &expected[format!("{layer}.{name}")];
                let part = expert.part(role).unwrap();
                let range = &wanted["ranges"][usize::from(index)];
                let found = [part.extent.offset, part.extent.end()];
                assert_eq!(found, [0, 1].map(|at: usize| range[at].as_u64().unwrap()));
                assert_eq!(part.dtype.name(), wanted["type"]);
                assert_eq!((part.rows, part.cols), (32, 32));
                let fill = wanted["fill"][usize::from(index)].as_u64().unwrap() as u8;
                let slice = &bytes[part.extent.offset as usize..part.extent.end() as usize];
                assert!(slice.iter().all(|&byte| byte == fill), "{layer}.{name} {index}");
            }
        }
    }
}

#[test]
fn an_adopted_expert_is_its_bytes_in_the_file() {
    let path = case("O12/mixed.gguf");
    let tier = Tier::open(Pool::open(&path).unwrap(), TierConfig::default()).unwrap();
    let adopted = tier.adopt(&Route::new(1, &[3, 0]).unwrap()).unwrap();
    for expert in adopted.experts() {
        for (kind, (_, role)) in (0_u16..).zip(ROLES) {
            let part = expert.part(role).unwrap();
            let fill = (1 << 6 | kind << 4 | expert.id().index) as u8;
            assert!(part.bytes.host().unwrap().iter().all(|&byte| byte == fill));
        }
    }
    assert!(adopted.check().is_ok());
}

#[test]
fn the_metadata_becomes_a_config() {
    let pool = Pool::open(case("O12/mixed.gguf")).unwrap();
    let config = pool.config().unwrap();
    assert_eq!(config.family, Family::Qwen3Moe);
    assert_eq!((config.num_hidden_layers, config.n_experts), (Some(2), Some(4)));
    assert_eq!((config.top_k, config.hidden_size), (Some(2), Some(32)));
    assert!(config.require_norm_topk_prob().unwrap().value);
    let spine = &pool.spine()["embed_tokens.weight"];
    assert_eq!((spine.stored_name.as_str(), spine.dtype), ("token_embd.weight", Dtype::F32));
    assert_eq!(spine.shape, [2, 32]);
    let metadata = pool.gguf().unwrap();
    assert_eq!(metadata.text("general.architecture").unwrap(), Some("qwen3moe"));
    let wrong = metadata.unsigned("general.architecture").unwrap_err();
    assert!(wrong.to_string().contains("\"qwen3moe\""), "{wrong}");
}

#[test]
fn any_member_of_a_set_is_the_set() {
    let whole = Pool::open(case("O11/ok_metadata_only_first")).unwrap();
    assert_eq!((whole.format(), whole.files().len()), (PoolFormat::GgufSplit, 3));
    assert_eq!((whole.layout().total_experts(), whole.spine().len()), (2, 3));
    for number in 1..=3 {
        let member = format!("O11/ok_metadata_only_first/m-{number:05}-of-00003.gguf");
        let pool = Pool::open(case(&member)).unwrap();
        assert_eq!((pool.layout(), pool.spine()), (whole.layout(), whole.spine()));
    }
    assert_eq!(Pool::open(case("O11/seventy")).unwrap().spine().len(), 70);
    let q8 = Pool::open(case("O11/two_sets/q8-00001-of-00003.gguf")).unwrap();
    let all_q8 = |file: &expert_tier::pool::PoolFile| file.path.to_str().unwrap().contains("/q8-");
    assert!(q8.files().iter().all(all_q8));
}

#[test]
fn what_lies_beside_does_not_make_a_folder_ambiguous() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(case("O12/mixed.gguf"), dir.path().join("model-Q4_0.gguf")).unwrap();
    fs::copy(case("O05/whole.gguf"), dir.path().join("mmproj-model.gguf")).unwrap();
    fs::write(dir.path().join("config.json"), r#"{"model_type":"somebody"}"#).unwrap();
    let pool = Pool::open(dir.path()).unwrap();
    assert_eq!(pool.config().unwrap().model_type, "qwen3_moe", "the file speaks for itself");
    assert!(pool.notices().iter().any(|notice| notice.text.contains("mmproj")));
    // A blob of a hub's cache has no ending; a link to it has.
    let blob = dir.path().join("0123abcd");
    fs::rename(dir.path().join("model-Q4_0.gguf"), &blob).unwrap();
    assert_eq!(Pool::open(&blob).unwrap().layout(), pool.layout());
    std::os::unix::fs::symlink(&blob, dir.path().join("linked.gguf")).unwrap();
    assert_eq!(Pool::open(dir.path()).unwrap().layout(), pool.layout());
    fs::remove_file(dir.path().join("linked.gguf")).unwrap();
    assert_eq!(Pool::open(dir.path()).unwrap_err().kind(), "not-a-model");
}

#[test]
fn verify_reads_everything_and_finds_scales_that_are_no_number() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut bytes = fs::read(case("O12/mixed.gguf")).unwrap();
    let pool = Pool::open(case("O12/mixed.gguf")).unwrap();
    let part = *pool.layout().expert(ExpertId::new(1, 2)).unwrap().part(PartRole::Down).unwrap();
    assert_eq!(part.dtype, Dtype::Q5_0);
    let before = verify(&pool, 2, |_, _| {}).unwrap();
    // The scale of its fourth block.
    let at = part.extent.offset as usize + 3 * 22;
    bytes[at..at + 2].copy_from_slice(&0x7e00_u16.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let after = verify(&Pool::open(&path).unwrap(), 2, |_, _| {}).unwrap();
    let texts = |report: &expert_tier::pool::VerifyReport| {
        let problems = report.problems.iter().map(|problem| problem.text.clone());
        problems.filter(|text| text.contains("blk.1.ffn_down_exps")).collect::<Vec<_>>()
    };
    assert_eq!(texts(&before).len(), 0, "{:?}", before.problems);
    assert_eq!(texts(&after).len(), 1, "{:?}", after.problems);
    // Two experts of 32 rows of 32 lie before this one, and three blocks of 32.
    assert!(texts(&after)[0].contains("element 2144 is NaN"), "{:?}", after.problems);
    assert_eq!(after.bytes_read, bytes.len() as u64);
}

/// A file of one key and no tensor.
fn with_array(count: u64, present: usize) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend(1_u64.to_le_bytes());
    bytes.extend(1_u64.to_le_bytes());
    bytes.push(b'k');
    for number in [9_u32, 8] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(count.to_le_bytes());
    for item in 0..present {
        let text = format!("item {item}");
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.bytes());
    }
    bytes
}

fn bytes_of(pool: &Pool, extent: Extent) -> Vec<u8> {
    let bytes = fs::read(pool.path_of(extent.file)).expect("a file of the pool");
    bytes[extent.offset as usize..extent.end() as usize].to_vec()
}

/// Keys of the model, not of the file.
fn said(pool: &Pool) -> Vec<(String, Value)> {
    let gguf = pool.gguf().expect("a pool of GGUF");
    let metadata = Metadata::read(gguf.path()).expect("its metadata");
    let kept = |key: &&str| !key.starts_with("split.") && *key != "general.alignment";
    let pairs = metadata.keys().filter(kept);
    pairs.filter_map(|key| Some((key.to_owned(), metadata.get(key)?.clone()))).collect()
}

#[test]
fn packing_keeps_every_byte_and_what_the_file_says() {
    for name in ["O12/mixed.gguf", "O11/ok_metadata_only_first"] {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let source = Pool::open(case(name)).unwrap();
        let report = pack(&source, &out, &PackOptions::default(), |_| ()).unwrap();
        assert_eq!(report.experts, source.layout().total_experts(), "{name}");
        let packed = Pool::open(&out).unwrap();
        assert_eq!(packed.format(), PoolFormat::Packed);
        assert_eq!(packed.layout().total_experts(), source.layout().total_experts());
        for (id, expert) in source.layout().iter() {
            let twin = packed.layout().expert(id).unwrap();
            assert_eq!((twin.extents.len(), twin.extents[0].offset % ALIGN), (1, 0));
            assert_eq!(twin.parts.len(), expert.parts.len());
            for (part, twin) in expert.parts.iter().zip(&twin.parts) {
                let form = |part: &Part| (part.role, part.dtype, part.rows, part.cols);
                assert_eq!(form(part), form(twin), "{name} {id}");
                assert_eq!(bytes_of(&source, part.extent), bytes_of(&packed, twin.extent));
            }
        }
        assert!(source.spine().keys().eq(packed.spine().keys()), "{name}");
        for (tensor, twin) in source.spine().values().zip(packed.spine().values()) {
            assert_eq!((&tensor.stored_name, tensor.dtype), (&twin.stored_name, twin.dtype));
            assert_eq!(tensor.shape, twin.shape);
            assert_eq!(bytes_of(&source, tensor.extent), bytes_of(&packed, twin.extent));
        }
        assert_eq!(said(&source), said(&packed), "{name}");
        assert!(!said(&packed).is_empty(), "{name}");
        let text = |pool: &Pool| pool.config().unwrap().text.clone();
        assert_eq!(text(&source), text(&packed), "{name}");
        assert!(pack::verify(&packed, |_, _| ()).unwrap().mismatches.is_empty());
        // Any of its files is the pool, and readers of version 1 refuse it by that number.
        assert_eq!(Pool::open(out.join("spine.gguf")).unwrap().layout(), packed.layout());
        let index = fs::read_to_string(out.join("pool.json")).unwrap();
        assert!(index.contains("\"version\":2,"), "{index}");
        fs::write(out.join("pool.json"), index.replace("\"version\":2,", "\"version\":1,"))
            .unwrap();
        let wrong = Pool::open(&out).unwrap_err();
        assert_eq!(wrong.kind(), "header-invalid");
        assert!(wrong.to_string().contains("spine.gguf"), "{wrong}");
    }
}

#[test]
fn long_arrays_are_kept_only_for_who_asks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    fs::write(&path, with_array(5000, 5000)).unwrap();
    let pool = Pool::open(&path).unwrap();
    assert_eq!(pool.gguf().unwrap().array("k").unwrap(), Some(&Array::Long(5000)));
    let whole = Metadata::read(&path).unwrap();
    assert_eq!(whole.texts("k").unwrap().unwrap()[4999], "item 4999");
    fs::write(&path, with_array(5001, 5000)).unwrap();
    for error in [Pool::open(&path).unwrap_err(), Metadata::read(&path).unwrap_err()] {
        assert_eq!(error.kind(), "header-truncated");
    }
}
