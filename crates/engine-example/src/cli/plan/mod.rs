//! `tier plan`: will it run, how fast, with how much memory.

mod inputs;
mod model;
mod part;
mod text;
mod verify;

use super::args_plan::PlanArgs;
use super::inspect::warn;
use super::output;
use super::promised::Model;
use anyhow::{Result, bail};
use expert_tier::plan::{
    AdmissionAdvice, CurveBasis, Forecast, ForecastRow, MissCurve, PromotionAdvice,
};
use expert_tier::pool::ModelSizes;
use inputs::RateFacts;
use model::Known;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Everything `--json` says.
#[derive(Debug, Serialize)]
struct Report {
    model: PathBuf,
    sizes: ModelSizes,
    checkpoint_bytes: u64,
    index_total_bytes: Option<u64>,
    context_tokens: u64,
    kv_bytes: u64,
    /// What must be in memory whatever experts need: spine, key-value cache, reserve.
    fixed_bytes: u64,
    spine_in_hbm: bool,
    rates: RateFacts,
    /// What the misses rest on.
    basis: CurveBasis,
    rows: Vec<Row>,
    target: Option<Target>,
    hbm: Option<PromotionAdvice>,
    notices: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    forecast: ForecastRow,
    admission: AdmissionAdvice,
}

#[derive(Debug, Serialize)]
struct Target {
    target_ms: f64,
    /// The least memory; `null` where no memory is enough, or a rate is unknown.
    least: Option<ForecastRow>,
}

pub(crate) fn run(args: &PlanArgs) -> Result<ExitCode> {
    let mut notices = Vec::new();
    let model = match model::open(args)? {
        Known::All(model) => model,
        Known::Part { path, sizes, notices } => {
            if args.verify.is_some() {
                bail!("{}: a run cannot be predicted: {}", path.display(), notices.join("; "));
            }
            return part::report(path, sizes, [args.context, args.kv_type], args.json, notices);
        }
    };
    notices.extend(model.notices.iter().cloned());
    let rates = RateFacts::gather(&args.rates, &mut notices)?;
    if let Some(run) = &args.verify {
        let verified = verify::run(run, args, &model, &rates)?;
        notices.iter().for_each(|notice| warn(notice));
        output::report(args.json, &verified, |out| verify::print(&verified, out))?;
        return Ok(ExitCode::SUCCESS);
    }
    let curve = inputs::curve(&args.demand, &model, &mut notices)?;
    let kv_bytes = inputs::kv_bytes(&model, args.context, args.kv_type, &mut notices)?;
    let report = plan(args, model, rates, &curve, kv_bytes, notices)?;
    if !args.json {
        report.notices.iter().for_each(|notice| warn(notice));
    }
    output::report(args.json, &report, |out| text::print(&report, out))?;
    Ok(ExitCode::SUCCESS)
}

fn plan(
    args: &PlanArgs,
    model: Model,
    rates: RateFacts,
    curve: &MissCurve,
    kv_bytes: u64,
    mut notices: Vec<String>,
) -> Result<Report> {
    let forecast = Forecast {
        sizes: &model.sizes,
        curve,
        rates: rates.rates,
        kv_bytes,
        spine_in_hbm: args.spine_in_hbm,
        reserve_bytes: args.reserve,
    };
    if rates.rates.device_bytes_per_s.is_none() || rates.rates.memory_bytes_per_s.is_none() {
        let text = "times need --device-rate and --memory-rate, or --measure POOL";
        notices.push(text.to_owned());
    }
    let fixed_bytes = forecast.fixed_bytes();
    let dram = args.dram.clone().unwrap_or_else(|| inputs::dram(&model, fixed_bytes));
    let row = |dram_bytes| {
        let row = forecast.row(dram_bytes);
        let admission = AdmissionAdvice::of(&model.sizes, &row, &rates.rates, rates.fill_cost);
        Row { forecast: row, admission }
    };
    let rows = dram.into_iter().map(row).collect();
    let target = args
        .target_ms
        .map(|target_ms| Target { target_ms, least: forecast.smallest_dram(target_ms / 1e3) });
    let hbm = match args.rates.hbm {
        None => None,
        Some(hbm_bytes) => {
            let promotion = inputs::promotion(&args.rates, &mut notices)?;
            // What the spine takes first is no room for experts.
            let taken = if args.spine_in_hbm { model.sizes.spine_bytes + kv_bytes } else { 0 };
            if taken > hbm_bytes {
                notices.push(format!(
                    "--hbm is {hbm_bytes} bytes; spine and key-value cache alone need {taken}"
                ));
            }
            let room = hbm_bytes.saturating_sub(taken);
            Some(PromotionAdvice::of(&model.sizes, curve, &promotion, room))
        }
    };
    Ok(Report {
        checkpoint_bytes: model.sizes.checkpoint_bytes(),
        index_total_bytes: model.index_total_bytes,
        context_tokens: args.context,
        kv_bytes,
        fixed_bytes,
        spine_in_hbm: args.spine_in_hbm,
        basis: curve.basis().clone(),
        model: model.path,
        sizes: model.sizes,
        rates,
        rows,
        target,
        hbm,
        notices,
    })
}
