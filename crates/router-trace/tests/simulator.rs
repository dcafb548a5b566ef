//! The simulator against a naive recount, and against an arena that really moves experts.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

#[path = "common/public_traces.rs"]
mod public_traces;

use proptest::prelude::*;
use public_traces::{kimi_linear, olmoe};
use router_trace::policy::{Decision, Keeper, Key, Lru, PolicyKind};
use router_trace::simulate::{
    Allocation, Budget, Count, HitCurve, Meter, Pins, Plan, Replay, Row, Simulation, StackOrder,
    Window, play, simulate,
};
use router_trace::{Accesses, DemandModel, ExpertId, ModelShape, Route};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const SHAPE: (u16, u16) = (3, 6);

fn shape() -> ModelShape {
    ModelShape { moe_layers: vec![2, 3, 7], n_experts: SHAPE.1, top_k: 2 }
}

/// Traces of a few iterations whose passes may be empty, repeated or of any width.
fn traces() -> impl Strategy<Value = Accesses> {
    let pass = (0..SHAPE.0, prop::collection::vec(0..SHAPE.1, 0..5));
    let iteration = prop::collection::vec(pass, 0..6);
    prop::collection::vec(iteration, 1..30).prop_map(|iterations| {
        let keys = |(slot, experts): (u16, Vec<u16>)| {
            (slot, experts.iter().map(|&e| Key::from(slot * SHAPE.1 + e)).collect())
        };
        let iterations: Vec<Vec<_>> =
            iterations.into_iter().map(|passes| passes.into_iter().map(keys).collect()).collect();
        Accesses::from_keys(&shape(), Some(7), iterations.iter().map(Vec::as_slice)).unwrap()
    })
}

fn one(
    replay: &Replay<'_>,
    policy: PolicyKind,
    capacity: u64,
    allocation: Allocation,
) -> Simulation {
    let plan = Plan {
        policies: vec![policy],
        budgets: vec![Budget::Experts(capacity)],
        allocations: vec![allocation],
        pins: Pins::None,
    };
    simulate(replay, &plan, |_| {}).unwrap()
}

/// LRU over a plain list, counting what it counts.
fn recount(
    replay: &Replay<'_>,
    capacity: impl Fn(u16) -> usize,
    pool_of: impl Fn(u16) -> u16,
) -> Vec<Count> {
    let mut pools: BTreeMap<u16, VecDeque<Key>> = BTreeMap::new();
    let mut counts = vec![Count::default(); usize::from(SHAPE.0)];
    let warm = replay.warm.passes().map(|pass| (pass, false));
    for ((slot, keys), scored) in warm.chain(replay.scored.passes().map(|pass| (pass, true))) {
        for &key in keys {
            let pool = pools.entry(pool_of(slot)).or_default();
            let hit = pool.contains(&key);
            pool.retain(|&kept| kept != key);
            pool.push_back(key);
            while pool.len() > capacity(slot) {
                pool.pop_front();
            }
            let count = &mut counts[usize::from(slot)];
            count.accesses += u64::from(scored);
            count.hits += u64::from(scored && hit);
        }
    }
    counts
}

fn layer_counts(row: &Row) -> Vec<Count> {
    assert_eq!(row.layers.iter().map(|layer| layer.layer).collect::<Vec<_>>(), [2, 3, 7]);
    let sum =
        |part: fn(Count) -> u64| row.layers.iter().map(|layer| part(layer.count)).sum::<u64>();
    assert_eq!(sum(|count| count.accesses), row.count.accesses);
    assert_eq!(sum(|count| count.hits), row.count.hits);
    assert_eq!(row.misses, row.count.accesses - row.count.hits);
    assert_eq!(row.miss_bytes, Some(7 * row.misses));
    row.layers.iter().map(|layer| layer.count).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn counts_are_a_recount(trace in traces(), warm in 0u8..100, capacity in 0usize..20) {
        let window = Window::new(warm, 100 - warm).unwrap();
        let Ok(replay) = Replay::of(&trace, window) else {
            let scored = window.split(trace.n_iterations()).1;
            prop_assert!(trace.keys_in(scored).is_empty());
            return Ok(());
        };
        let global = one(&replay, PolicyKind::Lru, capacity as u64, Allocation::Global);
        let expected = recount(&replay, |_| capacity, |_| 0);
        prop_assert_eq!(layer_counts(&global.rows[0]), expected);
        let split = one(&replay, PolicyKind::Lru, capacity as u64, Allocation::PerLayer);
        let part = |slot: u16| capacity / 3 + usize::from(usize::from(slot) < capacity % 3);
        let expected = recount(&replay, part, |slot| slot);
        prop_assert_eq!(layer_counts(&split.rows[0]), expected);

        let set = |keys: &[Key]| keys.iter().copied().collect::<BTreeSet<Key>>();
        let (warm, scored) = (set(replay.warm.keys()), set(replay.scored.keys()));
        prop_assert_eq!(global.distinct_experts, scored.len() as u64);
        prop_assert_eq!(global.compulsory_misses, scored.difference(&warm).count() as u64);
        prop_assert_eq!(global.accesses, replay.scored.keys().len() as u64);
        let all = global.rows[0].budget_percent;
        prop_assert!((all - 100.0 * capacity as f64 / 18.0).abs() < 1e-9);
        // A stream that is never in memory counts the same.
        let mut meter = Meter::new(Lru::new(capacity, 18), 3, Pins::None);
        replay.warm.passes().for_each(|(_, keys)| meter.warm(keys));
        replay.scored.passes().for_each(|(slot, keys)| meter.score(slot, keys));
        prop_assert_eq!(meter.total(), global.rows[0].count);
    }

    /// No table beats the one trained on what is scored.
    #[test]
    fn hindsight_is_the_best_table(trace in traces(), capacity in 0u64..20) {
        let Ok(replay) = Replay::of(&trace, Window::default()) else { return Ok(()) };
        for allocation in [Allocation::Global, Allocation::PerLayer] {
            let hits = |policy| one(&replay, policy, capacity, allocation).rows[0].count.hits;
            prop_assert!(hits(PolicyKind::OracleStatic) >= hits(PolicyKind::Static));
        }
    }

    /// One pass gives what a simulation at each capacity gives.
    #[test]
    fn curves_are_the_simulations(trace in traces(), warm in 0u8..100) {
        let window = Window::new(warm, 100 - warm).unwrap();
        let Ok(replay) = Replay::of(&trace, window) else { return Ok(()) };
        let curves = [
            (PolicyKind::Lru, HitCurve::of_lru(&replay)),
            (PolicyKind::Belady, HitCurve::of_stack(&replay, StackOrder::Belady)),
            (PolicyKind::GhostLfu, HitCurve::of_stack(&replay, StackOrder::GhostLfu)),
        ];
        for (policy, curve) in curves {
            let most = curve.hits(18);
            for capacity in 0..20 {
                let simulated = one(&replay, policy, capacity as u64, Allocation::Global);
                let hits = simulated.rows[0].count.hits;
                prop_assert_eq!(curve.hits(capacity), hits, "{} of {}", policy, capacity);
                let enough = curve.capacity_for(curve.hit_rate(capacity)).unwrap();
                prop_assert!(enough <= capacity && curve.hits(enough) == hits);
            }
            prop_assert!(curve.capacity_for(1.1).is_none());
            prop_assert_eq!(curve.hits(9999), most);
        }
    }

    /// A pass that fits is decided by LRU the same, pinned or not.
    #[test]
    fn pins_do_not_change_lru_where_passes_fit(trace in traces(), capacity in 5usize..20) {
        let Ok(replay) = Replay::of(&trace, Window::COLD) else { return Ok(()) };
        let run = |pins| play(&replay, Lru::new(capacity, 18), pins).total();
        prop_assert_eq!(run(Pins::Pass), run(Pins::None));
    }
}

/// An arena of slots as a tier would have it: experts lie in slots, an eviction frees the
/// victim's slot, and a hit is an expert that is found in one.
struct Arena {
    keeper: Keeper,
    slots: Vec<Option<ExpertId>>,
    count: Count,
}

impl Arena {
    fn adopt(&mut self, route: &Route) {
        let mut leased = Vec::new();
        for id in route.ids() {
            let lies_here = self.slots.contains(&Some(id));
            self.count.accesses += 1;
            self.count.hits += u64::from(lies_here);
            match self.keeper.access(id, &leased).unwrap() {
                Decision::Hit => assert!(lies_here),
                Decision::Admit { evicted } => {
                    assert!(!lies_here && evicted.is_none_or(|victim| !leased.contains(&victim)));
                    let slot = self.slots.iter().position(|&slot| slot == evicted).unwrap();
                    self.slots[slot] = Some(id);
                }
                Decision::Bypass => panic!("a route fits"),
            }
            leased.push(id);
        }
    }
}

#[test]
fn an_arena_driven_by_a_trace_counts_what_the_simulator_counts() {
    for (trace, budgets) in [
        (olmoe(), [8, 61, 128, 200, 256, 512, 1024]),
        (kimi_linear(), [8, 199, 300, 399, 832, 1664, 6656]),
    ] {
        let space = trace.key_space();
        let replay = Replay::of(&trace, Window::COLD).unwrap();
        let plan = Plan {
            policies: PolicyKind::ALL.into_iter().filter(|p| p.is_online()).collect(),
            budgets: budgets.map(Budget::Experts).to_vec(),
            pins: Pins::Pass,
            ..Plan::default()
        };
        let rows = simulate(&replay, &plan, |_| {}).unwrap().rows;
        let rows = rows.iter().filter(|row| row.policy != PolicyKind::Never);
        for row in rows.filter(|row| row.policy == PolicyKind::Lru || row.budget_experts < 200) {
            let capacity = row.budget_experts as usize;
            let keeper = Keeper::new(space.shape(), row.policy, capacity).unwrap();
            let mut arena = Arena { keeper, slots: vec![None; capacity], count: Count::default() };
            for (slot, keys) in trace.passes_in(0..trace.n_iterations()) {
                let experts: Vec<u16> = keys.iter().map(|&k| space.id(k).unwrap().index).collect();
                arena.adopt(
                    &Route::new(space.shape().moe_layers[usize::from(slot)], &experts).unwrap(),
                );
            }
            assert_eq!(arena.count, row.count, "{} of {capacity}", row.policy);
            if row.policy == PolicyKind::Lru {
                let unpinned = one(&replay, row.policy, row.budget_experts, Allocation::Global);
                assert_eq!(unpinned.rows[0].count, row.count);
            }
        }
    }
}

/// The live demand model is the simulated LRU at every budget.
#[test]
fn the_demand_model_is_the_simulated_lru() {
    let trace = olmoe();
    let (space, bytes) = (trace.key_space(), trace.expert_bytes().unwrap());
    let replay = Replay::of(&trace, Window::COLD).unwrap();
    for experts in [61, 128, 256, 512] {
        let row = &one(&replay, PolicyKind::Lru, experts, Allocation::Global).rows[0];
        let mut demand =
            DemandModel::new(space.shape(), bytes, experts * bytes + bytes / 2).unwrap();
        for iteration in 0..trace.n_iterations() {
            for (slot, keys) in trace.passes_in(iteration..iteration + 1) {
                let experts: Vec<u16> = keys.iter().map(|&k| space.id(k).unwrap().index).collect();
                demand.observe(&Route::new(slot, &experts).unwrap()).unwrap();
            }
            demand.end_iteration();
        }
        let count = demand.count();
        assert_eq!((count.misses, Some(count.miss_bytes)), (row.misses, row.miss_bytes));
        assert_eq!(Some(count.miss_bytes_per_iteration()), row.miss_bytes_per_iteration);
    }
}

/// At a budget below one token's experts frequency wins, at larger ones recency, and per
/// cent of the gap to Belady is left: on both public traces, in fair windows.
#[test]
fn small_budgets_invert_the_order_of_recency_and_frequency() {
    for (trace, small, large) in [(olmoe(), 61, 256), (kimi_linear(), 199, 832)] {
        let replay = Replay::of(&trace, Window::default()).unwrap();
        let rate =
            |policy, budget| one(&replay, policy, budget, Allocation::Global).rows[0].hit_rate;
        assert!(rate(PolicyKind::Lru, small) < 0.01);
        assert!(rate(PolicyKind::GhostLfu, small) > 0.2);
        assert!(rate(PolicyKind::Static, small) > 0.15);
        assert!(rate(PolicyKind::Lru, large) > rate(PolicyKind::Static, large));
        assert!(rate(PolicyKind::Belady, large) > rate(PolicyKind::Lru, large) + 0.15);
    }
}

#[test]
fn domain_shift_trains_and_warms_where_it_says() {
    // Layer 2 only. Before: experts 0 and 1 in turn. After: 2 and 3 in turn.
    let turns = |first: Key| {
        let tokens: Vec<_> = (0..10).map(|token| vec![(0, vec![first + token % 2])]).collect();
        Accesses::from_keys(&shape(), None, tokens.iter().map(Vec::as_slice)).unwrap()
    };
    let (before, after) = (turns(0), turns(2));
    let hits =
        |replay: &Replay<'_>, policy| one(replay, policy, 2, Allocation::Global).rows[0].count.hits;
    let own = Replay::of(&after, Window::default()).unwrap();
    assert_eq!((hits(&own, PolicyKind::Static), hits(&own, PolicyKind::Lru)), (4, 4));
    let table = Replay::foreign_table(&before, &after, Window::default()).unwrap();
    assert_eq!((hits(&table, PolicyKind::Static), hits(&table, PolicyKind::Lru)), (0, 4));
    let shift = Replay::shift(&before, &after, Window::default()).unwrap();
    assert_eq!((hits(&shift, PolicyKind::Static), hits(&shift, PolicyKind::Lru)), (0, 2));
    assert_eq!(hits(&shift, PolicyKind::OracleStatic), 4);
    assert_eq!(one(&shift, PolicyKind::Lru, 2, Allocation::Global).compulsory_misses, 2);

    let other = ModelShape { moe_layers: vec![2, 3], n_experts: 6, top_k: 2 };
    let other = Accesses::from_keys(&other, None, [&[(0, vec![0])][..]]).unwrap();
    assert_eq!(Replay::shift(&other, &after, Window::COLD).unwrap_err().kind(), "usage");
    let scan = before.with_one_off_reads(0.5).unwrap();
    assert!(Replay::shift(&scan, &after, Window::COLD).is_err());
    assert!(Replay::of(&scan, Window::COLD).is_ok());
}

/// Split by layer, the objects of a scan belong to the layer that they were read behind.
#[test]
fn scenarios_run_in_both_allocations() {
    let trace = olmoe();
    let scan = trace.with_one_off_reads(0.2).unwrap();
    let prefill = trace.with_prefills(60, 0.9, 3).unwrap();
    for trace in [&scan, &prefill] {
        let replay = Replay::of(trace, Window::default()).unwrap();
        let plan =
            Plan { allocations: vec![Allocation::Global, Allocation::PerLayer], ..Plan::default() };
        let result = simulate(&replay, &plan, |_| {}).unwrap();
        assert_eq!(result.rows.len(), 2 * PolicyKind::ALL.len());
        for row in &result.rows {
            assert_eq!(row.count.accesses, result.accesses);
        }
        for allocation in plan.allocations {
            let rows = || result.rows.iter().filter(move |row| row.allocation == allocation);
            let belady = rows().find(|row| row.policy == PolicyKind::Belady).unwrap().count.hits;
            let lru = rows().find(|row| row.policy == PolicyKind::Lru).unwrap().count.hits;
            assert!(lru < belady);
        }
    }
    let share = |trace: &Accesses| {
        let replay = Replay::of(trace, Window::COLD).unwrap();
        one(&replay, PolicyKind::BeladyBypass, 9999, Allocation::Global).rows[0].hit_rate
    };
    assert!(share(&scan) < 0.8 && share(&trace) > 0.95);
}

#[test]
fn results_are_plain_data() {
    let trace = olmoe();
    let replay = Replay::of(&trace, Window::default()).unwrap();
    let plan: Plan = serde_json::from_str(
        r#"{"policies": ["lru", "cast:7"], "budgets": ["10%", "8/layer", "128MB"],
            "allocations": ["global", "per-layer"]}"#,
    )
    .unwrap();
    let mut shown = 0;
    let result = simulate(&replay, &plan, |_| shown += 1).unwrap();
    assert_eq!((shown, result.rows.len()), (12, 12));
    let budgets: Vec<_> = result.rows.iter().map(|row| row.budget_experts).collect();
    assert_eq!(budgets[..6], [102, 102, 128, 128, 128, 128]);
    let json = serde_json::to_string(&result).unwrap();
    // Numbers that are not whole may lose their last digit in text, so rows are compared by
    // what they counted.
    let again: Simulation = serde_json::from_str(&json).unwrap();
    let counted = |row: &Row| {
        let layers: Vec<_> = row.layers.iter().map(|l| (l.layer, l.count)).collect();
        (row.policy, row.allocation, row.budget, row.miss_bytes, row.count, layers)
    };
    assert!(again.rows.iter().map(counted).eq(result.rows.iter().map(counted)));
    assert_eq!(again.distinct_experts, result.distinct_experts);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["rows"][0]["policy"], "lru");
    assert_eq!(value["rows"][0]["hits"], result.rows[0].count.hits);
    assert_eq!(value["rows"][0]["layers"][15]["layer"], 15);
}

proptest! {
    /// Settings come from the command line: any text is read or refused, and what was read
    /// says itself again.
    #[test]
    fn settings_never_panic(
        text in prop_oneof![
            ".*",
            "[a-z0-9:,./%-]{0,12}",
            "(lrfu|cast):[0-9,c]{0,9}",
            "[0-9.]{1,25}(GB|TiB|%|/layer)",
        ],
    ) {
        if let Ok(policy) = text.parse::<PolicyKind>() {
            prop_assert_eq!(policy.to_string().parse::<PolicyKind>().unwrap(), policy);
        }
        if let Ok(budget) = text.parse::<Budget>() {
            prop_assert_eq!(budget.to_string().parse::<Budget>().unwrap(), budget);
        }
        if let Ok(window) = text.parse::<Window>() {
            prop_assert_eq!(window.to_string().parse::<Window>().unwrap(), window);
            let (warm, scored) = window.split(usize::MAX);
            prop_assert!(warm.start == 0 && warm.end == scored.start && scored.start < scored.end);
        }
    }
}
