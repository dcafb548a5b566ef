use super::arm::Served;
use super::plan::PlannedPass;
use super::run::{Iteration, replay};
use super::system::SystemSample;
use crate::error::EngineError;
use expert_tier::Snapshot;
use expert_tier::observe::{FileBudget, MemoryLimits, ProcessCounters, SystemRoot};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Instant;

/// Moments of the measured replay at which the page cache is asked what it holds of the pool.
const SAMPLES: usize = 8;

/// What one process measured of one arm. Levels are those of the moment at which the measured
/// replay began, differences those of the measured replay.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// How the bytes came to the CPU.
    pub channel: String,
    /// The smallest memory limit of this process's control groups before the warm-up.
    pub limit_bytes: Option<u64>,
    /// The file that sets it.
    pub limit_path: Option<PathBuf>,
    /// The same after the measured replay.
    pub limit_bytes_after: Option<u64>,
    /// Bytes of the pool that a probe found in the page cache before the arm was opened.
    pub resident_before_bytes: u64,
    /// Bytes of the pool in the page cache, mean over the measured replay.
    pub resident_file_bytes: u64,
    /// What the arm has locked.
    pub wanted_locked_bytes: u64,
    /// The same at the end: a set that is chosen anew may change its size.
    pub wanted_locked_bytes_after: u64,
    /// Experts in memory of ours.
    pub kept_experts: u64,
    /// Bytes that the block devices behind the pool read, for everyone; `None` with the reason
    /// where that cannot be known.
    pub block_layer_bytes: Option<u64>,
    /// Why not.
    pub block_layer_unknown: Option<String>,
    /// The part of it that this process caused.
    pub process_read_bytes: Option<u64>,
    /// The machine when the measured replay began.
    pub entry: SystemSample,
    /// Counters from there to its end; levels at its end.
    pub during: SystemSample,
    /// The arm's own counters.
    pub adopted_experts: u64,
    /// Of these, those that were there.
    pub warm_experts: u64,
    /// Time that the demand threads spent in adoptions, added up.
    pub adopt_ns: u64,
    /// Warm-up and measured replay together, from the cold start on.
    pub whole: WholeRun,
    /// Iterations of the warm-up.
    pub warm_up_iterations: u64,
    /// Iterations of the measured replay.
    pub iterations: Vec<Iteration>,
}

/// Counters of a run from its cold start to its end: what a plan predicts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WholeRun {
    /// Time of all iterations.
    pub wall_ns: u64,
    /// Time that the demand threads spent in adoptions, added up.
    pub adopt_ns: u64,
    /// Bytes adopted.
    pub adopted_bytes: u64,
    /// Experts that were not there.
    pub cold_experts: u64,
    /// Bytes that were not.
    pub missing_bytes: u64,
    /// Bytes that the block devices behind the pool read, for everyone.
    pub device_bytes: Option<u64>,
    /// What the page cache could have at the end; `None` where unknown.
    pub file_budget_bytes: Option<u64>,
}

/// Replays `iterations` once to warm up and once measured, in this process.
///
/// # Errors
/// As [`replay`], and what a probe answers.
pub fn measure(
    served: &Served,
    resident_before_bytes: u64,
    iterations: &[Vec<PlannedPass>],
    threads: usize,
    root: &SystemRoot,
) -> Result<Measurement, EngineError> {
    let limits = MemoryLimits::read(root);
    let adopt = served.adopt();
    let tier = adopt.tier();
    let opened = adopt.snapshot();
    let all_blocks = tier.device_counters(root);
    let learn = |number: usize, iteration: &mut Iteration| {
        let started = Instant::now();
        served.learn(&iterations[number])?;
        iteration.wall_ns += u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(())
    };
    let warm_up = replay(adopt, iterations, threads, learn)?;
    // Everything from here on is of the measured replay; what was preloaded is not.
    let entry = SystemSample::now(root);
    let process = ProcessCounters::now(root).ok();
    let before = adopt.snapshot();
    let wanted_locked_bytes = served.locked_bytes();
    let blocks = tier.device_counters(root);
    let (mut resident, mut samples) = (0, 0);
    let every = iterations.len().div_ceil(SAMPLES).max(1);
    let done = replay(adopt, iterations, threads, |number, iteration| {
        learn(number, iteration)?;
        if number % every == every / 2 {
            resident += tier.residency(None)?.resident_bytes;
            samples += 1;
        }
        Ok(())
    })?;
    let block_layer = blocks.and_then(|counters| counters.read_bytes());
    let during = SystemSample::now(root).since(&entry);
    let after = ProcessCounters::now(root).ok();
    let read = after.zip(process).map(|(after, before)| after.since(&before).read_bytes);
    let end = adopt.snapshot();
    let Snapshot { adopted_experts, warm_experts, adopt_ns, .. } = end - before;
    let whole = end - opened;
    let whole = WholeRun {
        wall_ns: warm_up.iter().chain(&done).map(|one| one.wall_ns).sum(),
        adopt_ns: whole.adopt_ns,
        adopted_bytes: whole.adopted_bytes,
        cold_experts: whole.cold_experts,
        missing_bytes: whole.missing_bytes,
        device_bytes: all_blocks.and_then(|counters| counters.read_bytes()).ok(),
        file_budget_bytes: FileBudget::read(root).ok().map(|budget| budget.bytes),
    };
    Ok(Measurement {
        channel: served.channel().to_owned(),
        limit_bytes: limits.limit_bytes,
        limit_path: limits.limit_path,
        limit_bytes_after: MemoryLimits::read(root).limit_bytes,
        resident_before_bytes,
        resident_file_bytes: resident / u64::max(samples, 1),
        wanted_locked_bytes,
        wanted_locked_bytes_after: served.locked_bytes(),
        kept_experts: served.kept_experts() as u64,
        block_layer_unknown: block_layer.as_ref().err().map(ToString::to_string),
        block_layer_bytes: block_layer.ok(),
        process_read_bytes: read.and_then(Result::ok),
        entry,
        during,
        adopted_experts,
        warm_experts,
        adopt_ns,
        whole,
        warm_up_iterations: iterations.len() as u64,
        iterations: done,
    })
}

impl Measurement {
    /// The sum of all words read in the measured replay.
    #[must_use]
    pub fn checksum(&self) -> u64 {
        self.iterations.iter().map(|one| one.checksum).fold(0, u64::wrapping_add)
    }

    /// Why the run must be thrown away, as far as the process itself can tell: what it locked is
    /// not what is locked, or its limit (`wanted`, if there was a wall) did not hold throughout.
    #[must_use]
    pub fn fault(&self, wanted: Option<u64>) -> Option<String> {
        let locked = self.entry.locked_bytes;
        for (found, wanted) in [
            (locked, self.wanted_locked_bytes),
            (self.during.locked_bytes, self.wanted_locked_bytes_after),
        ] {
            if let Some(found) = found.filter(|&found| found != wanted) {
                return Some(format!("VmLck is {found} bytes, {wanted} were to be locked"));
            }
        }
        if self.wanted_locked_bytes > 0 && locked.is_none() {
            return Some("VmLck cannot be read: nobody knows what is locked".to_owned());
        }
        if self.resident_before_bytes > 0 {
            let left = self.resident_before_bytes;
            return Some(format!("not cold: {left} bytes of the pool were in the page cache"));
        }
        let wanted = wanted?;
        // Written limits are rounded to pages.
        let off = |limit: Option<u64>| limit.is_none_or(|limit| limit.abs_diff(wanted) > 64 << 10);
        if off(self.limit_bytes) || off(self.limit_bytes_after) {
            return Some(format!(
                "the limit of {wanted} bytes did not hold: {:?} before, {:?} after",
                self.limit_bytes, self.limit_bytes_after
            ));
        }
        None
    }
}
