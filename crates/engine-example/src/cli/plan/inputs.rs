//! What a plan rests on: rates, and what tokens ask for.

use crate::cli::args_plan::{DemandArgs, RateArgs};
use crate::cli::promised::Model;
use crate::cli::session::cpus;
use crate::cli::trace;
use anyhow::{Result, bail};
use expert_tier::breakeven::PromotionRates;
use expert_tier::observe::{FileBudget, SystemRoot};
use expert_tier::plan::{
    DeviceRate, MeasureLimits, MissCurve, Rates, measure_device, measure_memory,
};
use expert_tier::{Pool, TierError};
use router_trace::simulate::{HitCurve, Replay};
use router_trace::{Accesses, Demand, LayerPass, Phase, TraceError};
use serde::Serialize;

/// What an idle machine with 2 MiB folios costs: `tier-bench fill`, in the README.
const FILL_COST: f64 = 1.04;

/// Fewer bytes are read in too short a time for a rate to repeat.
const LEAST_PROBE_BYTES: u64 = 256_000_000;

/// Larger than the caches of CPUs.
const MEMORY_PROBE_BYTES: u64 = 512 << 20;

/// Rates and where they come from.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RateFacts {
    #[serde(flatten)]
    pub(super) rates: Rates,
    pub(super) fill_cost: f64,
    pub(super) device_from: &'static str,
    pub(super) memory_from: &'static str,
    pub(super) measured: Option<DeviceRate>,
}

impl RateFacts {
    pub(super) fn gather(args: &RateArgs, notices: &mut Vec<String>) -> Result<Self> {
        let root = SystemRoot::default();
        let measured = match &args.measure {
            None => None,
            Some(path) => {
                Some(measure_device(&Pool::open(path)?, MeasureLimits::default(), &root)?)
            }
        };
        if let Some(measured) = &measured
            && let Some(reason) = &measured.cold.reason
        {
            if args.device_rate.is_none() {
                bail!("the device was not measured cold: {reason}; give --device-rate instead");
            }
            notices.push(format!("the device was not measured cold: {reason}"));
        }
        let asked = measured.as_ref().map(|rate| rate.cold.asked_bytes);
        if let Some(asked) = asked.filter(|&asked| asked < LEAST_PROBE_BYTES) {
            notices.push(format!(
                "the device was measured with {asked} bytes only: rates of less than \
                 {LEAST_PROBE_BYTES} bytes vary by a multiple from run to run"
            ));
        }
        let proved = measured.as_ref().and_then(DeviceRate::proved_bytes_per_s);
        let memory = args.measure.is_some().then(|| {
            let room = FileBudget::read(&root).map_or(MEMORY_PROBE_BYTES, |room| room.bytes / 4);
            measure_memory(cpus(), usize::try_from(room.min(MEMORY_PROBE_BYTES)).unwrap_or(0))
        });
        let from = |given: bool, known: bool| match (given, known) {
            (true, _) => "given",
            (false, true) => "measured",
            (false, false) => "unknown",
        };
        let fill_cost = args.fill_cost.or_else(|| {
            // A page cache is never faster than the device under it: noise stays out.
            measured.as_ref().filter(|rate| rate.cold.proved).map(|rate| rate.fill_cost().max(1.0))
        });
        Ok(Self {
            device_from: from(args.device_rate.is_some(), proved.is_some()),
            memory_from: from(args.memory_rate.is_some(), memory.is_some()),
            fill_cost: fill_cost.unwrap_or(FILL_COST),
            rates: Rates {
                device_bytes_per_s: args.device_rate.or(proved),
                memory_bytes_per_s: args.memory_rate.or(memory),
                hbm_bytes_per_s: args.hbm_rate,
            },
            measured,
        })
    }
}

/// The rates of promotion, those of a GH200 where none are given.
pub(super) fn promotion(args: &RateArgs, notices: &mut Vec<String>) -> Result<PromotionRates> {
    let paper = PromotionRates::GH200;
    let given = [args.hbm_rate, args.host_rate, args.stream_rate];
    if given.iter().any(Option::is_none) {
        notices.push(
            "rates of promotion that are not given (--hbm-rate, --host-rate, --stream-rate) are \
             those of a GH200"
                .to_owned(),
        );
    }
    let rates = PromotionRates {
        hbm_bytes_per_s: args.hbm_rate.unwrap_or(paper.hbm_bytes_per_s),
        host_bytes_per_s: args.host_rate.unwrap_or(paper.host_bytes_per_s),
        stream_bytes_per_s: args.stream_rate.unwrap_or(paper.stream_bytes_per_s),
    };
    rates.check()?;
    Ok(rates)
}

/// Misses by cache size, from the best that was given.
pub(super) fn curve(
    args: &DemandArgs,
    model: &Model,
    notices: &mut Vec<String>,
) -> Result<MissCurve> {
    let sizes = &model.sizes;
    if let Some(points) = &args.misses {
        return Ok(MissCurve::of_points(points, sizes.pool_bytes, sizes.token_bytes)?);
    }
    if let Some(slope) = args.zipf {
        notices.push(format!(
            "misses by a Zipf law of slope {slope} over {} experts a layer: draws are independent, \
             so reuse from token to token beyond popularity is not in it",
            sizes.shape.n_experts
        ));
        return Ok(MissCurve::of_zipf(slope, sizes.shape.n_experts)?);
    }
    let Some(path) = &args.trace else {
        notices.push(
            "no --trace, --misses or --zipf: every expert is taken to be equally likely, whatever \
             came before; real routers reuse more, so misses and times are upper bounds"
                .to_owned(),
        );
        return Ok(MissCurve::uniform());
    };
    let mut reader = trace::open(path, &args.input)?;
    let header = reader.header().clone();
    let decode = |pass: &Result<LayerPass, TraceError>| match pass {
        Ok(pass) => pass.info.phase == Phase::Decode,
        Err(_) => true,
    };
    let accesses = Accesses::from_passes(&header, (&mut reader).filter(decode), Demand::EachToken)?;
    notices.extend(reader.notices().iter().map(ToString::to_string));
    if header.shape != sizes.shape {
        let shape = &header.shape;
        notices.push(format!(
            "the trace is of another model ({} layers of {} experts, top {}; planned: {} of {}, \
             top {}): its misses are taken at the same share of the pool",
            shape.moe_layers.len(),
            shape.n_experts,
            shape.top_k,
            sizes.shape.moe_layers.len(),
            sizes.shape.n_experts,
            sizes.shape.top_k
        ));
    }
    let curve = HitCurve::of_lru(&Replay::of(&accesses, args.window)?);
    Ok(MissCurve::of_trace(&trace::name(path), curve, header.shape.total_experts())?)
}

/// Memory sizes to look at where none are given: this machine's, and parts of the model.
pub(super) fn dram(model: &Model, fixed_bytes: u64) -> Vec<u64> {
    let limits = expert_tier::observe::MemoryLimits::read(&SystemRoot::default());
    let parts = [8, 4, 2, 1].map(|part| fixed_bytes.saturating_add(model.sizes.pool_bytes / part));
    let mut sizes: Vec<u64> = limits.effective_limit_bytes().into_iter().chain(parts).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// A key-value cache of unknown size is no reason to plan nothing.
pub(super) fn kv_bytes(
    model: &Model,
    context: u64,
    element_bytes: u64,
    notices: &mut Vec<String>,
) -> Result<u64, TierError> {
    match model.sizes.kv {
        Some(kv) => Ok(kv.bytes(context, element_bytes)),
        None => {
            let kind = &model.sizes.model_type;
            notices.push(format!("the key-value cache of model_type {kind:?} is not known: 0"));
            Ok(0)
        }
    }
}
