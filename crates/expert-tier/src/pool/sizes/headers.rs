//! Sizes of a GGUF model by its headers alone: before its data has arrived, or some of its files.

use super::family::Inventory;
use super::{KvSizes, ModelSizes};
use crate::error::TierError;
use crate::pool::collect::{Collected, Stack};
use crate::pool::config::CheckpointConfig;
use crate::pool::expert::PartRole;
use crate::pool::names::{StackKind, spine_layer};
use crate::pool::{Pool, gguf, packed, source};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What the headers that are there say of a GGUF model.
#[derive(Debug)]
pub struct HeaderSizes {
    /// Its sizes, as far as they are known.
    pub sizes: KnownSizes,
    /// What opening the pool would refuse: data and files that are not there.
    pub lacking: Vec<TierError>,
}

/// All sizes, or some.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KnownSizes {
    /// Every header is there: all sizes, to the byte.
    All(ModelSizes),
    /// Headers of a split set are not there.
    Part(PartSizes),
}

/// What is known of a split set of which some headers are not there. Nothing in it is an
/// estimate: it is what the metadata says, and what is in the headers that were read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PartSizes {
    /// `model_type` of the text model; empty where the file with the metadata is not there.
    pub model_type: String,
    /// Layers, without those that predict further tokens.
    pub layers: Option<u16>,
    /// Experts in each layer that has any.
    pub n_experts: Option<u16>,
    /// Experts that one token chooses in one layer.
    pub top_k: Option<u16>,
    /// The layers with experts; `None` where only tensors tell which these are (Qwen).
    pub expert_layers: Option<Vec<u16>>,
    /// The key-value cache; `None` where the family's attention is not known.
    pub kv: Option<KvSizes>,
    /// Files whose header is there.
    pub files: usize,
    /// Files of the set.
    pub files_in_all: usize,
    /// Tensors in the headers.
    pub tensors: usize,
    /// Tensors of the set, where a header says how many.
    pub tensors_in_all: Option<usize>,
    /// Layers all of whose experts are in the headers.
    pub whole_layers: Vec<u16>,
    /// The largest expert of these layers, in bytes.
    pub expert_bytes: Option<u64>,
    /// Bytes of experts in the headers: the pool has at least so many.
    pub pool_bytes: u64,
    /// Bytes of dense tensors in the headers: the spine has at least so many.
    pub spine_bytes: u64,
}

impl HeaderSizes {
    /// Reads the headers that are there of what `path` means: a GGUF file, any file of a split
    /// set, or the folder of one. `None` where it means no GGUF model.
    ///
    /// # Errors
    /// What is wrong with a header, as [`Pool::open`] tells it; `header-truncated` for one that
    /// has not arrived itself.
    pub fn read(path: impl AsRef<Path>) -> Result<Option<Self>, TierError> {
        let path = path.as_ref();
        let Some(mut collected) = source::collect_headers(path)? else { return Ok(None) };
        let lacking = std::mem::take(&mut collected.lacking);
        let files = lacking.iter().find(|error| matches!(error, TierError::MissingShard { .. }));
        let sizes = match files {
            Some(files) => KnownSizes::Part(PartSizes::of(&collected, files)?),
            None => {
                let pool = Pool::of(path, None, collected, packed::Checksums::default())?;
                KnownSizes::All(ModelSizes::of_pool(&pool)?)
            }
        };
        Ok(Some(Self { sizes, lacking }))
    }
}

impl PartSizes {
    fn of(collected: &Collected, files: &TierError) -> Result<Self, TierError> {
        let config = match &collected.gguf {
            Some(metadata) => Some(gguf::checkpoint(metadata, &collected.spine, true)?),
            None => None,
        };
        let config = config.as_ref();
        let layers = config.and_then(|config| config.num_hidden_layers);
        let served = move |layer: u64| layers.is_none_or(|layers| layer < u64::from(layers));
        let stacks =
            move || collected.stacks.iter().filter(move |stack| served(stack.layer.into()));
        let mut by_layer: BTreeMap<u16, Vec<&Stack>> = BTreeMap::new();
        for stack in stacks() {
            by_layer.entry(stack.layer).or_default().push(stack);
        }
        by_layer.retain(|_, stacks| is_whole(stacks));
        let spine =
            collected.spine.iter().filter(move |(name, _)| spine_layer(name).is_none_or(served));
        let mut part = Self {
            model_type: config.map(|config| config.model_type.clone()).unwrap_or_default(),
            layers,
            n_experts: config.and_then(|config| config.n_experts),
            top_k: config.and_then(|config| config.top_k),
            expert_layers: config.and_then(expert_layers),
            kv: config.and_then(|config| Inventory::new(config).ok()?.kv().ok()),
            files: collected.files.len(),
            files_in_all: collected.files.len(),
            tensors: 0,
            tensors_in_all: None,
            expert_bytes: by_layer.values().filter_map(|stacks| expert_bytes(stacks)).max(),
            whole_layers: by_layer.into_keys().collect(),
            pool_bytes: stacks().map(|stack| stack.extent.len).sum(),
            spine_bytes: spine.map(|(_, tensor)| tensor.extent.len).sum(),
        };
        if let TierError::MissingShard { total, tensors, unreachable, .. } = files {
            part.files_in_all = *total;
            part.tensors = tensors - unreachable;
            // Where no header says how many there are, those that are there were counted.
            part.tensors_in_all = (*unreachable > 0).then_some(*tensors);
        }
        Ok(part)
    }
}

fn expert_layers(config: &CheckpointConfig) -> Option<Vec<u16>> {
    let layers = config.expert_layers.clone().filter(|layers| !layers.is_empty())?;
    (!gguf::tensors_tell_dense_layers(&config.model_type)).then_some(layers)
}

fn is_whole(stacks: &[&Stack]) -> bool {
    let has = |kind: StackKind| stacks.iter().any(|stack| stack.kind == kind);
    let [gate, up, down] = [PartRole::Gate, PartRole::Up, PartRole::Down].map(StackKind::One);
    has(down) && (has(StackKind::GateUp) || has(gate) && has(up))
}

/// Bytes of one expert of a whole layer.
fn expert_bytes(stacks: &[&Stack]) -> Option<u64> {
    let experts = *stacks.first()?.shape.first()?;
    let bytes: u64 = stacks.iter().map(|stack| stack.extent.len).sum();
    bytes.checked_div(experts)
}
