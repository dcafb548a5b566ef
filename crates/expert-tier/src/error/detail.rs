//! What errors say beyond their variant's own fields.

use crate::pool::PartRole;
use std::fmt;
use std::io;

/// What is wrong with a tensor's range; numbers are bytes from the start of the data section.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum OffsetProblem {
    #[error("its range begins at {begin}, after its end {end}")]
    Reversed { begin: u64, end: u64 },
    #[error("its range [{begin},{end}) overlaps {other}, which ends at {other_end}")]
    Overlap { begin: u64, end: u64, other: String, other_end: u64 },
    #[error("bytes [{begin},{end}) before it belong to no tensor")]
    Hole { begin: u64, end: u64 },
    #[error("its range [{begin},{end}) lies past the data section of {data_len} bytes")]
    Outside { begin: u64, end: u64, data_len: u64 },
    #[error("it is the last and ends at {end}, but the data section has {data_len} bytes")]
    Trailing { end: u64, data_len: u64 },
}

/// How the experts of a layer differ from what the config says.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ExpertSetProblem {
    #[error("the config asks for {wanted} experts there, the checkpoint has none")]
    NoExperts { wanted: usize },
    #[error("the config makes it dense, the checkpoint has {found} experts there")]
    ShouldBeDense { found: usize },
    #[error("expert {index} is missing ({wanted} experts wanted, {found} found)")]
    Missing { index: usize, wanted: usize, found: usize },
    #[error("expert {index} is one too many ({wanted} experts wanted, {found} found)")]
    TooMany { index: usize, wanted: usize, found: usize },
    #[error("expert {index} has no {role:?} tensor")]
    NoPart { index: u16, role: PartRole },
}

pub(super) struct Because<'a>(pub(super) Option<&'a io::Error>);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |error| write!(f, ": {error}"))
    }
}

pub(super) struct Room<'a>(pub(super) Option<u64>, pub(super) Option<&'a io::Error>);

impl fmt::Display for Room<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(available) = self.0 {
            write!(f, ", {available} are free")?;
        }
        self.1.map_or(Ok(()), |error| write!(f, ": {error}"))
    }
}

pub(super) struct Of<'a>(pub(super) Option<&'a str>);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |name| write!(f, "{name}: "))
    }
}

pub(super) struct AlsoIn<'a>(pub(super) Option<&'a str>);

impl fmt::Display for AlsoIn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |other| write!(f, ", also as or in {other}"))
    }
}
