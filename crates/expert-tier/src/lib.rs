//! Mixture-of-Experts weights, served in place from the operating system's page cache.
#![deny(unsafe_code)]

mod error;
mod notice;
pub mod pool;
mod view;

pub use error::TierError;
pub use notice::Notice;
pub use pool::Pool;
pub use view::{Bytes, ExpertView, PartView};
