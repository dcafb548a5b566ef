//! The head of a safetensors file: a total parser.
//!
//! It never panics, its memory is bounded by the bytes that are really there, and it reads
//! nothing behind the header.

use super::dtype::Dtype;
use super::json::Text;
use crate::error::{OffsetProblem, TierError};
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The format's own limit: other readers refuse more too.
pub(super) const HEADER_CAP: u64 = 100_000_000;
/// The length field in front of the header.
const PREFIX_LEN: u64 = 8;
const METADATA: &str = "__metadata__";

/// One row of the table; `begin` and `end` count from the start of the data section.
#[derive(Debug)]
pub(super) struct RawTensor<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) dtype: Dtype,
    pub(super) begin: u64,
    pub(super) end: u64,
    shape_at: u32,
    rank: u32,
}

/// A checked header: the tensors tile the data section without gap or overlap.
#[derive(Debug, Default)]
pub(super) struct Header<'a> {
    /// In order of their bytes.
    pub(super) tensors: Vec<RawTensor<'a>>,
    /// All shapes one after another: a `Vec` per tensor would double the memory.
    shapes: Vec<u64>,
}

impl Header<'_> {
    pub(super) fn shape(&self, tensor: &RawTensor<'_>) -> &[u64] {
        &self.shapes[tensor.shape_at as usize..][..tensor.rank as usize]
    }
}

/// Bytes of the header (without the length field), or why there are none to read.
pub(super) fn header_len(prefix: &[u8], file_len: u64, path: &Path) -> Result<u64, TierError> {
    let truncated =
        |needed| TierError::HeaderTruncated { path: path.to_owned(), needed, present: file_len };
    let prefix = prefix.first_chunk().ok_or_else(|| truncated(PREFIX_LEN))?;
    let claimed = u64::from_le_bytes(*prefix);
    // The cap comes before the file's size: a huge number is a lie, not a cut file.
    if claimed > HEADER_CAP {
        return Err(TierError::HeaderTooLarge { path: path.to_owned(), claimed, cap: HEADER_CAP });
    }
    if claimed == 0 {
        return Err(invalid(path, None, "the header is empty"));
    }
    if PREFIX_LEN + claimed > file_len {
        return Err(truncated(PREFIX_LEN + claimed));
    }
    Ok(claimed)
}

/// Reads the header's text. `len` comes from [`header_len`].
pub(super) fn read_header(file: &File, len: u64, path: &Path) -> Result<Vec<u8>, TierError> {
    let io = |source| TierError::Io { path: path.to_owned(), operation: "read", source };
    let mut first = [0_u8];
    file.read_exact_at(&mut first, PREFIX_LEN).map_err(io)?;
    check_brace(&first, path)?;
    let len = usize::try_from(len)
        .map_err(|_| invalid(path, None, "the header does not fit the address space"))?;
    let mut text = vec![0; len];
    file.read_exact_at(&mut text, PREFIX_LEN).map_err(io)?;
    Ok(text)
}

fn check_brace(text: &[u8], path: &Path) -> Result<(), TierError> {
    match text.first() {
        Some(b'{') => Ok(()),
        Some(byte) => Err(invalid(
            path,
            None,
            format!("it must begin with '{{', the first byte is {byte:#04x}"),
        )),
        None => Err(invalid(path, None, "the header is empty")),
    }
}

/// Where the data section begins.
pub(super) fn data_start(header_len: u64) -> u64 {
    PREFIX_LEN + header_len
}

/// Parses and checks a header's text against the length of its file.
pub(super) fn parse_header<'a>(
    text: &'a [u8],
    file_len: u64,
    path: &Path,
) -> Result<Header<'a>, TierError> {
    check_brace(text, path)?;
    let mut header = Header::default();
    let mut fault = Fault::default();
    let mut json = serde_json::Deserializer::from_slice(text);
    let parsed = json
        .deserialize_map(HeaderVisitor { header: &mut header, fault: &mut fault })
        .and_then(|()| json.end());
    if let Err(error) = parsed {
        return Err(fault.into_error(&error, path));
    }
    check_unique(&header, path)?;
    check_sizes(&header, path)?;
    header.tensors.sort_unstable_by_key(|tensor| (tensor.begin, tensor.end));
    check_tiling(&header, data_start(text.len() as u64), file_len, path)?;
    Ok(header)
}

fn invalid(path: &Path, tensor: Option<String>, reason: impl Into<String>) -> TierError {
    TierError::HeaderInvalid { path: path.to_owned(), tensor, reason: reason.into() }
}

fn check_unique(header: &Header<'_>, path: &Path) -> Result<(), TierError> {
    let mut seen = HashSet::with_capacity(header.tensors.len());
    for tensor in &header.tensors {
        if !seen.insert(tensor.name.as_ref()) {
            return Err(TierError::DuplicateName {
                path: path.to_owned(),
                name: tensor.name.to_string(),
                other: None,
            });
        }
    }
    Ok(())
}

fn check_sizes(header: &Header<'_>, path: &Path) -> Result<(), TierError> {
    for tensor in &header.tensors {
        let (begin, end) = (tensor.begin, tensor.end);
        let Some(present) = end.checked_sub(begin) else {
            return Err(bad_offsets(tensor, path, OffsetProblem::Reversed { begin, end }));
        };
        let shape = header.shape(tensor);
        let needed = size_bytes(shape, tensor.dtype).ok_or_else(|| TierError::Overflow {
            path: path.to_owned(),
            tensor: tensor.name.to_string(),
            dtype: tensor.dtype,
            shape: shape.to_vec(),
        })?;
        if needed != present {
            return Err(TierError::SizeMismatch {
                path: path.to_owned(),
                tensor: tensor.name.to_string(),
                dtype: tensor.dtype,
                shape: shape.to_vec(),
                needed,
                present,
            });
        }
    }
    Ok(())
}

/// Bytes of a tensor; `None` if they do not fit 64 bits.
fn size_bytes(shape: &[u64], dtype: Dtype) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(dtype.size_bytes(), |bytes, &dim| bytes.checked_mul(dim))
}

/// Every byte of the data section must belong to exactly one tensor (given in byte order).
fn check_tiling(
    header: &Header<'_>,
    data_start: u64,
    file_len: u64,
    path: &Path,
) -> Result<(), TierError> {
    let data_len = file_len.saturating_sub(data_start);
    let mut last: Option<&RawTensor<'_>> = None;
    for tensor in &header.tensors {
        let covered = last.map_or(0, |last| last.end);
        let (begin, end) = (tensor.begin, tensor.end);
        let problem = match last {
            Some(last) if begin < covered => OffsetProblem::Overlap {
                begin,
                end,
                other: last.name.to_string(),
                other_end: covered,
            },
            _ if begin > covered && begin > data_len && begin == end => {
                OffsetProblem::Outside { begin, end, data_len }
            }
            _ if begin > covered => OffsetProblem::Hole { begin: covered, end: begin },
            _ => {
                last = Some(tensor);
                continue;
            }
        };
        return Err(bad_offsets(tensor, path, problem));
    }
    let end = last.map_or(0, |last| last.end);
    match last {
        Some(tensor) if end > data_len => Err(TierError::TruncatedData {
            path: path.to_owned(),
            tensor: tensor.name.to_string(),
            needed: data_start.saturating_add(end),
            present: file_len,
        }),
        Some(tensor) if end < data_len => {
            Err(bad_offsets(tensor, path, OffsetProblem::Trailing { end, data_len }))
        }
        None if data_len > 0 => Err(TierError::BadOffsets {
            path: path.to_owned(),
            tensor: "(none)".to_owned(),
            problem: OffsetProblem::Trailing { end: 0, data_len },
        }),
        _ => Ok(()),
    }
}

fn bad_offsets(tensor: &RawTensor<'_>, path: &Path, problem: OffsetProblem) -> TierError {
    TierError::BadOffsets { path: path.to_owned(), tensor: tensor.name.to_string(), problem }
}

/// What serde's errors cannot carry: which tensor, and which of our own kinds.
#[derive(Default)]
struct Fault {
    tensor: Option<String>,
    unknown_dtype: Option<String>,
    duplicate: bool,
}

impl Fault {
    fn into_error(self, error: &serde_json::Error, path: &Path) -> TierError {
        match (self.tensor, self.unknown_dtype) {
            (Some(tensor), Some(dtype)) => TierError::Unsupported {
                path: path.to_owned(),
                thing: format!("tensor {tensor}"),
                reason: format!("element type {dtype:?}"),
            },
            (Some(name), None) if self.duplicate => {
                TierError::DuplicateName { path: path.to_owned(), name, other: None }
            }
            (tensor, _) => invalid(path, tensor, error.to_string()),
        }
    }
}

struct HeaderVisitor<'h, 'de> {
    header: &'h mut Header<'de>,
    fault: &'h mut Fault,
}

impl<'de> Visitor<'de> for HeaderVisitor<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut metadata_seen = false;
        while let Some(Text(name)) = map.next_key()? {
            if name == METADATA {
                if std::mem::replace(&mut metadata_seen, true) {
                    self.fault.tensor = Some(METADATA.to_owned());
                    self.fault.duplicate = true;
                    return Err(de::Error::custom("a second metadata object"));
                }
                map.next_value_seed(Metadata)
                    .inspect_err(|_| self.fault.tensor = Some(METADATA.to_owned()))?;
                continue;
            }
            let shape_at = self.header.shapes.len() as u32;
            let row = map.next_value_seed(Row {
                shapes: &mut self.header.shapes,
                unknown_dtype: &mut self.fault.unknown_dtype,
            });
            match row {
                Ok(RowValue { dtype, begin, end }) => {
                    let rank = self.header.shapes.len() as u32 - shape_at;
                    self.header.tensors.push(RawTensor { name, dtype, begin, end, shape_at, rank });
                }
                Err(error) => {
                    self.fault.tensor = Some(name.into_owned());
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// `{"key": "text"}` or null; the values are checked and dropped.
struct Metadata;

impl<'de> DeserializeSeed<'de> for Metadata {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Metadata {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<Text<'de>, Text<'de>>()?.is_some() {}
        Ok(())
    }
}

struct RowValue {
    dtype: Dtype,
    begin: u64,
    end: u64,
}

struct Row<'h> {
    shapes: &'h mut Vec<u64>,
    unknown_dtype: &'h mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Row<'_> {
    type Value = RowValue;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<RowValue, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Row<'_> {
    type Value = RowValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RowValue, A::Error> {
        let (mut dtype, mut has_shape, mut offsets) = (None, false, None);
        while let Some(Text(key)) = map.next_key()? {
            match key.as_ref() {
                "dtype" if dtype.is_none() => {
                    let Text(name) = map.next_value()?;
                    let Some(known) = Dtype::from_safetensors(&name) else {
                        *self.unknown_dtype = Some(name.into_owned());
                        return Err(de::Error::custom("unknown dtype"));
                    };
                    dtype = Some(known);
                }
                "shape" if !has_shape => {
                    map.next_value_seed(Numbers(&mut *self.shapes))?;
                    has_shape = true;
                }
                "data_offsets" if offsets.is_none() => {
                    let mut pair = Vec::with_capacity(2);
                    map.next_value_seed(Numbers(&mut pair))?;
                    let [begin, end] = pair[..] else {
                        let found = pair.len();
                        return Err(de::Error::custom(format_args!(
                            "data_offsets has {found} numbers, 2 are needed"
                        )));
                    };
                    offsets = Some((begin, end));
                }
                "dtype" | "shape" | "data_offsets" => {
                    return Err(de::Error::custom(format_args!("{key} is there twice")));
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let dtype = dtype.ok_or_else(|| de::Error::missing_field("dtype"))?;
        let (begin, end) = offsets.ok_or_else(|| de::Error::missing_field("data_offsets"))?;
        if !has_shape {
            return Err(de::Error::missing_field("shape"));
        }
        Ok(RowValue { dtype, begin, end })
    }
}

/// An array of 64-bit numbers, appended as they come: no length is believed in advance.
struct Numbers<'v>(&'v mut Vec<u64>);

impl<'de> DeserializeSeed<'de> for Numbers<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Numbers<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of whole numbers below 2^64")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(Whole(number)) = seq.next_element()? {
            self.0.push(number);
        }
        Ok(())
    }
}

/// A 64-bit number; serde's own message would round one that does not fit.
struct Whole(u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_u64(WholeVisitor).map(Whole)
    }
}

struct WholeVisitor;

impl Visitor<'_> for WholeVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number below 2^64")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<u64, E> {
        // JSON readers turn what does not fit into a float; a power of two stays exact.
        if number.fract() == 0.0 && (9e18..1e38).contains(&number.abs()) {
            return Err(E::custom(format_args!("{} does not fit 64 bits", number as i128)));
        }
        Err(E::custom(format_args!("{number:?} is no whole number below 2^64")))
    }
}

#[cfg(test)]
mod tests;
