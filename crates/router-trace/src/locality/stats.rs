use super::{
    Growth, LocalityOptions, PairOverlap, Reuse, SplitOverlap, TopShare, ZipfFit, ZipfSummary,
};
use crate::locality::BatchStats;
use serde::{Deserialize, Serialize};

/// Mean, least and greatest of some figures.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// `None` of nothing.
    #[must_use]
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (mut n, mut sum, mut min, mut max) = (0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY);
        for figure in figures {
            n += 1.0;
            sum += figure;
            min = f64::min(min, figure);
            max = f64::max(max, figure);
        }
        (n > 0.0).then(|| Self { mean: sum / n, min, max })
    }
}

/// Locality of one or more traces. Serialises with the field names below, which `REPORT.md`
/// beside this crate explains with the definitions; a figure that
/// does not exist (no tokens, no whole window) is `null` or absent from its list, never
/// zero.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LocalityReport {
    /// Version of these field names; 1.
    pub version: u32,
    /// What was asked for.
    pub options: LocalityOptions,
    /// Each trace, in the order given.
    pub traces: Vec<TraceStats>,
    /// All traces run one after the other; absent with one trace, or if shapes differ.
    pub merged: Option<TraceStats>,
    /// Every pair of traces whose models have the same shape.
    pub overlaps: Vec<PairOverlap>,
    /// All traces decoded together, if that was counted.
    pub batch: Option<BatchStats>,
}

/// One trace, or several run one after the other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TraceStats {
    /// The name given to the trace, unique in its report.
    pub name: String,
    /// The model's name in the header.
    pub model_name: String,
    /// Layers with routed experts.
    pub layers: usize,
    /// Routed experts a layer.
    pub n_experts: u16,
    /// Experts a token chooses in a layer.
    pub top_k: u16,
    /// Bytes of one expert, if the trace says.
    pub expert_bytes: Option<u64>,
    /// Produced tokens; only accepted ones.
    pub decode: PhaseStats,
    /// Prompt tokens.
    pub prefill: PhaseStats,
    /// What a reader should know: torn file, records dropped or missing.
    pub warnings: Vec<String>,
}

/// Records by kind of pass, as they stand in the trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PassCounts {
    /// Ordinary passes.
    pub normal: u64,
    /// Speculative passes whose drafts were accepted.
    pub spec_accept: u64,
    /// Passes that ran again after a rejected draft.
    pub spec_fallback: u64,
}

/// Passes of several tokens, and what their tokens share.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct SharedPasses {
    /// Layer passes with more than one token.
    pub passes: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Their selections.
    pub selections: u64,
    /// Different experts a pass, summed over the passes: what must be read.
    pub distinct: u64,
    /// `selections` / `distinct`: 1 if the tokens of a pass share nothing.
    pub dedup: f64,
}

/// One phase of a trace: all its layers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PhaseStats {
    /// Records (one layer of one pass) in the trace.
    pub records: u64,
    /// The same by kind.
    pub passes: PassCounts,
    /// Accepted tokens, of the layer that has most of them.
    pub tokens: u64,
    /// Accepted tokens, summed over the layers.
    pub layer_tokens: u64,
    /// Tokens of passes whose place a fallback took, summed over the layers: in the trace,
    /// in none of the figures.
    pub superseded_tokens: u64,
    /// Selections.
    pub selections: u64,
    /// Experts used, all layers together.
    pub used_experts: u64,
    /// `used_experts` of the model's experts, 0 to 1.
    pub coverage: Option<f64>,
    /// Slopes of the rank-frequency curves.
    pub zipf: Option<ZipfSummary>,
    /// Share of the busiest experts: mean, least and greatest layer, one entry a size.
    pub top_share: Vec<TopShareSpread>,
    /// Reuse by window, selections of all layers together.
    pub reuse: Vec<Reuse>,
    /// Growth of coverage, all layers together.
    pub growth: Option<Growth>,
    /// Passes of several tokens; none if there are none.
    pub shared_passes: Option<SharedPasses>,
    /// The busiest sets of the trace's two halves.
    pub halves: Option<SplitOverlap>,
    /// Each layer that has tokens.
    pub per_layer: Vec<LayerStats>,
}

/// The share of the busiest experts over the layers.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct TopShareSpread {
    /// Size of the busiest set in each layer.
    pub top: u16,
    /// Mean, least and greatest layer.
    pub share: Spread,
    /// What a router without preference would give them.
    pub uniform: f64,
}

/// One layer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LayerStats {
    /// The layer, numbered as in the checkpoint.
    pub layer: u16,
    /// Accepted tokens.
    pub tokens: u64,
    /// Experts used.
    pub used_experts: u64,
    /// `used_experts` of the layer's experts, 0 to 1.
    pub coverage: f64,
    /// How many equally busy experts would be as mixed.
    pub effective_experts: f64,
    /// Slope of the rank-frequency curve.
    pub zipf: Option<ZipfFit>,
    /// Share of the busiest experts, one entry a size.
    pub top_share: Vec<TopShare>,
    /// Reuse by window.
    pub reuse: Vec<Reuse>,
    /// Growth of this layer's coverage.
    pub growth: Option<Growth>,
    /// Tokens that chose each used expert, from the busiest down.
    pub rank_counts: Vec<u64>,
}

impl PhaseStats {
    /// The reuse within `window_tokens`, if it was measured.
    #[must_use]
    pub fn reuse_within(&self, window_tokens: u32) -> Option<&Reuse> {
        self.reuse.iter().find(|reuse| reuse.window_tokens == window_tokens)
    }

    /// The share of the `top` busiest experts, if it was measured.
    #[must_use]
    pub fn share_of(&self, top: u16) -> Option<&TopShareSpread> {
        self.top_share.iter().find(|share| share.top == top)
    }
}
