use crate::ids::ExpertId;
use std::io;
use std::path::PathBuf;

/// Everything that can be wrong with a trace, or with writing one.
///
/// [`TraceError::kind`] gives the stable kebab-case category of each variant. Line numbers
/// are 1-based; the header is line 1. Tokens are 0-based inside their record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The operating system refused an operation on the trace.
    #[error("{operation} failed after {records} whole records ({bytes} bytes): {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// Whole records read or written before.
        records: u64,
        /// Bytes read or written before.
        bytes: u64,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The error in `error` was met in the file at `path`.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong in it. Part of this error's text, so not its source.
        error: Box<TraceError>,
    },
    /// A setting of an analysis is outside its limits.
    #[error("setting `{name}` is {value}, must be {min} to {max}")]
    SettingRange {
        /// The setting.
        name: &'static str,
        /// The value asked for.
        value: u64,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
    /// A pass is not of the model that it is counted for.
    #[error("step {step} layer {layer}: {field} is {value}, the model has {known} of them")]
    ForeignPass {
        /// The pass's step.
        step: u64,
        /// The pass's layer.
        layer: u16,
        /// What does not fit: `layer`, `expert` or `top_k`.
        field: &'static str,
        /// Its value.
        value: u64,
        /// Layers, experts a layer, or experts a token that the model has.
        known: u64,
    },
    /// A figure or a page cannot be drawn.
    #[error("plot `{title}`: {message}")]
    Plot {
        /// The title of the figure or page.
        title: String,
        /// What the library for it says.
        message: String,
    },
    /// A route that is counted names one expert twice.
    #[error("layer {layer} token {token}: expert {expert} twice in one route")]
    RepeatedExpert {
        /// The layer.
        layer: u16,
        /// The token among those counted of this layer and phase, from 0.
        token: u64,
        /// The expert.
        expert: u16,
    },
    /// The first line is not a trace header.
    #[error("line {line}: no trace header: {reason}")]
    NotATrace {
        /// Where the header was looked for.
        line: u64,
        /// What was found instead.
        reason: String,
    },
    /// The header names a version of the format that this reader does not know.
    #[error("line {line}: field `version` is {found}, this reader knows {supported}")]
    UnsupportedVersion {
        /// Line of the header.
        line: u64,
        /// The version in the file.
        found: u64,
        /// The only version this reader knows.
        supported: u64,
    },
    /// A line is longer than any valid record can be.
    #[error("line {line}: longer than {limit_bytes} bytes")]
    LineTooLong {
        /// The line.
        line: u64,
        /// The limit in bytes.
        limit_bytes: usize,
    },
    /// A line is not a JSON object with fields of the right types.
    #[error("line {line}: {message}")]
    Json {
        /// The line.
        line: u64,
        /// What the JSON parser says, with its column.
        message: String,
    },
    /// A record lacks a field that every record has.
    #[error("line {line}: field `{field}` is missing")]
    MissingField {
        /// The line.
        line: u64,
        /// The field.
        field: &'static str,
    },
    /// A number of the header is outside its range.
    #[error("line {line}: field `{field}` is {value}, must be {min} to {max}")]
    OutOfRange {
        /// The line.
        line: u64,
        /// The field.
        field: &'static str,
        /// The value found.
        value: u64,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
    /// The header's list of layers does not ascend.
    #[error("line {line}: field `moe_layers` has {layer} after {previous}: it must ascend")]
    LayersNotAscending {
        /// The line.
        line: u64,
        /// The layer that is out of order.
        layer: u16,
        /// The one before it.
        previous: u16,
    },
    /// A record names a layer that the header does not list.
    #[error("line {line}: field `layer` is {layer}, not one of the header's {known} layers")]
    UnknownLayer {
        /// The line.
        line: u64,
        /// The layer found.
        layer: u64,
        /// Layers that the header lists.
        known: usize,
    },
    /// A record has no tokens, or more than a record may have.
    #[error("line {line}: field `experts` has {tokens} tokens, must be 1 to {limit}")]
    TokenCount {
        /// The line.
        line: u64,
        /// Tokens found (counting stops one past the limit).
        tokens: usize,
        /// Most tokens a record may have.
        limit: usize,
    },
    /// A route does not have as many experts as the header says.
    #[error("line {line}: token {token} layer {layer} has {found} ids, header says {top_k}")]
    WrongWidth {
        /// The line.
        line: u64,
        /// Token inside the record.
        token: usize,
        /// The record's layer.
        layer: u16,
        /// Ids found.
        found: usize,
        /// The header's `top_k`.
        top_k: u16,
    },
    /// An expert id that the model does not have. Negative ids are padding in some
    /// formats; here they are an error, because padding is no use of an expert.
    #[error("line {line}: token {token} layer {layer} has expert {expert}, model has {n_experts}")]
    UnknownExpert {
        /// The line.
        line: u64,
        /// Token inside the record.
        token: usize,
        /// The record's layer.
        layer: u16,
        /// The id found.
        expert: i64,
        /// Experts the layer has.
        n_experts: u16,
    },
    /// A route names one expert twice.
    #[error("line {line}: token {token} layer {layer} has expert {expert} twice in one route")]
    DuplicateExpert {
        /// The line.
        line: u64,
        /// Token inside the record.
        token: usize,
        /// The record's layer.
        layer: u16,
        /// The id that appears twice.
        expert: u16,
    },
    /// A record belongs to an earlier forward pass than the one before it.
    #[error("line {line}: field `step` is {step} after {previous}: steps never go back")]
    StepBack {
        /// The line.
        line: u64,
        /// The step found.
        step: u64,
        /// The step of the record before.
        previous: u64,
    },
    /// Within one step the layers do not ascend, so a layer is repeated or out of order.
    #[error("line {line}: step {step} has layer {layer} after layer {previous}: layers ascend")]
    LayerOrder {
        /// The line.
        line: u64,
        /// The step.
        step: u64,
        /// The layer found.
        layer: u16,
        /// The layer of the record before.
        previous: u16,
    },
    /// The end record does not count what the file holds.
    #[error("line {line}: end record says {field} = {recorded}, the file has {counted}")]
    CountMismatch {
        /// The line.
        line: u64,
        /// Which count.
        field: &'static str,
        /// The count in the end record.
        recorded: u64,
        /// The count in the file.
        counted: u64,
    },
    /// Something follows the end record.
    #[error("line {line}: data after the end record")]
    AfterEnd {
        /// The line.
        line: u64,
    },
    /// The file stops without its end record: its writer died or is still writing.
    #[error("line {line}: torn: no end record; {records} whole records before")]
    Torn {
        /// The line where the file stops.
        line: u64,
        /// Whole records before it.
        records: u64,
    },
    /// A row of a foreign trace breaks a rule. Its `token` is the step that the row names,
    /// or the 0-based number of the forward pass where rows name none.
    #[error("line {line}: token {token} layer {layer} {fault}")]
    Row {
        /// The line.
        line: u64,
        /// The row's step.
        token: u64,
        /// The row's layer.
        layer: u16,
        /// The rule.
        fault: crate::row_fault::RowFault,
    },
    /// A forward pass of a foreign trace lacks layers that the model has.
    #[error(
        "line {line}: token {token} has {found} of {expected} layers ({present}); \
         layer {missing} is missing"
    )]
    MissingLayers {
        /// The last line of the pass.
        line: u64,
        /// The pass's step.
        token: u64,
        /// Layers found.
        found: usize,
        /// Layers the model has.
        expected: usize,
        /// The first layers found, for people.
        present: String,
        /// The first layer that is missing.
        missing: u16,
    },
    /// The last line of a foreign trace stops before its end: its writer died.
    #[error("line {line}: torn: the last line is not whole; {records} whole records before")]
    TornLine {
        /// The line.
        line: u64,
        /// Whole records before it.
        records: u64,
    },
    /// A line of a text format is not what the format says.
    #[error("line {line}: {reason}")]
    Text {
        /// The line.
        line: u64,
        /// What was expected and what was found.
        reason: String,
    },
    /// A file that holds how often each expert was used was given where routes are needed.
    #[error("{format} holds counts, not routes: no trace can be read from it")]
    CountsOnly {
        /// The file's format.
        format: &'static str,
    },
    /// The file's format carries no shape, and it cannot be read twice to find one.
    #[error("the trace does not say its {field}, and it is no file to look it up in: give it")]
    ShapeUnknown {
        /// What must be given.
        field: &'static str,
    },
    /// What was said of the model and what the trace says disagree, or two traces do.
    #[error("{field} is {found}, not {expected}")]
    ShapeMismatch {
        /// What disagrees.
        field: &'static str,
        /// What was said.
        expected: String,
        /// What the trace says.
        found: String,
    },
    /// A file holds more of something than is kept in memory.
    #[error("line {line}: more than {limit} {what}")]
    Exceeds {
        /// The line.
        line: u64,
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A part of a compact file does not have the checksum that stands in it: bytes were
    /// changed after it was written.
    #[error(
        "byte {offset}: the {part} has the checksum {computed:016x}, the file says {recorded:016x}"
    )]
    Checksum {
        /// Where the part begins in the file.
        offset: u64,
        /// Which part.
        part: &'static str,
        /// The checksum in the file.
        recorded: u64,
        /// The checksum of the bytes.
        computed: u64,
    },
    /// A compact file stops inside a frame or before its end record.
    #[error(
        "byte {offset}: torn: {needed} bytes are needed, {present} are there; \
         {records} whole records before"
    )]
    TornBlock {
        /// Where the frame begins in the file.
        offset: u64,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that there are.
        present: u64,
        /// Whole records before it.
        records: u64,
    },
    /// A part of a compact file breaks the rules though its checksum is right.
    #[error("byte {offset}: {reason}")]
    Corrupt {
        /// Where the part begins in the file.
        offset: u64,
        /// The rule and the numbers.
        reason: String,
    },
    /// The error in `error` was met in a block of a compact file, whose lines are counted as
    /// they would be in the JSONL form.
    #[error("byte {offset}: block: as JSONL, {error}")]
    InBlock {
        /// Where the block begins in the file.
        offset: u64,
        /// What is wrong in it. Part of this error's text, so not its source.
        error: Box<TraceError>,
    },
    /// The recorder was asked for a buffer outside its limits.
    #[error("capacity_bytes is {value}, must be {min} to {max}")]
    Capacity {
        /// The capacity asked for, in bytes.
        value: usize,
        /// Smallest capacity in bytes.
        min: usize,
        /// Largest capacity in bytes.
        max: usize,
    },
    /// A pass names a layer or an expert that the model's shape does not have.
    #[error("pass {pass}: {id} is not in the model ({layers} layers of {n_experts} experts)")]
    ForeignExpert {
        /// Passes before it.
        pass: u64,
        /// The expert named.
        id: ExpertId,
        /// Layers that the shape lists.
        layers: usize,
        /// Experts that each of them has.
        n_experts: u16,
    },
    /// More of something than this crate takes at once.
    #[error("{value} {what}, at most {limit}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        value: u64,
        /// How many are allowed.
        limit: u64,
    },
    /// Traces that are to be used together come from models of different shapes.
    #[error("a trace of {found} cannot be used with one of {expected}")]
    ShapesDiffer {
        /// The first trace's shape, in words.
        expected: String,
        /// The other's.
        found: String,
    },
    /// A setting cannot be read, or does not fit what it is used with.
    #[error("{what} `{value}`: expected {expected}")]
    Setting {
        /// Which setting.
        what: &'static str,
        /// What was given.
        value: String,
        /// What would be right.
        expected: String,
    },
}

impl TraceError {
    /// The category, stable across versions: what scripts and tests compare.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::CountsOnly { .. } => "unsupported",
            Self::Exceeds { .. } => "limit",
            Self::SettingRange { .. } => "limit",
            Self::Plot { .. } => "report",
            Self::Io { .. } => "io",
            Self::InFile { error, .. } | Self::InBlock { error, .. } => error.kind(),
            Self::UnsupportedVersion { .. } => "unsupported",
            Self::Capacity { .. } | Self::TooMany { .. } => "limit",
            Self::Setting { .. } | Self::ShapesDiffer { .. } => "usage",
            _ => "trace-invalid",
        }
    }

    /// The same error with the file it was met in, unless it names one already.
    pub(crate) fn in_file(self, path: Option<&PathBuf>) -> Self {
        match (path, self) {
            (_, named @ Self::InFile { .. }) | (None, named) => named,
            (Some(path), error) => Self::InFile { path: path.clone(), error: Box::new(error) },
        }
    }
}
