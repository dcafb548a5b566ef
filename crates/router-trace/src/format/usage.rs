//! Usage files: how often each expert was used. Counts, not routes: no trace.

use super::colibri::quoted;
use super::input::{fill, open_input};
use super::jsonl::Tail;
use super::text::TextLines;
use crate::error::TraceError;
use crate::ids::ExpertId;
use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::{Path, PathBuf};

/// The most experts that a usage file may name (Kimi K3 has 82,432).
pub const MAX_USAGE_EXPERTS: usize = 1 << 20;
/// What inkling's dense layout begins with.
pub(super) const DENSE_MAGIC: [u8; 4] = *b"IKU1";
/// The version of colibri's text layout that is known.
const USAGE_VERSION: u64 = 1;
/// The engines that write usage files; a file names its own by the FNV-1a hash of the name.
const ENGINES: [&str; 6] = ["glm_moe_dsa", "inkling", "olmoe", "kimi_k3", "deepseek_v4", "qwen38"];

/// How often each expert was used, as colibri's `.coli_usage` tells it.
///
/// It can rank experts for a static policy; it cannot be simulated or measured for locality,
/// because the order of the uses is lost.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExpertUsage {
    /// Layers that the file says the model has; its last layer may have this number itself
    /// (a draft head's).
    pub n_layers: Option<u32>,
    /// Experts a layer that the file says the model has.
    pub n_experts: Option<u32>,
    /// The engine that wrote the file: its name, or its hash in hexadecimal digits.
    pub engine: Option<String>,
    counts: BTreeMap<ExpertId, u64>,
}

impl ExpertUsage {
    /// Reads a usage file: colibri's text, with or without its header, or inkling's dense
    /// layout; also gzip-compressed.
    ///
    /// # Errors
    ///
    /// Names the file, the line (or byte) and the rule that is broken: three numbers a line,
    /// ids within the dimensions that the header states, no expert twice, no cut line, at
    /// most [`MAX_USAGE_EXPERTS`] experts.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let named: Option<PathBuf> = Some(path.to_owned());
        open_input(path).and_then(Self::from_reader).map_err(|error| error.in_file(named.as_ref()))
    }

    /// As [`read`](Self::read), from an input that has no name and is not compressed.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn from_reader(mut input: Box<dyn BufRead + Send>) -> Result<Self, TraceError> {
        let head = input.fill_buf().map_err(|source| TraceError::Io {
            operation: "read",
            records: 0,
            bytes: 0,
            source,
        })?;
        if head.starts_with(&DENSE_MAGIC) { read_dense(input) } else { read_text(input) }
    }

    /// The experts that were used and how often, in the order of layers and indices.
    pub fn counts(&self) -> impl ExactSizeIterator<Item = (ExpertId, u64)> + '_ {
        self.counts.iter().map(|(&id, &count)| (id, count))
    }

    /// Uses of one expert.
    #[must_use]
    pub fn count(&self, id: ExpertId) -> u64 {
        self.counts.get(&id).copied().unwrap_or(0)
    }

    /// Uses of all experts together, at most `u64::MAX`.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.values().fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// The experts from the most used one on; equally used ones in the order of their ids.
    #[must_use]
    pub fn ranked(&self) -> Vec<(ExpertId, u64)> {
        let mut ranked: Vec<_> = self.counts().collect();
        ranked.sort_by_key(|&(id, count)| (std::cmp::Reverse(count), id));
        ranked
    }

    fn add(&mut self, line: u64, id: ExpertId, count: u64) -> Result<(), TraceError> {
        if self.counts.insert(id, count).is_some() {
            let reason = format!("{id} appears twice");
            return Err(TraceError::Text { line, reason });
        }
        if self.counts.len() > MAX_USAGE_EXPERTS {
            return Err(TraceError::Exceeds { line, what: "experts", limit: MAX_USAGE_EXPERTS });
        }
        Ok(())
    }
}

fn read_text(input: Box<dyn BufRead + Send>) -> Result<ExpertUsage, TraceError> {
    // A count that was cut is still a number, so a cut last line is refused.
    let mut lines = TextLines::new(input, Tail::Strict, true);
    let mut usage = ExpertUsage::default();
    while let Some((line, row)) = lines.next(|text, line| Ok((line, parse_row(text, line)?)))? {
        let wrong = |reason| Err(TraceError::Text { line, reason });
        match row {
            (-1, n_layers, n_experts) => {
                usage.n_layers = u32::try_from(n_layers).ok();
                usage.n_experts = u32::try_from(n_experts).ok();
            }
            (-2, version, engine) => {
                let found = u64::try_from(version).unwrap_or(u64::MAX);
                if found > USAGE_VERSION {
                    let supported = USAGE_VERSION;
                    return Err(TraceError::UnsupportedVersion { line, found, supported });
                }
                usage.engine = Some(engine_name(engine));
            }
            // Room that the format leaves for further header rows.
            (..=-3, _, _) => {}
            (layer, index, count) => {
                // The row of a draft head has the number of layers itself.
                let layers = usage.n_layers.map_or(1 << 16, |layers| u64::from(layers) + 1);
                let experts = usage.n_experts.map_or(1 << 16, u64::from);
                let layer = u64::try_from(layer).unwrap_or(u64::MAX);
                let index = u64::try_from(index).unwrap_or(u64::MAX);
                if layer >= layers || index >= experts {
                    return wrong(format!(
                        "layer {layer} expert {index} of {layers} layers and {experts} experts"
                    ));
                }
                let (Ok(layer), Ok(index)) = (u16::try_from(layer), u16::try_from(index)) else {
                    return wrong(format!("layer {layer} expert {index} is beyond 65535"));
                };
                usage.add(line, ExpertId { layer, index }, count)?;
            }
        }
    }
    Ok(usage)
}

fn parse_row(text: &[u8], line: u64) -> Result<(i64, i64, u64), TraceError> {
    let wrong = |reason| TraceError::Text { line, reason };
    let text = std::str::from_utf8(text).map_err(|error| wrong(format!("no text: {error}")))?;
    let fields: Vec<_> = text.split_ascii_whitespace().take(4).collect();
    let &[layer, index, count] = fields.as_slice() else {
        let found = if fields.len() > 3 { "more".to_owned() } else { fields.len().to_string() };
        return Err(wrong(format!("a usage row has 3 numbers, this one has {found}")));
    };
    let not = |name: &str, field| wrong(format!("field `{name}` is {}", quoted(field)));
    Ok((
        layer.parse().map_err(|_| not("layer", layer))?,
        index.parse().map_err(|_| not("expert", index))?,
        count.parse().map_err(|_| not("count", count))?,
    ))
}

fn engine_name(hash: u64) -> String {
    let known = ENGINES.iter().find(|name| u64::from(fnv1a(name.as_bytes())) == hash);
    known.map_or_else(|| format!("{hash:08x}"), |name| (*name).to_owned())
}

fn fnv1a(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(2_166_136_261, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619))
}

/// Inkling's layout: `IKU1`, layers, experts, then a count for each expert of each layer,
/// all 32 bits, little-endian.
fn read_dense(input: Box<dyn BufRead + Send>) -> Result<ExpertUsage, TraceError> {
    let mut input = Dense { input, offset: 0 };
    let mut head = [0; 12];
    input.take(&mut head)?;
    let field = |at: usize| {
        u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes of the head"))
    };
    let (layers, experts) = (field(4), field(8));
    if layers > 1 << 16 || experts > 1 << 16 {
        let reason = format!("{layers} layers of {experts} experts, at most 65536 of 65536");
        return Err(TraceError::Corrupt { offset: 4, reason });
    }
    let mut usage = ExpertUsage {
        n_layers: Some(layers),
        n_experts: Some(experts),
        engine: Some("inkling".to_owned()),
        ..ExpertUsage::default()
    };
    let mut row = vec![0; 4 * experts as usize];
    for layer in 0..layers {
        input.take(&mut row)?;
        for (index, count) in row.chunks_exact(4).enumerate() {
            let count = u32::from_le_bytes(count.try_into().expect("chunks of four bytes"));
            if count > 0 {
                let id = ExpertId::new(layer as u16, index as u16);
                usage.add(1, id, count.into())?;
            }
        }
    }
    let offset = input.offset;
    if input.read(&mut [0])? > 0 {
        let reason = "data after the last count".to_owned();
        return Err(TraceError::Corrupt { offset, reason });
    }
    Ok(usage)
}

/// An input and how far it was read.
struct Dense {
    input: Box<dyn BufRead + Send>,
    offset: u64,
}

impl Dense {
    /// Fills `buffer`, or says how much of it there is.
    fn take(&mut self, buffer: &mut [u8]) -> Result<(), TraceError> {
        let (offset, needed) = (self.offset, buffer.len() as u64);
        let present = self.read(buffer)?;
        if present < needed {
            return Err(TraceError::TornBlock { offset, needed, present, records: 0 });
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<u64, TraceError> {
        let bytes = self.offset;
        let read = fill(&mut self.input, buffer).map_err(|source| TraceError::Io {
            operation: "read",
            records: 0,
            bytes,
            source,
        })? as u64;
        self.offset += read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_known_by_their_hash() {
        assert_eq!(fnv1a(b"glm_moe_dsa"), 3_815_245_270);
        assert_eq!(engine_name(3_815_245_270), "glm_moe_dsa");
        assert_eq!(engine_name(0xbeef), "0000beef");
    }
}
