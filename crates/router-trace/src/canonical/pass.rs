use crate::error::TraceError;
use crate::ids::ModelShape;
use crate::row_fault::RowFault;
use xxhash_rust::xxh3::xxh3_128;

/// One checked row of a pass.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) line: u64,
    pub(super) position: Option<u64>,
    /// Tokens that are not padding.
    pub(super) tokens: usize,
    /// Their ids; empty where the row is so wide that its pass will be dropped.
    pub(super) experts: Vec<u16>,
    /// Of all ids, kept or not.
    pub(super) hash: u128,
}

impl Entry {
    /// An entry of `experts`, `top_k` a token, that keeps the ids of at most `most` tokens.
    pub(super) fn new(
        line: u64,
        position: Option<u64>,
        top_k: u16,
        mut experts: Vec<u16>,
        most: usize,
    ) -> Self {
        let tokens = experts.len() / usize::from(top_k);
        let bytes: Vec<u8> = experts.iter().flat_map(|id| id.to_le_bytes()).collect();
        let hash = xxh3_128(&bytes);
        if tokens > most {
            experts = Vec::new();
        }
        Self { line, position, tokens, experts, hash }
    }
}

/// The rows of one forward pass: at most one a layer, in the order of the model's layers.
#[derive(Debug)]
pub(super) struct Pass {
    entries: Vec<Option<Entry>>,
    filled: usize,
    last_place: Option<usize>,
    last_line: u64,
    uniform: Uniform,
}

/// Whether all tokens of all layers have one and the same list.
#[derive(Debug)]
enum Uniform {
    Nothing,
    Same(Vec<u16>),
    Differs,
}

/// What a whole pass is.
pub(super) enum Width {
    /// Nothing but padding.
    Padding,
    /// Tokens of a prompt.
    Prefill,
    /// So many tokens, at most the drafts that are tried at once and one more.
    Decode(usize),
}

impl Pass {
    pub(super) fn new(layers: usize) -> Self {
        let entries = std::iter::repeat_with(|| None).take(layers).collect();
        Self { entries, filled: 0, last_place: None, last_line: 0, uniform: Uniform::Nothing }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    pub(super) fn has(&self, place: usize) -> bool {
        self.entries[place].is_some()
    }

    pub(super) fn is_whole(&self) -> bool {
        self.filled == self.entries.len()
    }

    pub(super) fn records(&self) -> u64 {
        self.filled as u64
    }

    /// Place of the row that was added last.
    pub(super) fn last_place(&self) -> Option<usize> {
        self.last_place
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }

    /// Tokens, once a layer.
    pub(super) fn layer_tokens(&self) -> u64 {
        self.entries().map(|entry| entry.tokens as u64).sum()
    }

    pub(super) fn first_line(&self) -> u64 {
        self.entries().map(|entry| entry.line).min().unwrap_or(self.last_line)
    }

    /// Adds the row of a layer that has none yet; `routes` are its ids, `top_k` a token.
    pub(super) fn add(&mut self, place: usize, entry: Entry, routes: &[u16], top_k: u16) {
        for route in routes.chunks(usize::from(top_k)) {
            match &self.uniform {
                Uniform::Nothing => self.uniform = Uniform::Same(route.to_vec()),
                Uniform::Same(first) if first == route => {}
                Uniform::Same(_) | Uniform::Differs => {
                    self.uniform = Uniform::Differs;
                    break;
                }
            }
        }
        self.last_line = entry.line;
        self.last_place = Some(place);
        debug_assert!(self.entries[place].is_none());
        self.entries[place] = Some(entry);
        self.filled += 1;
    }

    pub(super) fn is_uniform(&self) -> bool {
        matches!(self.uniform, Uniform::Same(_))
    }

    /// What this pass is, if it has every layer and as many tokens at each.
    pub(super) fn width(
        &self,
        token: u64,
        shape: &ModelShape,
        max_draft: usize,
    ) -> Result<Width, TraceError> {
        if !self.is_whole() {
            return Err(self.missing(token, shape));
        }
        let widest = self.entries().map(|entry| entry.tokens).max().unwrap_or(0);
        if widest == 0 {
            return Ok(Width::Padding);
        }
        // Not even: engines compute the last layer of a prompt for its last token only.
        if widest > max_draft {
            return Ok(Width::Prefill);
        }
        let mut expected = None;
        for (entry, &layer) in self.entries().zip(&shape.moe_layers) {
            let (found, expected) = (entry.tokens, *expected.get_or_insert(entry.tokens));
            if found != expected {
                let fault = RowFault::Uneven { found, expected };
                return Err(TraceError::Row { line: entry.line, token, layer, fault });
            }
        }
        Ok(Width::Decode(widest))
    }

    fn missing(&self, token: u64, shape: &ModelShape) -> TraceError {
        let layers = || self.entries.iter().zip(&shape.moe_layers);
        let present: Vec<_> =
            layers().filter(|(entry, _)| entry.is_some()).map(|(_, layer)| *layer).collect();
        let missing = layers().find(|(entry, _)| entry.is_none()).map_or(0, |(_, layer)| *layer);
        let mut text = present.iter().take(4).map(u16::to_string).collect::<Vec<_>>().join(", ");
        text.push_str(match present.len() {
            0..=4 => " only",
            _ => ", …",
        });
        TraceError::MissingLayers {
            line: self.last_line,
            token,
            found: present.len(),
            expected: self.entries.len(),
            present: format!("layer {text}"),
            missing,
        }
    }

    /// The ids of the pass's first token, layer after layer.
    pub(super) fn first_token(&self, top_k: u16) -> Vec<u16> {
        let width = usize::from(top_k);
        self.entries().flat_map(|entry| entry.experts.iter().take(width)).copied().collect()
    }

    /// The rows, with the place of each in the model's layers.
    pub(super) fn into_entries(self) -> impl Iterator<Item = (usize, Entry)> {
        self.entries.into_iter().enumerate().filter_map(|(place, entry)| Some((place, entry?)))
    }
}
