use router_trace::ExpertId;
use std::io;
use std::path::PathBuf;

/// Everything that can go wrong between a pool on disk and an adopted expert.
///
/// [`TierError::kind`] gives the stable kebab-case category of each variant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// The operating system refused an operation on a file.
    #[error("{}: {operation} failed: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// An expert was asked for that the pool does not have.
    #[error("the pool has no {id} ({in_layer} experts in that layer)")]
    UnknownExpert {
        /// The expert asked for.
        id: ExpertId,
        /// Experts the layer has.
        in_layer: usize,
    },
}

impl TierError {
    /// The category, stable across versions: what scripts and tests compare.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Io { .. } => "io",
            Self::UnknownExpert { .. } => "config-inconsistent",
        }
    }
}
