//! PILOT: guesses which experts the next layers will choose, and advises the kernel of them.
#![forbid(unsafe_code)]

pub mod fit;
mod plan;
pub mod predict;
mod scorecard;

pub use plan::{Hint, MAX_WIDTH, Plan};
pub use scorecard::{Delivery, LayerScore, Scorecard, Scores, WIDTHS};
