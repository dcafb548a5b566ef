//! The unbuffered arms: nothing stays cached, every byte arrives, and the report is true.

use crate::checkpoint::{EXPERTS, LAYERS, write_checkpoint};
use crate::{arm, assert_bytes, checkpoint, evicted, open_or_skip};
use expert_tier::{Admission, FillMethod, Pool, Tier, TierConfig};
use router_trace::{ExpertId, Route};
use std::path::Path;

const UNBUFFERED: [Admission; 2] = [Admission::Direct, Admission::DontCache];

#[test]
fn unbuffered_arms_leave_the_page_cache_alone() {
    let dir = checkpoint();
    for admission in UNBUFFERED {
        let Some(tier) = open_or_skip(dir.path(), arm(admission)) else { continue };
        if !evicted(&tier, admission.name()) {
            continue;
        }
        let adopted = tier.adopt(&Route::new(0, &[0, 1, 2]).unwrap()).unwrap();
        assert_bytes(&adopted);
        assert_eq!(tier.residency(None).unwrap().resident_bytes, 0, "{admission}");
        let seen = tier.snapshot();
        assert_eq!((seen.cold_experts, seen.warm_experts), (3, 0));
        assert_eq!(seen.cold_bytes, seen.adopted_bytes);
    }
}

/// The checkpoint's extents begin and end anywhere, and its last expert with the file.
#[test]
fn every_expert_arrives_whole_up_to_the_end_of_the_file() {
    let dir = checkpoint();
    let len = dir.path().join("model.safetensors").metadata().unwrap().len();
    let pool = Pool::open(dir.path()).unwrap();
    let end = |index| pool.layout().expert(ExpertId::new(1, index)).unwrap().extents[0].end();
    let last = (0..EXPERTS).map(end).max().unwrap();
    assert!(
        len - last < 4096 && !len.is_multiple_of(512),
        "the last block of the file is not whole"
    );
    for admission in UNBUFFERED {
        let Some(tier) = open_or_skip(dir.path(), arm(admission)) else { continue };
        tier.evict(None).unwrap();
        for layer in 0..LAYERS {
            let all: Vec<u16> = (0..EXPERTS).collect();
            assert_bytes(&tier.adopt_batch(layer, &all).unwrap());
        }
    }
}

#[test]
fn the_read_channel_is_named() {
    let dir = checkpoint();
    let channel =
        |admission| open_or_skip(dir.path(), arm(admission)).map(|tier| tier.read_channel());
    assert_eq!(channel(Admission::Admit).as_deref(), Some("mapping"));
    assert_eq!(channel(Admission::DropBehind).as_deref(), Some("read+dontneed"));
    if let Some(name) = channel(Admission::Direct) {
        println!("{name}");
        let inside = name.strip_prefix("o-direct (align ").unwrap().strip_suffix(')').unwrap();
        let align = inside.strip_suffix(", not proved").unwrap_or(inside);
        assert!(align.parse::<u64>().unwrap().is_power_of_two(), "{name}");
    }
    if let Some(name) = channel(Admission::DontCache) {
        assert!(["rwf-dontcache", "rwf-dontcache (not proved)"].contains(&&*name), "{name}");
    }
}

/// Whole and warm or not, a probe page is found or made: opening must succeed either way.
#[test]
fn opening_works_from_a_warm_cache() {
    let dir = checkpoint();
    let warm = Tier::open(Pool::open(dir.path()).unwrap(), TierConfig::default()).unwrap();
    for layer in 0..LAYERS {
        drop(warm.adopt_batch(layer, &(0..EXPERTS).collect::<Vec<_>>()).unwrap());
    }
    let before = warm.residency(None).unwrap();
    for admission in UNBUFFERED {
        let Some(tier) = open_or_skip(dir.path(), arm(admission)) else { continue };
        println!("{}", tier.read_channel());
        let after = tier.residency(None).unwrap();
        let lost = before.resident_bytes - after.resident_bytes;
        assert!(lost <= 8 << 20, "trying out the arm cost {lost} cached bytes");
        assert_bytes(&tier.adopt(&Route::new(0, &[5]).unwrap()).unwrap());
    }
}

#[test]
fn a_file_system_that_buffers_is_not_called_direct() {
    let shm = Path::new("/dev/shm");
    let tmpfs = shm.is_dir()
        && expert_tier::host::Storage::probe(shm, &expert_tier::observe::SystemRoot::default())
            .is_ok_and(|storage| storage.fs.name == "tmpfs");
    if !tmpfs {
        println!("SKIPPED: /dev/shm is no tmpfs");
        return;
    }
    let dir = tempfile::tempdir_in(shm).unwrap();
    write_checkpoint(dir.path());
    for admission in UNBUFFERED {
        let pool = Pool::open(dir.path()).unwrap();
        let error = Tier::open(pool, arm(admission)).unwrap_err();
        println!("{error}");
        assert_eq!(error.kind(), "device-unavailable");
        let text = error.to_string();
        assert!(text.contains("model.safetensors") && text.contains(admission.name()), "{text}");
    }
}

#[test]
fn a_fill_method_is_used_or_refused() {
    let dir = checkpoint();
    for method in FillMethod::ALL {
        assert_eq!(method.name().parse::<FillMethod>(), Ok(method));
        let config = TierConfig { fill_method: Some(method), ..TierConfig::default() };
        match Tier::open(Pool::open(dir.path()).unwrap(), config) {
            Ok(tier) => {
                assert_eq!(tier.fill_method(), method);
                assert!(method != FillMethod::WillNeed || !tier.huge_folios());
            }
            Err(error) => {
                assert_eq!(error.kind(), "device-unavailable");
                assert!(error.to_string().contains(method.name()), "{error}");
                assert!(method == FillMethod::Uring || method == FillMethod::Populate, "{error}");
            }
        }
    }
    assert!("madvise".parse::<FillMethod>().unwrap_err().contains("populate, read, willneed"));
}
