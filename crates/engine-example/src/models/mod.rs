//! One file a model family.

mod qwen3_moe;

pub use qwen3_moe::{LogitRows, Lookahead, MoeCall, Qwen3Moe, RunExperts};
