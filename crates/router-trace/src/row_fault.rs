/// What is wrong with one row of a foreign trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RowFault {
    /// The row is not a whole number of routes.
    #[error("has {found} ids, header says {top_k}")]
    Width {
        /// Ids found.
        found: usize,
        /// Experts a token chooses.
        top_k: u16,
    },
    /// Padding beside a real id: the row was not padded but damaged.
    #[error("has -1 beside a real id: a row is padding as a whole or not at all")]
    HalfPadded,
    /// An id that the model does not have.
    #[error("has expert {expert}, model has {n_experts}")]
    UnknownExpert {
        /// The id found.
        expert: i64,
        /// Experts the layer has.
        n_experts: u16,
    },
    /// One expert twice among a token's: zeros or stale ids as padding.
    #[error("has expert {expert} twice in one row")]
    Duplicate {
        /// The id that appears twice.
        expert: u16,
    },
    /// The layer was routed before, and this is no whole second pass.
    #[error("appears twice")]
    Repeated,
    /// Not as many tokens as the pass's other layers.
    #[error("has {found} tokens, the layers before it have {expected}")]
    Uneven {
        /// Tokens of this layer.
        found: usize,
        /// Tokens of the pass's first layer.
        expected: usize,
    },
    /// The route has been the same at every layer for too many tokens.
    #[error("repeats the routes of the {tokens} tokens before it at every layer: a stale row")]
    Stale {
        /// Tokens before this one that have these routes.
        tokens: u64,
    },
}
