//! Where everything will lie: fixed before the first write, the same in every run.

use super::source::{GgufHead, PackExpert, PackSource, PackTensor};
use crate::error::TierError;
use crate::pool::gguf;
use crate::pool::packed::{self, ALIGN, Index, PlacedExpert, Schema, SchemaPart};
use std::collections::HashMap;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

/// The plan of a packed pool.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) schemas: Vec<Schema>,
    /// By layer and index, one behind the other; checksums are not known yet.
    pub(super) experts: Vec<PlacedExpert>,
    pub(super) experts_len: u64,
    pub(super) spine: Vec<SpineShard>,
    /// Stands for all of it and for the source.
    pub(super) fingerprint: u64,
}

/// One file of the spine.
#[derive(Debug)]
pub(super) struct SpineShard {
    pub(super) name: String,
    /// The file up to its data.
    pub(super) head: Vec<u8>,
    /// In order.
    pub(super) tensors: Vec<ShardTensor>,
    pub(super) len: u64,
}

/// One tensor of a file of the spine.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardTensor {
    /// Place in the source's spine.
    pub(super) place: usize,
    pub(super) len: u64,
    /// Zero bytes behind it.
    pub(super) padding: u64,
}

impl Plan {
    pub(super) fn new(
        source: &dyn PackSource,
        spine_shard_bytes: u64,
        out: &Path,
    ) -> Result<Self, TierError> {
        let (schemas, experts, experts_len) = place(&source.experts(), out)?;
        let tensors = source.spine();
        let spine = match source.gguf()? {
            Some(head) => vec![gguf_shard(&tensors, &head, out)?],
            None => cut(&tensors, spine_shard_bytes, out)?,
        };
        let mut hash = Xxh3::new();
        for line in source.identity() {
            hash.update(line.as_bytes());
            hash.update(b"\n");
        }
        for shard in &spine {
            hash.update(shard.name.as_bytes());
            hash.update(&shard.head);
        }
        let mut plan = Self { schemas, experts, experts_len, spine, fingerprint: 0 };
        hash.update(plan.index("", Vec::new()).render().as_bytes());
        plan.fingerprint = hash.digest();
        Ok(plan)
    }

    /// The index, as far as the plan knows it.
    pub(super) fn index(&self, created_by: &str, spine: Vec<packed::SpineFile>) -> Index {
        Index {
            created_by: created_by.to_owned(),
            experts_len: self.experts_len,
            spine,
            schemas: self.schemas.clone(),
            experts: self.experts.clone(),
        }
    }

    pub(super) fn expert_bytes(&self) -> u64 {
        self.experts.iter().map(|expert| expert.len).sum()
    }

    pub(super) fn spine_bytes(&self) -> u64 {
        self.spine.iter().map(|shard| shard.len).sum()
    }
}

fn refused(out: &Path, thing: String, reason: &str) -> TierError {
    TierError::Unsupported { path: out.to_owned(), thing, reason: reason.to_owned() }
}

fn place(
    experts: &[PackExpert],
    out: &Path,
) -> Result<(Vec<Schema>, Vec<PlacedExpert>, u64), TierError> {
    assert!(
        experts.array_windows::<2>().all(|[a, b]| a.id < b.id),
        "a source's experts are sorted and unique"
    );
    if experts.is_empty() {
        let reason = "there are no routed experts to pack";
        return Err(refused(out, "packed pool".to_owned(), reason));
    }
    let mut schemas = Vec::new();
    let mut known: HashMap<Schema, u32> = HashMap::new();
    let mut placed = Vec::with_capacity(experts.len());
    let mut offset = 0_u64;
    for expert in experts {
        let name = format!("layer {} expert {}", expert.id.layer, expert.id.index);
        let schema = schema(expert).ok_or_else(|| {
            refused(
                out,
                name.clone(),
                "a tensor of it is empty or too large or cuts a block, or a role is twice there",
            )
        })?;
        let len = schema.len;
        let place = *known.entry(schema).or_insert_with_key(|schema| {
            schemas.push(schema.clone());
            schemas.len() as u32 - 1
        });
        placed.push(PlacedExpert { id: expert.id, schema: place, offset, len, checksum: 0 });
        let next = offset.checked_add(len).and_then(|end| end.checked_next_multiple_of(ALIGN));
        offset = next.filter(|&end| i64::try_from(end).is_ok()).ok_or_else(|| {
            refused(out, name, "the experts file would be longer than any file can be")
        })?;
    }
    Ok((schemas, placed, offset))
}

fn schema(expert: &PackExpert) -> Option<Schema> {
    let mut parts: Vec<SchemaPart> = Vec::with_capacity(expert.parts.len());
    let mut end = 0_u64;
    for part in &expert.parts {
        let row = part.dtype.row_bytes(part.cols.into())?;
        let len = row.checked_mul(part.rows.into()).filter(|&len| len > 0)?;
        if parts.last().is_some_and(|last| last.role >= part.role) {
            return None;
        }
        let offset = packed::padded(end)?;
        end = offset.checked_add(len)?;
        let (role, dtype, rows, cols) = (part.role, part.dtype, part.rows, part.cols);
        parts.push(SchemaPart { role, dtype, rows, cols, offset, len });
    }
    (!parts.is_empty()).then_some(Schema { len: end, parts })
}

fn cut(tensors: &[PackTensor], shard_bytes: u64, out: &Path) -> Result<Vec<SpineShard>, TierError> {
    let mut shards: Vec<Vec<ShardTensor>> = Vec::new();
    let mut filled = 0_u64;
    for (place, tensor) in tensors.iter().enumerate() {
        let len = tensor_bytes(tensor, out)?;
        let member = ShardTensor { place, len, padding: 0 };
        let full = filled.checked_add(len).is_none_or(|bytes| bytes > shard_bytes);
        match shards.last_mut() {
            Some(shard) if !full => {
                shard.push(member);
                filled += len;
            }
            _ => {
                shards.push(vec![member]);
                filled = len;
            }
        }
    }
    let total = shards.len();
    let named = shards.into_iter().enumerate().map(|(number, members)| {
        let head = head(tensors, &members, out)?;
        let len = head.len() as u64 + members.iter().map(|member| member.len).sum::<u64>();
        Ok(SpineShard { name: packed::spine_name(number, total), head, tensors: members, len })
    });
    named.collect()
}

/// Bytes of a tensor whose rows are whole blocks.
fn tensor_bytes(tensor: &PackTensor, out: &Path) -> Result<u64, TierError> {
    let (row, outer) = tensor.shape.split_last().unwrap_or((&1, &[]));
    let row = tensor.dtype.row_bytes(*row);
    outer
        .iter()
        .try_fold(row, |bytes, &dim| Some(bytes?.checked_mul(dim)))
        .flatten()
        .ok_or_else(|| refused(out, tensor.name.clone(), "its size does not fit 64 bits"))
}

/// The dense part of a GGUF pool in one file of its own kind, which keeps the metadata.
fn gguf_shard(
    tensors: &[PackTensor],
    source: &GgufHead,
    out: &Path,
) -> Result<SpineShard, TierError> {
    let mut members = Vec::with_capacity(tensors.len());
    for (place, tensor) in tensors.iter().enumerate() {
        let len = tensor_bytes(tensor, out)?;
        members.push(ShardTensor { place, len, padding: gguf::padding(len) });
    }
    let listed: Vec<gguf::Listed<'_>> = tensors
        .iter()
        .zip(&source.names)
        .zip(&members)
        .map(|((tensor, name), member)| gguf::Listed {
            name,
            dtype: tensor.dtype,
            shape: &tensor.shape,
            len: member.len,
        })
        .collect();
    let head = source.pairs.head(&listed).ok_or_else(|| {
        refused(
            out,
            packed::GGUF_SPINE.to_owned(),
            "a tensor of it is too large, or of no GGUF type",
        )
    })?;
    let data: u64 = members.iter().map(|member| member.len + member.padding).sum();
    let len = head.len() as u64 + data;
    Ok(SpineShard { name: packed::GGUF_SPINE.to_owned(), head, tensors: members, len })
}

/// The length field and the header of a safetensors file.
fn head(tensors: &[PackTensor], members: &[ShardTensor], out: &Path) -> Result<Vec<u8>, TierError> {
    let mut text = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let mut at = 0_u64;
    for &ShardTensor { place, len, .. } in members {
        let tensor = &tensors[place];
        let name = packed::stored_name(&tensor.name)
            .ok_or_else(|| refused(out, tensor.name.clone(), "no name of a spine tensor"))?;
        let name = serde_json::Value::String(name);
        let (dtype, shape) = (tensor.dtype.name(), &tensor.shape);
        text.push_str(&format!(
            ",{name}:{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{at},{}]}}",
            at + len
        ));
        at += len;
    }
    text.push('}');
    // The data begins at a multiple of 64.
    while !(text.len() + 8).is_multiple_of(64) {
        text.push(' ');
    }
    let mut head = (text.len() as u64).to_le_bytes().to_vec();
    head.extend_from_slice(text.as_bytes());
    Ok(head)
}
