//! PILOT: guesses which experts the next layers will choose, and advises the kernel of them.
#![forbid(unsafe_code)]

mod plan;

pub use plan::{Hint, MAX_WIDTH, Plan};
