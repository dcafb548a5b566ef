use super::*;
use crate::plan::Hint;
use proptest::prelude::*;

const WIDTH: u16 = 8;

/// Hints of eight likelihoods that are far apart.
fn plan(layer: u16) -> Plan {
    let mut plan = Plan::new(0, layer);
    let hint = |expert| Hint { expert, probability: 0.97 - f32::from(expert) / 8.0 };
    plan.rank((0..WIDTH).map(hint), MAX_WIDTH);
    plan
}

/// Hints of such a plan that may be given.
fn width(gate: &Gate, layer: u16) -> usize {
    assert_eq!(gate.width(&plan(layer)) > 0, gate.is_open(layer));
    gate.width(&plan(layer))
}

/// One window in which ranks below `right` are chosen, at so much idleness.
fn window(gate: &mut Gate, right: u16, idle: f64) {
    let route: Vec<u16> = (0..right).chain(100..100 + WIDTH - right.min(WIDTH)).collect();
    for _ in 0..gate.config().window {
        gate.observe(&plan(0), &route, ((1.0 - idle) * 1e6) as u64, 1_000_000);
    }
}

#[test]
fn right_hints_at_an_idle_device_are_given_and_only_those_as_likely_as_these() {
    let mut gate = Gate::new(1, GateConfig::default());
    assert_eq!(width(&gate, 0), 0, "nothing is given before it is counted");
    window(&mut gate, 8, 0.9);
    assert_eq!(width(&gate, 0), 8);
    let mut gate = Gate::new(1, GateConfig::default());
    window(&mut gate, 4, 0.9);
    assert_eq!(width(&gate, 0), 4);
    // Of another plan those that are as likely, however many.
    let mut other = Plan::new(3, 0);
    let hint = |expert| Hint { expert, probability: if expert < 20 { 0.6 } else { 0.4 } };
    other.rank((0..30).map(hint), MAX_WIDTH);
    assert_eq!(gate.width(&other), 20);
    let shown = &gate.layers()[0];
    assert_eq!(shown.precision, Some(1.0));
    assert!(shown.least.is_some_and(|least| (0.5..0.6).contains(&least)), "{shown:?}");
    assert!((shown.pays_above - 0.125 / 1.025).abs() < 1e-5, "{shown:?}");
}

#[test]
fn wrong_hints_are_never_given() {
    for idle in [0.0, 0.5, 1.0] {
        let mut gate = Gate::new(1, GateConfig::default());
        for _ in 0..100 {
            window(&mut gate, 0, idle);
            assert_eq!(width(&gate, 0), 0);
        }
        assert_eq!(gate.layers()[0].switched_on, 0);
    }
}

#[test]
fn what_turns_wrong_is_switched_off_within_two_windows_and_tried_again_later() {
    let mut gate = Gate::new(1, GateConfig::default());
    window(&mut gate, 8, 0.6);
    assert_eq!(width(&gate, 0), 8);
    let mut taken = 0;
    while width(&gate, 0) > 0 {
        window(&mut gate, 0, 0.6);
        taken += 1;
    }
    assert!(taken <= 2, "{taken}");
    window(&mut gate, 8, 0.6);
    window(&mut gate, 8, 0.6);
    window(&mut gate, 8, 0.6);
    assert_eq!(width(&gate, 0), 8);
    assert_eq!(gate.layers()[0].switched_on, 2);
}

#[test]
fn a_busy_device_wants_better_hints() {
    let mut gate = Gate::new(1, GateConfig::default());
    // Three of four right at every rank: worth it at leisure, not where each delays a demand.
    let observe = |gate: &mut Gate, turn: u16, waited_ns| {
        let route: Vec<u16> = (0..WIDTH).filter(|expert| expert % 4 != turn % 4).collect();
        gate.observe(&plan(0), &route, waited_ns, 1000);
    };
    (0..8).for_each(|turn| observe(&mut gate, turn, 100));
    assert_eq!(width(&gate, 0), 8);
    (0..8 * 6).for_each(|turn| observe(&mut gate, turn, 1000));
    assert_eq!(width(&gate, 0), 0, "{:?}", gate.layers()[0]);
}

#[test]
fn what_alternates_backs_off() {
    // The predictor is right while nothing is given, and wrong as soon as it is: the worst case.
    let mut gate = Gate::new(1, GateConfig::default());
    let windows = 2000;
    for _ in 0..windows {
        let right = if width(&gate, 0) > 0 { 0 } else { 8 };
        window(&mut gate, right, 0.6);
    }
    let shown = &gate.layers()[0];
    let most = u64::from(windows / GateConfig::default().max_back_off) + 8;
    assert!(shown.switched_on <= most, "{shown:?}");
    assert!(shown.switched_on - shown.switched_off <= 1);
}

#[test]
fn its_state_can_be_seen_and_layers_that_are_not_there_are_off() {
    let mut gate = Gate::new(2, GateConfig::default());
    window(&mut gate, 8, 0.9);
    let text = serde_json::to_string(&gate).unwrap();
    assert_eq!(serde_json::from_str::<Gate>(&text).unwrap(), gate);
    assert!(text.contains("switched_on"));
    gate.observe(&plan(9), &[1], 0, 0);
    assert_eq!((width(&gate, 9), width(&gate, 1)), (0, 0));
}

#[test]
fn settings_out_of_range_are_brought_into_it() {
    let wild = GateConfig {
        window: 0,
        wrong_cost: f64::NAN,
        delay: f64::INFINITY,
        margin: -1.0,
        max_width: usize::MAX,
        max_back_off: 0,
    };
    let gate = Gate::new(1, wild);
    let GateConfig { window, wrong_cost, delay, margin, max_width, max_back_off } = *gate.config();
    assert_eq!((window, max_width, max_back_off), (1, MAX_WIDTH, 1));
    assert_eq!((wrong_cost, delay, margin), (0.1, 0.25, 0.0));
}

/// The falling steps nearest to the counts, by trying all ways to cut the groups into steps.
fn naive_good(tried: &[f64], chosen: &[f64], least: f64) -> usize {
    let ranks = tried.len();
    let share = |from: usize, to: usize| {
        let sum = |of: &[f64]| of[from..to].iter().sum::<f64>();
        sum(chosen) / sum(tried)
    };
    let mut best: Option<(f64, usize)> = None;
    for cuts in 0..1_u32 << (ranks - 1) {
        let ends = (1..=ranks).filter(|&end| end == ranks || cuts & (1 << (end - 1)) != 0);
        let ends: Vec<usize> = ends.collect();
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let steps: Vec<(usize, usize)> = starts.zip(ends.iter().copied()).collect();
        if !steps.windows(2).all(|pair| share(pair[0].0, pair[0].1) > share(pair[1].0, pair[1].1)) {
            continue;
        }
        let error = |&(from, to): &(usize, usize)| {
            let fit = share(from, to);
            (from..to).map(|r| tried[r] * (chosen[r] / tried[r] - fit).powi(2)).sum::<f64>()
        };
        let error: f64 = steps.iter().map(error).sum();
        let good = steps.iter().take_while(|step| share(step.0, step.1) >= least);
        let width = good.last().map_or(0, |step| step.1);
        if best.is_none_or(|(least_error, _)| error < least_error - 1e-12) {
            best = Some((error, width));
        }
    }
    best.map_or(0, |(_, width)| width)
}

proptest! {
    /// The groups are those of the best falling fit there is to the groups that were tried.
    #[test]
    fn good_groups_agree_with_the_naive_twin(
        counts in prop::collection::vec((1_u32..9, 0_u32..9), 1..9),
        places in prop::sample::subsequence((0..GROUPS).collect::<Vec<_>>(), 9),
        least in 0.01_f64..0.99,
    ) {
        let tried: Vec<f64> = counts.iter().map(|&(tried, _)| f64::from(tried)).collect();
        let chosen: Vec<f64> =
            counts.iter().map(|&(tried, chosen)| f64::from(chosen.min(tried))).collect();
        let good = naive_good(&tried, &chosen, least);
        let mut counts = Counts::default();
        for ((&place, tried), chosen) in places.iter().zip(tried).zip(chosen) {
            (counts.tried[place], counts.chosen[place]) = (tried, chosen);
        }
        let wanted = good.checked_sub(1).map_or(0, |last| places[last] + 1);
        prop_assert_eq!(counts.good_groups(least), wanted);
    }

    /// Whatever it sees: a layer that is switched off stays so for its back-off, so that the times
    /// it is switched on are few; widths stay within limits; shares stay shares.
    #[test]
    fn it_never_flaps(
        windows in prop::collection::vec((0_u16..=8, 0.0_f64..=1.0), 1..400),
        margin in 0.0_f64..0.3,
        wrong_cost in 0.0_f64..2.0,
    ) {
        let config = GateConfig { margin, wrong_cost, ..GateConfig::default() };
        let mut gate = Gate::new(1, config);
        let mut off_since = None;
        for (number, &(right, idle)) in windows.iter().enumerate() {
            let before = gate.layers()[0].clone();
            window(&mut gate, right, idle);
            let after = &gate.layers()[0];
            prop_assert!(after.groups <= GROUPS);
            prop_assert_eq!(after.least.is_some(), after.groups > 0);
            prop_assert!(after.precision.is_none_or(|share| (0.0..=1.0).contains(&share)));
            if before.groups > 0 && after.groups == 0 {
                off_since = Some((number, after.off_for));
            }
            if before.groups == 0 && after.groups > 0 && let Some((since, off_for)) = off_since {
                prop_assert!(number - since > off_for as usize, "{since} {number} {off_for}");
            }
        }
        let shown = &gate.layers()[0];
        prop_assert!(shown.switched_on - shown.switched_off <= 1);
    }

    /// However long it was right: once all hints are wrong, it is off within five windows.
    #[test]
    fn all_wrong_is_off_within_five_windows(good in 1_usize..200, idle in 0.0_f64..=0.98) {
        let mut gate = Gate::new(1, GateConfig::default());
        for _ in 0..good {
            window(&mut gate, 8, idle.max(0.3));
        }
        prop_assert_eq!(width(&gate, 0), 8);
        for _ in 0..5 {
            window(&mut gate, 0, idle);
        }
        prop_assert_eq!(width(&gate, 0), 0);
    }
}
