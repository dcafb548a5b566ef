//! The project's own trace format, version 1: one JSON object a line.
//!
//! `FORMAT.md` beside this crate is the specification; this is its reader and its writer.
//! Both check a record by the same rules, so a file that [`JsonlWriter`] wrote is a file
//! that [`JsonlReader`] takes.

pub(crate) mod check;
mod read;
mod write;

pub use read::{JsonlReader, Tail, TornTail, Trace, read_all};
pub use write::{Dropped, JsonlWriter, TraceSummary};

use crate::error::TraceError;
use crate::ids::ModelShape;
use crate::route::MAX_TOP_K;
use serde::{Deserialize, Serialize};

/// The value of the header's `format` field.
pub const FORMAT_NAME: &str = "expert-tier-trace";
/// The version that this reader and writer know.
pub const FORMAT_VERSION: u64 = 1;
/// The longest line in bytes: room for the largest record that the other limits allow.
pub const MAX_LINE_BYTES: usize = 2 << 20;
/// The most tokens one record may have.
pub const MAX_TOKENS_PER_RECORD: usize = 8192;
/// The longest text of a header field in bytes.
pub const MAX_TEXT_BYTES: usize = 1024;

/// What a trace says about itself and its model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceHeader {
    /// The model's name, for people.
    pub model_name: String,
    /// Layers, experts and experts a token.
    pub shape: ModelShape,
    /// Bytes of one expert, where all are equal and the writer knew.
    pub expert_bytes: Option<u64>,
    /// The program that wrote the trace.
    pub created_by: String,
}

/// The header as it stands in the file.
#[derive(Serialize, Deserialize)]
pub(crate) struct RawHeader {
    format: String,
    version: u64,
    model: RawModel,
    #[serde(default)]
    created_by: String,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct RawModel {
    name: String,
    moe_layers: Vec<u16>,
    n_experts: u64,
    top_k: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expert_bytes: Option<u64>,
}

/// Counts of the last line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct RawEnd {
    records: u64,
    tokens: u64,
    dropped_records: u64,
    dropped_tokens: u64,
}

impl TraceHeader {
    /// Whether the header can describe a model.
    ///
    /// # Errors
    ///
    /// Names the field, its value and its range.
    pub(crate) fn check(&self, line: u64) -> Result<(), TraceError> {
        let shape = &self.shape;
        let range = |field, value: u64, min, max| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(TraceError::OutOfRange { line, field, value, min, max })
            }
        };
        range("model.n_experts", shape.n_experts.into(), 1, u16::MAX.into())?;
        let most = u64::from(shape.n_experts).min(MAX_TOP_K as u64);
        range("model.top_k", shape.top_k.into(), 1, most)?;
        range("model.moe_layers (count)", shape.moe_layers.len() as u64, 1, 1 << 16)?;
        for pair in shape.moe_layers.windows(2) {
            if pair[0] >= pair[1] {
                let (layer, previous) = (pair[1], pair[0]);
                return Err(TraceError::LayersNotAscending { line, layer, previous });
            }
        }
        let most = MAX_TEXT_BYTES as u64;
        range("model.name (bytes)", self.model_name.len() as u64, 0, most)?;
        range("created_by (bytes)", self.created_by.len() as u64, 0, most)
    }

    pub(crate) fn to_raw(&self) -> RawHeader {
        RawHeader {
            format: FORMAT_NAME.to_owned(),
            version: FORMAT_VERSION,
            model: RawModel {
                name: self.model_name.clone(),
                moe_layers: self.shape.moe_layers.clone(),
                n_experts: self.shape.n_experts.into(),
                top_k: self.shape.top_k.into(),
                expert_bytes: self.expert_bytes,
            },
            created_by: self.created_by.clone(),
        }
    }

    pub(crate) fn from_raw(raw: RawHeader, line: u64) -> Result<Self, TraceError> {
        let narrow = |field, value: u64| {
            u16::try_from(value).map_err(|_| TraceError::OutOfRange {
                line,
                field,
                value,
                min: 1,
                max: u16::MAX.into(),
            })
        };
        let header = Self {
            shape: ModelShape {
                n_experts: narrow("model.n_experts", raw.model.n_experts)?,
                top_k: narrow("model.top_k", raw.model.top_k)?,
                moe_layers: raw.model.moe_layers,
            },
            model_name: raw.model.name,
            expert_bytes: raw.model.expert_bytes,
            created_by: raw.created_by,
        };
        header.check(line)?;
        Ok(header)
    }
}
