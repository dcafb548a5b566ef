//! Trace files: one module a format.

pub mod compact;
pub mod jsonl;
mod line;
