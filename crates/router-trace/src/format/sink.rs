use super::compact::CompactWriter;
use super::convert::TraceWriter;
use super::jsonl::{Dropped, JsonlWriter, TraceSummary};
use crate::error::TraceError;
use crate::pass::LayerPass;
use std::io::Write;

/// Where a [`Recorder`](crate::Recorder) puts what it took: any writer of a trace.
pub trait TraceSink: Send + 'static {
    /// Experts that one token chooses, as the trace's header says.
    fn top_k(&self) -> u16;

    /// Whole records so far.
    fn records(&self) -> u64;

    /// Appends a pass.
    ///
    /// # Errors
    ///
    /// As the writer's own `write_pass`.
    fn write_pass(&mut self, pass: &LayerPass) -> Result<(), TraceError>;

    /// Hands everything to the system, without an end record: the trace stays torn.
    ///
    /// # Errors
    ///
    /// [`TraceError::Io`].
    fn flush(&mut self) -> Result<(), TraceError>;

    /// Writes the end record.
    ///
    /// # Errors
    ///
    /// [`TraceError::Io`].
    fn finish(self, dropped: Dropped) -> Result<TraceSummary, TraceError>;
}

macro_rules! sink {
    () => {
        fn top_k(&self) -> u16 {
            Self::top_k(self)
        }
        fn records(&self) -> u64 {
            Self::records(self)
        }
        fn write_pass(&mut self, pass: &LayerPass) -> Result<(), TraceError> {
            Self::write_pass(self, pass)
        }
        fn flush(&mut self) -> Result<(), TraceError> {
            Self::flush(self)
        }
        fn finish(self, dropped: Dropped) -> Result<TraceSummary, TraceError> {
            Self::finish(self, dropped)
        }
    };
}

impl<W: Write + Send + 'static> TraceSink for JsonlWriter<W> {
    sink!();
}

impl<W: Write + Send + 'static> TraceSink for CompactWriter<W> {
    sink!();
}

impl TraceSink for TraceWriter {
    sink!();
}
