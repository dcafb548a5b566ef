use super::LayerGate;
use crate::config::{AttentionConfig, ModelConfig, MoeConfig, RouterConfig};
use crate::error::EngineError;
use crate::linear::Linear;
use crate::router::{GroupScratch, Routed, Router, SigmoidGrouped, SoftmaxTopK};
use crate::spine::{
    DenseMlp, GroupedQueryAttention, KvCache, LatentAttention, RmsNorm, Rotation, RowCache,
    with_f32,
};
use crate::weights::SpineWeights;
use candle_core::{Device, Tensor};

/// One layer: something that looks at earlier tokens, then an MLP, each behind a norm.
#[derive(Debug)]
pub(super) struct Layer {
    input_norm: RmsNorm,
    attention: Attention,
    post_attention_norm: RmsNorm,
    mlp: Mlp,
}

#[derive(Debug)]
enum Attention {
    Grouped(GroupedQueryAttention),
    Latent(LatentAttention),
}

/// What a layer keeps of the sequence.
#[derive(Debug)]
pub(super) enum LayerCache {
    Grouped(KvCache),
    Latent(RowCache),
}

#[derive(Debug)]
pub(super) enum Mlp {
    Dense(DenseMlp),
    Routed(RoutedBlock),
}

/// A router, and the experts that every token uses.
#[derive(Debug)]
pub(super) struct RoutedBlock {
    gate: Linear,
    router: Router,
    shared: Option<DenseMlp>,
}

impl Layer {
    pub(super) fn new(
        config: &ModelConfig,
        weights: &SpineWeights,
        layer: u16,
    ) -> Result<Self, EngineError> {
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        let norm = |name: &str| -> Result<RmsNorm, EngineError> {
            let name = format!("layers.{layer}.{name}.weight");
            Ok(RmsNorm::new(weights.vector(&name, hidden)?, eps))
        };
        let prefix = format!("layers.{layer}.self_attn");
        let attention = match &config.attention {
            AttentionConfig::Grouped { shape, bias, .. } => Attention::Grouped(
                GroupedQueryAttention::new(weights, &prefix, *shape, *bias, eps)?,
            ),
            AttentionConfig::Latent(latent) => Attention::Latent(LatentAttention::new(
                weights,
                &prefix,
                latent.shape,
                latent.bias,
                latent.scale,
            )?),
        };
        let mlp = if config.is_moe_layer(layer) {
            let prefix = format!("layers.{layer}.{}", config.moe.block);
            Mlp::Routed(RoutedBlock::new(&config.moe, weights, &prefix, hidden)?)
        } else {
            let prefix = format!("layers.{layer}.mlp");
            Mlp::Dense(DenseMlp::new(weights, &prefix, hidden, config.intermediate_size)?)
        };
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            attention,
            post_attention_norm: norm("post_attention_layernorm")?,
            mlp,
        })
    }

    pub(super) fn new_cache(&self) -> LayerCache {
        match &self.attention {
            Attention::Grouped(attention) => LayerCache::Grouped(attention.new_cache()),
            Attention::Latent(attention) => LayerCache::Latent(attention.new_cache()),
        }
    }

    /// What attention adds to the residual stream `h [n, hidden]`.
    pub(super) fn attend(
        &self,
        h: &Tensor,
        rotation: &Rotation,
        start: usize,
        cache: &mut LayerCache,
    ) -> Result<Tensor, EngineError> {
        let x = self.input_norm.forward(h)?;
        match (&self.attention, cache) {
            (Attention::Grouped(attention), LayerCache::Grouped(cache)) => {
                attention.forward(&x, rotation, start, cache)
            }
            (Attention::Latent(attention), LayerCache::Latent(cache)) => {
                let y = with_f32(&x, |x| attention.forward(x, Some(rotation), start, cache))?;
                Ok(Tensor::from_vec(y, x.shape(), &Device::Cpu)?)
            }
            _ => unreachable!("a cache is made by its own layer"),
        }
    }

    /// What the MLP reads of the residual stream `h [n, hidden]`.
    pub(super) fn mlp_input(&self, h: &Tensor) -> Result<Tensor, EngineError> {
        Ok(self.post_attention_norm.forward(h)?)
    }

    pub(super) fn mlp(&self) -> &Mlp {
        &self.mlp
    }

    /// Its router, which shares its weights.
    pub(super) fn gate(&self, number: u16) -> Option<LayerGate> {
        match &self.mlp {
            Mlp::Dense(_) => None,
            Mlp::Routed(block) => {
                let norm = self.post_attention_norm.clone();
                Some(LayerGate::new(number, norm, block.gate.clone(), block.router.clone()))
            }
        }
    }
}

impl LayerCache {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Grouped(cache) => cache.bytes(),
            Self::Latent(cache) => cache.bytes(),
        }
    }

    pub(super) fn bytes_per_token(&self) -> usize {
        match self {
            Self::Grouped(cache) => cache.bytes_per_token(),
            Self::Latent(cache) => cache.bytes_per_token(),
        }
    }

    pub(super) fn reset(&mut self) {
        match self {
            Self::Grouped(cache) => cache.reset(),
            Self::Latent(cache) => cache.reset(),
        }
    }
}

impl RoutedBlock {
    fn new(
        moe: &MoeConfig,
        weights: &SpineWeights,
        prefix: &str,
        hidden: usize,
    ) -> Result<Self, EngineError> {
        let (experts, top_k) = (moe.num_experts, moe.num_experts_per_tok);
        let router = match moe.router {
            RouterConfig::Softmax => {
                Router::Softmax(SoftmaxTopK::new(experts, top_k, moe.norm_topk_prob)?)
            }
            RouterConfig::Sigmoid { groups, groups_kept, scale } => {
                let bias = format!("{prefix}.gate.e_score_correction_bias");
                let router = SigmoidGrouped::new(experts, top_k)?
                    .with_bias(weights.vector(&bias, experts)?)?
                    .with_groups(groups, groups_kept)?
                    .with_weights(moe.norm_topk_prob, scale);
                Router::Sigmoid(router)
            }
        };
        let shared = (moe.shared_intermediate_size > 0).then(|| {
            let prefix = format!("{prefix}.shared_experts");
            DenseMlp::new(weights, &prefix, hidden, moe.shared_intermediate_size)
        });
        Ok(Self {
            gate: weights.linear(&format!("{prefix}.gate"), experts, hidden)?,
            router,
            shared: shared.transpose()?,
        })
    }

    /// Routes of every token of `x [n, hidden]`.
    pub(super) fn route(
        &self,
        layer: u16,
        x: &Tensor,
        scratch: &mut GroupScratch,
    ) -> Result<Vec<Routed>, EngineError> {
        let logits = self.gate.forward(x)?;
        let (_, experts) = logits.dims2()?;
        with_f32(&logits, |logits| {
            let tokens = logits.chunks_exact(experts);
            tokens.map(|logits| self.router.route(layer, logits, scratch)).collect()
        })?
    }

    /// `y` and what the shared experts make of `x`.
    pub(super) fn add_shared(&self, x: &Tensor, y: Tensor) -> Result<Tensor, EngineError> {
        match &self.shared {
            Some(shared) => Ok((y + shared.forward(x)?)?),
            None => Ok(y),
        }
    }
}
