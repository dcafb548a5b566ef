//! How a model's router reuses its experts: what section 3 of the paper measures.
//!
//! [`LocalityBuilder`] takes traces one after the other, in one streaming pass each, and
//! gives a [`LocalityReport`]: slope of the rank-frequency curve, share of the busiest
//! experts, reuse within a window, coverage and its growth, overlap of the busy sets of
//! two traces, and what tokens of one pass share. [`BatchStats::count`] says what traces would
//! share if they were decoded together.
//!
//! # What is counted
//!
//! A *selection* is one expert chosen by one token at one layer. Decode and prefill are
//! counted apart, each with its own tokens, so a prompt is never the past of an answer.
//! Of speculative passes only accepted tokens count: a [`SpecFallback`] pass at the
//! position where the pass before it (same layer) began takes that pass's place, however
//! that one is typed. See [`PhaseStats::superseded_tokens`].
//!
//! A trace is one stream: windows run on where a sequence ends and the next begins, as a
//! cache does. Merged figures are those of the traces run one after the other.
//!
//! # What popularity alone would give
//!
//! Reuse within a window mixes recency with popularity: an expert that every second token
//! uses is "reused" within eight tokens nearly always, in any order. Beside each measured
//! figure therefore stands its exact expectation over all orders of the same tokens (no
//! random shuffle, so no noise); the difference is recency. The same holds for the growth
//! of coverage.
//!
//! [`SpecFallback`]: crate::PassKind::SpecFallback

mod batch;
mod builder;
mod chance;
mod concentration;
mod counter;
mod coverage;
mod options;
mod overlap;
mod places;
mod reuse;
mod stats;
mod summary;
mod zipf;

pub use batch::{BatchStats, BatchStep};
pub use builder::LocalityBuilder;
pub use concentration::{TopShare, effective_experts};
pub use coverage::{Growth, GrowthPoint};
pub use options::{LocalityOptions, MAX_CURVE_POINTS, MAX_LIST, MAX_WINDOW_TOKENS};
pub use overlap::{Jaccard, PairOverlap, SplitOverlap, random_jaccard};
pub use places::MAX_COUNTED_EXPERTS;
pub use reuse::Reuse;
pub use stats::{
    LayerStats, LocalityReport, PassCounts, PhaseStats, SharedPasses, Spread, TopShareSpread,
    TraceStats,
};
pub use zipf::{ZipfFit, ZipfSummary};
