//! The vocabulary of Mixture-of-Experts routing.
#![forbid(unsafe_code)]

mod ids;
mod route;

pub use ids::{ExpertId, ModelShape};
pub use route::{MAX_TOP_K, PassKind, Phase, Route};
