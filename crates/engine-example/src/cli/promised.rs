//! Sizes of a model that is not there yet: by its config, or the config beside its index.

use anyhow::{Context, Result, bail};
use expert_tier::pool::{CheckpointConfig, ModelSizes};
use serde::Deserialize;
use std::path::{Path, PathBuf};

const INDEX: &str = "model.safetensors.index.json";

/// A model's sizes, and what should be known about where they come from.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) path: PathBuf,
    pub(super) sizes: ModelSizes,
    /// `metadata.total_size` of an index beside a config whose files are not all there.
    pub(super) index_total_bytes: Option<u64>,
    pub(super) notices: Vec<String>,
}

/// Whether `path` names an index of safetensors shards.
pub(super) fn is_index(path: &Path) -> bool {
    path.to_string_lossy().ends_with(".index.json")
}

/// Whether `path` names a config, or an index.
pub(super) fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "json")
}

impl Model {
    /// By the config `path`, or by the config beside the index `path`.
    pub(super) fn of_json(path: &Path) -> Result<Self> {
        if is_index(path) {
            return Self::of_config(&path.with_file_name("config.json"), Vec::new());
        }
        Self::of_config(path, Vec::new())
    }

    /// By the config `path`, whose index is beside it if there is one.
    pub(super) fn of_config(path: &Path, mut notices: Vec<String>) -> Result<Self> {
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
