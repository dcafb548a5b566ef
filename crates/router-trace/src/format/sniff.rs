use super::Format;
use super::compact::MAGIC;
use super::jsonl::FORMAT_NAME;
use super::line::Line;
use super::usage::DENSE_MAGIC;
use crate::error::TraceError;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::io::BufRead;

/// What a file is.
pub(super) enum Sniffed {
    Trace(Format),
    /// Counts of uses, in the layout named.
    Usage(&'static str),
}

/// The fields that tell the JSON formats apart.
#[derive(Deserialize)]
struct Peek {
    format: Option<IgnoredAny>,
    layers: Option<IgnoredAny>,
    layer: Option<IgnoredAny>,
    experts: Option<IgnoredAny>,
    top_k: Option<IgnoredAny>,
    moe_layers: Option<IgnoredAny>,
}

/// Tells the format from the first line that is not blank, or the magic.
pub(super) fn sniff(input: &mut impl BufRead) -> Result<Sniffed, TraceError> {
    let head = input.fill_buf().map_err(|source| TraceError::Io {
        operation: "read",
        records: 0,
        bytes: 0,
        source,
    })?;
    if head.starts_with(&DENSE_MAGIC) {
        return Ok(Sniffed::Usage("a dense usage file"));
    }
    // A changed line end breaks the magic; the reader says it best.
    if head.starts_with(&MAGIC[..4]) {
        return Ok(Sniffed::Trace(Format::Compact));
    }
    let mut line = Line::default();
    if !line.next(input, 0)? {
        let reason = "the file is empty".to_owned();
        return Err(TraceError::NotATrace { line: 1, reason });
    }
    let text = line.text().trim_ascii();
    let found = if text.starts_with(b"{") { sniff_json(text) } else { sniff_numbers(text) };
    found.map_err(|reason| TraceError::NotATrace { line: line.number, reason })
}

fn sniff_json(text: &[u8]) -> Result<Sniffed, String> {
    let peek: Peek = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let trace = |format| Ok(Sniffed::Trace(format));
    if peek.format.is_some() {
        return trace(Format::Jsonl);
    }
    if peek.layers.is_some() {
        return trace(Format::Waste);
    }
    let row = peek.layer.is_some() && peek.experts.is_some();
    if row || (peek.top_k.is_some() && peek.moe_layers.is_some()) {
        return trace(Format::Plain);
    }
    Err(format!(
        "a JSON object without `format` (\"{FORMAT_NAME}\"), `layers`, `layer` and `experts`, or \
         `top_k` and `moe_layers`"
    ))
}

fn sniff_numbers(text: &[u8]) -> Result<Sniffed, String> {
    let not = "neither JSON, nor rows of numbers, nor the compact form";
    let text = std::str::from_utf8(text).map_err(|_| not.to_owned())?;
    let mut fields = text.split_ascii_whitespace();
    let three = fields.by_ref().take(3).filter(|field| field.parse::<i64>().is_ok()).count();
    match (three, fields.next()) {
        (3, None) => Ok(Sniffed::Usage("a usage file")),
        (3, Some(pair)) if pair.contains(':') => Ok(Sniffed::Trace(Format::Colibri)),
        _ => Err(not.to_owned()),
    }
}
