//! Foreign traces, typed: which forward pass each row belongs to, and of what kind it was.
//!
//! Records of other engines carry no event tag. What a pass was is told from the width of
//! its records and from layers that are routed twice (section 2 of the paper, "a canonical
//! trace parser"); the typed unit is the engine's *iteration*:
//!
//! | iteration | how it is told | passes given | accepted tokens |
//! |---|---|---|---|
//! | normal | each layer once, one token wide | 1, [`Normal`](crate::PassKind::Normal) | 1 |
//! | spec-accept | each layer once, two tokens wide | 1, [`SpecAccept`](crate::PassKind::SpecAccept) | 2 |
//! | spec-fallback | each layer twice: the draft was rejected and the pass ran again | 2, both [`SpecFallback`](crate::PassKind::SpecFallback) at the same position: the attempt, then the pass that counts | 1 |
//!
//! Where a format numbers its steps, *twice* means twice in one step. Where it does not
//! (colibri), a pass of one token that repeats the first token's routes of the two-token
//! pass before it at every layer is that pass run again: the same token in the same state
//! routes the same.
//!
//! Only decode passes are given. A pass wider than [`CanonicalOptions::max_draft`] tokens read
//! a prompt; a scheduler's dry run is synthetic and comes first ([`DryRun`]); rows of -1 are
//! padding. All three are dropped and counted ([`CanonicalCounts`]). A prompt of one token, or
//! of no more than `max_draft`, looks like decoding and is taken for it.
//!
//! Everything else that is odd is an error with its line and reason, or a [`Notice`].

mod dry_run;
mod iterations;
mod notice;
mod parser;
mod pass;
mod record;
mod stale;

pub use dry_run::{DryRun, FirstPass};
pub use iterations::{Iteration, Iterations};
pub use notice::Notice;
pub use stale::Stale;

pub(crate) use parser::Canonical;
pub(crate) use record::{Record, Records, Rows};

use serde::Serialize;

/// How foreign rows are read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CanonicalOptions {
    /// Most tokens of a pass that is not a prompt: 1 and the drafts that the engine tries
    /// at once. 2 unless said.
    pub max_draft: usize,
    /// Which first pass is a scheduler's dry run.
    pub dry_run: DryRun,
    /// What routes that do not change for many tokens are.
    pub stale: Stale,
    /// Layers whose rows are not the model's but a draft head's: skipped and counted.
    pub skip_layers: Vec<u16>,
}

impl Default for CanonicalOptions {
    fn default() -> Self {
        Self {
            max_draft: 2,
            dry_run: DryRun::default(),
            stale: Stale::default(),
            skip_layers: Vec::new(),
        }
    }
}

/// What a foreign trace was found to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct CanonicalCounts {
    /// Records (one layer of one pass) that the file holds, padding and all.
    pub records: u64,
    /// Records given on: one a layer of each typed pass.
    pub passed_records: u64,
    /// Iterations of one token.
    pub normal: u64,
    /// Iterations whose drafts were accepted.
    pub spec_accept: u64,
    /// Iterations whose draft was rejected.
    pub spec_fallback: u64,
    /// Tokens that the model produced: 1, all, and 1 a pass that ran again.
    pub accepted_tokens: u64,
    /// Rows of -1: tokens (once a layer) that no expert saw.
    pub padding_rows: u64,
    /// Passes dropped because they read a prompt.
    pub prefill_passes: u64,
    /// Their records and their tokens (once a layer).
    pub prefill_records: u64,
    /// Tokens (once a layer) of those.
    pub prefill_tokens: u64,
    /// Passes dropped because a scheduler's dry run made them: 0 or 1.
    pub dry_run_passes: u64,
    /// Records of those.
    pub dry_run_records: u64,
    /// Tokens (once a layer) of those.
    pub dry_run_tokens: u64,
    /// Records of layers that were to be skipped.
    pub skipped_records: u64,
    /// Records of the last pass, dropped because the file was torn inside it.
    pub torn_records: u64,
    /// Steps that lie between two others and have no rows.
    pub missing_steps: u64,
    /// Runs of tokens that repeat their routes at every layer ([`Notice::StaleRoutes`]).
    pub stale_runs: u64,
}

impl CanonicalCounts {
    /// Iterations of the engine.
    #[must_use]
    pub fn iterations(&self) -> u64 {
        self.normal + self.spec_accept + self.spec_fallback
    }
}
