//! What the operating system counted: device bytes, faults, memory limits.
//!
//! Everything here reads text files of the kernel through a [`SystemRoot`], so that each
//! reader can be shown another machine. A value that cannot be known is [`Unavailable`]
//! with a reason, never zero.

mod block;
mod budget;
mod cast;
mod cgroup;
mod damon;
mod faults;
#[cfg(test)]
pub(crate) mod fixture;
mod kernel;
mod limits;
mod mounts;
mod numa;
mod pressure;
mod root;
mod scope;
mod topology;
mod vm;

pub(crate) use block::behind_anonymous;
pub use block::{BlockCounter, BlockCounters, DeviceNumber};
pub use budget::{FileBudget, unevictable_share};
pub use cast::{CastEstimate, CastState, PerType};
pub use cgroup::{CgroupVersion, MemoryLimits};
pub use damon::DamonScheme;
pub use faults::ProcessCounters;
pub use kernel::{HugePages, IoUring};
pub use limits::{ProcessLimits, raise_open_files_limit};
pub(crate) use mounts::Mounts;
pub use numa::NumaNode;
pub use pressure::Pressure;
pub use root::{SystemRoot, Unavailable};
pub use scope::MemoryScope;
pub use topology::{Topology, TopologyKind};
pub use vm::VmCounters;
