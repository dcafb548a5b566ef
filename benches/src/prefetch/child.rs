//! One arm's run over the trace, in a process of its own that a control group limits.

use super::decode::{self, Step};
use super::plans::{self, Told};
use crate::measure::Meter;
use anyhow::{Context, Result, bail};
use expert_tier::observe::{MemoryLimits, SystemRoot};
use expert_tier::{AdviceForm, Pool, Snapshot, Tier, TierConfig};
use pilot_prefetch::{Delivery, DeliverySnapshot, GateConfig, Plan, Worker, WorkerConfig};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead};
use std::path::Path;
use std::time::{Duration, Instant};

/// Stands for the arithmetic of one layer.
pub(crate) const COMPUTE: Duration = Duration::from_millis(8);

/// What is told, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) channel: &'static str,
    /// `None`: no hints.
    pub(crate) told: Option<(Told, AdviceForm)>,
    pub(crate) gated: bool,
}

pub(crate) const NONE: &str = "none";
pub(crate) const ORACLE: &str = "oracle, advice in pieces";
pub(crate) const PILOT: &str = "PILOT-like, advice in pieces, gate";
pub(crate) const WRONG: &str = "all wrong, advice in pieces, gate";
pub(crate) const WRONG_UNGATED: &str = "losing: all wrong, no gate";

const fn way(name: &'static str, told: Told, form: AdviceForm, gated: bool) -> Way {
    let channel = match form {
        AdviceForm::Pieces => "2 MiB populate, idle I/O priority",
        AdviceForm::BlockingRead => "pread, idle I/O priority",
        AdviceForm::SingleCall => "one fadvise an extent, idle I/O priority",
    };
    Way { name, channel, told: Some((told, form)), gated }
}

pub(crate) const WAYS: [Way; 9] = [
    Way { name: NONE, channel: "demand alone", told: None, gated: false },
    way(ORACLE, Told::Oracle, AdviceForm::Pieces, false),
    way("oracle, blocking reads", Told::Oracle, AdviceForm::BlockingRead, false),
    way("oracle, one call an expert", Told::Oracle, AdviceForm::SingleCall, false),
    way(PILOT, Told::Pilot, AdviceForm::Pieces, true),
    way("PILOT-like, advice in pieces, no gate", Told::Pilot, AdviceForm::Pieces, false),
    way("PILOT-like, blocking reads", Told::Pilot, AdviceForm::BlockingRead, false),
    way(WRONG, Told::Wrong, AdviceForm::Pieces, true),
    way(WRONG_UNGATED, Told::Wrong, AdviceForm::Pieces, false),
];

impl Outcome {
    pub(crate) fn mean_ms(&self) -> f64 {
        self.seconds.iter().sum::<f64>() * 1e3 / self.seconds.len().max(1) as f64
    }
}

impl Way {
    /// Whether a bar is about it.
    pub(crate) fn judged(&self) -> bool {
        [NONE, ORACLE, PILOT, WRONG].contains(&self.name)
    }
}

/// What a child tells its parent of the scored tokens.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) cold: bool,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) asked_bytes: u64,
    pub(crate) device_bytes: Option<u64>,
    pub(crate) process_bytes: Option<u64>,
    /// Of each token.
    pub(crate) seconds: Vec<f64>,
    pub(crate) checksum: u64,
    /// Share of the demanded experts that were there.
    pub(crate) warm: f64,
    /// Time in which the decode thread waited for the device, in milliseconds a token.
    pub(crate) waited_ms: f64,
    /// All tokens, the warm-up too.
    pub(crate) delivery: Option<DeliverySnapshot>,
    pub(crate) notices: Vec<String>,
}

/// Waits for a line on standard input: then the parent has put us into the group.
pub(crate) fn run(
    pool: &Path,
    arm: usize,
    plans: &Path,
    (warm, tokens): (usize, usize),
    trace: Option<&Path>,
) -> Result<()> {
    let Some(way) = WAYS.get(arm) else { bail!("no arm {arm}") };
    io::stdin().lock().read_line(&mut String::new()).context("waiting for the parent")?;
    let (header, passes) = super::passes(trace, tokens)?;
    let first = passes.first().map_or(0, |pass| pass.info.step);
    let tier = Tier::open(Pool::open(pool)?, TierConfig::default())?;
    // Where nothing is told as well: the plans take room behind the same limit.
    let told = plans::read(plans)?.1;
    let mut delivery = deliver(way, &tier, &header.shape.moe_layers)?;
    let cold = tier.evict(None)?.resident_bytes == 0;
    let steps: Vec<Step<'_>> = passes
        .iter()
        .enumerate()
        .map(|(number, pass)| {
            let next = passes.get(number + 1).map(|next| (next.info.step, next.info.layer));
            let plan: Option<&Plan> = next.and_then(|next| told.get(&next));
            Step { step: pass.info.step, layer: pass.info.layer, experts: pass.experts(), plan }
        })
        .collect();
    let mut scored = None;
    let (mut asked_bytes, mut checksum) = (0, 0);
    let mut seconds = Vec::with_capacity(tokens);
    for token in steps.chunk_by(|one, next| one.step == next.step) {
        if scored.is_none() && token[0].step - first >= warm as u64 {
            scored = Some((Meter::start(&tier), tier.snapshot()));
            seconds.clear();
            asked_bytes = 0;
        }
        let start = Instant::now();
        for step in token {
            asked_bytes += decode::layer(&tier, delivery.as_mut(), step, COMPUTE, &mut checksum)?;
        }
        seconds.push(start.elapsed().as_secs_f64());
    }
    let Some((meter, before)) = scored else { bail!("{warm} of {tokens} tokens warm") };
    let (device_bytes, process_bytes) = meter.stop();
    let counters: Snapshot = tier.snapshot() - before;
    let notices = delivery.as_ref().map_or(Vec::new(), Delivery::notices);
    let outcome = Outcome {
        cold,
        limit_bytes: MemoryLimits::read(&SystemRoot::default()).limit_bytes,
        asked_bytes,
        device_bytes,
        process_bytes,
        seconds,
        checksum,
        warm: counters.warm_ratio().unwrap_or(0.0),
        waited_ms: counters.adopt_ns as f64 / 1e6 / (tokens - warm) as f64,
        delivery: delivery.as_ref().map(Delivery::snapshot),
        notices: notices.iter().map(ToString::to_string).collect(),
    };
    serde_json::to_writer(io::stdout(), &outcome)?;
    Ok(())
}

fn deliver(way: &Way, tier: &Tier, layers: &[u16]) -> Result<Option<Delivery>> {
    let Some((_, form)) = way.told else { return Ok(None) };
    let worker = Worker::start(tier.advisor(), WorkerConfig { form, ..WorkerConfig::default() })?;
    Ok(Some(if way.gated {
        let layers = layers.last().map_or(0, |last| last + 1);
        Delivery::gated(worker, layers, GateConfig::default())
    } else {
        Delivery::ungated(worker)
    }))
}
