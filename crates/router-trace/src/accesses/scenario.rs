use super::Accesses;
use crate::error::TraceError;
use crate::policy::Key;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

impl Accesses {
    /// The same decode with a prompt read before iterations 0, `every`, 2 × `every`, …: a
    /// prefill pass over every layer in which each expert takes part with probability
    /// `pool_share`, each of them once. A prefill pass is an iteration of its own.
    ///
    /// The same `seed` gives the same list.
    ///
    /// # Errors
    ///
    /// [`TraceError::Setting`] if `every` is 0 or `pool_share` not between 0 and 1,
    /// [`TraceError::TooMany`] if the list gets too long.
    pub fn with_prefills(
        &self,
        every: usize,
        pool_share: f64,
        seed: u64,
    ) -> Result<Self, TraceError> {
        if every == 0 || !(0.0..=1.0).contains(&pool_share) {
            return Err(TraceError::Setting {
                what: "prefill mix",
                value: format!("{pool_share} of the pool every {every} iterations"),
                expected: "a share from 0 to 1, every 1 or more iterations".to_owned(),
            });
        }
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut mixed = self.like();
        let n_experts = Key::from(self.space.shape().n_experts);
        let n_slots = self.space.shape().moe_layers.len() as u16;
        for iteration in 0..self.n_iterations() {
            if iteration.is_multiple_of(every) {
                mixed.begin_iteration();
                for slot in 0..n_slots {
                    let first = Key::from(slot) * n_experts;
                    let mut experts: Vec<Key> = (first..first + n_experts).collect();
                    experts.retain(|_| random.random_bool(pool_share));
                    mixed.push(slot, &experts)?;
                }
            }
            mixed.begin_iteration();
            for (slot, keys) in self.passes_in(iteration..iteration + 1) {
                mixed.push(slot, keys)?;
            }
        }
        Ok(mixed)
    }

    /// The same decode with objects read among it that are never read again, such as another
    /// program's scan, so that they make up `share` of all accesses. They are spread evenly:
    /// behind each pass come as many as are due.
    ///
    /// # Errors
    ///
    /// [`TraceError::Setting`] if `share` is not at least 0 and below 1,
    /// [`TraceError::TooMany`] if there are too many objects or the list gets too long.
    pub fn with_one_off_reads(&self, share: f64) -> Result<Self, TraceError> {
        if !(0.0..1.0).contains(&share) {
            return Err(TraceError::Setting {
                what: "one-off reads",
                value: share.to_string(),
                expected: "a share of all accesses from 0 to below 1".to_owned(),
            });
        }
        let per_access = share / (1.0 - share);
        let mut mixed = self.like();
        let (mut passed, mut added) = (0, 0);
        for iteration in 0..self.n_iterations() {
            mixed.begin_iteration();
            for (slot, keys) in self.passes_in(iteration..iteration + 1) {
                mixed.push(slot, keys)?;
                passed += keys.len();
                // From the total, so that rounding does not add up.
                let due = (passed as f64 * per_access) as usize;
                let scan = (added..due).map(|_| mixed.new_one_off_key(slot));
                let scan = scan.collect::<Result<Vec<Key>, _>>()?;
                added += scan.len();
                mixed.push(slot, &scan)?;
            }
        }
        Ok(mixed)
    }

    /// No accesses, over the same keys.
    fn like(&self) -> Self {
        let mut like = Self::empty(self.space.clone(), self.expert_bytes);
        like.one_off_slots.clone_from(&self.one_off_slots);
        like
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ModelShape;

    fn decode(iterations: usize) -> Accesses {
        let shape = ModelShape { moe_layers: vec![0, 1], n_experts: 100, top_k: 4 };
        let token = vec![(0, vec![3, 1, 4, 15]), (1, vec![126, 153, 158, 197])];
        let tokens = vec![token; iterations];
        Accesses::from_keys(&shape, None, tokens.iter().map(Vec::as_slice)).unwrap()
    }

    #[test]
    fn prefills_are_iterations_of_their_own() {
        let mixed = decode(7).with_prefills(3, 0.5, 1).unwrap();
        assert_eq!(mixed.n_iterations(), 7 + 3);
        let lengths: Vec<_> = (0..10).map(|i| mixed.keys_in(i..i + 1).len()).collect();
        for (iteration, &length) in lengths.iter().enumerate() {
            match iteration {
                0 | 4 | 8 => assert!((60..140).contains(&length), "{length} of 200 at 0.5"),
                _ => assert_eq!(length, 8),
            }
        }
        let again = decode(7).with_prefills(3, 0.5, 1).unwrap();
        assert_eq!(mixed.keys(), again.keys());
        assert_ne!(mixed.keys(), decode(7).with_prefills(3, 0.5, 2).unwrap().keys());
        assert_eq!(decode(7).with_prefills(3, 1.0, 1).unwrap().keys_in(0..1).len(), 200);
    }

    #[test]
    fn one_off_reads_have_their_share_and_never_repeat() {
        let mixed = decode(50).with_one_off_reads(0.2).unwrap();
        assert_eq!((mixed.keys().len(), mixed.n_iterations()), (500, 50));
        let mut scan: Vec<_> = mixed.keys().iter().filter(|&&key| key >= 200).collect();
        scan.sort();
        scan.dedup();
        assert_eq!(scan.len(), 100);
        assert_eq!((mixed.n_keys(), mixed.slots().len()), (300, 300));
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        for (every, share) in [(0, 0.5), (1, 1.1), (1, -0.1), (1, f64::NAN)] {
            assert_eq!(decode(1).with_prefills(every, share, 0).unwrap_err().kind(), "usage");
        }
        for share in [1.0, -0.1, f64::NAN] {
            assert_eq!(decode(1).with_one_off_reads(share).unwrap_err().kind(), "usage");
        }
    }
}
