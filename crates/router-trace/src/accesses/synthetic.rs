use super::Accesses;
use crate::error::TraceError;
use crate::ids::ModelShape;
use crate::policy::Key;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;

/// Of the choices that repeat an earlier token's: how far back that token is.
const NEAR_TOKENS: usize = 8;

/// A made-up decode for measuring speed, never for hit rates: what a policy is worth only
/// real traces tell.
///
/// Each expert of a token repeats one of the last token's with probability 0.3, one of the
/// last 8 tokens' with 0.25, else it is drawn by a Zipf law of slope 1 over a ranking of the
/// layer's own.
#[derive(Clone, PartialEq, Debug)]
pub struct Synthetic {
    /// The model.
    pub shape: ModelShape,
    /// Accesses at least; the list ends with a whole iteration.
    pub accesses: usize,
    /// The same seed gives the same list.
    pub seed: u64,
}

impl Synthetic {
    /// 10 million accesses of a model of 92 layers with 896 experts, 16 a token: the largest
    /// published shape.
    #[must_use]
    pub fn ten_million() -> Self {
        let shape = ModelShape { moe_layers: (1..93).collect(), n_experts: 896, top_k: 16 };
        Self { shape, accesses: 10_000_000, seed: 1 }
    }

    /// Makes the list.
    ///
    /// # Errors
    ///
    /// [`TraceError::TooMany`] for too large a model or too many accesses;
    /// [`TraceError::Setting`] for a model without layers or whose tokens choose none or more
    /// than all experts.
    pub fn generate(&self) -> Result<Accesses, TraceError> {
        let ModelShape { moe_layers, n_experts, top_k } = &self.shape;
        if moe_layers.is_empty() || *top_k == 0 || top_k > n_experts {
            return Err(TraceError::Setting {
                what: "synthetic shape",
                value: format!("{top_k} of {n_experts} in {} layers", moe_layers.len()),
                expected: "at least one layer, one expert a token, and as many to choose from"
                    .to_owned(),
            });
        }
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let zipf = Zipf::new(usize::from(*n_experts));
        let mut layers: Vec<Layer> = (0..moe_layers.len() as Key)
            .map(|slot| Layer::new(slot * Key::from(*n_experts), *n_experts, &mut random))
            .collect();
        let mut list = Accesses::empty(super::KeySpace::new(&self.shape)?, None);
        while list.keys.len() < self.accesses {
            list.begin_iteration();
            for (slot, layer) in (0..).zip(&mut layers) {
                list.push(slot, layer.token(usize::from(*top_k), &zipf, &mut random))?;
            }
        }
        Ok(list)
    }
}

/// Draws ranks with probability proportional to 1 / (rank + 1).
struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    fn new(n: usize) -> Self {
        let mut sum = 0.0;
        let add = |rank: usize| {
            sum += 1.0 / (rank as f64 + 1.0);
            sum
        };
        Self { cumulative: (0..n).map(add).collect() }
    }

    fn draw(&self, random: &mut ChaCha8Rng) -> usize {
        let at = random.random::<f64>() * self.cumulative[self.cumulative.len() - 1];
        self.cumulative.partition_point(|&sum| sum <= at).min(self.cumulative.len() - 1)
    }
}

/// One layer's ranking and the routes of its last tokens, the newest in front.
struct Layer {
    ranking: Vec<Key>,
    recent: VecDeque<Vec<Key>>,
}

impl Layer {
    fn new(first: Key, n_experts: u16, random: &mut ChaCha8Rng) -> Self {
        let mut ranking: Vec<Key> = (first..first + Key::from(n_experts)).collect();
        ranking.shuffle(random);
        Self { ranking, recent: VecDeque::new() }
    }

    fn token(&mut self, top_k: usize, zipf: &Zipf, random: &mut ChaCha8Rng) -> &[Key] {
        let full = self.recent.len() >= NEAR_TOKENS;
        let oldest = if full { self.recent.pop_back() } else { None };
        let mut route = oldest.unwrap_or_default();
        route.clear();
        while route.len() < top_k {
            let kind = random.random::<f64>();
            let back = if kind < 0.3 { 0 } else { random.random_range(0..NEAR_TOKENS) };
            let key = match self.recent.get(back) {
                Some(token) if kind < 0.55 => token[random.random_range(0..top_k)],
                _ => self.ranking[zipf.draw(random)],
            };
            if !route.contains(&key) {
                route.push(key);
            }
        }
        self.recent.push_front(route);
        &self.recent[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(seed: u64) -> Accesses {
        let shape = ModelShape { moe_layers: vec![3, 4], n_experts: 64, top_k: 8 };
        Synthetic { shape, accesses: 10_000, seed }.generate().unwrap()
    }

    #[test]
    fn it_is_deterministic_and_has_whole_routes() {
        let list = small(7);
        assert_eq!(list.keys(), small(7).keys());
        assert_ne!(list.keys(), small(8).keys());
        assert_eq!((list.keys().len(), list.n_iterations()), (10_000, 625));
        for (slot, keys) in list.passes_in(0..list.n_iterations()) {
            let mut experts = keys.to_vec();
            experts.sort_unstable();
            experts.dedup();
            assert_eq!(experts.len(), 8);
            assert!(experts.iter().all(|key| key / 64 == u32::from(slot)));
        }
    }

    #[test]
    fn it_repeats_recent_experts() {
        let list = small(7);
        let tokens: Vec<_> = list.passes_in(0..625).filter(|pass| pass.0 == 0).collect();
        let repeats =
            |pair: &[(u16, &[Key])]| pair[1].1.iter().filter(|k| pair[0].1.contains(k)).count();
        let share = tokens.windows(2).map(repeats).sum::<usize>() as f64 / (624.0 * 8.0);
        assert!((0.3..0.6).contains(&share), "{share}");
    }

    #[test]
    fn impossible_shapes_are_refused() {
        for (layers, n_experts, top_k) in [(0, 8, 2), (1, 8, 0), (1, 8, 9)] {
            let shape = ModelShape { moe_layers: (0..layers).collect(), n_experts, top_k };
            let synthetic = Synthetic { shape, accesses: 10, seed: 0 };
            assert_eq!(synthetic.generate().unwrap_err().kind(), "usage");
        }
    }
}
