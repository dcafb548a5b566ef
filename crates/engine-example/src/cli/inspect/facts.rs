//! Everything `inspect` says, as data.

use super::Rope;
use anyhow::Result;
use expert_tier::Pool;
use expert_tier::host::Storage;
use expert_tier::observe::SystemRoot;
use expert_tier::pool::{Dtype, HeadKind, PartRole, SetAside, Setting};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

const HEAD: &str = "lm_head.weight";

#[derive(Debug, Serialize)]
pub(super) struct Facts {
    pub(super) path: PathBuf,
    pub(super) format: &'static str,
    pub(super) files: Vec<FileFacts>,
    pub(super) file_bytes: u64,
    /// `None` without a config.
    pub(super) model_type: Option<String>,
    pub(super) num_hidden_layers: Option<u16>,
    /// Routed experts of all layers.
    pub(super) experts: usize,
    pub(super) expert_layers: Vec<u16>,
    /// Of the layer that has most; `fewest_experts_per_layer` differs in odd pools only.
    pub(super) experts_per_layer: usize,
    pub(super) fewest_experts_per_layer: usize,
    pub(super) top_k: Option<u16>,
    /// `None` without experts.
    pub(super) expert_bytes: Option<Sizes>,
    pub(super) expert_dtypes: Vec<Stored>,
    pub(super) placement: Placement,
    pub(super) spine_tensors: usize,
    /// A head that is the embedding counts once; a stored head that is not used, not at all.
    pub(super) spine_bytes: u64,
    pub(super) spine_dtypes: Vec<Stored>,
    pub(super) unused_head_bytes: u64,
    /// Tensors of the spine whose bytes do not lie at a multiple of their element's size.
    pub(super) unaligned_spine_tensors: Vec<String>,
    /// `None` where there is neither a head nor a whole model.
    pub(super) head: Option<HeadKind>,
    pub(super) tie_word_embeddings: Option<Setting<bool>>,
    /// Layers behind the last one that predict further tokens; not served.
    pub(super) extra_layers: Vec<u16>,
    pub(super) extra_experts: usize,
    /// Tensors of all layers behind the last one.
    pub(super) beyond_last_layer: SetAside,
    pub(super) foreign: SetAside,
    pub(super) unknown_expert_tensors: SetAside,
    /// `None` without a config, or where the key is absent and the family has no known default.
    pub(super) norm_topk_prob: Option<Setting<bool>>,
    pub(super) quantization: Option<String>,
    pub(super) rope: Option<Rope>,
    /// The softmax scale of latent attention.
    pub(super) attention_scale: Option<f64>,
    pub(super) storage: Option<Storage>,
    pub(super) warnings: Vec<String>,
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct FileFacts {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Sizes {
    pub(super) min: u64,
    pub(super) median: u64,
    pub(super) max: u64,
    pub(super) total: u64,
}

/// Tensors of one element type.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Stored {
    pub(super) dtype: String,
    pub(super) tensors: usize,
    pub(super) bytes: u64,
}

/// How the experts lie in their files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct Placement {
    /// Byte ranges that one expert is read in.
    pub(super) fewest_extents_per_expert: usize,
    pub(super) most_extents_per_expert: usize,
    /// Experts whose first byte is at a multiple of 2 MiB.
    pub(super) start_at_2mib: usize,
    pub(super) start_at_64kib: usize,
    pub(super) start_at_4kib: usize,
    /// Parts that a typed slice must copy: their bytes do not lie at a multiple of their
    /// element's size.
    pub(super) unaligned_parts: usize,
    pub(super) experts_with_unaligned_parts: usize,
}

impl Facts {
    /// # Errors
    /// What the config says about positions and cannot be right.
    pub(super) fn of(pool: &Pool) -> Result<Self> {
        let config = pool.config();
        let rope = config.map(Rope::of).transpose()?.flatten();
        let layout = pool.layout();
        let expert_layers: Vec<u16> = layout.moe_layers().collect();
        let counts = || expert_layers.iter().map(|&layer| layout.layer(layer).len());
        let head = pool.check_head().ok();
        let mut facts = Self {
            path: pool.root().to_owned(),
            format: pool.format().name(),
            files: files(pool),
            file_bytes: pool.files().iter().map(|file| file.identity.len).sum(),
            model_type: config.map(|config| config.model_type.clone()),
            num_hidden_layers: config.and_then(|config| config.num_hidden_layers),
            experts: layout.total_experts(),
            experts_per_layer: counts().max().unwrap_or(0),
            fewest_experts_per_layer: counts().min().unwrap_or(0),
            top_k: config.and_then(|config| config.top_k),
            expert_bytes: sizes(pool),
            expert_dtypes: expert_dtypes(pool),
            placement: placement(pool),
            spine_tensors: 0,
            spine_bytes: 0,
            spine_dtypes: Vec::new(),
            unused_head_bytes: 0,
            unaligned_spine_tensors: Vec::new(),
            head,
            tie_word_embeddings: config.and_then(|config| config.tie_word_embeddings),
            extra_layers: layout.extra_layers().map(|(layer, _)| layer).collect(),
            extra_experts: layout.extra_layers().map(|(_, experts)| experts).sum(),
            beyond_last_layer: pool.beyond_last_layer().clone(),
            foreign: pool.foreign().clone(),
            unknown_expert_tensors: pool.unknown_expert_tensors().clone(),
            norm_topk_prob: config.and_then(|config| config.norm_topk_prob),
            quantization: config.map(|config| config.quantization.to_string()),
            attention_scale: rope.as_ref().and_then(|rope| rope.attention_scale),
            rope,
            storage: storage(pool),
            warnings: Vec::new(),
            notes: Vec::new(),
            expert_layers,
        };
        facts.add_spine(pool);
        facts.add_notices(pool);
        Ok(facts)
    }

    fn add_spine(&mut self, pool: &Pool) {
        let mut tally = Tally::default();
        for (name, tensor) in pool.spine() {
            if self.head == Some(HeadKind::Tied) && name == HEAD {
                self.unused_head_bytes = tensor.extent.len;
                continue;
            }
            self.spine_tensors += 1;
            self.spine_bytes += tensor.extent.len;
            tally.add(tensor.dtype, tensor.extent.len);
            if !tensor.extent.offset.is_multiple_of(tensor.dtype.align_bytes()) {
                self.unaligned_spine_tensors.push(tensor.stored_name.clone());
            }
        }
        self.spine_dtypes = tally.stored();
    }

    fn add_notices(&mut self, pool: &Pool) {
        for notice in pool.notices() {
            let list = if notice.warning { &mut self.warnings } else { &mut self.notes };
            list.push(notice.text.clone());
        }
        // No router is needed here, so this is no error; but whoever decodes will meet one.
        if let Some(config) = pool.config().filter(|_| self.experts > 0)
            && let Err(error) = config.require_norm_topk_prob()
        {
            self.warnings.push(error.to_string());
        }
        let mapping = self.storage.as_ref().and_then(|storage| storage.fs.mapping_warning());
        self.warnings.extend(mapping);
    }
}

fn files(pool: &Pool) -> Vec<FileFacts> {
    let file = |file: &expert_tier::pool::PoolFile| FileFacts {
        path: file.path.clone(),
        bytes: file.identity.len,
    };
    pool.files().iter().map(file).collect()
}

fn sizes(pool: &Pool) -> Option<Sizes> {
    let mut bytes: Vec<u64> =
        pool.layout().iter().map(|(_, expert)| expert.nominal_bytes()).collect();
    bytes.sort_unstable();
    let total = bytes.iter().sum();
    Some(Sizes { min: *bytes.first()?, median: bytes[bytes.len() / 2], max: *bytes.last()?, total })
}

/// Tensors and bytes by element type; scales apart, they say what a weight's codes mean.
fn expert_dtypes(pool: &Pool) -> Vec<Stored> {
    let (mut weights, mut scales) = (Tally::default(), Tally::default());
    for part in pool.layout().iter().flat_map(|(_, expert)| &expert.parts) {
        let tally = match part.role {
            PartRole::Gate | PartRole::Up | PartRole::Down => &mut weights,
            PartRole::GateScale | PartRole::UpScale | PartRole::DownScale => &mut scales,
        };
        tally.add(part.dtype, part.extent.len);
    }
    let mut stored = weights.stored();
    stored.extend(
        scales
            .stored()
            .into_iter()
            .map(|scale| Stored { dtype: format!("{} scales", scale.dtype), ..scale }),
    );
    stored
}

#[derive(Default)]
struct Tally(BTreeMap<String, (usize, u64)>);

impl Tally {
    fn add(&mut self, dtype: Dtype, bytes: u64) {
        let name = match dtype.is_block() {
            true => dtype.name().to_owned(),
            false => format!("{dtype:?}").to_uppercase(),
        };
        let entry = self.0.entry(name).or_default();
        entry.0 += 1;
        entry.1 += bytes;
    }

    fn stored(self) -> Vec<Stored> {
        let stored = |(dtype, (tensors, bytes))| Stored { dtype, tensors, bytes };
        self.0.into_iter().map(stored).collect()
    }
}

fn placement(pool: &Pool) -> Placement {
    let mut placement = Placement { fewest_extents_per_expert: usize::MAX, ..Placement::default() };
    let mut unaligned = BTreeSet::new();
    for (id, expert) in pool.layout().iter() {
        let extents = expert.extents.len();
        placement.fewest_extents_per_expert = placement.fewest_extents_per_expert.min(extents);
        placement.most_extents_per_expert = placement.most_extents_per_expert.max(extents);
        let start = expert.extents.first().map_or(1, |extent| extent.offset);
        for (count, size) in [
            (&mut placement.start_at_2mib, 2 << 20),
            (&mut placement.start_at_64kib, 64 << 10),
            (&mut placement.start_at_4kib, 4 << 10),
        ] {
            *count += usize::from(start.is_multiple_of(size));
        }
        for part in &expert.parts {
            if !part.extent.offset.is_multiple_of(part.dtype.align_bytes()) {
                placement.unaligned_parts += 1;
                unaligned.insert(id);
            }
        }
    }
    placement.experts_with_unaligned_parts = unaligned.len();
    if placement.fewest_extents_per_expert == usize::MAX {
        placement.fewest_extents_per_expert = 0;
    }
    placement
}

/// What holds the first file speaks for all. It explains; a failed look is no failure.
fn storage(pool: &Pool) -> Option<Storage> {
    let file = pool.files().first()?;
    Storage::probe(&file.path, &SystemRoot::default()).ok()
}
