//! What `tier pilot score` says.

use pilot_prefetch::{Scorecard, WIDTHS};
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;

/// Everything `--json` says.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    model: PathBuf,
    depth: usize,
    /// The fit that was scored; `null` where each domain's was made of the others.
    fit: Option<PathBuf>,
    /// Each layer's router on its own input: 100 %, or all else is wrong.
    control_recall: Option<f64>,
    /// All domains together.
    predictors: Vec<Scorecard>,
    domains: Vec<Domain>,
    /// Where the fitted lookahead is no better than the plain one or the previous token.
    losses: Vec<Loss>,
}

/// One domain, held out.
#[derive(Debug, Serialize)]
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) tokens: usize,
    pub(super) control: Scorecard,
    pub(super) predictors: Vec<Scorecard>,
}

#[derive(Debug, Serialize)]
struct Loss {
    /// `null` for all domains together.
    domain: Option<String>,
    layer: u16,
    width: usize,
    fitted_recall: f64,
    against: String,
    recall: f64,
}

impl Report {
    pub(super) fn new(
        model: PathBuf,
        depth: usize,
        fit: Option<PathBuf>,
        domains: Vec<Domain>,
    ) -> Self {
        let mut predictors =
            domains.first().map_or_else(Vec::new, |first| first.predictors.clone());
        let mut control = domains.first().map(|first| first.control.clone());
        for domain in domains.iter().skip(1) {
            predictors.iter_mut().zip(&domain.predictors).for_each(|(all, one)| all.merge(one));
            control.iter_mut().for_each(|all| all.merge(&domain.control));
        }
        let mut losses = losses(None, &predictors);
        losses.extend(domains.iter().flat_map(losses_of));
        let control_recall = control.and_then(|control| control.ahead().recall(0));
        Self { model, depth, fit, control_recall, predictors, domains, losses }
    }
}

fn losses_of(domain: &Domain) -> Vec<Loss> {
    losses(Some(&domain.name), &domain.predictors)
}

/// Layers and widths where another card's recall is as high as the fitted one's.
fn losses(domain: Option<&str>, cards: &[Scorecard]) -> Vec<Loss> {
    let find = |name: &str| cards.iter().find(|card| card.predictor == name);
    let Some(fitted) = find("fitted") else { return Vec::new() };
    let mut losses = Vec::new();
    for other in ["lookahead", "repeat"].into_iter().filter_map(find) {
        let layers = fitted.layers.iter().zip(&other.layers).filter(|(layer, _)| !layer.first);
        for (mine, theirs) in layers {
            for (at, width) in WIDTHS.into_iter().enumerate() {
                let recalls = (mine.scores.recall(at), theirs.scores.recall(at));
                if let (Some(fitted_recall), Some(recall)) = recalls
                    && fitted_recall <= recall
                {
                    losses.push(Loss {
                        domain: domain.map(str::to_owned),
                        layer: mine.layer,
                        width: width * fitted.top_k,
                        fitted_recall,
                        against: other.predictor.clone(),
                        recall,
                    });
                }
            }
        }
    }
    losses
}

pub(super) fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let percent = |share: Option<f64>| {
        share.map_or_else(|| "-".to_owned(), |share| format!("{:.2} %", 100.0 * share))
    };
    let how = if report.fit.is_some() { "by one fit" } else { "each left out of its fit" };
    let domains = report.domains.iter().map(|one| format!("{} {}", one.tokens, one.name));
    let domains = domains.collect::<Vec<_>>().join(", ");
    writeln!(out, "tokens    {domains}; {how}; {} layers ahead", report.depth)?;
    writeln!(
        out,
        "control   {} of each layer's choice by its router on its own input",
        percent(report.control_recall)
    )?;
    for (at, width) in WIDTHS.into_iter().enumerate() {
        let top_k = report.predictors.first().map_or(0, |card| card.top_k);
        writeln!(out, "\nrecall@{}", width * top_k)?;
        recalls(&report.predictors, at, out)?;
    }
    writeln!(out)?;
    let name = |name: &str| format!("{name:>11}");
    writeln!(out, "{} {:>12} {:>10}", name("predictor"), "calibration", "precision")?;
    for card in &report.predictors {
        let (off, precision) = (card.calibration_error(), card.ahead().precision(0));
        writeln!(out, "{} {:>12} {:>10}", name(&card.predictor), percent(off), percent(precision))?;
    }
    writeln!(out, "  calibration: how far probabilities are from what came true, on average")?;
    for loss in &report.losses {
        writeln!(
            out,
            "loss      {}, layer {}, {} wide: fitted {} is not above {} {}",
            loss.domain.as_deref().unwrap_or("all domains"),
            loss.layer,
            loss.width,
            percent(Some(loss.fitted_recall)),
            loss.against,
            percent(Some(loss.recall)),
        )?;
    }
    if report.losses.is_empty() {
        writeln!(out, "fitted is above lookahead and repeat in every domain, layer and width")?;
    }
    Ok(())
}

/// One line a layer, one column a predictor; layers that nothing could look ahead to apart.
fn recalls(cards: &[Scorecard], width: usize, out: &mut dyn Write) -> io::Result<()> {
    let cell = |share: Option<f64>| {
        share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
    };
    write!(out, "{:>7}", "layer")?;
    cards.iter().try_for_each(|card| write!(out, " {:>10}", card.predictor))?;
    writeln!(out)?;
    for at in 0..cards.first().map_or(0, |card| card.layers.len()) {
        let layer = &cards[0].layers[at];
        write!(out, "{:>7}", format!("{}{}", layer.layer, if layer.first { "*" } else { "" }))?;
        for card in cards {
            write!(out, " {:>10}", cell(card.layers[at].scores.recall(width)))?;
        }
        writeln!(out)?;
    }
    write!(out, "{:>7}", "all")?;
    cards.iter().try_for_each(|card| write!(out, " {:>10}", cell(card.ahead().recall(width))))?;
    writeln!(out, "   (all but *, which are guessed from the token before)")
}
