//! Plans on disk: what a predictor guessed, or what an oracle knows, to be replayed unchanged.
//!
//! JSON lines, gzip-compressed where the name ends in `.gz`. The first line is the header, every
//! other one a plan, in the order in which they were posted:
//!
//! ```text
//! {"format":"pilot-plan","version":1,"model":"OLMoE","predictor":"oracle, next layer","shape":{"moe_layers":[0,1],"n_experts":64,"top_k":8}}
//! {"step":0,"layer":1,"experts":[7,16,18],"p":[1.0,0.5,0.25]}
//! ```
//!
//! The reader is total: any bytes give plans and then an error that names its line, in memory
//! bounded by one line.

use crate::plan::{Hint, MAX_WIDTH, Plan};
use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use router_trace::ModelShape;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// The `format` of the header.
pub const PLAN_FORMAT: &str = "pilot-plan";
/// The `version` that is written, and the only one that is read.
pub const PLAN_VERSION: u32 = 1;
/// The longest line that is read, in bytes: a plan has at most [`MAX_WIDTH`] hints, a header's
/// shape at most 65,536 layers.
pub const MAX_LINE_BYTES: usize = 1 << 20;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The first line of a plan file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PlanHeader {
    format: String,
    version: u32,
    /// The model that the plans are for.
    pub model: String,
    /// What made the plans, with its settings.
    pub predictor: String,
    /// The model's shape: plans name its layers and experts only.
    pub shape: ModelShape,
}

/// What is wrong with a plan file, or with writing one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// The system refused.
    #[error("{}: {operation} failed: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// Its answer.
        #[source]
        source: io::Error,
    },
    /// The first line is no header of a plan file.
    #[error("{}: not a plan file: {reason}", path.display())]
    NotPlans {
        /// The file.
        path: PathBuf,
        /// What stands there.
        reason: String,
    },
    /// A version that this reader does not know.
    #[error("{}: plan file version {found}, this program reads {PLAN_VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A line that is no plan of the header's model.
    #[error("{}: line {line}: {reason}", path.display())]
    BadLine {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong, with the value found.
        reason: String,
    },
    /// The last line is cut: whoever wrote the file did not come to its end.
    #[error("{}: line {line} is cut: the file is torn", path.display())]
    Torn {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
    },
}

impl PlanHeader {
    /// The header of plans for `model`, made by `predictor`.
    #[must_use]
    pub fn new(model: &str, predictor: &str, shape: ModelShape) -> Self {
        Self {
            format: PLAN_FORMAT.to_owned(),
            version: PLAN_VERSION,
            model: model.to_owned(),
            predictor: predictor.to_owned(),
            shape,
        }
    }
}

#[derive(Serialize)]
struct LineOut<'a> {
    step: u64,
    layer: u16,
    experts: &'a [u16],
    p: &'a [f32],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LineIn {
    step: u64,
    layer: u16,
    experts: Vec<u16>,
    p: Vec<f32>,
}

/// Writes plans in the order in which they are posted.
pub struct PlanWriter {
    path: PathBuf,
    out: Output,
    shape: ModelShape,
    experts: Vec<u16>,
    p: Vec<f32>,
    line: u64,
}

enum Output {
    Plain(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
}

impl std::fmt::Debug for PlanWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanWriter").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(out) => out.write(bytes),
            Self::Gzip(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Gzip(out) => out.flush(),
        }
    }
}

impl PlanWriter {
    /// Begin the file at `path`, replacing what is there.
    ///
    /// # Errors
    /// [`PlanFileError::Io`].
    pub fn create(path: &Path, header: &PlanHeader) -> Result<Self, PlanFileError> {
        let file = File::create(path).map_err(|source| io_error(path, "create", source))?;
        let out = BufWriter::new(file);
        let out = if path.extension().is_some_and(|extension| extension == "gz") {
            Output::Gzip(GzEncoder::new(out, Compression::default()))
        } else {
            Output::Plain(out)
        };
        let (experts, p) = (Vec::with_capacity(MAX_WIDTH), Vec::with_capacity(MAX_WIDTH));
        let shape = header.shape.clone();
        let mut writer = Self { path: path.to_owned(), out, shape, experts, p, line: 1 };
        writer.write_line(header)?;
        Ok(writer)
    }

    /// Append a plan.
    ///
    /// # Errors
    /// A plan that is none of the header's model, which no reader would take;
    /// [`PlanFileError::Io`].
    pub fn write(&mut self, plan: &Plan) -> Result<(), PlanFileError> {
        self.line += 1;
        self.experts.clear();
        self.p.clear();
        for hint in plan.hints() {
            self.experts.push(hint.expert);
            self.p.push(hint.probability);
        }
        check(&self.shape, plan.layer(), &self.experts).map_err(|reason| {
            PlanFileError::BadLine { path: self.path.clone(), line: self.line, reason }
        })?;
        let (experts, p) = (std::mem::take(&mut self.experts), std::mem::take(&mut self.p));
        let line = LineOut { step: plan.step(), layer: plan.layer(), experts: &experts, p: &p };
        let written = self.write_line(&line);
        (self.experts, self.p) = (experts, p);
        written
    }

    /// End the file: without this call a compressed one is torn.
    ///
    /// # Errors
    /// [`PlanFileError::Io`].
    pub fn finish(self) -> Result<(), PlanFileError> {
        let path = self.path;
        let flushed = match self.out {
            Output::Plain(mut out) => out.flush(),
            Output::Gzip(out) => out.finish().and_then(|mut out| out.flush()),
        };
        flushed.map_err(|source| io_error(&path, "write", source))
    }

    fn write_line(&mut self, line: &impl Serialize) -> Result<(), PlanFileError> {
        let written = serde_json::to_writer(&mut self.out, line).map_err(io::Error::from);
        written
            .and_then(|()| self.out.write_all(b"\n"))
            .map_err(|source| io_error(&self.path, "write", source))
    }
}

/// Reads plans in the order in which they were posted. After the first error it is over.
pub struct PlanReader {
    path: PathBuf,
    input: Box<dyn BufRead + Send>,
    header: PlanHeader,
    bytes: Vec<u8>,
    line: u64,
    over: bool,
}

impl std::fmt::Debug for PlanReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanReader").field("path", &self.path).finish_non_exhaustive()
    }
}

impl PlanReader {
    /// Open the file at `path`, compressed or not, whatever its name, and read its header.
    ///
    /// # Errors
    /// [`PlanFileError`].
    pub fn open(path: &Path) -> Result<Self, PlanFileError> {
        let file = File::open(path).map_err(|source| io_error(path, "open", source))?;
        Self::new(path, BufReader::new(file))
    }

    /// The same from bytes in memory; errors name `path`.
    ///
    /// # Errors
    /// As for [`PlanReader::open`].
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, PlanFileError> {
        Self::new(path, io::Cursor::new(bytes))
    }

    fn new(path: &Path, mut input: impl BufRead + Send + 'static) -> Result<Self, PlanFileError> {
        let head = input.fill_buf().map_err(|source| io_error(path, "read", source))?;
        let input: Box<dyn BufRead + Send> = if head.starts_with(&GZIP_MAGIC) {
            Box::new(BufReader::new(MultiGzDecoder::new(input)))
        } else {
            Box::new(input)
        };
        let shape = ModelShape { moe_layers: Vec::new(), n_experts: 0, top_k: 0 };
        let header = PlanHeader::new("", "", shape);
        let path = path.to_owned();
        let mut reader = Self { path, input, header, bytes: Vec::new(), line: 0, over: false };
        reader.header = reader.read_header()?;
        Ok(reader)
    }

    /// What the plans are for.
    #[must_use]
    pub fn header(&self) -> &PlanHeader {
        &self.header
    }

    fn read_header(&mut self) -> Result<PlanHeader, PlanFileError> {
        let path = self.path.clone();
        let not = |reason: String| PlanFileError::NotPlans { path: path.clone(), reason };
        if !self.next_line()? {
            return Err(not("it is empty".to_owned()));
        }
        let header: PlanHeader = serde_json::from_slice(&self.bytes)
            .map_err(|error| not(format!("line 1 is no header: {error}")))?;
        if header.format != PLAN_FORMAT {
            return Err(not(format!("its format is {:?}, not {PLAN_FORMAT:?}", header.format)));
        }
        if header.version != PLAN_VERSION {
            return Err(PlanFileError::Version { path, found: header.version });
        }
        if !header.shape.moe_layers.is_sorted_by(|one, next| one < next) {
            return Err(not("the layers of its shape are not ascending".to_owned()));
        }
        Ok(header)
    }

    /// The next line that is not blank; `false` at the end.
    fn next_line(&mut self) -> Result<bool, PlanFileError> {
        loop {
            self.bytes.clear();
            let most = MAX_LINE_BYTES as u64 + 1;
            let read = (&mut self.input).take(most).read_until(b'\n', &mut self.bytes);
            let read = read.map_err(|source| match source.kind() {
                io::ErrorKind::UnexpectedEof => {
                    PlanFileError::Torn { path: self.path.clone(), line: self.line + 1 }
                }
                _ => io_error(&self.path, "read", source),
            })?;
            if read == 0 {
                return Ok(false);
            }
            self.line += 1;
            if read > MAX_LINE_BYTES {
                return Err(self.bad(format!("longer than {MAX_LINE_BYTES} bytes")));
            }
            if self.bytes.last() != Some(&b'\n') {
                return Err(PlanFileError::Torn { path: self.path.clone(), line: self.line });
            }
            if !self.bytes.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn next_plan(&mut self) -> Result<Option<Plan>, PlanFileError> {
        if !self.next_line()? {
            return Ok(None);
        }
        let line: LineIn =
            serde_json::from_slice(&self.bytes).map_err(|error| self.bad(error.to_string()))?;
        if line.experts.len() != line.p.len() {
            let (experts, p) = (line.experts.len(), line.p.len());
            return Err(self.bad(format!("{experts} experts and {p} probabilities")));
        }
        check(&self.header.shape, line.layer, &line.experts).map_err(|reason| self.bad(reason))?;
        if let Some(p) = line.p.iter().find(|p| !(0.0..=1.0).contains(*p)) {
            return Err(self.bad(format!("a probability of {p}")));
        }
        if !line.p.is_sorted_by(|one, next| one >= next) {
            return Err(self.bad("the likeliest expert does not come first".to_owned()));
        }
        let mut plan = Plan::new(line.step, line.layer);
        let hints = line.experts.iter().zip(&line.p);
        plan.set_ranked(hints.map(|(&expert, &probability)| Hint { expert, probability }));
        Ok(Some(plan))
    }

    fn bad(&self, reason: String) -> PlanFileError {
        PlanFileError::BadLine { path: self.path.clone(), line: self.line, reason }
    }
}

impl Iterator for PlanReader {
    type Item = Result<Plan, PlanFileError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.next_plan().transpose();
        self.over = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Whether these are experts of one layer of this model, each once and not too many.
fn check(shape: &ModelShape, layer: u16, experts: &[u16]) -> Result<(), String> {
    if shape.moe_layers.binary_search(&layer).is_err() {
        return Err(format!("layer {layer} is none of the model's {}", shape.moe_layers.len()));
    }
    if experts.len() > MAX_WIDTH {
        return Err(format!("{} experts, at most {MAX_WIDTH} are possible", experts.len()));
    }
    for (place, expert) in experts.iter().enumerate() {
        if *expert >= shape.n_experts {
            return Err(format!("expert {expert} of {} experts", shape.n_experts));
        }
        if experts[..place].contains(expert) {
            return Err(format!("expert {expert} twice"));
        }
    }
    Ok(())
}

fn io_error(path: &Path, operation: &'static str, source: io::Error) -> PlanFileError {
    PlanFileError::Io { path: path.to_owned(), operation, source }
}

#[cfg(test)]
#[path = "plan_file_tests.rs"]
mod tests;
