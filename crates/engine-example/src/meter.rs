//! What a stretch of work cost, by everybody's counters: the tier's, the process's, the device's.

use expert_tier::observe::{BlockCounters, ProcessCounters, SystemRoot, Unavailable};
use expert_tier::{Snapshot, Tier};
use serde::Serialize;
use std::time::Instant;

/// Starts counting when it is made.
#[derive(Debug)]
pub struct Meter {
    started: Instant,
    root: SystemRoot,
    tier: Snapshot,
    process: Option<ProcessCounters>,
    device: Result<BlockCounters, Unavailable>,
}

/// What a [`Meter`] counted.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Usage {
    /// Wall time in nanoseconds.
    pub wall_ns: u64,
    /// The tier's counters.
    #[serde(flatten)]
    pub tier: Snapshot,
    /// Bytes that the devices behind the pool read, for whomever; `None` where no block device
    /// can be named.
    pub device_bytes: Option<u64>,
    /// Bytes the kernel fetched from storage on behalf of this process; `None` where the
    /// kernel does not count them.
    pub process_read_bytes: Option<u64>,
    /// Page faults answered from memory.
    pub minor_faults: Option<u64>,
    /// Page faults that waited for a device.
    pub major_faults: Option<u64>,
}

impl Usage {
    /// Two stretches together; what either does not know, the sum does not know.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let both = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a + b);
        Self {
            wall_ns: self.wall_ns + other.wall_ns,
            tier: self.tier + other.tier,
            device_bytes: both(self.device_bytes, other.device_bytes),
            process_read_bytes: both(self.process_read_bytes, other.process_read_bytes),
            minor_faults: both(self.minor_faults, other.minor_faults),
            major_faults: both(self.major_faults, other.major_faults),
        }
    }
}

impl Meter {
    /// Count from now on.
    #[must_use]
    pub fn start(tier: &Tier, root: &SystemRoot) -> Self {
        Self {
            root: root.clone(),
            tier: tier.snapshot(),
            process: ProcessCounters::now(root).ok(),
            device: tier.device_counters(root),
            started: Instant::now(),
        }
    }

    /// What was counted so far.
    #[must_use]
    pub fn read(&self, tier: &Tier) -> Usage {
        let wall_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let now = ProcessCounters::now(&self.root).ok();
        let process = self.process.as_ref().zip(now.as_ref()).map(|(then, now)| now.since(then));
        Usage {
            wall_ns,
            tier: tier.snapshot() - self.tier,
            device_bytes: self.device.as_ref().ok().and_then(|device| device.read_bytes().ok()),
            process_read_bytes: process.as_ref().and_then(|count| count.read_bytes.clone().ok()),
            minor_faults: process.as_ref().map(|count| count.minor_faults),
            major_faults: process.as_ref().map(|count| count.major_faults),
        }
    }

    /// Why device bytes are not known, where they are not.
    #[must_use]
    pub fn device_unavailable(&self) -> Option<&Unavailable> {
        self.device.as_ref().err()
    }
}
