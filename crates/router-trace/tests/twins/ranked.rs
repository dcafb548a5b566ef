//! Twins of policies that evict the lowest by some rank. They keep the whole history of uses
//! and rank from it anew at every eviction.

use super::{Rule, take};
use router_trace::policy::{CastScore, Key};
use std::cmp::Reverse;

/// The moments of each key's uses.
#[derive(Default)]
struct History(Vec<Key>);

impl History {
    fn uses(&self, key: Key) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.0.iter().enumerate().filter(move |(_, used)| **used == key).map(|(at, _)| at)
    }
    fn last(&self, key: Key) -> usize {
        self.uses(key).next_back().unwrap()
    }
}

#[derive(Default)]
pub(super) struct LruRule(History);

impl Rule for LruRule {
    fn hit(&mut self, key: Key) {
        self.0.0.push(key);
    }
    fn evict(&mut self, _: Key, _: &[Key], free: &[Key]) -> Option<Key> {
        free.iter().copied().min_by_key(|&key| self.0.last(key))
    }
    fn admitted(&mut self, key: Key) {
        self.0.0.push(key);
    }
}

pub(super) struct LfuRule {
    history: History,
    ghosts: bool,
}

impl LfuRule {
    pub(super) fn new(ghosts: bool) -> Self {
        Self { history: History::default(), ghosts }
    }
}

/// A use that leaves no trace when the key is passed by, only to keep the count of moments.
const NOBODY: Key = Key::MAX;

impl Rule for LfuRule {
    fn hit(&mut self, key: Key) {
        self.history.0.push(key);
    }
    fn missed(&mut self, key: Key) {
        if self.ghosts {
            self.history.0.push(key);
        }
    }
    fn evict(&mut self, _: Key, _: &[Key], free: &[Key]) -> Option<Key> {
        let rank = |key: Key| (self.history.uses(key).count(), self.history.last(key));
        let victim = free.iter().copied().min_by_key(|&key| rank(key));
        if !self.ghosts {
            for used in &mut self.history.0 {
                *used = if Some(*used) == victim { NOBODY } else { *used };
            }
        }
        victim
    }
    fn admitted(&mut self, key: Key) {
        if !self.ghosts {
            self.history.0.push(key);
        }
    }
}

pub(super) struct LrfuRule {
    history: History,
    half_life: f64,
}

impl LrfuRule {
    pub(super) fn new(half_life: f64) -> Self {
        Self { history: History::default(), half_life }
    }

    /// The logarithm of the score, with the decay since the start left out: it is the same
    /// for all. Built up use by use, as rounding decides between scores that are equal.
    fn rank(&self, key: Key) -> f64 {
        let (mut score, mut last) = (0.0, 0.0);
        for at in self.history.uses(key) {
            let at = at as f64 + 1.0;
            score = 1.0 + score * (-(at - last) / self.half_life).exp2();
            last = at;
        }
        // The definition: the sum of all uses, each decayed since it happened.
        let decayed = |at: usize| ((at as f64 + 1.0 - last) / self.half_life).exp2();
        let defined: f64 = self.history.uses(key).map(decayed).sum();
        assert!((score - defined).abs() < 1e-9 * defined);
        last / self.half_life + score.log2()
    }
}

impl Rule for LrfuRule {
    fn hit(&mut self, key: Key) {
        self.history.0.push(key);
    }
    fn missed(&mut self, key: Key) {
        self.history.0.push(key);
    }
    fn evict(&mut self, _: Key, _: &[Key], free: &[Key]) -> Option<Key> {
        let lower = |&a: &Key, &b: &Key| {
            let by_rank = self.rank(a).total_cmp(&self.rank(b));
            by_rank.then(self.history.last(a).cmp(&self.history.last(b)))
        };
        free.iter().copied().min_by(lower)
    }
    fn admitted(&mut self, _: Key) {}
}

pub(super) struct BeladyRule {
    keys: Vec<Key>,
    now: usize,
    may_bypass: bool,
}

impl BeladyRule {
    pub(super) fn new(keys: &[Key], may_bypass: bool) -> Self {
        Self { keys: keys.to_vec(), now: 0, may_bypass }
    }

    /// When `key` is used next; of those never used again, the highest is the last.
    fn next(&self, key: Key) -> (usize, Key) {
        let ahead = self.keys[self.now..].iter().position(|&used| used == key);
        ahead.map_or((usize::MAX, key), |ahead| (ahead, 0))
    }
}

impl Rule for BeladyRule {
    fn hit(&mut self, _: Key) {
        self.now += 1;
    }
    fn missed(&mut self, _: Key) {
        self.now += 1;
    }
    fn evict(&mut self, key: Key, _: &[Key], free: &[Key]) -> Option<Key> {
        let farthest = free.iter().copied().max_by_key(|&kept| self.next(kept))?;
        let pass_by = self.may_bypass && self.next(key) > self.next(farthest);
        (!pass_by).then_some(farthest)
    }
    fn admitted(&mut self, _: Key) {}
}

/// The reads of a key: the ticks of all reads of its history that counted.
#[derive(Clone, Default)]
struct Reads {
    ticks: Vec<u32>,
    evicted_tick: u32,
    entered_main: u64,
}

pub(super) struct CastRule {
    capacity: usize,
    w_capacity: usize,
    score: CastScore,
    w: Vec<Key>,
    m: Vec<Key>,
    reads: Vec<Reads>,
    intake: usize,
    /// The time, in sixteenths of a key.
    parts: usize,
    /// What the next admission adds to it.
    next_parts: usize,
    entries: u64,
}

impl CastRule {
    pub(super) fn new(capacity: usize, le: u8, w_permille: u16) -> Self {
        Self {
            capacity,
            w_capacity: (capacity * usize::from(w_permille) / 1000).max(1),
            score: CastScore::new(le),
            w: Vec::new(),
            m: Vec::new(),
            reads: vec![Reads::default(); 64],
            intake: 0,
            parts: 0,
            next_parts: 4,
            entries: 0,
        }
    }

    fn now(&self) -> u32 {
        (self.parts / (16 * (self.capacity / 4).max(1))) as u32
    }

    fn read(&mut self, key: Key) {
        let now = self.now();
        let ticks = &mut self.reads[key as usize].ticks;
        if !ticks.ends_with(&[now, now]) {
            ticks.push(now);
        }
    }

    /// The class of the gap before the last but `n`th read.
    fn gap(ticks: &[u32], n: usize) -> u8 {
        let Some(before) = ticks.len().checked_sub(n + 2) else { return 0 };
        let gap = (ticks[before + 1] - ticks[before]).min(511);
        (0..10).take_while(|&digits| gap >> digits > 0).count() as u8
    }

    /// The score's key, then whether it was read again, then the tie-breaker.
    fn rank(&self, key: Key) -> (i64, bool, u64) {
        let Reads { ticks, entered_main, .. } = &self.reads[key as usize];
        let count = ticks.len().min(255) as u8;
        let log = self.score.log_score(Self::gap(ticks, 0), Self::gap(ticks, 1), count);
        let mut hash = key ^ (key >> 16);
        hash = hash.wrapping_mul(0x85eb_ca6b);
        hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
        let tie = if count == 1 { *entered_main } else { u64::from(hash ^ (hash >> 16)) };
        (self.score.key(*ticks.last().unwrap(), log), count > 1, tie)
    }

    fn enter_main(&mut self, key: Key) {
        take(&mut self.w, key);
        self.m.push(key);
        self.reads[key as usize].entered_main = self.entries;
        self.entries += 1;
    }
}

impl Rule for CastRule {
    fn hit(&mut self, key: Key) {
        self.read(key);
    }

    fn evict(&mut self, _: Key, _: &[Key], free: &[Key]) -> Option<Key> {
        let is_free = |key: &&Key| free.contains(key);
        let lowest = self.m.iter().filter(is_free).copied().min_by_key(|&key| self.rank(key));
        let oldest = self.w.iter().find(is_free).copied();
        let contest = self.w.len() >= self.w_capacity;
        let victim = match (oldest, lowest) {
            (Some(oldest), None) => oldest,
            (Some(oldest), Some(lowest)) if contest => {
                let (mine, theirs) = (self.rank(oldest), self.rank(lowest));
                let once_read = !mine.1;
                let loses = if once_read { mine.0 < theirs.0 } else { mine < theirs };
                if !loses {
                    self.enter_main(oldest);
                }
                if loses { oldest } else { lowest }
            }
            (_, Some(lowest)) => lowest,
            (None, None) => unreachable!("something is free"),
        };
        let _ = take(&mut self.w, victim) || take(&mut self.m, victim);
        self.next_parts = if self.reads[victim as usize].ticks.len() == 1 { 1 } else { 16 };
        self.reads[victim as usize].evicted_tick = self.now();
        Some(victim)
    }

    fn admitted(&mut self, key: Key) {
        // The cache has never been full, so nobody had to go: the share is kept all the same.
        if self.intake < self.capacity && self.w.len() >= self.w_capacity {
            self.enter_main(self.w[0]);
        }
        let now = self.now();
        let reads = &mut self.reads[key as usize];
        if now - reads.evicted_tick > 32 {
            reads.ticks.clear();
        }
        self.read(key);
        self.w.push(key);
        self.intake += 1;
        self.parts += std::mem::replace(&mut self.next_parts, 4);
    }
}

#[test]
fn the_farthest_is_the_largest() {
    let rule = BeladyRule::new(&[1, 2, 1], false);
    let mut keys = [1, 2, 3, 4];
    keys.sort_by_key(|&key| Reverse(rule.next(key)));
    assert_eq!(keys, [4, 3, 2, 1]);
}
