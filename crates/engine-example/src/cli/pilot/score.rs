//! `tier pilot score`: every predictor on texts that its fit has not seen.

use super::super::args_pilot::PilotScoreArgs;
use super::super::output;
use super::super::progress;
use super::super::session::Session;
use super::fit::{pairs_at_once, sum_up};
use super::report::{Domain, Report, print};
use super::texts::Texts;
use anyhow::{Result, bail};
use engine_example::pilot::{Fitter, Lane, Routers, Tape};
use expert_tier::Admission;
use pilot_prefetch::Scorecard;
use pilot_prefetch::fit::Fit;
use pilot_prefetch::predict::{PilotConfig, PredictorKind};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

pub(super) fn run(args: &PilotScoreArgs) -> Result<ExitCode> {
    let mut session = Session::open(&args.model, Admission::Admit)?;
    let texts = Texts::read(&session, &args.texts, args.model.model.is_none())?;
    let routers = session.engine.routers(None)?;
    let pairs = super::pairs(&routers, args.depth)?;
    let fits = match &args.fit {
        Some(path) => {
            let fit = Arc::new(Fit::read(path)?);
            texts.domains.iter().map(|_| Arc::clone(&fit)).collect()
        }
        None => fits_without_each(&mut session, &texts, &routers, &pairs, args.texts.memory)?,
    };
    let mut tapes = Tapes::new(&texts, args.texts.memory);
    let mut domains = Vec::new();
    let bar = progress::count_bar(texts.domains.len() as u64, "scoring");
    for (domain, fit) in fits.into_iter().enumerate() {
        let mut routers = routers.clone().with_fit(Some(fit))?;
        let mut lanes = lanes(args.depth, &mut routers)?;
        let mut control = Scorecard::new("control", 0, routers.places());
        if args.fit.is_none() {
            for at in texts.windows_where(|other| other != domain) {
                tapes.get(&mut session, &routers, at)?.play(&mut lanes, None, &mut routers);
            }
            lanes.iter_mut().for_each(|lane| lane.clear_card(&routers));
        }
        for at in texts.windows_where(|other| other == domain) {
            let tape = tapes.get(&mut session, &routers, at)?;
            tape.play(&mut lanes, Some(&mut control), &mut routers);
        }
        domains.push(Domain {
            name: texts.domains[domain].clone(),
            tokens: texts.tokens(domain),
            control,
            predictors: lanes.iter().map(|lane| lane.card().clone()).collect(),
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    let report = Report::new(session.dir.clone(), args.depth, args.fit.clone(), domains);
    output::report(args.json, &report, |out| print(&report, out))?;
    Ok(ExitCode::SUCCESS)
}

fn lanes(depth: usize, routers: &mut Routers) -> Result<Vec<Lane>> {
    let kinds = PredictorKind::ALL.into_iter().filter(|kind| *kind != PredictorKind::None);
    let lane = |kind| {
        let config = PilotConfig { depth, ..PilotConfig::new(kind) };
        Ok(Lane::new(config, routers)?)
    };
    kinds.map(lane).collect()
}

/// For each domain a fit of all others.
fn fits_without_each(
    session: &mut Session,
    texts: &Texts,
    routers: &Routers,
    pairs: &[(usize, usize)],
    memory: u64,
) -> Result<Vec<Arc<Fit>>> {
    let domains = texts.domains.len();
    if domains < 2 {
        bail!(
            "one domain, {}: with none to fit on, nothing is held out (name files of another one, \
             or a --fit)",
            texts.domains[0]
        );
    }
    let mut corrections = vec![Vec::new(); domains];
    for pairs in pairs.chunks(pairs_at_once(routers, domains, memory)) {
        let fitter = sum_up(session, texts, routers, pairs)?;
        for (domain, corrections) in corrections.iter_mut().enumerate() {
            corrections.extend(fitter.corrections(Some(domain))?);
        }
    }
    let fit = |one| Arc::new(Fitter::fit(routers, one));
    Ok(corrections.into_iter().map(fit).collect())
}

/// Tapes of the texts, kept as far as the memory goes.
struct Tapes<'a> {
    texts: &'a Texts,
    kept: Vec<Option<Rc<Tape>>>,
    left_bytes: u64,
}

impl<'a> Tapes<'a> {
    fn new(texts: &'a Texts, memory: u64) -> Self {
        Self { texts, kept: vec![None; texts.windows.len()], left_bytes: memory }
    }

    fn get(&mut self, session: &mut Session, routers: &Routers, at: usize) -> Result<Rc<Tape>> {
        if let Some(tape) = &self.kept[at] {
            return Ok(Rc::clone(tape));
        }
        let mut tape = Tape::new(routers);
        session.engine.watch(&self.texts.windows[at].1, &mut |call| {
            tape.record(call, routers);
            Ok(())
        })?;
        let tape = Rc::new(tape);
        if let Some(left) = self.left_bytes.checked_sub(tape.bytes()) {
            self.left_bytes = left;
            self.kept[at] = Some(Rc::clone(&tape));
        }
        Ok(tape)
    }
}
