//! What can be said of a split set of which some headers are not there.

use crate::cli::inspect::{plural, warn};
use crate::cli::output::{self, bytes};
use anyhow::Result;
use expert_tier::pool::PartSizes;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Everything `--json` says: the keys of a whole plan that stay without a value, too.
#[derive(Debug, Serialize)]
struct Report {
    model: PathBuf,
    /// Always `null`: a plan has them.
    sizes: Option<()>,
    part: PartSizes,
    context_tokens: u64,
    /// `None` where the family's attention is not known.
    kv_bytes: Option<u64>,
    unknown: Vec<&'static str>,
    notices: Vec<String>,
}

/// Says what is known. There is no plan without the size of the pool.
pub(super) fn report(
    model: PathBuf,
    part: PartSizes,
    [context_tokens, kv_element_bytes]: [u64; 2],
    json: bool,
    notices: Vec<String>,
) -> Result<ExitCode> {
    let kv_bytes = part.kv.map(|kv| kv.bytes(context_tokens, kv_element_bytes));
    let mut unknown = vec!["bytes of the pool", "bytes of the spine", "bytes of a token's experts"];
    if kv_bytes.is_none() {
        unknown.push("bytes of the key-value cache");
    }
    if part.expert_layers.is_none() {
        unknown.push("which layers have experts");
    }
    let report = Report { model, sizes: None, part, context_tokens, kv_bytes, unknown, notices };
    if !json {
        report.notices.iter().for_each(|notice| warn(notice));
    }
    output::report(json, &report, |out| print(&report, out))?;
    Ok(ExitCode::SUCCESS)
}

fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let part = &report.part;
    let kind = if part.model_type.is_empty() { "not known" } else { &part.model_type };
    let mut shape = part.layers.map_or_else(String::new, |layers| format!(", {layers} layers"));
    if let Some(layers) = &part.expert_layers {
        shape.push_str(&format!(", {} with experts", layers.len()));
    }
    if let (Some(n_experts), Some(top_k)) = (part.n_experts, part.top_k) {
        shape.push_str(&format!(", {n_experts} experts in a layer, top {top_k}"));
    }
    writeln!(out, "model     {kind}{shape} (by a part of its headers)")?;
    let of = |all: Option<usize>| all.map_or_else(String::new, |all| format!(" of {all}"));
    writeln!(
        out,
        "headers   of {} of {} files, with {}{} tensors",
        part.files,
        part.files_in_all,
        part.tensors,
        of(part.tensors_in_all),
    )?;
    let experts = match (part.pool_bytes, part.expert_bytes) {
        (0, _) => "no experts".to_owned(),
        (pool, None) => format!("{} of experts, of no layer all", bytes(pool)),
        (pool, Some(each)) => {
            let layers = plural(part.whole_layers.len(), "layer");
            format!("{} of experts, of {layers} all, up to {} each", bytes(pool), bytes(each))
        }
    };
    writeln!(out, "in them   {experts}; {} of the spine", bytes(part.spine_bytes))?;
    if let Some(kv) = report.kv_bytes {
        writeln!(out, "cache     {} for {} tokens", bytes(kv), report.context_tokens)?;
    }
    writeln!(out, "unknown   {}", report.unknown.join(", "))?;
    writeln!(out, "\nA plan needs the first bytes of every file: its header is enough.")
}
