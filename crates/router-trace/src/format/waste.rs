use super::jsonl::{Tail, TornTail};
use super::text::{TextLines, json_error};
use crate::canonical::{Record, Records, Rows};
use crate::error::TraceError;
use serde::Deserialize;
use std::collections::VecDeque;
use std::io::BufRead;

#[derive(Deserialize)]
struct WasteRow {
    tok: Option<u64>,
    layers: Option<Vec<Vec<i64>>>,
}

/// Reads WASTE's fixtures, `{"tok":0,"layers":[[5,0],[7,1]]}`: one line a token, one list a
/// layer in model order. The lists there are sorted by id: the rank is not known.
pub(super) struct WasteRecords {
    lines: TextLines,
    /// The numbers of the layers; where they are not known the first is 0.
    layers: Option<Vec<u16>>,
    ready: VecDeque<Record>,
}

impl WasteRecords {
    pub(super) fn new(
        input: Box<dyn BufRead + Send>,
        tail: Tail,
        layers: Option<Vec<u16>>,
    ) -> Self {
        let lines = TextLines::new(input, tail, false);
        Self { lines, layers, ready: VecDeque::new() }
    }
}

impl Records for WasteRecords {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        while self.ready.is_empty() {
            let layers = self.layers.as_deref();
            let Some(records) = self.lines.next(|text, line| parse_row(text, line, layers))? else {
                return Ok(None);
            };
            self.ready = records;
        }
        Ok(self.ready.pop_front())
    }

    fn torn(&self) -> Option<TornTail> {
        self.lines.torn()
    }

    /// A line is a token that was produced: none is there twice.
    fn may_run_again(&self) -> bool {
        false
    }
}

fn parse_row(
    text: &[u8],
    line: u64,
    layers: Option<&[u16]>,
) -> Result<VecDeque<Record>, TraceError> {
    let row: WasteRow = serde_json::from_slice(text).map_err(|error| json_error(line, &error))?;
    let missing = |field| TraceError::MissingField { line, field };
    let step = row.tok.ok_or_else(|| missing("tok"))?;
    let lists = row.layers.ok_or_else(|| missing("layers"))?;
    if lists.is_empty() || lists.len() > 1 << 16 {
        let reason = format!("field `layers` has {} lists, must be 1 to 65536", lists.len());
        return Err(TraceError::Text { line, reason });
    }
    let number = |at: usize| match layers {
        None => at as u64,
        Some(layers) => layers.get(at).map_or(at as u64, |&layer| layer.into()),
    };
    if let Some(known) = layers.filter(|known| known.len() < lists.len()) {
        let (found, known) = (lists.len(), known.len());
        let reason = format!("field `layers` has {found} lists, the model has {known} layers");
        return Err(TraceError::Text { line, reason });
    }
    let records = lists.into_iter().enumerate().map(|(at, ids)| Record {
        line,
        step: Some(step),
        position: None,
        layer: number(at),
        ids,
        rows: Rows::Flat,
    });
    Ok(records.collect())
}
