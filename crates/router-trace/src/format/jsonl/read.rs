use super::check::Checker;
use super::write::{Dropped, TraceSummary};
use super::{FORMAT_NAME, FORMAT_VERSION, MAX_TOKENS_PER_RECORD, RawEnd, RawHeader, TraceHeader};
use crate::error::TraceError;
use crate::format::input::open_file;
use crate::format::line::Line;
use crate::pass::{LayerPass, PassInfo};
use crate::route::{MAX_TOP_K, PassKind, Phase};
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// What to do with a file that stops without its end record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tail {
    /// A torn file is an error.
    #[default]
    Strict,
    /// The whole records before the tear are used; [`JsonlReader::torn`] reports it.
    Tolerate,
}

/// Where a file was torn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct TornTail {
    /// The 1-based line where the file stops.
    pub line: u64,
    /// Whole records before it.
    pub records: u64,
}

impl fmt::Display for TornTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, records } = self;
        write!(f, "line {line}: torn: no end record; {records} whole records before it are used")
    }
}

/// Reads a trace record by record, in memory bounded by one line.
///
/// Total: any bytes give records and then an error, never a panic. After the first error
/// the iterator is over.
pub struct JsonlReader<R> {
    input: R,
    path: Option<PathBuf>,
    tail: Tail,
    header: TraceHeader,
    checker: Checker,
    line: Line,
    records: u64,
    tokens: u64,
    end: Option<TraceSummary>,
    torn: Option<TornTail>,
    over: bool,
}

/// A whole trace in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// What the trace says about its model.
    pub header: TraceHeader,
    /// Its records in file order.
    pub passes: Vec<LayerPass>,
    /// The end record; `None` in a torn file.
    pub end: Option<TraceSummary>,
    /// Where the file was torn, if it was.
    pub torn: Option<TornTail>,
}

/// Reads the whole file at `path`.
///
/// # Errors
///
/// The first error of [`JsonlReader`], naming the file.
pub fn read_all(path: &Path, tail: Tail) -> Result<Trace, TraceError> {
    let mut reader = JsonlReader::open(path, tail)?;
    let passes = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
    Ok(Trace { passes, end: reader.end, torn: reader.torn, header: reader.header })
}

impl JsonlReader<BufReader<File>> {
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

impl<R: BufRead> JsonlReader<R> {
    /// Reads the header of `input`.
    ///
    /// # Errors
    ///
    /// [`TraceError::NotATrace`], [`TraceError::UnsupportedVersion`], a header that no
    /// model can have, or what `input` answers.
    pub fn new(input: R, tail: Tail) -> Result<Self, TraceError> {
        Self::start(input, None, tail)
    }

    pub(crate) fn start(
        mut input: R,
        path: Option<PathBuf>,
        tail: Tail,
    ) -> Result<Self, TraceError> {
        let mut line = Line::default();
        let header =
            read_header(&mut input, &mut line).map_err(|error| error.in_file(path.as_ref()))?;
        Ok(Self {
            input,
            path,
            tail,
            checker: Checker::new(header.shape.clone()),
            header,
            line,
            records: 0,
            tokens: 0,
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

    /// Where the file was torn, once the iterator is over under [`Tail::Tolerate`].
    #[must_use]
    pub fn torn(&self) -> Option<TornTail> {
        self.torn
    }

    fn next_pass(&mut self) -> Result<Option<LayerPass>, TraceError> {
        if !self.line.next(&mut self.input, self.records)? {
            return self.tear(self.line.number + 1);
        }
        let number = self.line.number;
        let raw: RawLine = match serde_json::from_slice(&self.line.bytes) {
            Ok(raw) => raw,
            // Half a line at the end of the file is what a dying writer leaves.
            Err(_) if !self.line.terminated => return self.tear(number),
            Err(error) => return Err(json_error(number, &error)),
        };
        if let Some(end) = raw.end {
            return self.close(number, end).map(|()| None);
        }
        let pass = raw.into_pass(number, &mut self.checker)?;
        self.records += 1;
        self.tokens += pass.n_tokens() as u64;
        Ok(Some(pass))
    }

    fn tear(&mut self, line: u64) -> Result<Option<LayerPass>, TraceError> {
        let records = self.records;
        match self.tail {
            Tail::Strict => Err(TraceError::Torn { line, records }),
            Tail::Tolerate => {
                self.torn = Some(TornTail { line, records });
                Ok(None)
            }
        }
    }

    fn close(&mut self, line: u64, end: RawEnd) -> Result<(), TraceError> {
        let counts = [("records", end.records, self.records), ("tokens", end.tokens, self.tokens)];
        for (field, recorded, counted) in counts {
            if recorded != counted {
                return Err(TraceError::CountMismatch { line, field, recorded, counted });
            }
        }
        if self.line.next(&mut self.input, self.records)? {
            return Err(TraceError::AfterEnd { line: self.line.number });
        }
        let dropped = Dropped { records: end.dropped_records, tokens: end.dropped_tokens };
        let (records, tokens) = (self.records, self.tokens);
        self.end = Some(TraceSummary { records, tokens, dropped, bytes: 0 });
        Ok(())
    }
}

impl<R: BufRead> Iterator for JsonlReader<R> {
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

fn read_header(input: &mut impl BufRead, line: &mut Line) -> Result<TraceHeader, TraceError> {
    /// What every version of the format has.
    #[derive(Deserialize)]
    struct Peek {
        format: Option<String>,
        version: Option<u64>,
    }
    if !line.next(input, 0)? {
        return Err(TraceError::NotATrace { line: 1, reason: "the file is empty".to_owned() });
    }
    let number = line.number;
    let bytes = line.text();
    let peek: Peek = serde_json::from_slice(bytes)
        .map_err(|error| TraceError::NotATrace { line: number, reason: error.to_string() })?;
    if peek.format.as_deref() != Some(FORMAT_NAME) {
        let reason = format!("field `format` is not \"{FORMAT_NAME}\"");
        return Err(TraceError::NotATrace { line: number, reason });
    }
    let found = peek.version.ok_or(TraceError::MissingField { line: number, field: "version" })?;
    if found != FORMAT_VERSION {
        let supported = FORMAT_VERSION;
        return Err(TraceError::UnsupportedVersion { line: number, found, supported });
    }
    let raw: RawHeader =
        serde_json::from_slice(bytes).map_err(|error| json_error(number, &error))?;
    TraceHeader::from_raw(raw, number)
}

fn json_error(line: u64, error: &serde_json::Error) -> TraceError {
    TraceError::Json { line, message: error.to_string() }
}

/// A record or the end record, before any of it is believed.
#[derive(Deserialize)]
struct RawLine {
    end: Option<RawEnd>,
    step: Option<u64>,
    pos: Option<u64>,
    layer: Option<u64>,
    phase: Option<Phase>,
    pass: Option<PassKind>,
    experts: Option<RawRoutes>,
}

impl RawLine {
    fn into_pass(self, line: u64, checker: &mut Checker) -> Result<LayerPass, TraceError> {
        let missing = |field| TraceError::MissingField { line, field };
        let wide_layer = self.layer.ok_or_else(|| missing("layer"))?;
        let layer =
            u16::try_from(wide_layer).map_err(|_| checker.unknown_layer(line, wide_layer))?;
        let info = PassInfo {
            step: self.step.ok_or_else(|| missing("step"))?,
            position: self.pos.ok_or_else(|| missing("pos"))?,
            layer,
            phase: self.phase.ok_or_else(|| missing("phase"))?,
            kind: self.pass.ok_or_else(|| missing("pass"))?,
        };
        let routes = self.experts.ok_or_else(|| missing("experts"))?;
        let top_k = checker.shape().top_k;
        if routes.tokens == 0 || routes.tokens > MAX_TOKENS_PER_RECORD {
            let (tokens, limit) = (routes.tokens, MAX_TOKENS_PER_RECORD);
            return Err(TraceError::TokenCount { line, tokens, limit });
        }
        for (token, found) in routes.widths() {
            if found != usize::from(top_k) {
                return Err(TraceError::WrongWidth { line, token, layer, found, top_k });
            }
        }
        let n_experts = checker.shape().n_experts;
        let mut experts = Vec::with_capacity(routes.ids.len());
        for (at, &expert) in routes.ids.iter().enumerate() {
            let token = at / usize::from(top_k);
            let id = u16::try_from(expert).ok().filter(|&id| id < n_experts);
            experts.push(id.ok_or(TraceError::UnknownExpert {
                line,
                token,
                layer,
                expert,
                n_experts,
            })?);
        }
        checker.accept(line, &info, &experts)?;
        Ok(LayerPass::new(info, top_k, experts).expect("each row was found to have top_k ids"))
    }
}

/// The `experts` field, flat. Rows that are too many or too wide are counted, not kept.
#[derive(Default)]
struct RawRoutes {
    ids: Vec<i64>,
    tokens: usize,
    first_width: usize,
    /// The first row whose width is not that of row 0: its token and width.
    odd: Option<(usize, usize)>,
}

impl RawRoutes {
    fn widths(&self) -> impl Iterator<Item = (usize, usize)> {
        std::iter::once((0, self.first_width)).chain(self.odd)
    }
}

impl<'de> Deserialize<'de> for RawRoutes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Rows;
        impl<'de> Visitor<'de> for Rows {
            type Value = RawRoutes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of routes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<RawRoutes, A::Error> {
                let mut routes = RawRoutes::default();
                while let Some(row) = rows.next_element::<RawRoute>()? {
                    let token = routes.tokens;
                    routes.tokens += 1;
                    if token == 0 {
                        routes.first_width = row.width;
                    } else if row.width != routes.first_width && routes.odd.is_none() {
                        routes.odd = Some((token, row.width));
                    }
                    if routes.odd.is_none() && routes.tokens <= MAX_TOKENS_PER_RECORD {
                        routes.ids.extend_from_slice(&row.ids[..row.width.min(MAX_TOP_K)]);
                    }
                }
                Ok(routes)
            }
        }
        deserializer.deserialize_seq(Rows)
    }
}

/// One row of the `experts` field: its width, and as many ids as a route may have.
struct RawRoute {
    ids: [i64; MAX_TOP_K],
    width: usize,
}

impl<'de> Deserialize<'de> for RawRoute {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Row;
        impl<'de> Visitor<'de> for Row {
            type Value = RawRoute;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of expert ids")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut ids: A) -> Result<RawRoute, A::Error> {
                let mut row = RawRoute { ids: [0; MAX_TOP_K], width: 0 };
                while let Some(id) = ids.next_element::<i64>()? {
                    if let Some(place) = row.ids.get_mut(row.width) {
                        *place = id;
                    }
                    row.width += 1;
                }
                Ok(row)
            }
        }
        deserializer.deserialize_seq(Row)
    }
}
