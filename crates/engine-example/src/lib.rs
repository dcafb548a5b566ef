//! Example engine: decodes Mixture-of-Experts models through the expert tier.
#![deny(unsafe_code)]

pub mod config;
mod engine;
mod error;
mod experts;
mod format;
pub mod kernels;
pub mod linear;
mod meter;
pub mod models;
pub mod pairs;
pub mod pilot;
pub mod quantize;
pub mod replay;
pub mod router;
pub mod sampling;
pub mod spine;
mod spinners;
pub mod synth;
pub mod text;
pub mod weights;

pub use engine::{Engine, EngineOptions, GenerateOptions, Generation, Stop};
pub use error::EngineError;
pub use experts::{Experts, PromptReads};
pub use format::weights_in_place;
pub use meter::{Meter, Usage};
pub use spinners::Spinners;
