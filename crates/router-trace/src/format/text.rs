use super::jsonl::{Tail, TornTail};
use super::line::Line;
use crate::error::TraceError;
use std::io::BufRead;

/// The lines of a foreign text format, which has no end record: a file is torn where its
/// last line is not whole.
pub(super) struct TextLines {
    input: Box<dyn BufRead + Send>,
    line: Line,
    tail: Tail,
    /// Whether a line that was cut can still be a valid one, so that only its LF tells.
    cut_is_valid: bool,
    records: u64,
    torn: Option<TornTail>,
    over: bool,
}

impl TextLines {
    pub(super) fn new(input: Box<dyn BufRead + Send>, tail: Tail, cut_is_valid: bool) -> Self {
        let line = Line::default();
        Self { input, line, tail, cut_is_valid, records: 0, torn: None, over: false }
    }

    /// What `parse` makes of the next line that is not blank; it is given the line's text and
    /// its 1-based number. `None` at the end.
    pub(super) fn next<T>(
        &mut self,
        parse: impl FnOnce(&[u8], u64) -> Result<T, TraceError>,
    ) -> Result<Option<T>, TraceError> {
        if self.over || !self.line.next(&mut self.input, self.records)? {
            self.over = true;
            return Ok(None);
        }
        let number = self.line.number;
        let parsed = parse(self.line.text(), number);
        let whole = self.line.terminated || (parsed.is_ok() && !self.cut_is_valid);
        if whole {
            self.records += 1;
            return parsed.map(Some);
        }
        self.over = true;
        let torn = TornTail { line: number, records: self.records };
        match self.tail {
            Tail::Strict => Err(TraceError::TornLine { line: torn.line, records: torn.records }),
            Tail::Tolerate => {
                self.torn = Some(torn);
                Ok(None)
            }
        }
    }

    /// Takes back the count of a line that was no record.
    pub(super) fn not_a_record(&mut self) {
        self.records -= 1;
    }

    pub(super) fn torn(&self) -> Option<TornTail> {
        self.torn
    }
}

pub(super) fn json_error(line: u64, error: &serde_json::Error) -> TraceError {
    TraceError::Json { line, message: error.to_string() }
}
