//! `tier pilot fit`.

use super::super::args_pilot::FitArgs;
use super::super::output::{self, bytes};
use super::super::progress;
use super::super::session::Session;
use super::texts::Texts;
use anyhow::Result;
use engine_example::pilot::{Fitter, Routers};
use expert_tier::Admission;
use pilot_prefetch::fit::{Correction, Fit};
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Serialize)]
struct Report {
    out: PathBuf,
    bytes: u64,
    /// Identity of the routers that it belongs to.
    model: String,
    tokens: usize,
    domains: Vec<String>,
    pairs: Vec<Pair>,
}

#[derive(Debug, Serialize)]
struct Pair {
    source: u16,
    target: u16,
    ridge: f64,
    /// Mean over the experts of what is left of a logit's error, in logits.
    mean_sd: f32,
}

pub(super) fn run(args: &FitArgs) -> Result<ExitCode> {
    let mut session = Session::open(&args.model, Admission::Admit)?;
    let texts = Texts::read(&session, &args.texts, args.model.model.is_none())?;
    let routers = session.engine.routers(None)?;
    let mut pairs = Vec::new();
    for &depth in &args.depth {
        pairs.extend(super::pairs(&routers, depth)?);
    }
    pairs.sort_unstable();
    pairs.dedup();
    let groups = texts.domains.len();
    let at_once = pairs_at_once(&routers, groups, args.texts.memory);
    let mut corrections: Vec<Correction> = Vec::new();
    for pairs in pairs.chunks(at_once) {
        let fitter = sum_up(&mut session, &texts, &routers, pairs)?;
        corrections.extend(fitter.corrections(None)?);
    }
    let fit = Fitter::fit(&routers, corrections);
    let out = args.out.clone().unwrap_or_else(|| session.dir.join(Fit::FILE_NAME));
    let size = fit.write(&out)?;
    let report = report(&fit, &texts, out, size);
    output::report(args.json, &report, |out| print(&report, out))?;
    Ok(ExitCode::SUCCESS)
}

/// Pairs of layers whose sums fit the memory together; one at least.
pub(super) fn pairs_at_once(routers: &Routers, groups: usize, memory: u64) -> usize {
    // Twice: while a pair is solved, its sums are there a second time.
    let each = 2 * Fitter::bytes_a_pair(routers, groups).max(1) as u64;
    usize::try_from(memory / each).unwrap_or(usize::MAX).max(1)
}

/// Reads all texts once.
pub(super) fn sum_up(
    session: &mut Session,
    texts: &Texts,
    routers: &Routers,
    pairs: &[(usize, usize)],
) -> Result<Fitter> {
    let mut fitter = Fitter::new(routers.clone(), pairs, texts.domains.len());
    let bar = progress::count_bar(texts.windows.len() as u64, "fitting");
    for (domain, tokens) in &texts.windows {
        fitter.begin_text();
        session.engine.watch(tokens, &mut |call| {
            fitter.watch(*domain, call);
            Ok(())
        })?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(fitter)
}

fn report(fit: &Fit, texts: &Texts, out: PathBuf, bytes: u64) -> Report {
    let pair = |one: &Correction| Pair {
        source: one.source,
        target: one.target,
        ridge: one.ridge,
        mean_sd: one.sd.iter().sum::<f32>() / one.sd.len().max(1) as f32,
    };
    Report {
        out,
        bytes,
        model: fit.model.clone(),
        tokens: (0..texts.domains.len()).map(|domain| texts.tokens(domain)).sum(),
        domains: texts.domains.clone(),
        pairs: fit.corrections.iter().map(pair).collect(),
    }
}

fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{:>6} {:>6} {:>8} {:>8}", "layer", "to", "ridge", "mean sd")?;
    for pair in &report.pairs {
        let Pair { source, target, ridge, mean_sd } = pair;
        writeln!(out, "{source:>6} {target:>6} {ridge:>8} {mean_sd:>8.3}")?;
    }
    writeln!(
        out,
        "fit       {} in {}, from {} tokens of {}",
        bytes(report.bytes),
        report.out.display(),
        report.tokens,
        report.domains.join(", "),
    )
}
