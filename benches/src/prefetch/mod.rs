//! What hints win or lose: an oracle's, a predictor's and a liar's, by every way of giving them,
//! under a memory limit.

pub(crate) mod child;
mod decode;
mod large;
mod plans;

use crate::Settings;
use crate::measure::{Arm, Sample, Turns};
use crate::pressure::{EXTRA_BYTES, POOL, SLOTS, scope};
use crate::report::{Bar, Better, Row};
use crate::stats::Spread;
use anyhow::{Context, Result, bail, ensure};
use child::{COMPUTE, NONE, ORACLE, Outcome, PILOT, WAYS, WRONG, WRONG_UNGATED};
use engine_example::replay::run_cell;
use expert_tier::{Pool, Tier, TierConfig};
use plans::Files;
use std::cell::RefCell;
use std::process::Command;

/// Tokens in which the cache fills and the gate counts, and all of them.
const TOKENS: (usize, usize) = (12, 26);
/// Rounds in which an arm takes part that no bar is about.
const SHOWN_ROUNDS: usize = 2;
const QUICK_TOKENS: (usize, usize) = (10, 14);

pub(crate) fn run(settings: &Settings) -> Result<(Vec<Row>, Vec<Bar>)> {
    let tokens = settings.pick(TOKENS, QUICK_TOKENS);
    let files = Files::write(&settings.dir, tokens.1, settings.plan.as_deref())?;
    let limit = (SLOTS * POOL.expert_bytes) as u64 + EXTRA_BYTES;
    let workload = format!(
        "OLMoE, tokens {} to {}, 1,024 experts of 2 MiB, limit {} MiB, {} ms a layer for the \
         arithmetic, wall time a token; PILOT: {}, recall {:.3}",
        tokens.0,
        tokens.1,
        limit >> 20,
        COMPUTE.as_millis(),
        files.predictor,
        files.recall
    );
    let large = large::turns(settings)?;
    let mut rows = large.rows(large::NONE);
    // Whether a group can be had at all, before any arm depends on it.
    let refused = scope(limit).err();
    let turns = match refused {
        None => Some(walled(settings, &files, limit, tokens, &workload, &mut rows)?),
        Some(error) => {
            let why = error.to_string();
            rows.extend(WAYS.iter().map(|way| Row::skipped(&workload, way.name, &why)));
            None
        }
    };
    Ok((rows, bars(turns.as_ref(), &large)))
}

fn walled(
    settings: &Settings,
    files: &Files,
    limit: u64,
    tokens: (usize, usize),
    workload: &str,
    rows: &mut Vec<Row>,
) -> Result<Paired> {
    let pool = POOL.open(&settings.dir)?;
    let outcomes = RefCell::new(vec![Vec::new(); WAYS.len()]);
    let turn = |arm: usize| {
        let outcome = turn(&pool, arm, files, limit, tokens)?;
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
    let arms = WAYS.iter().enumerate().map(|(number, way)| {
        let mut arm = Arm::new(way.name, way.channel, move || turn(number));
        if !way.judged() && !settings.every_arm {
            arm.most = SHOWN_ROUNDS;
        }
        arm
    });
    let turns = Turns::take_cold(workload, "ms", arms.collect(), settings.rounds)?;
    let mut found = turns.rows(NONE);
    for (row, outcomes) in found.iter_mut().zip(outcomes.borrow().iter()) {
        row.notes.extend(outcomes.last().map(describe));
        let notices = outcomes.iter().flat_map(|outcome| &outcome.notices);
        row.notes.extend(notices.last().cloned());
    }
    rows.extend(found);
    Ok(Paired(outcomes.into_inner()))
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
             ({} experts late), {} MiB wasted",
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
            settled.wasted_bytes >> 20
        );
    }
    text
}

/// Outcomes by arm and round.
struct Paired(Vec<Vec<Outcome>>);

impl Paired {
    /// Median over all rounds and tokens of an arm's time for a token divided by that without
    /// hints for the same token in the same round: a pause of the machine hits few of them.
    fn ratio(&self, arm: &str) -> Option<f64> {
        let of = |name: &str| WAYS.iter().position(|way| way.name == name).map(|i| &self.0[i]);
        let pairs = of(arm)?.iter().zip(of(NONE)?);
        let tokens = pairs.flat_map(|(arm, none)| arm.seconds.iter().zip(&none.seconds));
        Spread::of(tokens.map(|(arm, none)| arm / none)).map(|spread| spread.median)
    }
}

fn bars(turns: Option<&Paired>, large: &Turns) -> Vec<Bar> {
    let ratio = |arm: &str| turns.and_then(|turns| turns.ratio(arm));
    let gain = |arm: &str| ratio(arm).map(|ratio| 1.0 - ratio);
    // Where an oracle wins nothing there is nothing to have a share of.
    let share = gain(PILOT).zip(gain(ORACLE).filter(|gain| *gain > 0.0));
    let share = share.map(|(pilot, oracle)| pilot / oracle);
    let clipped = large.ratio(large::SINGLE, large::PIECES);
    let wrong = Bar::new("prefetch: all wrong, gate / none", ratio(WRONG), 1.01, Better::Lower);
    let open = Bar::new(
        "prefetch: all wrong, no gate / none (shown: what the gate is for)",
        ratio(WRONG_UNGATED),
        1.0,
        Better::Higher,
    );
    vec![
        Bar::new("prefetch: PILOT's gain / oracle's gain", share, 0.60, Better::Higher),
        Bar::new("prefetch: oracle / none", ratio(ORACLE), 1.0, Better::Lower),
        Bar::new("prefetch, 17.5 MiB: one call / pieces", clipped, 1.0, Better::Higher),
        wrong,
        open,
    ]
}

/// One arm over the trace, in a child that a new group limits.
fn turn(
    pool: &Pool,
    arm: usize,
    files: &Files,
    limit: u64,
    (warm, tokens): (usize, usize),
) -> Result<Outcome> {
    // Pages that this process left would be charged to it, not to the child.
    Tier::open(pool.clone(), TierConfig::default())?.evict(None)?;
    let scope = scope(limit)?;
    let way = WAYS[arm];
    let plans = files.of(way.told.map_or(plans::Told::Oracle, |(told, _)| told));
    let mut child = Command::new(std::env::current_exe()?);
    child.arg("prefetch-child").arg(pool.root()).arg(arm.to_string()).arg(plans);
    child.args([warm, tokens].map(|number| number.to_string()));
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
