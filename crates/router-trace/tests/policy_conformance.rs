//! What every policy promises, checked for each of them, in one pool and split by layer.
#![forbid(unsafe_code)]

use proptest::prelude::*;
use router_trace::policy::{Hindsight, Key, PerLayer, Policy, PolicyKind, Verdict, split_evenly};
use std::collections::BTreeSet;

const KEYS: Key = 16;

fn accesses() -> impl Strategy<Value = Vec<(Key, Vec<Key>)>> {
    let pins = prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec(0..KEYS, 1..24)];
    prop::collection::vec((prop_oneof![0..KEYS, 0..5u32], pins), 1..200)
}

struct Knowledge {
    keys: Vec<Key>,
    uses: Vec<u32>,
}

impl Knowledge {
    fn new(keys: Vec<Key>, n_keys: Key) -> Self {
        let mut uses = vec![0; n_keys as usize];
        for &key in &keys {
            uses[key as usize] += 1;
        }
        Self { keys, uses }
    }

    fn build(&self, kind: PolicyKind, capacity: usize) -> Box<dyn Policy + Send + '_> {
        let (uses, accesses) = (&self.uses[..], &self.keys[..]);
        kind.build(
            capacity,
            uses.len(),
            &Hindsight { warm_uses: uses, scored_uses: uses, accesses },
        )
    }
}

/// Drives `policy` and checks every answer against a plain set of what it said to keep.
fn conforms(
    kind: PolicyKind,
    mut policy: impl Policy,
    accesses: &[(Key, Vec<Key>)],
) -> Vec<Verdict> {
    assert_eq!(policy.name(), kind.name());
    let capacity = policy.capacity();
    let is_kept = |policy: &dyn Policy| (0..KEYS).filter(|&k| policy.contains(k)).collect();
    // A table is there from the start, everything else begins empty.
    let mut kept: BTreeSet<Key> = is_kept(&policy);
    assert!(kept.is_empty() || matches!(kind, PolicyKind::Static | PolicyKind::OracleStatic));
    let mut verdicts = Vec::new();
    for (key, pinned) in accesses {
        let verdict = policy.access(*key, pinned);
        match verdict {
            Verdict::Hit => assert!(kept.contains(key), "{kind}: a hit was not kept"),
            Verdict::Bypass => assert!(!kept.contains(key), "{kind}: what is kept was passed by"),
            Verdict::Admit { evicted } => {
                if let Some(victim) = evicted {
                    assert!(kept.remove(&victim), "{kind}: evicted {victim}, not kept");
                    assert!(!pinned.contains(&victim), "{kind}: evicted {victim}, pinned");
                }
                assert!(kept.insert(*key), "{kind}: admitted {key}, kept already");
            }
        }
        let now: BTreeSet<Key> = is_kept(&policy);
        assert_eq!(now, kept, "{kind}");
        assert_eq!((policy.len(), policy.is_empty()), (kept.len(), kept.is_empty()), "{kind}");
        assert!(kept.len() <= capacity, "{kind}: {} of {capacity}", kept.len());
        verdicts.push(verdict);
    }
    verdicts
}

/// Rules that hold in one pool: when to evict, and when nothing can be admitted.
fn evicts_only_when_full(
    kind: PolicyKind,
    capacity: usize,
    accesses: &[(Key, Vec<Key>)],
    verdicts: &[Verdict],
) {
    let table = matches!(kind, PolicyKind::Never | PolicyKind::Static | PolicyKind::OracleStatic);
    let mut kept = BTreeSet::new();
    for ((key, pinned), &verdict) in accesses.iter().zip(verdicts) {
        match verdict {
            Verdict::Admit { evicted } => {
                assert_eq!(evicted.is_some(), kept.len() == capacity, "{kind}");
                if let Some(evicted) = evicted {
                    kept.remove(&evicted);
                }
                kept.insert(*key);
            }
            Verdict::Bypass if !table && kind != PolicyKind::BeladyBypass => {
                let all_pinned = kept.iter().all(|key| pinned.contains(key));
                assert!(kept.len() == capacity && all_pinned, "{kind} passed {key} by");
            }
            _ => {}
        }
    }
}

fn one_pool(kind: PolicyKind, capacity: usize, accesses: &[(Key, Vec<Key>)]) {
    let knowledge = Knowledge::new(accesses.iter().map(|access| access.0).collect(), KEYS);
    let verdicts = conforms(kind, knowledge.build(kind, capacity), accesses);
    evicts_only_when_full(kind, capacity, accesses, &verdicts);
    let again = conforms(kind, knowledge.build(kind, capacity), accesses);
    assert_eq!(verdicts, again, "{kind}");
    if capacity >= KEYS as usize && kind != PolicyKind::Never {
        let misses = verdicts.iter().filter(|verdict| !verdict.is_hit()).count();
        let distinct: BTreeSet<_> = accesses.iter().map(|access| access.0).collect();
        let table = matches!(kind, PolicyKind::Static | PolicyKind::OracleStatic);
        assert_eq!(misses, if table { 0 } else { distinct.len() }, "{kind}");
    }
}

/// Keys belong to the parts by turns; each part must behave as a policy that sees its own
/// accesses and pins only.
fn split_by_layer(kind: PolicyKind, capacity: usize, accesses: &[(Key, Vec<Key>)]) {
    const PARTS: Key = 3;
    let part_of: Vec<u16> = (0..KEYS).map(|key| (key % PARTS) as u16).collect();
    let local = |part: Key| {
        let here = accesses.iter().filter(|access| access.0 % PARTS == part);
        let keys = here.map(|access| access.0 / PARTS).collect();
        Knowledge::new(keys, (KEYS + PARTS - 1 - part) / PARTS)
    };
    let parts = [local(0), local(1), local(2)];
    let capacities = split_evenly(capacity, parts.len());
    let pairs = || parts.iter().zip(&capacities);
    let policies = pairs().map(|(part, &capacity)| part.build(kind, capacity)).collect();
    let policy = PerLayer::new(policies, &part_of);
    assert_eq!(policy.capacity(), capacity);
    let verdicts = conforms(kind, policy, accesses);
    for (part, (knowledge, &capacity)) in (0..).zip(pairs()) {
        let mut alone = knowledge.build(kind, capacity);
        for ((key, pinned), &verdict) in accesses.iter().zip(&verdicts) {
            if key % PARTS != part {
                continue;
            }
            let here = pinned.iter().filter(|pin| *pin % PARTS == part);
            let here: Vec<Key> = here.map(|pin| pin / PARTS).collect();
            let expected = match alone.access(key / PARTS, &here) {
                Verdict::Admit { evicted: Some(victim) } => {
                    Verdict::Admit { evicted: Some(victim * PARTS + part) }
                }
                other => other,
            };
            assert_eq!(verdict, expected, "{kind}");
        }
    }
}

macro_rules! conformance {
    ($($name:ident: $kind:expr;)*) => {$(
        mod $name {
            use super::*;
            proptest! {
                #![proptest_config(ProptestConfig::with_cases(500))]
                #[test]
                fn in_one_pool(capacity in 0usize..20, accesses in accesses()) {
                    one_pool($kind.parse().unwrap(), capacity, &accesses);
                }
                #[test]
                fn split(capacity in 0usize..20, accesses in accesses()) {
                    split_by_layer($kind.parse().unwrap(), capacity, &accesses);
                }
            }
        }
    )*};
}

conformance! {
    never: "never";
    static_set: "static";
    oracle_static: "oracle-static";
    lru: "lru";
    two_list: "two-list";
    lfu: "lfu";
    ghost_lfu: "ghost-lfu";
    lrfu: "lrfu";
    arc: "arc";
    s3_fifo: "s3-fifo";
    cast: "cast";
    belady: "belady";
    belady_bypass: "belady-bypass";
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Nothing that always admits beats Belady, and only bypassing beats it.
    #[test]
    fn belady_is_the_upper_bound(
        capacity in 1usize..10,
        keys in prop::collection::vec(prop_oneof![0..KEYS, 0..5u32], 1..300),
    ) {
        let knowledge = Knowledge::new(keys.clone(), KEYS);
        let hits = |kind: PolicyKind| {
            let mut policy = knowledge.build(kind, capacity);
            keys.iter().filter(|&&key| policy.access(key, &[]).is_hit()).count()
        };
        let (belady, bypass) = (hits(PolicyKind::Belady), hits(PolicyKind::BeladyBypass));
        prop_assert!(bypass >= belady);
        for kind in PolicyKind::ALL {
            let table = matches!(kind, PolicyKind::Static | PolicyKind::OracleStatic);
            if !table && kind != PolicyKind::BeladyBypass {
                prop_assert!(hits(kind) <= belady, "{} beats belady", kind);
            }
        }
        // A stack algorithm never loses by room.
        for kind in ["lru", "ghost-lfu", "lrfu:7", "belady", "belady-bypass"] {
            let kind: PolicyKind = kind.parse().unwrap();
            let mut larger = knowledge.build(kind, capacity + 1);
            let more = keys.iter().filter(|&&key| larger.access(key, &[]).is_hit()).count();
            prop_assert!(more >= hits(kind), "{} loses by room", kind);
        }
    }
}
