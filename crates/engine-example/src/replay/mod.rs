//! Replays recorded router decisions against a pool: the expert tier and what it is held against,
//! with the compute left out and every byte really read.
//!
//! A [`ReplayPlan`] is a trace as a pool can serve it. A [`ReplayArm`] is one way of serving it,
//! [`replay`] drives that from several demand threads, and [`measure`] wraps a warm-up and a
//! measured replay in samples of what the system counted. A [`ReplaySession`] runs arms behind a
//! [`Wall`], each in a process of its own ([`run_cell`]), and says why a run must be thrown away;
//! [`Balloon`] is the wall that takes memory away instead of limiting it. [`ArmSummary`] sums runs
//! up beside what exact LRU would have read.
//!
//! Six quantities are kept apart by their names: the target of the wall (`target_bytes`), what the
//! machine has left (`mem_available_bytes`), pages of the pool in the page cache
//! (`resident_file_bytes`), locked memory (`locked_bytes`), bytes that the block layer read
//! (`block_layer_bytes`) and what the trace asked for (`logical_accesses`, `logical_bytes`).

mod arm;
mod balloon;
mod cell;
mod left;
mod live;
mod measure;
mod plan;
mod run;
mod session;
mod summary;
mod system;
mod task;
mod touch;
mod wall;

pub use arm::{ArmSettings, ReplayArm, Served};
pub use balloon::{Balloon, hold_balloon};
pub use cell::{CellRun, UsagePoint, run_cell};
pub use left::TimeLeft;
pub use measure::{Measurement, WholeRun, measure};
pub use plan::{PlannedPass, ReplayPlan};
pub use run::{Iteration, replay};
pub use session::{
    BALLOON_COMMAND, CHILD_COMMAND, ReplayRun, ReplaySession, ReplaySetup, ScopeFacts, WallFacts,
    usual_slack,
};
pub use summary::{ArmSummary, Nominal, Times};
pub use system::{Stalls, SystemSample, locked_bytes};
pub use task::serve_task;
pub use touch::sum_bytes;
pub use wall::{Wall, parse_bytes};
