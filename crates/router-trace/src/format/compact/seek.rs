use super::codec::Context;
use super::frame::BlockHeader;
use super::read::{CompactReader, Counts, Frame};
use crate::error::TraceError;
use crate::pass::LayerPass;
use std::io::{Read, Seek, SeekFrom};

impl<R: Read + Seek> CompactReader<R> {
    /// Makes the first record of step `step`, or of the first step after it, the next one.
    ///
    /// Looks at one header a block up to that place, then decodes from the start of the last
    /// block that begins with a step not after it. Blocks that are passed over are not
    /// decoded, so damage inside them is not seen.
    ///
    /// # Errors
    ///
    /// A damaged block header on the way or a damaged block there, and what the input
    /// answers. The reader can seek again after an error.
    pub fn seek_step(&mut self, step: u64) -> Result<(), TraceError> {
        self.seek(|block| block.first_step <= step, |pass, _| pass.info.step >= step)
            .map_err(|error| error.in_file(self.path.as_ref()))
    }

    /// Makes the first record of the step that has token `token` the next one.
    ///
    /// Tokens are counted once a step from 0, so in a trace of plain decoding token n is
    /// the n-th forward pass. Cost and errors as [`seek_step`](Self::seek_step).
    ///
    /// # Errors
    ///
    /// As [`seek_step`](Self::seek_step).
    pub fn seek_token(&mut self, token: u64) -> Result<(), TraceError> {
        self.seek(|block| block.first_token <= token, |_, after| token < after)
            .map_err(|error| error.in_file(self.path.as_ref()))
    }

    /// `before`: whether the place is not before this block; `there`: whether this record,
    /// after whose step so many tokens are counted, is the place.
    fn seek(
        &mut self,
        before: impl Fn(&BlockHeader) -> bool,
        there: impl Fn(&LayerPass, u64) -> bool,
    ) -> Result<(), TraceError> {
        self.over = true;
        (self.end, self.torn) = (None, None);
        let (start, count) = self.find_block(before)?;
        self.go_to(start)?;
        self.count = count;
        self.block.records_left = 0;
        self.checker.restart();
        loop {
            let open = (self.block.records_left, self.block.at, self.block.context);
            let count = self.count;
            // The iterator stays over where the trace ends before the place.
            let Some(pass) = self.next_pass()? else { return Ok(()) };
            if there(&pass, self.count.tokens()) {
                // Undo the one record: it is the next.
                self.count = count;
                self.checker.restart();
                self.over = false;
                if open.0 == 0 {
                    self.block.records_left = self.block.header.records;
                    self.block.at = 0;
                    self.block.context = Context::new(self.block.header.first_step);
                } else {
                    (self.block.records_left, self.block.at, self.block.context) = open;
                }
                return Ok(());
            }
        }
    }

    /// The last block that begins a step and for which `before` holds: where it lies, and
    /// the counts at its start.
    fn find_block(
        &mut self,
        before: impl Fn(&BlockHeader) -> bool,
    ) -> Result<(u64, Counts), TraceError> {
        let mut found = (self.data_start, Counts::default());
        self.go_to(self.data_start)?;
        loop {
            let at = self.offset;
            let Frame::Block(header) = self.read_frame()? else { return Ok(found) };
            if !before(&header) {
                return Ok(found);
            }
            if !header.continues {
                let counts = Counts {
                    records: header.records_before,
                    layer_tokens: header.layer_tokens_before,
                    tokens_before: header.first_token,
                    last: None,
                };
                found = (at, counts);
            }
            self.go_to(self.offset + u64::from(header.payload_bytes))?;
        }
    }

    fn go_to(&mut self, offset: u64) -> Result<(), TraceError> {
        let (records, bytes) = (self.count.records, self.offset);
        self.input.seek(SeekFrom::Start(offset)).map_err(|source| TraceError::Io {
            operation: "seek",
            records,
            bytes,
            source,
        })?;
        self.offset = offset;
        Ok(())
    }
}
