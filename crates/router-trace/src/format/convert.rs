use super::compact::CompactWriter;
use super::jsonl::{Dropped, JsonlWriter, TraceHeader, TraceSummary};
use super::open::{ReadSummary, TraceReader};
use crate::error::TraceError;
use crate::pass::{LayerPass, PassInfo};
use serde::Serialize;
use std::fs::File;
use std::path::Path;

/// A form in which a trace can be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputFormat {
    /// JSON lines (`FORMAT.md`).
    Jsonl,
    /// The binary form (`FORMAT-COMPACT.md`).
    Compact,
}

impl OutputFormat {
    /// The form that the name of a file asks for: `.jsonl`, or `.rtc` for the compact one.
    #[must_use]
    pub fn for_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "jsonl" => Some(Self::Jsonl),
            "rtc" => Some(Self::Compact),
            _ => None,
        }
    }
}

/// Writes a trace in either form, by the same rules.
///
/// Dropped without [`finish`](Self::finish), it leaves a torn file.
pub enum TraceWriter {
    /// JSON lines.
    Jsonl(JsonlWriter<File>),
    /// The binary form.
    Compact(CompactWriter<File>),
}

impl TraceWriter {
    /// Creates the file at `path`, replacing what is there.
    ///
    /// # Errors
    ///
    /// [`TraceError::Io`] if it cannot be created, and a header that no model can have;
    /// both name the file.
    pub fn create(
        path: &Path,
        format: OutputFormat,
        header: &TraceHeader,
    ) -> Result<Self, TraceError> {
        match format {
            OutputFormat::Jsonl => JsonlWriter::create(path, header).map(Self::Jsonl),
            OutputFormat::Compact => CompactWriter::create(path, header).map(Self::Compact),
        }
    }

    /// Appends one layer pass; `experts` are its routes, one after the other.
    ///
    /// # Errors
    ///
    /// A record that breaks the format's rules is not written and the trace goes on;
    /// after [`TraceError::Io`] the file is torn and every later call fails.
    pub fn write(&mut self, info: PassInfo, experts: &[u16]) -> Result<(), TraceError> {
        match self {
            Self::Jsonl(writer) => writer.write(info, experts),
            Self::Compact(writer) => writer.write(info, experts),
        }
    }

    /// Appends a pass.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_pass(&mut self, pass: &LayerPass) -> Result<(), TraceError> {
        self.write(pass.info, pass.experts())
    }

    /// Experts that each token of this trace chooses.
    #[must_use]
    pub fn top_k(&self) -> u16 {
        match self {
            Self::Jsonl(writer) => writer.top_k(),
            Self::Compact(writer) => writer.top_k(),
        }
    }

    /// Records taken so far.
    #[must_use]
    pub fn records(&self) -> u64 {
        match self {
            Self::Jsonl(writer) => writer.records(),
            Self::Compact(writer) => writer.records(),
        }
    }

    /// Hands everything to the system, without an end record.
    ///
    /// # Errors
    ///
    /// What the output answers.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        match self {
            Self::Jsonl(writer) => writer.flush(),
            Self::Compact(writer) => writer.flush(),
        }
    }

    /// Writes the end record with what was `dropped` on the way, and flushes.
    ///
    /// # Errors
    ///
    /// [`TraceError::Io`], naming the file and how much of it is whole.
    pub fn finish(self, dropped: Dropped) -> Result<TraceSummary, TraceError> {
        match self {
            Self::Jsonl(writer) => writer.finish(dropped),
            Self::Compact(writer) => writer.finish(dropped),
        }
    }
}

/// What a conversion read and wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Converted {
    /// What was read.
    pub read: ReadSummary,
    /// What was written.
    pub written: TraceSummary,
}

/// Copies all passes of `reader` to `writer`, and what was dropped on the way to its end
/// record. A torn source that may be used becomes a whole file of what is whole in it.
///
/// # Errors
///
/// The first error of either, naming its file. The file that was written is then torn.
pub fn convert(reader: &mut TraceReader, mut writer: TraceWriter) -> Result<Converted, TraceError> {
    for pass in reader.by_ref() {
        writer.write_pass(&pass?)?;
    }
    let read = reader.summary().expect("the reader is over and no pass was an error");
    let written = writer.finish(read.dropped)?;
    Ok(Converted { read, written })
}
