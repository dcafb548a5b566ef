use super::{Key, Policy, Verdict};

/// Splits `capacity` over `parts` as evenly as whole numbers allow, the first parts getting
/// one more.
#[must_use]
pub fn split_evenly(capacity: usize, parts: usize) -> Vec<usize> {
    let each = capacity.checked_div(parts).unwrap_or(0);
    let rest = capacity.checked_rem(parts).unwrap_or(0);
    (0..parts).map(|part| each + usize::from(part < rest)).collect()
}

/// A policy for each layer, instead of one pool that all layers share.
pub struct PerLayer<P> {
    parts: Vec<P>,
    /// For each key its part and its key there.
    places: Vec<(u16, Key)>,
    /// For each part the keys in the order of its own.
    keys: Vec<Vec<Key>>,
    pinned: Vec<Key>,
}

impl<P: Policy> PerLayer<P> {
    /// `part_of[key]` says which of `parts` a key belongs to; in its part it is numbered by
    /// the order of keys. Capacities are the parts' own.
    ///
    /// # Panics
    ///
    /// If a part is named that is not there.
    #[must_use]
    pub fn new(parts: Vec<P>, part_of: &[u16]) -> Self {
        let (places, keys) = Self::places(parts.len(), part_of);
        Self { parts, places, keys, pinned: Vec::new() }
    }

    /// Where each key lies, and which keys each part has.
    pub(crate) fn places(n_parts: usize, part_of: &[u16]) -> (Vec<(u16, Key)>, Vec<Vec<Key>>) {
        let mut keys = vec![Vec::new(); n_parts];
        let place = |(key, &part): (Key, &u16)| {
            let part_keys: &mut Vec<Key> = &mut keys[usize::from(part)];
            part_keys.push(key);
            (part, part_keys.len() as Key - 1)
        };
        let places = (0..).zip(part_of).map(place).collect();
        (places, keys)
    }
}

impl<P: Policy> Policy for PerLayer<P> {
    fn name(&self) -> &'static str {
        self.parts.first().map_or("never", Policy::name)
    }

    fn capacity(&self) -> usize {
        self.parts.iter().map(Policy::capacity).sum()
    }

    fn len(&self) -> usize {
        self.parts.iter().map(Policy::len).sum()
    }

    fn contains(&self, key: Key) -> bool {
        let (part, local) = self.places[key as usize];
        self.parts[usize::from(part)].contains(local)
    }

    fn access(&mut self, key: Key, pinned: &[Key]) -> Verdict {
        let (part, local) = self.places[key as usize];
        self.pinned.clear();
        let here = pinned.iter().map(|&key| self.places[key as usize]);
        self.pinned.extend(here.filter(|place| place.0 == part).map(|place| place.1));
        let verdict = self.parts[usize::from(part)].access(local, &self.pinned);
        match verdict {
            Verdict::Admit { evicted: Some(local) } => {
                let evicted = Some(self.keys[usize::from(part)][local as usize]);
                Verdict::Admit { evicted }
            }
            other => other,
        }
    }
}
