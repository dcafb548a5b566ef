use super::codec::{Context, encode};
use super::frame::{BlockHeader, EndRecord};
use super::{BLOCK_BYTES, COMPACT_VERSION, MAGIC, MAX_PAYLOAD_BYTES};
use crate::error::TraceError;
use crate::format::jsonl::check::Checker;
use crate::format::jsonl::{Dropped, TraceHeader, TraceSummary};
use crate::pass::{LayerPass, PassInfo};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Writes a trace in the compact form: the header at once, then block after block.
///
/// Keeps the rules of [`JsonlWriter`](crate::JsonlWriter) and its calls, in memory for one
/// block. Dropped without [`finish`](Self::finish), it leaves a file that is torn after its
/// last whole block.
pub struct CompactWriter<W: Write> {
    out: BufWriter<W>,
    path: Option<PathBuf>,
    checker: Checker,
    block: BlockHeader,
    payload: Vec<u8>,
    context: Context,
    /// The step of the last record, and its tokens.
    last: Option<(u64, u64)>,
    /// Tokens (once a step) of the steps before the last record's.
    tokens_before: u64,
    records: u64,
    layer_tokens: u64,
    bytes: u64,
    failed: bool,
}

impl CompactWriter<File> {
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

impl<W: Write> CompactWriter<W> {
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
            block: BlockHeader::default(),
            payload: Vec::new(),
            context: Context::new(0),
            last: None,
            tokens_before: 0,
            records: 0,
            layer_tokens: 0,
            bytes: 0,
            failed: false,
        };
        let text = serde_json::to_vec(&header.to_raw()).map_err(io::Error::other);
        let text = writer.settle("write the header", text)?;
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(&COMPACT_VERSION.to_le_bytes());
        let length = u32::try_from(text.len()).expect("the header's fields are bounded");
        head.extend_from_slice(&length.to_le_bytes());
        head.extend_from_slice(&text);
        head.extend_from_slice(&xxh3_64(&head).to_le_bytes());
        writer.put("write the header", &head)?;
        Ok(writer)
    }

    /// Experts that each token of this trace chooses.
    #[must_use]
    pub fn top_k(&self) -> u16 {
        self.checker.shape().top_k
    }

    /// Records taken so far; those of the open block are not yet written.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Appends one layer pass; `experts` are its routes, one after the other.
    ///
    /// # Errors
    ///
    /// A record that breaks the format's rules is not written and the trace goes on (lines
    /// are counted as in the JSONL form); after [`TraceError::Io`] the file is torn and
    /// every later call fails.
    pub fn write(&mut self, info: PassInfo, experts: &[u16]) -> Result<(), TraceError> {
        self.checker
            .accept(self.records + 2, &info, experts)
            .map_err(|error| error.in_file(self.path.as_ref()))?;
        if self.payload.len() >= BLOCK_BYTES {
            self.close_block()?;
        }
        let tokens = (experts.len() / usize::from(self.top_k())) as u64;
        let continues = self.last.is_some_and(|(step, _)| step == info.step);
        if let (false, Some((_, tokens))) = (continues, self.last) {
            self.tokens_before += tokens;
        }
        if self.payload.is_empty() {
            self.block = BlockHeader {
                continues,
                first_step: info.step,
                first_token: self.tokens_before,
                records_before: self.records,
                layer_tokens_before: self.layer_tokens,
                ..BlockHeader::default()
            };
            self.context = Context::new(info.step);
        }
        encode(&mut self.payload, &mut self.context, self.checker.shape(), &info, experts);
        debug_assert!(self.payload.len() <= MAX_PAYLOAD_BYTES);
        self.block.records += 1;
        self.records += 1;
        self.layer_tokens += tokens;
        // A step has the tokens of its first record.
        if !continues {
            self.last = Some((info.step, tokens));
        }
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

    /// Closes the open block, so that what was written so far survives a crash.
    ///
    /// Each block costs 64 bytes: not a call for every record.
    ///
    /// # Errors
    ///
    /// What the output answers.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        self.close_block()?;
        let done = self.out.flush();
        self.settle("flush", done)
    }

    /// Writes the last block and the end record with what was `dropped`, and flushes.
    ///
    /// # Errors
    ///
    /// [`TraceError::Io`], naming the file and how much of it is whole.
    pub fn finish(mut self, dropped: Dropped) -> Result<TraceSummary, TraceError> {
        self.close_block()?;
        let end = EndRecord {
            records: self.records,
            layer_tokens: self.layer_tokens,
            tokens: self.tokens_before + self.last.map_or(0, |(_, tokens)| tokens),
            dropped_records: dropped.records,
            dropped_tokens: dropped.tokens,
        };
        self.put("write the end record", &end.to_bytes())?;
        self.flush()?;
        let (records, tokens, bytes) = (self.records, self.layer_tokens, self.bytes);
        Ok(TraceSummary { records, tokens, dropped, bytes })
    }

    fn close_block(&mut self) -> Result<(), TraceError> {
        if self.payload.is_empty() {
            return Ok(());
        }
        let payload = std::mem::take(&mut self.payload);
        self.block.payload_bytes = u32::try_from(payload.len()).expect("at most MAX_PAYLOAD_BYTES");
        self.block.payload_hash = xxh3_64(&payload);
        self.put("write a block", &self.block.to_bytes())?;
        self.put("write a block", &payload)?;
        self.payload = payload;
        self.payload.clear();
        Ok(())
    }

    fn put(&mut self, operation: &'static str, bytes: &[u8]) -> Result<(), TraceError> {
        let done = if self.failed {
            Err(io::Error::other("an earlier write failed, the file is torn"))
        } else {
            self.out.write_all(bytes)
        };
        self.settle(operation, done)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn settle<T>(&mut self, operation: &'static str, done: io::Result<T>) -> Result<T, TraceError> {
        done.map_err(|source| {
            self.failed = true;
            let (records, bytes) = (self.block.records_before, self.bytes);
            TraceError::Io { operation, records, bytes, source }.in_file(self.path.as_ref())
        })
    }
}
