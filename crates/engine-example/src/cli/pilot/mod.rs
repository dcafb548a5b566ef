//! `tier pilot`: fits and scores of predictors.

mod fit;
mod report;
mod score;
mod texts;

use super::args_pilot::{PilotArgs, PilotCommand};
use anyhow::{Result, bail};
use engine_example::pilot::Routers;
use pilot_prefetch::fit::Fit;
use pilot_prefetch::predict::MAX_DEPTH;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

pub(crate) fn run(args: &PilotArgs) -> Result<ExitCode> {
    match &args.command {
        PilotCommand::Fit(args) => fit::run(args),
        PilotCommand::Score(args) => score::run(args),
    }
}

/// The fit that lies beside a model, if one does.
pub(crate) fn fit_beside(dir: &Path) -> Result<Option<Arc<Fit>>> {
    let path = dir.join(Fit::FILE_NAME);
    Ok(if path.exists() { Some(Arc::new(Fit::read(&path)?)) } else { None })
}

/// Source and target places, `depth` apart.
fn pairs(routers: &Routers, depth: usize) -> Result<Vec<(usize, usize)>> {
    let layers = routers.places().len();
    if depth == 0 || depth > MAX_DEPTH || depth >= layers {
        let most = MAX_DEPTH.min(layers.saturating_sub(1));
        bail!("--depth {depth}: must be 1 to {most} for {layers} layers with experts");
    }
    Ok((0..layers - depth).map(|source| (source, source + depth)).collect())
}
