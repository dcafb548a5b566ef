use super::list::Lists;
use super::{Key, Policy, Verdict};

const KEPT: u8 = 0;

/// Evicts what was used longest ago.
///
/// The page cache tends to it, and it is a stack algorithm: what a capacity keeps, every
/// larger one keeps too (see [`HitCurve`](crate::simulate::HitCurve)). 12 bytes a key.
pub struct Lru {
    capacity: usize,
    lists: Lists<1>,
}

impl Lru {
    /// Room for `capacity` of the keys `0..n_keys`.
    ///
    /// # Panics
    ///
    /// If `n_keys` is above [`MAX_KEYS`](super::MAX_KEYS).
    #[must_use]
    pub fn new(capacity: usize, n_keys: usize) -> Self {
        Self { capacity, lists: Lists::new(n_keys) }
    }

    /// Changes the capacity; what no longer fits goes, oldest first, through `evicted`.
    pub fn set_capacity(&mut self, capacity: usize, mut evicted: impl FnMut(Key)) {
        self.capacity = capacity;
        while self.len() > capacity {
            let oldest = self.lists.back(KEPT).expect("more kept than fit, so at least one");
            self.lists.remove(oldest);
            evicted(oldest);
        }
    }
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn len(&self) -> usize {
        self.lists.len(KEPT)
    }

    fn contains(&self, key: Key) -> bool {
        self.lists.list_of(key).is_some()
    }

    fn access(&mut self, key: Key, pinned: &[Key]) -> Verdict {
        if self.contains(key) {
            self.lists.move_front(KEPT, key);
            return Verdict::Hit;
        }
        let mut evicted = None;
        if self.len() >= self.capacity {
            let Some(oldest) = self.lists.victim(KEPT, pinned) else { return Verdict::Bypass };
            self.lists.remove(oldest);
            evicted = Some(oldest);
        }
        self.lists.push_front(KEPT, key);
        Verdict::Admit { evicted }
    }
}
