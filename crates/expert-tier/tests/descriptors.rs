//! 600 expert files under a limit of 256 descriptors. A test binary of its own: the limit holds
//! for the whole process.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use expert_tier::observe::SystemRoot;
use expert_tier::pack::{PackOptions, pack, verify};
use expert_tier::pool::PartRole;
use expert_tier::{
    Admission, FillMethod, Pool, ProbeKind, Spine, SpinePlacement, Tier, TierConfig,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use router_trace::ExpertId;
use std::fs;
use std::path::Path;

const LAYERS: u16 = 3;
const EXPERTS: u16 = 200;
const LIMIT: u64 = 256;

fn bytes(id: ExpertId, role: PartRole) -> Vec<u8> {
    let mut bytes = vec![role as u8; 2 * 24 * 40];
    bytes[0] = id.layer as u8;
    bytes[1] = id.index as u8;
    bytes
}

fn file_name(id: ExpertId) -> String {
    format!("layer-{}-expert-{}.safetensors", id.layer, id.index)
}

/// One file an expert, and one for the spine.
fn write_checkpoint(dir: &Path) {
    let mut map = Vec::new();
    let mut write = |file: String, tensors: &[(String, [usize; 2], Vec<u8>)]| {
        let (mut header, mut data) = (Vec::new(), Vec::new());
        for (name, shape, bytes) in tensors {
            let begin = data.len();
            data.extend_from_slice(bytes);
            let end = data.len();
            header.push(format!(
                "\"{name}\":{{\"dtype\":\"BF16\",\"shape\":{shape:?},\"data_offsets\":[{begin},{end}]}}"
            ));
            map.push(format!("\"{name}\":\"{file}\""));
        }
        let header = format!("{{{}}}", header.join(","));
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header.bytes());
        out.extend(data);
        fs::write(dir.join(&file), out).unwrap();
        fs::File::open(dir.join(file)).unwrap().sync_all().unwrap();
    };
    for layer in 0..LAYERS {
        for index in 0..EXPERTS {
            let id = ExpertId::new(layer, index);
            let roles = [PartRole::Gate, PartRole::Up, PartRole::Down];
            let tensors: Vec<_> = roles
                .into_iter()
                .zip([("gate", [24, 40]), ("up", [24, 40]), ("down", [40, 24])])
                .map(|(role, (name, shape))| {
                    let name =
                        format!("model.layers.{layer}.mlp.experts.{index}.{name}_proj.weight");
                    (name, shape, bytes(id, role))
                })
                .collect();
            write(file_name(id), &tensors);
        }
    }
    write("spine.safetensors".to_owned(), &[("model.norm.weight".to_owned(), [1, 8], vec![7; 16])]);
    let index = format!("{{\"metadata\":{{}},\"weight_map\":{{{}}}}}", map.join(","));
    fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

#[test]
fn six_hundred_files_are_served_with_256_descriptors() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    write_checkpoint(dir.path());
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, LIMIT.min(hard), hard).unwrap();
    let pool = Pool::open(dir.path()).unwrap();
    assert_eq!(pool.files().len(), 601);
    for admission in Admission::ALL {
        for probe in [None, Some(ProbeKind::Cachestat)] {
            for method in FillMethod::ALL {
                let config = TierConfig {
                    admission,
                    probe,
                    fill_method: Some(method),
                    ..TierConfig::default()
                };
                serve(&pool, config);
            }
        }
    }
    let spine = Spine::load(&pool, SpinePlacement::Anonymous, |_, _| {}).unwrap();
    assert_eq!(spine.get("norm.weight").unwrap().bytes, [7; 16]);
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let out = home.path().join("packed");
    pack(&pool, &out, &PackOptions::default(), |_| ()).unwrap();
    assert!(verify(&Pool::open(&out).unwrap(), |_, _| ()).unwrap().mismatches.is_empty());
    a_replaced_file_is_not_touched(&pool, dir.path());
}

fn serve(pool: &Pool, config: TierConfig) {
    let before = open_descriptors();
    let tier = match Tier::open(pool.clone(), config) {
        Ok(tier) => tier,
        Err(error) if matches!(error.kind(), "device-unavailable" | "io") => {
            println!("SKIPPED {config:?}: {error}");
            assert!(!error.to_string().contains("open files"), "{error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let all: Vec<u16> = (0..EXPERTS).collect();
    let evictable = tier.evict(None).unwrap().resident_bytes == 0;
    for round in 0..2 {
        if round == 0 {
            tier.evict(None).unwrap();
        }
        for layer in 0..LAYERS {
            let adopted = tier.adopt_batch(layer, &all).unwrap();
            for expert in adopted.experts() {
                for role in [PartRole::Gate, PartRole::Up, PartRole::Down] {
                    let found = expert.part(role).unwrap().bytes.host().unwrap();
                    assert!(found == bytes(expert.id(), role), "{} {role:?}", expert.id());
                }
            }
        }
        let residency = tier.residency(None).unwrap();
        match config.admission {
            Admission::Admit | Admission::Auto => {
                assert_eq!(residency.resident_bytes, residency.total_bytes);
            }
            _ if !evictable => println!("SKIPPED: pages stay cached on this file system"),
            _ => assert!(residency.resident_bytes < residency.total_bytes / 2, "{residency:?}"),
        }
    }
    drop(tier.device_counters(&SystemRoot::default()));
    let more = open_descriptors() - before;
    assert!(more <= 64, "{more} descriptors stay open");
}

fn a_replaced_file_is_not_touched(pool: &Pool, dir: &Path) {
    let tier = Tier::open(pool.clone(), TierConfig::default()).unwrap();
    let id = ExpertId::new(0, 0);
    let path = dir.join(file_name(id));
    let content = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, content).unwrap();
    // Use other files until the old descriptor is gone.
    let others: Vec<ExpertId> = (0..100).map(|index| ExpertId::new(1, index)).collect();
    tier.evict(Some(&others)).unwrap();
    let error = tier.evict(Some(&[id])).unwrap_err();
    assert_eq!(error.kind(), "io-changed");
    assert!(error.to_string().contains(&file_name(id)), "{error}");
    let adopted = tier.adopt_batch(0, &[0]).unwrap();
    let expert = adopted.experts().next().unwrap();
    let found = expert.part(PartRole::Up).unwrap().bytes.host().unwrap();
    assert!(found == bytes(id, PartRole::Up), "the mapping still shows the file it was made of");
}
