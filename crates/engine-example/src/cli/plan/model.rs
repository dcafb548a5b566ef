//! From a folder, a header, an index or a config to the sizes of a model.

use crate::cli::args_plan::PlanArgs;
use crate::cli::bundled;
use crate::cli::promised::{Model, is_json};
use anyhow::Result;
use expert_tier::Pool;
use expert_tier::pool::{HeaderSizes, KnownSizes, ModelSizes, PartSizes};
use std::path::PathBuf;

/// What is known of the model that was named.
pub(super) enum Known {
    /// All sizes.
    All(Model),
    /// Some headers of a split set are not there: too little to plan with.
    Part { path: PathBuf, sizes: PartSizes, notices: Vec<String> },
}

pub(super) fn open(args: &PlanArgs) -> Result<Known> {
    if let Some(config) = &args.config {
        return Ok(Known::All(Model::of_config(config, Vec::new())?));
    }
    let path = match &args.model {
        Some(path) => path.clone(),
        None => bundled::model_dir()?,
    };
    if is_json(&path) {
        return Ok(Known::All(Model::of_json(&path)?));
    }
    let error = match Pool::open(&path) {
        Ok(pool) => {
            let sizes = ModelSizes::of_pool(&pool)?;
            let notices = Vec::new();
            return Ok(Known::All(Model { path, sizes, index_total_bytes: None, notices }));
        }
        Err(error) => error,
    };
    // Before and during a download: what is not there is no fault of the plan.
    let unfinished = ["missing-shard", "incomplete-download", "truncated-data", "header-truncated"];
    let unfinished = unfinished.contains(&error.kind());
    if unfinished && let Some(headers) = HeaderSizes::read(&path)? {
        return Ok(by_headers(path, headers));
    }
    // A file that is no model has nothing to do with the config beside it.
    let config = match path.is_dir() {
        true => path.join("config.json"),
        false => path.with_file_name("config.json"),
    };
    let nothing_yet = error.kind() == "not-a-model" && path.is_dir();
    if !(unfinished || nothing_yet) || !config.is_file() {
        return Err(error.into());
    }
    let notices = vec![format!("sizes by config.json alone: {error}")];
    Ok(Known::All(Model::of_config(&config, notices)?))
}

fn by_headers(path: PathBuf, headers: HeaderSizes) -> Known {
    let lacking = headers.lacking.iter();
    let notices = lacking.map(|error| format!("sizes by headers alone: {error}")).collect();
    match headers.sizes {
        KnownSizes::All(sizes) => {
            Known::All(Model { path, sizes, index_total_bytes: None, notices })
        }
        KnownSizes::Part(sizes) => Known::Part { path, sizes, notices },
    }
}
