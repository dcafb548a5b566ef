/// How a layer's router turns logits into a choice, as far as a guess of its logits needs it.
///
/// The engine implements it with the router that decides, so that there is one rule, not two.
pub trait SelectionRule: Send {
    /// Turns logits, one an expert, into values whose `top_k` largest are the layer's choice, of
    /// equal ones the lower numbers. An expert that something else than its own logit keeps out
    /// has a value below what its logit gives, as far as that is from letting it in.
    fn rank_values(&mut self, logits: &mut [f32]);

    /// The logit that gives `expert` the rank value `value`: minus infinity where every logit
    /// gives more, plus infinity where none gives as much.
    fn logit_at(&self, expert: usize, value: f32) -> f32;
}

/// Ranks by the logits themselves: routers that take the best of a softmax, which keeps the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ByLogits;

impl SelectionRule for ByLogits {
    fn rank_values(&mut self, _logits: &mut [f32]) {}

    fn logit_at(&self, _expert: usize, value: f32) -> f32 {
        value
    }
}
