//! One file a model family.

mod gate;
mod qwen3_moe;

pub use gate::LayerGate;
pub use qwen3_moe::{LogitRows, MoeCall, Qwen3Moe, RunExperts};
