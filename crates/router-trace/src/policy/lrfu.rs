use super::heap::LazyHeap;
use super::{Key, Policy, Verdict};

/// Evicts the lowest score, where each use adds 1 to a key's score and scores halve every
/// half-life: LRFU (Lee et al., IEEE Transactions on Computers 50(12), 2001) with
/// F(x) = 2^(-x/H), time counted in accesses.
///
/// With a short half-life it is LRU, with an endless one LFU with ghost counts. All scores
/// decay alike, so the order of two keys that are not used never changes, and
/// rank = E/H + log2(score at E), with E the last use, changes only on use. Scores outlive
/// eviction, which makes LRFU of a fixed half-life a stack algorithm. 40 bytes a key,
/// 24 more while it is kept.
pub struct Lrfu {
    capacity: usize,
    half_life_accesses: f64,
    /// Ranked by the score's logarithm at time zero, then by the last use.
    kept: LazyHeap<(Rank, u64)>,
    last: Vec<Use>,
    now: u64,
}

/// A rank in half-lives; ordered totally. Never NaN.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Rank(f64);

impl Eq for Rank {}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Clone, Copy)]
struct Use {
    at: u64,
    /// Score just after that use; 0 before the first.
    score: f64,
}

impl Lrfu {
    /// Room for `capacity` of the keys `0..n_keys`; scores halve in `half_life_accesses`.
    ///
    /// # Panics
    ///
    /// If `n_keys` is above [`MAX_KEYS`](super::MAX_KEYS), or the half-life is not a
    /// positive number.
    #[must_use]
    pub fn new(capacity: usize, n_keys: usize, half_life_accesses: f64) -> Self {
        assert!(half_life_accesses > 0.0, "a half-life of {half_life_accesses} accesses");
        Self {
            capacity,
            half_life_accesses,
            kept: LazyHeap::new(n_keys),
            last: vec![Use { at: 0, score: 0.0 }; n_keys],
            now: 0,
        }
    }

    /// Adds a use now and gives the new rank.
    fn score(&mut self, key: Key) -> (Rank, u64) {
        let last = &mut self.last[key as usize];
        let half_lives = (self.now - last.at) as f64 / self.half_life_accesses;
        *last = Use { at: self.now, score: 1.0 + last.score * (-half_lives).exp2() };
        let rank = self.now as f64 / self.half_life_accesses + last.score.log2();
        (Rank(rank), self.now)
    }
}

impl Policy for Lrfu {
    fn name(&self) -> &'static str {
        "lrfu"
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn len(&self) -> usize {
        self.kept.len()
    }

    fn contains(&self, key: Key) -> bool {
        self.kept.contains(key)
    }

    fn access(&mut self, key: Key, pinned: &[Key]) -> Verdict {
        self.now += 1;
        let rank = self.score(key);
        if self.kept.contains(key) {
            self.kept.set_rank(key, rank);
            return Verdict::Hit;
        }
        let mut evicted = None;
        if self.len() >= self.capacity {
            let Some((_, least)) = self.kept.least(pinned) else { return Verdict::Bypass };
            self.kept.remove(least);
            evicted = Some(least);
        }
        self.kept.insert(key, rank);
        Verdict::Admit { evicted }
    }
}
