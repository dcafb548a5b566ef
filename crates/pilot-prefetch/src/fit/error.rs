use std::io;
use std::path::PathBuf;

/// Why a fit cannot be made, read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// It belongs to another model.
    #[error("the fit is of another model: {what}: {fit} in the fit, {model} in the model")]
    Model {
        /// What differs.
        what: &'static str,
        /// As the fit has it.
        fit: String,
        /// As the model has it.
        model: String,
    },
    /// The file is not a fit, or not one of this version.
    #[error("{}: not a fit: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The equations have no solution.
    #[error("layer {source_layer} to {target}: the regression of {rows} tokens has no solution")]
    Singular {
        /// The layer looked at.
        source_layer: u16,
        /// The layer guessed.
        target: u16,
        /// Tokens seen.
        rows: u64,
    },
}

impl FitError {
    /// The category, stable across versions.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Model { .. } => "fit-of-another-model",
            Self::File { .. } => "fit-invalid",
            Self::Io { .. } => "io",
            Self::Singular { .. } => "fit-singular",
        }
    }
}
