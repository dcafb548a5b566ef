mod detail;
mod kind;
mod output;

pub use detail::{ExpertSetProblem, OffsetProblem};
pub use output::OutputError;

use crate::pool::{Dtype, FileIdentity};
use detail::{AlsoIn, Because, Of};
use router_trace::{ExpertId, TraceError};
use std::io;
use std::path::PathBuf;

/// Everything that can go wrong between a pool on disk and an adopted expert.
///
/// [`TierError::kind`] gives the stable kebab-case category of each variant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// The operating system refused an operation on a file.
    #[error("{}: {operation} failed: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// An expert was asked for that the pool does not have.
    #[error("the pool has no {id} ({in_layer} experts in that layer)")]
    UnknownExpert {
        /// The expert asked for.
        id: ExpertId,
        /// Experts the layer has.
        in_layer: usize,
    },
    /// A file is no longer the one that was opened.
    #[error(
        "{}: changed since the pool was opened (was inode {} with {} bytes, is inode {} with {} bytes)",
        path.display(), opened.ino, opened.len, found.ino, found.len
    )]
    FileChanged {
        /// The file.
        path: PathBuf,
        /// What it was.
        opened: Box<FileIdentity>,
        /// What it is.
        found: Box<FileIdentity>,
    },
    /// A demand read failed: the token fails with it, nothing is made up.
    #[error(
        "{}: reading bytes {offset} to {} of {file_len} failed: {source}",
        path.display(), offset + len
    )]
    Fill {
        /// The file.
        path: PathBuf,
        /// First byte of the piece.
        offset: u64,
        /// Its length.
        len: u64,
        /// The file's length when the read failed.
        file_len: u64,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Pages could not be read while they were in use: the file was cut, or a sector is bad.
    #[error(
        "{}: bytes {offset} to {} could not be read while they were in use (the file was cut, or \
         its device failed)",
        path.display(), offset + len
    )]
    Poisoned {
        /// The file.
        path: PathBuf,
        /// First byte that is lost.
        offset: u64,
        /// Bytes that are lost.
        len: u64,
    },
    /// An adoption of which a part has failed, and was told of, cannot go on.
    #[error("this adoption was given up after the error that was reported before")]
    FillStopped,
    /// Reads past the page cache that cannot be had here: refused, or not what they claim.
    #[error("{}: no {reads} reads here: {reason}{}", path.display(), Because(source.as_ref()))]
    DirectUnavailable {
        /// The file.
        path: PathBuf,
        /// Which reads: the admission that asks for them.
        reads: &'static str,
        /// What was tried, with the numbers, and what was found.
        reason: String,
        /// The system's answer; `None` if it took the call and did something else.
        #[source]
        source: Option<io::Error>,
    },
    /// A way to read missing pages that was asked for and cannot be had.
    #[error("missing pages cannot be read by {method}: {source}")]
    FillUnavailable {
        /// The method's name.
        method: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Memory that could not be had.
    #[error("{what} needs {bytes} bytes of memory: {source}")]
    Memory {
        /// For what.
        what: &'static str,
        /// How much.
        bytes: usize,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// More memory than there is.
    #[error("{what} needs {bytes} bytes of memory, {limit} is {limit_bytes} bytes")]
    NoRoom {
        /// For what.
        what: &'static str,
        /// How much.
        bytes: u64,
        /// Which limit is in the way.
        limit: String,
        /// That limit.
        limit_bytes: u64,
    },
    /// A policy that an arena cannot decide by.
    #[error("an arena cannot decide so: {source}")]
    Policy {
        /// Why not.
        #[source]
        source: TraceError,
    },
    /// Memory that cannot be locked.
    #[error(
        "{what} cannot be locked: {bytes} bytes wanted, {limit} is {limit_bytes} bytes{}",
        Because(source.as_ref())
    )]
    Lock {
        /// What was to be locked.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// Which limit is in the way.
        limit: String,
        /// That limit.
        limit_bytes: u64,
        /// The system's answer; `None` if it was not asked, since it would have killed.
        #[source]
        source: Option<io::Error>,
    },
    /// Threads that could not be started.
    #[error("cannot start {threads} fill threads: {reason}")]
    Threads {
        /// How many.
        threads: usize,
        /// Why not.
        reason: String,
    },
    /// A setting outside its limits.
    #[error("{what} is {value}, must be {min} to {max}")]
    SettingLimit {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// A setting that is no whole number, outside its limits.
    #[error("{what} is {value}, must be {expected}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A header claims more bytes than any header may have.
    #[error("{}: the header says it has {claimed} bytes, at most {cap} are allowed", path.display())]
    HeaderTooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes the file claims.
        claimed: u64,
        /// Bytes allowed.
        cap: u64,
    },
    /// The file ends inside its header.
    #[error("{}: the header needs {needed} bytes, the file has {present}", path.display())]
    HeaderTruncated {
        /// The file.
        path: PathBuf,
        /// Bytes from the start of the file to the end of the header.
        needed: u64,
        /// Bytes of the file.
        present: u64,
    },
    /// A header or an index is not what its format says.
    #[error("{}: invalid header: {}{reason}", path.display(), Of(tensor.as_deref()))]
    HeaderInvalid {
        /// The file.
        path: PathBuf,
        /// The tensor or entry, if the fault lies in one.
        tensor: Option<String>,
        /// What is wrong, with the value found.
        reason: String,
    },
    /// Ranges of tensors are reversed, overlap or leave bytes to nobody.
    #[error("{}: tensor {tensor}: {problem}", path.display())]
    BadOffsets {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong, with both numbers.
        problem: OffsetProblem,
    },
    /// A tensor's range has another length than its shape needs.
    #[error(
        "{}: tensor {tensor}: {dtype:?} {shape:?} needs {needed} bytes, its range has {present}",
        path.display()
    )]
    SizeMismatch {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its element type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<u64>,
        /// Bytes the shape needs.
        needed: u64,
        /// Bytes of the range.
        present: u64,
    },
    /// A tensor's size does not fit 64 bits.
    #[error("{}: tensor {tensor}: the size of {dtype:?} {shape:?} does not fit 64 bits", path.display())]
    Overflow {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its element type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// The file ends before its last tensor does.
    #[error(
        "{}: cut file: tensor {tensor} needs the file to have {needed} bytes, it has {present}",
        path.display()
    )]
    TruncatedData {
        /// The file.
        path: PathBuf,
        /// The last tensor.
        tensor: String,
        /// Bytes the file needs.
        needed: u64,
        /// Bytes the file has.
        present: u64,
    },
    /// A name stands twice where names must be unique.
    #[error("{}: {name} is there twice{}", path.display(), AlsoIn(other.as_deref()))]
    DuplicateName {
        /// The file.
        path: PathBuf,
        /// The tensor or entry.
        name: String,
        /// The other file, or the other spelling, if it is another.
        other: Option<String>,
    },
    /// An index names a file outside the model's folder.
    #[error("{}: entry {entry}: unsafe file name {value:?}: {reason}", index.display())]
    UnsafePath {
        /// The index.
        index: PathBuf,
        /// The entry.
        entry: String,
        /// The name as it stands there.
        value: String,
        /// Why it is refused.
        reason: &'static str,
    },
    /// Files that the index names are not there.
    #[error(
        "{}: {present} of {total} shards present, missing {}: {unreachable} of {tensors} tensors \
         are unreachable; this looks like an unfinished download",
        index.display(), missing.join(", ")
    )]
    MissingShard {
        /// The index.
        index: PathBuf,
        /// Every missing file.
        missing: Vec<String>,
        /// Shards that are there.
        present: usize,
        /// Shards that the index names.
        total: usize,
        /// Tensors in missing shards.
        unreachable: usize,
        /// Tensors that the index names.
        tensors: usize,
    },
    /// Index and shards disagree.
    #[error("{}: tensor {tensor}: {reason}", index.display())]
    ShardSetInconsistent {
        /// The index.
        index: PathBuf,
        /// The tensor.
        tensor: String,
        /// What the index says and what was found.
        reason: String,
    },
    /// There is more than one way to understand what was given.
    #[error("{}: ambiguous: {reason}", path.display())]
    Ambiguous {
        /// The file or folder.
        path: PathBuf,
        /// The choices.
        reason: String,
    },
    /// The content of the file has not arrived yet.
    #[error("{}: incomplete download: {reason}", path.display())]
    IncompleteDownload {
        /// The file or folder.
        path: PathBuf,
        /// What it is and what to do.
        reason: String,
    },
    /// The file is something else.
    #[error("{}: not a model: {reason}", path.display())]
    NotAModel {
        /// The file or folder.
        path: PathBuf,
        /// What it is.
        reason: String,
    },
    /// Healthy, but nothing this version can use.
    #[error("{}: {thing}: unsupported: {reason}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The tensor, key or format.
        thing: String,
        /// What is wanted and what was found.
        reason: String,
    },
    /// A number is larger than this version can hold.
    #[error("{}: {what} is {value}, at most {most} is possible", path.display())]
    Limit {
        /// The file.
        path: PathBuf,
        /// What is too large.
        what: String,
        /// Its value.
        value: u64,
        /// The largest possible.
        most: u64,
    },
    /// More files than the system lets a process map.
    #[error(
        "{}: its {files} files need vm.max_map_count to be {needed} (one mapping a file), it is \
         {most}: `sysctl -w vm.max_map_count={needed}`, or pack the pool into few files \
         (`tier pack`)",
        path.display()
    )]
    Mappings {
        /// The pool.
        path: PathBuf,
        /// Its files.
        files: u64,
        /// What the limit would have to be.
        needed: u64,
        /// What it is.
        most: u64,
    },
    /// A value of the config is missing, has another type or contradicts another.
    #[error("{}: {key}: {reason}", path.display())]
    ConfigValue {
        /// The config.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is wanted and what stands there.
        reason: String,
    },
    /// Config and checkpoint disagree about the experts of a layer.
    #[error("{}: layer {layer}: {problem}", path.display())]
    ExpertSet {
        /// The checkpoint.
        path: PathBuf,
        /// The layer.
        layer: u16,
        /// What is wanted and what was found.
        problem: ExpertSetProblem,
    },
    /// A tensor's shape is not the one the config (or its own weight) asks for.
    #[error("{}: tensor {tensor}: needs {needed}, is {present}", path.display())]
    ShapeMismatch {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape needed and why.
        needed: String,
        /// The shape it has.
        present: String,
    },
    /// The head is neither in the checkpoint nor tied to the embedding.
    #[error("{}: {tensor} is not there, and tie_word_embeddings is {setting}", path.display())]
    HeadMissing {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor that is wanted.
        tensor: &'static str,
        /// The setting, with its origin.
        setting: String,
    },
    /// A tensor's dimensions are none that its type can have.
    #[error("{}: tensor {tensor}: {reason}", path.display())]
    BadShape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong, with the numbers.
        reason: String,
    },
    /// Files that belong together by their names do not say so.
    #[error("{}: {reason}", path.display())]
    SplitSet {
        /// The file, or the set's first one.
        path: PathBuf,
        /// What the name says and what the file says.
        reason: String,
    },
    /// Something does not begin where it must.
    #[error("{}: {tensor}: begins at {offset}, must begin at a multiple of {alignment}", path.display())]
    BadAlignment {
        /// The file that says so.
        path: PathBuf,
        /// The tensor or expert.
        tensor: String,
        /// Where it begins.
        offset: u64,
        /// What that must be a multiple of.
        alignment: u64,
    },
    /// What is to be written cannot be.
    #[error(transparent)]
    Output(OutputError),
}
