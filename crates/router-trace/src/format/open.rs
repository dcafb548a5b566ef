use super::Format;
use super::colibri::ColibriRecords;
use super::compact::CompactReader;
use super::infer::{Known, infer};
use super::input::Origin;
use super::jsonl::{Dropped, JsonlReader, Tail, TornTail, TraceHeader, TraceSummary};
use super::plain::PlainRecords;
use super::sniff::{Sniffed, sniff};
use super::waste::WasteRecords;
use crate::canonical::{Canonical, CanonicalCounts, CanonicalOptions, FirstPass, Notice, Records};
use crate::error::TraceError;
use crate::ids::ModelShape;
use crate::pass::LayerPass;
use serde::Serialize;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a trace is opened. The default recognises the format, takes the shape from the file
/// and refuses a torn one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpenOptions {
    /// The format; recognised where it is not said.
    pub format: Option<Format>,
    /// What is known of the model.
    pub shape: ShapeHints,
    /// What to do with a torn file.
    pub tail: Tail,
    /// How rows of other programs are read.
    pub canonical: CanonicalOptions,
}

/// What is known of a model whose trace does not say it. What a trace does say must agree.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShapeHints {
    /// The layers that route, ascending, numbered as in the checkpoint.
    pub moe_layers: Option<Vec<u16>>,
    /// Routed experts in each of them.
    pub n_experts: Option<u16>,
    /// Experts a token chooses in a layer.
    pub top_k: Option<u16>,
    /// The model's name, for a trace that has none.
    pub model_name: Option<String>,
    /// Bytes of one expert, for a trace that does not say it.
    pub expert_bytes: Option<u64>,
}

/// What was read, once a trace is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct ReadSummary {
    /// The format of the file.
    pub format: Format,
    /// Layer passes given.
    pub records: u64,
    /// Tokens in them (a token counts once a layer).
    pub tokens: u64,
    /// What the recorder lost, or what was no decoding: prompts and a dry run.
    pub dropped: Dropped,
    /// Whether the file stops before its end.
    pub torn: bool,
    /// What the typing found, where the file carries no types.
    pub canonical: Option<CanonicalCounts>,
}

/// Reads a trace of any format, pass by pass.
///
/// After the first error the iterator is over.
pub struct TraceReader {
    source: Source,
    format: Format,
    path: Option<PathBuf>,
    header: TraceHeader,
    inferred: Option<Notice>,
    records: u64,
    tokens: u64,
    over: bool,
    failed: bool,
}

enum Source {
    Jsonl(Box<JsonlReader<Box<dyn BufRead + Send>>>),
    Compact(Box<CompactReader<Box<dyn BufRead + Send>>>),
    Foreign(Box<Canonical<Box<dyn Records>>>),
}

/// Opens the trace at `path`, whatever its format, and reads its header.
///
/// A foreign format without a shape is read once before, to find the shape that
/// [`OpenOptions::shape`] does not give; [`TraceReader::notices`] says so.
///
/// # Errors
///
/// All name the file: what the system answers, [`TraceError::NotATrace`] where no format is
/// recognised, [`TraceError::CountsOnly`] for a usage file, [`TraceError::ShapeUnknown`] for a
/// pipe whose format or shape must be given, [`TraceError::ShapeMismatch`] where the file and
/// the hints disagree, and what the format's reader says of the header.
pub fn open(path: &Path, options: &OpenOptions) -> Result<TraceReader, TraceError> {
    open_origin(&Origin::File(path.to_owned()), options)
}

/// As [`open`], from bytes in memory: a trace that is part of a program, or a test's.
///
/// # Errors
///
/// As [`open`], without a file to name.
pub fn open_bytes(
    bytes: impl Into<Arc<[u8]>>,
    options: &OpenOptions,
) -> Result<TraceReader, TraceError> {
    open_origin(&Origin::Memory(bytes.into()), options)
}

/// The first pass that the traces at `paths` share bit by bit, which is a scheduler's dry run
/// if their prompts differ: to give as [`DryRun::Known`](crate::canonical::DryRun::Known).
///
/// `None` for fewer than two traces, for one without rows, and where two first passes differ.
/// Only formats without types are looked at. Traces of the same prompt, or of prompts that
/// begin alike and are traced from their first token, share a first pass that is no dry run.
///
/// # Errors
///
/// As [`open`], and what is wrong in the first pass of a trace.
pub fn shared_first_pass(
    paths: &[PathBuf],
    options: &OpenOptions,
) -> Result<Option<FirstPass>, TraceError> {
    let mut shared = None;
    for path in paths {
        let Source::Foreign(canonical) = open(path, options)?.source else { return Ok(None) };
        let first = canonical.first_pass().map_err(|error| error.in_file(Some(path)))?;
        match (shared, first) {
            (_, None) => return Ok(None),
            (Some(shared), Some(first)) if shared != first => return Ok(None),
            _ => shared = first,
        }
    }
    Ok(shared.filter(|_| paths.len() > 1))
}

fn open_origin(origin: &Origin, options: &OpenOptions) -> Result<TraceReader, TraceError> {
    open_unnamed(origin, options).map_err(|error| error.in_file(origin.path()))
}

fn open_unnamed(origin: &Origin, options: &OpenOptions) -> Result<TraceReader, TraceError> {
    let format = match options.format {
        Some(format) => format,
        None if !origin.can_open_again() => {
            return Err(TraceError::ShapeUnknown { field: "format" });
        }
        None => match sniff(&mut origin.open()?)? {
            Sniffed::Trace(format) => format,
            Sniffed::Usage(format) => return Err(TraceError::CountsOnly { format }),
        },
    };
    let input = origin.open()?;
    let named = origin.path().cloned();
    let (source, header, inferred) = match format {
        Format::Jsonl => {
            let reader = JsonlReader::start(input, named.clone(), options.tail)?;
            let header = options.shape.complete(reader.header())?;
            (Source::Jsonl(Box::new(reader)), header, None)
        }
        Format::Compact => {
            let reader = CompactReader::start(input, named.clone(), options.tail)?;
            let header = options.shape.complete(reader.header())?;
            (Source::Compact(Box::new(reader)), header, None)
        }
        Format::Colibri | Format::Waste | Format::Plain => {
            open_foreign(origin, input, format, options)?
        }
    };
    Ok(TraceReader {
        source,
        format,
        path: named,
        header,
        inferred,
        records: 0,
        tokens: 0,
        over: false,
        failed: false,
    })
}

type Opened = (Source, TraceHeader, Option<Notice>);

fn open_foreign(
    origin: &Origin,
    input: Box<dyn BufRead + Send>,
    format: Format,
    options: &OpenOptions,
) -> Result<Opened, TraceError> {
    let hints = &options.shape;
    let (records, said) = records(input, format, options)?;
    let (mut name, mut expert_bytes) = (String::new(), None);
    let mut known = Known {
        moe_layers: hints.moe_layers.clone(),
        n_experts: hints.n_experts,
        top_k: hints.top_k,
    };
    if let Some(said) = said {
        hints.check(&said.shape)?;
        let ModelShape { moe_layers, n_experts, top_k } = said.shape;
        known =
            Known { moe_layers: Some(moe_layers), n_experts: Some(n_experts), top_k: Some(top_k) };
        (name, expert_bytes) = (said.model_name, said.expert_bytes);
    }
    let (shape, inferred) = match known.whole() {
        Some(shape) => (shape, None),
        None if !origin.can_open_again() => {
            return Err(TraceError::ShapeUnknown { field: known.missing() });
        }
        None => {
            let (mut rows, _) = self::records(origin.open()?, format, options)?;
            let shape = infer(&mut *rows, known, &options.canonical.skip_layers)?;
            (shape.clone(), Some(Notice::ShapeInferred { shape }))
        }
    };
    if name.is_empty() {
        name = hints.model_name.clone().unwrap_or_default();
    }
    let header = TraceHeader {
        model_name: name,
        shape: shape.clone(),
        expert_bytes: expert_bytes.or(hints.expert_bytes),
        created_by: format!("another program, read as {format}"),
    };
    header.check(1)?;
    let canonical = Canonical::new(records, shape, options.canonical.clone());
    Ok((Source::Foreign(Box::new(canonical)), header, inferred))
}

/// The rows of a foreign format, and what its header says if it has one.
fn records(
    input: Box<dyn BufRead + Send>,
    format: Format,
    options: &OpenOptions,
) -> Result<(Box<dyn Records>, Option<Said>), TraceError> {
    let tail = options.tail;
    Ok(match format {
        Format::Colibri => (Box::new(ColibriRecords::new(input, tail)), None),
        Format::Waste => {
            let layers = options.shape.moe_layers.clone();
            (Box::new(WasteRecords::new(input, tail, layers)), None)
        }
        _ => {
            let records = PlainRecords::new(input, tail)?;
            let said = records.header().map(|header| Said {
                model_name: header.model.clone(),
                shape: header.shape(),
                expert_bytes: header.expert_bytes,
            });
            (Box::new(records), said)
        }
    })
}

/// What the header of a foreign format says.
struct Said {
    model_name: String,
    shape: ModelShape,
    expert_bytes: Option<u64>,
}

impl ShapeHints {
    /// Whether a shape is what was said of it.
    fn check(&self, shape: &ModelShape) -> Result<(), TraceError> {
        fn same<T: PartialEq + std::fmt::Debug>(
            field: &'static str,
            said: Option<&T>,
            found: &T,
        ) -> Result<(), TraceError> {
            match said.filter(|said| *said != found) {
                None => Ok(()),
                Some(said) => Err(TraceError::ShapeMismatch {
                    field,
                    expected: format!("{said:?}"),
                    found: format!("{found:?}"),
                }),
            }
        }
        same("model.moe_layers", self.moe_layers.as_ref(), &shape.moe_layers)?;
        same("model.n_experts", self.n_experts.as_ref(), &shape.n_experts)?;
        same("model.top_k", self.top_k.as_ref(), &shape.top_k)
    }

    /// The header of a file that has one, with what it leaves open.
    fn complete(&self, header: &TraceHeader) -> Result<TraceHeader, TraceError> {
        self.check(&header.shape)?;
        let mut header = header.clone();
        header.expert_bytes = header.expert_bytes.or(self.expert_bytes);
        if header.model_name.is_empty() {
            header.model_name = self.model_name.clone().unwrap_or_default();
        }
        header.check(1)?;
        Ok(header)
    }
}

impl TraceReader {
    /// What the trace says about its model, with the hints and what was found in its rows.
    #[must_use]
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The file's format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// What is odd so far, but does not keep the trace from being used. Complete once the
    /// iterator is over.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        let torn = |torn: Option<TornTail>| {
            torn.map(|TornTail { line, records }| Notice::Torn { line, records, unused: 0 })
        };
        let mut notices: Vec<_> = self.inferred.iter().cloned().collect();
        match &self.source {
            Source::Jsonl(reader) => notices.extend(torn(reader.torn())),
            Source::Compact(reader) => notices.extend(torn(reader.torn())),
            Source::Foreign(canonical) => notices.extend_from_slice(canonical.notices()),
        }
        notices
    }

    /// What was read, once the iterator is over without an error.
    #[must_use]
    pub fn summary(&self) -> Option<ReadSummary> {
        let told = |end: Option<TraceSummary>| end.map(|end| end.dropped).unwrap_or_default();
        let (dropped, torn, canonical) = match &self.source {
            Source::Jsonl(reader) => (told(reader.end()), reader.torn().is_some(), None),
            Source::Compact(reader) => (told(reader.end()), reader.torn().is_some(), None),
            Source::Foreign(canonical) => {
                let counts = canonical.counts();
                let dropped = Dropped {
                    records: counts.prefill_records + counts.dry_run_records,
                    tokens: counts.prefill_tokens + counts.dry_run_tokens,
                };
                let torn = |notice: &Notice| matches!(notice, Notice::Torn { .. });
                (dropped, canonical.notices().iter().any(torn), Some(counts))
            }
        };
        let Self { format, records, tokens, .. } = *self;
        let whole = self.over && !self.failed;
        whole.then_some(ReadSummary { format, records, tokens, dropped, torn, canonical })
    }
}

impl Iterator for TraceReader {
    type Item = Result<LayerPass, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = match &mut self.source {
            Source::Jsonl(reader) => reader.next(),
            Source::Compact(reader) => reader.next(),
            Source::Foreign(canonical) => canonical.next(),
        };
        match &next {
            Some(Ok(pass)) => {
                self.records += 1;
                self.tokens += pass.n_tokens() as u64;
            }
            Some(Err(_)) => (self.over, self.failed) = (true, true),
            None => self.over = true,
        }
        next.map(|item| item.map_err(|error| error.in_file(self.path.as_ref())))
    }
}
