use crate::sources::{self, EXPERTS, LAYERS};
use expert_tier::pack::{PackOptions, pack, verify};
use expert_tier::pool::{PartRole, Pool, PoolFormat};
use expert_tier::{Spine, SpinePlacement, Tier, TierConfig};
use router_trace::{ExpertId, Route};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

fn part_bytes(pool: &Pool, id: ExpertId, role: PartRole) -> Vec<u8> {
    let part = pool.layout().expert(id).unwrap().part(role).unwrap();
    let mut bytes = vec![0; part.extent.len as usize];
    let file = File::open(pool.path_of(part.extent.file)).unwrap();
    file.read_exact_at(&mut bytes, part.extent.offset).unwrap();
    bytes
}

/// Both pools hold the same experts and the same spine.
pub(crate) fn assert_same(source: &Pool, packed: &Pool) {
    assert_eq!(packed.format(), PoolFormat::Packed);
    assert_eq!(packed.layout().total_experts(), source.layout().total_experts());
    for (id, expert) in source.layout().iter() {
        let other = packed.layout().expert(id).unwrap();
        assert_eq!(other.extents.len(), 1);
        assert_eq!(other.parts.len(), expert.parts.len());
        for part in &expert.parts {
            let twin = other.part(part.role).unwrap();
            assert_eq!((twin.dtype, twin.rows, twin.cols), (part.dtype, part.rows, part.cols));
            let same = part_bytes(source, id, part.role) == part_bytes(packed, id, part.role);
            assert!(same, "{id} {:?}", part.role);
        }
    }
    let spine = |pool| Spine::load(pool, SpinePlacement::Anonymous, |_, _| ()).unwrap();
    let (a, b) = (spine(source), spine(packed));
    assert!(a.names().eq(b.names()));
    for name in a.names() {
        let (a, b) = (a.get(name).unwrap(), b.get(name).unwrap());
        assert!((a.dtype, a.shape, a.bytes) == (b.dtype, b.shape, b.bytes), "{name}");
    }
    let quantization = |pool: &Pool| pool.config().map(|config| config.quantization.clone());
    assert_eq!(quantization(source), quantization(packed));
}

#[test]
fn every_layout_keeps_every_byte() {
    type Write = fn(&Path);
    let layouts: [(&str, Write, PoolFormat); 5] = [
        ("bf16", sources::write_bf16, PoolFormat::Safetensors),
        ("shards", sources::write_shards, PoolFormat::SafetensorsShards),
        ("stacks", sources::write_stacks, PoolFormat::Safetensors),
        ("int4", sources::write_int4, PoolFormat::Safetensors),
        ("fp8", sources::write_fp8, PoolFormat::Safetensors),
    ];
    for (name, write, format) in layouts {
        let dir = tempfile::tempdir().unwrap();
        let (from, out) = (dir.path().join("from"), dir.path().join("out"));
        fs::create_dir(&from).unwrap();
        write(&from);
        let source = Pool::open(&from).unwrap();
        assert_eq!(source.format(), format, "{name}");
        assert_eq!(source.checksum(ExpertId::new(0, 0)), None);
        assert_eq!(verify(&source, |_, _| ()).unwrap_err().kind(), "unsupported");
        let options = PackOptions { spine_shard_bytes: 30_000, ..PackOptions::default() };
        let report = pack(&source, &out, &options, |_| ()).unwrap();
        assert_eq!(report.experts, LAYERS * EXPERTS);
        assert_eq!(report.notices.len(), usize::from(name == "int4"), "{:?}", report.notices);
        let packed = Pool::open(&out).unwrap();
        assert!(packed.notices().is_empty(), "{:?}", packed.notices());
        assert!(packed.files().len() > 2, "the spine is cut");
        assert_same(&source, &packed);
        assert_eq!(packed.check_head().unwrap(), source.check_head().unwrap());
        assert!(verify(&packed, |_, _| ()).unwrap().mismatches.is_empty());
        for name in ["config.json", "tokenizer.json", "chat_template.jinja"] {
            assert_eq!(fs::read(from.join(name)).unwrap(), fs::read(out.join(name)).unwrap());
        }
        assert!(!out.join("README.md").exists());
        // Each of its files means the pool, and a packed pool can be packed again.
        for file in ["pool.json", "experts.bin", "spine-00001-of-00003.safetensors"] {
            let pool = Pool::open(out.join(file)).unwrap();
            assert_eq!(pool.format(), PoolFormat::Packed, "{file}");
        }
        let again = dir.path().join("again");
        pack(&packed, &again, &PackOptions::default(), |_| ()).unwrap();
        assert_same(&packed, &Pool::open(&again).unwrap());
        assert!(again.join("spine.safetensors").exists());
        let file = |dir: &Path| fs::read(dir.join("experts.bin")).unwrap();
        assert!(file(&out) == file(&again));
    }
}

#[test]
fn licences_and_notices_go_along_whatever_the_format() {
    let dir = tempfile::tempdir().unwrap();
    let terms = ["LICENSE", "LICENSE-MODEL.md", "NOTICE", "Notice.txt", "license.pdf"];
    let others = ["README.md", "COPYRIGHTS", "config.json", "notice.gguf"];
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/O12/mixed.gguf");
    for format in ["safetensors", "gguf"] {
        let (from, out) = (dir.path().join(format), dir.path().join(format!("{format}-packed")));
        fs::create_dir(&from).unwrap();
        let model = from.join("model.gguf");
        if format == "gguf" {
            fs::copy(&case, &model).unwrap();
            for name in others {
                fs::write(from.join(name), "{}").unwrap();
            }
        } else {
            sources::write_bf16(&from);
        }
        for name in terms {
            fs::write(from.join(name), format!("terms of {format}, {name}")).unwrap();
        }
        fs::create_dir(from.join("licenses")).unwrap();
        let source = if format == "gguf" { &model } else { &from };
        pack(&Pool::open(source).unwrap(), &out, &PackOptions::default(), |_| ()).unwrap();
        for name in terms {
            assert_eq!(fs::read(from.join(name)).unwrap(), fs::read(out.join(name)).unwrap());
        }
        assert!(!out.join("licenses").exists());
        let kept = others.iter().filter(|name| out.join(name).exists());
        // A config beside a GGUF file may be of another model.
        let wanted: &[&str] = if format == "gguf" { &[] } else { &["config.json"] };
        assert!(kept.eq(wanted), "{format}");
        // They are no part of the model, so they may change; and go along again.
        let again = dir.path().join(format!("{format}-again"));
        fs::write(out.join("NOTICE"), "new terms").unwrap();
        pack(&Pool::open(&out).unwrap(), &again, &PackOptions::default(), |_| ()).unwrap();
        assert_eq!(fs::read(again.join("NOTICE")).unwrap(), b"new terms");
        assert_eq!(
            fs::read(again.join("LICENSE")).unwrap(),
            fs::read(from.join("LICENSE")).unwrap()
        );
    }
}

#[test]
fn a_tier_serves_a_packed_pool() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (from, out) = (dir.path().join("from"), dir.path().join("out"));
    fs::create_dir(&from).unwrap();
    sources::write_int4(&from);
    let source = Pool::open(&from).unwrap();
    pack(&source, &out, &PackOptions::default(), |_| ()).unwrap();
    let tier = Tier::open(Pool::open(&out).unwrap(), TierConfig::default()).unwrap();
    let adopted = tier.adopt(&Route::new(1, &[3, 0]).unwrap()).unwrap();
    for expert in adopted.experts() {
        for part in expert.parts() {
            let bytes = part.bytes.host().unwrap();
            assert!(bytes == part_bytes(&source, expert.id(), part.role));
            assert!(bytes.as_ptr().addr().is_multiple_of(64));
        }
    }
}

#[test]
fn changed_bytes_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let (from, out) = (dir.path().join("from"), dir.path().join("out"));
    fs::create_dir(&from).unwrap();
    sources::write_fp8(&from);
    pack(&Pool::open(&from).unwrap(), &out, &PackOptions::default(), |_| ()).unwrap();
    let flip = |name: &str, at: u64| {
        let file = File::options().read(true).write(true).open(out.join(name)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    };
    flip("experts.bin", (3 << 20) - (1 << 20) + 5);
    let spine = fs::metadata(out.join("spine.safetensors")).unwrap().len();
    flip("spine.safetensors", spine - 1);
    let pool = Pool::open(&out).unwrap();
    let mut told = Vec::new();
    let report = verify(&pool, |done, total| told.push((done, total))).unwrap();
    let found: Vec<_> = report.mismatches.iter().map(|wrong| wrong.expert).collect();
    assert_eq!(found, [Some(ExpertId::new(0, 1)), None]);
    assert_eq!(told.last(), Some(&(report.bytes, report.bytes)));
}

#[test]
fn a_pool_is_not_packed_into_itself() {
    let dir = tempfile::tempdir().unwrap();
    sources::write_bf16(dir.path());
    let pool = Pool::open(dir.path()).unwrap();
    for out in [dir.path().to_owned(), dir.path().join("in/side"), dir.path().join(".")] {
        let error = pack(&pool, &out, &PackOptions::default(), |_| ()).unwrap_err();
        assert_eq!(error.kind(), "output-refused", "{error}");
    }
    assert!(!dir.path().join("in").exists());
    // A file's folder may hold more models.
    let file = Pool::open(dir.path().join("model.safetensors")).unwrap();
    pack(&file, &dir.path().join("side"), &PackOptions::default(), |_| ()).unwrap();
}

#[test]
fn a_source_that_changes_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (from, out) = (dir.path().join("from"), dir.path().join("out"));
    fs::create_dir(&from).unwrap();
    sources::write_bf16(&from);
    let pool = Pool::open(&from).unwrap();
    let mut touched = false;
    let error = pack(&pool, &out, &PackOptions::default(), |_| {
        if !std::mem::replace(&mut touched, true) {
            let file = File::options().write(true).open(from.join("model.safetensors")).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        }
    })
    .unwrap_err();
    assert_eq!(error.kind(), "io-changed");
    assert_eq!(Pool::open(&out).unwrap_err().kind(), "unfinished-pack");
    let pool = Pool::open(&from).unwrap();
    let error = pack(&pool, &out, &PackOptions::default(), |_| ()).unwrap_err();
    assert_eq!(error.kind(), "pack-source-changed", "{error}");
    assert!(error.to_string().contains("model.safetensors of"), "{error}");
}
