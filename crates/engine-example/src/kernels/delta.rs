//! One step of a gated delta rule on the state of one head (Yang et al. 2024, "Gated Delta
//! Networks"; with a decay for each key channel as in Kimi Delta Attention, 2025).
//!
//! ```text
//! S ← (I − β k kᵀ) diag(d) S + β k vᵀ        out = Sᵀ q
//! ```
//!
//! Columns of the state do not meet, so each is one fixed sequence of operations, the same bits
//! on every [`Isa`]: with `i` ascending, `S[i] = S[i] · d[i]` and `p = fma(S[i], k[i], p)`; then
//! `u = (v − p) · β`; then `S[i] = fma(u, k[i], S[i])` and `out = fma(S[i], q[i], out)`.

use super::Isa;
use super::isa::Work;
use super::lanes::Lanes;
use super::layout::LANES;

/// What one token does to the state of one head.
#[derive(Clone, Copy, Debug)]
pub struct DeltaStep<'a> {
    /// `[keys]`, normalised.
    pub query: &'a [f32],
    /// `[keys]`, normalised.
    pub key: &'a [f32],
    /// `[values]`.
    pub value: &'a [f32],
    /// `[keys]`: what is left of each row of the state.
    pub decay: &'a [f32],
    /// How much of the state along `key` is replaced.
    pub beta: f32,
}

/// Updates `state` `[keys, values]` and writes what the query finds in it to `out` `[values]`.
/// Panics when a slice does not fit the others.
pub fn delta_step(isa: Isa, state: &mut [f32], step: &DeltaStep<'_>, out: &mut [f32]) {
    let (keys, values) = (step.key.len(), step.value.len());
    assert_eq!(state.len(), keys * values, "a state of {keys} keys, {values} values");
    assert_eq!((step.query.len(), step.decay.len()), (keys, keys), "query and decay");
    assert_eq!(out.len(), values, "one output a value");
    if !state.is_empty() {
        isa.run(Update { state, step, out });
    }
}

struct Update<'a> {
    state: &'a mut [f32],
    step: &'a DeltaStep<'a>,
    out: &'a mut [f32],
}

/// Columns of a tile, in steps: both passes over its rows find it in the nearest cache.
const TILE: usize = 4;

impl Work for Update<'_> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let values = self.out.len();
        let mut column = 0;
        while column + TILE * LANES <= values {
            self.tile::<L, TILE>(lanes, column);
            column += TILE * LANES;
        }
        while column + LANES <= values {
            self.tile::<L, 1>(lanes, column);
            column += LANES;
        }
        for column in column..values {
            self.column(column);
        }
    }
}

impl Update<'_> {
    #[inline(always)]
    fn tile<L: Lanes, const C: usize>(&mut self, lanes: L, column: usize) {
        let values = self.out.len();
        let DeltaStep { query, key, value, decay, beta } = *self.step;
        // Adding -0 changes nothing, not even a zero's sign: the product rounded once.
        let (nothing, minus) = (lanes.splat(-0.0), lanes.splat(-1.0));
        let mut found = [lanes.splat(0.0); C];
        for ((row, key), decay) in self.state.chunks_exact_mut(values).zip(key).zip(decay) {
            let (key, decay) = (lanes.splat(*key), lanes.splat(*decay));
            let row = steps_mut::<C>(row, column);
            for c in 0..C {
                let kept = lanes.fma(lanes.load(&row[c]), decay, nothing);
                lanes.store(kept, &mut row[c]);
                found[c] = lanes.fma(kept, key, found[c]);
            }
        }
        let value = &value[column..].as_chunks::<LANES>().0[..C];
        let mut change = [nothing; C];
        for c in 0..C {
            let difference = lanes.fma(found[c], minus, lanes.load(&value[c]));
            change[c] = lanes.fma(difference, lanes.splat(beta), nothing);
        }
        let mut sums = [lanes.splat(0.0); C];
        for ((row, key), query) in self.state.chunks_exact_mut(values).zip(key).zip(query) {
            let (key, query) = (lanes.splat(*key), lanes.splat(*query));
            let row = steps_mut::<C>(row, column);
            for c in 0..C {
                let new = lanes.fma(change[c], key, lanes.load(&row[c]));
                lanes.store(new, &mut row[c]);
                sums[c] = lanes.fma(new, query, sums[c]);
            }
        }
        let out = steps_mut::<C>(self.out, column);
        for c in 0..C {
            lanes.store(sums[c], &mut out[c]);
        }
    }

    /// The same for a column that is in no whole step.
    #[inline(always)]
    fn column(&mut self, column: usize) {
        let values = self.out.len();
        let DeltaStep { query, key, value, decay, beta } = *self.step;
        let mut found = 0.0_f32;
        for ((row, key), decay) in self.state.chunks_exact_mut(values).zip(key).zip(decay) {
            row[column] *= decay;
            found = row[column].mul_add(*key, found);
        }
        let change = (value[column] - found) * beta;
        let mut sum = 0.0_f32;
        for ((row, key), query) in self.state.chunks_exact_mut(values).zip(key).zip(query) {
            row[column] = change.mul_add(*key, row[column]);
            sum = row[column].mul_add(*query, sum);
        }
        self.out[column] = sum;
    }
}

#[inline(always)]
fn steps_mut<const C: usize>(row: &mut [f32], column: usize) -> &mut [[f32; LANES]] {
    &mut row[column..].as_chunks_mut::<LANES>().0[..C]
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// The formula with matrices, in double precision.
    fn naive(state: &mut [f64], step: &DeltaStep<'_>) -> Vec<f64> {
        let (keys, values) = (step.key.len(), step.value.len());
        let wide = |x: f32| f64::from(x);
        let decayed: Vec<f64> =
            (0..keys * values).map(|at| state[at] * wide(step.decay[at / values])).collect();
        for i in 0..keys {
            for j in 0..values {
                let along: f64 =
                    (0..keys).map(|r| wide(step.key[r]) * decayed[r * values + j]).sum();
                let (key, beta) = (wide(step.key[i]), wide(step.beta));
                state[i * values + j] =
                    decayed[i * values + j] - beta * key * along + beta * key * wide(step.value[j]);
            }
        }
        (0..values)
            .map(|j| (0..keys).map(|i| wide(step.query[i]) * state[i * values + j]).sum())
            .collect()
    }

    #[test]
    fn every_instruction_set_gives_the_formula_and_the_same_bits() {
        let mut rng = ChaCha8Rng::seed_from_u64(11);
        for (keys, values) in [(1, 1), (3, 17), (16, 16), (7, 90), (128, 128), (4, 15)] {
            let mut random = |len: usize, low: f32, high: f32| -> Vec<f32> {
                (0..len).map(|_| rng.random_range(low..high)).collect()
            };
            let begin = random(keys * values, -1.0, 1.0);
            let tokens: Vec<_> = (0..3)
                .map(|_| {
                    let size = 1.0 / (keys as f32).sqrt();
                    (
                        random(keys, -size, size),
                        random(keys, -size, size),
                        random(values, -1.0, 1.0),
                        random(keys, 0.1, 1.0),
                    )
                })
                .collect();
            let mut wide: Vec<f64> = begin.iter().map(|x| f64::from(*x)).collect();
            let mut all = Vec::new();
            for isa in Isa::available() {
                let (mut state, mut outs) = (begin.clone(), Vec::new());
                for (query, key, value, decay) in &tokens {
                    let mut out = vec![f32::NAN; values];
                    let step = DeltaStep { query, key, value, decay, beta: 0.7 };
                    delta_step(isa, &mut state, &step, &mut out);
                    outs.extend(out);
                }
                outs.extend(state);
                all.push(outs);
            }
            let mut expected = Vec::new();
            for (query, key, value, decay) in &tokens {
                let step = DeltaStep { query, key, value, decay, beta: 0.7 };
                expected.extend(naive(&mut wide, &step));
            }
            expected.extend(wide);
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            for outs in &all {
                assert_eq!(bits(outs), bits(&all[0]), "{keys}x{values}");
            }
            for (got, wanted) in all[0].iter().zip(&expected) {
                assert!((f64::from(*got) - wanted).abs() < 1e-5, "{keys}x{values}");
            }
        }
    }
}
