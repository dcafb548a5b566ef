//! From a folder, an index or a config to the sizes of a model.

use crate::cli::args_plan::PlanArgs;
use crate::cli::bundled;
use anyhow::{Context, Result, bail};
use expert_tier::Pool;
use expert_tier::pool::{CheckpointConfig, ModelSizes};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A model's sizes, and what should be known about where they come from.
pub(super) struct Model {
    pub(super) path: PathBuf,
    pub(super) sizes: ModelSizes,
    /// `metadata.total_size` of an index beside a config whose files are not all there.
    pub(super) index_total_bytes: Option<u64>,
    pub(super) notices: Vec<String>,
}

const INDEX: &str = "model.safetensors.index.json";

impl Model {
    pub(super) fn open(args: &PlanArgs) -> Result<Self> {
        if let Some(config) = &args.config {
            return Self::of_config(config, Vec::new());
        }
        let path = match &args.model {
            Some(path) => path.clone(),
            None => bundled::model_dir()?,
        };
        let is_json = path.extension().is_some_and(|ending| ending == "json");
        if is_json && path.to_string_lossy().ends_with(".index.json") {
            let dir = path.parent().unwrap_or(Path::new(""));
            return Self::of_config(&dir.join("config.json"), Vec::new());
        }
        if is_json {
            return Self::of_config(&path, Vec::new());
        }
        let error = match Pool::open(&path) {
            Ok(pool) => {
                let sizes = ModelSizes::of_pool(&pool)?;
                let notices = Vec::new();
                return Ok(Self { path, sizes, index_total_bytes: None, notices });
            }
            Err(error) => error,
        };
        // Before and during a download: files that are not there are no fault of the plan.
        let config = path.join("config.json");
        let unfinished = ["missing-shard", "not-a-model", "incomplete-download"];
        if !unfinished.contains(&error.kind()) || !config.is_file() {
            return Err(error.into());
        }
        Self::of_config(&config, vec![format!("sizes by config.json alone: {error}")])
    }

    fn of_config(path: &Path, mut notices: Vec<String>) -> Result<Self> {
        let sizes = ModelSizes::of_config(&CheckpointConfig::open(path)?)?;
        let index = path.with_file_name(INDEX);
        let index_total_bytes = if index.is_file() { total_size(&index)? } else { None };
        if let Some(total) = index_total_bytes {
            let counted = sizes.checkpoint_bytes();
            if total < counted {
                bail!(
                    "{}: total_size is {total}, but the config's tensors have {counted} bytes",
                    index.display()
                );
            }
            if total > counted {
                notices.push(format!(
                    "the index names {} bytes more than the text model has: other tensors, which \
                     are downloaded but not planned for",
                    total - counted
                ));
            }
        }
        Ok(Self { path: path.to_owned(), sizes, index_total_bytes, notices })
    }
}

#[derive(Deserialize)]
struct Index {
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    total_size: Option<f64>,
}

/// The sum of all tensors that an index states, if it does. (Some writers make it a float.)
fn total_size(path: &Path) -> Result<Option<u64>> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    let index: Index = serde_json::from_slice(&text)
        .with_context(|| format!("{}: not an index", path.display()))?;
    let total = index.metadata.and_then(|metadata| metadata.total_size);
    Ok(total.filter(|total| *total >= 0.0).map(|total| total as u64))
}
