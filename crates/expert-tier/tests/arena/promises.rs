//! What holds of an arena whatever the trace.

use super::pool::EXPERTS;
use super::{assert_bytes, config, open, write};
use expert_tier::{Adopt, Arena, ArenaConfig, ArenaReads, Pool, Tier, TierConfig};
use router_trace::policy::PolicyKind;
use router_trace::{ExpertId, Route};
use std::fs::{self, File};
use std::io::Write;

#[test]
fn a_failed_read_leaves_counters_policy_and_other_leases_as_they_were() {
    let (dir, pool) = write();
    let Some(arena) = open(&pool, &config(4, PolicyKind::Lru, ArenaReads::Direct)) else { return };
    let early = arena.adopt(&Route::new(0, &[1, 2, 3]).unwrap()).unwrap();
    let before = (arena.snapshot(), arena.kept(), arena.pinned_now());
    let error = arena.adopt(&Route::new(0, &[1, EXPERTS]).unwrap()).unwrap_err();
    assert_eq!(error.kind(), "config-inconsistent");
    let last = pool.layout().expert(ExpertId::new(9, 63)).unwrap().extents[0];
    let file = File::options().write(true).open(dir.path().join("model.safetensors")).unwrap();
    file.set_len(last.offset + 4096).unwrap();
    let error = arena.adopt(&Route::new(9, &[63]).unwrap()).unwrap_err();
    assert_eq!(error.kind(), "io-changed", "{error}");
    // Nothing to read, but the bytes are no longer the file's.
    assert_eq!(arena.adopt(&Route::new(0, &[1]).unwrap()).unwrap_err().kind(), "io-changed");
    assert_eq!((arena.snapshot(), arena.kept(), arena.pinned_now()), before);
    assert_bytes(&early);
}

#[test]
fn an_adoption_that_is_given_up_is_not_heard_of() {
    let (_dir, pool) = write();
    let arena = Arena::open(pool, &config(4, PolicyKind::Lru, ArenaReads::Copies)).unwrap();
    drop(arena.adopt_batch(3, &[5, 6]).unwrap());
    let before = arena.snapshot();
    let mut adopting = arena.begin(3, &[6, 7, 8, 9, 10]).unwrap();
    assert_eq!(adopting.wait().unwrap().start, 0);
    assert_eq!(arena.pinned_now(), 1, "what it found stays while it lives");
    drop(adopting);
    assert_eq!((arena.snapshot(), arena.kept(), arena.pinned_now()), (before, 2, 0));
    let again = arena.adopt_batch(3, &[5, 6]).unwrap();
    assert_eq!((arena.snapshot() - before).warm_experts, 2);
    assert_bytes(&again);
}

#[test]
fn an_expert_named_twice_is_read_once_and_hits_the_second_time() {
    let (_dir, pool) = write();
    let arena = Arena::open(pool, &config(4, PolicyKind::Lru, ArenaReads::Copies)).unwrap();
    let adopted = arena.adopt_batch(2, &[7, 7, 1]).unwrap();
    assert_bytes(&adopted);
    let seen = arena.snapshot();
    assert_eq!((seen.cold_experts, seen.warm_experts), (2, 1));
    drop(adopted);
    assert_eq!(arena.pinned_now(), 0);
}

#[test]
fn threads_share_an_arena_that_keeps_no_more_than_it_may() {
    let (_dir, pool) = write();
    for reads in [ArenaReads::Copies, ArenaReads::Direct] {
        let Some(arena) = open(&pool, &config(16, PolicyKind::Lru, reads)) else { continue };
        std::thread::scope(|scope| {
            for thread in 0..4_u16 {
                let arena = &arena;
                scope.spawn(move || {
                    for step in 0..100 {
                        let first = (thread * 3 + step * 5) % (EXPERTS - 4);
                        let adopted = arena.adopt_batch(step % 2, &[first, first + 2, first + 3]);
                        assert_bytes(&adopted.unwrap());
                        assert!(arena.kept() <= 16);
                    }
                });
            }
        });
        let seen = arena.snapshot();
        assert_eq!((seen.adoptions, seen.adopted_experts), (400, 1200));
        assert_eq!(seen.warm_experts + seen.cold_experts, 1200);
        assert_eq!((arena.kept(), arena.pinned_now()), (16, 0));
    }
}

#[test]
fn leases_outlive_the_arena_and_its_places() {
    let (_dir, pool) = write();
    let arena = Arena::open(pool, &config(2, PolicyKind::Lru, ArenaReads::Copies)).unwrap();
    let first = arena.adopt_batch(1, &[0, 1]).unwrap();
    let second = arena.adopt_batch(1, &[2, 3]).unwrap();
    assert_eq!(arena.kept(), 2, "both places are pinned, so the second route is read for once");
    drop(arena);
    std::thread::spawn(move || [first, second].iter().for_each(assert_bytes)).join().unwrap();
}

#[test]
fn an_engine_need_not_know_which_it_has() {
    let (_dir, pool) = write();
    let arena = Arena::open(pool.clone(), &config(8, PolicyKind::Lru, ArenaReads::Copies));
    let tier = Tier::open(pool, TierConfig::default());
    let both: [Box<dyn Adopt>; 2] = [Box::new(arena.unwrap()), Box::new(tier.unwrap())];
    for adopt in both {
        let adopted = adopt.adopt(&Route::new(4, &[9, 8]).unwrap()).unwrap();
        assert_bytes(&adopted);
        assert_eq!(adopt.snapshot().adopted_experts, 2);
        assert_eq!(adopt.pool().layout().total_experts(), 1024);
    }
}

#[test]
fn more_threads_than_allowed_are_refused_by_name() {
    let (_dir, pool) = write();
    let config = ArenaConfig { fill_threads: 0, ..ArenaConfig::default() };
    let error = Arena::open(pool, &config).unwrap_err();
    assert!(error.to_string().contains("fill_threads"), "{error}");
}

#[test]
fn more_places_than_memory_has_room_for_are_refused_with_the_numbers() {
    let (dir, pool) = write();
    drop(pool);
    // One expert of 1.5 TiB that is a hole of its file.
    let mut head = String::from("{");
    for (part, name) in ["gate_proj", "up_proj", "down_proj"].into_iter().enumerate() {
        let (start, end) = ((part as u64) << 39, (part as u64 + 1) << 39);
        let shape = if part == 2 { [1 << 18, 1 << 20] } else { [1 << 20, 1 << 18] };
        head += &format!(
            "{}\"model.layers.0.mlp.experts.0.{name}.weight\":{{\"dtype\":\"BF16\",\
             \"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}",
            if part == 0 { "" } else { "," },
        );
    }
    head += "}";
    let path = dir.path().join("model.safetensors");
    fs::remove_file(&path).unwrap();
    let mut file = File::create(&path).unwrap();
    file.write_all(&(head.len() as u64).to_le_bytes()).unwrap();
    file.write_all(head.as_bytes()).unwrap();
    if let Err(error) = file.set_len(8 + head.len() as u64 + (3 << 39)) {
        println!("SKIPPED: a file of 1.5 TiB: {error}");
        return;
    }
    let pool = Pool::open(dir.path()).unwrap();
    let one = config(1, PolicyKind::Lru, ArenaReads::Copies);
    let error = Arena::open(pool.clone(), &one).unwrap_err();
    assert_eq!(error.kind(), "limit");
    assert!(error.to_string().contains("the arena needs 1649267441664 bytes"), "{error}");
    let error = Arena::pinned(pool, &[ExpertId::new(0, 0)], &one).unwrap_err();
    assert!(error.to_string().contains("the pinned arena cannot be locked"), "{error}");
}
