use crate::ids::ModelShape;
use serde::Serialize;
use std::fmt;

/// What is odd in a trace but does not keep it from being used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "notice", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Notice {
    /// The file stops before its end; what is whole before it is used.
    Torn {
        /// The 1-based line where it stops (as in the JSONL form for a compact file).
        line: u64,
        /// Whole lines before it (records of a compact file).
        records: u64,
        /// Records of the last pass, which are not used because it is not whole.
        unused: u64,
    },
    /// Many tokens running have the same routes at every layer: what a padded batch leaves.
    StaleRoutes {
        /// The first line of the run.
        line: u64,
        /// The first token of the run.
        first_token: u64,
        /// Its last token.
        last_token: u64,
        /// Tokens in it.
        tokens: u64,
    },
    /// The format carries no shape; it was taken from the rows. Experts that no row names
    /// are not known of.
    ShapeInferred {
        /// The shape found.
        shape: ModelShape,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn { line, records, unused } => {
                write!(f, "line {line}: torn: {records} whole records before it are used")?;
                if *unused > 0 {
                    write!(f, ", but for {unused} of its last pass, which is not whole")?;
                }
                Ok(())
            }
            Self::StaleRoutes { line, first_token, last_token, tokens } => write!(
                f,
                "line {line}: stale: tokens {first_token} to {last_token} ({tokens} running) \
                 have the same routes at every layer"
            ),
            Self::ShapeInferred { shape: ModelShape { moe_layers, n_experts, top_k } } => write!(
                f,
                "the trace does not say its model: {} layers, at least {n_experts} experts and \
                 {top_k} a token were taken from its rows",
                moe_layers.len()
            ),
        }
    }
}
