use super::{Key, Policy, Verdict, key_count};

/// Keeps nothing: the control arm. Every access is read from the device.
pub struct Never {
    capacity: usize,
}

impl Never {
    /// Leaves `capacity` unused.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity }
    }
}

impl Policy for Never {
    fn name(&self) -> &'static str {
        "never"
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn len(&self) -> usize {
        0
    }

    fn contains(&self, _: Key) -> bool {
        false
    }

    fn access(&mut self, _: Key, _: &[Key]) -> Verdict {
        Verdict::Bypass
    }
}

/// Keeps a fixed set, chosen before: pinning by static frequency.
///
/// The set is there from the start, so it has no compulsory misses; what it is trained on
/// decides whether that is fair. Trained on the warm window it is what a pinned arena does;
/// trained on the accesses that it is scored on it is the best fixed set there can be.
pub struct StaticSet {
    name: &'static str,
    capacity: usize,
    kept: Vec<bool>,
    len: usize,
}

impl StaticSet {
    /// The `capacity` keys with the highest of `uses` (one number a key), of equals the
    /// lowest keys; keys without a use are not kept.
    #[must_use]
    pub fn trained(capacity: usize, uses: &[u32]) -> Self {
        let mut ranked: Vec<Key> = (0..key_count(uses.len())).collect();
        ranked.retain(|&key| uses[key as usize] > 0);
        ranked.sort_by_key(|&key| (std::cmp::Reverse(uses[key as usize]), key));
        ranked.truncate(capacity);
        let mut kept = vec![false; uses.len()];
        for &key in &ranked {
            kept[key as usize] = true;
        }
        Self { name: "static", capacity, kept, len: ranked.len() }
    }

    /// The same under the name of the policy that is trained in hindsight.
    #[must_use]
    pub fn oracle(capacity: usize, uses: &[u32]) -> Self {
        Self { name: "oracle-static", ..Self::trained(capacity, uses) }
    }
}

impl Policy for StaticSet {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn len(&self) -> usize {
        self.len
    }

    fn contains(&self, key: Key) -> bool {
        self.kept[key as usize]
    }

    fn access(&mut self, key: Key, _: &[Key]) -> Verdict {
        if self.contains(key) { Verdict::Hit } else { Verdict::Bypass }
    }
}
