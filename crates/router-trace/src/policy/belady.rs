use super::time_set::TimeSet;
use super::{Key, Policy, Verdict, key_count};

/// Whether a newcomer must be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Every access leaves its key kept, as a page cache does: MIN as published.
    Always,
    /// A newcomer that is used later than everything kept is passed by. No policy of the
    /// same capacity has fewer misses.
    Optional,
}

/// Belady's MIN (IBM Systems Journal 5(2), 1966): evicts what is used farthest in the future.
///
/// It must be told the accesses before they happen. Next uses are different moments, so they
/// form a set of numbers, and the one farthest ahead is the set's largest: each access costs
/// a few words of a bit tree, whatever the capacity. Of keys that are never used again the
/// highest goes first. 4 bytes an access and 5 a key.
pub struct Belady<'t> {
    capacity: usize,
    admission: Admission,
    accesses: &'t [Key],
    /// For each access the moment of the key's next; a key without one has the moment
    /// `accesses.len() + key`.
    next: Vec<u32>,
    /// Next uses of what is kept.
    ahead: TimeSet,
    /// The next use of each key that is kept.
    due: Vec<u32>,
    now: usize,
    len: usize,
}

/// Not kept.
const OUT: u32 = u32::MAX;

impl<'t> Belady<'t> {
    /// Room for `capacity` of the keys `0..n_keys`, which will be used as `accesses` says.
    ///
    /// # Panics
    ///
    /// If `n_keys` is above [`MAX_KEYS`](super::MAX_KEYS), an access is not below it, or
    /// there are 2^31 accesses or more.
    #[must_use]
    pub fn new(capacity: usize, n_keys: usize, accesses: &'t [Key], admission: Admission) -> Self {
        let n_accesses = u32::try_from(accesses.len()).unwrap_or(u32::MAX);
        assert!(n_accesses < 1 << 31, "{} accesses", accesses.len());
        let never = |key: Key| n_accesses + key;
        let mut due: Vec<u32> = (0..key_count(n_keys)).map(never).collect();
        let mut next = vec![0; accesses.len()];
        for ((at, &key), next) in (0..n_accesses).zip(accesses).zip(&mut next).rev() {
            *next = std::mem::replace(&mut due[key as usize], at);
        }
        due.fill(OUT);
        let ahead = TimeSet::new(accesses.len() + n_keys);
        Self { capacity, admission, accesses, next, ahead, due, now: 0, len: 0 }
    }

    fn key_due(&self, moment: usize) -> Key {
        match self.accesses.get(moment) {
            Some(&key) => key,
            None => (moment - self.accesses.len()) as Key,
        }
    }

    /// The key that is kept, not pinned, and used last.
    fn farthest(&self, pinned: &[Key]) -> Option<(u32, Key)> {
        let mut moment = usize::MAX;
        loop {
            moment = self.ahead.last_below(moment)?;
            let key = self.key_due(moment);
            if !pinned.contains(&key) {
                return Some((moment as u32, key));
            }
        }
    }

    fn keep(&mut self, key: Key, due: u32) {
        self.due[key as usize] = due;
        self.ahead.insert(due as usize);
    }
}

impl Policy for Belady<'_> {
    fn name(&self) -> &'static str {
        match self.admission {
            Admission::Always => "belady",
            Admission::Optional => "belady-bypass",
        }
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn len(&self) -> usize {
        self.len
    }

    fn contains(&self, key: Key) -> bool {
        self.due[key as usize] != OUT
    }

    /// # Panics
    ///
    /// If `key` is not the next of the accesses that were announced.
    fn access(&mut self, key: Key, pinned: &[Key]) -> Verdict {
        assert_eq!(self.accesses.get(self.now), Some(&key), "access {} as announced", self.now);
        let due = self.next[self.now];
        let was_due = self.now;
        self.now += 1;
        if self.contains(key) {
            self.ahead.remove(was_due);
            self.keep(key, due);
            return Verdict::Hit;
        }
        let mut evicted = None;
        if self.len >= self.capacity {
            let Some((moment, farthest)) = self.farthest(pinned) else { return Verdict::Bypass };
            if self.admission == Admission::Optional && due > moment {
                return Verdict::Bypass;
            }
            self.ahead.remove(moment as usize);
            self.due[farthest as usize] = OUT;
            self.len -= 1;
            evicted = Some(farthest);
        }
        self.keep(key, due);
        self.len += 1;
        Verdict::Admit { evicted }
    }
}
