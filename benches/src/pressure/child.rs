//! One arm's run over the trace, in a process of its own that a control group limits.

use crate::consume;
use crate::measure::Meter;
use anyhow::{Context, Result, bail};
use expert_tier::observe::{MemoryLimits, SystemRoot};
use expert_tier::{
    Admission, Adopt, Adopted, Arena, ArenaConfig, FillMethod, Pool, Tier, TierConfig,
};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead};
use std::path::Path;
use std::time::{Duration, Instant};

/// How an arm answers an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) channel: &'static str,
    pub(crate) admission: Admission,
    pub(crate) fill_threads: usize,
    pub(crate) fill: Option<FillMethod>,
    /// An LRU arena instead of a tier.
    pub(crate) arena: bool,
    pub(crate) losing: bool,
}

pub(crate) const ADMIT: &str = "tier admit, 8 fill threads";
pub(crate) const ADMIT_ONE: &str = "tier admit, 1 fill thread";
pub(crate) const AUTO: &str = "tier auto, 8 fill threads";
pub(crate) const ARENA: &str = "user-space LRU arena, O_DIRECT";

const TIER: Way = Way {
    name: ADMIT,
    channel: "mapping, in place",
    admission: Admission::Admit,
    fill_threads: 8,
    fill: None,
    arena: false,
    losing: false,
};

const LOSING: Way = Way { losing: true, ..TIER };
const BUFFERS: &str = "buffers of the tier";

pub(crate) const WAYS: [Way; 7] = [
    Way { name: ARENA, channel: BUFFERS, arena: true, ..TIER },
    TIER,
    Way { name: AUTO, admission: Admission::Auto, ..TIER },
    Way { name: ADMIT_ONE, fill_threads: 1, ..TIER },
    Way {
        name: "losing: direct, no cache",
        channel: BUFFERS,
        admission: Admission::Direct,
        ..LOSING
    },
    Way { name: "losing: drop-behind", admission: Admission::DropBehind, ..LOSING },
    Way { name: "losing: WILLNEED, 4 KiB folios", fill: Some(FillMethod::WillNeed), ..LOSING },
];

/// Turns of the trace in which the capacity is looked at.
const SAMPLES: usize = 16;

/// What a child tells its parent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) scored: usize,
    pub(crate) cold: bool,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) asked_bytes: u64,
    pub(crate) device_bytes: Option<u64>,
    /// Bytes of the pool that a probe found in the page cache, mean over the scored part.
    pub(crate) resident_bytes: u64,
    pub(crate) process_bytes: Option<u64>,
    pub(crate) seconds: f64,
    pub(crate) checksum: u64,
    /// Of the arm that chooses: what, and why.
    pub(crate) choice: Option<Choice>,
}

/// What the arm that chooses says at the end.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Choice {
    pub(crate) why: String,
    pub(crate) trials: u64,
    pub(crate) trial_ns: u64,
    pub(crate) demand_ns: u64,
    pub(crate) switches: u64,
}

impl Way {
    fn open(&self, pool: Pool, places: usize) -> Result<Box<dyn Adopt>> {
        let fill_threads = self.fill_threads;
        if self.arena {
            let config = ArenaConfig { places, fill_threads, ..ArenaConfig::default() };
            return Ok(Box::new(Arena::open(pool, &config)?));
        }
        let config = TierConfig {
            admission: self.admission,
            fill_threads,
            fill_method: self.fill,
            ..TierConfig::default()
        };
        Ok(Box::new(Tier::open(pool, config)?))
    }
}

/// Waits for a line on standard input: then the parent has put us into the group.
pub(crate) fn run(pool: &Path, arm: usize, places: usize, tokens: usize) -> Result<()> {
    let Some(way) = WAYS.get(arm) else { bail!("no arm {arm}") };
    io::stdin().lock().read_line(&mut String::new()).context("waiting for the parent")?;
    let trace = super::trace::olmoe(tokens)?;
    let adopt = way.open(Pool::open(pool)?, places)?;
    let tier = adopt.tier();
    let cold = tier.evict(None)?.resident_bytes == 0;
    let first_scored = super::trace::replay(&trace)?.warm.keys().len();
    let mut state = None;
    let mut asked_bytes = 0;
    let mut checksum = 0_u64;
    let mut resident = Resident::default();
    let every = ((trace.keys().len() - first_scored) / SAMPLES).max(1);
    for (number, &key) in trace.keys().iter().enumerate() {
        if number == first_scored {
            state = Some((Meter::start(tier), Instant::now()));
            (asked_bytes, checksum) = (0, 0);
        }
        if number >= first_scored && (number - first_scored).is_multiple_of(every) {
            resident.sample(tier)?;
        }
        let id = trace.key_space().id(key).context("an access without an expert")?;
        let adopted = adopt.adopt_batch(id.layer, &[id.index])?;
        checksum = checksum.wrapping_mul(31).wrapping_add(use_all(&adopted, &mut asked_bytes));
    }
    let Some((meter, start)) = state else { bail!("a trace of {tokens} tokens") };
    let seconds = (start.elapsed() - resident.took).as_secs_f64();
    let (device_bytes, process_bytes) = meter.stop();
    let limit_bytes = MemoryLimits::read(&SystemRoot::default()).limit_bytes;
    let scored = trace.keys().len() - first_scored;
    let outcome = Outcome {
        scored,
        cold,
        limit_bytes,
        asked_bytes,
        device_bytes,
        resident_bytes: resident.mean_bytes(),
        process_bytes,
        seconds,
        checksum,
        choice: tier.admission_choice().map(|choice| Choice {
            why: choice.why,
            trials: choice.trials,
            trial_ns: choice.trial_ns,
            demand_ns: choice.demand_ns,
            switches: choice.switches,
        }),
    };
    serde_json::to_writer(io::stdout(), &outcome)?;
    Ok(())
}

/// What the page cache holds of the pool, looked at now and then.
#[derive(Default)]
struct Resident {
    bytes: u64,
    samples: u64,
    /// Is not the arm's time.
    took: Duration,
}

impl Resident {
    fn sample(&mut self, tier: &Tier) -> Result<()> {
        let start = Instant::now();
        self.bytes += tier.residency(None)?.resident_bytes;
        self.samples += 1;
        self.took += start.elapsed();
        Ok(())
    }

    fn mean_bytes(&self) -> u64 {
        self.bytes / self.samples.max(1)
    }
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
