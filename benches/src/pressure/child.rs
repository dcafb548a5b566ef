//! One arm's run over the trace, in a process of its own that a control group limits.

use super::trace::{Access, Lru};
use crate::consume;
use crate::measure::Meter;
use anyhow::{Context, Result, bail};
use expert_tier::observe::{MemoryLimits, SystemRoot};
use expert_tier::{Admission, Adopted, Pool, Tier, TierConfig};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{self, BufRead};
use std::path::Path;
use std::time::Instant;

/// How an arm answers an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) channel: &'static str,
    pub(crate) admission: Admission,
    pub(crate) fill_threads: usize,
    /// Leases are kept, least recently used first out, in so many slots.
    pub(crate) arena: bool,
    pub(crate) losing: bool,
}

pub(crate) const ADMIT: &str = "tier admit, 8 fill threads";
pub(crate) const ADMIT_ONE: &str = "tier admit, 1 fill thread";
pub(crate) const ARENA: &str = "user-space LRU arena, O_DIRECT";

pub(crate) const WAYS: [Way; 5] = [
    way(ARENA, "buffers of the tier", Admission::Direct, 8, true, false),
    way(ADMIT, "mapping, in place", Admission::Admit, 8, false, false),
    way(ADMIT_ONE, "mapping, in place", Admission::Admit, 1, false, false),
    way("losing: direct, no cache", "buffers of the tier", Admission::Direct, 8, false, true),
    way("losing: drop-behind", "mapping, in place", Admission::DropBehind, 8, false, true),
];

const fn way(
    name: &'static str,
    channel: &'static str,
    admission: Admission,
    fill_threads: usize,
    arena: bool,
    losing: bool,
) -> Way {
    Way { name, channel, admission, fill_threads, arena, losing }
}

/// What a child tells its parent.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) scored: usize,
    pub(crate) cold: bool,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) asked_bytes: u64,
    pub(crate) device_bytes: Option<u64>,
    pub(crate) process_bytes: Option<u64>,
    pub(crate) seconds: f64,
    pub(crate) checksum: u64,
}

/// Waits for a line on standard input: then the parent has put us into the group.
pub(crate) fn run(pool: &Path, arm: usize, slots: usize, accesses: usize) -> Result<()> {
    let Some(way) = WAYS.get(arm) else { bail!("no arm {arm}") };
    io::stdin().lock().read_line(&mut String::new()).context("waiting for the parent")?;
    let mut trace = super::trace::olmoe()?;
    trace.truncate(accesses);
    let pool = Pool::open(pool)?;
    let (admission, fill_threads) = (way.admission, way.fill_threads);
    let tier = Tier::open(pool, TierConfig { admission, fill_threads, ..TierConfig::default() })?;
    let cold = tier.evict(None)?.resident_bytes == 0;
    let mut lru = Lru::new(slots);
    let mut held: HashMap<(u16, u16), Adopted> = HashMap::new();
    let first_scored = trace.len() * 2 / 5;
    let mut state = None;
    let mut asked_bytes = 0;
    let mut checksum = 0_u64;
    for (number, &access) in trace.iter().enumerate() {
        if number == first_scored {
            state = Some((Meter::start(&tier), Instant::now()));
            (asked_bytes, checksum) = (0, 0);
        }
        let (layer, index) = access;
        let adopt = || tier.adopt_batch(layer, &[index]);
        let sum = if way.arena {
            if let Access::Miss(victim) = lru.access(access) {
                // The slot is free before it is filled: never more than there are.
                drop(victim.and_then(|victim| held.remove(&victim)));
                held.insert(access, adopt()?);
            }
            use_all(&held[&access], &mut asked_bytes)
        } else {
            use_all(&adopt()?, &mut asked_bytes)
        };
        checksum = checksum.wrapping_mul(31).wrapping_add(sum);
    }
    let Some((meter, start)) = state else { bail!("a trace of {accesses} accesses") };
    let seconds = start.elapsed().as_secs_f64();
    let (device_bytes, process_bytes) = meter.stop();
    let limit_bytes = MemoryLimits::read(&SystemRoot::default()).limit_bytes;
    let scored = trace.len() - first_scored;
    let outcome = Outcome {
        scored,
        cold,
        limit_bytes,
        asked_bytes,
        device_bytes,
        process_bytes,
        seconds,
        checksum,
    };
    serde_json::to_writer(io::stdout(), &outcome)?;
    Ok(())
}

fn use_all(adopted: &Adopted, asked_bytes: &mut u64) -> u64 {
    let mut sum = 0_u64;
    for expert in adopted.experts() {
        for bytes in expert.parts().iter().filter_map(|part| part.bytes.host()) {
            *asked_bytes += bytes.len() as u64;
            sum = sum.wrapping_add(consume::sum(bytes));
        }
    }
    sum
}
