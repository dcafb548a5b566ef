//! Twins of policies with several queues.

use super::{Rule, take};
use router_trace::policy::Key;

/// The page cache's two lists; `age` counts evictions and activations.
#[derive(Default)]
pub(super) struct TwoListRule {
    inactive: Vec<Key>,
    active: Vec<Key>,
    referenced: Vec<Key>,
    evicted_at: Vec<(Key, usize)>,
    age: usize,
    refault: bool,
    debt: usize,
}

impl Rule for TwoListRule {
    fn hit(&mut self, key: Key) {
        if self.active.contains(&key) {
            take(&mut self.referenced, key);
            self.referenced.push(key);
        } else if take(&mut self.referenced, key) {
            take(&mut self.inactive, key);
            self.active.push(key);
            self.age += 1;
        } else {
            self.referenced.push(key);
        }
    }

    fn missed(&mut self, key: Key) {
        let evicted = self.evicted_at.iter().rfind(|(evicted, _)| *evicted == key);
        self.refault = evicted.is_some_and(|(_, at)| self.age - at <= self.active.len());
    }

    fn evict(&mut self, _: Key, _: &[Key], free: &[Key]) -> Option<Key> {
        if self.active.len() > 3 * self.inactive.len() || self.refault {
            self.debt += self.active.len();
            while !self.active.is_empty() && self.debt >= self.inactive.len().max(1) {
                self.debt -= self.inactive.len().max(1);
                self.inactive.push(self.active.remove(0));
            }
        }
        if self.inactive.is_empty() {
            self.inactive.push(self.active.remove(0));
        }
        let order = self.inactive.iter().chain(&self.active).copied();
        let victim = order.into_iter().find(|key| free.contains(key))?;
        let _ = take(&mut self.inactive, victim) || take(&mut self.active, victim);
        take(&mut self.referenced, victim);
        self.evicted_at.push((victim, self.age));
        self.age += 1;
        Some(victim)
    }

    fn admitted(&mut self, key: Key) {
        self.age += usize::from(self.refault);
        if self.refault { &mut self.active } else { &mut self.inactive }.push(key);
        self.referenced.push(key);
    }
}

/// ARC as figure 4 of its paper has it, case by case.
pub(super) struct ArcRule {
    c: usize,
    p: usize,
    t1: Vec<Key>,
    t2: Vec<Key>,
    b1: Vec<Key>,
    b2: Vec<Key>,
    was_known: bool,
}

impl ArcRule {
    pub(super) fn new(c: usize) -> Self {
        let [t1, t2, b1, b2] = [const { Vec::new() }; 4];
        Self { c, p: 0, t1, t2, b1, b2, was_known: false }
    }

    fn replace(&mut self, in_b2: bool, free: &[Key]) -> Option<Key> {
        let t1 = self.t1.len();
        let from_t1 = t1 > 0 && (t1 > self.p || in_b2 && t1 == self.p);
        let oldest = |list: &[Key]| list.iter().copied().find(|key| free.contains(key));
        let (first, second) = (oldest(&self.t1), oldest(&self.t2));
        let victim = if from_t1 { first.or(second)? } else { second.or(first)? };
        let from_t1 = take(&mut self.t1, victim) || !take(&mut self.t2, victim);
        if from_t1 { &mut self.b1 } else { &mut self.b2 }.push(victim);
        Some(victim)
    }
}

impl Rule for ArcRule {
    fn hit(&mut self, key: Key) {
        let _ = take(&mut self.t1, key) || take(&mut self.t2, key);
        self.t2.push(key);
    }

    fn evict(&mut self, key: Key, _: &[Key], free: &[Key]) -> Option<Key> {
        let (b1, b2) = (self.b1.len(), self.b2.len());
        self.was_known = true;
        if self.b1.contains(&key) {
            self.p = self.c.min(self.p + 1.max(b2 / b1));
            let victim = self.replace(false, free);
            take(&mut self.b1, key);
            return victim;
        }
        if self.b2.contains(&key) {
            self.p -= self.p.min(1.max(b1 / b2));
            let victim = self.replace(true, free);
            take(&mut self.b2, key);
            return victim;
        }
        self.was_known = false;
        if self.t1.len() + b1 == self.c {
            if self.t1.len() == self.c {
                let victim = self.t1.iter().copied().find(|key| free.contains(key))?;
                take(&mut self.t1, victim);
                return Some(victim);
            }
            self.b1.remove(0);
        } else if self.t1.len() + self.t2.len() + b1 + b2 == 2 * self.c {
            self.b2.remove(0);
        }
        self.replace(false, free)
    }

    fn admitted(&mut self, key: Key) {
        if self.was_known { &mut self.t2 } else { &mut self.t1 }.push(key);
        self.was_known = false;
    }
}

/// S3-FIFO as algorithm 1 of its paper has it.
pub(super) struct S3FifoRule {
    small_size: usize,
    main_size: usize,
    small: Vec<Key>,
    main: Vec<Key>,
    ghost: Vec<Key>,
    freq: Vec<u8>,
}

impl S3FifoRule {
    pub(super) fn new(capacity: usize) -> Self {
        let small_size = (capacity / 10).max(1).min(capacity);
        let [small, main, ghost] = [const { Vec::new() }; 3];
        let main_size = capacity - small_size;
        Self { small_size, main_size, small, main, ghost, freq: vec![0; 64] }
    }

    fn freq(&mut self, key: Key) -> &mut u8 {
        &mut self.freq[key as usize]
    }

    /// Walks the queue from its end; pinned keys without a use are stepped over.
    fn evict_main(&mut self, free: &[Key]) -> Option<Key> {
        let mut at = 0;
        self.main.iter().any(|key| free.contains(key)).then_some(())?;
        loop {
            let key = self.main[at];
            if *self.freq(key) > 0 {
                *self.freq(key) -= 1;
                self.main.remove(at);
                self.main.push(key);
                at = 0;
            } else if free.contains(&key) {
                return Some(self.main.remove(at));
            } else {
                at += 1;
            }
        }
    }

    fn drop_small(&mut self, key: Key) -> Key {
        take(&mut self.small, key);
        self.ghost.push(key);
        if self.ghost.len() > self.main_size {
            self.ghost.remove(0);
        }
        key
    }
}

impl Rule for S3FifoRule {
    fn hit(&mut self, key: Key) {
        *self.freq(key) = (*self.freq(key) + 1).min(3);
    }

    fn evict(&mut self, _: Key, _: &[Key], free: &[Key]) -> Option<Key> {
        let mut at = 0;
        while (self.small.len() >= self.small_size || self.main.is_empty()) && at < self.small.len()
        {
            let key = self.small[at];
            if *self.freq(key) > 1 {
                *self.freq(key) = 0;
                self.small.remove(at);
                self.main.push(key);
                if self.main.len() > self.main_size
                    && let Some(victim) = self.evict_main(free)
                {
                    return Some(victim);
                }
            } else if free.contains(&key) {
                return Some(self.drop_small(key));
            } else {
                at += 1;
            }
        }
        if let Some(victim) = self.evict_main(free) {
            return Some(victim);
        }
        let victim = self.small.iter().copied().find(|key| free.contains(key))?;
        Some(self.drop_small(victim))
    }

    fn admitted(&mut self, key: Key) {
        let known = take(&mut self.ghost, key);
        if known { &mut self.main } else { &mut self.small }.push(key);
        *self.freq(key) = 0;
    }
}
