use super::check::Checker;
use super::{MAX_LINE_BYTES, RawEnd, TraceHeader};
use crate::error::TraceError;
use crate::pass::{LayerPass, PassInfo};
use crate::route::{PassKind, Phase};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Records that were meant for the trace and are not in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Dropped {
    /// Layer passes lost.
    pub records: u64,
    /// Tokens in them (a token counts once a layer).
    pub tokens: u64,
}

/// What a finished trace holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct TraceSummary {
    /// Layer passes in the file.
    pub records: u64,
    /// Tokens in them (a token counts once a layer).
    pub tokens: u64,
    /// What was lost on the way to the file.
    pub dropped: Dropped,
    /// Bytes written, headers and end record included (0 where a file was read).
    pub bytes: u64,
}

/// Writes a trace: the header at once, a line a record, the end record in [`finish`].
///
/// Dropped without [`finish`], it leaves a file that the reader calls torn.
///
/// [`finish`]: JsonlWriter::finish
pub struct JsonlWriter<W: Write> {
    out: BufWriter<W>,
    path: Option<PathBuf>,
    checker: Checker,
    line: String,
    records: u64,
    tokens: u64,
    bytes: u64,
    failed: bool,
}

impl JsonlWriter<File> {
    /// Creates the file at `path`, replacing what is there.
    ///
    /// # Errors
    ///
    /// [`TraceError::Io`] if it cannot be created, and a header that no model can have;
    /// both name the file.
    pub fn create(path: &Path, header: &TraceHeader) -> Result<Self, TraceError> {
        let named = Some(path.to_owned());
        let file = File::create(path)
            .map_err(|source| TraceError::Io { operation: "create", records: 0, bytes: 0, source })
            .map_err(|error| error.in_file(named.as_ref()))?;
        Self::start(file, named, header)
    }
}

impl<W: Write> JsonlWriter<W> {
    /// Writes to `out`, which has no name.
    ///
    /// # Errors
    ///
    /// A header that no model can have, and what `out` answers.
    pub fn new(out: W, header: &TraceHeader) -> Result<Self, TraceError> {
        Self::start(out, None, header)
    }

    fn start(out: W, path: Option<PathBuf>, header: &TraceHeader) -> Result<Self, TraceError> {
        header.check(1).map_err(|error| error.in_file(path.as_ref()))?;
        let mut writer = Self {
            out: BufWriter::new(out),
            path,
            checker: Checker::new(header.shape.clone()),
            line: String::new(),
            records: 0,
            tokens: 0,
            bytes: 0,
            failed: false,
        };
        writer.put_json("write the header", &header.to_raw())?;
        Ok(writer)
    }

    /// Experts that each token of this trace chooses.
    #[must_use]
    pub fn top_k(&self) -> u16 {
        self.checker.shape().top_k
    }

    /// Whole records written so far.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Appends one layer pass; `experts` are its routes, one after the other.
    ///
    /// # Errors
    ///
    /// A record that breaks the format's rules is not written and the trace goes on;
    /// after [`TraceError::Io`] the file is torn and every later call fails.
    pub fn write(&mut self, info: PassInfo, experts: &[u16]) -> Result<(), TraceError> {
        // The header is line 1.
        self.checker
            .accept(self.records + 2, &info, experts)
            .map_err(|error| error.in_file(self.path.as_ref()))?;
        format_record(&mut self.line, &info, self.checker.shape().top_k, experts);
        debug_assert!(self.line.len() <= MAX_LINE_BYTES);
        self.put_line("write a record")?;
        self.records += 1;
        self.tokens += (experts.len() / usize::from(self.checker.shape().top_k)) as u64;
        Ok(())
    }

    /// Appends a pass.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_pass(&mut self, pass: &LayerPass) -> Result<(), TraceError> {
        self.write(pass.info, pass.experts())
    }

    /// Hands buffered lines to the output.
    ///
    /// # Errors
    ///
    /// What the output answers.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        let done = self.out.flush();
        self.settle("flush", done)
    }

    /// Writes the end record with what was `dropped` on the way, and flushes.
    ///
    /// # Errors
    ///
    /// [`TraceError::Io`], naming the file and how much of it is whole.
    pub fn finish(mut self, dropped: Dropped) -> Result<TraceSummary, TraceError> {
        let end = RawEnd {
            records: self.records,
            tokens: self.tokens,
            dropped_records: dropped.records,
            dropped_tokens: dropped.tokens,
        };
        self.put_json("write the end record", &serde_json::json!({ "end": end }))?;
        self.flush()?;
        let (records, tokens, bytes) = (self.records, self.tokens, self.bytes);
        Ok(TraceSummary { records, tokens, dropped, bytes })
    }

    fn put_json(
        &mut self,
        operation: &'static str,
        value: &impl Serialize,
    ) -> Result<(), TraceError> {
        let text = serde_json::to_string(value).map_err(io::Error::other);
        self.line = self.settle(operation, text)?;
        self.line.push('\n');
        self.put_line(operation)
    }

    fn put_line(&mut self, operation: &'static str) -> Result<(), TraceError> {
        let done = if self.failed {
            Err(io::Error::other("an earlier write failed, the file is torn"))
        } else {
            self.out.write_all(self.line.as_bytes())
        };
        self.settle(operation, done)?;
        self.bytes += self.line.len() as u64;
        Ok(())
    }

    fn settle<T>(&mut self, operation: &'static str, done: io::Result<T>) -> Result<T, TraceError> {
        done.map_err(|source| {
            self.failed = true;
            let (records, bytes) = (self.records, self.bytes);
            TraceError::Io { operation, records, bytes, source }.in_file(self.path.as_ref())
        })
    }
}

/// Formats a record by hand: it is ten times as many bytes as ids, all of them digits.
fn format_record(line: &mut String, info: &PassInfo, top_k: u16, experts: &[u16]) {
    let phase = match info.phase {
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
    };
    let kind = match info.kind {
        PassKind::Normal => "normal",
        PassKind::SpecAccept => "spec-accept",
        PassKind::SpecFallback => "spec-fallback",
    };
    let PassInfo { step, position, layer, .. } = info;
    line.clear();
    let mut put = |args: std::fmt::Arguments<'_>| {
        line.write_fmt(args).expect("writing to a String does not fail");
    };
    put(format_args!(
        r#"{{"step":{step},"pos":{position},"layer":{layer},"phase":"{phase}","pass":"{kind}","experts":["#
    ));
    for (token, route) in experts.chunks(usize::from(top_k)).enumerate() {
        put(format_args!("{}", if token == 0 { "[" } else { ",[" }));
        for (rank, expert) in route.iter().enumerate() {
            let comma = if rank == 0 { "" } else { "," };
            put(format_args!("{comma}{expert}"));
        }
        put(format_args!("]"));
    }
    put(format_args!("]}}\n"));
}
