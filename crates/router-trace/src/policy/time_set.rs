/// A set of numbers below a bound, with the largest one at hand: a tree of bit words, 64
/// children a node. For 10 million numbers it has four levels in 1.3 MB, so every operation
/// is a few reads of cached memory.
pub(super) struct TimeSet {
    /// Level 0 has a bit a number; a bit of the next level says that a word is not zero.
    levels: Vec<Vec<u64>>,
}

impl TimeSet {
    /// The empty set of numbers below `bound`.
    pub(super) fn new(bound: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = bound;
        loop {
            words = words.div_ceil(64).max(1);
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels };
            }
        }
    }

    #[inline]
    pub(super) fn insert(&mut self, mut number: usize) {
        for level in &mut self.levels {
            let word = &mut level[number / 64];
            let was_empty = *word == 0;
            *word |= 1 << (number % 64);
            if !was_empty {
                return;
            }
            number /= 64;
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, mut number: usize) {
        for level in &mut self.levels {
            let word = &mut level[number / 64];
            *word &= !(1 << (number % 64));
            if *word != 0 {
                return;
            }
            number /= 64;
        }
    }

    /// The largest number in the set that is below `bound`.
    pub(super) fn last_below(&self, bound: usize) -> Option<usize> {
        let mut at = bound.min(64 * self.levels[0].len()).checked_sub(1)?;
        // Up while nothing lies to the left in this word, then down along the last bits. The
        // words of level 0 include the bit at `at`; above, what is at it was seen already.
        for (height, level) in self.levels.iter().enumerate() {
            let (word, bit) = (at / 64, at % 64);
            let mask = if height == 0 { u64::MAX >> (63 - bit) } else { (1 << bit) - 1 };
            let left = level[word] & mask;
            if left != 0 {
                let mut number = word * 64 + 63 - left.leading_zeros() as usize;
                for lower in self.levels[..height].iter().rev() {
                    number = number * 64 + 63 - lower[number].leading_zeros() as usize;
                }
                return Some(number);
            }
            at = word;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn equals_a_sorted_set(
            bound in prop::sample::select(vec![1usize, 63, 64, 65, 4096, 4097, 300_000]),
            ops in prop::collection::vec((any::<bool>(), any::<u32>()), 1..100),
        ) {
            let mut set = TimeSet::new(bound);
            let mut model = BTreeSet::new();
            for (insert, number) in ops {
                let number = number as usize % bound;
                if insert {
                    set.insert(number);
                    model.insert(number);
                } else if let Some(&number) = model.range(..=number).next_back() {
                    set.remove(number);
                    model.remove(&number);
                }
                for below in [0, number, number + 1, bound] {
                    let last = model.range(..below).next_back().copied();
                    prop_assert_eq!(set.last_below(below), last);
                }
            }
        }
    }
}
