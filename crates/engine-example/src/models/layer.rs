use super::LayerGate;
use super::moe_block::MoeBlock;
use super::residual::ResidualMix;
use crate::config::{AttentionConfig, ModelConfig};
use crate::error::EngineError;
use crate::spine::{
    DeltaAttention, DeltaState, DenseMlp, GroupedQueryAttention, KvCache, LatentAttention, RmsNorm,
    Rotation, RowCache, with_f32,
};
use crate::weights::SpineWeights;
use candle_core::{Device, Tensor};

/// One layer: something that looks at earlier tokens, then an MLP, each behind a norm.
#[derive(Debug)]
pub(super) struct Layer {
    /// How attention and the MLP read the stream, where there are several.
    mixes: Option<[ResidualMix; 2]>,
    input_norm: RmsNorm,
    attention: Attention,
    post_attention_norm: RmsNorm,
    mlp: Mlp,
}

#[derive(Debug)]
enum Attention {
    Grouped(Box<GroupedQueryAttention>),
    Latent(Box<LatentAttention>),
    Delta(Box<DeltaAttention>),
}

/// What a layer keeps of the sequence.
#[derive(Debug)]
pub(super) enum LayerCache {
    Grouped(KvCache),
    Latent(RowCache),
    Delta(DeltaState),
}

#[derive(Debug)]
pub(super) enum Mlp {
    Dense(Box<DenseMlp>),
    Routed(Box<MoeBlock>),
}

impl Layer {
    pub(super) fn new(
        config: &ModelConfig,
        weights: &SpineWeights,
        layer: u16,
    ) -> Result<Self, EngineError> {
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        let prefix = format!("layers.{layer}");
        let norm = |name: &str| -> Result<RmsNorm, EngineError> {
            Ok(RmsNorm::new(weights.vector(&format!("{prefix}.{name}.weight"), hidden)?, eps))
        };
        let mix = |name: &str| ResidualMix::new(weights, &format!("{prefix}.{name}"), hidden, eps);
        let mlp = if config.is_moe_layer(layer) {
            let prefix = format!("{prefix}.{}", config.moe.block);
            Mlp::Routed(Box::new(MoeBlock::new(config, weights, &prefix)?))
        } else {
            let (prefix, width) = (format!("{prefix}.mlp"), config.intermediate_size);
            Mlp::Dense(Box::new(DenseMlp::new(weights, &prefix, hidden, width, config.activation)?))
        };
        Ok(Self {
            mixes: match config.residual_block {
                Some(_) => Some([mix("self_attention_res")?, mix("mlp_res")?]),
                None => None,
            },
            input_norm: norm("input_layernorm")?,
            attention: Attention::new(config, weights, layer)?,
            post_attention_norm: norm("post_attention_layernorm")?,
            mlp,
        })
    }

    pub(super) fn new_cache(&self) -> LayerCache {
        match &self.attention {
            Attention::Grouped(attention) => LayerCache::Grouped(attention.new_cache()),
            Attention::Latent(attention) => LayerCache::Latent(attention.new_cache()),
            Attention::Delta(attention) => LayerCache::Delta(attention.new_state()),
        }
    }

    pub(super) fn attention_mix(&self) -> Option<&ResidualMix> {
        self.mixes.as_ref().map(|mixes| &mixes[0])
    }

    pub(super) fn mlp_mix(&self) -> Option<&ResidualMix> {
        self.mixes.as_ref().map(|mixes| &mixes[1])
    }

    /// What attention adds to the residual stream, of which it read `h [n, hidden]`.
    pub(super) fn attend(
        &self,
        h: &Tensor,
        rotation: Option<&Rotation>,
        start: usize,
        cache: &mut LayerCache,
    ) -> Result<Tensor, EngineError> {
        let x = self.input_norm.forward(h)?;
        let y = match (&self.attention, cache) {
            (Attention::Grouped(attention), LayerCache::Grouped(cache)) => {
                let rotation = rotation.expect("a grouped attention's config has a rotation");
                return attention.forward(&x, rotation, start, cache);
            }
            (Attention::Latent(attention), LayerCache::Latent(cache)) => {
                with_f32(&x, |x| attention.forward(x, rotation, start, cache))?
            }
            (Attention::Delta(attention), LayerCache::Delta(state)) => {
                with_f32(&x, |x| attention.forward(x, state))?
            }
            _ => unreachable!("a cache is made by its own layer"),
        };
        Ok(Tensor::from_vec(y, x.shape(), &Device::Cpu)?)
    }

    /// The MLP's input, where it reads `h [n, hidden]` of the residual stream.
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
                let (gate, router) = (block.gate().clone(), block.router().clone());
                Some(LayerGate::new(number, norm, gate, router))
            }
        }
    }
}

impl Attention {
    fn new(config: &ModelConfig, weights: &SpineWeights, layer: u16) -> Result<Self, EngineError> {
        let prefix = format!("layers.{layer}.self_attn");
        Ok(match &config.attention {
            AttentionConfig::Grouped { shape, bias, .. } => {
                let eps = config.rms_norm_eps;
                Self::Grouped(Box::new(GroupedQueryAttention::new(
                    weights, &prefix, *shape, *bias, eps,
                )?))
            }
            AttentionConfig::Hybrid { delta, delta_layers, .. }
                if delta_layers.binary_search(&layer).is_ok() =>
            {
                Self::Delta(Box::new(DeltaAttention::new(weights, &prefix, *delta)?))
            }
            AttentionConfig::Latent(latent) | AttentionConfig::Hybrid { latent, .. } => {
                Self::Latent(Box::new(LatentAttention::new(weights, &prefix, latent.clone())?))
            }
        })
    }
}

impl LayerCache {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Grouped(cache) => cache.bytes(),
            Self::Latent(cache) => cache.bytes(),
            Self::Delta(state) => state.bytes(),
        }
    }

    pub(super) fn bytes_per_token(&self) -> usize {
        match self {
            Self::Grouped(cache) => cache.bytes_per_token(),
            Self::Latent(cache) => cache.bytes_per_token(),
            Self::Delta(_) => 0,
        }
    }

    pub(super) fn reset(&mut self) {
        match self {
            Self::Grouped(cache) => cache.reset(),
            Self::Latent(cache) => cache.reset(),
            Self::Delta(state) => state.reset(),
        }
    }

    /// The passes since the last call are part of the sequence, or never were. Rows of a cache
    /// behind the sequence are overwritten anyway.
    pub(super) fn settle(&mut self, keep: bool) {
        match self {
            Self::Delta(state) if keep => state.commit(),
            Self::Delta(state) => state.roll_back(),
            Self::Grouped(_) | Self::Latent(_) => {}
        }
    }
}
