//! The twins: each policy's rule said again, slowly, over lists of keys.
//!
//! A [`Twin`] does what all have in common; a [`Rule`] is asked whom to evict and told what
//! happened. Lists are ordered from the oldest to the newest.

mod adaptive;
mod ranked;

use adaptive::{ArcRule, S3FifoRule, TwoListRule};
use ranked::{BeladyRule, CastRule, LfuRule, LrfuRule, LruRule};
use router_trace::policy::{HalfLife, Key, PolicyKind, Verdict};

/// What differs between policies that admit.
pub(crate) trait Rule {
    /// `key` is kept and was used.
    fn hit(&mut self, key: Key);
    /// `key` is not kept and was asked for, whatever becomes of it.
    fn missed(&mut self, _key: Key) {}
    /// All that is kept is `kept`, in the order of arrival; one of `free` has to go for
    /// `key`. `None`: let `key` pass by.
    fn evict(&mut self, key: Key, kept: &[Key], free: &[Key]) -> Option<Key>;
    /// `key` is kept now.
    fn admitted(&mut self, key: Key);
}

pub(crate) struct Twin {
    capacity: usize,
    kept: Vec<Key>,
    rule: Option<Box<dyn Rule>>,
}

impl Twin {
    pub(crate) fn new(kind: PolicyKind, capacity: usize, keys: &[Key], uses: &[u32]) -> Self {
        let mut kept = Vec::new();
        let rule: Option<Box<dyn Rule>> = match kind {
            PolicyKind::Never => None,
            PolicyKind::Static | PolicyKind::OracleStatic => {
                let mut ranked: Vec<Key> = (0..uses.len() as Key).collect();
                ranked.sort_by_key(|&key| (u32::MAX - uses[key as usize], key));
                ranked.retain(|&key| uses[key as usize] > 0);
                kept = ranked.into_iter().take(capacity).collect();
                None
            }
            PolicyKind::Lru => Some(Box::new(LruRule::default())),
            PolicyKind::TwoList => Some(Box::new(TwoListRule::default())),
            PolicyKind::Lfu => Some(Box::new(LfuRule::new(false))),
            PolicyKind::GhostLfu => Some(Box::new(LfuRule::new(true))),
            PolicyKind::Lrfu { half_life } => {
                let half_life = match half_life {
                    HalfLife::Accesses(n) => f64::from(n),
                    HalfLife::Capacities(n) => f64::from(n) * capacity.max(1) as f64,
                };
                Some(Box::new(LrfuRule::new(half_life)))
            }
            PolicyKind::Arc => Some(Box::new(ArcRule::new(capacity))),
            PolicyKind::S3Fifo => Some(Box::new(S3FifoRule::new(capacity))),
            PolicyKind::Cast { le, w_permille } => {
                Some(Box::new(CastRule::new(capacity, le, w_permille)))
            }
            PolicyKind::Belady => Some(Box::new(BeladyRule::new(keys, false))),
            PolicyKind::BeladyBypass => Some(Box::new(BeladyRule::new(keys, true))),
            other => panic!("{other} has no twin"),
        };
        Self { capacity, kept, rule }
    }

    pub(crate) fn access(&mut self, key: Key, pinned: &[Key]) -> Verdict {
        let hit = self.kept.contains(&key);
        let Some(rule) = &mut self.rule else {
            return if hit { Verdict::Hit } else { Verdict::Bypass };
        };
        if hit {
            rule.hit(key);
            return Verdict::Hit;
        }
        rule.missed(key);
        let mut evicted = None;
        if self.kept.len() >= self.capacity {
            let is_free = |key: &&Key| !pinned.contains(key);
            let free: Vec<Key> = self.kept.iter().filter(is_free).copied().collect();
            if free.is_empty() {
                return Verdict::Bypass;
            }
            evicted = rule.evict(key, &self.kept, &free);
            let Some(victim) = evicted else { return Verdict::Bypass };
            self.kept.retain(|&kept| kept != victim);
        }
        self.kept.push(key);
        rule.admitted(key);
        Verdict::Admit { evicted }
    }

    pub(crate) fn kept(&self) -> Vec<Key> {
        let mut kept = self.kept.clone();
        kept.sort_unstable();
        kept
    }
}

/// Takes `key` out of `list`; whether it was there.
pub(crate) fn take(list: &mut Vec<Key>, key: Key) -> bool {
    let before = list.len();
    list.retain(|&other| other != key);
    list.len() < before
}
