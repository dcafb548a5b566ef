use super::list::Lists;
use super::{Key, Policy, Verdict};

const T1: u8 = 0; // kept, used once
const T2: u8 = 1; // kept, used again
const B1: u8 = 2; // evicted from T1, remembered
const B2: u8 = 3; // evicted from T2, remembered

/// The Adaptive Replacement Cache (Megiddo and Modha, FAST 2003, figure 4).
///
/// Two LRU lists, of keys used once and more than once, share the capacity; a hit among the
/// remembered evictions of one moves the target `p` in its favour. Steps of `p` are whole
/// numbers, rounded down. 12 bytes a key.
pub struct AdaptiveCache {
    capacity: usize,
    lists: Lists<4>,
    /// Keys that T1 should have.
    p: usize,
}

impl AdaptiveCache {
    /// Room for `capacity` of the keys `0..n_keys`.
    ///
    /// # Panics
    ///
    /// If `n_keys` is above [`MAX_KEYS`](super::MAX_KEYS).
    #[must_use]
    pub fn new(capacity: usize, n_keys: usize) -> Self {
        Self { capacity, lists: Lists::new(n_keys), p: 0 }
    }

    /// The key that goes for one that was last seen in `list`, and where it is remembered.
    fn choose(&self, list: Option<u8>, pinned: &[Key]) -> Option<(Key, Option<u8>)> {
        let t1 = self.lists.len(T1);
        if list.is_none() && t1 == self.capacity {
            return Some((self.lists.victim(T1, pinned)?, None));
        }
        let from_t1 = t1 > self.p || (list == Some(B2) && t1 == self.p && t1 > 0);
        let order = if from_t1 { [(T1, B1), (T2, B2)] } else { [(T2, B2), (T1, B1)] };
        let mut candidates = order
            .iter()
            .filter_map(|&(from, to)| Some((self.lists.victim(from, pinned)?, Some(to))));
        candidates.next()
    }

    /// Moves the target after `list` remembered a key that came back.
    fn adapt(&mut self, list: Option<u8>) {
        let (b1, b2) = (self.lists.len(B1), self.lists.len(B2));
        match list {
            Some(B1) => self.p = (self.p + (b2 / b1).max(1)).min(self.capacity),
            Some(B2) => self.p = self.p.saturating_sub((b1 / b2).max(1)),
            _ => {}
        }
    }

    /// Forgets an eviction so that 2 × capacity keys are known at most.
    fn forget(&mut self) {
        let len = |list| self.lists.len(list);
        let ghost = if len(T1) + len(B1) == self.capacity {
            self.lists.back(B1)
        } else if len(T1) + len(T2) + len(B1) + len(B2) == 2 * self.capacity {
            self.lists.back(B2)
        } else {
            None
        };
        if let Some(ghost) = ghost {
            self.lists.remove(ghost);
        }
    }
}

impl Policy for AdaptiveCache {
    fn name(&self) -> &'static str {
        "arc"
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn len(&self) -> usize {
        self.lists.len(T1) + self.lists.len(T2)
    }

    fn contains(&self, key: Key) -> bool {
        matches!(self.lists.list_of(key), Some(T1 | T2))
    }

    fn access(&mut self, key: Key, pinned: &[Key]) -> Verdict {
        let list = self.lists.list_of(key);
        if matches!(list, Some(T1 | T2)) {
            self.lists.move_front(T2, key);
            return Verdict::Hit;
        }
        let full = self.len() >= self.capacity;
        let unpinned = |list| self.lists.victim(list, pinned).is_some();
        if full && !(unpinned(T1) || unpinned(T2)) {
            return Verdict::Bypass;
        }
        self.adapt(list);
        let mut evicted = None;
        if full {
            let (victim, to) = self.choose(list, pinned).expect("one is not pinned");
            if list.is_none() {
                self.forget();
            }
            self.lists.remove(victim);
            if let Some(to) = to {
                self.lists.push_front(to, victim);
            }
            evicted = Some(victim);
        }
        if list.is_some() {
            self.lists.move_front(T2, key);
        } else {
            self.lists.push_front(T1, key);
        }
        Verdict::Admit { evicted }
    }
}
