//! `tier compare`: one prompt under admission and under each unbuffered arm.
//!
//! Arms run interleaved in balanced order, each from a state that a probe found cold; ratios are
//! taken inside a round, so that drift of the machine hits both sides. A comparison whose arms
//! produced different tokens is discarded and says so.

use super::args::CompareArgs;
use super::output::{self, bytes};
use super::progress;
use super::session::{Session, Settings};
use anyhow::{Result, bail};
use engine_example::pairs::{Spread, balanced_order};
use engine_example::{GenerateOptions, Usage};
use expert_tier::{Admission, AutoChoice, TierConfig};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::io::{self, Write};
use std::process::ExitCode;

/// One run of one arm.
#[derive(Clone, Debug, Serialize)]
struct Run {
    arm: Admission,
    round: usize,
    /// Place in the round's order.
    place: usize,
    ms: f64,
    /// Bytes of the experts that the probe found in the page cache before the run.
    resident_before_bytes: u64,
    sha256: String,
    /// How this run's bytes were read, as proved when its tier was opened.
    read_channel: String,
    /// What the arm that chooses has chosen, and why.
    admission: Option<AutoChoice>,
    counters: Usage,
}

/// An arm against admission, inside one round.
#[derive(Clone, Debug, Serialize)]
struct Pair {
    round: usize,
    arm: Admission,
    admit_ms: f64,
    arm_ms: f64,
    /// Time of the arm divided by the time of admission: above 1 admission is faster.
    ratio: f64,
}

#[derive(Debug, Serialize)]
struct Arm {
    name: &'static str,
    runs: usize,
    median_ms: f64,
    min_ms: f64,
    max_ms: f64,
    /// Median of the per-round ratios to admission, and their range; `null` for admission.
    ratio: Option<Spread>,
    median_device_bytes: Option<f64>,
    warm_ratio: Option<f64>,
}

/// An arm that this machine cannot run, and why.
#[derive(Debug, Serialize)]
struct Skipped {
    name: &'static str,
    reason: String,
}

#[derive(Debug, Serialize)]
struct Report {
    identical_outputs: bool,
    sha256: Option<String>,
    cold_proved: bool,
    arms: Vec<Arm>,
    pairs: Vec<Pair>,
    runs: Vec<Run>,
    skipped: Vec<Skipped>,
    rounds: usize,
    tokens_per_run: usize,
    settings: Settings,
}

pub(crate) fn run(args: &CompareArgs) -> Result<ExitCode> {
    if args.rounds == 0 {
        bail!("--rounds is 0: at least one is needed");
    }
    let mut session = Session::open(&args.model, Admission::Admit)?;
    let (arms, skipped) = usable_arms(&mut session, &args.arms);
    let orders = balanced_order(arms.len(), args.rounds);
    let bar = progress::count_bar((arms.len() * args.rounds) as u64, "comparing");
    let (mut runs, mut tokens_per_run) = (Vec::new(), 0);
    for (round, order) in orders.into_iter().enumerate() {
        for (place, arm) in order.into_iter().enumerate() {
            let (run, tokens) = run_arm(&mut session, args, arms[arm], round, place)?;
            tokens_per_run = tokens;
            runs.push(run);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    session.engine.reopen_tier(config_of(&session, Admission::Admit))?;
    let report = report(&session, &arms, runs, skipped, args.rounds, tokens_per_run);
    output::report(args.json, &report, |out| print(&report, out))?;
    Ok(if report.identical_outputs { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn config_of(session: &Session, admission: Admission) -> TierConfig {
    TierConfig { admission, ..session.options.tier }
}

/// Admission first, then each arm asked for that opens on this file system.
fn usable_arms(session: &mut Session, asked: &[Admission]) -> (Vec<Admission>, Vec<Skipped>) {
    let (mut arms, mut skipped) = (vec![Admission::Admit], Vec::new());
    for &arm in asked {
        if arms.contains(&arm) {
            continue;
        }
        let reopened = match session.engine.tier().evict(None) {
            Ok(_) => session.engine.reopen_tier(config_of(session, arm)),
            Err(error) => Err(error.into()),
        };
        match reopened {
            Ok(()) => arms.push(arm),
            Err(error) => skipped.push(Skipped { name: arm.name(), reason: error.to_string() }),
        }
    }
    (arms, skipped)
}

fn run_arm(
    session: &mut Session,
    args: &CompareArgs,
    arm: Admission,
    round: usize,
    place: usize,
) -> Result<(Run, usize)> {
    // A fresh tier each time, and evicted through the old one first: pages that a mapping holds
    // cannot be evicted, and an unbuffered arm proves itself on pages that are not there.
    session.engine.tier().evict(None)?;
    session.engine.reopen_tier(config_of(session, arm))?;
    let before = session.engine.tier().evict(None)?;
    let (prompt, _) = session.prompt(&args.prompt)?;
    let stop_ids = session.stop_ids(&args.prompt);
    let options = GenerateOptions {
        max_tokens: args.prompt.max_tokens,
        sampling: session.sampling(&args.prompt)?,
        stop_ids: &stop_ids,
    };
    let done = session.engine.generate(&prompt, options, &mut |_| Ok(()))?;
    let counters = done.prefill.plus(&done.decode);
    let run = Run {
        arm,
        round,
        place,
        ms: counters.wall_ns as f64 / 1e6,
        resident_before_bytes: before.resident_bytes,
        sha256: sha256_of(&done.token_ids),
        read_channel: session.engine.tier().read_channel(),
        admission: session.engine.tier().admission_choice(),
        counters,
    };
    Ok((run, done.token_ids.len()))
}

fn sha256_of(token_ids: &[u32]) -> String {
    let mut hash = Sha256::new();
    for id in token_ids {
        hash.update(id.to_le_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn report(
    session: &Session,
    arms: &[Admission],
    runs: Vec<Run>,
    skipped: Vec<Skipped>,
    rounds: usize,
    tokens_per_run: usize,
) -> Report {
    let identical = runs.windows(2).all(|pair| pair[0].sha256 == pair[1].sha256);
    let pairs = if identical { pairs_of(&runs) } else { Vec::new() };
    let summaries = if identical {
        arms.iter().filter_map(|&arm| summary_of(arm, &runs, &pairs)).collect()
    } else {
        Vec::new()
    };
    Report {
        identical_outputs: identical,
        sha256: runs.first().filter(|_| identical).map(|run| run.sha256.clone()),
        cold_proved: runs.iter().all(|run| run.resident_before_bytes == 0),
        arms: summaries,
        pairs,
        runs,
        skipped,
        rounds,
        tokens_per_run,
        settings: session.settings(),
    }
}

fn pairs_of(runs: &[Run]) -> Vec<Pair> {
    let admitted =
        |round| runs.iter().find(move |run| run.round == round && run.arm == Admission::Admit);
    runs.iter()
        .filter(|run| run.arm != Admission::Admit)
        .filter_map(|run| {
            let admit_ms = admitted(run.round)?.ms;
            let ratio = run.ms / admit_ms;
            Some(Pair { round: run.round, arm: run.arm, admit_ms, arm_ms: run.ms, ratio })
        })
        .collect()
}

fn summary_of(arm: Admission, runs: &[Run], pairs: &[Pair]) -> Option<Arm> {
    let mine: Vec<&Run> = runs.iter().filter(|run| run.arm == arm).collect();
    let ms = Spread::of(&mine.iter().map(|run| run.ms).collect::<Vec<_>>())?;
    let ratios: Vec<f64> =
        pairs.iter().filter(|pair| pair.arm == arm).map(|pair| pair.ratio).collect();
    let device: Option<Vec<f64>> =
        mine.iter().map(|run| run.counters.device_bytes.map(|bytes| bytes as f64)).collect();
    let warm: u64 = mine.iter().map(|run| run.counters.tier.warm_experts).sum();
    let adopted: u64 = mine.iter().map(|run| run.counters.tier.adopted_experts).sum();
    Some(Arm {
        name: arm.name(),
        runs: mine.len(),
        median_ms: ms.median,
        min_ms: ms.min,
        max_ms: ms.max,
        ratio: Spread::of(&ratios),
        median_device_bytes: device.and_then(|bytes| Some(Spread::of(&bytes)?.median)),
        warm_ratio: (adopted > 0).then(|| warm as f64 / adopted as f64),
    })
}

fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    if !report.identical_outputs {
        writeln!(out, "DISCARDED: the arms produced different tokens; no times are reported")?;
        for run in &report.runs {
            writeln!(out, "  round {} {:<12} sha256 {}", run.round, run.arm.name(), run.sha256)?;
        }
        return Ok(());
    }
    let cold = if report.cold_proved { "cold proved by probe" } else { "NOT all cold" };
    writeln!(
        out,
        "{} rounds of {} tokens, {cold}, sha256 {}",
        report.rounds,
        report.tokens_per_run,
        &report.sha256.as_deref().unwrap_or("")[..16],
    )?;
    let header = ["arm", "median ms", "range", "x admit", "range", "device", "warm"];
    let [arm, median, range, ratio, ratio_range, device, warm] = header;
    writeln!(
        out,
        "{arm:<12} {median:>10} {range:>19} {ratio:>8} {ratio_range:>15} {device:>10} {warm:>8}"
    )?;
    for arm in &report.arms {
        let ratio = arm.ratio.map_or_else(|| "1".to_owned(), |r| format!("{:.2}", r.median));
        let spread =
            arm.ratio.map_or_else(String::new, |r| format!("{:.2} to {:.2}", r.min, r.max));
        let device = arm.median_device_bytes.map_or_else(|| "-".to_owned(), |b| bytes(b as u64));
        let warm = arm.warm_ratio.map_or_else(|| "-".to_owned(), |w| format!("{:.1} %", 100.0 * w));
        writeln!(
            out,
            "{:<12} {:>10.1} {:>19} {ratio:>8} {spread:>15} {device:>10} {warm:>8}",
            arm.name,
            arm.median_ms,
            format!("{:.1} to {:.1}", arm.min_ms, arm.max_ms),
        )?;
    }
    for skipped in &report.skipped {
        writeln!(out, "{:<12} not run: {}", skipped.name, skipped.reason)?;
    }
    Ok(())
}
