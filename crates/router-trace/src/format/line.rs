use super::jsonl::MAX_LINE_BYTES;
use crate::error::TraceError;
use std::io::{BufRead, Read};

/// The current line; its buffer is reused.
#[derive(Default)]
pub(crate) struct Line {
    pub(crate) bytes: Vec<u8>,
    /// 1-based; 0 before the first line.
    pub(crate) number: u64,
    /// Whether the line ended in LF: the last one of a torn file does not.
    pub(crate) terminated: bool,
    read_bytes: u64,
}

impl Line {
    /// Reads the next line that is not blank; `false` at the end of the input.
    pub(crate) fn next(
        &mut self,
        input: &mut impl BufRead,
        records: u64,
    ) -> Result<bool, TraceError> {
        loop {
            self.bytes.clear();
            let read = input
                .take(MAX_LINE_BYTES as u64 + 1)
                .read_until(b'\n', &mut self.bytes)
                .map_err(|source| {
                    let bytes = self.read_bytes;
                    TraceError::Io { operation: "read", records, bytes, source }
                })?;
            if read == 0 {
                return Ok(false);
            }
            self.number += 1;
            self.read_bytes += read as u64;
            self.terminated = self.bytes.last() == Some(&b'\n');
            if read > MAX_LINE_BYTES {
                let line = self.number;
                return Err(TraceError::LineTooLong { line, limit_bytes: MAX_LINE_BYTES });
            }
            if !self.bytes.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    /// The line without the byte order mark that editors of other systems put at the start.
    pub(crate) fn text(&self) -> &[u8] {
        let mark: &[u8] = if self.number == 1 { b"\xef\xbb\xbf" } else { b"" };
        self.bytes.strip_prefix(mark).unwrap_or(&self.bytes)
    }
}
