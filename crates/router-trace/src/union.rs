//! A batch of traces, merged iteration by iteration: what engines that decode N sequences at
//! once would ask of a cache.

use crate::canonical::{Iteration, Iterations};
use crate::error::TraceError;
use crate::format::jsonl::{MAX_TEXT_BYTES, MAX_TOKENS_PER_RECORD, TraceHeader};
use crate::pass::{LayerPass, PassInfo};
use crate::route::{PassKind, Phase};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Merges N traces of one model, iteration by iteration, to the end of the shortest.
///
/// Iteration i of the batch holds iteration i of every trace, and every forward pass of it:
/// passes of one kind run together, so that their tokens share a record and a layer's
/// experts are wanted once a batch. An iteration of the batch is up to four steps, in this
/// order and each only if there is a pass for it: the normal passes, the accepted drafts,
/// the attempts whose drafts were rejected, and the passes that ran again. Tokens are in the
/// order of the traces. Sequences of a batch have no common position, so a record's is the
/// number of tokens that the batch has produced before it: attempts and the passes that ran
/// again for them share one, as in any trace, and no other two steps do.
///
/// Prompts are left out and counted. Memory for one iteration of each trace.
pub struct BatchUnion<I> {
    header: TraceHeader,
    inputs: Vec<Iterations<I>>,
    ready: VecDeque<LayerPass>,
    next_step: u64,
    /// Tokens that the batch has produced.
    position: u64,
    summary: UnionSummary,
    over: bool,
    failed: bool,
}

/// What a batch was merged from and what it holds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct UnionSummary {
    /// Iterations of the batch: those of the shortest trace.
    pub iterations: u64,
    /// Forward passes in them, as many as the traces have there.
    pub passes: u64,
    /// Tokens that the model produced inside the merged window, all traces together.
    pub accepted_tokens: u64,
    /// Each trace by itself.
    pub traces: Vec<UnionPart>,
    /// Uses of experts in the window: every id of every record.
    pub uses: u64,
    /// Experts that each trace wants in an iteration, each counted once an iteration and
    /// trace: the demand of N engines that share nothing.
    pub separate_experts: u64,
    /// Experts that the batch wants in an iteration, each counted once an iteration.
    pub union_experts: u64,
}

/// One trace of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct UnionPart {
    /// Iterations in the whole trace.
    pub iterations: u64,
    /// Tokens that the model produced in the whole trace.
    pub accepted_tokens: u64,
    /// Those inside the merged window.
    pub window_tokens: u64,
    /// Forward passes of prompts, which are not merged.
    pub prefill_passes: u64,
}

impl UnionSummary {
    /// How much less the batch wants than its traces by themselves: separate / union.
    /// `None` without iterations.
    #[must_use]
    pub fn dedup_factor(&self) -> Option<f64> {
        let ratio = self.separate_experts as f64 / self.union_experts as f64;
        (self.union_experts > 0).then_some(ratio)
    }

    /// Bytes that the batch wants in an iteration, on average, if nothing is cached.
    /// `None` without iterations.
    #[must_use]
    pub fn bytes_per_iteration(&self, expert_bytes: u64) -> Option<f64> {
        let experts = self.union_experts as f64 / self.iterations as f64;
        (self.iterations > 0).then_some(experts * expert_bytes as f64)
    }
}

impl<I: Iterator<Item = Result<LayerPass, TraceError>>> BatchUnion<I> {
    /// A batch of `inputs`: headers, and passes in file order.
    ///
    /// # Errors
    ///
    /// [`TraceError::ShapeMismatch`] for no trace at all and for traces of models that differ
    /// in layers, experts, experts a token, or bytes of an expert.
    pub fn new(inputs: Vec<(TraceHeader, I)>) -> Result<Self, TraceError> {
        let differ = |field, expected: String, found: String| {
            Err(TraceError::ShapeMismatch { field, expected, found })
        };
        let Some((first, _)) = inputs.first() else {
            return differ("the number of traces", "1 or more".into(), "0".into());
        };
        let mut header = first.clone();
        let mut names = Vec::new();
        for (at, (other, _)) in inputs.iter().enumerate() {
            let (found, expected) = (&other.shape, &header.shape);
            if found != expected {
                let field = "the shape of a trace";
                return differ(field, format!("{expected:?}"), format!("{found:?} (trace {at})"));
            }
            let (found, expected) = (other.expert_bytes, header.expert_bytes);
            if found.is_some() && expected.is_some() && found != expected {
                let field = "expert_bytes of a trace";
                return differ(field, format!("{expected:?}"), format!("{found:?} (trace {at})"));
            }
            header.expert_bytes = expected.or(found);
            if !names.contains(&other.model_name.as_str()) {
                names.push(other.model_name.as_str());
            }
        }
        let name = names.join(" + ");
        header.model_name = if name.len() <= MAX_TEXT_BYTES { name } else { String::new() };
        header.created_by = format!("a batch of {} traces", inputs.len());
        let traces = vec![UnionPart::default(); inputs.len()];
        Ok(Self {
            header,
            inputs: inputs.into_iter().map(|(_, passes)| Iterations::new(passes)).collect(),
            ready: VecDeque::new(),
            next_step: 0,
            position: 0,
            summary: UnionSummary { traces, ..UnionSummary::default() },
            over: false,
            failed: false,
        })
    }

    /// The header of the batch: the model of all traces.
    #[must_use]
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// What was merged, once the iterator is over without an error.
    #[must_use]
    pub fn summary(&self) -> Option<&UnionSummary> {
        (self.over && !self.failed && self.ready.is_empty()).then_some(&self.summary)
    }

    fn next_pass(&mut self) -> Result<Option<LayerPass>, TraceError> {
        while self.ready.is_empty() && !self.over {
            let mut batch = Vec::with_capacity(self.inputs.len());
            for at in 0..self.inputs.len() {
                batch.push(self.decode_iteration(at)?);
            }
            if batch.iter().all(Option::is_some) {
                let batch: Vec<_> = batch.into_iter().flatten().collect();
                self.merge(&batch)?;
            } else {
                self.over = true;
                self.count_rest(batch)?;
            }
        }
        Ok(self.ready.pop_front())
    }

    /// The next iteration of trace `at` that produced a token.
    fn decode_iteration(&mut self, at: usize) -> Result<Option<Iteration>, TraceError> {
        while let Some(iteration) = self.inputs[at].next().transpose()? {
            let part = &mut self.summary.traces[at];
            if iteration.phase() == Phase::Prefill {
                part.prefill_passes += iteration.steps().len() as u64;
                continue;
            }
            part.iterations += 1;
            part.accepted_tokens += iteration.accepted_tokens();
            return Ok(Some(iteration));
        }
        Ok(None)
    }

    /// Reads the longer traces to their ends, so that the summary can say what was cut off.
    fn count_rest(&mut self, batch: Vec<Option<Iteration>>) -> Result<(), TraceError> {
        for (at, last) in batch.into_iter().enumerate() {
            if last.is_some() {
                while self.decode_iteration(at)?.is_some() {}
            }
        }
        Ok(())
    }

    fn merge(&mut self, batch: &[Iteration]) -> Result<(), TraceError> {
        let mut union = Vec::new();
        for (at, iteration) in batch.iter().enumerate() {
            let mut wanted: Vec<_> = iteration.passes().flat_map(uses).collect();
            self.summary.uses += wanted.len() as u64;
            wanted.sort_unstable();
            wanted.dedup();
            self.summary.separate_experts += wanted.len() as u64;
            union.extend(wanted);
            self.summary.passes += iteration.steps().len() as u64;
            let tokens = iteration.accepted_tokens();
            self.summary.traces[at].window_tokens += tokens;
            self.summary.accepted_tokens += tokens;
        }
        union.sort_unstable();
        union.dedup();
        self.summary.union_experts += union.len() as u64;
        self.summary.iterations += 1;
        for kind in [PassKind::Normal, PassKind::SpecAccept, PassKind::SpecFallback] {
            let of_kind = || batch.iter().filter(|iteration| iteration.kind() == kind);
            // An attempt may be missing from a recorded trace; the pass that counts is last.
            let attempts =
                of_kind().flat_map(|it| it.steps().split_last().map_or(&[][..], |s| s.1));
            self.run_together(kind, attempts)?;
            self.run_together(kind, of_kind().filter_map(|it| it.steps().last()))?;
            self.position += of_kind().map(Iteration::accepted_tokens).sum::<u64>();
        }
        Ok(())
    }

    /// Makes one step of these forward passes.
    fn run_together<'a>(
        &mut self,
        kind: PassKind,
        steps: impl Iterator<Item = &'a Vec<LayerPass>>,
    ) -> Result<(), TraceError> {
        let mut layers = BTreeMap::<u16, Vec<u16>>::new();
        let top_k = self.header.shape.top_k;
        for pass in steps.flatten() {
            let experts = layers.entry(pass.info.layer).or_default();
            experts.extend_from_slice(pass.experts());
            let (tokens, limit) = (experts.len() / usize::from(top_k), MAX_TOKENS_PER_RECORD);
            if tokens > limit {
                let line = self.summary.iterations;
                return Err(TraceError::TokenCount { line, tokens, limit });
            }
        }
        if layers.is_empty() {
            return Ok(());
        }
        for (layer, experts) in layers {
            let (step, position) = (self.next_step, self.position);
            let info = PassInfo { step, position, layer, phase: Phase::Decode, kind };
            let pass = LayerPass::new(info, top_k, experts).expect("traces of one shape");
            self.ready.push_back(pass);
        }
        self.next_step += 1;
        Ok(())
    }
}

fn uses(pass: &LayerPass) -> impl Iterator<Item = (u16, u16)> + '_ {
    pass.experts().iter().map(|&expert| (pass.info.layer, expert))
}

impl<I: Iterator<Item = Result<LayerPass, TraceError>>> Iterator for BatchUnion<I> {
    type Item = Result<LayerPass, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.next_pass().transpose();
        self.failed = matches!(next, Some(Err(_)));
        next
    }
}
