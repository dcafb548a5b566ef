//! Reads every byte of a pool and checks what can be checked without a decoder.

mod read;
mod report;
mod scales;
mod scan;
mod units;

pub use report::{Problem, VerifyReport};

use super::Pool;
use crate::error::TierError;
use read::Pass;
use report::Draft;
use units::Plan;

/// Most threads that read: beyond this no storage gets faster.
const MAX_THREADS: usize = 256;

/// Reads all data of all files of `pool` with `threads` threads, in large sequential pieces, and
/// checks:
///
/// - that every byte can be read, and that no file changes meanwhile;
/// - that no range of a tensor was left unwritten ([`Pool::holes`]);
/// - that floating-point values are finite, codes of FP8 values included;
/// - that scales are above zero where their weights are not zero (a warning);
/// - that stored logical shapes agree with the packed weights;
/// - that no expert has a projection of 4 KiB or more that holds zeros only (a warning);
/// - that the config says what a router and a head need: [`Pool::check_head`],
///   `num_experts_per_tok`, and `norm_topk_prob` where the family has no known default.
///
/// Problems do not stop it: it goes on with what is left. In tensors that are not served, and
/// in files that are no model (neither a config nor experts), values that are not finite are
/// warnings.
///
/// `progress(done, total)` is called in bytes, from several threads.
///
/// **Page cache.** The files go through the page cache piece by piece and are dropped from it
/// behind the reader, also what was cached before: a pool is cold afterwards, except for pages
/// that someone has mapped.
///
/// # Errors
///
/// `limit` for a number of threads outside 1 to 256 or that cannot be started. What is wrong
/// with the pool is in the report.
pub fn verify(
    pool: &Pool,
    threads: usize,
    progress: impl Fn(u64, u64) + Sync,
) -> Result<VerifyReport, TierError> {
    if !(1..=MAX_THREADS).contains(&threads) {
        return Err(TierError::SettingLimit {
            what: "the number of reading threads",
            value: threads as u64,
            min: 1,
            max: MAX_THREADS as u64,
        });
    }
    let mut draft = Draft::new(pool);
    let plan = Plan::of(pool, &mut draft);
    let pass = Pass::new(pool, &plan, &progress);
    let findings = pass.run(threads)?;
    draft.add_findings(&plan, &findings);
    draft.add_zero_weights(&plan, |unit| pass.is_zero(unit));
    scales::check(pool, &plan, &findings.scales, &mut draft);
    draft.add_changes(&plan, &findings);
    Ok(draft.finish(&plan, pass.bytes_read()))
}

#[cfg(test)]
mod tests;
