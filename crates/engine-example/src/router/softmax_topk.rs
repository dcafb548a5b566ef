use super::{Best, Routed, check_logits, check_top_k};
use crate::error::EngineError;

/// Softmax over all experts, the `top_k` best of them (Qwen-MoE, Mixtral).
#[derive(Clone, Debug)]
pub struct SoftmaxTopK {
    n_experts: usize,
    top_k: usize,
    normalise: bool,
}

impl SoftmaxTopK {
    /// `normalise` (`norm_topk_prob`) scales the chosen weights to sum 1.
    ///
    /// # Errors
    /// `config-inconsistent` if there are fewer experts than `top_k`.
    pub fn new(n_experts: usize, top_k: usize, normalise: bool) -> Result<Self, EngineError> {
        check_top_k(top_k, n_experts)?;
        Ok(Self { n_experts, top_k, normalise })
    }

    /// The experts of one token.
    ///
    /// Ranking is by logit: softmax keeps the order, and in f32 it would make ties of
    /// logits that differ.
    ///
    /// # Errors
    /// `router-invalid` if a logit is NaN or infinite, or all are minus infinity.
    pub fn route(&self, layer: u16, logits: &[f32]) -> Result<Routed, EngineError> {
        check_logits(layer, logits, self.n_experts)?;
        let mut best = Best::new(self.top_k);
        for (id, &logit) in (0..).zip(logits) {
            best.offer(id, logit);
        }
        let max = best.scores[0];
        if max == f32::NEG_INFINITY {
            let problem = "every logit is minus infinity".to_owned();
            return Err(EngineError::Router { layer, problem });
        }
        let mut routed = Routed::new(layer, &best, |id| (logits[usize::from(id)] - max).exp());
        // The sum over all experts cancels out when the chosen weights are normalised.
        let sum: f32 = if self.normalise {
            routed.weights().iter().sum()
        } else {
            logits.iter().map(|logit| (logit - max).exp()).sum()
        };
        routed.scale_weights(1.0 / sum);
        Ok(routed)
    }
}
