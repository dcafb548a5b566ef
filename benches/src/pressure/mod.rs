//! A real trace in a quarter of the memory it would like, under the kernel's eviction and under
//! exact LRU.

pub(crate) mod child;
pub(crate) mod trace;

use crate::Settings;
use crate::measure::{Arm, Sample, Turns};
use crate::pools::{Layout, Spec};
use crate::report::{Bar, Better, Row};
use crate::stats::Spread;
use anyhow::{Context, Result, bail, ensure};
use child::{ADMIT, ADMIT_ONE, ARENA, Outcome, WAYS};
use engine_example::replay::run_cell;
use expert_tier::observe::{MemoryScope, SystemRoot, Unavailable};
use expert_tier::{Pool, Tier, TierConfig};
use std::cell::RefCell;
use std::process::Command;

/// 1,024 experts of exactly one 2 MiB window.
pub(crate) const POOL: Spec = Spec {
    name: "pressure",
    layout: Layout::Packed,
    layers: trace::LAYERS,
    experts: trace::EXPERTS,
    expert_bytes: 2 << 20,
};
/// A quarter of the pool.
pub(crate) const SLOTS: usize = 256;
/// For the process itself, and the buffer that an arena reads into before it gives one up.
pub(crate) const EXTRA_BYTES: u64 = 24 << 20;

pub(crate) fn run(settings: &Settings) -> Result<(Vec<Row>, Vec<Bar>)> {
    let pool = POOL.open(&settings.dir)?;
    let limit = (SLOTS * POOL.expert_bytes) as u64 + EXTRA_BYTES;
    let tokens = settings.pick(trace::TOKENS, trace::TOKENS / 4);
    let trace = trace::olmoe(tokens)?;
    let lru = trace::lru(&trace)?;
    let exact = lru(SLOTS);
    let workload = format!(
        "OLMoE, {} accesses one by one, scored after 40 %, 2 MiB experts, limit {} MiB, \
         wall time an access",
        trace.keys().len(),
        limit >> 20
    );
    // Whether a group can be had at all, before any arm depends on it.
    if let Err(error) = scope(limit) {
        let why = error.to_string();
        let rows = WAYS.iter().map(|way| Row::skipped(&workload, way.name, &why)).collect();
        return Ok((rows, bars(None, exact)));
    }
    let pool = &pool;
    let resident = RefCell::new(vec![Vec::new(); WAYS.len()]);
    let turn = |arm: usize| {
        let (sample, resident_bytes) = turn(pool, arm, limit, tokens)?;
        resident.borrow_mut()[arm].push(resident_bytes as f64 / POOL.expert_bytes as f64);
        Ok(sample)
    };
    let mut arms = Vec::new();
    for (number, way) in WAYS.iter().enumerate() {
        if settings.quick && way.losing {
            continue;
        }
        let turn = &turn;
        let mut arm = Arm::new(way.name, way.channel, move || turn(number));
        if way.losing && !settings.every_arm {
            arm.most = 1;
        }
        arms.push(arm);
    }
    let turns = Turns::take_cold(&workload, "ms", arms, settings.rounds)?;
    let mut rows = turns.rows(ARENA);
    let ran = resident.borrow();
    for (row, experts) in rows.iter_mut().zip(ran.iter().filter(|samples| !samples.is_empty())) {
        row.notes.push(format!("exact LRU of {SLOTS} experts misses {exact:.4}"));
        let Some(held) = Spread::of(experts.iter().copied()) else { continue };
        if held.median >= 1.0 {
            let places = held.median.round();
            let same = lru(places as usize);
            let note = format!("held {places} experts in the mean; exact LRU of as many {same:.4}");
            row.notes.push(note);
        }
    }
    if settings.quick {
        let losing = WAYS.iter().filter(|way| way.losing);
        rows.extend(losing.map(|way| Row::skipped(&workload, way.name, "--quick")));
    }
    Ok((rows, bars(Some(&turns), exact)))
}

fn bars(turns: Option<&Turns>, exact: f64) -> Vec<Bar> {
    let of = |arm: &&str| {
        let share = turns.map(|turns| turns.read_share(arm));
        let (share, how) = share.unwrap_or((None, "not run".to_owned()));
        let time = turns.and_then(|turns| turns.ratio(arm, ARENA));
        let bytes = format!("pressure, {arm}: device bytes / exact LRU's ({how})");
        let times = format!("pressure, {arm}: time an access / LRU arena's");
        [
            Bar::new(bytes, share.map(|share| share / exact), 1.03, Better::Lower),
            Bar::new(times, time, 1.15, Better::Lower),
        ]
    };
    [ADMIT, ADMIT_ONE].iter().flat_map(of).collect()
}

/// One arm over the whole trace, in a child that a new group limits; and what it held of the pool.
fn turn(pool: &Pool, arm: usize, limit: u64, tokens: usize) -> Result<(Sample, u64)> {
    // Pages that this process left would be charged to it, not to the child.
    Tier::open(pool.clone(), TierConfig::default())?.evict(None)?;
    let scope = scope(limit)?;
    let mut child = Command::new(std::env::current_exe()?);
    child.arg("pressure-child").arg(pool.root());
    child.args([arm, SLOTS, tokens].map(|number| number.to_string()));
    let ran = run_cell(&mut child, Some(&scope), b"go\n").context("the child")?;
    let name = WAYS[arm].name;
    if let Some(fault) = ran.fault() {
        bail!("{name}, in {}: {fault}", scope.dir().display());
    }
    let outcome: Outcome = serde_json::from_slice(&ran.output)
        .with_context(|| format!("{name}: {}", String::from_utf8_lossy(&ran.output)))?;
    ensure!(outcome.limit_bytes == Some(limit), "{name}: limited to {:?}", outcome.limit_bytes);
    eprintln!(
        "{name}: {:.3} ms an access, {} MiB of the pool cached, {:?} of {} bytes from the device",
        outcome.seconds * 1e3 / outcome.scored as f64,
        outcome.resident_bytes >> 20,
        outcome.device_bytes,
        outcome.asked_bytes
    );
    let sample = Sample {
        value: outcome.seconds * 1e3 / outcome.scored as f64,
        asked_bytes: outcome.asked_bytes,
        device_bytes: outcome.device_bytes,
        process_bytes: outcome.process_bytes,
        checksum: outcome.checksum,
        flag: (!outcome.cold).then(|| "began with pages in the cache".to_owned()),
    };
    Ok((sample, outcome.resident_bytes))
}

pub(crate) fn scope(limit: u64) -> Result<MemoryScope, Unavailable> {
    let name = format!("tier-bench-{}", std::process::id());
    MemoryScope::create(&name, limit, &SystemRoot::default())
}
