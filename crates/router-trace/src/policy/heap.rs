use super::{Key, key_count};

const OUT: u32 = u32::MAX;
/// Children of a node. Four make the heap half as deep as two, for one cache line a level.
const ARITY: usize = 4;

/// The members among the keys `0..n_keys`, with the least one at hand.
///
/// A member has one entry. Its rank may lag behind: [`set_rank`](LazyHeap::set_rank) to a
/// higher rank, which is what a hit does, only notes the rank, and the entry sinks when it
/// comes to the top. A lower rank moves the entry at once. So the rank in an entry is never
/// above the member's own, and the top whose rank is up to date is the least member.
pub(crate) struct LazyHeap<R> {
    entries: Vec<(R, Key)>,
    slots: Vec<Slot<R>>,
}

#[derive(Clone, Copy)]
struct Slot<R> {
    at: u32,
    rank: R,
}

impl<R: Copy + Ord + Default> LazyHeap<R> {
    pub(crate) fn new(n_keys: usize) -> Self {
        let n_keys = key_count(n_keys) as usize;
        Self { entries: Vec::new(), slots: vec![Slot { at: OUT, rank: R::default() }; n_keys] }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(crate) fn contains(&self, key: Key) -> bool {
        self.slots[key as usize].at != OUT
    }

    /// Takes in `key`, which is no member.
    pub(crate) fn insert(&mut self, key: Key, rank: R) {
        debug_assert!(!self.contains(key));
        let at = self.entries.len();
        self.entries.push((rank, key));
        self.slots[key as usize].rank = rank;
        self.sift_up(at, (rank, key));
    }

    /// Gives the member `key` another rank.
    #[inline]
    pub(crate) fn set_rank(&mut self, key: Key, rank: R) {
        let slot = &mut self.slots[key as usize];
        debug_assert!(slot.at != OUT);
        slot.rank = rank;
        let at = slot.at as usize;
        if rank < self.entries[at].0 {
            self.sift_up(at, (rank, key));
        }
    }

    /// The least member that is not pinned, with its rank.
    pub(crate) fn least(&mut self, pinned: &[Key]) -> Option<(R, Key)> {
        if pinned.is_empty() {
            return self.settle_top();
        }
        // Pinned members that are lower are taken out for a moment: they are few.
        let mut aside = Vec::new();
        let found = loop {
            match self.settle_top() {
                Some((rank, key)) if pinned.contains(&key) => {
                    self.remove(key);
                    aside.push((rank, key));
                }
                other => break other,
            }
        };
        for (rank, key) in aside {
            self.insert(key, rank);
        }
        found
    }

    /// Takes out the member `key`.
    pub(crate) fn remove(&mut self, key: Key) {
        let at = self.slots[key as usize].at as usize;
        self.slots[key as usize].at = OUT;
        let last = self.entries.pop().expect("a member has an entry");
        if last.1 == key {
            return;
        }
        if at > 0 && last.0 < self.entries[(at - 1) / ARITY].0 {
            self.sift_up(at, last);
        } else {
            self.sift_down(at, last);
        }
    }

    /// Lets entries sink until the top has its member's present rank.
    fn settle_top(&mut self) -> Option<(R, Key)> {
        loop {
            let &(noted, key) = self.entries.first()?;
            let rank = self.slots[key as usize].rank;
            if noted == rank {
                return Some((rank, key));
            }
            self.sift_down(0, (rank, key));
        }
    }

    fn sift_up(&mut self, mut at: usize, entry: (R, Key)) {
        while at > 0 {
            let parent = (at - 1) / ARITY;
            if self.entries[parent].0 <= entry.0 {
                break;
            }
            self.place(at, self.entries[parent]);
            at = parent;
        }
        self.place(at, entry);
    }

    fn sift_down(&mut self, mut at: usize, entry: (R, Key)) {
        loop {
            let first = at * ARITY + 1;
            let end = (first + ARITY).min(self.entries.len());
            let Some(least) = (first..end).min_by_key(|&child| self.entries[child].0) else {
                break;
            };
            if self.entries[least].0 >= entry.0 {
                break;
            }
            self.place(at, self.entries[least]);
            at = least;
        }
        self.place(at, entry);
    }

    #[inline]
    fn place(&mut self, at: usize, entry: (R, Key)) {
        self.entries[at] = entry;
        // MAX_KEYS entries at most.
        self.slots[entry.1 as usize].at = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn equals_a_sorted_map(ops in prop::collection::vec((0u8..4, 0u32..12, 0u16..50), 1..200)) {
            let mut heap = LazyHeap::new(12);
            let mut model = BTreeMap::new();
            for (op, key, rank) in ops {
                let rank = (rank, key); // unique, as every policy's ranks are
                match (op, model.contains_key(&key)) {
                    (0, false) => { heap.insert(key, rank); model.insert(key, rank); }
                    (1, true) => { heap.remove(key); model.remove(&key); }
                    (2, true) => { heap.set_rank(key, rank); model.insert(key, rank); }
                    _ => {
                        let pinned = [key, rank.0.into()];
                        for pinned in [&pinned[..], &[]] {
                            let free = model.iter().filter(|(k, _)| !pinned.contains(k));
                            let least = free.map(|(&k, &r)| (r, k)).min();
                            prop_assert_eq!(heap.least(pinned), least);
                        }
                    }
                }
                prop_assert_eq!(heap.len(), model.len());
                prop_assert_eq!(heap.contains(key), model.contains_key(&key));
            }
        }
    }
}
