//! `pool.json`: a total parser, and the writer beside it.

use super::{ALIGN, PART_ALIGN, expert_name};
use crate::error::{OffsetProblem, TierError};
use crate::pool::json::Text;
use crate::pool::shards::unsafe_reason;
use crate::pool::{Dtype, PartRole};
use router_trace::ExpertId;
use serde::de::{self, Deserialize, Deserializer};
use serde::{Deserialize as DeriveDeserialize, Serialize, Serializer};
use std::path::Path;

const FORMAT: &str = "expert-tier-pool";
/// The version of pools whose spine is safetensors.
const VERSION: u64 = 1;
/// The version of pools whose spine is a GGUF file.
const GGUF_VERSION: u64 = 2;
/// The last number stays free, see `names`.
const MOST: u64 = u16::MAX as u64 - 1;

const ROLES: [(&str, PartRole); 6] = [
    ("gate", PartRole::Gate),
    ("gate-scale", PartRole::GateScale),
    ("up", PartRole::Up),
    ("up-scale", PartRole::UpScale),
    ("down", PartRole::Down),
    ("down-scale", PartRole::DownScale),
];

pub(super) fn role_name(role: PartRole) -> &'static str {
    ROLES[role as usize].0
}

/// `offset` rounded up to where the next part may begin.
pub(crate) fn padded(offset: u64) -> Option<u64> {
    offset.checked_next_multiple_of(PART_ALIGN)
}

/// The spine of a GGUF pool.
pub(crate) const GGUF_SPINE: &str = "spine.gguf";

/// The name of spine file `number` (from 0) of `total`.
pub(crate) fn spine_name(number: usize, total: usize) -> String {
    match total {
        1 => "spine.safetensors".to_owned(),
        _ => format!("spine-{:05}-of-{total:05}.safetensors", number + 1),
    }
}

/// A parsed and checked index.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) created_by: String,
    pub(crate) experts_len: u64,
    pub(crate) spine: Vec<SpineFile>,
    pub(crate) schemas: Vec<Schema>,
    /// By layer and index, none twice.
    pub(crate) experts: Vec<PlacedExpert>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SpineFile {
    pub(crate) file: String,
    pub(crate) len: u64,
    pub(crate) checksum: u64,
}

/// The form of an expert: its parts by role.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Schema {
    pub(crate) len: u64,
    pub(crate) parts: Vec<SchemaPart>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SchemaPart {
    pub(crate) role: PartRole,
    pub(crate) dtype: Dtype,
    pub(crate) rows: u32,
    pub(crate) cols: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlacedExpert {
    pub(crate) id: ExpertId,
    /// Place in [`Index::schemas`].
    pub(crate) schema: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) checksum: u64,
}

/// What must be known before anything else is looked at.
#[derive(DeriveDeserialize)]
struct Head<'a> {
    #[serde(borrow)]
    format: Text<'a>,
    version: u64,
}

#[derive(DeriveDeserialize)]
struct RawIndex<'a> {
    #[serde(borrow, default)]
    created_by: Option<Text<'a>>,
    align: u64,
    experts_len: u64,
    #[serde(borrow)]
    spine: Vec<RawSpine<'a>>,
    #[serde(borrow)]
    schemas: Vec<RawSchema<'a>>,
    experts: Vec<RawExpert>,
}

#[derive(DeriveDeserialize, Serialize)]
struct RawSpine<'a> {
    #[serde(borrow)]
    file: Text<'a>,
    len: u64,
    xxh3: Hex,
}

#[derive(DeriveDeserialize, Serialize)]
struct RawSchema<'a> {
    len: u64,
    #[serde(borrow)]
    parts: Vec<RawPart<'a>>,
}

#[derive(DeriveDeserialize, Serialize)]
struct RawPart<'a> {
    #[serde(borrow)]
    role: Text<'a>,
    #[serde(borrow)]
    dtype: Text<'a>,
    rows: u32,
    cols: u32,
    offset: u64,
    len: u64,
}

/// Layer, index, schema, offset, length, checksum.
#[derive(DeriveDeserialize, Serialize)]
struct RawExpert(u64, u64, u64, u64, u64, Hex);

/// 64 bits as 16 lower-case hex digits.
#[derive(Clone, Copy)]
struct Hex(u64);

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        let Text(text) = Text::deserialize(json)?;
        let digits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let wrong = || de::Error::custom(format_args!("{text:?} is not 16 lower-case hex digits"));
        if text.len() != 16 || !text.bytes().all(digits) {
            return Err(wrong());
        }
        u64::from_str_radix(&text, 16).map(Hex).map_err(|_| wrong())
    }
}

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, json: S) -> Result<S::Ok, S::Error> {
        json.collect_str(&format_args!("{:016x}", self.0))
    }
}

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, json: S) -> Result<S::Ok, S::Error> {
        json.serialize_str(&self.0)
    }
}

impl Index {
    /// Parses and checks the text of an index.
    pub(crate) fn parse(text: &[u8], path: &Path) -> Result<Self, TierError> {
        let at = At { path };
        let head: Head<'_> =
            serde_json::from_slice(text).map_err(|error| at.invalid(None, error.to_string()))?;
        if head.format.0 != FORMAT {
            return Err(TierError::NotAModel {
                path: path.to_owned(),
                reason: format!("format is {:?}, not {FORMAT:?}", head.format.0),
            });
        }
        if !matches!(head.version, VERSION | GGUF_VERSION) {
            let known = format!("{}, {VERSION} and {GGUF_VERSION} can be read", head.version);
            return Err(at.unsupported("version", known));
        }
        let raw: RawIndex<'_> =
            serde_json::from_slice(text).map_err(|error| at.invalid(None, error.to_string()))?;
        if raw.align != ALIGN {
            return Err(at.unsupported("align", format!("{}, {ALIGN} can be read", raw.align)));
        }
        let mut index = Self {
            created_by: raw.created_by.map(|text| text.0.into_owned()).unwrap_or_default(),
            experts_len: raw.experts_len,
            spine: at.spine(raw.spine)?,
            schemas: (0_usize..)
                .zip(&raw.schemas)
                .map(|(number, schema)| at.schema(number, schema))
                .collect::<Result<_, _>>()?,
            experts: Vec::with_capacity(raw.experts.len()),
        };
        for raw in raw.experts {
            let expert = at.expert(&raw, &index)?;
            index.experts.push(expert);
        }
        if index.version() != head.version {
            let spine: Vec<&str> = index.spine.iter().map(|spine| spine.file.as_str()).collect();
            let reason = format!("version {} with a spine of {spine:?}", head.version);
            return Err(at.invalid(None, reason));
        }
        if index.experts.is_empty() {
            return Err(at.invalid(None, "there are no experts"));
        }
        at.check_places(&mut index)?;
        Ok(index)
    }

    /// The version that can say it.
    fn version(&self) -> u64 {
        match self.spine.iter().any(|spine| spine.file == GGUF_SPINE) {
            true => GGUF_VERSION,
            false => VERSION,
        }
    }

    /// The text of the index.
    pub(crate) fn render(&self) -> String {
        let text = |text: &str| Text(text.to_owned().into());
        let mut out = String::with_capacity(self.experts.len() * 64 + 4096);
        out.push_str(&format!("{{\"format\":\"{FORMAT}\",\"version\":{},", self.version()));
        out.push_str(&format!("\"created_by\":{},", json(&text(&self.created_by))));
        out.push_str(&format!("\"align\":{ALIGN},\"experts_len\":{},", self.experts_len));
        let spine: Vec<_> = self
            .spine
            .iter()
            .map(|spine| RawSpine {
                file: text(&spine.file),
                len: spine.len,
                xxh3: Hex(spine.checksum),
            })
            .collect();
        out.push_str(&format!("\n\"spine\":{},\n\"schemas\":[", json(&spine)));
        for (number, schema) in self.schemas.iter().enumerate() {
            let parts = schema.parts.iter().map(|part| RawPart {
                role: text(role_name(part.role)),
                dtype: text(part.dtype.name()),
                rows: part.rows,
                cols: part.cols,
                offset: part.offset,
                len: part.len,
            });
            let schema = RawSchema { len: schema.len, parts: parts.collect() };
            out.push_str(if number == 0 { "\n" } else { ",\n" });
            out.push_str(&json(&schema));
        }
        out.push_str("\n],\n\"experts\":[");
        for (number, expert) in self.experts.iter().enumerate() {
            let row = RawExpert(
                expert.id.layer.into(),
                expert.id.index.into(),
                expert.schema.into(),
                expert.offset,
                expert.len,
                Hex(expert.checksum),
            );
            out.push_str(if number == 0 { "\n" } else { ",\n" });
            out.push_str(&json(&row));
        }
        out.push_str("\n]}\n");
        out
    }
}

/// JSON of plain data, which cannot fail.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data has a JSON form")
}

/// Errors that name the index.
struct At<'a> {
    path: &'a Path,
}

impl At<'_> {
    fn invalid(&self, entry: Option<String>, reason: impl Into<String>) -> TierError {
        let reason = reason.into();
        TierError::HeaderInvalid { path: self.path.to_owned(), tensor: entry, reason }
    }

    fn unsupported(&self, key: &str, reason: String) -> TierError {
        TierError::Unsupported { path: self.path.to_owned(), thing: key.to_owned(), reason }
    }

    fn bad_offsets(&self, tensor: String, problem: OffsetProblem) -> TierError {
        TierError::BadOffsets { path: self.path.to_owned(), tensor, problem }
    }

    fn duplicate(&self, name: String) -> TierError {
        TierError::DuplicateName { path: self.path.to_owned(), name, other: None }
    }

    fn misaligned(&self, tensor: String, offset: u64, alignment: u64) -> TierError {
        TierError::BadAlignment { path: self.path.to_owned(), tensor, offset, alignment }
    }

    fn spine(&self, raw: Vec<RawSpine<'_>>) -> Result<Vec<SpineFile>, TierError> {
        let mut files: Vec<SpineFile> = Vec::with_capacity(raw.len());
        for (number, raw) in raw.into_iter().enumerate() {
            let file = raw.file.0.into_owned();
            let reason = match unsafe_reason(&file) {
                None if file.contains('/') => Some("it is not in the pool's own folder"),
                reason => reason,
            };
            if let Some(reason) = reason {
                return Err(TierError::UnsafePath {
                    index: self.path.to_owned(),
                    entry: format!("spine {number}"),
                    value: file,
                    reason,
                });
            }
            files.push(SpineFile { file, len: raw.len, checksum: raw.xxh3.0 });
        }
        let mut sorted: Vec<&str> = files.iter().map(|spine| &*spine.file).collect();
        sorted.sort_unstable();
        match sorted.array_windows::<2>().find(|[a, b]| a == b) {
            Some([twice, _]) => Err(self.duplicate((*twice).to_owned())),
            None => Ok(files),
        }
    }

    fn schema(&self, number: usize, raw: &RawSchema<'_>) -> Result<Schema, TierError> {
        let mut parts: Vec<SchemaPart> = Vec::with_capacity(raw.parts.len().min(ROLES.len()));
        let mut end = 0_u64;
        for raw in &raw.parts {
            let name = format!("schema {number} {}", raw.role.0);
            let part = self.part(&name, raw)?;
            match parts.last() {
                Some(last) if last.role == part.role => return Err(self.duplicate(name)),
                Some(last) if last.role > part.role => {
                    let reason = format!("stands behind {}", role_name(last.role));
                    return Err(self.invalid(Some(name), reason));
                }
                _ => {}
            }
            if !part.offset.is_multiple_of(PART_ALIGN) {
                return Err(self.misaligned(name, part.offset, PART_ALIGN));
            }
            let (begin, part_end) = (part.offset, part.offset.checked_add(part.len));
            let Some(part_end) = part_end else {
                let problem = OffsetProblem::Outside { begin, end: u64::MAX, data_len: raw.len };
                return Err(self.bad_offsets(name, problem));
            };
            if begin < end {
                let other = parts.last().map_or("", |last| role_name(last.role)).to_owned();
                let problem =
                    OffsetProblem::Overlap { begin, end: part_end, other, other_end: end };
                return Err(self.bad_offsets(name, problem));
            }
            if padded(end) != Some(begin) {
                let problem = OffsetProblem::Hole { begin: end, end: begin };
                return Err(self.bad_offsets(name, problem));
            }
            end = part_end;
            parts.push(part);
        }
        if raw.len != end || parts.is_empty() {
            let reason = format!("len is {}, its {} parts end at {end}", raw.len, parts.len());
            return Err(self.invalid(Some(format!("schema {number}")), reason));
        }
        Ok(Schema { len: end, parts })
    }

    fn part(&self, name: &str, raw: &RawPart<'_>) -> Result<SchemaPart, TierError> {
        let role = ROLES.iter().find(|known| known.0 == raw.role.0);
        let Some(&(_, role)) = role else {
            return Err(self.invalid(Some(name.to_owned()), format!("role {:?}", raw.role.0)));
        };
        let Some(dtype) = Dtype::from_name(&raw.dtype.0) else {
            return Err(self.unsupported(name, format!("element type {:?}", raw.dtype.0)));
        };
        let shape = || vec![u64::from(raw.rows), u64::from(raw.cols)];
        if !u64::from(raw.cols).is_multiple_of(dtype.block_elements()) {
            let reason = format!(
                "a row has {} elements, {} needs a multiple of {}",
                raw.cols,
                dtype.name(),
                dtype.block_elements()
            );
            return Err(self.invalid(Some(name.to_owned()), reason));
        }
        let row = dtype.row_bytes(raw.cols.into());
        let needed = row.and_then(|row| row.checked_mul(raw.rows.into())).ok_or_else(|| {
            TierError::Overflow {
                path: self.path.to_owned(),
                tensor: name.to_owned(),
                dtype,
                shape: shape(),
            }
        })?;
        if needed != raw.len {
            return Err(TierError::SizeMismatch {
                path: self.path.to_owned(),
                tensor: name.to_owned(),
                dtype,
                shape: shape(),
                needed,
                present: raw.len,
            });
        }
        if needed == 0 {
            return Err(self.invalid(Some(name.to_owned()), "it has no bytes"));
        }
        let (rows, cols, offset, len) = (raw.rows, raw.cols, raw.offset, raw.len);
        Ok(SchemaPart { role, dtype, rows, cols, offset, len })
    }

    fn expert(&self, raw: &RawExpert, index: &Index) -> Result<PlacedExpert, TierError> {
        let &RawExpert(layer, number, schema, offset, len, Hex(checksum)) = raw;
        let narrow = |what: &str, value: u64| match u16::try_from(value) {
            Ok(small) if value <= MOST => Ok(small),
            _ => Err(TierError::Limit {
                path: self.path.to_owned(),
                what: format!("layer {layer} expert {number}: the {what} number"),
                value,
                most: MOST,
            }),
        };
        let id = ExpertId::new(narrow("layer", layer)?, narrow("expert", number)?);
        let known = u32::try_from(schema)
            .ok()
            .and_then(|place| Some((place, index.schemas.get(place as usize)?)));
        let Some((schema, form)) = known else {
            let reason = format!("schema {schema} of {}", index.schemas.len());
            return Err(self.invalid(Some(expert_name(id)), reason));
        };
        if form.len != len {
            let reason = format!("len is {len}, schema {schema} has {}", form.len);
            return Err(self.invalid(Some(expert_name(id)), reason));
        }
        if !offset.is_multiple_of(ALIGN) {
            return Err(self.misaligned(expert_name(id), offset, ALIGN));
        }
        let end = offset.checked_add(len).filter(|&end| end <= index.experts_len);
        if end.is_none() {
            let (end, data_len) = (offset.saturating_add(len), index.experts_len);
            let problem = OffsetProblem::Outside { begin: offset, end, data_len };
            return Err(self.bad_offsets(expert_name(id), problem));
        }
        Ok(PlacedExpert { id, schema, offset, len, checksum })
    }

    /// No expert twice, none over another, nothing behind the last; leaves them by id.
    fn check_places(&self, index: &mut Index) -> Result<(), TierError> {
        let experts = &mut index.experts;
        experts.sort_unstable_by_key(|expert| expert.offset);
        if let Some([a, b]) =
            experts.array_windows::<2>().find(|[a, b]| a.offset + a.len > b.offset)
        {
            let (begin, end) = (b.offset, b.offset + b.len);
            let (other, other_end) = (expert_name(a.id), a.offset + a.len);
            // One expert twice in one place is the same fault under its better name.
            if a.id == b.id {
                return Err(self.duplicate(other));
            }
            let problem = OffsetProblem::Overlap { begin, end, other, other_end };
            return Err(self.bad_offsets(expert_name(b.id), problem));
        }
        if let Some(last) = experts.last()
            && (last.offset + last.len).checked_next_multiple_of(ALIGN) != Some(index.experts_len)
        {
            let (end, data_len) = (last.offset + last.len, index.experts_len);
            let problem = OffsetProblem::Trailing { end, data_len };
            return Err(self.bad_offsets(expert_name(last.id), problem));
        }
        experts.sort_by_key(|expert| (expert.id.layer, expert.id.index));
        match experts.array_windows::<2>().find(|[a, b]| a.id == b.id) {
            Some([twice, _]) => Err(self.duplicate(expert_name(twice.id))),
            None => Ok(()),
        }
    }
}
