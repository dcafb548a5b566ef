//! `tier warm` and `tier evict`: put experts into the page cache, or ask it to forget them.

use super::args::ExpertsArgs;
use super::inspect::warn;
use super::output::{self, bytes};
use super::{bundled, progress, touch};
use anyhow::{Context, Result, bail};
use expert_tier::{Pool, Residency, Snapshot, Tier, TierConfig};
use router_trace::ExpertId;
use serde::Serialize;
use std::process::ExitCode;

/// Experts adopted at once.
const BATCH: usize = 16;

#[derive(Debug, Serialize)]
struct Report {
    experts: usize,
    /// Before the command did anything.
    before: Residency,
    /// What a probe found afterwards.
    after: Residency,
    counters: Snapshot,
}

/// What was done, and what a probe found of the pages that were to go: those on a border with
/// an expert that stays do not.
#[derive(Clone, Copy)]
enum Done {
    Warmed,
    Evicted(Residency),
}

pub(crate) fn warm(args: &ExpertsArgs) -> Result<ExitCode> {
    let (tier, ids) = open(args)?;
    let before = tier.residency(Some(&ids))?;
    let bar = progress::count_bar(ids.len() as u64, "warming");
    for same_layer in ids.chunk_by(|left, right| left.layer == right.layer) {
        for batch in same_layer.chunks(BATCH) {
            let indices: Vec<u16> = batch.iter().map(|id| id.index).collect();
            drop(tier.adopt_batch(batch[0].layer, &indices)?);
            bar.inc(batch.len() as u64);
        }
    }
    bar.finish_and_clear();
    finish(args, &tier, &ids, before, Done::Warmed)
}

pub(crate) fn evict(args: &ExpertsArgs) -> Result<ExitCode> {
    let (tier, ids) = open(args)?;
    let before = tier.residency(Some(&ids))?;
    let whole_pool = args.layer.is_none() && args.experts.is_none();
    let left = tier.evict(if whole_pool { None } else { Some(&ids) })?;
    finish(args, &tier, &ids, before, Done::Evicted(left))
}

fn finish(
    args: &ExpertsArgs,
    tier: &Tier,
    ids: &[ExpertId],
    before: Residency,
    done: Done,
) -> Result<ExitCode> {
    let after = tier.residency(Some(ids))?;
    let what = match done {
        Done::Warmed => "warm",
        Done::Evicted(_) => "evict",
    };
    let report = Report { experts: ids.len(), before, after, counters: tier.snapshot() };
    output::report(args.json, &report, |out| {
        writeln!(
            out,
            "{what}: {} experts, {} of {} in the page cache before, {} now",
            report.experts,
            bytes(before.resident_bytes),
            bytes(before.total_bytes),
            bytes(after.resident_bytes),
        )
    })?;
    match done {
        Done::Warmed if after.resident_bytes < after.total_bytes => warn(&format!(
            "not all is warm: {} of {} bytes are in the page cache",
            after.resident_bytes, after.total_bytes
        )),
        Done::Evicted(left) if left.resident_bytes > 0 => {
            let why = touch::memory_file_system(tier.pool());
            warn(&format!(
                "not all is evicted: {} of {} bytes stay in the page cache{}",
                left.resident_bytes,
                left.total_bytes,
                why.map_or_else(String::new, |why| format!(" ({why}: evicting has no effect)")),
            ));
        }
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn open(args: &ExpertsArgs) -> Result<(Tier, Vec<ExpertId>)> {
    let dir = match &args.pool {
        Some(dir) => dir.clone(),
        None => bundled::model_dir()?,
    };
    let pool = Pool::open(&dir)?;
    let ids = select(&pool, args)?;
    Ok((Tier::open(pool, TierConfig::default())?, ids))
}

/// The experts named on the command line, by layer and index, each once.
fn select(pool: &Pool, args: &ExpertsArgs) -> Result<Vec<ExpertId>> {
    let layers: Vec<u16> = match args.layer {
        Some(layer) => vec![layer],
        None => pool.layout().moe_layers().collect(),
    };
    let mut ids = Vec::new();
    for layer in layers {
        let in_layer = pool.layout().layer(layer).len();
        if in_layer == 0 {
            bail!("layer {layer} has no routed experts");
        }
        match &args.experts {
            None => ids.extend((0_u16..).take(in_layer).map(|index| ExpertId::new(layer, index))),
            Some(text) => {
                for index in parse_ranges(text)? {
                    if usize::from(index) >= in_layer {
                        bail!("layer {layer} has no expert {index}, only 0 to {}", in_layer - 1);
                    }
                    ids.push(ExpertId::new(layer, index));
                }
            }
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// `0,3,8-11` to numbers.
fn parse_ranges(text: &str) -> Result<Vec<u16>> {
    let number = |part: &str| {
        part.trim().parse::<u16>().with_context(|| format!("--experts {text:?}: {part:?}"))
    };
    let mut all = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => all.extend(number(first)?..=number(last)?),
            None => all.push(number(part)?),
        }
    }
    if all.is_empty() {
        bail!("--experts {text:?} names no expert");
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_lists() {
        assert_eq!(parse_ranges("0,3,8-11").unwrap(), [0, 3, 8, 9, 10, 11]);
        for bad in ["", "a", "3-", "-3", "70000", "9-3"] {
            assert!(parse_ranges(bad).is_err(), "{bad:?}");
        }
    }
}
