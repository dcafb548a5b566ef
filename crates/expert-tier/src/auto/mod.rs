//! [`Admission::Auto`](crate::Admission::Auto): to admit or not, measured on the pool at hand.
//!
//! [`AutoAdmission`] chooses and touches nothing; what a tier measures for it, and what it does
//! with the answer, is private to the tier. An answer of the model never depends on it.

mod config;
mod live;
mod machine;
mod memory;
mod why;

pub use config::AutoConfig;
pub use live::AutoChoice;
pub(crate) use live::{Auto, Job, Lane};
pub use machine::{AdmissionTrial, AdmissionWindow, AutoAdmission, AutoCounts};
pub use memory::MemoryState;
