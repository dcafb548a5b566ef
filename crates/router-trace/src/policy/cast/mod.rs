mod score;

pub use score::CastScore;

use super::heap::LazyHeap;
use super::list::Lists;
use super::{Key, Policy, Verdict};
use score::gap_class;

/// The decay that a cache of experts starts with.
pub const DEFAULT_LE: u8 = 9;
/// The newcomers' share of the capacity to start with, in permille.
pub const DEFAULT_W_PERMILLE: u16 = 100;

const W: u8 = 0;
/// A word's clock has 9 bits, so no gap is longer.
const MAX_GAP_TICKS: u32 = 511;
/// What a key taken in adds to the time, in sixteenths: all of it where a key makes room that
/// had been read again, …
const PARTS: usize = 16;
/// … little where one does that nobody asked for twice, …
const PARTS_ONCE: usize = 1;
/// … and a quarter where there was room.
const PARTS_ROOM: usize = 4;
/// What was evicted longer ago comes back without history: 8 turnovers of the capacity.
const HISTORY_TICKS: u32 = 32;

/// CAST's replacement of clean file pages, by whole experts, at a fixed decay.
///
/// Newcomers pass through W, a FIFO queue of a share of the capacity, and at its end must
/// outrank the lowest of M to stay; M is ranked by an LRFU score in integers ([`CastScore`]).
/// The clock counts keys taken in: a tick is a quarter of the capacity. A key that makes room
/// and had been read once counts for a sixteenth, so that a stream of keys that nobody asks
/// for again ages little of what it passes by; while there is room a key counts for a quarter.
/// Two reads within a tick count. A key that comes back within 8 turnovers has its history again and enters W
/// all the same. Once-read keys of equal rank go in the order in which they entered M, before
/// others, and give way to a newcomer; others of equal rank go by a hash of the key.
///
/// Where it differs from the kernel design: it finds the true minimum of M (the kernel finds
/// one of the lowest sixteenth by sweeping), ticks do not wrap, every count has its own
/// score (the kernel's table groups counts above 8), and while the cache fills, what W has
/// no share for goes to M uncontested. The controllers of decay and share are not here.
/// 60 bytes a key, 24 more while it is kept.
pub struct Cast {
    capacity: usize,
    w_capacity: usize,
    score: CastScore,
    newcomers: Lists<1>,
    /// Ranked by the score's key, then by the tie rule.
    main: LazyHeap<(i64, u64)>,
    words: Vec<Word>,
    /// In sixteenths of a key.
    step_parts: usize,
    intake_parts: usize,
    now: u32,
    entries_to_main: u64,
}

/// What is known of a key; `count` 0 is nothing.
#[derive(Clone, Copy, Default)]
struct Word {
    count: u8,
    g1: u8,
    g2: u8,
    tick: u32,
    evicted_tick: u32,
    /// When it entered M, in entries.
    entry: u64,
}

impl Word {
    fn read(&mut self, now: u32) {
        // Class 0 of the last gap: two reads of this tick have been counted.
        if self.tick == now && self.count >= 2 && self.g1 == 0 {
            return;
        }
        self.g2 = self.g1;
        self.g1 = if self.count == 0 { 0 } else { gap_class((now - self.tick).min(MAX_GAP_TICKS)) };
        self.count = self.count.saturating_add(1);
        self.tick = now;
    }
}

/// A 32-bit hash without collisions (the last steps of MurmurHash3, public domain).
fn hash32(key: Key) -> u32 {
    let mut hash = key;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

impl Cast {
    /// Room for `capacity` of the keys `0..n_keys`, of which newcomers have `w_permille`
    /// ([`DEFAULT_W_PERMILLE`]; one at least); `le` is the decay ([`DEFAULT_LE`]): scores
    /// halve while 2^(8 - `le`) times the capacity is taken in.
    ///
    /// # Panics
    ///
    /// If `n_keys` is above [`MAX_KEYS`](super::MAX_KEYS), or `le` is not 1 to 14, or the
    /// share is above 1000.
    #[must_use]
    pub fn new(capacity: usize, n_keys: usize, le: u8, w_permille: u16) -> Self {
        assert!(w_permille <= 1000, "a share of {w_permille} permille");
        Self {
            capacity,
            w_capacity: (capacity * usize::from(w_permille) / 1000).max(1),
            score: CastScore::new(le),
            newcomers: Lists::new(n_keys),
            main: LazyHeap::new(n_keys),
            words: vec![Word::default(); n_keys],
            step_parts: (capacity / 4).max(1) * PARTS,
            intake_parts: 0,
            now: 0,
            entries_to_main: 0,
        }
    }

    /// A key's rank: lower goes first.
    fn rank(&self, key: Key) -> (i64, u64) {
        let word = &self.words[key as usize];
        let log_score = self.score.log_score(word.g1, word.g2, word.count);
        let tie = match word.count {
            1 => word.entry,
            _ => (1 << 63) | u64::from(hash32(key)),
        };
        (self.score.key(word.tick, log_score), tie)
    }

    /// Whether W's oldest loses against M's lowest.
    fn loses(&self, newcomer: Key, lowest: (i64, u64)) -> bool {
        let (key, tie) = self.rank(newcomer);
        match self.words[newcomer as usize].count {
            1 => key < lowest.0,
            _ => (key, tie) < lowest,
        }
    }

    fn move_to_main(&mut self, key: Key) {
        self.newcomers.remove(key);
        self.words[key as usize].entry = self.entries_to_main;
        self.entries_to_main += 1;
        self.main.insert(key, self.rank(key));
    }

    /// Chooses who goes and takes it out; `None` if all are pinned.
    fn evict(&mut self, pinned: &[Key]) -> Option<Key> {
        let lowest = self.main.least(pinned);
        let over_share = self.newcomers.len(W) >= self.w_capacity || lowest.is_none();
        let contender = if over_share { self.newcomers.victim(W, pinned) } else { None };
        let victim = match (contender, lowest) {
            (None, None) => self.newcomers.victim(W, pinned)?,
            (None, Some((_, key))) => key,
            (Some(newcomer), None) => newcomer,
            (Some(newcomer), Some((rank, _))) if self.loses(newcomer, rank) => newcomer,
            (Some(newcomer), Some((_, key))) => {
                self.move_to_main(newcomer);
                key
            }
        };
        if self.main.contains(victim) {
            self.main.remove(victim);
        } else {
            self.newcomers.remove(victim);
        }
        self.words[victim as usize].evicted_tick = self.now;
        Some(victim)
    }

    /// `evicted` made room for it.
    fn take_in(&mut self, key: Key, evicted: Option<Key>) {
        let parts = match evicted {
            None => PARTS_ROOM,
            Some(key) if self.words[key as usize].count == 1 => PARTS_ONCE,
            Some(_) => PARTS,
        };
        let word = &mut self.words[key as usize];
        if word.count > 0 && self.now - word.evicted_tick > HISTORY_TICKS {
            *word = Word::default();
        }
        word.read(self.now);
        self.newcomers.push_front(W, key);
        self.intake_parts += parts;
        if self.intake_parts >= self.step_parts {
            self.intake_parts -= self.step_parts;
            self.now += 1;
        }
    }
}

impl Policy for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn len(&self) -> usize {
        self.newcomers.len(W) + self.main.len()
    }

    fn contains(&self, key: Key) -> bool {
        self.main.contains(key) || self.newcomers.list_of(key).is_some()
    }

    fn access(&mut self, key: Key, pinned: &[Key]) -> Verdict {
        if self.main.contains(key) {
            self.words[key as usize].read(self.now);
            self.main.set_rank(key, self.rank(key));
            return Verdict::Hit;
        }
        if self.newcomers.list_of(key).is_some() {
            self.words[key as usize].read(self.now);
            return Verdict::Hit;
        }
        let mut evicted = None;
        if self.len() >= self.capacity {
            evicted = self.evict(pinned);
            if evicted.is_none() {
                return Verdict::Bypass;
            }
        } else if self.newcomers.len(W) >= self.w_capacity {
            let oldest = self.newcomers.back(W).expect("its share is one at least");
            self.move_to_main(oldest);
        }
        self.take_in(key, evicted);
        Verdict::Admit { evicted }
    }
}
