//! What to keep: replacement policies over dense keys.
//!
//! A [`Policy`] is told of one access at a time and answers with a [`Verdict`]. It decides
//! and never counts; hits are counted by [`simulate`](crate::simulate) or by whoever serves
//! the bytes, so the object that is simulated is the object that runs. Keys are dense
//! numbers ([`KeySpace`](crate::KeySpace) converts them to [`ExpertId`](crate::ExpertId)),
//! so that every policy works on flat arrays and hashes nothing.
//!
//! [`PolicyKind`] names the policies and builds them. Two of them are control arms
//! ([`Never`] keeps nothing, [`Belady`] knows the future), two are fixed tables
//! ([`StaticSet`], trained on the past or on the very accesses it is scored on), the others
//! are on-line: they use what they have seen and nothing else.
//!
//! ```
//! use router_trace::policy::{Lru, Policy, Verdict};
//!
//! let mut lru = Lru::new(2, 10); // room for 2 of 10 experts
//! assert_eq!(lru.access(7, &[]), Verdict::Admit { evicted: None });
//! assert_eq!(lru.access(3, &[]), Verdict::Admit { evicted: None });
//! assert_eq!(lru.access(7, &[]), Verdict::Hit);
//! assert_eq!(lru.access(1, &[]), Verdict::Admit { evicted: Some(3) });
//! // 1 is newer than 7, but 7 is in use: the lease that holds it pins it.
//! assert_eq!(lru.access(4, &[7]), Verdict::Admit { evicted: Some(1) });
//! ```

mod arc;
mod belady;
mod cast;
mod fixed;
mod heap;
mod keeper;
mod kind;
mod lfu;
mod list;
mod lrfu;
mod lru;
mod per_layer;
mod s3fifo;
mod time_set;
mod two_list;

pub use arc::AdaptiveCache;
pub use belady::{Admission, Belady};
pub use cast::{Cast, CastScore, DEFAULT_LE, DEFAULT_W_PERMILLE};
pub use fixed::{Never, StaticSet};
pub use keeper::{Decision, Keeper};
pub use kind::{HalfLife, Hindsight, PolicyKind};
pub use lfu::{Ghosts, Lfu};
pub use lrfu::Lrfu;
pub use lru::Lru;
pub use per_layer::{PerLayer, split_evenly};
pub use s3fifo::S3Fifo;
pub use two_list::TwoList;

/// A dense number for an expert: below the number of keys the policy was built for.
pub type Key = u32;

/// The most keys a policy can be built for: 16.7 million, 200 times the largest model known.
pub const MAX_KEYS: usize = 1 << 24;

/// What a policy says to one access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The key is kept already.
    Hit,
    /// The key was not kept and is now; `evicted` had to go for it.
    Admit {
        /// The key that is no longer kept; `None` while there is room.
        evicted: Option<Key>,
    },
    /// The key was not kept and is not kept now: it is read for this one use.
    Bypass,
}

impl Verdict {
    /// Whether the access was served from what is kept.
    #[must_use]
    pub fn is_hit(self) -> bool {
        self == Self::Hit
    }
}

/// Decides what to keep.
///
/// What every policy promises, and the conformance tests check: a key is kept exactly from
/// its [`Verdict::Admit`] to the verdict that evicts it; never more than
/// [`capacity`](Policy::capacity) keys are kept; nothing is evicted while there is room; a
/// pinned key is never evicted (if all are pinned, the answer is [`Verdict::Bypass`] and
/// what is kept does not change); the same accesses get the same answers.
pub trait Policy {
    /// The policy's name as [`PolicyKind`] spells it, without parameters.
    fn name(&self) -> &'static str;

    /// Keys that fit.
    fn capacity(&self) -> usize;

    /// Keys kept now.
    fn len(&self) -> usize;

    /// Whether nothing is kept.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `key` is kept now.
    fn contains(&self, key: Key) -> bool;

    /// One access to `key`. Keys in `pinned` are in use and must not be evicted; the list is
    /// searched, so it should be short (the leases that are alive).
    ///
    /// # Panics
    ///
    /// If `key` is not below the number of keys that the policy was built for.
    fn access(&mut self, key: Key, pinned: &[Key]) -> Verdict;
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn name(&self) -> &'static str {
        (**self).name()
    }
    fn capacity(&self) -> usize {
        (**self).capacity()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
    fn contains(&self, key: Key) -> bool {
        (**self).contains(key)
    }
    fn access(&mut self, key: Key, pinned: &[Key]) -> Verdict {
        (**self).access(key, pinned)
    }
}

/// Number of keys as a key, checked once at construction.
///
/// # Panics
///
/// If there are more than [`MAX_KEYS`].
fn key_count(n_keys: usize) -> u32 {
    assert!(n_keys <= MAX_KEYS, "{n_keys} keys, policies take at most {MAX_KEYS}");
    u32::try_from(n_keys).expect("MAX_KEYS fits u32")
}
