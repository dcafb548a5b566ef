//! Leases that are alive, against a twin that is too simple to be wrong.

use super::{config, olmoe, write};
use expert_tier::{Arena, ArenaReads};
use router_trace::policy::PolicyKind;
use std::collections::VecDeque;

/// Exact LRU as a list, oldest first; what is pinned stays.
struct Twin {
    places: usize,
    kept: Vec<(u16, u16)>,
}

impl Twin {
    fn access(&mut self, key: (u16, u16), pinned: &[(u16, u16)]) -> bool {
        if let Some(at) = self.kept.iter().position(|kept| *kept == key) {
            self.kept.remove(at);
            self.kept.push(key);
            return true;
        }
        if self.kept.len() >= self.places {
            let Some(at) = self.kept.iter().position(|kept| !pinned.contains(kept)) else {
                return false;
            };
            self.kept.remove(at);
        }
        self.kept.push(key);
        false
    }
}

#[test]
fn two_leases_alive_pin_their_experts() {
    let (_dir, pool) = write();
    let trace = olmoe();
    let space = trace.key_space();
    // Of 20 places two leases hold 16 and the route wants 8: some are used and not kept.
    for places in [5, 20, 24, 128] {
        let config = config(places, PolicyKind::Lru, ArenaReads::Copies);
        let arena = Arena::open(pool.clone(), &config).unwrap();
        let mut twin = Twin { places, kept: Vec::new() };
        let mut alive: VecDeque<(Vec<(u16, u16)>, expert_tier::Adopted)> = VecDeque::new();
        for (slot, keys) in trace.passes_in(0..100) {
            let route: Vec<_> =
                keys.iter().map(|&key| (slot, space.id(key).unwrap().index)).collect();
            let experts: Vec<u16> = route.iter().map(|&(_, index)| index).collect();
            let before = arena.snapshot();
            let adopted = arena.adopt_batch(slot, &experts).unwrap();
            super::assert_bytes(&adopted);
            let mut pinned: Vec<_> =
                alive.iter().flat_map(|(route, _)| route.iter().copied()).collect();
            let mut hits = 0;
            for &key in &route {
                hits += u64::from(twin.access(key, &pinned));
                pinned.push(key);
            }
            assert_eq!((arena.snapshot() - before).warm_experts, hits, "{places} places");
            assert_eq!((arena.kept(), arena.pinned_now()), (twin.kept.len(), pinned.len()));
            alive.push_back((route, adopted));
            if alive.len() > 2 {
                alive.pop_front();
            }
        }
        for (_, adopted) in &alive {
            super::assert_bytes(adopted);
        }
        alive.clear();
        assert_eq!(arena.pinned_now(), 0);
    }
}
