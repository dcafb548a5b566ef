//! `tier generate`: text first, then where every expert came from.

use super::args::{GenerateArgs, PromptArgs};
use super::inspect::warn;
use super::metrics::Exporter;
use super::output::{self, bytes, duration, percent};
use super::session::{Session, Settings, print_warnings};
use anyhow::Result;
use engine_example::pilot::{Pilot, PilotScores};
use engine_example::{EngineError, GenerateOptions, Generation, Stop, Usage};
use expert_tier::observe::SystemRoot;
use expert_tier::{AutoChoice, DemandConfig, DemandReport, Residency};
use parking_lot::Mutex;
use pilot_prefetch::predict::{PilotConfig, PredictorKind};
use pilot_prefetch::{
    DeliverySnapshot, HintBytes, Plan, PlanFileError, PlanHeader, PlanWriter, Scorecard,
};
use router_trace::TraceHeader;
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Everything `--json` says.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) token_ids: Vec<u32>,
    /// `null` for a model without a tokenizer.
    pub(crate) text: Option<String>,
    pub(crate) prompt_ids: Vec<u32>,
    pub(crate) prompt: Option<String>,
    pub(crate) stop: Stop,
    /// Prompt and produced tokens together.
    pub(crate) counters: Usage,
    pub(crate) prefill: Usage,
    pub(crate) decode: Usage,
    pub(crate) prefill_tokens_per_s: f64,
    pub(crate) decode_tokens_per_s: Option<f64>,
    /// What the probe found before the first token; only where `--cold` asked for eviction.
    pub(crate) cold_start: Option<Residency>,
    pub(crate) device_bytes_unavailable: Option<String>,
    /// What exact LRU would have read, beside what was read; `null` where nobody watched.
    pub(crate) demand: Option<DemandReport>,
    /// What `--admission auto` has chosen and why; `null` for the other arms.
    pub(crate) admission: Option<AutoChoice>,
    /// What the predictor's guesses were worth; `null` where there was none.
    pub(crate) pilot: Option<PilotReport>,
    pub(crate) settings: Settings,
}

/// A predictor's part of a [`Report`].
#[derive(Debug, Serialize)]
pub(crate) struct PilotReport {
    #[serde(flatten)]
    pub(crate) scores: PilotScores,
    /// What became of the bytes that it asked for.
    pub(crate) delivery: HintBytes,
    /// Plans that were not made or not handed over, since no expert had been missing for a while.
    pub(crate) rested_plans: u64,
    /// Counters of worker and gate; `null` without them.
    pub(crate) delivered: Option<DeliverySnapshot>,
}

pub(crate) fn run(args: &GenerateArgs) -> Result<ExitCode> {
    let mut session = Session::open(&args.model, args.admission)?;
    // Lives to the end of the command.
    let _exporter = args
        .metrics
        .as_ref()
        .map(|address| Exporter::start(address, session.engine.tier().clone()))
        .transpose()?;
    let cold_start = if args.cold { Some(session.engine.tier().evict(None)?) } else { None };
    if let Some(left) = cold_start.filter(|left| left.resident_bytes > 0) {
        eprintln!(
            "warning: not cold: {} of {} bytes of the experts stay in the page cache",
            left.resident_bytes, left.total_bytes
        );
    }
    session.engine.tier().watch_demand(DemandConfig::default(), &SystemRoot::default())?;
    let plans = match args.pilot {
        Some(config) => start_pilot(&mut session, config, args.pilot_plan.as_deref())?,
        None => None,
    };
    let report = generate(&mut session, &args.prompt, cold_start, !args.json)?;
    if let Some(plans) = plans {
        plans.lock().finish()?;
    }
    if let Some(alert) = report.demand.as_ref().and_then(|demand| demand.alert.as_ref()) {
        warn(&alert.text);
    }
    if let Some(pilot) = session.engine.pilot() {
        print_warnings(&pilot.notices());
    }
    output::report(args.json, &report, |out| print_summary(&report, out))?;
    Ok(ExitCode::SUCCESS)
}

/// Plans on their way to a file; the first error ends it.
struct PlanLog(Option<Result<PlanWriter, PlanFileError>>);

impl PlanLog {
    fn write(&mut self, plan: &Plan) {
        if let Some(Ok(writer)) = &mut self.0
            && let Err(error) = writer.write(plan)
        {
            self.0 = Some(Err(error));
        }
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.0.take().map_or(Ok(()), |writer| writer?.finish())?)
    }
}

/// Lets a predictor look ahead; its plans are written to `path` too, where there is one.
fn start_pilot(
    session: &mut Session,
    config: PilotConfig,
    path: Option<&Path>,
) -> Result<Option<Arc<Mutex<PlanLog>>>> {
    let fit = super::pilot::fit_beside(&session.dir)?;
    let mut pilot = Pilot::new(session.engine.routers(fit)?, config)?;
    let plans = path.map(|path| {
        let TraceHeader { model_name, shape, .. } = session.engine.trace_header(String::new());
        let header = PlanHeader::new(&model_name, &config.to_string(), shape);
        Ok::<_, PlanFileError>(Arc::new(Mutex::new(PlanLog(Some(Ok(PlanWriter::create(
            path, &header,
        )?))))))
    });
    let plans = plans.transpose()?;
    if let Some(plans) = plans.clone() {
        pilot.on_plan(move |plan| plans.lock().write(plan));
    }
    if config.predictor != PredictorKind::None {
        pilot = pilot.advised_by(session.engine.tier())?;
    }
    session.engine.set_pilot(Some(pilot));
    Ok(plans)
}

/// Generate, streaming to standard output where `stream` asks for it.
pub(crate) fn generate(
    session: &mut Session,
    args: &PromptArgs,
    cold_start: Option<Residency>,
    stream: bool,
) -> Result<Report> {
    let (prompt_ids, prompt) = session.prompt(args)?;
    let stop_ids = session.stop_ids(args);
    let options = GenerateOptions {
        max_tokens: args.max_tokens,
        sampling: session.sampling(args)?,
        stop_ids: &stop_ids,
    };
    // A copy, since the engine is busy while the text of its tokens is shown.
    let text = session.engine.text().cloned();
    let mut pieces = text.as_ref().map(|text| text.stream());
    let mut shown = String::new();
    if stream && let Some(prompt) = &prompt {
        show(prompt)?;
    }
    let generation = session.engine.generate(&prompt_ids, options, &mut |token| {
        let piece = match &mut pieces {
            Some(pieces) => pieces.push(token)?,
            None => format!("{}{token}", if shown.is_empty() { "" } else { " " }),
        };
        if stream {
            show(&piece)?;
        }
        shown.push_str(&piece);
        Ok(())
    })?;
    if let Some(pieces) = pieces {
        let rest = pieces.finish()?;
        if stream {
            show(&rest)?;
        }
        shown.push_str(&rest);
    }
    if stream {
        show("\n")?;
    }
    let text = text.is_some().then_some(shown);
    Ok(report(session, generation, prompt_ids, prompt, text, cold_start))
}

fn report(
    session: &Session,
    generation: Generation,
    prompt_ids: Vec<u32>,
    prompt: Option<String>,
    text: Option<String>,
    cold_start: Option<Residency>,
) -> Report {
    let Generation { token_ids, stop, prefill, decode } = generation;
    let per_second = |tokens: usize, ns: u64| tokens as f64 / (ns.max(1) as f64 / 1e9);
    let counters = prefill.plus(&decode);
    let root = SystemRoot::default();
    let unavailable = session.engine.tier().device_counters(&root).err();
    Report {
        // The first token comes out of the prompt's pass.
        decode_tokens_per_s: (token_ids.len() > 1)
            .then(|| per_second(token_ids.len() - 1, decode.wall_ns)),
        prefill_tokens_per_s: per_second(prompt_ids.len(), prefill.wall_ns),
        device_bytes_unavailable: unavailable.map(|reason| reason.to_string()),
        demand: session.engine.tier().demand(),
        admission: session.engine.tier().admission_choice(),
        pilot: session.engine.pilot().map(pilot_report),
        settings: session.settings(),
        token_ids,
        text,
        prompt_ids,
        prompt,
        stop,
        counters,
        prefill,
        decode,
        cold_start,
    }
}

fn show(piece: &str) -> Result<(), EngineError> {
    let mut out = io::stdout().lock();
    let written = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
    written.map_err(|source| EngineError::Io { path: PathBuf::from("standard output"), source })
}

fn print_summary(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let used = &report.counters;
    let tier = &used.tier;
    writeln!(out)?;
    writeln!(
        out,
        "experts   {} adopted: {} warm, {} cold ({} warm), by {}",
        tier.adopted_experts,
        tier.warm_experts,
        tier.cold_experts,
        percent(tier.warm_experts, tier.adopted_experts),
        report.settings.tier.admission,
    )?;
    let device = match (used.device_bytes, &report.device_bytes_unavailable) {
        (Some(read), _) => format!("device read {}", bytes(read)),
        (None, Some(reason)) => format!("device bytes unknown ({reason})"),
        (None, None) => "device bytes unknown".to_owned(),
    };
    writeln!(
        out,
        "bytes     {} used in place, {} missing at first use, {device}",
        bytes(tier.adopted_bytes),
        bytes(tier.missing_bytes),
    )?;
    let rate =
        report.decode_tokens_per_s.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
    writeln!(
        out,
        "speed     {} prompt tokens at {:.0} tok/s, {} produced at {rate} tok/s",
        report.prompt_ids.len(),
        report.prefill_tokens_per_s,
        report.token_ids.len(),
    )?;
    writeln!(
        out,
        "waiting   {} in adopt ({} of the time), {} of it filling; {} major faults",
        duration(tier.adopt_ns),
        percent(tier.adopt_ns, used.wall_ns),
        duration(tier.fill_ns),
        used.major_faults.map_or_else(|| "unknown".to_owned(), |faults| faults.to_string()),
    )?;
    report.demand.as_ref().map_or(Ok(()), |demand| print_demand(demand, out))?;
    report.admission.as_ref().map_or(Ok(()), |choice| print_admission(choice, out))?;
    report.pilot.as_ref().map_or(Ok(()), |pilot| print_pilot(pilot, out))
}

/// What was chosen, why, and what choosing took.
fn print_admission(choice: &AutoChoice, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "admission {}; {} trials in {} of the waiting, {} changes, {} looks again",
        choice.why,
        choice.trials,
        percent(choice.trial_ns, choice.demand_ns),
        choice.switches,
        choice.rechecks,
    )
}

fn pilot_report(pilot: &Pilot) -> PilotReport {
    let delivered = pilot.delivery();
    let worker = delivered.as_ref().map(|delivered| delivered.worker);
    let delivery = worker.map_or_else(HintBytes::default, |worker| HintBytes {
        early_bytes: Some(worker.settled.used_bytes),
        late_bytes: Some(worker.hints.late_bytes),
        wasted_bytes: Some(worker.settled.wasted_bytes),
        evicted_unread_bytes: Some(worker.settled.evicted_bytes),
    });
    let rested_plans = pilot.rested_plans();
    PilotReport { scores: pilot.scores(), delivery, rested_plans, delivered }
}

fn print_pilot(pilot: &PilotReport, out: &mut dyn Write) -> io::Result<()> {
    let PilotScores { config, predictor, recurrence, control } = &pilot.scores;
    let percent = |share: Option<f64>| {
        share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
    };
    let recall = |card: &Scorecard| percent(card.ahead().recall(0));
    writeln!(
        out,
        "pilot     {config}: names {} of what is chosen, the previous token {}, the control {}; \
         probabilities off by {}",
        recall(predictor),
        recall(recurrence),
        recall(control),
        percent(predictor.calibration_error()),
    )?;
    predictor.print(out)?;
    if let Some(delivered) = &pilot.delivered {
        print_delivered(delivered, pilot.rested_plans, out)?;
    }
    pilot.delivery.print(out)
}

fn print_delivered(
    delivered: &DeliverySnapshot,
    rested_plans: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (plans, hints) = (&delivered.worker.plans, &delivered.worker.hints);
    writeln!(
        out,
        "worker    {} plans given, {} withheld by the gate, {rested_plans} spared (nothing was \
         missing); {} overwritten, {} stale",
        delivered.given_plans, delivered.withheld_plans, plans.overwritten, plans.stale,
    )?;
    writeln!(
        out,
        "hints     {}: {} warm, {} late, {} failed; {} asked for, {} brought",
        hints.hints,
        hints.warm_hints,
        hints.late_hints,
        hints.errors,
        bytes(hints.advised_bytes),
        bytes(hints.brought_bytes),
    )
}

/// One line: what an exact LRU of the same memory would have read, and what was.
fn print_demand(demand: &DemandReport, out: &mut dyn Write) -> io::Result<()> {
    let budget = match &demand.budget {
        Ok(budget) => bytes(budget.bytes),
        Err(_) => "unknown size".to_owned(),
    };
    let amplification = demand
        .amplification
        .map_or_else(|| "unknown".to_owned(), |times| format!("{times:.2} times that"));
    let reclaim = match (&demand.reclaim, demand.kswapd_scan_per_steal) {
        (Ok(_), Some(ratio)) => format!("kswapd looked at {ratio:.1} pages for each it took"),
        (Ok(_), None) => "kswapd took nothing".to_owned(),
        (Err(_), _) => "reclaim unknown".to_owned(),
    };
    writeln!(
        out,
        "demand    {} computed by exact LRU of {budget} from cold, read {amplification}; {reclaim}",
        bytes(demand.computed_miss_bytes),
    )
}
