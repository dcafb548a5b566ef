use super::list::Lists;
use super::{Key, Policy, Verdict};

const SMALL: u8 = 0;
const MAIN: u8 = 1;
const GHOST: u8 = 2;
/// Uses are counted up to this.
const MAX_USES: u8 = 3;

/// S3-FIFO (Yang et al., SOSP 2023, algorithm 1): three FIFO queues.
///
/// Newcomers enter a small queue of a tenth of the capacity and go to the main queue if they
/// were used more than once before its end, else they are remembered, as many as the main
/// queue has room for, and come back to the main queue. The main queue gives a key that was
/// used another round for each use. 13 bytes a key.
pub struct S3Fifo {
    capacity: usize,
    small_capacity: usize,
    lists: Lists<3>,
    uses: Vec<u8>,
}

impl S3Fifo {
    /// Room for `capacity` of the keys `0..n_keys`.
    ///
    /// # Panics
    ///
    /// If `n_keys` is above [`MAX_KEYS`](super::MAX_KEYS).
    #[must_use]
    pub fn new(capacity: usize, n_keys: usize) -> Self {
        let small_capacity = (capacity / 10).max(1).min(capacity);
        Self { capacity, small_capacity, lists: Lists::new(n_keys), uses: vec![0; n_keys] }
    }

    fn main_capacity(&self) -> usize {
        self.capacity - self.small_capacity
    }

    /// Makes room for one key, of which at least one that is kept is not pinned.
    fn evict(&mut self, pinned: &[Key]) -> Key {
        while self.lists.len(SMALL) >= self.small_capacity || self.lists.len(MAIN) == 0 {
            // A pinned key that would go stays where it is and is passed over.
            let next = self
                .lists
                .oldest_first(SMALL)
                .find(|&key| self.uses[key as usize] > 1 || !pinned.contains(&key));
            let Some(key) = next else { break };
            if self.uses[key as usize] <= 1 {
                self.remember(key);
                return key;
            }
            self.uses[key as usize] = 0;
            self.lists.move_front(MAIN, key);
            if self.lists.len(MAIN) > self.main_capacity()
                && let Some(evicted) = self.evict_main(pinned)
            {
                return evicted;
            }
        }
        self.evict_main(pinned).unwrap_or_else(|| {
            let key = self.lists.victim(SMALL, pinned).expect("one is not pinned");
            self.remember(key);
            key
        })
    }

    fn remember(&mut self, key: Key) {
        self.lists.move_front(GHOST, key);
        if self.lists.len(GHOST) > self.main_capacity() {
            let oldest = self.lists.back(GHOST).expect("not empty");
            self.lists.remove(oldest);
        }
    }

    /// `None` if all of the main queue is pinned.
    fn evict_main(&mut self, pinned: &[Key]) -> Option<Key> {
        self.lists.victim(MAIN, pinned)?;
        loop {
            let key = self
                .lists
                .oldest_first(MAIN)
                .find(|&key| self.uses[key as usize] > 0 || !pinned.contains(&key))
                .expect("one is not pinned");
            if self.uses[key as usize] == 0 {
                self.lists.remove(key);
                return Some(key);
            }
            self.uses[key as usize] -= 1;
            self.lists.move_front(MAIN, key);
        }
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &'static str {
        "s3-fifo"
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn len(&self) -> usize {
        self.lists.len(SMALL) + self.lists.len(MAIN)
    }

    fn contains(&self, key: Key) -> bool {
        matches!(self.lists.list_of(key), Some(SMALL | MAIN))
    }

    fn access(&mut self, key: Key, pinned: &[Key]) -> Verdict {
        if self.contains(key) {
            let uses = &mut self.uses[key as usize];
            *uses = (*uses + 1).min(MAX_USES);
            return Verdict::Hit;
        }
        let mut evicted = None;
        if self.len() >= self.capacity {
            let unpinned = |list| self.lists.victim(list, pinned).is_some();
            if !(unpinned(SMALL) || unpinned(MAIN)) {
                return Verdict::Bypass;
            }
            evicted = Some(self.evict(pinned));
        }
        // Looked up after the eviction: the newcomer may have been the oldest remembered.
        if self.lists.list_of(key).is_some() {
            self.lists.move_front(MAIN, key);
        } else {
            self.lists.push_front(SMALL, key);
        }
        self.uses[key as usize] = 0;
        Verdict::Admit { evicted }
    }
}
