use super::list::Lists;
use super::{Key, Policy, Verdict};

const INACTIVE: u8 = 0;
const ACTIVE: u8 = 1;
/// The kernel lets the active list be this many times the inactive one, for lists of one to
/// a few GiB (`inactive_is_low`: the root of ten times the GiB).
const INACTIVE_RATIO: usize = 3;
/// Never evicted yet.
const NO_SHADOW: u64 = u64::MAX;

/// The two-list LRU of the Linux page cache without MGLRU, as of 6.12, for clean file pages
/// that are read through the page cache; one key stands for all pages of an expert.
///
/// A first read puts the key on the inactive list, marked referenced; a read of a referenced
/// inactive key activates it (`folio_mark_accessed`). Eviction takes the inactive list's
/// tail and leaves the non-resident age in its shadow; a key that comes back while its
/// refault distance is at most the active list's length starts active
/// (`workingset_refault`). Evictions and activations age the non-resident.
/// The active list's tail is moved to the inactive list while the latter is low, and, in
/// proportion to both lengths, while refaults activate (`prepare_scan_control`). The kernel
/// reclaims 32 pages at a time, so it sees the refaults of the very expert that it makes
/// room for; here that is one decision an expert.
///
/// What it leaves out: shadows are never reclaimed; no dirty, mapped or anonymous pages; no
/// read-ahead. 21 bytes a key.
pub struct TwoList {
    capacity: usize,
    lists: Lists<2>,
    referenced: Vec<bool>,
    shadow: Vec<u64>,
    nonresident_age: u64,
    /// Active keys to scan, in 1/`inactive` keys: the proportion's remainder.
    owed: usize,
}

impl TwoList {
    /// Room for `capacity` of the keys `0..n_keys`.
    ///
    /// # Panics
    ///
    /// If `n_keys` is above [`MAX_KEYS`](super::MAX_KEYS).
    #[must_use]
    pub fn new(capacity: usize, n_keys: usize) -> Self {
        Self {
            capacity,
            lists: Lists::new(n_keys),
            referenced: vec![false; n_keys],
            shadow: vec![NO_SHADOW; n_keys],
            nonresident_age: 0,
            owed: 0,
        }
    }

    fn read_kept(&mut self, key: Key, list: u8) {
        let referenced = &mut self.referenced[key as usize];
        if list == INACTIVE && *referenced {
            *referenced = false;
            self.lists.move_front(ACTIVE, key);
            self.nonresident_age += 1;
        } else {
            *referenced = true;
        }
    }

    /// Whether a key that comes back was evicted so recently that it belongs to what is in
    /// steady use: it would have stayed, had the active list's room been its own.
    fn refaults_soon(&self, key: Key) -> bool {
        let shadow = self.shadow[key as usize];
        shadow != NO_SHADOW && self.nonresident_age - shadow <= self.lists.len(ACTIVE) as u64
    }

    /// Moves active tails to the inactive list as reclaim would.
    fn deactivate(&mut self, refaulting: bool) {
        let low = self.lists.len(INACTIVE) * INACTIVE_RATIO < self.lists.len(ACTIVE);
        if low || refaulting {
            self.owed += self.lists.len(ACTIVE);
            while let Some(tail) = self.lists.back(ACTIVE)
                && self.owed >= self.lists.len(INACTIVE).max(1)
            {
                self.owed -= self.lists.len(INACTIVE).max(1);
                self.lists.move_front(INACTIVE, tail);
            }
        }
        if self.lists.len(INACTIVE) == 0
            && let Some(tail) = self.lists.back(ACTIVE)
        {
            self.lists.move_front(INACTIVE, tail);
        }
    }
}

impl Policy for TwoList {
    fn name(&self) -> &'static str {
        "two-list"
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn len(&self) -> usize {
        self.lists.len(INACTIVE) + self.lists.len(ACTIVE)
    }

    fn contains(&self, key: Key) -> bool {
        self.lists.list_of(key).is_some()
    }

    fn access(&mut self, key: Key, pinned: &[Key]) -> Verdict {
        if let Some(list) = self.lists.list_of(key) {
            self.read_kept(key, list);
            return Verdict::Hit;
        }
        let activate = self.refaults_soon(key);
        let mut evicted = None;
        if self.len() >= self.capacity {
            let unpinned = |list| self.lists.victim(list, pinned).is_some();
            if !(unpinned(INACTIVE) || unpinned(ACTIVE)) {
                return Verdict::Bypass;
            }
            self.deactivate(activate);
            let inactive = self.lists.victim(INACTIVE, pinned);
            let victim = inactive.or_else(|| self.lists.victim(ACTIVE, pinned));
            let victim = victim.expect("one is not pinned");
            self.lists.remove(victim);
            self.shadow[victim as usize] = self.nonresident_age;
            self.nonresident_age += 1;
            evicted = Some(victim);
        }
        if activate {
            self.nonresident_age += 1;
        }
        self.lists.push_front(if activate { ACTIVE } else { INACTIVE }, key);
        self.referenced[key as usize] = true;
        Verdict::Admit { evicted }
    }
}
