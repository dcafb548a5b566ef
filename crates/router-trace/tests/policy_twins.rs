//! Every policy against a naive twin: a quadratic re-telling of its rule over plain lists,
//! compared verdict by verdict, the evicted key included.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod twins;

use proptest::prelude::*;
use router_trace::policy::{Admission, Belady, Hindsight, Key, Policy, PolicyKind, Verdict};
use twins::Twin;

const KEYS: Key = 12;

/// Accesses with a little locality, and the pins of each: mostly none, sometimes many.
fn accesses() -> impl Strategy<Value = Vec<(Key, Vec<Key>)>> {
    let key = prop_oneof![0..KEYS, 0..4u32];
    let pins = prop_oneof![
        6 => Just(Vec::new()),
        1 => prop::collection::vec(0..KEYS, 1..6),
        1 => prop::collection::vec(0..KEYS, 20),
    ];
    prop::collection::vec((key, pins), 1..250)
}

/// Runs both and compares every answer and what is kept after it.
fn compare(kind: PolicyKind, capacity: usize, accesses: &[(Key, Vec<Key>)]) {
    let keys: Vec<Key> = accesses.iter().map(|access| access.0).collect();
    let n_keys = keys.iter().fold(KEYS, |most, &key| most.max(key + 1));
    let mut uses = vec![0; n_keys as usize];
    for &key in &keys[..keys.len() / 2] {
        uses[key as usize] += 1;
    }
    let hindsight = Hindsight { warm_uses: &uses, scored_uses: &uses, accesses: &keys };
    let mut policy = kind.build(capacity, n_keys as usize, &hindsight);
    let mut twin = Twin::new(kind, capacity, &keys, &uses);
    for (at, (key, pinned)) in accesses.iter().enumerate() {
        let found = policy.access(*key, pinned);
        let expected = twin.access(*key, pinned);
        assert_eq!(found, expected, "{kind} of {capacity}, access {at} to {key}");
        let kept: Vec<Key> = (0..n_keys).filter(|&key| policy.contains(key)).collect();
        assert_eq!(kept, twin.kept(), "{kind} of {capacity} after access {at} to {key}");
    }
}

macro_rules! twins {
    ($($name:ident: $kind:expr;)*) => {$(
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(2000))]
            #[test]
            fn $name(capacity in 0usize..10, accesses in accesses()) {
                compare($kind.parse().unwrap(), capacity, &accesses);
            }
        }
    )*};
}

twins! {
    never: "never";
    static_set: "static";
    oracle_static: "oracle-static";
    lru: "lru";
    two_list: "two-list";
    lfu: "lfu";
    ghost_lfu: "ghost-lfu";
    lrfu_short: "lrfu:3";
    lrfu_long: "lrfu:8c";
    arc: "arc";
    s3_fifo: "s3-fifo";
    cast: "cast";
    cast_like_lfu: "cast:1/300";
    cast_like_lru: "cast:14/0";
    cast_all_newcomers: "cast:7/1000";
    belady: "belady";
    belady_bypass: "belady-bypass";
}

/// The fewest misses that any sequence of decisions can have, by trying them all.
fn fewest_misses(kept: u32, capacity: u32, rest: &[Key], may_bypass: bool) -> u32 {
    let Some((&key, rest)) = rest.split_first() else { return 0 };
    if kept & (1 << key) != 0 {
        return fewest_misses(kept, capacity, rest, may_bypass);
    }
    let with = kept | (1 << key);
    let mut fewest = u32::MAX;
    if kept.count_ones() < capacity {
        fewest = fewest_misses(with, capacity, rest, may_bypass);
    } else {
        for victim in (0..KEYS).filter(|victim| kept & (1 << victim) != 0) {
            let after = fewest_misses(with & !(1 << victim), capacity, rest, may_bypass);
            fewest = fewest.min(after);
        }
    }
    if may_bypass {
        fewest = fewest.min(fewest_misses(kept, capacity, rest, may_bypass));
    }
    fewest + 1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Belady is the optimum, not only what its twin does as well.
    #[test]
    fn belady_cannot_be_beaten(
        capacity in 1usize..4,
        keys in prop::collection::vec(0..5u32, 1..11),
    ) {
        for (admission, may_bypass) in [(Admission::Always, false), (Admission::Optional, true)] {
            let mut policy = Belady::new(capacity, KEYS as usize, &keys, admission);
            let verdicts = keys.iter().map(|&key| policy.access(key, &[]));
            let misses = verdicts.filter(|&verdict| verdict != Verdict::Hit).count() as u32;
            prop_assert_eq!(misses, fewest_misses(0, capacity as u32, &keys, may_bypass));
        }
    }
}

/// Where CAST forgets: history ends 32 ticks after the eviction and gaps saturate at 511,
/// which short random lists do not reach. A key comes back after each length of a loop that
/// misses at every access, then is used with it for a while, so that its rank shows.
#[test]
fn cast_over_long_gaps() {
    for (kind, capacity) in [("cast", 4), ("cast:1", 4), ("cast:4/500", 3), ("cast:1", 8)] {
        for gap in (20..45).chain(62..70).chain(500..525) {
            let mut keys: Vec<Key> = vec![0, 0, 0];
            for _ in 0..3 {
                keys.extend((0..gap).map(|at| 1 + at % 9));
                keys.push(0);
                keys.extend([10, 11, 10, 11, 9, 8, 7]);
                keys.push(0);
            }
            let accesses: Vec<_> = keys.into_iter().map(|key| (key, Vec::new())).collect();
            compare(kind.parse().unwrap(), capacity, &accesses);
        }
    }
}

/// A key that was read in 254 ticks stays through a gap of more than 511. Its score after the
/// 256th read says how far that gap and that count went.
#[test]
fn cast_counts_and_gaps_saturate() {
    // So many that every other time each comes back without history.
    let misses = |n: Key| (0..n).map(|at| 1 + at % 60);
    let mut keys: Vec<Key> = misses(254).flat_map(|other| [0, other]).collect();
    let loops = [10, 600, 1200, 2500];
    for length in loops {
        keys.extend(misses(length));
        keys.push(0);
    }
    let accesses: Vec<_> = keys.into_iter().map(|key| (key, Vec::new())).collect();
    for (kind, capacity) in [("cast:1", 4), ("cast:1/0", 6), ("cast:2", 4)] {
        compare(kind.parse().unwrap(), capacity, &accesses);
    }
}
