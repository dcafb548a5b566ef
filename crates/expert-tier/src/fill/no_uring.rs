//! Stands in for the ring where the crate is built without it.

use super::Piece;
use crate::pool::map::Mapping;
use std::io;

/// Cannot be made.
#[derive(Debug)]
pub(super) enum Ring {}

impl Ring {
    pub(super) fn new(_workers: usize) -> io::Result<Self> {
        let why = "this build lacks the cargo feature io-uring";
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    pub(super) fn advise_all(
        &self,
        _mapping: &Mapping,
        _calls: &[(Piece, i32)],
        _answered: &mut dyn FnMut(usize, io::Result<()>),
    ) {
        match *self {}
    }
}
