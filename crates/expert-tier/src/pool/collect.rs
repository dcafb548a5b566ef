//! Opens the files of a checkpoint one after another and sorts their tensors.

use super::dtype::Dtype;
use super::expert::{Extent, Part, PartRole};
use super::gguf::{self, Name, SplitKeys};
use super::names::{self, ExpertName, StackKind, TensorName};
use super::safetensors::{self, Header, RawTensor};
use super::{FileIdentity, Hole, PoolFile, SetAside, SpineTensor, WeightShape, sniff};
use crate::error::TierError;
use crate::notice::Notice;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Where a part comes from: what errors name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    /// A tensor of its own.
    Tensor(ExpertName),
    /// A slice of [`Collected::stacks`].
    Stack(u32),
    /// A range of a packed pool's experts file.
    Packed,
}

/// One tensor of one expert, before it has found its expert.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawPart {
    pub(super) layer: u16,
    pub(super) index: u16,
    pub(super) origin: Origin,
    pub(super) part: Part,
}

/// All experts of a layer in one tensor.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) name: String,
    pub(super) layer: u16,
    pub(super) kind: StackKind,
    pub(super) row_major: bool,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    pub(super) extent: Extent,
}

/// Everything the headers say, sorted by use.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) files: Vec<PoolFile>,
    pub(super) parts: Vec<RawPart>,
    pub(super) stacks: Vec<Stack>,
    pub(super) weight_shapes: Vec<WeightShape>,
    pub(super) spine: BTreeMap<String, SpineTensor>,
    pub(super) foreign: SetAside,
    /// Expert tensors of a kind that is not served.
    pub(super) unknown: SetAside,
    pub(super) holes: Vec<Hole>,
    pub(super) notices: Vec<Notice>,
    /// Bytes of all tensors.
    pub(super) tensor_bytes: u64,
    /// What the first GGUF file says.
    pub(super) gguf: Option<gguf::Metadata>,
    /// Whether files may lack their data, and a set its files: what is lacking is kept then.
    /// Only for sizes; such a collection never becomes a pool that is served.
    pub(super) headers_only: bool,
    /// What opening would refuse.
    pub(super) lacking: Vec<TierError>,
}

impl Collected {
    /// Reads the header of `path` and sorts its tensors. `siblings` are the names in its
    /// folder; `visit` sees every tensor's name.
    pub(super) fn add_file(
        &mut self,
        path: &Path,
        siblings: &[String],
        visit: &mut dyn FnMut(&str),
    ) -> Result<(), TierError> {
        let (file, metadata) = open_regular(path)?;
        let len = metadata.len();
        let head = sniff::check_head(&file, len, path)?;
        let header_len = safetensors::header_len(&head, len, path)?;
        let text = safetensors::read_header(&file, header_len, path)?;
        let header = safetensors::parse_header(&text, len, path)?;
        let index = self.files.len() as u32;
        let data_start = safetensors::data_start(header_len);
        let ends: Vec<(&str, u64)> =
            header.tensors.iter().map(|tensor| (tensor.name.as_ref(), tensor.end)).collect();
        self.add_holes(sniff::holes(&file, index, data_start, len, &ends), path);
        self.add_side_file(path, siblings);
        for tensor in &header.tensors {
            visit(&tensor.name);
            let extent = Extent {
                file: index,
                offset: data_start + tensor.begin,
                len: tensor.end - tensor.begin,
            };
            self.tensor_bytes = self.tensor_bytes.saturating_add(extent.len);
            self.add_tensor(&header, tensor, extent, path)?;
        }
        self.files.push(PoolFile { path: path.to_owned(), identity: identity(&metadata) });
        Ok(())
    }

    fn add_tensor(
        &mut self,
        header: &Header<'_>,
        tensor: &RawTensor<'_>,
        extent: Extent,
        path: &Path,
    ) -> Result<(), TierError> {
        let (name, dtype) = (tensor.name.as_ref(), tensor.dtype);
        let shape = header.shape(tensor);
        match names::classify(name, path)? {
            TensorName::Expert(expert) if expert.is_shape() => {
                let (id, role) = (expert.id, expert.role());
                self.weight_shapes.push(WeightShape { id, role, dtype, extent });
            }
            TensorName::Expert(expert) => {
                let (rows, cols) = rows_and_cols(shape, name, path)?;
                self.parts.push(RawPart {
                    layer: expert.id.layer,
                    index: expert.id.index,
                    origin: Origin::Tensor(expert),
                    part: Part { role: expert.role(), dtype, rows, cols, extent },
                });
            }
            TensorName::Stack { layer, kind, row_major } => self.stacks.push(Stack {
                name: name.to_owned(),
                layer,
                kind,
                row_major,
                dtype,
                shape: shape.to_vec(),
                extent,
            }),
            TensorName::UnknownExpertTensor => self.unknown.add(name, extent.len),
            TensorName::Foreign => self.foreign.add(name, extent.len),
            TensorName::Spine(canonical) => {
                let tensor = SpineTensor {
                    stored_name: name.to_owned(),
                    dtype,
                    shape: shape.to_vec(),
                    extent,
                };
                self.add_spine(canonical, tensor, path)?;
            }
        }
        Ok(())
    }

    /// The same for a GGUF file.
    pub(super) fn add_gguf(
        &mut self,
        path: &Path,
        siblings: &[String],
    ) -> Result<SplitKeys, TierError> {
        let (file, metadata) = open_regular(path)?;
        let len = metadata.len();
        sniff::check_head(&file, len, path)?;
        let header = gguf::read_header_alone(&file, len, path)?;
        if let Err(error) = header.check_end(len, path) {
            self.lack(error)?;
        }
        let keys = SplitKeys::of(&header)?;
        let file_index = self.files.len() as u32;
        let ends: Vec<(&str, u64)> =
            header.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.end)).collect();
        self.add_holes(sniff::holes(&file, file_index, header.data_start, len, &ends), path);
        self.add_side_file(path, siblings);
        for tensor in &header.tensors {
            let extent = Extent {
                file: file_index,
                offset: header.data_start + tensor.begin,
                len: tensor.end - tensor.begin,
            };
            self.tensor_bytes = self.tensor_bytes.saturating_add(extent.len);
            self.add_gguf_tensor(tensor, extent, path)?;
        }
        self.gguf.get_or_insert(header.metadata);
        self.files.push(PoolFile { path: path.to_owned(), identity: identity(&metadata) });
        Ok(keys)
    }

    /// An error, unless only headers are asked for.
    pub(super) fn lack(&mut self, error: TierError) -> Result<(), TierError> {
        if !self.headers_only {
            return Err(error);
        }
        self.lacking.push(error);
        Ok(())
    }

    fn add_gguf_tensor(
        &mut self,
        tensor: &gguf::Tensor,
        extent: Extent,
        path: &Path,
    ) -> Result<(), TierError> {
        match gguf::classify(&tensor.name, path)? {
            Name::Stack { layer, kind } => self.stacks.push(Stack {
                name: tensor.name.clone(),
                layer,
                kind,
                row_major: true,
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                extent,
            }),
            Name::UnknownExpertTensor => self.unknown.add(&tensor.name, extent.len),
            Name::Spine(canonical) => {
                let tensor = SpineTensor {
                    stored_name: tensor.name.clone(),
                    dtype: tensor.dtype,
                    shape: tensor.shape.clone(),
                    extent,
                };
                self.add_spine(&canonical, tensor, path)?;
            }
        }
        Ok(())
    }

    fn add_spine(
        &mut self,
        canonical: &str,
        tensor: SpineTensor,
        path: &Path,
    ) -> Result<(), TierError> {
        let file = tensor.extent.file;
        let name = tensor.stored_name.clone();
        let Some(earlier) = self.spine.insert(canonical.to_owned(), tensor) else { return Ok(()) };
        let other = self.path_of(earlier.extent.file, path).display().to_string();
        if earlier.stored_name == name && earlier.extent.file != file {
            return Err(TierError::DuplicateName {
                path: path.to_owned(),
                name,
                other: Some(other),
            });
        }
        Err(TierError::Ambiguous {
            path: path.to_owned(),
            reason: format!("{name} and {} (in {other}) are both {canonical}", earlier.stored_name),
        })
    }

    /// The path of a file that may be the one being added.
    pub(super) fn path_of<'p>(&'p self, file: u32, current: &'p Path) -> &'p Path {
        self.files.get(file as usize).map_or(current, |file| file.path.as_path())
    }

    fn add_holes(&mut self, holes: Vec<Hole>, path: &Path) {
        if let Some(first) = holes.first() {
            let more = match holes.len() {
                1 => String::new(),
                n => format!(" (and {} more ranges)", n - 1),
            };
            self.notices.push(Notice::warning(format!(
                "{}: tensor {}: bytes [{},{}) were never written{more}; they read as zeros, \
                 this looks like an unfinished download",
                path.display(),
                first.tensor,
                first.extent.offset,
                first.extent.end(),
            )));
        }
        self.holes.extend(holes);
    }

    fn add_side_file(&mut self, path: &Path, siblings: &[String]) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return };
        if let Some(side) = sniff::side_file(name, siblings) {
            self.notices.push(Notice::warning(format!(
                "{}: a downloader's control file lies beside it ({side}): the download may not \
                 be finished",
                path.display()
            )));
        }
    }
}

/// Stored rows and columns; a vector is one row.
fn rows_and_cols(shape: &[u64], name: &str, path: &Path) -> Result<(u32, u32), TierError> {
    let (rows, cols) = match *shape {
        [] => (1, 1),
        [cols] => (1, cols),
        [rows, cols] => (rows, cols),
        _ => {
            return Err(TierError::Unsupported {
                path: path.to_owned(),
                thing: format!("tensor {name}"),
                reason: format!("shape {shape:?} of one expert, at most 2 dimensions are served"),
            });
        }
    };
    let narrow = |value: u64| {
        u32::try_from(value).map_err(|_| TierError::Limit {
            path: path.to_owned(),
            what: format!("tensor {name}: a dimension"),
            value,
            most: u64::from(u32::MAX),
        })
    };
    Ok((narrow(rows)?, narrow(cols)?))
}

/// Opens a file for reading unless it is something that cannot be mapped. Pipes and devices
/// are refused before the open, which could block.
pub(super) fn open_regular(path: &Path) -> Result<(File, Metadata), TierError> {
    let io =
        |operation, source: io::Error| TierError::Io { path: path.to_owned(), operation, source };
    let regular = |metadata: &Metadata| {
        if metadata.is_file() {
            return Ok(());
        }
        let what = if metadata.is_dir() { "a folder" } else { "no regular file" };
        Err(TierError::NotAModel { path: path.to_owned(), reason: what.to_owned() })
    };
    regular(&fs::metadata(path).map_err(|source| io("stat", source))?)?;
    let file = File::open(path).map_err(|source| io("open", source))?;
    let metadata = file.metadata().map_err(|source| io("stat", source))?;
    regular(&metadata)?;
    // Without this the kernel reads weights ahead of the header, and a pool that was only
    // opened would not be cold. Where advice is refused the header is read all the same.
    let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM);
    Ok((file, metadata))
}

fn identity(metadata: &Metadata) -> FileIdentity {
    let seconds = i128::from(metadata.mtime());
    FileIdentity {
        dev: metadata.dev(),
        ino: metadata.ino(),
        len: metadata.len(),
        mtime_ns: seconds * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
    }
}

/// The role of a part, for sorting and messages.
impl RawPart {
    pub(super) fn key(&self) -> (u16, u16, PartRole) {
        (self.layer, self.index, self.part.role)
    }
}
