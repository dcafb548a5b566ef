use super::jsonl::{MAX_TOKENS_PER_RECORD, Tail, TornTail};
use super::text::TextLines;
use crate::canonical::{Record, Records, Rows};
use crate::error::TraceError;
use std::io::BufRead;

/// Reads colibri's route trace: `call row layer id:gate id:gate …`, one line a token and
/// layer.
///
/// `call` counts the expert calls of the engine (one layer of one forward pass) and `row` the
/// tokens in it, so the lines of one call are one record. The gates are checked and dropped.
pub(super) struct ColibriRecords {
    lines: TextLines,
    /// The first line of the next call.
    next: Option<Row>,
}

struct Row {
    line: u64,
    call: u64,
    row: u64,
    layer: u64,
    ids: Vec<i64>,
}

impl ColibriRecords {
    pub(super) fn new(input: Box<dyn BufRead + Send>, tail: Tail) -> Self {
        // A number that was cut is still a number.
        Self { lines: TextLines::new(input, tail, true), next: None }
    }

    fn next_row(&mut self) -> Result<Option<Row>, TraceError> {
        self.lines.next(parse_row)
    }
}

impl Records for ColibriRecords {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        let first = match self.next.take() {
            Some(row) => row,
            None => match self.next_row()? {
                Some(row) => row,
                None => return Ok(None),
            },
        };
        let Row { line, call, layer, mut ids, .. } = first;
        let wrong = |line, reason| Err(TraceError::Text { line, reason });
        if first.row != 0 {
            return wrong(line, format!("call {call} begins with row {}, not with 0", first.row));
        }
        let mut widths = vec![ids.len()];
        while let Some(row) = self.next_row()? {
            if row.call != call {
                // The engine numbers every call: a gap is lines that were lost.
                if Some(row.call) != call.checked_add(1) {
                    let text = format!("call {} after {call}: calls go on by one", row.call);
                    return wrong(row.line, text);
                }
                self.next = Some(row);
                break;
            }
            if row.row != widths.len() as u64 || row.layer != layer {
                let reason = format!(
                    "call {call} has row {} layer {} after row {} layer {layer}",
                    row.row,
                    row.layer,
                    widths.len() - 1
                );
                return wrong(row.line, reason);
            }
            if widths.len() == MAX_TOKENS_PER_RECORD {
                let (tokens, limit) = (widths.len() + 1, MAX_TOKENS_PER_RECORD);
                return Err(TraceError::TokenCount { line: row.line, tokens, limit });
            }
            widths.push(row.ids.len());
            ids.extend(row.ids);
        }
        // A tear may have taken rows of this call.
        if self.lines.torn().is_some() {
            return Ok(None);
        }
        let rows = Rows::Each(widths);
        Ok(Some(Record { line, step: None, position: None, layer, ids, rows }))
    }

    fn torn(&self) -> Option<TornTail> {
        self.lines.torn()
    }
}

fn parse_row(text: &[u8], line: u64) -> Result<Row, TraceError> {
    let wrong = |reason| TraceError::Text { line, reason };
    let text = std::str::from_utf8(text).map_err(|error| wrong(format!("no text: {error}")))?;
    let mut fields = text.split_ascii_whitespace();
    let mut number = |name: &str| {
        let field = fields.next().ok_or_else(|| wrong(format!("field `{name}` is missing")))?;
        field.parse::<u64>().map_err(|_| wrong(format!("field `{name}` is {}", quoted(field))))
    };
    let (call, row, layer) = (number("call")?, number("row")?, number("layer")?);
    let mut ids = Vec::new();
    for field in fields {
        let id = field.split_once(':').and_then(|(id, gate)| {
            gate.parse::<f32>().ok()?;
            id.parse::<i64>().ok()
        });
        let id = id.ok_or_else(|| wrong(format!("{} is no id:gate", quoted(field))))?;
        // One more than any route has is enough to tell that there are too many.
        if ids.len() <= crate::route::MAX_TOP_K {
            ids.push(id);
        }
    }
    Ok(Row { line, call, row, layer, ids })
}

/// A field in an error: not longer than a field should be.
pub(super) fn quoted(field: &str) -> String {
    let short: String = field.chars().take(40).collect();
    let more = if short.len() < field.len() { "…" } else { "" };
    format!("{short:?}{more}")
}
