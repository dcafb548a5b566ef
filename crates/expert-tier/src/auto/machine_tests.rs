use super::*;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;
/// Twice the memory that files can have.
const POOL: u64 = 16 * GIB;
const ROOM: MemoryState =
    MemoryState { room_bytes: Some(8 * GIB), pressure: None, refaults_per_s: None };

/// What reads cost, and what is found.
#[derive(Clone, Copy, Debug)]
struct World {
    /// Nanoseconds a byte through the page cache, and past it.
    through: f64,
    past: f64,
    /// Share of the bytes used that is missing: admitted, and past the cache.
    miss_admitted: f64,
    miss_past: f64,
    memory: MemoryState,
}

impl World {
    fn new(through: f64, past: f64, miss_admitted: f64) -> Self {
        Self { through, past, miss_admitted, miss_past: 1.0, memory: ROOM }
    }

    /// One window as a tier would see it, with a trial where the machine gives time for one.
    fn play(&self, machine: &mut AutoAdmission) -> Admission {
        machine.tell_memory(self.memory);
        let missing = machine.window_bytes();
        let (cost, share) = match machine.mode() {
            Admission::Admit => (self.through, self.miss_admitted),
            _ => (self.past, self.miss_past),
        };
        let mut window = AdmissionWindow {
            adopted_bytes: (missing as f64 / share) as u64,
            missing_bytes: missing,
            wait_ns: (missing as f64 * cost) as u64,
            trial: None,
            memory: self.memory,
        };
        if let Some(most_ns) = machine.trial_ns(&window) {
            let bytes = AutoConfig::default().trial_bytes;
            let past_ns = (bytes as f64 * self.past) as u64;
            let past_ns = past_ns.min(most_ns);
            window.trial = Some(AdmissionTrial {
                past_bytes: (past_ns as f64 / self.past) as u64,
                past_ns,
                through_bytes: bytes,
                through_ns: (bytes as f64 * self.through) as u64,
                cost_ns: past_ns,
            });
        }
        machine.observe(&window)
    }
}

fn machine() -> AutoAdmission {
    AutoAdmission::new(AutoConfig::default(), POOL).unwrap()
}

/// One that has changed over when admission cost `admit` nanoseconds a byte used.
fn past(admit: f64) -> AutoAdmission {
    let mut machine = machine();
    machine.admit_ns_per_byte = Some(admit);
    machine.phase = Phase::Direct { windows: 0, lost: 0 };
    machine
}

/// Windows until the mode is `wanted`, at most `most`.
fn windows_until(
    machine: &mut AutoAdmission,
    world: &World,
    wanted: Admission,
    most: usize,
) -> Option<usize> {
    (1..=most).find(|_| world.play(machine) == wanted)
}

/// Random walk of costs; the ratio past / admitted, each a byte used, stays between the margins.
fn inside_the_band() -> impl Strategy<Value = Vec<World>> {
    let config = AutoConfig::default();
    let low = 1.0 - config.enter_margin + 0.002;
    let high = 1.0 / (1.0 - config.leave_margin) - 0.002;
    let one = (low..high, 0.2_f64..1.0).prop_map(|(ratio, miss)| {
        // The admitted cost is the same throughout: what an earlier window measured is compared.
        let admitted = 0.3;
        World::new(admitted / miss, admitted * ratio, miss)
    });
    proptest::collection::vec(one, 1..1500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn costs_within_the_margins_change_nothing(worlds in inside_the_band(), begins_past: bool) {
        let mut machine = if begins_past { past(0.3) } else { machine() };
        for world in &worlds {
            world.play(&mut machine);
        }
        let counts = machine.counts();
        prop_assert_eq!(counts.switches, 0, "{}", machine.why());
        // Looked at after 32, 64, 128 ... windows, for eight each.
        let looks = (worlds.len() as f64 / 32.0 + 1.0).log2().ceil() as u64 + 1;
        prop_assert!(counts.rechecks <= looks, "{} looks in {} windows", counts.rechecks, worlds.len());
        prop_assert_eq!(counts.rechecks > 0, begins_past && worlds.len() >= 32);
    }

    /// Whatever the costs do: each change is held twice as long as the one before.
    #[test]
    fn even_wild_costs_change_it_ever_more_rarely(
        costs in proptest::collection::vec((0.05_f64..5.0, 0.05_f64..5.0, 0.21_f64..1.0), 2000),
        rooms in proptest::collection::vec(1_u64..15, 2000),
    ) {
        let mut machine = machine();
        for (&(through, past, miss), room) in costs.iter().zip(rooms) {
            let memory = MemoryState { room_bytes: Some(room * GIB), ..ROOM };
            World { memory, ..World::new(through, past, miss) }.play(&mut machine);
        }
        // Pairs of changes after at least 32, 64, 128 ... windows: seven fit into 2000.
        let counts = machine.counts();
        prop_assert!(counts.switches <= 2 * 7, "{} changes", counts.switches);
    }

    #[test]
    fn a_clearly_cheaper_way_is_found_in_time(
        through in 0.1_f64..3.0,
        ratio in 0.3_f64..0.85,
        miss in 0.21_f64..1.0,
    ) {
        let config = AutoConfig::default();
        // Past is `ratio` of admitted, a byte used.
        let world = World::new(through, through * miss * ratio, miss);
        let mut fresh = machine();
        fresh.tell_memory(ROOM);
        let fresh_window = fresh.window_bytes();
        // What a trial reads must be paid for by the demand, each time.
        let paid = 1.5 * config.trial_bytes as f64 / config.trial_share;
        let pause = (paid / fresh_window as f64).ceil() as u32;
        let most = (TURNOVER.max(pause) + config.agreeing * pause + 1) as usize;
        let taken = windows_until(&mut fresh, &world, Admission::Direct, most);
        prop_assert!(taken.is_some(), "{}", fresh.why());
        prop_assert_eq!(fresh.counts().switches, 1);

        // And the other way round: admission costs `ratio` of what unbuffered reads do.
        let mut machine = past(through);
        let world = World::new(through, through * miss / ratio, miss);
        let most = (config.hold_windows + config.agreeing + 1) as usize;
        for _ in 0..most {
            world.play(&mut machine);
        }
        prop_assert_eq!((machine.mode(), machine.counts().switches), (Admission::Admit, 1));
    }

    #[test]
    fn trials_take_no_more_than_their_share(
        worlds in proptest::collection::vec((0.05_f64..5.0, 0.05_f64..5.0, 0.21_f64..1.0), 1..500),
    ) {
        let mut machine = machine();
        for (through, past, miss) in worlds {
            World::new(through, past, miss).play(&mut machine);
            let counts = machine.counts();
            // A trial's own time is part of the demand that it is measured against.
            let allowed = AutoConfig::default().trial_share * counts.demand_ns as f64;
            prop_assert!(counts.trial_ns as f64 <= allowed, "{counts:?}");
        }
    }
}

#[test]
fn a_pool_that_fits_is_admitted_untried_and_said_so() {
    let memory = MemoryState { room_bytes: Some(POOL), ..ROOM };
    let world = World { memory, ..World::new(1.0, 0.1, 1.0) };
    let mut machine = machine();
    for _ in 0..100 {
        assert_eq!(world.play(&mut machine), Admission::Admit);
    }
    assert_eq!((machine.counts().trials, machine.counts().switches), (0, 0));
    assert!(machine.why().contains("16384 MiB fit into the 16384 MiB"), "{}", machine.why());
    // With less memory it is tried, and changed over; with enough again, at once back.
    let small = World { memory: ROOM, ..world };
    assert!(windows_until(&mut machine, &small, Admission::Direct, 40).is_some());
    let large = MemoryState { room_bytes: Some(POOL + POOL / 16), ..ROOM };
    assert_eq!(World { memory: large, ..world }.play(&mut machine), Admission::Admit);
    assert!(machine.why().contains("fit into"), "{}", machine.why());
}

#[test]
fn almost_no_misses_are_not_tried_and_a_cache_that_fills_is_not_either() {
    let mut machine = machine();
    let warm = World::new(1.0, 0.01, 0.19);
    for _ in 0..100 {
        warm.play(&mut machine);
    }
    assert_eq!(machine.counts().trials, 0);
    let mut machine = self::machine();
    let filling = World::new(1.0, 0.5, 1.0);
    for _ in 0..TURNOVER {
        filling.play(&mut machine);
    }
    assert_eq!(machine.counts().trials, 0, "first uses are missing whatever is done with them");
    for _ in 0..TURNOVER {
        filling.play(&mut machine);
    }
    assert!(machine.counts().trials > 0, "by now it is full, and a trial can be paid for");
}

#[test]
fn losing_trials_become_rare_until_memory_changes() {
    let mut machine = machine();
    let world = World::new(1.0, 1.0, 0.4);
    for _ in 0..1000 {
        world.play(&mut machine);
    }
    // After 8 windows, then pauses of 1, 2, 4 ... 512.
    let trials = machine.counts().trials;
    assert!((8..=11).contains(&trials), "{trials}");
    for word in ["admits: waiting", "0.400 ns admitted", "1.000 ns read past", "40 %"] {
        assert!(machine.why().contains(word), "no {word:?} in {}", machine.why());
    }
    let less = MemoryState { room_bytes: Some(4 * GIB), ..ROOM };
    for _ in 0..TURNOVER + 2 {
        World { memory: less, ..world }.play(&mut machine);
    }
    assert_eq!(machine.counts().trials, trials + 1);
}

#[test]
fn changed_memory_has_admission_tried_again_and_a_failed_look_waits_longer() {
    let mut machine = past(0.9);
    let world = World::new(1.0, 0.5, 0.9);
    let looks = |machine: &AutoAdmission| machine.counts().rechecks;
    for _ in 0..31 {
        world.play(&mut machine);
    }
    assert_eq!((looks(&machine), machine.mode()), (0, Admission::Direct));
    world.play(&mut machine);
    assert_eq!((looks(&machine), machine.mode()), (1, Admission::Admit));
    assert!(machine.why().contains("32 windows are over"), "{}", machine.why());
    for _ in 0..TURNOVER {
        world.play(&mut machine);
    }
    assert_eq!(machine.mode(), Admission::Direct, "it still costs more");
    assert!(machine.why().starts_with("reads past the page cache: "), "{}", machine.why());
    for _ in 0..40 {
        world.play(&mut machine);
    }
    assert_eq!(looks(&machine), 1, "twice as long");
    // More memory, and with it more that is found.
    let memory = MemoryState { room_bytes: Some(12 * GIB), ..ROOM };
    let world = World { memory, ..World::new(1.0, 0.5, 0.3) };
    assert_eq!(world.play(&mut machine), Admission::Admit);
    assert!(machine.why().contains("8192 to 12288 MiB"), "{}", machine.why());
    for _ in 0..TURNOVER {
        world.play(&mut machine);
    }
    assert_eq!((machine.mode(), machine.counts().switches), (Admission::Admit, 1));
}

#[test]
fn unbuffered_reads_that_turn_out_dear_are_looked_at_before_their_time() {
    let mut machine = past(0.5);
    machine.hold = 1024;
    let world = World::new(1.0, 1.0, 0.5);
    // Not before a quarter of the time that the last change is held.
    assert_eq!(windows_until(&mut machine, &world, Admission::Admit, 1000), Some(256));
    assert!(machine.why().contains("cost more than admission did"), "{}", machine.why());
}

#[test]
fn what_cannot_be_had_is_never_tried() {
    let mut machine = machine();
    machine.disable("no O_DIRECT".to_owned());
    for _ in 0..100 {
        assert_eq!(World::new(1.0, 0.1, 1.0).play(&mut machine), Admission::Admit);
    }
    assert_eq!(machine.counts().trials, 0);
    assert!(machine.why().contains("no O_DIRECT"), "{}", machine.why());
}

/// A pool that is read in a circle: recency keeps nothing that is used again, whatever is read
/// past the cache leaves what is in it alone.
#[test]
fn a_circle_larger_than_memory_is_read_past_the_cache() {
    let mut machine = machine();
    let world = World { miss_past: 0.5, ..World::new(0.5, 0.4, 1.0) };
    assert!(windows_until(&mut machine, &world, Admission::Direct, 40).is_some());
    for _ in 0..1000 {
        world.play(&mut machine);
    }
    assert_eq!((machine.mode(), machine.counts().switches), (Admission::Direct, 1));
    assert!((machine.direct_ns_per_byte().unwrap() - 0.2).abs() < 1e-3);
    assert!((machine.admit_ns_per_byte().unwrap() - 0.5).abs() < 1e-3);
}

#[test]
fn a_config_out_of_its_limits_is_named() {
    let good = AutoConfig::default();
    for (config, name) in [
        (AutoConfig { trial_share: 1.5, ..good }, "trial_share"),
        (AutoConfig { enter_margin: f64::NAN, ..good }, "enter_margin"),
        (AutoConfig { leave_margin: -0.1, ..good }, "leave_margin"),
        (AutoConfig { least_miss_share: 2.0, ..good }, "least_miss_share"),
        (AutoConfig { agreeing: 0, ..good }, "agreeing"),
        (AutoConfig { hold_windows: 0, ..good }, "hold_windows"),
        (AutoConfig { most_hold_windows: 1, ..good }, "most_hold_windows"),
    ] {
        let error = AutoAdmission::new(config, POOL).unwrap_err();
        assert_eq!(error.kind(), "limit");
        assert!(error.to_string().contains(name), "{error}");
    }
}
