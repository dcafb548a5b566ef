use crate::config::{ModelConfig, RouterConfig};
use crate::error::EngineError;
use crate::linear::Linear;
use crate::router::{GroupScratch, Routed, Router, SigmoidGrouped, SoftmaxTopK};
use crate::spine::{DenseMlp, RmsNorm, with_f32};
use crate::weights::SpineWeights;
use candle_core::{Device, Tensor};

/// What surrounds the routed experts of a layer: the router, the projections onto their stream and
/// back, and the experts that every token uses.
#[derive(Debug)]
pub(super) struct MoeBlock {
    gate: Linear,
    router: Router,
    latent: Option<LatentStream>,
    shared: Option<DenseMlp>,
}

/// The way onto the narrower stream of the routed experts, and back.
#[derive(Debug)]
struct LatentStream {
    down: Linear,
    norm: Option<RmsNorm>,
    up: Linear,
}

impl MoeBlock {
    pub(super) fn new(
        config: &ModelConfig,
        weights: &SpineWeights,
        prefix: &str,
    ) -> Result<Self, EngineError> {
        let (moe, hidden) = (&config.moe, config.hidden_size);
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
        let latent = match moe.latent {
            None => None,
            Some(latent) => {
                let name = |part: &str| format!("{prefix}.routed_expert_{part}");
                let norm = || -> Result<RmsNorm, EngineError> {
                    let weight = weights.vector(&name("norm.weight"), latent.width)?;
                    Ok(RmsNorm::new(weight, config.rms_norm_eps))
                };
                Some(LatentStream {
                    down: weights.linear(&name("down_proj"), latent.width, hidden)?,
                    norm: if latent.norm { Some(norm()?) } else { None },
                    up: weights.linear(&name("up_proj"), hidden, latent.width)?,
                })
            }
        };
        let shared = match moe.shared_intermediate_size {
            0 => None,
            width => {
                let prefix = format!("{prefix}.shared_experts");
                Some(DenseMlp::new(weights, &prefix, hidden, width, config.activation)?)
            }
        };
        Ok(Self {
            gate: weights.linear(&format!("{prefix}.gate"), experts, hidden)?,
            router,
            latent,
            shared,
        })
    }

    pub(super) fn gate(&self) -> &Linear {
        &self.gate
    }

    pub(super) fn router(&self) -> &Router {
        &self.router
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

    /// What the routed experts read of `x [n, hidden]`.
    pub(super) fn expert_input(&self, x: &Tensor) -> Result<Tensor, EngineError> {
        match &self.latent {
            Some(latent) => Ok(latent.down.forward(x)?),
            None => Ok(x.clone()),
        }
    }

    /// The block's output: the routed experts' sum, brought back to the residual stream, and what
    /// the shared experts make of `x [n, hidden]`.
    pub(super) fn output(&self, x: &Tensor, routed: Vec<f32>) -> Result<Tensor, EngineError> {
        let n = x.dim(0)?;
        let width = routed.len() / n;
        let mut y = Tensor::from_vec(routed, (n, width), &Device::Cpu)?;
        if let Some(latent) = &self.latent {
            if let Some(norm) = &latent.norm {
                y = norm.forward(&y)?;
            }
            y = latent.up.forward(&y)?;
        }
        match &self.shared {
            Some(shared) => Ok((y + shared.forward(x)?)?),
            None => Ok(y),
        }
    }
}
