//! What a tier promises, on real files: bytes, counters, leases, arms.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adopting;
mod arms;
mod auto;
mod checkpoint;
mod demand;
mod passing;
mod rates;

use checkpoint::{EXPERTS, LAYERS, pattern, write_checkpoint};
use expert_tier::pool::PartRole;
use expert_tier::{Admission, FillMethod, Pool, Spine, SpinePlacement, Tier, TierConfig};
use router_trace::{ExpertId, Route};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use tempfile::TempDir;

fn checkpoint() -> TempDir {
    // Not in the system's temporary folder, which may be a tmpfs: nothing can be evicted there.
    // TIER_TEST_DIR names a folder of another file system to run the tests on.
    let parent = std::env::var_os("TIER_TEST_DIR");
    let parent = parent.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let dir = tempfile::tempdir_in(parent).unwrap();
    write_checkpoint(dir.path());
    File::open(dir.path().join("model.safetensors")).unwrap().sync_all().unwrap();
    dir
}

fn open(dir: &Path, config: TierConfig) -> Tier {
    Tier::open(Pool::open(dir).unwrap(), config).unwrap()
}

fn arm(admission: Admission) -> TierConfig {
    TierConfig { admission, ..TierConfig::default() }
}

/// The tier, unless this kernel or file system lacks what `config` asks for: then it says so.
fn open_or_skip(dir: &Path, config: TierConfig) -> Option<Tier> {
    match Tier::open(Pool::open(dir).unwrap(), config) {
        Ok(tier) => Some(tier),
        Err(error) if error.kind() == "device-unavailable" => {
            println!("SKIPPED {} with {:?}: {error}", config.admission, config.fill_method);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Evict and say whether this file system lets us; tests of cold behaviour need it.
fn evicted(tier: &Tier, test: &str) -> bool {
    let left = tier.evict(None).unwrap().resident_bytes;
    if left > 0 {
        println!("SKIPPED {test}: {left} bytes stay cached on this file system");
    }
    left == 0
}

fn assert_bytes(adopted: &expert_tier::Adopted) {
    for expert in adopted.experts() {
        for role in [PartRole::Gate, PartRole::Up, PartRole::Down] {
            let bytes = expert.part(role).unwrap().bytes.host().unwrap();
            assert!(bytes == pattern(expert.id(), role), "{} {role:?}", expert.id());
        }
    }
}

#[test]
fn every_arm_shows_the_same_bytes() {
    let dir = checkpoint();
    for admission in Admission::ALL {
        for method in FillMethod::ALL {
            let config = TierConfig { fill_method: Some(method), ..arm(admission) };
            let Some(tier) = open_or_skip(dir.path(), config) else { continue };
            assert_eq!(tier.fill_method(), method);
            for round in 0..2 {
                if round == 0 {
                    tier.evict(None).unwrap();
                }
                let adopted = tier.adopt(&Route::new(1, &[4, 0, 3]).unwrap()).unwrap();
                let ids: Vec<_> = adopted.experts().map(|expert| expert.id().index).collect();
                assert_eq!(ids, [4, 0, 3], "rank order is kept");
                assert_bytes(&adopted);
            }
        }
    }
}

#[test]
fn threads_adopt_at_once() {
    let dir = checkpoint();
    for admission in Admission::ALL {
        let Some(tier) = open_or_skip(dir.path(), arm(admission)) else { continue };
        tier.evict(None).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u16 {
                let tier = &tier;
                scope.spawn(move || {
                    for step in 0..6 {
                        let first = (thread + step) % EXPERTS;
                        let route = Route::new(step % LAYERS, &[first, (first + 1) % EXPERTS]);
                        assert_bytes(&tier.adopt(&route.unwrap()).unwrap());
                    }
                });
            }
        });
        let seen = tier.snapshot();
        assert_eq!((seen.adoptions, seen.adopted_experts), (24, 48));
        assert_eq!(seen.warm_experts + seen.cold_experts, 48);
    }
}

#[test]
fn cold_then_warm_is_measured_and_admitted_pages_stay() {
    let dir = checkpoint();
    let tier = open(dir.path(), arm(Admission::Admit));
    if !evicted(&tier, "cold_then_warm") {
        return;
    }
    let route = Route::new(0, &[1, 5]).unwrap();
    drop(tier.adopt(&route).unwrap());
    let first = tier.snapshot();
    let bytes = 2 * 3 * pattern(ExpertId::new(0, 0), PartRole::Up).len() as u64;
    assert_eq!((first.cold_experts, first.warm_experts), (2, 0));
    assert_eq!((first.cold_bytes, first.adopted_bytes), (bytes, bytes));
    assert!(first.missing_bytes >= bytes, "whole pages are missing: {first:?}");
    assert!(first.fill_ns > 0 && first.adopt_ns >= first.fill_ns);

    drop(tier.adopt(&route).unwrap());
    let second = tier.snapshot() - first;
    assert_eq!((second.cold_experts, second.warm_experts), (0, 2));
    assert_eq!((second.missing_bytes, second.fill_ns), (0, 0));
    assert_eq!(second.warm_ratio(), Some(1.0));
}

#[test]
fn drop_behind_forgets_with_the_last_lease_only() {
    let dir = checkpoint();
    let tier = open(dir.path(), arm(Admission::DropBehind));
    if !evicted(&tier, "drop_behind") {
        return;
    }
    let id = ExpertId::new(1, 2);
    let route = Route::new(1, &[2]).unwrap();
    let (one, two) = (tier.adopt(&route).unwrap(), tier.adopt(&route).unwrap());
    assert_eq!(tier.snapshot().warm_experts, 1, "the second lease finds it warm");
    drop(one);
    let kept = tier.residency(Some(&[id])).unwrap();
    assert_eq!(kept.resident_bytes, kept.total_bytes, "another lease holds it");
    drop(two);
    assert_eq!(tier.residency(Some(&[id])).unwrap().resident_bytes, 0);
    drop(tier.adopt(&route).unwrap());
    assert_eq!(tier.snapshot().cold_experts, 2);
}

#[test]
fn a_lease_outlives_its_tier_and_moves_between_threads() {
    let dir = checkpoint();
    for admission in Admission::ALL {
        let Some(tier) = open_or_skip(dir.path(), arm(admission)) else { continue };
        let adopted = tier.adopt(&Route::new(0, &[3]).unwrap()).unwrap();
        drop(tier);
        std::thread::spawn(move || assert_bytes(&adopted)).join().unwrap();
    }
}

#[test]
fn an_unknown_expert_is_an_error_and_leaves_no_trace() {
    let dir = checkpoint();
    let tier = open(dir.path(), arm(Admission::DropBehind));
    let before = tier.snapshot();
    for route in [Route::new(0, &[0, EXPERTS]), Route::new(LAYERS, &[0])] {
        let error = tier.adopt(&route.unwrap()).unwrap_err();
        assert_eq!(error.kind(), "config-inconsistent");
        assert!(error.to_string().contains("expert"), "{error}");
    }
    assert_eq!(tier.snapshot(), before);
}

#[test]
fn a_demand_read_past_a_cut_fails_and_others_stay_valid() {
    let dir = checkpoint();
    let path = dir.path().join("model.safetensors");
    for method in FillMethod::ALL {
        write_checkpoint(dir.path());
        let config = TierConfig { fill_method: Some(method), ..arm(Admission::Admit) };
        let Some(tier) = open_or_skip(dir.path(), config) else { continue };
        let early = tier.adopt(&Route::new(0, &[0]).unwrap()).unwrap();
        let last = tier.pool().layout().expert(ExpertId::new(1, 5)).unwrap().extents[0];
        File::options().write(true).open(&path).unwrap().set_len(last.offset + 4096).unwrap();
        let before = tier.snapshot();
        let error = tier.adopt(&Route::new(1, &[5]).unwrap()).unwrap_err();
        assert_eq!(error.kind(), "io-changed", "{error}");
        assert!(error.to_string().contains("model.safetensors"), "{error}");
        assert_eq!(tier.snapshot(), before, "a failed adopt is not counted");
        assert_bytes(&early);
    }
}

#[test]
fn a_file_that_changed_after_opening_is_refused() {
    let dir = checkpoint();
    let pool = Pool::open(dir.path()).unwrap();
    let path = dir.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    File::create(&path).unwrap().write_all(&bytes).unwrap();
    let error = Tier::open(pool, TierConfig::default()).unwrap_err();
    assert_eq!(error.kind(), "io-changed");
}

#[test]
fn limits_are_checked_once_and_named() {
    let dir = checkpoint();
    let pool = Pool::open(dir.path()).unwrap();
    for fill_threads in [0, TierConfig::MAX_FILL_THREADS + 1] {
        let config = TierConfig { fill_threads, ..TierConfig::default() };
        let error = Tier::open(pool.clone(), config).unwrap_err();
        assert_eq!(error.kind(), "limit");
        assert!(error.to_string().contains("fill_threads"), "{error}");
    }
}

/// Reading ahead makes folios that hold the end of one expert and the start of the next.
#[test]
fn what_was_read_in_one_go_is_evicted_as_well() {
    let dir = checkpoint();
    let tier = open(dir.path(), TierConfig { huge_folios: false, ..TierConfig::default() });
    if !evicted(&tier, "read in one go") {
        return;
    }
    fs::read(dir.path().join("model.safetensors")).unwrap();
    let neighbours: Vec<ExpertId> = (1..4).map(|index| ExpertId::new(0, index)).collect();
    let before = tier.residency(Some(&neighbours)).unwrap();
    assert_eq!(before.resident_bytes, before.total_bytes);
    // At most one folio of 2 MiB stays at each end of what lies together.
    let after = tier.evict(Some(&neighbours)).unwrap();
    assert!(after.resident_bytes < before.resident_bytes / 2, "{after:?}");
    assert_eq!(tier.evict(None).unwrap().resident_bytes, 0);
}

#[test]
fn huge_folios_can_be_declined() {
    let dir = checkpoint();
    let tier = open(dir.path(), TierConfig { huge_folios: false, ..TierConfig::default() });
    assert!(!tier.huge_folios());
}

#[test]
fn the_spine_is_a_copy_that_leaves_the_page_cache() {
    let dir = checkpoint();
    let pool = Pool::open(dir.path()).unwrap();
    let mut told = 0;
    let spine = Spine::load(&pool, SpinePlacement::Anonymous, |done, total| {
        assert!(done <= total);
        told = done;
    })
    .unwrap();
    let norm = spine.get("norm.weight").unwrap();
    assert_eq!((norm.shape, norm.bytes), (&[1000_u64][..], &[7_u8; 2000][..]));
    assert_eq!(told, 2000);
    assert_eq!(norm.bytes.as_ptr() as usize % 64, 0);
    assert!(spine.get("layers.0.mlp.experts.0.up_proj.weight").is_none());
}
