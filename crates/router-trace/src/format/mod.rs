//! Trace files: one module a format.

pub mod jsonl;
