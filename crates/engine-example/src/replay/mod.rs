//! Replays recorded router decisions against a pool: the expert tier and what it is held against,
//! with the compute left out and every byte really read.
//!
//! A [`ReplayPlan`] is a trace as a pool can serve it. A [`ReplayArm`] is one way of serving it,
//! [`replay`] drives that from several demand threads, and [`measure`] wraps a warm-up and a
//! measured replay in samples of what the system counted. [`run_cell`] runs a process that
//! measures behind a [`Wall`] and says why a run must be thrown away; [`Balloon`] is the wall that
//! takes memory away instead of limiting it.
//!
//! Six quantities are kept apart by their names: the target of the wall (`target_bytes`), what the
//! machine has left (`mem_available_bytes`), pages of the pool in the page cache
//! (`resident_file_bytes`), locked memory (`locked_bytes`), bytes that the block layer read
//! (`block_layer_bytes`) and what the trace asked for (`logical_accesses`, `logical_bytes`).

mod arm;
mod balloon;
mod cell;
mod measure;
mod plan;
mod run;
mod system;
mod touch;
mod wall;

pub use arm::{ArmSettings, ReplayArm, Served};
pub use balloon::{Balloon, hold_balloon};
pub use cell::{CellRun, UsagePoint, run_cell};
pub use measure::{Measurement, measure};
pub use plan::{PlannedPass, ReplayPlan};
pub use run::{Iteration, replay};
pub use system::{Stalls, SystemSample, locked_bytes};
pub use touch::sum_bytes;
pub use wall::{Wall, parse_bytes};
