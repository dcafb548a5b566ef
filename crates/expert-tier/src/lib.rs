//! Mixture-of-Experts weights, served in place from the operating system's page cache.
#![deny(unsafe_code)]

mod admission;
mod adopting;
pub mod breakeven;
mod config;
mod demand;
mod error;
mod evict;
mod fill;
mod guard;
pub mod host;
mod in_flight;
mod lease;
mod lock;
mod notice;
pub mod observe;
pub mod pack;
pub mod plan;
pub mod pool;
mod raw;
mod residency;
mod sigbus;
mod spine;
mod stats;
mod tier;
mod view;

pub use admission::Admission;
pub use adopting::Adopting;
pub use config::TierConfig;
pub use demand::{DemandConfig, DemandReport};
pub use error::{ExpertSetProblem, OffsetProblem, TierError};
pub use fill::FillMethod;
pub use lease::Adopted;
pub use notice::Notice;
pub use pool::Pool;
pub use raw::{RawRead, read_extent};
pub use residency::{ProbeKind, ResidencyProbe};
pub use spine::{Spine, SpineBytes, SpinePlacement, SpineView};
pub use stats::Snapshot;
pub use tier::{Residency, Tier};
pub use view::{Bytes, ExpertView, PartView};
