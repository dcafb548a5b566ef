//! The figures that two independent programs computed for the public traces: cold, one
//! global pool, order token → layer → expert.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

#[path = "common/public_traces.rs"]
mod public_traces;

use public_traces::{kimi_linear, olmoe};
use router_trace::Accesses;
use router_trace::policy::PolicyKind;
use router_trace::simulate::{Budget, HitCurve, Plan, Replay, StackOrder, Window, simulate};

/// Hits an access to three decimals.
fn thousandths(trace: &Accesses, policy: PolicyKind, budgets: &[u64]) -> Vec<i64> {
    let plan = Plan {
        policies: vec![policy],
        budgets: budgets.iter().map(|&experts| Budget::Experts(experts)).collect(),
        ..Plan::default()
    };
    let replay = Replay::of(trace, Window::COLD).unwrap();
    let rows = simulate(&replay, &plan, |_| {}).unwrap().rows;
    rows.iter().map(|row| (row.hit_rate * 1000.0).round() as i64).collect()
}

#[test]
fn olmoe_299() {
    let trace = olmoe();
    assert_eq!(trace.keys().len(), 38_272);
    let budgets = [30, 61, 128, 256, 512, 768];
    assert_eq!(thousandths(&trace, PolicyKind::Lru, &budgets), [0, 0, 319, 565, 784, 936]);
    assert_eq!(thousandths(&trace, PolicyKind::Belady, &budgets), [217, 395, 602, 766, 913, 966]);
    // LFU whose counts survive eviction.
    assert_eq!(thousandths(&trace, PolicyKind::GhostLfu, &budgets), [144, 232, 356, 532, 774, 931]);
    assert_eq!(thousandths(&trace, PolicyKind::Never, &budgets), [0; 6]);
}

#[test]
fn kimi_linear_300() {
    let trace = kimi_linear();
    assert_eq!(trace.keys().len(), 62_400);
    let budgets = [199, 399, 832, 1664, 3328];
    assert_eq!(thousandths(&trace, PolicyKind::Lru, &budgets), [0, 413, 576, 730, 871]);
    assert_eq!(thousandths(&trace, PolicyKind::Belady, &budgets), [510, 636, 753, 850, 912]);
    let lfu = thousandths(&trace, PolicyKind::GhostLfu, &budgets[..4]);
    assert_eq!(lfu, [299, 407, 553, 718]);
}

/// Static pinning, chosen on the first half of the tokens and scored on the second. Where the
/// half of 299 tokens lies and which of equally used experts are pinned was not published, so
/// four thousandths are allowed.
#[test]
fn static_tables_on_held_out_tokens() {
    let published = [
        (olmoe(), &[30, 61, 128, 256, 512, 768][..], &[131, 194, 301, 460, 704, 886][..]),
        (kimi_linear(), &[199, 399, 832, 1664, 3328], &[285, 380, 519, 691, 878]),
    ];
    for (trace, budgets, expected) in published {
        let plan = Plan {
            policies: vec![PolicyKind::Static],
            budgets: budgets.iter().map(|&experts| Budget::Experts(experts)).collect(),
            ..Plan::default()
        };
        let replay = Replay::of(&trace, Window::new(50, 50).unwrap()).unwrap();
        let rows = simulate(&replay, &plan, |_| {}).unwrap().rows;
        for (row, &expected) in rows.iter().zip(expected) {
            let found = row.hit_rate * 1000.0;
            assert!((found - f64::from(expected)).abs() < 4.0, "{found} is not {expected}");
        }
    }
}

/// The one-pass curves are the simulator's counts, at every capacity tried.
#[test]
fn curves_equal_the_simulator_on_real_traces() {
    for trace in [olmoe(), kimi_linear()] {
        for window in [Window::COLD, Window::default()] {
            let replay = Replay::of(&trace, window).unwrap();
            let curves = [
                (PolicyKind::Lru, HitCurve::of_lru(&replay)),
                (PolicyKind::Belady, HitCurve::of_stack(&replay, StackOrder::Belady)),
                (PolicyKind::GhostLfu, HitCurve::of_stack(&replay, StackOrder::GhostLfu)),
            ];
            let budgets = [0, 1, 7, 8, 61, 128, 207, 208, 512, 1024, 1664, 6656, 9999];
            for (policy, curve) in curves {
                let plan = Plan {
                    policies: vec![policy],
                    budgets: budgets.map(Budget::Experts).to_vec(),
                    ..Plan::default()
                };
                for row in simulate(&replay, &plan, |_| {}).unwrap().rows {
                    let capacity = row.budget_experts as usize;
                    assert_eq!(curve.hits(capacity), row.count.hits, "{policy} {capacity}");
                    assert_eq!(curve.accesses(), row.count.accesses);
                }
            }
        }
    }
}
