use super::dtype::Dtype;
use router_trace::{ExpertId, ModelShape};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a part is for. Scales belong to the weight of the same projection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartRole {
    /// Gate projection, `[intermediate, hidden]`.
    Gate,
    /// Scales of the gate projection.
    GateScale,
    /// Up projection, `[intermediate, hidden]`.
    Up,
    /// Scales of the up projection.
    UpScale,
    /// Down projection, `[hidden, intermediate]`.
    Down,
    /// Scales of the down projection.
    DownScale,
}

/// A byte range of one file of the pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub struct Extent {
    /// Index into [`crate::Pool::files`].
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// Length in bytes; zero only for an empty tensor, never in [`ExpertLayout::extents`].
    pub len: u64,
}

impl Extent {
    /// One past the last byte. The parsers checked that it does not overflow.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// One tensor of one expert, as it is stored: for packed weights `cols` counts stored elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Part {
    /// What it is for.
    pub role: PartRole,
    /// Stored element type.
    pub dtype: Dtype,
    /// Stored rows (1 for a scalar or a vector).
    pub rows: u32,
    /// Stored columns (1 for a scalar).
    pub cols: u32,
    /// Where its bytes lie.
    pub extent: Extent,
}

/// Where one expert's bytes lie.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ExpertLayout {
    /// The tensors, sorted by role, each role at most once.
    pub parts: Box<[Part]>,
    /// The byte ranges that cover all parts, ascending, joined across gaps of at most 16 KiB:
    /// the unit of I/O.
    pub extents: Box<[Extent]>,
}

impl ExpertLayout {
    /// Bytes of all parts: what one use of the expert must read.
    #[must_use]
    pub fn nominal_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.extent.len).sum()
    }

    /// The part with this role.
    #[must_use]
    pub fn part(&self, role: PartRole) -> Option<&Part> {
        self.parts.iter().find(|part| part.role == role)
    }
}

/// Where every routed expert of a model lies. Immutable once a pool is open.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolLayout {
    layers: BTreeMap<u16, Vec<ExpertLayout>>,
    /// Layers past the model's last one that predict further tokens (MTP); never served.
    extra_layers: BTreeMap<u16, usize>,
}

impl PoolLayout {
    /// A layout from complete layers (expert index = position) and the extra prediction
    /// layers with their expert counts.
    #[must_use]
    pub fn new(
        layers: BTreeMap<u16, Vec<ExpertLayout>>,
        extra_layers: BTreeMap<u16, usize>,
    ) -> Self {
        Self { layers, extra_layers }
    }

    /// The layers that have routed experts, ascending.
    pub fn moe_layers(&self) -> impl ExactSizeIterator<Item = u16> + '_ {
        self.layers.keys().copied()
    }

    /// Extra prediction layers and the experts found in each.
    pub fn extra_layers(&self) -> impl ExactSizeIterator<Item = (u16, usize)> + '_ {
        self.extra_layers.iter().map(|(&layer, &experts)| (layer, experts))
    }

    /// The experts of a layer, by index; empty for a layer without any.
    #[must_use]
    pub fn layer(&self, layer: u16) -> &[ExpertLayout] {
        self.layers.get(&layer).map_or(&[], Vec::as_slice)
    }

    /// One expert.
    #[must_use]
    pub fn expert(&self, id: ExpertId) -> Option<&ExpertLayout> {
        self.layer(id.layer).get(usize::from(id.index))
    }

    /// Every expert, by layer and index.
    pub fn iter(&self) -> impl Iterator<Item = (ExpertId, &ExpertLayout)> {
        self.layers.iter().flat_map(|(&layer, experts)| {
            (0_u16..).zip(experts).map(move |(index, expert)| (ExpertId::new(layer, index), expert))
        })
    }

    /// Routed experts in all layers.
    #[must_use]
    pub fn total_experts(&self) -> usize {
        self.layers.values().map(Vec::len).sum()
    }

    /// Bytes of all routed experts.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.iter().map(|(_, expert)| expert.nominal_bytes()).sum()
    }

    /// The shape a trace of this pool has; `top_k` comes from the model's config.
    #[must_use]
    pub fn shape(&self, top_k: u16) -> ModelShape {
        let n_experts = self.layers.values().map(Vec::len).max().unwrap_or(0);
        ModelShape {
            moe_layers: self.moe_layers().collect(),
            n_experts: u16::try_from(n_experts).unwrap_or(u16::MAX),
            top_k,
        }
    }
}
