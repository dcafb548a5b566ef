//! The arm that chooses: what it serves, and that it changes over and back for what it measured.

use crate::checkpoint::{EXPERTS, LAYERS};
use crate::{arm, assert_bytes, checkpoint, evicted, open, open_or_skip};
use expert_tier::observe::SystemRoot;
use expert_tier::{Admission, AutoConfig, FillMethod, Tier, TierConfig};
use router_trace::{ExpertId, Route};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Takes unbuffered reads whatever they cost, as soon as it may: the course of events does not
/// depend on this machine's device.
const EAGER: AutoConfig = AutoConfig {
    trial_share: 1.0,
    trial_bytes: 1,
    trial_routes: 1,
    agreeing: 1,
    enter_margin: -1e9,
    leave_margin: 0.03,
    least_miss_share: 0.0,
    least_window_bytes: 1,
    hold_windows: 8,
    most_hold_windows: 1_000_000,
    refresh: Duration::ZERO,
};

fn machine(dir: &Path, available: u64) -> SystemRoot {
    fs::create_dir_all(dir.join("proc")).unwrap();
    let text = format!("MemTotal: 4194304 kB\nMemAvailable: {} kB\n", available >> 10);
    fs::write(dir.join("proc/meminfo"), text).unwrap();
    SystemRoot::at(dir)
}

/// Cold adoptions, each with its bytes, until `done`; `false` if that never comes.
fn adopt_until(tier: &Tier, done: impl Fn(&Tier) -> bool) -> bool {
    for step in 0..400_u16 {
        if done(tier) {
            return true;
        }
        tier.evict(None).unwrap();
        let first = step % EXPERTS;
        let route = Route::new(step % LAYERS, &[first, (first + 1) % EXPERTS]).unwrap();
        assert_bytes(&tier.adopt(&route).unwrap());
    }
    false
}

fn mode(tier: &Tier) -> Admission {
    tier.admission_choice().unwrap().mode
}

#[test]
fn it_changes_over_says_why_and_leaves_the_page_cache_alone() {
    let dir = checkpoint();
    if open_or_skip(dir.path(), arm(Admission::Direct)).is_none() {
        return;
    }
    let tier = open(dir.path(), arm(Admission::Auto));
    if !evicted(&tier, "auto changes over") {
        return;
    }
    let memory = tempfile::tempdir().unwrap();
    // Little memory, so that windows are as small as a route.
    tier.tune_admission(EAGER, &machine(memory.path(), 64 << 10)).unwrap();
    assert_eq!(mode(&tier), Admission::Admit);
    assert_eq!(tier.read_channel(), "mapping");
    assert!(adopt_until(&tier, |tier| mode(tier) == Admission::Direct));
    let choice = tier.admission_choice().unwrap();
    println!("{choice:?}");
    assert_eq!((choice.trials, choice.switches, choice.rechecks), (1, 1, 0));
    assert!(choice.why.starts_with("reads past the page cache: waiting a byte"), "{choice:?}");
    assert!(choice.admit_ns_per_byte.unwrap() > 0.0 && choice.direct_ns_per_byte.unwrap() > 0.0);
    assert!(tier.read_channel().starts_with("mapping, misses o-direct"), "{}", tier.read_channel());

    // Warm ones are used where they lie, cold ones stay cold.
    let admitted = open(dir.path(), arm(Admission::Admit));
    tier.evict(None).unwrap();
    assert_bytes(&admitted.adopt(&Route::new(0, &[0]).unwrap()).unwrap());
    let cold = [ExpertId::new(0, 4)];
    let resident = || tier.residency(Some(&cold)).unwrap().resident_bytes;
    let before = (tier.snapshot(), resident());
    assert_bytes(&tier.adopt(&Route::new(0, &[0, 4]).unwrap()).unwrap());
    let seen = tier.snapshot() - before.0;
    assert_eq!((seen.warm_experts, seen.cold_experts), (1, 1));
    assert_eq!(resident(), before.1);

    // Memory for all of it: admitted again, and kept.
    drop(admitted);
    machine(memory.path(), 1 << 30);
    assert!(adopt_until(&tier, |tier| mode(tier) == Admission::Admit));
    let choice = tier.admission_choice().unwrap();
    assert!(choice.why.contains("fit into the 1024 MiB"), "{choice:?}");
    assert_eq!(choice.switches, 2);
    tier.evict(None).unwrap();
    let route = Route::new(1, &[2, 3]).unwrap();
    drop(tier.adopt(&route).unwrap());
    let before = tier.snapshot();
    assert_bytes(&tier.adopt(&route).unwrap());
    assert_eq!((tier.snapshot() - before).warm_experts, 2);
}

#[test]
fn more_memory_has_admission_tried_again_for_a_while() {
    let dir = checkpoint();
    if open_or_skip(dir.path(), arm(Admission::Direct)).is_none() {
        return;
    }
    let tier = open(dir.path(), arm(Admission::Auto));
    if !evicted(&tier, "auto looks again") {
        return;
    }
    let memory = tempfile::tempdir().unwrap();
    tier.tune_admission(EAGER, &machine(memory.path(), 64 << 10)).unwrap();
    assert!(adopt_until(&tier, |tier| mode(tier) == Admission::Direct));
    let looked = |tier: &Tier| tier.admission_choice().unwrap().rechecks > 0;
    assert!(adopt_until(&tier, looked));
    assert_eq!(mode(&tier), Admission::Admit, "{:?}", tier.admission_choice());
    // Bounded: then it decides.
    let windows = tier.admission_choice().unwrap().windows;
    let decided = |tier: &Tier| tier.admission_choice().unwrap().windows >= windows + 8;
    assert!(adopt_until(&tier, decided));
    let choice = tier.admission_choice().unwrap();
    assert!(!choice.why.contains("to see what that costs"), "{choice:?}");
}

#[test]
fn threads_adopt_while_it_changes() {
    let dir = checkpoint();
    let tier = open(dir.path(), arm(Admission::Auto));
    let memory = tempfile::tempdir().unwrap();
    let eager = AutoConfig { hold_windows: 1, most_hold_windows: 1, ..EAGER };
    tier.tune_admission(eager, &machine(memory.path(), 64 << 10)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u16 {
            let tier = &tier;
            scope.spawn(move || {
                for step in 0..60 {
                    tier.evict(None).unwrap();
                    let first = (thread + step) % EXPERTS;
                    let route = Route::new(step % LAYERS, &[first, (first + 1) % EXPERTS]);
                    assert_bytes(&tier.adopt(&route.unwrap()).unwrap());
                }
            });
        }
    });
    let seen = tier.snapshot();
    assert_eq!((seen.adoptions, seen.adopted_experts), (240, 480));
    assert_eq!(seen.warm_experts + seen.cold_experts, 480);
}

#[test]
fn a_failed_read_is_not_counted_whichever_way_it_went() {
    let dir = checkpoint();
    if open_or_skip(dir.path(), arm(Admission::Direct)).is_none() {
        return;
    }
    let tier = open(dir.path(), arm(Admission::Auto));
    if !evicted(&tier, "auto fails") {
        return;
    }
    let memory = tempfile::tempdir().unwrap();
    tier.tune_admission(EAGER, &machine(memory.path(), 64 << 10)).unwrap();
    assert!(adopt_until(&tier, |tier| mode(tier) == Admission::Direct));
    let path = dir.path().join("model.safetensors");
    let last = tier.pool().layout().expert(ExpertId::new(1, 5)).unwrap().extents[0];
    fs::File::options().write(true).open(&path).unwrap().set_len(last.offset + 4096).unwrap();
    let before = (tier.snapshot(), tier.admission_choice().unwrap().windows);
    let error = tier.adopt(&Route::new(1, &[5]).unwrap()).unwrap_err();
    assert_eq!(error.kind(), "io-changed", "{error}");
    assert_eq!((tier.snapshot(), tier.admission_choice().unwrap().windows), before);
}

#[test]
fn where_nothing_can_be_timed_everything_is_admitted() {
    let dir = checkpoint();
    let faults = TierConfig { fill_method: Some(FillMethod::Fault), ..arm(Admission::Auto) };
    let tier = open(dir.path(), faults);
    for _ in 0..2 {
        let choice = tier.admission_choice().unwrap();
        assert!(choice.why.contains("page faults"), "{choice:?}");
        tier.tune_admission(EAGER, &SystemRoot::default()).unwrap();
    }
    assert_eq!(open(dir.path(), arm(Admission::Admit)).admission_choice(), None);
    let wrong = AutoConfig { trial_share: 2.0, ..EAGER };
    assert_eq!(tier.tune_admission(wrong, &SystemRoot::default()).unwrap_err().kind(), "limit");
}
