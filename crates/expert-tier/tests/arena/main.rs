//! Simulator = engine: an arena that is driven with a trace counts what `simulate` counts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod locked;
mod pins;
mod pool;
mod promises;

use expert_tier::{Arena, ArenaConfig, ArenaReads, Pool, Snapshot, hottest};
use pool::{EXPERT_BYTES, assert_bytes, olmoe, write};
use router_trace::policy::PolicyKind;
use router_trace::simulate::{Budget, Pins, Plan, Replay, Row, Window, simulate};
use router_trace::{Accesses, ExpertId};

/// Fewer than a route, a route, two odd ones, an eighth, a quarter, half of the pool, all of it.
const BUDGETS: [usize; 7] = [5, 8, 61, 128, 256, 512, 1024];

fn config(places: usize, policy: PolicyKind, reads: ArenaReads) -> ArenaConfig {
    ArenaConfig { places, policy, reads, fill_threads: 2 }
}

/// The arena, unless this file system has no direct reads: then it says so.
fn open(pool: &Pool, config: &ArenaConfig) -> Option<Arena> {
    match Arena::open(pool.clone(), config) {
        Ok(arena) => Some(arena),
        Err(error) if error.kind() == "device-unavailable" => {
            println!("SKIPPED {:?}: {error}", config.reads);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn simulated(trace: &Accesses, policy: PolicyKind, places: usize, pins: Pins) -> Row {
    let plan = Plan {
        policies: vec![policy],
        budgets: vec![Budget::Experts(places as u64)],
        pins,
        ..Plan::default()
    };
    let replay = Replay::of(trace, Window::COLD).unwrap();
    simulate(&replay, &plan, |_| {}).unwrap().rows.remove(0)
}

/// Adopts route after route and gives the counters of each layer.
fn drive(arena: &Arena, trace: &Accesses) -> Vec<Snapshot> {
    let space = trace.key_space();
    let mut layers = vec![Snapshot::default(); space.shape().moe_layers.len()];
    for (slot, keys) in trace.passes_in(0..trace.n_iterations()) {
        let before = arena.snapshot();
        let layer = space.shape().moe_layers[usize::from(slot)];
        let experts: Vec<u16> = keys.iter().map(|&key| space.id(key).unwrap().index).collect();
        let adopted = arena.adopt_batch(layer, &experts).unwrap();
        assert_bytes(&adopted);
        assert_eq!(adopted.len(), experts.len());
        let layer = &mut layers[usize::from(slot)];
        *layer = *layer + (arena.snapshot() - before);
    }
    layers
}

/// Hits and misses of every layer and of all are those of `row`.
fn assert_counts(what: &str, layers: &[Snapshot], row: &Row) {
    for (layer, expected) in layers.iter().zip(&row.layers) {
        let found = (layer.adopted_experts, layer.warm_experts, layer.cold_experts);
        let (accesses, hits) = (expected.count.accesses, expected.count.hits);
        assert_eq!(found, (accesses, hits, accesses - hits), "{what}, layer {}", expected.layer);
    }
    let all = layers.iter().copied().fold(Snapshot::default(), |sum, layer| sum + layer);
    assert_eq!((all.warm_experts, all.cold_experts), (row.count.hits, row.misses), "{what}");
    assert_eq!(all.warm_bytes, row.count.hits * EXPERT_BYTES, "{what}");
    assert_eq!(Some(all.cold_bytes), row.miss_bytes, "{what}");
}

#[test]
fn lru_counts_what_is_simulated_at_seven_budgets() {
    let (_dir, pool) = write();
    let trace = olmoe();
    for places in BUDGETS {
        let arena = Arena::open(pool.clone(), &config(places, PolicyKind::Lru, ArenaReads::Copies));
        let arena = arena.unwrap();
        let layers = drive(&arena, &trace);
        let row = simulated(&trace, PolicyKind::Lru, places, Pins::Pass);
        assert_counts(&format!("LRU of {places}"), &layers, &row);
        if places >= 8 {
            let free = simulated(&trace, PolicyKind::Lru, places, Pins::None);
            assert_eq!(row.count, free.count, "a route that fits needs no pins");
        }
        assert_eq!((arena.kept(), arena.pinned_now()), (places.min(974), 0), "974 are used");
        // Whole pages around experts that begin where they like. What the policy gave up in the
        // course of one route was counted, and not read, a second time.
        let (read, all) = (arena.snapshot().missing_bytes, row.misses * EXPERT_BYTES * 3 / 2);
        assert!(read > row.misses * EXPERT_BYTES * 9 / 10 && read <= all, "{read} of {all}");
    }
}

#[test]
fn direct_reads_bring_the_same_bytes_and_counts() {
    let (_dir, pool) = write();
    let trace = olmoe();
    let Some(arena) = open(&pool, &config(512, PolicyKind::Lru, ArenaReads::Direct)) else {
        return;
    };
    assert!(arena.tier().evict(None).is_ok());
    let cached = arena.tier().residency(None).unwrap().resident_bytes;
    let layers = drive(&arena, &trace);
    assert_counts("direct", &layers, &simulated(&trace, PolicyKind::Lru, 512, Pins::Pass));
    let left = arena.tier().residency(None).unwrap().resident_bytes;
    assert!(left <= cached, "{left} bytes in the page cache, {cached} before");
    assert!(arena.read_channel().starts_with("lru of 512 in buffers, o-direct"));
}

#[test]
fn every_policy_that_can_run_counts_what_is_simulated() {
    let (_dir, pool) = write();
    let trace = olmoe();
    for policy in PolicyKind::ALL {
        let config = config(128, policy, ArenaReads::Copies);
        if !policy.is_online() {
            let error = Arena::open(pool.clone(), &config).unwrap_err();
            assert_eq!(error.kind(), "usage", "{policy}");
            continue;
        }
        let layers = drive(&Arena::open(pool.clone(), &config).unwrap(), &trace);
        let row = simulated(&trace, policy, 128, Pins::Pass);
        assert_counts(&policy.to_string(), &layers, &row);
    }
}

#[test]
fn the_pinned_arena_counts_what_the_oracle_is_simulated_to() {
    let (_dir, pool) = write();
    let trace = olmoe();
    let replay = Replay::of(&trace, Window::COLD).unwrap();
    for places in [0, 128, 512] {
        let experts = hottest(&replay.scored, places);
        assert_eq!(experts.len(), places);
        let config = config(0, PolicyKind::Lru, ArenaReads::Copies);
        let arena = match Arena::pinned(pool.clone(), &experts, &config) {
            Ok(arena) => arena,
            Err(error) if error.kind() == "limit" => {
                println!("SKIPPED {places} pinned: {error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(arena.snapshot(), Snapshot::default(), "filling it counts nothing");
        let locked = locked_bytes();
        assert!(arena.locked_bytes() >= places as u64 * EXPERT_BYTES);
        assert!(locked >= arena.locked_bytes(), "{locked} bytes locked");
        let layers = drive(&arena, &trace);
        let row = simulated(&trace, PolicyKind::OracleStatic, places, Pins::Pass);
        assert_counts(&format!("{places} pinned"), &layers, &row);
        assert_eq!(arena.kept(), places);
    }
    let foreign = [ExpertId::new(0, 64)];
    let error = Arena::pinned(pool, &foreign, &ArenaConfig::default()).unwrap_err();
    assert_eq!(error.kind(), "config-inconsistent");
}

/// `VmLck` of this process.
fn locked_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}
