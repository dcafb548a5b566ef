use super::places::Places;
use super::reuse::Windows;
use crate::error::TraceError;
use crate::ids::ModelShape;
use crate::pass::LayerPass;
use crate::route::{PassKind, Phase};

/// Tokens of the first snapshot distance; see [`LayerCounter::snapshots`].
const SNAPSHOT_TOKENS: u64 = 16;
const MAX_SNAPSHOTS: usize = 16;

/// What was seen of one expert. Tokens are numbered from 1; 0 is never.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) count: u64,
    pub(super) first: u64,
    pub(super) last: u64,
}

/// Passes with several tokens, and what their tokens shared.
#[derive(Clone, Copy, Default)]
pub(super) struct Shared {
    pub(super) passes: u64,
    pub(super) tokens: u64,
    pub(super) selections: u64,
    pub(super) distinct: u64,
}

/// One layer in one phase.
pub(super) struct LayerCounter {
    pub(super) tokens: u64,
    pub(super) seen: Vec<Seen>,
    /// A selection whose distance falls into windows a..b adds 1 at a and takes 1 at b:
    /// two steps a selection, however many windows. Sums of prefixes are the hits.
    reuse_edges: Vec<i64>,
    pub(super) shared: Shared,
    /// Counts after every so many tokens, to compare the two halves of a trace whose
    /// length is not known before its end. When full, every second one is forgotten.
    snapshots: Vec<(u64, Vec<u64>)>,
    snapshot_tokens: u64,
}

impl LayerCounter {
    fn new(n_experts: u16, windows: &Windows) -> Self {
        Self {
            tokens: 0,
            seen: vec![Seen::default(); n_experts.into()],
            reuse_edges: vec![0; windows.tokens().len() + 1],
            shared: Shared::default(),
            snapshots: Vec::new(),
            snapshot_tokens: SNAPSHOT_TOKENS,
        }
    }

    /// Counts a whole pass of `experts`, all known, `top_k` a token. The expert that one
    /// token chose twice, if there is one.
    fn count(&mut self, experts: &[u16], top_k: u16, windows: &Windows) -> Result<(), u16> {
        let before = self.tokens;
        let mut distinct = 0;
        for route in experts.chunks_exact(top_k.into()) {
            self.tokens += 1;
            let now = self.tokens;
            let whole = windows.whole(now - 1);
            for &expert in route {
                let seen = &mut self.seen[usize::from(expert)];
                if seen.last == now {
                    return Err(expert);
                }
                distinct += u64::from(seen.last <= before);
                if seen.count == 0 {
                    seen.first = now;
                } else if let Some(from) = windows.reaching(now - seen.last)
                    && from < whole
                {
                    self.reuse_edges[from] += 1;
                    self.reuse_edges[whole] -= 1;
                }
                seen.count += 1;
                seen.last = now;
            }
            if now.is_multiple_of(self.snapshot_tokens) {
                self.snapshot();
            }
        }
        let tokens = self.tokens - before;
        if tokens > 1 {
            self.shared.passes += 1;
            self.shared.tokens += tokens;
            self.shared.selections += experts.len() as u64;
            self.shared.distinct += distinct;
        }
        Ok(())
    }

    fn snapshot(&mut self) {
        if self.snapshots.len() == MAX_SNAPSHOTS {
            self.snapshot_tokens *= 2;
            let every = self.snapshot_tokens;
            self.snapshots.retain(|(tokens, _)| tokens.is_multiple_of(every));
            if !self.tokens.is_multiple_of(every) {
                return;
            }
        }
        let counts = self.seen.iter().map(|seen| seen.count).collect();
        self.snapshots.push((self.tokens, counts));
    }

    /// Selections that repeated an expert of their window, for each window.
    pub(super) fn reused(&self) -> impl Iterator<Item = u64> + '_ {
        let edges = self.reuse_edges[..self.reuse_edges.len() - 1].iter();
        edges.scan(0_i64, |hits, edge| {
            *hits += edge;
            Some(hits.unsigned_abs())
        })
    }

    /// Tokens and counts of the first half of the trace, as near to its middle as the
    /// snapshots come (within a sixteenth of its length once it has 256 tokens).
    pub(super) fn first_half(&self) -> Option<(u64, &[u64])> {
        let middle = self.tokens / 2;
        let nearest = self.snapshots.iter().min_by_key(|(tokens, _)| tokens.abs_diff(middle))?;
        (nearest.0 < self.tokens).then_some((nearest.0, &nearest.1))
    }
}

/// One phase of a trace.
pub(super) struct PhaseCounter {
    /// By place in the header's list of layers; none before the first record.
    pub(super) layers: Vec<Option<LayerCounter>>,
    pub(super) records: u64,
    /// Records that were normal, spec-accept, spec-fallback.
    pub(super) kinds: [u64; 3],
    pub(super) superseded_tokens: u64,
}

/// A decode pass that a fallback may yet take the place of.
#[derive(Default)]
struct Held {
    position: u64,
    experts: Vec<u16>,
}

/// Counts the layer passes of one trace (or of several, one after the other).
///
/// Time is linear in the selections; memory is that of the experts, not of the trace.
pub(super) struct TraceCounter {
    places: Places,
    pub(super) windows: Windows,
    pub(super) decode: PhaseCounter,
    pub(super) prefill: PhaseCounter,
    held: Vec<Held>,
}

impl PhaseCounter {
    fn new(layers: usize) -> Self {
        let layers = std::iter::repeat_with(|| None).take(layers).collect();
        Self { layers, records: 0, kinds: [0; 3], superseded_tokens: 0 }
    }
}

impl TraceCounter {
    /// A counter for a model of this shape. `windows` (tokens) ascend, as
    /// [`LocalityOptions::checked`](super::LocalityOptions::checked) leaves them.
    ///
    /// # Errors
    ///
    /// [`TraceError::SettingRange`] if the model has no experts, or more than
    /// [`MAX_COUNTED_EXPERTS`](super::MAX_COUNTED_EXPERTS).
    pub(super) fn new(shape: &ModelShape, windows: &[u32]) -> Result<Self, TraceError> {
        let layers = shape.moe_layers.len();
        Ok(Self {
            places: Places::new(shape)?,
            windows: Windows::new(windows),
            decode: PhaseCounter::new(layers),
            prefill: PhaseCounter::new(layers),
            held: std::iter::repeat_with(Held::default).take(layers).collect(),
        })
    }

    /// Counts one pass.
    ///
    /// # Errors
    ///
    /// [`TraceError::ForeignPass`] if the pass is not of this model,
    /// [`TraceError::RepeatedExpert`] if a route names an expert twice. What is counted
    /// after an error means nothing.
    pub(super) fn push(&mut self, pass: &LayerPass) -> Result<(), TraceError> {
        let info = pass.info;
        let place = self.places.of(pass)?;
        let phase = match info.phase {
            Phase::Decode => &mut self.decode,
            Phase::Prefill => &mut self.prefill,
        };
        phase.records += 1;
        phase.kinds[info.kind as usize] += 1;
        if info.phase == Phase::Prefill {
            return phase.count(place, pass.experts(), self.places.shape(), &self.windows);
        }
        let held = &mut self.held[place];
        if info.kind == PassKind::SpecFallback && held.position == info.position {
            let tokens = held.experts.len() / usize::from(pass.top_k());
            phase.superseded_tokens += tokens as u64;
        } else {
            phase.count(place, &held.experts, self.places.shape(), &self.windows)?;
        }
        held.position = info.position;
        held.experts.clear();
        held.experts.extend_from_slice(pass.experts());
        Ok(())
    }

    /// Counts what was held back. After it no fallback can take an earlier pass's place.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    pub(super) fn settle(&mut self) -> Result<(), TraceError> {
        for (place, held) in self.held.iter_mut().enumerate() {
            self.decode.count(place, &held.experts, self.places.shape(), &self.windows)?;
            held.experts.clear();
        }
        Ok(())
    }

    pub(super) fn shape(&self) -> &ModelShape {
        self.places.shape()
    }
}

impl PhaseCounter {
    fn count(
        &mut self,
        place: usize,
        experts: &[u16],
        shape: &ModelShape,
        windows: &Windows,
    ) -> Result<(), TraceError> {
        if experts.is_empty() {
            return Ok(());
        }
        let layer =
            self.layers[place].get_or_insert_with(|| LayerCounter::new(shape.n_experts, windows));
        layer.count(experts, shape.top_k, windows).map_err(|expert| TraceError::RepeatedExpert {
            layer: shape.moe_layers[place],
            token: layer.tokens - 1,
            expert,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::PassInfo;

    fn shape() -> ModelShape {
        ModelShape { moe_layers: vec![2, 5], n_experts: 4, top_k: 2 }
    }

    fn pass(position: u64, layer: u16, kind: PassKind, experts: &[u16]) -> LayerPass {
        let info = PassInfo { step: 0, position, layer, phase: Phase::Decode, kind };
        LayerPass::new(info, 2, experts.to_vec()).unwrap()
    }

    fn counts(counter: &TraceCounter, place: usize) -> Vec<u64> {
        let layer = counter.decode.layers[place].as_ref().unwrap();
        layer.seen.iter().map(|seen| seen.count).collect()
    }

    #[test]
    fn a_fallback_takes_the_place_of_the_attempt() {
        use PassKind::{Normal, SpecAccept, SpecFallback};
        let mut counter = TraceCounter::new(&shape(), &[1]).unwrap();
        for (position, kind, experts) in [
            (0, Normal, &[0_u16, 1][..]),
            (1, SpecAccept, &[0, 1, 0, 2]),
            (3, Normal, &[2, 3, 2, 3]), // the rejected attempt
            (3, SpecFallback, &[0, 3]),
            (4, SpecFallback, &[0, 3]), // its attempt was not recorded
        ] {
            counter.push(&pass(position, 2, kind, experts)).unwrap();
        }
        counter.settle().unwrap();
        assert_eq!(counts(&counter, 0), [5, 2, 1, 2]);
        assert_eq!(counter.decode.superseded_tokens, 2);
        assert_eq!((counter.decode.records, counter.decode.kinds), (5, [2, 1, 2]));
        assert!(counter.decode.layers[1].is_none() && counter.prefill.layers[0].is_none());
    }

    #[test]
    fn foreign_passes_are_refused() {
        let fails = |layer, experts: &[u16]| {
            let mut counter = TraceCounter::new(&shape(), &[1]).unwrap();
            let pushed = counter.push(&pass(0, layer, PassKind::Normal, experts));
            pushed.and_then(|()| counter.settle()).unwrap_err().to_string()
        };
        assert_eq!(fails(3, &[0, 1]), "step 0 layer 3: layer is 3, the model has 2 of them");
        assert_eq!(fails(9, &[0, 1]), "step 0 layer 9: layer is 9, the model has 2 of them");
        assert_eq!(fails(2, &[0, 4]), "step 0 layer 2: expert is 4, the model has 4 of them");
        assert_eq!(fails(5, &[1, 1]), "layer 5 token 0: expert 1 twice in one route");
        let huge = ModelShape { moe_layers: (0..=u16::MAX).collect(), n_experts: 64, top_k: 1 };
        let refused = TraceCounter::new(&huge, &[1]).err();
        assert_eq!(refused.map(|error| error.kind()), Some("limit"));
    }

    #[test]
    fn halves_stay_near_the_middle() {
        let windows = Windows::new(&[1]);
        for tokens in [32_u64, 256, 1000, 2048, 5000] {
            let mut layer = LayerCounter::new(4, &windows);
            for _ in 0..tokens {
                layer.count(&[1, 3], 2, &windows).unwrap();
            }
            let (half, counts) = layer.first_half().unwrap();
            assert!(half.abs_diff(tokens / 2) <= (tokens / 16).max(8), "{half} of {tokens}");
            assert_eq!(counts, [0, half, 0, half]);
            assert!(layer.snapshots.len() <= MAX_SNAPSHOTS);
        }
    }
}
