use super::MAGIC;
use super::cursor::Cursor;
use super::value::Metadata;
use crate::error::{OffsetProblem, TierError};
use crate::pool::Dtype;
use std::collections::HashSet;
use std::fs::File;
use std::path::Path;

/// Where the data section begins unless `general.alignment` says otherwise, and every tensor.
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;
/// More dimensions than ggml has are refused.
const MOST_DIMS: u32 = 4;
/// The shortest entry of the tensor list: an empty name, no dimension, type and offset.
const LEAST_ENTRY: u64 = 8 + 4 + 4 + 8;

/// One entry of the tensor list; `begin` and `end` count from the start of the data section.
#[derive(Debug)]
pub(in crate::pool) struct Tensor {
    pub(in crate::pool) name: String,
    pub(in crate::pool) dtype: Dtype,
    /// Outermost first: the reverse of what is stored, so that rows of numbers come last.
    pub(in crate::pool) shape: Vec<u64>,
    pub(in crate::pool) begin: u64,
    pub(in crate::pool) end: u64,
}

/// A checked header.
#[derive(Debug)]
pub(in crate::pool) struct Header {
    pub(in crate::pool) metadata: Metadata,
    /// In order of their bytes; none overlap.
    pub(in crate::pool) tensors: Vec<Tensor>,
    pub(in crate::pool) data_start: u64,
}

impl Header {
    /// No tensor may reach past the end of the file, which has `len` bytes.
    pub(in crate::pool) fn check_end(&self, len: u64, path: &Path) -> Result<(), TierError> {
        let Some(last) = self.tensors.last() else { return Ok(()) };
        let needed = self.data_start.saturating_add(last.end);
        if needed <= len {
            return Ok(());
        }
        let (path, tensor) = (path.to_owned(), last.name.clone());
        Err(TierError::TruncatedData { path, tensor, needed, present: len })
    }
}

/// How many tensors and pairs follow.
pub(super) struct Counts {
    pub(super) tensors: u64,
    pub(super) values: u64,
}

/// Magic, version and counts.
pub(super) fn read_counts(cursor: &mut Cursor<'_>) -> Result<Counts, TierError> {
    let magic: [u8; 4] = cursor.array()?;
    if magic != *MAGIC {
        let reason = format!("it begins with {:?}, not GGUF", magic.escape_ascii().to_string());
        return Err(TierError::NotAModel { path: cursor.path.to_owned(), reason });
    }
    let version = cursor.u32()?;
    let refuse = |reason: String| Err(cursor.unsupported("GGUF file".to_owned(), reason));
    match version {
        2 | 3 => {}
        1 => return refuse("version 1 has 32-bit counts; versions 2 and 3 can be read".to_owned()),
        _ if matches!(version.swap_bytes(), 1..=3) => {
            let version = version.swap_bytes();
            return refuse(format!(
                "a big-endian file (version {version}); little-endian is wanted"
            ));
        }
        _ => return refuse(format!("version {version}; versions 2 and 3 can be read")),
    }
    let tensors = cursor.u64()?;
    let values = cursor.u64()?;
    cursor.expect(tensors, LEAST_ENTRY)?;
    Ok(Counts { tensors, values })
}

/// Reads and checks the header of a file of `len` bytes, and that all tensors lie inside it.
pub(in crate::pool) fn read_header(
    file: &File,
    len: u64,
    path: &Path,
) -> Result<Header, TierError> {
    let header = read_header_alone(file, len, path)?;
    header.check_end(len, path)?;
    Ok(header)
}

/// The same of a file whose data may not have arrived.
pub(in crate::pool) fn read_header_alone(
    file: &File,
    len: u64,
    path: &Path,
) -> Result<Header, TierError> {
    let mut cursor = Cursor::new(file, len, path);
    let counts = read_counts(&mut cursor)?;
    let metadata = Metadata::parse(&mut cursor, counts.values, false)?;
    let alignment = alignment(&metadata)?;
    cursor.expect(counts.tensors, LEAST_ENTRY)?;
    let mut tensors = Vec::new();
    for _ in 0..counts.tensors {
        tensors.push(tensor(&mut cursor, alignment)?);
    }
    let data_start = cursor.position().next_multiple_of(alignment);
    check_unique(&tensors, path)?;
    tensors.sort_by_key(|tensor| (tensor.begin, tensor.end));
    check_places(&tensors, path)?;
    Ok(Header { metadata, tensors, data_start })
}

fn alignment(metadata: &Metadata) -> Result<u64, TierError> {
    let key = "general.alignment";
    match metadata.unsigned(key)? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(number) if number.is_power_of_two() && number <= 1 << 30 => Ok(number),
        Some(number) => {
            Err(metadata.error(key, format!("is {number}, must be a power of two up to 2^30")))
        }
    }
}

fn tensor(cursor: &mut Cursor<'_>, alignment: u64) -> Result<Tensor, TierError> {
    let name = cursor.text(&|| "the name of a tensor".to_owned())?;
    let dims = cursor.u32()?;
    if dims > MOST_DIMS {
        let reason = format!("it has {dims} dimensions, at most {MOST_DIMS} are possible");
        return Err(bad_shape(cursor.path, name, reason));
    }
    let mut shape = Vec::with_capacity(dims as usize);
    for _ in 0..dims {
        shape.push(cursor.u64()?);
    }
    let number = cursor.u32()?;
    let begin = cursor.u64()?;
    if let Some(zero) = shape.iter().position(|&dim| dim == 0) {
        return Err(bad_shape(cursor.path, name, format!("dimension {zero} of {shape:?} is 0")));
    }
    let dtype = Dtype::from_ggml(number).ok_or_else(|| {
        let reason = match number {
            4 | 5 | 31..=33 | 36..=38 => {
                format!("its type {number} was removed from the format: convert the model again")
            }
            _ => format!("its type {number} is not known"),
        };
        cursor.unsupported(format!("tensor {name}"), reason)
    })?;
    shape.reverse();
    if !begin.is_multiple_of(alignment) {
        let path = cursor.path.to_owned();
        return Err(TierError::BadAlignment { path, tensor: name, offset: begin, alignment });
    }
    let bytes = size_bytes(cursor.path, &name, dtype, &shape)?;
    let Some(end) = begin.checked_add(bytes) else {
        let path = cursor.path.to_owned();
        return Err(TierError::Overflow { path, tensor: name, dtype, shape });
    };
    Ok(Tensor { name, dtype, shape, begin, end })
}

/// Bytes of a tensor whose rows are whole blocks.
fn size_bytes(path: &Path, name: &str, dtype: Dtype, shape: &[u64]) -> Result<u64, TierError> {
    let overflow = || TierError::Overflow {
        path: path.to_owned(),
        tensor: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
    };
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(dtype.block_elements()) {
        let reason = format!(
            "a row has {row} elements, {} needs a multiple of {}",
            dtype.name(),
            dtype.block_elements()
        );
        return Err(bad_shape(path, name.to_owned(), reason));
    }
    // The number of elements must fit too: readers count them.
    let product = |dims: &[u64]| dims.iter().try_fold(1_u64, |n, &dim| n.checked_mul(dim));
    product(shape).ok_or_else(overflow)?;
    let rows = product(&shape[..shape.len().saturating_sub(1)]).ok_or_else(overflow)?;
    dtype.row_bytes(row).and_then(|bytes| bytes.checked_mul(rows)).ok_or_else(overflow)
}

fn bad_shape(path: &Path, tensor: String, reason: String) -> TierError {
    TierError::BadShape { path: path.to_owned(), tensor, reason }
}

fn check_unique(tensors: &[Tensor], path: &Path) -> Result<(), TierError> {
    let mut seen = HashSet::with_capacity(tensors.len());
    match tensors.iter().find(|tensor| !seen.insert(tensor.name.as_str())) {
        None => Ok(()),
        Some(tensor) => Err(TierError::DuplicateName {
            path: path.to_owned(),
            name: tensor.name.clone(),
            other: None,
        }),
    }
}

/// No tensor may reach into the next one. Gaps are allowed: alignment makes them, and so do
/// programs that take a tensor out.
fn check_places(tensors: &[Tensor], path: &Path) -> Result<(), TierError> {
    for [before, tensor] in tensors.array_windows() {
        if tensor.begin < before.end {
            return Err(TierError::BadOffsets {
                path: path.to_owned(),
                tensor: tensor.name.clone(),
                problem: OffsetProblem::Overlap {
                    begin: tensor.begin,
                    end: tensor.end,
                    other: before.name.clone(),
                    other_end: before.end,
                },
            });
        }
    }
    Ok(())
}
