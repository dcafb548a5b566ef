//! One decoder, whose layers are put together as a family's config says (see
//! [`ModelConfig`](crate::config::ModelConfig)).

mod decoder;
mod gate;
mod layer;
mod moe_block;
mod residual;

pub use decoder::{Decoder, LogitRows, MoeCall, RunExperts};
pub use gate::{GateRoom, LayerGate};
