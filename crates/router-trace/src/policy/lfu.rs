use super::heap::LazyHeap;
use super::{Key, Policy, Verdict};

/// Whether a count of uses outlives its key's eviction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ghosts {
    /// A key that comes back starts from one.
    Forgotten,
    /// A key that comes back goes on from its count: a table of all uses ever, in which a
    /// key must outrank the lowest one kept to stay for long.
    Kept,
}

/// Evicts what was used least often, of several the one used longest ago.
///
/// A newcomer is always admitted, whatever its count. 28 bytes a key, 24 more
/// while it is kept.
pub struct Lfu {
    capacity: usize,
    ghosts: Ghosts,
    /// Ranked by uses, then by the time of the last use.
    kept: LazyHeap<(u32, u64)>,
    uses: Vec<u32>,
    now: u64,
}

impl Lfu {
    /// Room for `capacity` of the keys `0..n_keys`.
    ///
    /// # Panics
    ///
    /// If `n_keys` is above [`MAX_KEYS`](super::MAX_KEYS).
    #[must_use]
    pub fn new(capacity: usize, n_keys: usize, ghosts: Ghosts) -> Self {
        Self { capacity, ghosts, kept: LazyHeap::new(n_keys), uses: vec![0; n_keys], now: 0 }
    }

    fn count(&mut self, key: Key) -> (u32, u64) {
        let uses = &mut self.uses[key as usize];
        *uses = uses.saturating_add(1);
        (*uses, self.now)
    }
}

impl Policy for Lfu {
    fn name(&self) -> &'static str {
        match self.ghosts {
            Ghosts::Forgotten => "lfu",
            Ghosts::Kept => "ghost-lfu",
        }
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn len(&self) -> usize {
        self.kept.len()
    }

    fn contains(&self, key: Key) -> bool {
        self.kept.contains(key)
    }

    fn access(&mut self, key: Key, pinned: &[Key]) -> Verdict {
        self.now += 1;
        if self.kept.contains(key) {
            let rank = self.count(key);
            self.kept.set_rank(key, rank);
            return Verdict::Hit;
        }
        // A use that could not be served from here was a use all the same.
        let ghost_rank = (self.ghosts == Ghosts::Kept).then(|| self.count(key));
        let mut evicted = None;
        if self.len() >= self.capacity {
            let Some((_, least)) = self.kept.least(pinned) else { return Verdict::Bypass };
            self.kept.remove(least);
            evicted = Some(least);
            if self.ghosts == Ghosts::Forgotten {
                self.uses[least as usize] = 0;
            }
        }
        let rank = ghost_rank.unwrap_or_else(|| self.count(key));
        self.kept.insert(key, rank);
        Verdict::Admit { evicted }
    }
}
