use crate::error::TraceError;
use crate::pass::LayerPass;
use crate::route::{PassKind, Phase};

/// One iteration of an engine: a forward pass, or an attempt and the pass that ran again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Iteration {
    steps: Vec<Vec<LayerPass>>,
}

impl Iteration {
    /// All layer passes of the iteration, each step's in layer order.
    pub fn passes(&self) -> impl Iterator<Item = &LayerPass> {
        self.steps.iter().flatten()
    }

    /// The layer passes whose tokens count: without an attempt that was thrown away, and none
    /// of a prompt's.
    pub fn accepted_passes(&self) -> impl Iterator<Item = &LayerPass> {
        self.last().iter().filter(|pass| pass.info.phase == Phase::Decode)
    }

    /// The forward passes: one, or two where a draft was rejected.
    #[must_use]
    pub fn steps(&self) -> &[Vec<LayerPass>] {
        &self.steps
    }

    /// Normal, spec-accept or spec-fallback.
    #[must_use]
    pub fn kind(&self) -> PassKind {
        self.last()[0].info.kind
    }

    /// Prompt or produced tokens.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.last()[0].info.phase
    }

    /// Tokens that the model produced in it (in a batch, of all sequences).
    #[must_use]
    pub fn accepted_tokens(&self) -> u64 {
        // Layers may be missing from a recorded trace: the first that is there tells.
        self.accepted_passes().next().map_or(0, |pass| pass.n_tokens() as u64)
    }

    fn last(&self) -> &[LayerPass] {
        &self.steps[self.steps.len() - 1]
    }
}

/// Groups a typed trace into the iterations of its engine.
///
/// The layer passes of one step are one forward pass. A step of kind
/// [`SpecFallback`](PassKind::SpecFallback) at the position of the step before it is that one
/// run again: the two are one iteration, and the tokens of the first do not count, however it
/// is typed (a recorder cannot know yet that a draft will be rejected). Memory for two steps.
pub struct Iterations<I> {
    input: I,
    /// The first layer pass of the next step.
    next: Option<LayerPass>,
    over: bool,
}

impl<I: Iterator<Item = Result<LayerPass, TraceError>>> Iterations<I> {
    /// The iterations of the trace that `input` gives in file order.
    pub fn new(input: I) -> Self {
        Self { input, next: None, over: false }
    }

    fn step(&mut self) -> Result<Option<Vec<LayerPass>>, TraceError> {
        let Some(first) = self.next.take().map(Ok).or_else(|| self.input.next()).transpose()?
        else {
            return Ok(None);
        };
        let mut step = vec![first];
        while let Some(pass) = self.input.next().transpose()? {
            if pass.info.step != step[0].info.step {
                self.next = Some(pass);
                break;
            }
            step.push(pass);
        }
        Ok(Some(step))
    }

    fn iteration(&mut self) -> Result<Option<Iteration>, TraceError> {
        let Some(first) = self.step()? else { return Ok(None) };
        let info = first[0].info;
        let mut steps = vec![first];
        let again = self.next.as_ref().is_some_and(|next| {
            let next = next.info;
            next.kind == PassKind::SpecFallback
                && next.position == info.position
                && (next.phase, info.phase) == (Phase::Decode, Phase::Decode)
        });
        if again {
            steps.extend(self.step()?);
        }
        Ok(Some(Iteration { steps }))
    }
}

impl<I: Iterator<Item = Result<LayerPass, TraceError>>> Iterator for Iterations<I> {
    type Item = Result<Iteration, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.iteration().transpose();
        self.over = !matches!(next, Some(Ok(_)));
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::PassInfo;

    /// A pass of layer 0: step, position, tokens, kind.
    fn pass(step: u64, position: u64, tokens: usize, kind: PassKind) -> LayerPass {
        let info = PassInfo { step, position, layer: 0, phase: Phase::Decode, kind };
        LayerPass::new(info, 1, vec![3; tokens]).unwrap()
    }

    fn iterations(passes: Vec<LayerPass>) -> Vec<Iteration> {
        Iterations::new(passes.into_iter().map(Ok)).collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn an_attempt_and_its_repetition_are_one() {
        use PassKind::{Normal, SpecAccept, SpecFallback};
        let found = iterations(vec![
            pass(0, 10, 2, SpecAccept),
            pass(1, 12, 2, SpecFallback),
            pass(2, 12, 1, SpecFallback),
            // The next iteration is one position on, so it is another.
            pass(3, 13, 2, SpecFallback),
            pass(4, 13, 1, SpecFallback),
            pass(5, 14, 1, Normal),
            // Typed before its draft was rejected.
            pass(6, 15, 2, SpecAccept),
            pass(7, 15, 1, SpecFallback),
        ]);
        let told: Vec<_> =
            found.iter().map(|it| (it.kind(), it.steps().len(), it.accepted_tokens())).collect();
        assert_eq!(
            told,
            [
                (SpecAccept, 1, 2),
                (SpecFallback, 2, 1),
                (SpecFallback, 2, 1),
                (Normal, 1, 1),
                (SpecFallback, 2, 1),
            ]
        );
        assert_eq!(found[1].accepted_passes().map(|pass| pass.info.step).collect::<Vec<_>>(), [2]);
        assert_eq!(found[1].passes().count(), 2);
    }

    #[test]
    fn a_repetition_without_its_attempt_counts() {
        let found = iterations(vec![
            pass(0, 5, 1, PassKind::SpecFallback),
            pass(1, 6, 1, PassKind::Normal),
            pass(2, 7, 1, PassKind::SpecFallback),
        ]);
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|iteration| iteration.accepted_tokens() == 1));
    }

    #[test]
    fn a_prompt_produces_nothing() {
        let mut prompt = pass(0, 0, 9, PassKind::Normal);
        prompt.info.phase = Phase::Prefill;
        let found = iterations(vec![prompt, pass(1, 9, 1, PassKind::Normal)]);
        assert_eq!((found[0].accepted_tokens(), found[0].accepted_passes().count()), (0, 0));
        assert_eq!(found[1].accepted_tokens(), 1);
    }
}
