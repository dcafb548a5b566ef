//! A trace as a flat list of accesses, which is what policies see.

mod keys;
mod list;
mod scenario;
mod synthetic;

pub use keys::KeySpace;
pub use synthetic::Synthetic;

use crate::error::TraceError;
use crate::format::jsonl::TraceHeader;
use crate::ids::ExpertId;
use crate::ids::ModelShape;
use crate::pass::LayerPass;
use crate::policy::{Key, MAX_KEYS};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The most accesses a list can have: 2^31 - 1.
pub const MAX_ACCESSES: usize = (1 << 31) - 1;

/// What a pass of several tokens asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Demand {
    /// Every token's experts, one token after the other.
    #[default]
    EachToken,
    /// Each expert once, in the order of its first token: a batch whose union is loaded
    /// together.
    OncePerPass,
}

/// The accesses of a trace in the order iteration → layer → token → expert.
///
/// An iteration is the run of passes with the same step number. 4 bytes an access and 8 a
/// pass. With decode passes of one token the order is token → layer → expert.
#[derive(Clone, Debug)]
pub struct Accesses {
    space: KeySpace,
    expert_bytes: Option<u64>,
    keys: Vec<Key>,
    passes: Vec<Pass>,
    /// The end of each iteration in `passes`.
    iteration_ends: Vec<u32>,
    /// The layer slot of each key that is not an expert of the model (see
    /// [`with_one_off_reads`](Accesses::with_one_off_reads)).
    one_off_slots: Vec<u16>,
}

#[derive(Clone, Copy, Debug)]
struct Pass {
    /// Where it ends in `keys`.
    end: u32,
    slot: u16,
}

impl Accesses {
    /// Flattens the passes of a trace, such as a [`JsonlReader`](crate::JsonlReader) gives.
    /// Every pass is taken, prompts and speculation included; who wants less filters before.
    ///
    /// # Errors
    ///
    /// The first error of `passes`; [`TraceError::ForeignExpert`] if a pass does not fit the
    /// header's shape; [`TraceError::TooMany`] above [`MAX_KEYS`] experts or
    /// [`MAX_ACCESSES`] accesses.
    pub fn from_passes(
        header: &TraceHeader,
        passes: impl IntoIterator<Item = Result<LayerPass, TraceError>>,
        demand: Demand,
    ) -> Result<Self, TraceError> {
        let mut accesses = Self::empty(KeySpace::new(&header.shape)?, header.expert_bytes);
        let mut route = Vec::new();
        let mut last_pass = vec![0; accesses.space.n_keys()];
        let mut step = None;
        for (pass, number) in passes.into_iter().zip(1..) {
            let pass = pass?;
            let slot = accesses.keys_of(&pass, number - 1, &mut route)?;
            if demand == Demand::OncePerPass {
                route.retain(|&key| {
                    std::mem::replace(&mut last_pass[key as usize], number) != number
                });
            }
            if step.replace(pass.info.step) != Some(pass.info.step) {
                accesses.begin_iteration();
            }
            accesses.push(slot, &route)?;
        }
        Ok(accesses)
    }

    /// A list that is made up: one iteration for each inner list, which holds the layer slot
    /// and the keys of each pass.
    ///
    /// # Errors
    ///
    /// As [`from_passes`](Accesses::from_passes).
    pub fn from_keys<'a>(
        shape: &ModelShape,
        expert_bytes: Option<u64>,
        iterations: impl IntoIterator<Item = &'a [(u16, Vec<Key>)]>,
    ) -> Result<Self, TraceError> {
        let mut accesses = Self::empty(KeySpace::new(shape)?, expert_bytes);
        for iteration in iterations {
            accesses.begin_iteration();
            for (slot, keys) in iteration {
                let n_experts = Key::from(shape.n_experts);
                let first = Key::from(*slot) * n_experts;
                let mut foreign = keys.iter().filter(|&&k| k < first || k >= first + n_experts);
                if let Some(&key) = foreign.next() {
                    let id = accesses.space.id(key).unwrap_or(ExpertId::new(*slot, u16::MAX));
                    return Err(accesses.space.foreign(accesses.passes.len() as u64, id));
                }
                accesses.push(*slot, keys)?;
            }
        }
        Ok(accesses)
    }

    fn empty(space: KeySpace, expert_bytes: Option<u64>) -> Self {
        Self {
            space,
            expert_bytes,
            keys: Vec::new(),
            passes: Vec::new(),
            iteration_ends: Vec::new(),
            one_off_slots: Vec::new(),
        }
    }

    /// Puts the keys of `pass` into `route` and gives its layer's slot.
    fn keys_of(&self, pass: &LayerPass, n: u64, route: &mut Vec<Key>) -> Result<u16, TraceError> {
        let layer = pass.info.layer;
        route.clear();
        for &index in pass.experts() {
            let id = ExpertId::new(layer, index);
            route.push(self.space.key(id).ok_or_else(|| self.space.foreign(n, id))?);
        }
        self.space.slot(layer).ok_or_else(|| self.space.foreign(n, ExpertId::new(layer, 0)))
    }

    fn begin_iteration(&mut self) {
        self.iteration_ends.push(self.passes.len() as u32);
    }

    /// Adds a pass to the iteration that was begun last.
    fn push(&mut self, slot: u16, keys: &[Key]) -> Result<(), TraceError> {
        let end = self.keys.len() + keys.len();
        if end > MAX_ACCESSES || self.passes.len() >= MAX_ACCESSES {
            let (value, limit) = (end as u64, MAX_ACCESSES as u64);
            return Err(TraceError::TooMany { what: "accesses", value, limit });
        }
        self.keys.extend_from_slice(keys);
        self.passes.push(Pass { end: end as u32, slot });
        let last = self.iteration_ends.last_mut().expect("an iteration was begun");
        *last = self.passes.len() as u32;
        Ok(())
    }

    /// The experts and their keys.
    #[must_use]
    pub fn key_space(&self) -> &KeySpace {
        &self.space
    }

    /// Bytes of one expert, where the trace says so.
    #[must_use]
    pub fn expert_bytes(&self) -> Option<u64> {
        self.expert_bytes
    }

    /// Says how large an expert is, where the trace does not or another size is asked about.
    #[must_use]
    pub fn with_expert_bytes(mut self, bytes: u64) -> Self {
        self.expert_bytes = Some(bytes);
        self
    }

    /// Keys that occur or could: the model's experts and whatever was added to them.
    #[must_use]
    pub fn n_keys(&self) -> usize {
        self.space.n_keys() + self.one_off_slots.len()
    }

    /// All accesses.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Iterations.
    #[must_use]
    pub fn n_iterations(&self) -> usize {
        self.iteration_ends.len()
    }

    /// The accesses of some iterations.
    ///
    /// # Panics
    ///
    /// If there are no such iterations.
    #[must_use]
    pub fn keys_in(&self, iterations: Range<usize>) -> &[Key] {
        let passes = self.pass_range(iterations);
        &self.keys[self.pass_start(passes.start)..self.pass_start(passes.end)]
    }

    /// The passes of some iterations, each as its layer's slot and its accesses.
    ///
    /// # Panics
    ///
    /// If there are no such iterations.
    pub fn passes_in(&self, iterations: Range<usize>) -> impl Iterator<Item = (u16, &[Key])> + '_ {
        let passes = self.pass_range(iterations);
        let mut start = self.pass_start(passes.start);
        self.passes[passes].iter().map(move |pass| {
            let end = pass.end as usize;
            (pass.slot, &self.keys[std::mem::replace(&mut start, end)..end])
        })
    }

    /// The layer slot that each key belongs to.
    #[must_use]
    pub fn slots(&self) -> Vec<u16> {
        let n_experts = usize::from(self.space.shape().n_experts);
        let layers = 0..self.space.shape().moe_layers.len();
        let experts = layers.flat_map(|slot| std::iter::repeat_n(slot as u16, n_experts));
        experts.chain(self.one_off_slots.iter().copied()).collect()
    }

    fn pass_range(&self, iterations: Range<usize>) -> Range<usize> {
        assert!(iterations.start <= iterations.end, "iterations {iterations:?}");
        let end = |iterations: usize| match iterations {
            0 => 0,
            n => self.iteration_ends[n - 1] as usize,
        };
        end(iterations.start)..end(iterations.end)
    }

    fn pass_start(&self, pass: usize) -> usize {
        pass.checked_sub(1).map_or(0, |before| self.passes[before].end as usize)
    }

    /// A key beyond the model's, for an object of layer `slot` that is read once.
    fn new_one_off_key(&mut self, slot: u16) -> Result<Key, TraceError> {
        let key = self.n_keys();
        if key >= MAX_KEYS {
            let (value, limit) = (key as u64 + 1, MAX_KEYS as u64);
            return Err(TraceError::TooMany { what: "objects read", value, limit });
        }
        self.one_off_slots.push(slot);
        Ok(key as Key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::PassInfo;
    use crate::route::{PassKind, Phase};

    fn header() -> TraceHeader {
        TraceHeader {
            model_name: String::new(),
            shape: ModelShape { moe_layers: vec![1, 3], n_experts: 8, top_k: 2 },
            expert_bytes: Some(10),
            created_by: String::new(),
        }
    }

    fn pass(step: u64, layer: u16, experts: &[u16]) -> Result<LayerPass, TraceError> {
        let (phase, kind) = (Phase::Decode, PassKind::Normal);
        let info = PassInfo { step, position: step, layer, phase, kind };
        Ok(LayerPass::new(info, 2, experts.to_vec()).unwrap())
    }

    #[test]
    fn order_and_boundaries() {
        let passes = [
            pass(4, 1, &[5, 2, 2, 7]),
            pass(4, 3, &[0, 1]),
            pass(9, 1, &[6, 5]),
            pass(9, 3, &[3, 0]),
        ];
        let accesses = Accesses::from_passes(&header(), passes, Demand::EachToken).unwrap();
        assert_eq!(accesses.keys(), [5, 2, 2, 7, 8, 9, 6, 5, 11, 8]);
        assert_eq!(accesses.n_iterations(), 2);
        assert_eq!(accesses.keys_in(1..2), [6, 5, 11, 8]);
        assert!(accesses.keys_in(2..2).is_empty());
        let first: Vec<_> = accesses.passes_in(0..1).collect();
        assert_eq!(first, [(0, &[5, 2, 2, 7][..]), (1, &[8, 9])]);
        assert_eq!(accesses.slots(), [[0; 8], [1; 8]].concat());
    }

    #[test]
    fn a_pass_can_ask_for_each_expert_once() {
        let passes = [pass(0, 1, &[5, 2, 2, 7]), pass(0, 1, &[2, 5, 5, 2])];
        let accesses = Accesses::from_passes(&header(), passes, Demand::OncePerPass).unwrap();
        assert_eq!(accesses.keys(), [5, 2, 7, 2, 5]);
    }

    #[test]
    fn foreign_passes_and_errors_stop_it() {
        let foreign_expert = vec![pass(0, 1, &[5, 2]), pass(1, 1, &[3, 8])];
        let error =
            Accesses::from_passes(&header(), foreign_expert, Demand::EachToken).unwrap_err();
        let text = "pass 1: layer 1 expert 8 is not in the model (2 layers of 8 experts)";
        assert_eq!(error.to_string(), text);
        let foreign_layer = vec![pass(0, 2, &[5, 2])];
        let error = Accesses::from_passes(&header(), foreign_layer, Demand::EachToken).unwrap_err();
        assert_eq!(error.kind(), "trace-invalid");
        let torn = vec![pass(0, 1, &[5, 2]), Err(TraceError::Torn { line: 3, records: 1 })];
        let error = Accesses::from_passes(&header(), torn, Demand::EachToken).unwrap_err();
        assert!(matches!(error, TraceError::Torn { .. }));
    }
}
