//! The head of a file that holds a model's dense part: its metadata as it was, other tensors.

use super::MAGIC;
use super::cursor::Cursor;
use super::header::{DEFAULT_ALIGNMENT, read_counts};
use super::value::skip_pair;
use crate::error::TierError;
use crate::pool::Dtype;
use crate::pool::collect::open_regular;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Keys that are about a file and not about the model.
const OF_THE_FILE: [&str; 4] =
    ["general.alignment", "split.no", "split.count", "split.tensors.count"];

/// The key-value pairs of a file as they are stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pairs {
    count: u64,
    bytes: Vec<u8>,
}

/// A tensor that is to be listed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    /// Outermost first.
    pub(crate) shape: &'a [u64],
    pub(crate) len: u64,
}

impl Pairs {
    /// Those of the file `path`, without what is about the file itself.
    pub(crate) fn read(path: &Path) -> Result<Self, TierError> {
        let (file, stat) = open_regular(path)?;
        let mut cursor = Cursor::new(&file, stat.len(), path);
        let counts = read_counts(&mut cursor)?;
        let mut pairs = Self { count: 0, bytes: Vec::new() };
        for _ in 0..counts.values {
            let begin = cursor.position();
            let key = skip_pair(&mut cursor)?;
            if OF_THE_FILE.contains(&key.as_str()) {
                continue;
            }
            let at = pairs.bytes.len();
            pairs.bytes.resize(at + (cursor.position() - begin) as usize, 0);
            file.read_exact_at(&mut pairs.bytes[at..], begin).map_err(|source| TierError::Io {
                path: path.to_owned(),
                operation: "read",
                source,
            })?;
            pairs.count += 1;
        }
        Ok(pairs)
    }

    /// A file up to its data, version 3, with these tensors in order, each behind the one before
    /// it at the next multiple of 32. `None` for a type that the format has no number for.
    pub(crate) fn head(&self, tensors: &[Listed<'_>]) -> Option<Vec<u8>> {
        let mut head = MAGIC.to_vec();
        head.extend(3_u32.to_le_bytes());
        head.extend((tensors.len() as u64).to_le_bytes());
        head.extend(self.count.to_le_bytes());
        head.extend(&self.bytes);
        let mut offset = 0_u64;
        for tensor in tensors {
            head.extend((tensor.name.len() as u64).to_le_bytes());
            head.extend(tensor.name.bytes());
            head.extend((tensor.shape.len() as u32).to_le_bytes());
            for dim in tensor.shape.iter().rev() {
                head.extend(dim.to_le_bytes());
            }
            head.extend(tensor.dtype.ggml()?.to_le_bytes());
            head.extend(offset.to_le_bytes());
            offset = offset.checked_add(tensor.len)?.checked_next_multiple_of(DEFAULT_ALIGNMENT)?;
        }
        head.resize(head.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
        Some(head)
    }
}

/// Zero bytes behind a tensor of `len` bytes.
pub(crate) fn padding(len: u64) -> u64 {
    len.wrapping_neg() % DEFAULT_ALIGNMENT
}
