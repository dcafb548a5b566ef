use crate::error::TraceError;
use crate::format::jsonl::TornTail;

/// One layer's row of a foreign trace, before any of it is believed.
#[derive(Debug)]
pub(crate) struct Record {
    /// 1-based.
    pub(crate) line: u64,
    /// The forward pass that the row names, if the format names one.
    pub(crate) step: Option<u64>,
    /// Position of its first token, if the format has it.
    pub(crate) position: Option<u64>,
    pub(crate) layer: u64,
    /// The ids of all tokens, one after the other.
    pub(crate) ids: Vec<i64>,
    pub(crate) rows: Rows,
}

/// How the ids of a record are cut into tokens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// Not at all: two tokens are told by twice as many ids.
    Flat,
    /// Ids of each token.
    Each(Vec<usize>),
}

/// Where records come from: one implementation a foreign format.
pub(crate) trait Records: Send {
    /// The next record; `None` at the end.
    fn next_record(&mut self) -> Result<Option<Record>, TraceError>;

    /// Where the input was torn, once it has ended.
    fn torn(&self) -> Option<TornTail>;

    /// Whether a layer that is there twice in a step can be a pass that ran again. Where it
    /// cannot, it is a row written twice.
    fn may_run_again(&self) -> bool {
        true
    }
}

impl Records for Box<dyn Records> {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        (**self).next_record()
    }

    fn torn(&self) -> Option<TornTail> {
        (**self).torn()
    }

    fn may_run_again(&self) -> bool {
        (**self).may_run_again()
    }
}
