//! A finished run: what was predicted beside what was measured.

use super::inputs::RateFacts;
use crate::cli::args_plan::PlanArgs;
use crate::cli::output::bytes;
use crate::cli::promised::Model;
use crate::cli::trace;
use anyhow::{Context, Result, bail};
use router_trace::{DemandModel, Phase};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::path::Path;

/// The parts of a run's report that a plan predicts: what `tier generate --json` writes. A report
/// without tokens (a replay's) needs `counters` and `demand` only.
#[derive(Debug, Deserialize)]
struct Run {
    /// Prompt and produced tokens together.
    counters: Counters,
    decode: Option<Counters>,
    #[serde(default)]
    token_ids: Vec<u32>,
    /// `null` or absent where the run did not begin cold.
    cold_start: Option<serde_json::Value>,
    demand: Option<RunDemand>,
}

#[derive(Debug, Deserialize)]
struct Counters {
    wall_ns: u64,
    adopt_ns: u64,
    adopted_bytes: u64,
    cold_experts: u64,
    missing_bytes: u64,
    device_bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct RunDemand {
    budget: serde_json::Value,
    computed_misses: u64,
    computed_miss_bytes: u64,
}

impl RunDemand {
    /// The memory that files could have at the end of the run.
    fn budget_bytes(&self) -> Option<u64> {
        self.budget.pointer("/Ok/bytes")?.as_u64()
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Verified {
    run: std::path::PathBuf,
    /// Where predicted misses come from.
    basis: &'static str,
    /// Bytes of file cache they hold for; `null` where the run did not say it.
    budget_bytes: Option<u64>,
    rows: Vec<Compared>,
    notices: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Compared {
    what: &'static str,
    unit: &'static str,
    predicted: Option<f64>,
    measured: Option<f64>,
    /// Measured over predicted.
    ratio: Option<f64>,
}

impl Compared {
    fn new(
        what: &'static str,
        unit: &'static str,
        predicted: Option<f64>,
        measured: Option<f64>,
    ) -> Self {
        let ratio = predicted.zip(measured).filter(|(predicted, _)| *predicted > 0.0);
        let ratio = ratio.map(|(predicted, measured)| measured / predicted);
        Self { what, unit, predicted, measured, ratio }
    }
}

/// Misses of a whole run and of its decoding.
#[derive(Clone, Copy)]
struct Misses {
    experts: u64,
    bytes: u64,
    decode_bytes: Option<u64>,
}

pub(super) fn run(
    path: &Path,
    args: &PlanArgs,
    model: &Model,
    rates: &RateFacts,
) -> Result<Verified> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    let run: Run = serde_json::from_slice(&text)
        .with_context(|| format!("{}: not what tier generate --json writes", path.display()))?;
    let mut notices = Vec::new();
    if run.cold_start.is_none() {
        notices.push("the run did not begin cold: what was warm already is not predicted".into());
    }
    let budget = run.demand.as_ref().and_then(RunDemand::budget_bytes);
    let budget_bytes = args.dram.as_ref().and_then(|sizes| sizes.first().copied()).or(budget);
    let (basis, misses) = if args.demand.trace.is_some() {
        let budget = budget_bytes
            .with_context(|| format!("{}: no file budget; give --dram", path.display()))?;
        ("exact LRU over the trace", replay(args, model, budget)?)
    } else if let Some(demand) = &run.demand {
        let (experts, bytes) = (demand.computed_misses, demand.computed_miss_bytes);
        ("exact LRU beside the run", Misses { experts, bytes, decode_bytes: None })
    } else {
        bail!("{}: has no computed misses; give the run's --trace", path.display());
    };
    let rows = compare(&run, model, rates, misses);
    Ok(Verified { run: path.to_owned(), basis, budget_bytes, rows, notices })
}

fn compare(run: &Run, model: &Model, rates: &RateFacts, misses: Misses) -> Vec<Compared> {
    let (all, decode) = (&run.counters, run.decode.as_ref());
    let float = |count: u64| Some(count as f64);
    let device_rate = rates.rates.device_bytes_per_s;
    let seconds = |bytes: u64| device_rate.map(|rate| bytes as f64 / rate);
    let tokens = run.token_ids.len().saturating_sub(1);
    let token = |ns: u64| (tokens > 0).then(|| ns as f64 / 1e9 / tokens as f64);
    let adopted_bytes = decode.map_or(0, |decode| decode.adopted_bytes);
    // Bytes alone: what was missed from the device, what was used from memory.
    let decode_s =
        misses.decode_bytes.zip(rates.rates.memory_bytes_per_s).and_then(|(missed, memory)| {
            let spine = model.sizes.spine_token_bytes as f64 * tokens as f64;
            let used = (adopted_bytes as f64 + spine) / memory;
            (tokens > 0).then_some((seconds(missed)? + used) / tokens as f64)
        });
    vec![
        Compared::new("experts missing", "experts", float(misses.experts), float(all.cold_experts)),
        Compared::new("bytes missing", "bytes", float(misses.bytes), float(all.missing_bytes)),
        Compared::new(
            "device reads",
            "bytes",
            float(misses.bytes),
            all.device_bytes.map(|bytes| bytes as f64),
        ),
        Compared::new("waiting", "s", seconds(misses.bytes), Some(all.adopt_ns as f64 / 1e9)),
        Compared::new("a produced token", "s", decode_s, decode.and_then(|d| token(d.wall_ns))),
    ]
}

/// The trace of the same run through exact LRU of `budget` bytes, from a cold start.
fn replay(args: &PlanArgs, model: &Model, budget: u64) -> Result<Misses> {
    let path = args.demand.trace.as_ref().context("a trace is given")?;
    let mut reader = trace::open(path, &args.demand.input)?;
    let shape = reader.header().shape.clone();
    if shape != model.sizes.shape {
        bail!("{}: is a trace of another model than the run's", path.display());
    }
    let mut demand = DemandModel::new(&shape, model.sizes.expert_bytes, budget)?;
    let (mut prompt_bytes, mut decoding) = (0, false);
    for pass in &mut reader {
        let pass = pass?;
        if pass.info.phase == Phase::Decode && !decoding {
            (prompt_bytes, decoding) = (demand.count().miss_bytes, true);
        }
        for route in pass.routes() {
            demand.observe(&route)?;
        }
    }
    let count = demand.count();
    let decode_bytes = decoding.then(|| count.miss_bytes - prompt_bytes);
    Ok(Misses { experts: count.misses, bytes: count.miss_bytes, decode_bytes })
}

pub(super) fn print(verified: &Verified, out: &mut dyn Write) -> io::Result<()> {
    let budget = verified.budget_bytes.map_or_else(|| "unknown".to_owned(), bytes);
    writeln!(out, "predicted by {}, file budget {budget}", verified.basis)?;
    for row in &verified.rows {
        let show = |value: Option<f64>| match (value, row.unit) {
            (None, _) => "unknown".to_owned(),
            (Some(value), "bytes") => bytes(value as u64),
            (Some(value), "s") => format!("{:.3} ms", value * 1e3),
            (Some(value), _) => format!("{value:.0}"),
        };
        let ratio = row.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        writeln!(
            out,
            "{:<18} predicted {:>12}  measured {:>12}  measured/predicted {ratio}",
            row.what,
            show(row.predicted),
            show(row.measured),
        )?;
    }
    verified.notices.iter().try_for_each(|notice| writeln!(out, "note: {notice}"))
}
