//! Used or wasted: what advice has brought, held against what its layer demanded.

use router_trace::ExpertId;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Demands that are remembered: what comes later than so many layers after its own counts as
/// unknown.
const REMEMBERED: usize = 8;

/// What became of the bytes that advice brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Settled {
    /// Bytes of experts that the layer then demanded and found, as far as they were there in time.
    pub used_bytes: u64,
    /// Bytes of experts that it did not demand: read for nothing, as far as this pass goes.
    pub wasted_bytes: u64,
    /// Experts of the former kind.
    pub used_experts: u64,
    /// Of the latter.
    pub wasted_experts: u64,
    /// Of the used experts, those that their demand found unfinished: they were advised too late.
    pub late_experts: u64,
    /// Bytes of these that were left to demand.
    pub late_bytes: u64,
    /// Bytes of experts that advice had brought whole and that demand, told of in time, found
    /// missing all the same: evicted before anybody read them. The whole expert is counted, of
    /// which a part may have been there still.
    pub evicted_bytes: u64,
    /// Experts of that kind.
    pub evicted_experts: u64,
    /// Bytes of which nobody can say: their layer was never demanded, or long ago.
    pub unknown_bytes: u64,
}

/// An expert that advice has brought, wholly or in part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Brought {
    pub(crate) step: u64,
    pub(crate) id: ExpertId,
    pub(crate) bytes: u64,
    /// Bytes of it that were still missing when the advice ended.
    pub(crate) left: u64,
    /// Whether its demand had begun by then.
    pub(crate) late: bool,
}

/// What a layer demanded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Truth<'a> {
    step: u64,
    layer: u16,
    experts: &'a [u16],
}

#[derive(Debug, Default)]
struct Remembered {
    step: u64,
    layer: u16,
    experts: Vec<u16>,
    /// Those of them that the demand found missing, once it has looked.
    missing: Option<Vec<u16>>,
}

/// Settles what was brought, once its demand has looked for it.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// The newest last.
    truths: VecDeque<Remembered>,
    settled: Settled,
}

impl Settled {
    /// `found` is one of the experts of its demand.
    fn used(&mut self, truth: &Remembered, found: &Brought) {
        let missing = truth.missing.as_ref().is_some_and(|all| all.contains(&found.id.index));
        if missing && !found.late && found.left == 0 {
            self.evicted_bytes += found.bytes;
            self.evicted_experts += 1;
            return;
        }
        self.used_bytes += found.bytes;
        self.used_experts += 1;
        self.late_experts += u64::from(found.left > 0);
        self.late_bytes += found.left;
    }
}

impl<'a> Truth<'a> {
    pub(crate) fn of(step: u64, layer: u16, experts: &'a [u16]) -> Self {
        Self { step, layer, experts }
    }
}

impl Outcomes {
    /// A demand begins.
    pub(crate) fn demand(&mut self, truth: Truth<'_>) {
        // The oldest gives its memory to the newest.
        let mut kept = match self.truths.len() {
            REMEMBERED => self.truths.pop_front().unwrap_or_default(),
            _ => Remembered::default(),
        };
        (kept.step, kept.layer) = (truth.step, truth.layer);
        kept.experts.clear();
        kept.experts.extend_from_slice(truth.experts);
        kept.missing = None;
        self.truths.push_back(kept);
    }

    /// What the newest demand found missing; what is told a second time is of another demand,
    /// which nobody announced.
    pub(crate) fn looked(&mut self, missing: impl IntoIterator<Item = u16>) {
        if let Some(truth) = self.truths.back_mut().filter(|truth| truth.missing.is_none()) {
            truth.missing = Some(missing.into_iter().collect());
        }
    }

    /// Takes out of `brought` what can be said by now.
    pub(crate) fn settle(&mut self, brought: &mut Vec<Brought>) {
        let Some(last) = self.truths.back().map(|truth| (truth.step, truth.layer)) else { return };
        let Self { truths, settled } = self;
        brought.retain(|found| {
            let place = (found.step, found.id.layer);
            let truth = truths.iter().rev().find(|truth| (truth.step, truth.layer) == place);
            match truth {
                // It has not looked yet.
                Some(truth) if place == last && truth.missing.is_none() => return true,
                Some(truth) if truth.experts.contains(&found.id.index) => {
                    settled.used(truth, found);
                }
                Some(_) => {
                    settled.wasted_bytes += found.bytes;
                    settled.wasted_experts += 1;
                }
                // Its demand is still to come.
                None if place > last => return true,
                None => settled.unknown_bytes += found.bytes,
            }
            false
        });
    }

    pub(crate) fn settled(&self) -> Settled {
        self.settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brought(step: u64, layer: u16, index: u16) -> Brought {
        Brought {
            step,
            id: ExpertId::new(layer, index),
            bytes: 10 + u64::from(index),
            left: u64::from(index % 3),
            late: false,
        }
    }

    #[test]
    fn used_wasted_early_and_late() {
        let mut outcomes = Outcomes::default();
        let mut all = vec![brought(1, 4, 2), brought(1, 4, 3), brought(1, 5, 6)];
        outcomes.demand(Truth::of(1, 4, &[2, 9]));
        outcomes.settle(&mut all);
        assert_eq!(all.len(), 3, "it has not looked yet");
        outcomes.looked([]);
        outcomes.settle(&mut all);
        assert_eq!(all, [brought(1, 5, 6)], "its demand is still to come");
        let settled = outcomes.settled();
        assert_eq!((settled.used_bytes, settled.wasted_bytes), (12, 13));
        // A piece that was under way when its demand began is told afterwards.
        all.push(brought(1, 4, 9));
        outcomes.demand(Truth::of(1, 5, &[6]));
        outcomes.looked([]);
        outcomes.settle(&mut all);
        assert_eq!(all, []);
        let settled = outcomes.settled();
        assert_eq!((settled.used_experts, settled.wasted_experts), (3, 1));
        assert_eq!((settled.late_experts, settled.late_bytes), (1, 2), "of experts 2, 6 and 9");
        assert_eq!(settled.unknown_bytes, 0);
    }

    #[test]
    fn what_was_whole_in_time_and_is_missing_was_evicted() {
        let mut outcomes = Outcomes::default();
        // Whole, whole, whole but late, and one byte short.
        let mut all = vec![brought(1, 4, 0), brought(1, 4, 3), brought(1, 4, 6), brought(1, 4, 1)];
        all[2].late = true;
        outcomes.demand(Truth::of(1, 4, &[0, 3, 6, 1]));
        outcomes.looked([3, 6, 1]);
        outcomes.settle(&mut all);
        let settled = outcomes.settled();
        assert_eq!((settled.evicted_experts, settled.evicted_bytes), (1, 13));
        assert_eq!((settled.used_experts, settled.used_bytes), (3, 10 + 16 + 11));
        assert_eq!((settled.late_experts, settled.wasted_experts), (1, 0));
    }

    #[test]
    fn what_was_demanded_long_ago_is_unknown_and_memory_is_bounded() {
        let mut outcomes = Outcomes::default();
        for layer in 0..40 {
            outcomes.demand(Truth::of(0, layer, &[1]));
        }
        outcomes.looked([]);
        assert_eq!(outcomes.truths.len(), REMEMBERED);
        let mut all = vec![brought(0, 3, 1), brought(0, 39, 1), brought(0, 32, 0)];
        outcomes.settle(&mut all);
        let settled = outcomes.settled();
        let found = (settled.used_experts, settled.wasted_experts, settled.unknown_bytes);
        assert_eq!(found, (1, 1, 11));
    }
}
