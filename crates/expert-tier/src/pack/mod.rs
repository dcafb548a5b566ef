//! Writes packed pools ([`crate::pool::packed`]) from whatever the library opens, or from any
//! other [`PackSource`].
//!
//! A pack that was killed goes on where it stopped: finished experts stand in a journal with
//! their checksums, synced in batches behind their bytes. Until the index gets its name as the
//! very last step, the folder does not open.
//!
//! ```no_run
//! use expert_tier::pack::{PackOptions, pack};
//! use expert_tier::pool::Pool;
//! use std::path::Path;
//!
//! # fn main() -> Result<(), expert_tier::TierError> {
//! let pool = Pool::open("Qwen3-30B-A3B")?;
//! let report = pack(&pool, Path::new("qwen3-packed"), &PackOptions::default(), |step| {
//!     eprintln!("{} of {} bytes", step.done_bytes, step.total_bytes);
//! })?;
//! println!("{} experts", report.experts);
//! # Ok(())
//! # }
//! ```

mod disk;
mod journal;
mod plan;
mod run;
mod source;
mod target;
#[cfg(test)]
mod tests;
mod verify;

pub use source::{GgufHead, PackExpert, PackFile, PackPart, PackSource, PackTensor, PoolSource};
pub use verify::{VerifyMismatch, VerifyReport, verify};

use crate::error::TierError;
use crate::notice::Notice;
use crate::pool::Pool;
use serde::Serialize;
use std::path::Path;

/// How a pool is packed. Plain data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackOptions {
    /// Threads that read, check and write experts; each holds one expert in memory.
    pub threads: usize,
    /// A spine larger than this is cut into several files.
    pub spine_shard_bytes: u64,
    /// Throw an unfinished pack of another source away instead of refusing to touch it.
    pub restart: bool,
    /// Read back what an earlier run has finished, instead of trusting what it had synced.
    pub recheck: bool,
    /// Who writes it, for people.
    pub created_by: String,
}

impl PackOptions {
    /// The most threads.
    pub const MAX_THREADS: usize = 64;

    fn check(&self) -> Result<(), TierError> {
        let limit = |what, value, min, max| match (min..=max).contains(&value) {
            true => Ok(()),
            false => Err(TierError::SettingLimit { what, value, min, max }),
        };
        limit("threads", self.threads as u64, 1, Self::MAX_THREADS as u64)?;
        limit("spine_shard_bytes", self.spine_shard_bytes, 1, 1 << 50)
    }
}

impl Default for PackOptions {
    fn default() -> Self {
        Self {
            threads: 4,
            spine_shard_bytes: 5 << 30,
            restart: false,
            recheck: false,
            created_by: concat!("expert-tier ", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

/// What a pack is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PackStage {
    /// Reading back what an earlier run has finished.
    Recheck,
    /// Writing the spine.
    Spine,
    /// Writing experts.
    Experts,
    /// Syncing, and writing the index.
    Finish,
}

/// How far a pack is; what an earlier run has finished counts as done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct PackProgress {
    /// What it is doing.
    pub stage: PackStage,
    /// Bytes of experts and spine that are written (in [`PackStage::Recheck`]: read back).
    pub done_bytes: u64,
    /// All of them.
    pub total_bytes: u64,
    /// Experts written (or read back).
    pub done_experts: usize,
    /// All of them.
    pub total_experts: usize,
}

/// What a pack did.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PackReport {
    /// Experts in the pool.
    pub experts: usize,
    /// Their bytes, without the holes behind them.
    pub expert_bytes: u64,
    /// Tensors of the spine.
    pub spine_tensors: usize,
    /// Bytes of the spine's files.
    pub spine_bytes: u64,
    /// Length of the experts file, holes counted.
    pub experts_file_len: u64,
    /// Experts that an earlier run had finished.
    pub resumed_experts: usize,
    /// Bytes of experts and spine that this run wrote.
    pub written_bytes: u64,
    /// How long this run took.
    pub seconds: f64,
    /// What was left out, and what a person should know.
    pub notices: Vec<Notice>,
}

/// Packs `pool` into the folder `out`, which must be new, empty, or an unfinished pack of the
/// same source.
///
/// # Errors
///
/// `output-refused` for a folder that holds anything else, `pack-source-changed` for an
/// unfinished pack of another source, `disk-full` before the first write or in the middle
/// (what is finished is kept: call again when there is room), `io-changed` if a source file is
/// no longer the one that was opened.
pub fn pack(
    pool: &Pool,
    out: &Path,
    options: &PackOptions,
    progress: impl FnMut(&PackProgress),
) -> Result<PackReport, TierError> {
    target::refuse_own_folder(pool, out)?;
    let mut report = pack_from(&PoolSource::open(pool)?, out, options, progress)?;
    report.notices.extend(source::left_out(pool));
    Ok(report)
}

/// Packs what `source` says into the folder `out`.
///
/// # Errors
///
/// As [`pack`], and whatever the source answers.
pub fn pack_from(
    source: &dyn PackSource,
    out: &Path,
    options: &PackOptions,
    mut progress: impl FnMut(&PackProgress),
) -> Result<PackReport, TierError> {
    options.check()?;
    run::run(source, out, options, &disk::Disk::new(), &mut progress)
}
