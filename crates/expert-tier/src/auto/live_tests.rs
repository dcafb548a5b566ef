use super::*;
use crate::observe::fixture::tree;

const EXPERT: u64 = 1 << 20;

fn delta(ns: u64) -> Snapshot {
    let mut delta =
        Snapshot { adoptions: 1, missing_bytes: EXPERT, fill_ns: ns, ..Snapshot::default() };
    delta.count(EXPERT, false);
    delta
}

/// Small windows, and trials at once.
fn keen() -> AutoConfig {
    AutoConfig {
        trial_share: 1.0,
        trial_bytes: 2 * EXPERT,
        trial_routes: 2,
        least_window_bytes: 4 * EXPERT,
        hold_windows: 2,
        most_hold_windows: 8,
        ..AutoConfig::default()
    }
}

/// Adopts one expert after the other, all missing; those that would be read past the cache are
/// counted as such if `reader` can be had.
fn notes(auto: &Arc<Auto>, count: usize, refused: &str) -> usize {
    let admits = AtomicBool::new(true);
    let mut opened = 0;
    let before = auto.live.lock().adopted_before;
    for step in 1..=count as u64 {
        let lane = auto.lane();
        let ns = if lane.is_past() { 100_000 } else { 1_000_000 };
        auto.note(
            lane,
            &delta(ns),
            before + step * EXPERT,
            &admits,
            |job| job(),
            || {
                opened += 1;
                Err(refused.to_owned())
            },
        );
    }
    opened
}

#[test]
fn a_reader_that_cannot_be_had_is_asked_for_once_and_everything_admitted() {
    let (_dir, root) = tree(&[("proc/meminfo", "MemAvailable: 65536 kB\n")]);
    let auto = Arc::new(Auto::new(keen(), 1 << 30, 0, &root).unwrap());
    assert_eq!(auto.choice().mode, Admission::Admit);
    assert_eq!(notes(&auto, 500, "tmpfs has none"), 1);
    let choice = auto.choice();
    assert!(choice.why.contains("tmpfs has none"), "{choice:?}");
    assert_eq!((choice.mode, choice.trials, choice.switches), (Admission::Admit, 0, 0));
    assert!(choice.windows > 8 && choice.checked_s_ago.is_some());
    assert_eq!(choice.memory.room_bytes, Some(64 << 20));
    assert_eq!(auto.lane(), Lane::Through);
}

#[test]
fn a_pool_that_fits_opens_nothing() {
    let (_dir, root) = tree(&[("proc/meminfo", "MemAvailable: 2097152 kB\n")]);
    let auto = Arc::new(Auto::new(keen(), 1 << 30, 0, &root).unwrap());
    assert_eq!(notes(&auto, 2000, "not asked"), 0);
    assert!(auto.choice().why.contains("fit into"), "{}", auto.choice().why);
}

/// The trial's routes take turns behind one that warms up, and only they leave the window.
#[test]
fn a_trial_takes_turns_and_is_left_out_of_the_window() {
    let (_dir, root) = tree(&[("proc/meminfo", "MemAvailable: 65536 kB\n")]);
    let auto = Arc::new(Auto::new(keen(), 1 << 30, 0, &root).unwrap());
    let mut live = auto.live.lock();
    let done = AdmissionTrial::default();
    live.trial = Some(Running { most_ns: 1 << 40, past_routes: 0, through_routes: 0, done });
    live.memory = None;
    drop(live);
    auto.lanes.store(TRIAL, Ordering::Relaxed);
    let admits = AtomicBool::new(true);
    let mut lanes = Vec::new();
    for step in 1..=5 {
        let lane = auto.lane();
        lanes.push(lane);
        let ns = if lane.is_past() { 3 } else { 5 };
        auto.note(
            lane,
            &delta(ns),
            step * EXPERT,
            &admits,
            |job| job(),
            || Err("not asked".to_owned()),
        );
    }
    use Lane::{Control, Trial, WarmUp};
    assert_eq!(lanes, [WarmUp, Control, Trial, Control, Trial]);
    let live = auto.live.lock();
    assert!(live.trial.is_none(), "both ways have had their routes");
    let wanted = AdmissionTrial {
        past_bytes: 2 * EXPERT,
        past_ns: 6,
        through_bytes: 2 * EXPERT,
        through_ns: 10,
        cost_ns: 9,
    };
    assert_eq!(live.window.trial, Some(wanted));
    let window = &live.window;
    assert_eq!((window.missing_bytes, window.wait_ns), (2 * EXPERT, 10));
    assert_eq!(window.adopted_bytes, 2 * EXPERT);
    drop(live);
    assert_eq!(auto.lane(), Lane::Through);
}

#[test]
fn a_trial_out_of_time_costs_and_says_nothing() {
    let done =
        AdmissionTrial { past_bytes: 7, past_ns: 7, cost_ns: 9, ..AdmissionTrial::default() };
    let running = Running { most_ns: 9, past_routes: 1, through_routes: 1, done };
    assert!(running.is_over(&keen()));
    let told = running.outcome(&keen());
    assert_eq!(told, AdmissionTrial { cost_ns: 9, ..AdmissionTrial::default() });
}
