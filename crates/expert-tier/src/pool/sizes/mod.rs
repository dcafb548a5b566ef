//! How large a model is: pool, spine, one token's experts, key-value cache; from headers, or from
//! `config.json` alone, before anything was downloaded.

mod attention;
mod family;
mod headers;
mod stored;

pub use headers::{HeaderSizes, KnownSizes, PartSizes};

use super::config::CheckpointConfig;
use super::{HeadKind, Pool};
use crate::error::TierError;
use family::Inventory;
use router_trace::ModelShape;
use serde::Serialize;

/// Where sizes come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SizeSource {
    /// The headers of the checkpoint: what is there.
    Headers,
    /// `config.json`, by the family's layout: what would be there.
    Config,
}

/// What a model's parts need, in bytes. Tensors of other models in the same files (vision
/// towers) are in none of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ModelSizes {
    /// Where the sizes come from.
    pub source: SizeSource,
    /// `model_type` of the text model; empty without a config.
    pub model_type: String,
    /// Layers with experts, experts in each, experts that one token chooses in each.
    pub shape: ModelShape,
    /// The largest expert, its scales included.
    pub expert_bytes: u64,
    /// All routed experts.
    pub pool_bytes: u64,
    /// The experts that one token uses, each layer's `top_k`: what a cold token reads.
    pub token_bytes: u64,
    /// Everything that every token uses; an embedding that is the head counts once.
    pub spine_bytes: u64,
    /// The part of the spine that a token reads whole: without the embedding, of which it reads
    /// one row, unless that is the head too.
    pub spine_token_bytes: u64,
    /// Layers behind the last one that predict further tokens; downloaded, never served.
    pub beyond_bytes: u64,
    /// Stored shapes of packed weights; downloaded, never read.
    pub shape_tensor_bytes: u64,
    /// The key-value cache; `None` where the family's attention is not known.
    pub kv: Option<KvSizes>,
}

/// What the attention of one sequence keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct KvSizes {
    /// Elements for each token of context: keys and values, or the latent and the rotated key of
    /// multi-head latent attention.
    pub elements_per_token: u64,
    /// Bytes that do not grow: the F32 state of linear attention, and its convolutions' last
    /// inputs as F32.
    pub fixed_bytes: u64,
}

impl KvSizes {
    /// Bytes for a context of `tokens`, with `element_bytes` an element.
    #[must_use]
    pub fn bytes(&self, tokens: u64, element_bytes: u64) -> u64 {
        let growing = self.elements_per_token.saturating_mul(tokens).saturating_mul(element_bytes);
        growing.saturating_add(self.fixed_bytes)
    }
}

impl ModelSizes {
    /// The sizes of an open pool, to the byte.
    ///
    /// # Errors
    /// `config-inconsistent` without a config or without experts, since then no token is known.
    pub fn of_pool(pool: &Pool) -> Result<Self, TierError> {
        let missing = |reason: &str| TierError::NotAModel {
            path: pool.root().to_owned(),
            reason: reason.to_owned(),
        };
        let config = pool.config().ok_or_else(|| missing("no config.json beside the weights"))?;
        let top_k = config.require_top_k()?;
        let layout = pool.layout();
        if layout.total_experts() == 0 {
            return Err(missing("no routed experts: there is nothing to plan"));
        }
        let largest = |layer| {
            let sizes = layout.layer(layer).iter().map(super::ExpertLayout::nominal_bytes);
            sizes.max().unwrap_or(0)
        };
        let layers: Vec<u64> = layout.moe_layers().map(largest).collect();
        // A model that is not whole, or that has no head, is measured as it is.
        let tied = pool.check_head().ok() == Some(HeadKind::Tied);
        let spine = |skip_embedding: bool| -> u64 {
            let used = pool.spine().iter().filter(|(name, _)| match name.as_str() {
                "lm_head.weight" => !tied,
                "embed_tokens.weight" => !skip_embedding,
                _ => true,
            });
            used.map(|(_, tensor)| tensor.extent.len).sum()
        };
        let kv = Inventory::new(config).and_then(|inventory| inventory.kv()).ok();
        Ok(Self {
            source: SizeSource::Headers,
            model_type: config.model_type.clone(),
            shape: layout.shape(top_k),
            expert_bytes: layers.iter().copied().max().unwrap_or(0),
            pool_bytes: layout.total_bytes(),
            token_bytes: layers.iter().sum::<u64>().saturating_mul(top_k.into()),
            spine_bytes: spine(false),
            spine_token_bytes: spine(!tied),
            beyond_bytes: pool.beyond_last_layer().bytes,
            shape_tensor_bytes: pool.weight_shapes().map(|shape| shape.extent.len).sum(),
            kv,
        })
    }

    /// The sizes that `config` promises, for the families whose layout is known: `qwen3_moe`,
    /// `deepseek_v3`, `kimi_k2`, `kimi_linear`, `kimi_k3`; in BF16, F16 or F32, block FP8,
    /// symmetric packed integers or MXFP4.
    ///
    /// # Errors
    /// `unsupported` for another family or stored form; `config-inconsistent` for a key that is
    /// absent or out of its limits, by its name.
    pub fn of_config(config: &CheckpointConfig) -> Result<Self, TierError> {
        Inventory::new(config)?.sizes()
    }

    /// All bytes of the checkpoint that are the text model's: what a download brings.
    #[must_use]
    pub fn checkpoint_bytes(&self) -> u64 {
        [self.pool_bytes, self.spine_bytes, self.beyond_bytes, self.shape_tensor_bytes]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}
