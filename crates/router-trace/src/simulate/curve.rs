use super::replay::Replay;
use crate::policy::Key;
use std::cmp::Reverse;

/// Hits at every capacity, from one pass over the accesses.
///
/// A stack algorithm keeps, at any moment, in every capacity what it keeps in all smaller
/// ones, so one number an access (the smallest capacity that hits) tells all (Mattson et al.,
/// IBM Systems Journal 9(2), 1970). LRU is one, so are Belady's MIN, LFU with ghost counts
/// and LRFU of a fixed half-life; ARC, S3-FIFO, two-list LRU and CAST are not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HitCurve {
    accesses: u64,
    /// At `n`, the accesses that hit with `n` keys; the last value holds beyond.
    hits: Vec<u64>,
}

impl HitCurve {
    /// LRU's curve of the scored accesses of a replay, after its warm ones.
    ///
    /// An access hits in exactly the capacities above the number of other keys used since
    /// the key's last use. That number is counted with a Fenwick tree over the moments of
    /// last use, renumbered when they run out, so memory is O(keys) and time O(log keys) an
    /// access.
    #[must_use]
    pub fn of_lru(replay: &Replay<'_>) -> Self {
        let mut stack = RecencyStack::new(replay.n_keys());
        for &key in replay.warm.keys() {
            stack.access(key);
        }
        let depths = replay.scored.keys().iter().map(|&key| stack.access(key));
        Self::from_depths(depths, replay.n_keys())
    }

    /// Hits at every capacity of a stack algorithm whose order does not depend on the capacity.
    ///
    /// Mattson's general update: the key used comes to the top, and of each two keys that meet
    /// on the way down the one given up first goes on. Time is O(depth) an access: for the traces
    /// of sessions, not for millions of accesses over a large pool.
    #[must_use]
    pub fn of_stack(replay: &Replay<'_>, order: StackOrder) -> Self {
        let keys = replay.keys();
        let n_keys = replay.n_keys();
        let next = next_uses(&keys, n_keys);
        let mut uses: Vec<(u64, usize)> = vec![(0, 0); n_keys];
        let mut due = vec![usize::MAX; n_keys];
        let mut stack: Vec<Key> = Vec::new();
        let mut depths = Vec::with_capacity(keys.len());
        for (now, (&key, &next_use)) in keys.iter().zip(&next).enumerate() {
            let depth = stack.iter().position(|&kept| kept == key);
            let end = depth.unwrap_or(stack.len());
            // Lower goes first. No key keeps its place against the one just used.
            let rank = |key: Key| match order {
                StackOrder::Belady => Reverse((due[key as usize] as u64, 0)),
                StackOrder::GhostLfu => {
                    let (count, last) = uses[key as usize];
                    Reverse((u64::MAX - count, usize::MAX - last))
                }
            };
            let mut carried = key;
            for place in &mut stack[..end] {
                let here = *place;
                let goes_on = carried != key && rank(carried) < rank(here);
                if !goes_on {
                    *place = std::mem::replace(&mut carried, here);
                }
            }
            match depth {
                Some(depth) => stack[depth] = carried,
                None => stack.push(carried),
            }
            depths.push(depth.map(|depth| depth + 1));
            due[key as usize] = next_use;
            let (count, last) = &mut uses[key as usize];
            (*count, *last) = (*count + 1, now);
        }
        let scored = depths.split_off(replay.warm.keys().len());
        Self::from_depths(scored.into_iter(), n_keys)
    }

    /// From each access's depth in the stack (1 is the top, `None` a first use).
    fn from_depths(depths: impl Iterator<Item = Option<usize>>, n_keys: usize) -> Self {
        let mut hits = vec![0; n_keys + 1];
        let mut accesses = 0;
        for depth in depths {
            accesses += 1;
            if let Some(depth) = depth {
                hits[depth] += 1;
            }
        }
        let mut sum = 0;
        for hits in &mut hits {
            sum += *hits;
            *hits = sum;
        }
        Self { accesses, hits }
    }

    /// Accesses counted.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Hits with room for `capacity` keys.
    #[must_use]
    pub fn hits(&self, capacity: usize) -> u64 {
        let last = self.hits.len() - 1;
        self.hits[capacity.min(last)]
    }

    /// Hits an access with room for `capacity` keys; 0 without accesses.
    #[must_use]
    pub fn hit_rate(&self, capacity: usize) -> f64 {
        self.rate(self.hits(capacity))
    }

    fn rate(&self, hits: u64) -> f64 {
        if self.accesses == 0 { 0.0 } else { hits as f64 / self.accesses as f64 }
    }

    /// The smallest capacity with at least this many hits an access, if there is one.
    #[must_use]
    pub fn capacity_for(&self, hit_rate: f64) -> Option<usize> {
        let capacity = self.hits.partition_point(|&hits| self.rate(hits) < hit_rate);
        (capacity < self.hits.len()).then_some(capacity)
    }
}

/// Counts how many other keys were used since a key's last use.
struct RecencyStack {
    /// Moment of the last use of each key, from 1; 0 is never.
    last: Vec<u32>,
    /// Fenwick tree: 1 at each moment that is some key's last use.
    tree: Vec<u32>,
    now: usize,
    used: usize,
}

impl RecencyStack {
    fn new(n_keys: usize) -> Self {
        // Renumbering costs O(keys log keys) once in as many accesses.
        Self { last: vec![0; n_keys], tree: vec![0; 2 * n_keys + 2], now: 0, used: 0 }
    }

    fn access(&mut self, key: Key) -> Option<usize> {
        if self.now + 1 >= self.tree.len() {
            self.renumber();
        }
        self.now += 1;
        let before = std::mem::replace(&mut self.last[key as usize], self.now as u32) as usize;
        let depth = (before > 0).then(|| self.used - self.count_to(before - 1));
        if before > 0 {
            self.add(before, u32::MAX); // -1
        } else {
            self.used += 1;
        }
        self.add(self.now, 1);
        depth
    }

    fn renumber(&mut self) {
        let mut order: Vec<Key> = (0..self.last.len() as Key).collect();
        order.retain(|&key| self.last[key as usize] > 0);
        order.sort_unstable_by_key(|&key| self.last[key as usize]);
        self.tree.fill(0);
        for (moment, &key) in (1..).zip(&order) {
            self.last[key as usize] = moment;
            self.add(moment as usize, 1);
        }
        self.now = order.len();
    }

    /// Modulo 2^32, so that adding `u32::MAX` takes one away.
    fn add(&mut self, mut moment: usize, amount: u32) {
        while let Some(sum) = self.tree.get_mut(moment) {
            *sum = sum.wrapping_add(amount);
            moment += moment & moment.wrapping_neg();
        }
    }

    fn count_to(&self, mut moment: usize) -> usize {
        let mut count = 0u32;
        while moment > 0 {
            count = count.wrapping_add(self.tree[moment]);
            moment &= moment - 1;
        }
        count as usize
    }
}

/// The order in which a stack algorithm gives keys up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StackOrder {
    /// Farthest next use first: Belady's MIN that always admits.
    Belady,
    /// Fewest uses ever first, of several the one used longest ago: LFU with ghost counts.
    GhostLfu,
}

/// The moment of the next use after each access; keys without one have different moments
/// behind the end, higher keys later.
fn next_uses(keys: &[Key], n_keys: usize) -> Vec<usize> {
    let mut next_of: Vec<usize> = (keys.len()..keys.len() + n_keys).collect();
    let mut next = vec![0; keys.len()];
    for (at, &key) in keys.iter().enumerate().rev() {
        next[at] = std::mem::replace(&mut next_of[key as usize], at);
    }
    next
}
