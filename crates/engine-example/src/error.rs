use crate::kernels::MatrixError;
use expert_tier::TierError;
use pilot_prefetch::WorkerError;
use pilot_prefetch::fit::FitError;
use router_trace::TraceError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Everything that can go wrong between a checkpoint and a generated token.
///
/// [`EngineError::kind`] gives the stable kebab-case category of each variant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The tier failed; its kind is kept.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// A trace could not be read; its kind is kept.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A trace that a pool cannot serve.
    #[error("the trace has {trace}, the pool {pool}: {reason}")]
    TraceShape {
        /// The trace's shape.
        trace: String,
        /// The pool's shape.
        pool: String,
        /// What does not fit.
        reason: &'static str,
    },
    /// A fit of the lookahead could not be made, read or used; its kind is kept.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// There is no thread to give advice.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// A predictor that needs a fit where there is none.
    #[error(
        "{predictor} needs a fit that reaches {depth} layers ahead: make one with `tier pilot fit \
         --depth {depth}`"
    )]
    FitMissing {
        /// The predictor and its settings.
        predictor: String,
        /// How far ahead.
        depth: usize,
    },
    /// A limit on memory that cannot be had.
    #[error("{wall} cannot be had: {reason}")]
    Wall {
        /// Which, with its bytes.
        wall: String,
        /// Why not.
        reason: String,
    },
    /// A way of serving that gave other bytes: nothing that was measured of it counts.
    #[error("{arm} read other bytes than the runs before: checksum {found}, expected {expected}")]
    Checksum {
        /// What served.
        arm: String,
        /// Its checksum.
        found: u64,
        /// That of the others.
        expected: u64,
    },
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// A setting that contradicts another one, the weights, or itself.
    #[error("config: {key} = {value}: {problem}")]
    Config {
        /// The key.
        key: String,
        /// Its value as written, `absent` if it is not there.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A setting that is legal but that this engine does not do.
    #[error("config: {key} = {value} is not supported: {reason}")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value as written.
        value: String,
        /// What would be supported.
        reason: String,
    },
    /// A setting of the engine outside its limits.
    #[error("{what} {value} {problem}")]
    Limit {
        /// The setting.
        what: String,
        /// Its value.
        value: usize,
        /// What it must be, or why it cannot be had.
        problem: String,
    },
    /// Weights without the config that says what they are.
    #[error("{}: cannot be decoded: {reason}", path.display())]
    MissingConfig {
        /// The checkpoint.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// The checkpoint lacks a weight that the config asks for.
    #[error("weight {name} is missing: {reason}")]
    MissingWeight {
        /// Canonical name.
        name: String,
        /// Why it is needed.
        reason: String,
    },
    /// A weight whose shape or type is not what the config asks for.
    #[error("weight {name}: wanted {wanted}, found {found}")]
    WeightMismatch {
        /// Canonical name.
        name: String,
        /// What the config asks for.
        wanted: String,
        /// What the checkpoint has.
        found: String,
    },
    /// A weight whose bytes do not fit its shape.
    #[error("weight {name}: {source}")]
    Matrix {
        /// Canonical name.
        name: String,
        /// What does not fit.
        #[source]
        source: MatrixError,
    },
    /// A router produced scores that cannot be ranked.
    #[error("router of layer {layer}: {problem}")]
    Router {
        /// Layer number.
        layer: u16,
        /// Which score, and what it is.
        problem: String,
    },
    /// A token id outside the vocabulary.
    #[error("token {id} at position {position} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Its position in the sequence.
        position: usize,
        /// Tokens the model knows: ids 0 to `vocab_size - 1`.
        vocab_size: usize,
    },
    /// More positions than the model was made for.
    #[error(
        "{wanted} positions wanted, but max_position_embeddings is {limit} ({used} already used)"
    )]
    ContextLimit {
        /// Positions the sequence would have.
        wanted: usize,
        /// Positions already in the cache.
        used: usize,
        /// The model's limit.
        limit: usize,
    },
    /// Logits or sampling settings from which no token can be drawn.
    #[error("sampling: {0}")]
    Sampling(String),
    /// A tokenizer file or a chat template that cannot be used.
    #[error("tokenizer: {what}: {problem}")]
    Tokenizer {
        /// The file or the step.
        what: String,
        /// What went wrong.
        problem: String,
    },
    /// A tensor operation failed: a bug of this engine, not of the input.
    #[error("tensor operation: {0}")]
    Tensor(#[from] candle_core::Error),
}

impl EngineError {
    /// The category, stable across versions: what scripts and tests compare.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tier(error) => error.kind(),
            Self::Trace(error) => error.kind(),
            Self::Fit(error) => error.kind(),
            Self::Worker(_) => "limit",
            Self::FitMissing { .. } => "fit-missing",
            Self::TraceShape { .. } => "config-inconsistent",
            Self::Wall { .. } => "limit",
            Self::Checksum { .. } => "checksum",
            Self::Io { .. } => "io",
            Self::Config { .. }
            | Self::MissingWeight { .. }
            | Self::WeightMismatch { .. }
            | Self::Matrix { .. } => "config-inconsistent",
            Self::Unsupported { .. } => "unsupported",
            Self::Router { .. } => "router-invalid",
            Self::TokenOutOfRange { .. } => "token-out-of-range",
            Self::ContextLimit { .. } | Self::Limit { .. } => "limit",
            Self::MissingConfig { .. } => "not-a-model",
            Self::Sampling(_) => "sampling-invalid",
            Self::Tokenizer { .. } => "tokenizer-invalid",
            Self::Tensor(_) => "tensor",
        }
    }

    pub(crate) fn config(
        key: impl Into<String>,
        value: &dyn fmt::Display,
        problem: impl Into<String>,
    ) -> Self {
        Self::Config { key: key.into(), value: value.to_string(), problem: problem.into() }
    }

    pub(crate) fn unsupported(
        key: impl Into<String>,
        value: &dyn fmt::Display,
        reason: impl Into<String>,
    ) -> Self {
        Self::Unsupported { key: key.into(), value: value.to_string(), reason: reason.into() }
    }
}
