use super::{Best, Routed, check_logits, check_top_k};
use crate::error::EngineError;

/// Sigmoid scores, a bias that only selects, and a first choice among groups of experts
/// (DeepSeek-V3, Kimi).
#[derive(Clone, Debug)]
pub struct SigmoidGrouped {
    bias: Vec<f32>,
    top_k: usize,
    groups: usize,
    groups_kept: usize,
    normalise: bool,
    scale: f32,
}

/// Room for the scores of one token, reused over tokens.
#[derive(Clone, Debug, Default)]
pub struct GroupScratch {
    scores: Vec<f32>,
    biased: Vec<f32>,
    group_scores: Vec<f32>,
}

impl SigmoidGrouped {
    /// One group, no bias, no normalisation, scale 1.
    ///
    /// # Errors
    /// `config-inconsistent` if there are fewer experts than `top_k`.
    pub fn new(n_experts: usize, top_k: usize) -> Result<Self, EngineError> {
        check_top_k(top_k, n_experts)?;
        let bias = vec![0.0; n_experts];
        Ok(Self { bias, top_k, groups: 1, groups_kept: 1, normalise: false, scale: 1.0 })
    }

    /// With `e_score_correction_bias`, one value an expert.
    ///
    /// # Errors
    /// `config-inconsistent` if its length is not the number of experts.
    pub fn with_bias(self, bias: Vec<f32>) -> Result<Self, EngineError> {
        if bias.len() == self.bias.len() {
            Ok(Self { bias, ..self })
        } else {
            let problem = format!("there are {} experts", self.bias.len());
            Err(EngineError::config("length of e_score_correction_bias", &bias.len(), problem))
        }
    }

    /// With `groups` (`n_group`) equal groups, of which the `kept` (`topk_group`) with the
    /// largest sum of two best biased scores take part.
    ///
    /// # Errors
    /// `config-inconsistent` if the groups do not divide the experts, or those kept hold
    /// fewer than `top_k`.
    pub fn with_groups(self, groups: usize, kept: usize) -> Result<Self, EngineError> {
        let n_experts = self.bias.len();
        if groups == 0 || !n_experts.is_multiple_of(groups) {
            let problem = format!("does not divide the {n_experts} experts");
            return Err(EngineError::config("n_group", &groups, problem));
        }
        if kept == 0 || kept > groups {
            let problem = format!("there are {groups} groups");
            return Err(EngineError::config("topk_group", &kept, problem));
        }
        if kept * (n_experts / groups) < self.top_k {
            let problem = format!(
                "{kept} groups of {} experts cannot give {} experts a token",
                n_experts / groups,
                self.top_k
            );
            return Err(EngineError::config("topk_group", &kept, problem));
        }
        Ok(Self { groups, groups_kept: kept, ..self })
    }

    /// With the chosen weights scaled to sum 1 (`normalise`), and by `scale`
    /// (`routed_scaling_factor`) in any case.
    #[must_use]
    pub fn with_weights(self, normalise: bool, scale: f32) -> Self {
        Self { normalise, scale, ..self }
    }

    /// The experts of one token.
    ///
    /// # Errors
    /// `router-invalid` if a logit or a biased score is NaN or infinite.
    pub fn route(
        &self,
        layer: u16,
        logits: &[f32],
        scratch: &mut GroupScratch,
    ) -> Result<Routed, EngineError> {
        check_logits(layer, logits, self.bias.len())?;
        self.score(logits, scratch);
        let GroupScratch { scores, biased, group_scores } = scratch;
        if let Some(expert) = biased.iter().position(|score| !score.is_finite()) {
            let problem = format!("biased score of expert {expert} is {}", biased[expert]);
            return Err(EngineError::Router { layer, problem });
        }
        if self.groups_kept < self.groups {
            self.mask_groups(biased, group_scores);
        }
        let mut best = Best::new(self.top_k);
        for (id, &score) in (0..).zip(&*biased) {
            best.offer(id, score);
        }
        // The weight is the score itself: taking the bias off again would lose small ones.
        let mut routed = Routed::new(layer, &best, |id| scores[usize::from(id)]);
        let sum: f32 = routed.weights().iter().sum();
        let factor = if self.normalise { self.scale / (sum + 1e-20) } else { self.scale };
        routed.scale_weights(factor);
        Ok(routed)
    }

    /// Turns logits, one an expert, into what experts are ranked by: the biased score. Experts
    /// outside the kept groups come after the `top_k` chosen, lower by as much as the mean of their
    /// group's two best falls short of that of the last group kept.
    ///
    /// # Panics
    /// If there is not one logit an expert.
    pub fn rank_values(&self, logits: &mut [f32], scratch: &mut GroupScratch) {
        assert_eq!(logits.len(), self.bias.len(), "one logit an expert");
        self.score(logits, scratch);
        logits.copy_from_slice(&scratch.biased);
        if self.groups_kept == self.groups {
            return;
        }
        let GroupScratch { biased, group_scores, .. } = scratch;
        self.mask_groups(biased, group_scores);
        let mut best = Best::new(self.top_k);
        for (id, &score) in (0..).zip(&*biased) {
            best.offer(id, score);
        }
        let below = best.scores[self.top_k - 1].next_down();
        let width = biased.len() / self.groups;
        let kept = |group: &[f32]| group.iter().any(|score| *score > f32::NEG_INFINITY);
        let groups = group_scores.iter().zip(biased.chunks_exact(width));
        let least = groups.filter(|(_, group)| kept(group)).map(|(score, _)| *score);
        let least = least.fold(f32::INFINITY, f32::min);
        let groups = biased.chunks_exact(width).zip(logits.chunks_exact_mut(width));
        for ((group, values), score) in groups.zip(&*group_scores) {
            if !kept(group) {
                let short = 0.5 * (least - score);
                values.iter_mut().for_each(|value| *value = value.min(below) - short);
            }
        }
    }

    /// The logit that gives `expert` the biased score `value`: minus infinity where every logit
    /// gives more, plus infinity where none gives as much.
    ///
    /// # Panics
    /// If there is no such expert.
    #[must_use]
    pub fn logit_at(&self, expert: usize, value: f32) -> f32 {
        let score = (value - self.bias[expert]).clamp(0.0, 1.0);
        (score / (1.0 - score)).ln()
    }

    /// `e_score_correction_bias`, one value an expert.
    #[must_use]
    pub fn bias(&self) -> &[f32] {
        &self.bias
    }

    fn score(&self, logits: &[f32], scratch: &mut GroupScratch) {
        let GroupScratch { scores, biased, .. } = scratch;
        scores.clear();
        scores.extend(logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())));
        biased.clear();
        biased.extend(scores.iter().zip(&self.bias).map(|(score, bias)| score + bias));
    }

    /// Minus infinity for every expert outside the kept groups: zero would beat a negative
    /// biased score.
    fn mask_groups(&self, biased: &mut [f32], group_scores: &mut Vec<f32>) {
        let width = biased.len() / self.groups;
        group_scores.clear();
        group_scores.extend(biased.chunks_exact(width).map(|group| {
            let mut top = [f32::NEG_INFINITY; 2];
            for &score in group {
                if score > top[0] {
                    top = [score, top[0]];
                } else if score > top[1] {
                    top[1] = score;
                }
            }
            if width == 1 { top[0] } else { top[0] + top[1] }
        }));
        for (index, group) in biased.chunks_exact_mut(width).enumerate() {
            let own = group_scores[index];
            let better = group_scores[..index].iter().filter(|&&other| other >= own).count()
                + group_scores[index + 1..].iter().filter(|&&other| other > own).count();
            if better >= self.groups_kept {
                group.fill(f32::NEG_INFINITY);
            }
        }
    }
}
