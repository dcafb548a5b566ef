use super::codec::{Context, decode};
use super::frame::{
    BLOCK_HEADER_BYTES, BLOCK_TAG, BlockHeader, END_BYTES, END_TAG, EndRecord, check_hash, u32_at,
    u64_at,
};
use super::{COMPACT_VERSION, MAGIC, MAX_HEADER_BYTES};
use crate::error::TraceError;
use crate::format::input::{fill, open_file};
use crate::format::jsonl::check::Checker;
use crate::format::jsonl::{
    Dropped, MAX_TOKENS_PER_RECORD, RawHeader, Tail, TornTail, TraceHeader, TraceSummary,
};
use crate::pass::LayerPass;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// Reads a trace in the compact form, in memory for one block.
///
/// Total: any bytes give records and then an error, never a panic. After the first error
/// the iterator is over. Where the input can seek, [`seek_step`](Self::seek_step) and
/// [`seek_token`](Self::seek_token) go to a place by looking at one header a block.
pub struct CompactReader<R> {
    pub(super) input: R,
    pub(super) path: Option<PathBuf>,
    tail: Tail,
    header: TraceHeader,
    pub(super) checker: Checker,
    /// Where the first block begins, and where the next frame does.
    pub(super) data_start: u64,
    pub(super) offset: u64,
    pub(super) block: OpenBlock,
    pub(super) count: Counts,
    pub(super) end: Option<TraceSummary>,
    pub(super) torn: Option<TornTail>,
    pub(super) over: bool,
}

/// The block that is being decoded.
pub(super) struct OpenBlock {
    pub(super) offset: u64,
    pub(super) header: BlockHeader,
    pub(super) payload: Vec<u8>,
    pub(super) at: usize,
    pub(super) records_left: u32,
    pub(super) context: Context,
}

/// What was seen up to the next record.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) records: u64,
    pub(super) layer_tokens: u64,
    /// Tokens (once a step) of the steps before the last record's.
    pub(super) tokens_before: u64,
    /// The step of the last record, and its tokens.
    pub(super) last: Option<(u64, u64)>,
}

impl Counts {
    fn add(&mut self, pass: &LayerPass) {
        let tokens = pass.n_tokens() as u64;
        self.records += 1;
        self.layer_tokens += tokens;
        if self.last.is_none_or(|(step, _)| step != pass.info.step) {
            self.tokens_before = self.tokens();
            self.last = Some((pass.info.step, tokens));
        }
    }

    /// Tokens (once a step) so far.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens_before + self.last.map_or(0, |(_, tokens)| tokens)
    }
}

/// What lies at the place where a block may begin.
pub(super) enum Frame {
    Block(BlockHeader),
    End(EndRecord),
    /// The file stops here: bytes that the frame needs, and that there are.
    Torn {
        needed: u64,
        present: u64,
    },
}

impl CompactReader<BufReader<File>> {
    /// Opens the file at `path` and reads its header.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), naming the file.
    pub fn open(path: &Path, tail: Tail) -> Result<Self, TraceError> {
        let named = Some(path.to_owned());
        let input = open_file(path).map_err(|error| error.in_file(named.as_ref()))?;
        Self::start(input, named, tail)
    }
}

impl<R: Read> CompactReader<R> {
    /// Reads the header of `input`, which should be buffered.
    ///
    /// # Errors
    ///
    /// [`TraceError::NotATrace`], [`TraceError::UnsupportedVersion`],
    /// [`TraceError::Checksum`], a header that no model can have, or what `input` answers.
    pub fn new(input: R, tail: Tail) -> Result<Self, TraceError> {
        Self::start(input, None, tail)
    }

    pub(crate) fn start(
        mut input: R,
        path: Option<PathBuf>,
        tail: Tail,
    ) -> Result<Self, TraceError> {
        let (header, data_start) =
            read_header(&mut input).map_err(|error| error.in_file(path.as_ref()))?;
        Ok(Self {
            input,
            path,
            tail,
            checker: Checker::new(header.shape.clone()),
            header,
            data_start,
            offset: data_start,
            block: OpenBlock {
                offset: data_start,
                header: BlockHeader::default(),
                payload: Vec::new(),
                at: 0,
                records_left: 0,
                context: Context::new(0),
            },
            count: Counts::default(),
            end: None,
            torn: None,
            over: false,
        })
    }

    /// What the trace says about its model.
    #[must_use]
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The end record, once the iterator is over and the file was whole.
    #[must_use]
    pub fn end(&self) -> Option<TraceSummary> {
        self.end
    }

    /// Where the file was torn (`line` counted as in the JSONL form), once the iterator is
    /// over under [`Tail::Tolerate`].
    #[must_use]
    pub fn torn(&self) -> Option<TornTail> {
        self.torn
    }

    pub(super) fn next_pass(&mut self) -> Result<Option<LayerPass>, TraceError> {
        if self.block.records_left == 0 && !self.next_block()? {
            return Ok(None);
        }
        let offset = self.block.offset;
        let shape = self.checker.shape();
        let mut input = &self.block.payload[self.block.at..];
        let most = MAX_TOKENS_PER_RECORD as u64;
        let pass = decode(&mut input, &mut self.block.context, shape, most)
            .map_err(|reason| self.in_record(&reason))?;
        self.block.at = self.block.payload.len() - input.len();
        let first = self.block.records_left == self.block.header.records;
        if first && pass.info.step != self.block.header.first_step {
            let (step, first) = (pass.info.step, self.block.header.first_step);
            let reason = format!("a block whose first step is {first} begins with step {step}");
            return Err(TraceError::Corrupt { offset, reason });
        }
        self.checker
            .accept(self.count.records + 2, &pass.info, pass.experts())
            .map_err(|error| TraceError::InBlock { offset, error: Box::new(error) })?;
        self.count.add(&pass);
        self.block.records_left -= 1;
        if self.block.records_left == 0 && self.block.at != self.block.payload.len() {
            let left = self.block.payload.len() - self.block.at;
            let reason = format!("{left} bytes follow the last record of the block");
            return Err(TraceError::Corrupt { offset, reason });
        }
        Ok(Some(pass))
    }

    fn in_record(&self, reason: &str) -> TraceError {
        let record = self.block.header.records - self.block.records_left;
        let reason = format!("record {record} of the block: {reason}");
        TraceError::Corrupt { offset: self.block.offset, reason }
    }

    /// Goes to the next block; `false` where the trace ends.
    fn next_block(&mut self) -> Result<bool, TraceError> {
        let offset = self.offset;
        match self.read_frame()? {
            Frame::Block(header) => {
                let present = self.read_payload(header)?;
                let (present, needed) = (present as u64, u64::from(header.payload_bytes));
                if present < needed {
                    return self.tear(offset, needed, present).map(|()| false);
                }
                self.check_place(offset, &header)?;
                Ok(true)
            }
            Frame::End(end) => self.close(offset, end).map(|()| false),
            Frame::Torn { needed, present } => self.tear(offset, needed, present).map(|()| false),
        }
    }

    pub(super) fn read_frame(&mut self) -> Result<Frame, TraceError> {
        let offset = self.offset;
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        let tag_bytes = self.fill(&mut bytes[..4])?;
        let tag = [bytes[0], bytes[1], bytes[2], bytes[3]];
        // Zeros are what a file system leaves of blocks that were never written.
        if tag_bytes < 4 || tag == [0; 4] {
            return Ok(Frame::Torn { needed: END_BYTES as u64, present: tag_bytes as u64 });
        }
        let length = match tag {
            BLOCK_TAG => BLOCK_HEADER_BYTES,
            END_TAG => END_BYTES,
            _ => {
                let reason = format!("neither a block nor the end record begins with {tag:02x?}");
                return Err(TraceError::Corrupt { offset, reason });
            }
        };
        let read = 4 + self.fill(&mut bytes[4..length])?;
        if read < length {
            return Ok(Frame::Torn { needed: length as u64, present: read as u64 });
        }
        if tag == BLOCK_TAG {
            return BlockHeader::parse(&bytes, offset).map(Frame::Block);
        }
        let end = bytes[..END_BYTES].try_into().expect("END_BYTES bytes");
        EndRecord::parse(end, offset).map(Frame::End)
    }

    /// Reads the payload of the block whose header ends here; how many bytes there are.
    fn read_payload(&mut self, header: BlockHeader) -> Result<usize, TraceError> {
        let offset = self.offset;
        let mut payload = std::mem::take(&mut self.block.payload);
        payload.resize(header.payload_bytes as usize, 0);
        let present = self.fill(&mut payload);
        self.block = OpenBlock {
            offset: offset - BLOCK_HEADER_BYTES as u64,
            header,
            payload,
            at: 0,
            records_left: 0,
            context: Context::new(header.first_step),
        };
        let present = present?;
        if present == header.payload_bytes as usize {
            check_hash(&self.block.payload, header.payload_hash, offset, "block")?;
            self.block.records_left = header.records;
        }
        Ok(present)
    }

    /// Whether the block follows the one before: none is lost, moved or repeated.
    fn check_place(&self, offset: u64, header: &BlockHeader) -> Result<(), TraceError> {
        let continues = self.count.last.is_some_and(|(step, _)| step == header.first_step);
        let token = if continues { self.count.tokens_before } else { self.count.tokens() };
        let places = [
            ("records before it", header.records_before, self.count.records),
            ("layer tokens before it", header.layer_tokens_before, self.count.layer_tokens),
            ("tokens before it", header.first_token, token),
            ("steps continued", header.continues.into(), continues.into()),
        ];
        for (field, recorded, counted) in places {
            if recorded != counted {
                let reason = format!("a block says {field} = {recorded}, the file has {counted}");
                return Err(TraceError::Corrupt { offset, reason });
            }
        }
        Ok(())
    }

    fn tear(&mut self, offset: u64, needed: u64, present: u64) -> Result<(), TraceError> {
        let records = self.count.records;
        match self.tail {
            Tail::Strict => Err(TraceError::TornBlock { offset, needed, present, records }),
            Tail::Tolerate => {
                self.torn = Some(TornTail { line: records + 2, records });
                Ok(())
            }
        }
    }

    fn close(&mut self, offset: u64, end: EndRecord) -> Result<(), TraceError> {
        let Counts { records, layer_tokens, .. } = self.count;
        let counts = [
            ("records", end.records, records),
            ("layer tokens", end.layer_tokens, layer_tokens),
            ("tokens", end.tokens, self.count.tokens()),
        ];
        for (field, recorded, counted) in counts {
            if recorded != counted {
                let line = records + 2;
                let error = TraceError::CountMismatch { line, field, recorded, counted };
                return Err(TraceError::InBlock { offset, error: Box::new(error) });
            }
        }
        if self.fill(&mut [0])? > 0 {
            let offset = self.offset - 1;
            let reason = "data after the end record".to_owned();
            return Err(TraceError::Corrupt { offset, reason });
        }
        let dropped = Dropped { records: end.dropped_records, tokens: end.dropped_tokens };
        self.end = Some(TraceSummary { records, tokens: layer_tokens, dropped, bytes: 0 });
        Ok(())
    }

    /// Reads until `buffer` is full or the input ends; how many bytes it holds.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, TraceError> {
        let (records, bytes) = (self.count.records, self.offset);
        let read = fill(&mut self.input, buffer).map_err(|source| TraceError::Io {
            operation: "read",
            records,
            bytes,
            source,
        })?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl<R: Read> Iterator for CompactReader<R> {
    type Item = Result<LayerPass, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.next_pass().transpose();
        self.over = !matches!(next, Some(Ok(_)));
        next.map(|item| item.map_err(|error| error.in_file(self.path.as_ref())))
    }
}

/// The header, and the byte after it.
fn read_header(input: &mut impl Read) -> Result<(TraceHeader, u64), TraceError> {
    let not = |reason: String| TraceError::NotATrace { line: 1, reason };
    let mut head = vec![0; 16];
    let io = |source| TraceError::Io { operation: "read", records: 0, bytes: 0, source };
    let present = fill(input, &mut head).map_err(io)?;
    if present < 16 || head[..8] != MAGIC {
        let reason = match present {
            0 => "the file is empty".to_owned(),
            1..16 => format!("{present} bytes are no header of the compact form"),
            _ => format!("begins with {:02x?}, not with the compact form's magic", &head[..8]),
        };
        return Err(not(reason));
    }
    let found = u64::from(u32_at(&head, 8));
    if found != u64::from(COMPACT_VERSION) {
        let supported = COMPACT_VERSION.into();
        return Err(TraceError::UnsupportedVersion { line: 1, found, supported });
    }
    let length = u32_at(&head, 12) as usize;
    if length > MAX_HEADER_BYTES {
        return Err(not(format!("a header of {length} bytes, at most {MAX_HEADER_BYTES}")));
    }
    head.resize(16 + length + 8, 0);
    let present = 16 + fill(input, &mut head[16..]).map_err(io)?;
    if present < head.len() {
        return Err(not(format!("the header needs {} bytes, has {present}", head.len())));
    }
    let recorded = u64_at(&head, 16 + length);
    check_hash(&head[..16 + length], recorded, 0, "header")?;
    let raw: RawHeader = serde_json::from_slice(&head[16..16 + length])
        .map_err(|error| TraceError::Json { line: 1, message: error.to_string() })?;
    Ok((TraceHeader::from_raw(raw, 1)?, head.len() as u64))
}
