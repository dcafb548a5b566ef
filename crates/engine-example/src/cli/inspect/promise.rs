//! What a config promises of a model that is not there yet.

use super::{plural, warn};
use crate::cli::output::{self, bytes};
use crate::cli::promised::Model;
use anyhow::Result;
use expert_tier::pool::ModelSizes;
use serde::Serialize;
use std::path::Path;

/// Everything `--json` says.
#[derive(Debug, Serialize)]
struct Promise<'a> {
    path: &'a Path,
    /// Always `config`: there are no weights whose format could be told.
    format: &'static str,
    sizes: &'a ModelSizes,
    checkpoint_bytes: u64,
    index_total_bytes: Option<u64>,
    notes: &'a [String],
}

pub(super) fn report(model: &Model, json: bool) -> Result<()> {
    let promise = Promise {
        path: &model.path,
        format: "config",
        sizes: &model.sizes,
        checkpoint_bytes: model.sizes.checkpoint_bytes(),
        index_total_bytes: model.index_total_bytes,
        notes: &model.notices,
    };
    if !json {
        model.notices.iter().for_each(|notice| warn(notice));
    }
    output::report(json, &promise, |out| out.write_all(text(&promise).as_bytes()))
}

fn text(promise: &Promise<'_>) -> String {
    let sizes = promise.sizes;
    let shape = &sizes.shape;
    let mut lines = vec![
        ("pool", promise.path.display().to_string()),
        ("format", "none yet: sizes are those that the config promises".to_owned()),
        ("model", sizes.model_type.clone()),
        (
            "experts",
            format!(
                "{} in {}, {} a layer, a token uses {}",
                shape.total_experts(),
                plural(shape.moe_layers.len(), "layer"),
                shape.n_experts,
                shape.top_k
            ),
        ),
        (
            "expert bytes",
            format!("{} each, {} in all", bytes(sizes.expert_bytes), bytes(sizes.pool_bytes)),
        ),
        ("spine", bytes(sizes.spine_bytes)),
        ("token", format!("uses {} of experts", bytes(sizes.token_bytes))),
        ("checkpoint", bytes(promise.checkpoint_bytes)),
    ];
    if let Some(kv) = sizes.kv {
        let text = format!("{} elements a token, {} fixed", kv.elements_per_token, kv.fixed_bytes);
        lines.push(("cache", text));
    }
    lines.into_iter().map(|(what, text)| format!("{what:<13} {text}\n")).collect()
}
