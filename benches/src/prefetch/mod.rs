//! What hints win or lose: an oracle's, a predictor's and a liar's, by every way of giving them,
//! under a memory limit.

pub(crate) mod child;
mod decode;
mod large;
mod plans;

use crate::Settings;
use crate::measure::{Arm, Sample, Turns};
use crate::pressure::{EXTRA_BYTES, POOL, SLOTS, scope, trace};
use crate::report::{Bar, Better, Row};
use crate::stats::Spread;
use anyhow::{Context, Result, bail, ensure};
use child::{COMPUTE, NONE, ORACLE, Outcome, PILOT, WAYS, WRONG, WRONG_UNGATED};
use engine_example::replay::run_cell;
use expert_tier::{Pool, Tier, TierConfig};
use plans::Files;
use router_trace::{LayerPass, TraceHeader};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tokens in which the cache fills and the gate counts, and all of them.
const TOKENS: (usize, usize) = (12, 26);
/// Rounds in which an arm takes part that no bar is about.
const SHOWN_ROUNDS: usize = 2;
/// The same of the bundled model, whose 6 layers of 64 experts need a quarter of 384 places.
const BUNDLED_TOKENS: (usize, usize) = (24, 64);
const BUNDLED_SLOTS: usize = 96;
const QUICK_TOKENS: (usize, usize) = (10, 14);
/// How many times the rounds of the others the worst case has: it is told from nothing, and the
/// machine's own spread in a round is larger than what is looked for.
const WORST_ROUNDS: usize = 3;
/// The same of the bundled model, whose gains are a tenth of its time.
const BUNDLED_ROUNDS: usize = 2;

/// A trace with its plans, behind a limit.
struct Workload<'a> {
    /// `None`: OLMoE.
    trace: Option<&'a Path>,
    files: Files,
    limit: u64,
    tokens: (usize, usize),
    /// Arms of [`WAYS`] that take part.
    ways: Vec<usize>,
    rounds: usize,
    about: String,
}

impl<'a> Workload<'a> {
    /// What predictors can win: all arms but the worst case, which has rounds of its own.
    fn olmoe(settings: &Settings) -> Result<Self> {
        let tokens = settings.pick(TOKENS, QUICK_TOKENS);
        let files = Files::write(&settings.dir, "olmoe", tokens.1, settings.plan.as_deref(), None)?;
        let ways = (0..WAYS.len()).filter(|&way| WAYS[way].name != WRONG).collect();
        Ok(Self::new("OLMoE", None, files, SLOTS, tokens, ways, settings.rounds))
    }

    /// What the gate costs where it lets nothing through.
    fn worst(settings: &Settings) -> Result<Self> {
        let tokens = settings.pick(TOKENS, QUICK_TOKENS);
        let files = Files::write(&settings.dir, "worst", tokens.1, None, None)?;
        let ways = ways(&[NONE, WRONG]);
        let rounds = settings.rounds * settings.pick(WORST_ROUNDS, 1);
        Ok(Self::new("worst case, OLMoE", None, files, SLOTS, tokens, ways, rounds))
    }

    /// The bundled model's own routes, with the plans that its predictor made of them.
    fn bundled(settings: &Settings, data: &'a [PathBuf; 2]) -> Result<Self> {
        let [trace, plans] = data;
        let tokens = settings.pick(BUNDLED_TOKENS, QUICK_TOKENS);
        let files = Files::write(&settings.dir, "bundled", tokens.1, Some(plans), Some(trace))?;
        let ways = ways(&[NONE, ORACLE, PILOT]);
        let (name, slots) = ("bundled model", BUNDLED_SLOTS);
        let rounds = settings.rounds * settings.pick(BUNDLED_ROUNDS, 1);
        Ok(Self::new(name, Some(trace), files, slots, tokens, ways, rounds))
    }

    fn new(
        name: &str,
        trace: Option<&'a Path>,
        files: Files,
        slots: usize,
        tokens: (usize, usize),
        ways: Vec<usize>,
        rounds: usize,
    ) -> Self {
        let limit = (slots * POOL.expert_bytes) as u64 + EXTRA_BYTES;
        let about = format!(
            "{name}, tokens {} to {}, experts of 2 MiB, limit {} MiB, {} ms a layer for the \
             arithmetic, wall time a token; PILOT: {}, recall {:.3}",
            tokens.0,
            tokens.1,
            limit >> 20,
            COMPUTE.as_millis(),
            files.predictor,
            files.recall
        );
        Self { trace, files, limit, tokens, ways, rounds, about }
    }
}

/// Numbers of the arms of these names.
fn ways(names: &[&str]) -> Vec<usize> {
    (0..WAYS.len()).filter(|&way| names.contains(&WAYS[way].name)).collect()
}

/// The passes of a trace file, or of OLMoE.
fn passes(trace: Option<&Path>, tokens: usize) -> Result<(TraceHeader, Vec<LayerPass>)> {
    match trace {
        Some(path) => trace::passes_of(path, tokens),
        None => trace::passes(tokens),
    }
}

pub(crate) fn run(settings: &Settings) -> Result<(Vec<Row>, Vec<Bar>)> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let bundled = ["tiny-moe-pilot.rtc", "tiny-moe-pilot.plans.jsonl.gz"].map(|f| data.join(f));
    let workloads = [
        Workload::olmoe(settings)?,
        Workload::bundled(settings, &bundled)?,
        Workload::worst(settings)?,
    ];
    let large = large::turns(settings)?;
    let mut rows = large.rows(large::NONE);
    // Whether a group can be had at all, before any arm depends on it.
    let refused = scope(workloads[0].limit).err();
    let mut paired = [None, None, None];
    for (workload, paired) in workloads.iter().zip(&mut paired) {
        match &refused {
            None => *paired = Some(walled(settings, workload, &mut rows)?),
            Some(error) => {
                let why = error.to_string();
                let skipped = |&way: &usize| Row::skipped(&workload.about, WAYS[way].name, &why);
                rows.extend(workload.ways.iter().map(skipped));
            }
        }
    }
    Ok((rows, bars(&paired, &large)))
}

fn walled(settings: &Settings, workload: &Workload<'_>, rows: &mut Vec<Row>) -> Result<Paired> {
    let pool = POOL.open(&settings.dir)?;
    let outcomes = RefCell::new(vec![Vec::new(); WAYS.len()]);
    let turn = |arm: usize| {
        let outcome = turn(&pool, arm, workload)?;
        let sample = Sample {
            value: outcome.mean_ms(),
            asked_bytes: outcome.asked_bytes,
            device_bytes: outcome.device_bytes,
            process_bytes: outcome.process_bytes,
            checksum: outcome.checksum,
            flag: (!outcome.cold).then(|| "began with pages in the cache".to_owned()),
        };
        outcomes.borrow_mut()[arm].push(outcome);
        Ok(sample)
    };
    let turn = &turn;
    let arms = workload.ways.iter().map(|&number| {
        let way = WAYS[number];
        let mut arm = Arm::new(way.name, way.channel, move || turn(number));
        if !way.judged() && !settings.every_arm {
            arm.most = SHOWN_ROUNDS;
        }
        arm
    });
    let turns = Turns::take_cold(&workload.about, "ms", arms.collect(), workload.rounds)?;
    let mut found = turns.rows(NONE);
    let outcomes = outcomes.into_inner();
    for (row, &way) in found.iter_mut().zip(&workload.ways) {
        row.notes.extend(outcomes[way].last().map(describe));
        let notices = outcomes[way].iter().flat_map(|outcome| &outcome.notices);
        row.notes.extend(notices.last().cloned());
    }
    rows.extend(found);
    Ok(Paired(outcomes))
}

/// What the last turn of an arm counted.
fn describe(outcome: &Outcome) -> String {
    let Outcome { warm, waited_ms, .. } = outcome;
    let mut text = format!("{:.1} % found warm, {waited_ms:.1} ms a token waited", warm * 100.0);
    if let Some(told) = &outcome.delivery {
        let (plans, hints) = (told.worker.plans, told.worker.hints);
        let settled = told.worker.settled;
        text += &format!(
            "; plans: {} submitted, {} overwritten, {} completed, {} stale, {} withheld; hints: \
             {} ({} warm, {} overtaken, {} stale, {} beyond the budget), {} MiB brought, {} MiB used \
             ({} experts late), {} MiB wasted, {} MiB evicted unread",
            plans.submitted,
            plans.overwritten,
            plans.completed,
            plans.stale,
            told.withheld_plans,
            hints.hints,
            hints.warm_hints,
            hints.late_hints,
            hints.stale_hints,
            hints.unaffordable_hints,
            hints.brought_bytes >> 20,
            settled.used_bytes >> 20,
            settled.late_experts,
            settled.wasted_bytes >> 20,
            settled.evicted_bytes >> 20
        );
    }
    text
}

/// Outcomes by arm and round.
struct Paired(Vec<Vec<Outcome>>);

impl Paired {
    /// An arm's time for the scored tokens over that without hints. Of each token the median over
    /// the rounds counts: a pause of the machine hits a token of one round, and a token that finds
    /// everything weighs no more than the time it takes.
    fn ratio(&self, arm: &str) -> Option<f64> {
        let time = |name: &str| {
            let turns = &self.0[WAYS.iter().position(|way| way.name == name)?];
            let tokens = turns.iter().map(|turn| turn.seconds.len()).min()?;
            let token = |token| Spread::of(turns.iter().map(|turn| turn.seconds[token]));
            (0..tokens).map(|number| token(number).map(|spread| spread.median)).sum::<Option<f64>>()
        };
        Some(time(arm)? / time(NONE)?)
    }
}

fn bars([made_up, bundled, worst]: &[Option<Paired>; 3], large: &Turns) -> Vec<Bar> {
    let ratio = |arm: &str| made_up.as_ref().and_then(|turns| turns.ratio(arm));
    let share = |turns: &Option<Paired>| {
        let gain = |arm: &str| Some(1.0 - turns.as_ref()?.ratio(arm)?);
        // Where an oracle wins nothing there is nothing to have a share of.
        Some(gain(PILOT)? / gain(ORACLE).filter(|gain| *gain > 0.0)?)
    };
    let clipped = large.ratio(large::SINGLE, large::PIECES);
    let wrong = worst.as_ref().and_then(|turns| turns.ratio(WRONG));
    let wrong = Bar::new("prefetch: all wrong, gate / none", wrong, 1.01, Better::Lower);
    let open = Bar::new(
        "prefetch: all wrong, no gate / none (shown: what the gate is for)",
        ratio(WRONG_UNGATED),
        1.0,
        Better::Higher,
    );
    let real = "prefetch: PILOT's gain / oracle's gain, bundled model's blend";
    vec![
        Bar::new(
            "prefetch: made-up predictor of recall 0.65: gain / oracle's gain",
            share(made_up),
            0.60,
            Better::Higher,
        ),
        Bar::new(real, share(bundled), 0.60, Better::Higher),
        Bar::new("prefetch: oracle / none", ratio(ORACLE), 1.0, Better::Lower),
        Bar::new("prefetch, 17.5 MiB: one call / pieces", clipped, 1.0, Better::Higher),
        wrong,
        open,
    ]
}

/// One arm over the trace, in a child that a new group limits.
fn turn(pool: &Pool, arm: usize, workload: &Workload<'_>) -> Result<Outcome> {
    let &Workload { trace, ref files, limit, tokens: (warm, tokens), .. } = workload;
    // Pages that this process left would be charged to it, not to the child.
    Tier::open(pool.clone(), TierConfig::default())?.evict(None)?;
    let scope = scope(limit)?;
    let way = WAYS[arm];
    let plans = files.of(way.told.map_or(plans::Told::Oracle, |(told, _)| told));
    let mut child = Command::new(std::env::current_exe()?);
    child.arg("prefetch-child").arg(pool.root()).arg(arm.to_string()).arg(plans);
    child.args([warm, tokens].map(|number| number.to_string())).args(trace);
    let ran = run_cell(&mut child, Some(&scope), b"go\n").context("the child")?;
    let name = way.name;
    if let Some(fault) = ran.fault() {
        bail!("{name}, in {}: {fault}", scope.dir().display());
    }
    let outcome: Outcome = serde_json::from_slice(&ran.output)
        .with_context(|| format!("{name}: {}", String::from_utf8_lossy(&ran.output)))?;
    ensure!(outcome.limit_bytes == Some(limit), "{name}: limited to {:?}", outcome.limit_bytes);
    eprintln!("{name}: {:.1} ms a token", outcome.mean_ms());
    Ok(outcome)
}
