//! A recorded trace, and the exact LRU that the kernel is held against.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};

/// OLMoE, 299 tokens; see `data/README.md`.
const OLMOE: &str = include_str!("../../data/olmoe_299.jsonl");
pub(crate) const LAYERS: u16 = 16;
pub(crate) const EXPERTS: u16 = 64;

#[derive(Deserialize)]
struct Line {
    layers: Vec<Vec<u16>>,
}

/// All accesses in the order token, layer, expert, each as (layer, index).
pub(crate) fn olmoe() -> Result<Vec<(u16, u16)>> {
    let mut all = Vec::new();
    for (number, text) in OLMOE.lines().enumerate() {
        let line: Line =
            serde_json::from_str(text).with_context(|| format!("trace line {}", number + 1))?;
        ensure!(line.layers.len() == usize::from(LAYERS), "trace line {}", number + 1);
        for (layer, experts) in (0..).zip(line.layers) {
            ensure!(experts.iter().all(|&e| e < EXPERTS), "trace line {}", number + 1);
            all.extend(experts.into_iter().map(|expert| (layer, expert)));
        }
    }
    Ok(all)
}

/// What an access of an [`Lru`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access<K> {
    Hit,
    /// It takes a place now; this one had to go.
    Miss(Option<K>),
}

/// Exact least-recently-used over a fixed number of places.
#[derive(Debug)]
pub(crate) struct Lru<K> {
    places: usize,
    clock: u64,
    used: HashMap<K, u64>,
    by_time: BTreeMap<u64, K>,
}

impl<K: Copy + Eq + std::hash::Hash> Lru<K> {
    pub(crate) fn new(places: usize) -> Self {
        Self { places, clock: 0, used: HashMap::new(), by_time: BTreeMap::new() }
    }

    pub(crate) fn access(&mut self, key: K) -> Access<K> {
        self.clock += 1;
        let known = self.used.insert(key, self.clock);
        self.by_time.insert(self.clock, key);
        if let Some(time) = known {
            self.by_time.remove(&time);
            return Access::Hit;
        }
        if self.used.len() <= self.places {
            return Access::Miss(None);
        }
        let victim = self.by_time.pop_first().map(|(_, victim)| victim);
        if let Some(victim) = victim {
            self.used.remove(&victim);
        }
        Access::Miss(victim)
    }
}

/// Share of `accesses[scored..]` that exact LRU misses.
pub(crate) fn miss_ratio(accesses: &[(u16, u16)], places: usize, scored: usize) -> f64 {
    let mut lru = Lru::new(places);
    let mut misses = 0;
    for (number, &access) in accesses.iter().enumerate() {
        if lru.access(access) != Access::Hit && number >= scored {
            misses += 1;
        }
    }
    f64::from(misses) / (accesses.len() - scored).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_has_all_its_accesses() {
        assert_eq!(olmoe().unwrap().len(), 299 * 16 * 8);
    }

    #[test]
    fn exact_lru_gives_the_published_hits() {
        let trace = olmoe().unwrap();
        for (places, hits) in [(61, 0.000), (128, 0.319), (256, 0.565), (512, 0.784)] {
            let found = 1.0 - miss_ratio(&trace, places, 0);
            assert!((found - hits).abs() < 0.0005, "{places} places: {found}");
        }
    }

    #[test]
    fn the_scored_part_misses_what_was_measured_before() {
        let trace = olmoe().unwrap();
        let found = miss_ratio(&trace, 256, trace.len() * 2 / 5);
        assert!((found - 0.4076).abs() < 0.0005, "{found}");
    }

    #[test]
    fn lru_equals_a_naive_list() {
        let mut lru = Lru::new(5);
        let mut list: Vec<u32> = Vec::new();
        let mut state = 1_u32;
        for _ in 0..2000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let key = (state >> 16) % 11;
            let expected = match list.iter().position(|&held| held == key) {
                Some(place) => {
                    list.remove(place);
                    Access::Hit
                }
                None => Access::Miss((list.len() == 5).then(|| list.remove(0))),
            };
            list.push(key);
            assert_eq!(lru.access(key), expected);
        }
    }
}
