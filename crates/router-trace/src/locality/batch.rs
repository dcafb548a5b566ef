use super::places::Places;
use crate::error::TraceError;
use crate::ids::ModelShape;
use crate::pass::{LayerPass, PassInfo};
use crate::route::{PassKind, Phase};
use serde::{Deserialize, Serialize};
use std::iter::Peekable;

/// What several traces would share if they were decoded together, iteration by iteration.
///
/// Every decode pass counts, rejected attempts included, because each had to be read;
/// prefill does not. The window ends with the shortest trace. An iteration is one step,
/// with the fallback that repeats it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BatchStats {
    /// Names of the traces, in the order they were added to the batch.
    pub names: Vec<String>,
    /// Iterations that every trace has.
    pub iterations: u64,
    /// One entry a batch size: the first trace alone, the first two, and so on.
    pub steps: Vec<BatchStep>,
}

/// A batch of the first `streams` traces. Counts are sums over all iterations and layers.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct BatchStep {
    /// Traces decoded together.
    pub streams: usize,
    /// Tokens that were accepted in the window, of all streams.
    pub accepted_tokens: u64,
    /// Selections.
    pub selections: u64,
    /// Different experts of each stream and iteration: reads without sharing.
    pub apart: u64,
    /// Different experts of each iteration: reads with sharing.
    pub together: u64,
}

impl BatchStep {
    /// `apart` / `together`: 1 if the streams share nothing, `streams` if all. `None`
    /// without selections.
    #[must_use]
    pub fn dedup(&self) -> Option<f64> {
        (self.together > 0).then(|| self.apart as f64 / self.together as f64)
    }

    /// Bytes read an iteration if nothing is cached, for experts of `expert_bytes`.
    #[must_use]
    pub fn bytes_per_iteration(&self, iterations: u64, expert_bytes: u64) -> Option<f64> {
        let bytes = self.together as f64 * expert_bytes as f64;
        (iterations > 0).then(|| bytes / iterations as f64)
    }
}

impl BatchStats {
    /// Reads the named streams, all of a model of this shape, side by side.
    ///
    /// # Errors
    ///
    /// The first error of a stream, [`TraceError::ForeignPass`] for a pass of another
    /// model, and a model that is too large to count.
    pub fn count<I>(shape: &ModelShape, streams: Vec<(String, I)>) -> Result<Self, TraceError>
    where
        I: Iterator<Item = Result<LayerPass, TraceError>>,
    {
        let places = Places::new(shape)?;
        let (names, inputs): (Vec<_>, Vec<_>) = streams.into_iter().unzip();
        let mut inputs: Vec<_> = inputs.into_iter().map(Iterations::new).collect();
        let mut counter = Counter::new(places, inputs.len());
        let mut iterations = 0;
        let mut batch: Vec<Vec<LayerPass>> = vec![Vec::new(); inputs.len()];
        while !inputs.is_empty() {
            for (input, passes) in inputs.iter_mut().zip(&mut batch) {
                if !input.next_into(passes)? {
                    return Ok(Self { names, iterations, steps: counter.steps });
                }
            }
            counter.iteration(&batch)?;
            iterations += 1;
        }
        Ok(Self { names, iterations, steps: Vec::new() })
    }
}

/// Cuts a trace into iterations.
struct Iterations<I: Iterator> {
    passes: Peekable<I>,
}

impl<I: Iterator<Item = Result<LayerPass, TraceError>>> Iterations<I> {
    fn new(passes: I) -> Self {
        Self { passes: passes.peekable() }
    }

    /// The decode passes of the next iteration; `false` at the end.
    fn next_into(&mut self, iteration: &mut Vec<LayerPass>) -> Result<bool, TraceError> {
        iteration.clear();
        let mut current: Option<PassInfo> = None;
        while let Some(next) = self.passes.peek() {
            if let (Ok(next), Some(current)) = (next, current) {
                let again = next.info.kind == PassKind::SpecFallback
                    && next.info.position == current.position;
                if next.info.step != current.step && !again {
                    break;
                }
            }
            let Some(pass) = self.passes.next().transpose()? else { break };
            if pass.info.phase == Phase::Decode {
                current = Some(pass.info);
                iteration.push(pass);
            }
        }
        Ok(!iteration.is_empty())
    }
}

struct Counter {
    places: Places,
    steps: Vec<BatchStep>,
    /// When each expert was last chosen by any stream, and by the stream at hand: numbers
    /// of iterations, and of streams counted so far, from 1.
    by_any: Vec<u64>,
    by_one: Vec<u64>,
    iteration: u64,
    stream: u64,
    /// Accepted tokens of each layer in the iteration and stream at hand.
    accepted: Vec<u64>,
}

impl Counter {
    fn new(places: Places, streams: usize) -> Self {
        let shape = places.shape();
        let step = |streams| BatchStep {
            streams,
            accepted_tokens: 0,
            selections: 0,
            apart: 0,
            together: 0,
        };
        Self {
            steps: (1..=streams).map(step).collect(),
            by_any: vec![0; shape.total_experts()],
            by_one: vec![0; shape.total_experts()],
            iteration: 0,
            stream: 0,
            accepted: vec![0; shape.moe_layers.len()],
            places,
        }
    }

    fn iteration(&mut self, batch: &[Vec<LayerPass>]) -> Result<(), TraceError> {
        self.iteration += 1;
        let mut sum =
            BatchStep { streams: 0, accepted_tokens: 0, selections: 0, apart: 0, together: 0 };
        for (at, passes) in batch.iter().enumerate() {
            self.stream += 1;
            self.accepted.fill(0);
            for pass in passes {
                self.pass(pass, &mut sum)?;
            }
            sum.accepted_tokens += self.accepted.iter().max().copied().unwrap_or(0);
            let step = &mut self.steps[at];
            step.accepted_tokens += sum.accepted_tokens;
            step.selections += sum.selections;
            step.apart += sum.apart;
            step.together += sum.together;
        }
        Ok(())
    }

    fn pass(&mut self, pass: &LayerPass, sum: &mut BatchStep) -> Result<(), TraceError> {
        let place = self.places.of(pass)?;
        let base = place * usize::from(self.places.shape().n_experts);
        sum.selections += pass.experts().len() as u64;
        for &expert in pass.experts() {
            let at = base + usize::from(expert);
            if std::mem::replace(&mut self.by_one[at], self.stream) != self.stream {
                sum.apart += 1;
            }
            if std::mem::replace(&mut self.by_any[at], self.iteration) != self.iteration {
                sum.together += 1;
            }
        }
        let tokens = pass.n_tokens() as u64;
        if pass.info.kind == PassKind::SpecFallback {
            self.accepted[place] = tokens; // in place of the rejected attempt
        } else {
            self.accepted[place] += tokens;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> ModelShape {
        ModelShape { moe_layers: vec![0], n_experts: 8, top_k: 2 }
    }

    fn stream(passes: &[(u64, u64, PassKind, &[u16])]) -> Vec<Result<LayerPass, TraceError>> {
        let pass = |&(step, position, kind, experts): &(u64, u64, PassKind, &[u16])| {
            let info = PassInfo { step, position, layer: 0, phase: Phase::Decode, kind };
            Ok(LayerPass::new(info, 2, experts.to_vec()).unwrap())
        };
        passes.iter().map(pass).collect()
    }

    #[test]
    fn by_hand() {
        use PassKind::{Normal, SpecAccept, SpecFallback};
        let a = stream(&[
            (0, 0, Normal, &[0, 1]),
            (1, 1, Normal, &[2, 3, 2, 4]), // rejected
            (2, 1, SpecFallback, &[2, 5]),
            (3, 2, Normal, &[0, 1]),
        ]);
        let b = stream(&[(0, 0, SpecAccept, &[1, 2, 1, 3]), (1, 2, Normal, &[2, 7])]);
        let streams = vec![("a".to_owned(), a.into_iter()), ("b".to_owned(), b.into_iter())];
        let stats = BatchStats::count(&shape(), streams).unwrap();
        assert_eq!(stats.iterations, 2); // b ends
        let alone =
            BatchStep { streams: 1, accepted_tokens: 2, selections: 8, apart: 6, together: 6 };
        // {0 1} + {1 2 3}, then {2 3 4 5} + {2 7}.
        let both =
            BatchStep { streams: 2, accepted_tokens: 5, selections: 14, apart: 11, together: 9 };
        assert_eq!(stats.steps, [alone, both]);
        assert_eq!(both.dedup(), Some(11.0 / 9.0));
        assert_eq!(both.bytes_per_iteration(2, 100), Some(450.0));
    }

    #[test]
    fn empty_streams_have_no_figures() {
        let none: Vec<(String, std::vec::IntoIter<_>)> = Vec::new();
        assert_eq!(BatchStats::count(&shape(), none).unwrap().iterations, 0);
        let one = vec![("a".to_owned(), stream(&[]).into_iter())];
        let stats = BatchStats::count(&shape(), one).unwrap();
        assert_eq!((stats.iterations, stats.steps[0].dedup()), (0, None));
        assert_eq!(stats.steps[0].bytes_per_iteration(0, 1), None);
    }
}
