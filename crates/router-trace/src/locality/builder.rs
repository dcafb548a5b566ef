use super::batch::BatchStats;
use super::counter::TraceCounter;
use super::options::LocalityOptions;
use super::overlap::{PairOverlap, TopSets};
use super::stats::{LocalityReport, TraceStats};
use super::summary;
use crate::error::TraceError;
use crate::format::jsonl::TraceHeader;
use crate::ids::ModelShape;
use crate::pass::LayerPass;

/// Version of the field names of [`LocalityReport`].
const REPORT_VERSION: u32 = 1;

/// Takes traces one after the other and makes a [`LocalityReport`] of them.
///
/// Each trace is read once; between traces only figures and the busiest experts are kept.
///
/// ```
/// use router_trace::locality::{LocalityBuilder, LocalityOptions};
/// use router_trace::{LayerPass, ModelShape, PassInfo, PassKind, Phase, TraceHeader};
///
/// # fn main() -> Result<(), router_trace::TraceError> {
/// let header = TraceHeader {
///     model_name: "one layer".into(),
///     shape: ModelShape { moe_layers: vec![0], n_experts: 4, top_k: 1 },
///     expert_bytes: None,
///     created_by: String::new(),
/// };
/// let passes = [2, 2, 3, 3].into_iter().zip(0..).map(|(expert, step)| {
///     let (phase, kind) = (Phase::Decode, PassKind::Normal);
///     let info = PassInfo { step, position: step, layer: 0, phase, kind };
///     Ok(LayerPass::new(info, 1, vec![expert]).unwrap())
/// });
/// let mut builder = LocalityBuilder::new(LocalityOptions::default())?;
/// builder.add("demo", &header, passes)?;
/// let report = builder.finish();
/// let w1 = report.traces[0].decode.reuse_within(1).unwrap();
/// // Two of three repeat the token before; in a random order one of three would.
/// assert_eq!((w1.reused, w1.scored), (2, 3));
/// assert!((w1.shuffled - 1.0 / 3.0).abs() < 1e-12);
/// # Ok(())
/// # }
/// ```
pub struct LocalityBuilder {
    options: LocalityOptions,
    traces: Vec<(TraceStats, ModelShape, TopSets)>,
    merged: Merged,
    batch: Option<BatchStats>,
}

/// The counter of all traces run one after the other.
enum Merged {
    Empty,
    /// The traces so far, all of one shape.
    Same(Box<TraceCounter>),
    /// The traces are of models with different shapes.
    Mixed,
}

impl std::fmt::Debug for LocalityBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.traces.iter().map(|(stats, ..)| &stats.name).collect();
        f.debug_struct("LocalityBuilder").field("traces", &names).finish_non_exhaustive()
    }
}

impl LocalityBuilder {
    /// A builder without traces.
    ///
    /// # Errors
    ///
    /// As [`LocalityOptions::checked`].
    pub fn new(options: LocalityOptions) -> Result<Self, TraceError> {
        let options = options.checked()?;
        Ok(Self { options, traces: Vec::new(), merged: Merged::Empty, batch: None })
    }

    /// Reads a whole trace. `name` is what the report calls it; if an earlier trace has
    /// the name, a number is appended.
    ///
    /// # Errors
    ///
    /// The first error of `passes`, or a pass that is not of the header's model. The trace
    /// is then not in the report, but the merged figures hold a part of it: give up the
    /// builder.
    pub fn add<I>(&mut self, name: &str, header: &TraceHeader, passes: I) -> Result<(), TraceError>
    where
        I: IntoIterator<Item = Result<LayerPass, TraceError>>,
    {
        let shape = &header.shape;
        let mut counter = TraceCounter::new(shape, &self.options.windows)?;
        if matches!(&self.merged, Merged::Same(merged) if merged.shape() != shape) {
            self.merged = Merged::Mixed;
        }
        for pass in passes {
            let pass = pass?;
            counter.push(&pass)?;
            if let Merged::Same(merged) = &mut self.merged {
                merged.push(&pass)?;
            }
        }
        counter.settle()?;
        if let Merged::Same(merged) = &mut self.merged {
            // A fallback at the start of the next trace is no second try of this one.
            merged.settle()?;
        }
        let name = self.unused_name(name);
        let stats = self.stats(name, header, &counter);
        let top = summary::top_sets(&counter.decode, shape, &self.options);
        if matches!(self.merged, Merged::Empty) {
            // The first trace is not counted twice: its counter goes on.
            self.merged = Merged::Same(Box::new(counter));
        }
        self.traces.push((stats, shape.clone(), top));
        Ok(())
    }

    /// Adds what a reader of the report should know about the trace added last.
    pub fn warn(&mut self, warning: impl Into<String>) {
        if let Some((stats, ..)) = self.traces.last_mut() {
            stats.warnings.push(warning.into());
        }
    }

    /// Adds what the traces would share if they were decoded together.
    pub fn set_batch(&mut self, batch: BatchStats) {
        self.batch = Some(batch);
    }

    /// The report of all traces added.
    #[must_use]
    pub fn finish(self) -> LocalityReport {
        let merged = match &self.merged {
            Merged::Same(counter) if self.traces.len() > 1 => Some(self.merged_stats(counter)),
            _ => None,
        };
        let overlaps = self.overlaps();
        LocalityReport {
            version: REPORT_VERSION,
            options: self.options,
            traces: self.traces.into_iter().map(|(stats, ..)| stats).collect(),
            merged,
            overlaps,
            batch: self.batch,
        }
    }

    fn stats(&self, name: String, header: &TraceHeader, counter: &TraceCounter) -> TraceStats {
        let shape = &header.shape;
        let phase = |phase| summary::phase(phase, shape, &counter.windows, &self.options);
        let (decode, prefill) = (phase(&counter.decode), phase(&counter.prefill));
        let mut warnings = Vec::new();
        for (phase, stats) in [("decode", &decode), ("prefill", &prefill)] {
            let whole = stats.tokens * shape.moe_layers.len() as u64;
            if stats.layer_tokens < whole {
                let (missing, tokens) = (whole - stats.layer_tokens, stats.tokens);
                warnings.push(format!(
                    "{phase}: {missing} of {whole} routes are missing ({tokens} tokens of {} layers)",
                    shape.moe_layers.len()
                ));
            }
        }
        TraceStats {
            name,
            model_name: header.model_name.clone(),
            layers: shape.moe_layers.len(),
            n_experts: shape.n_experts,
            top_k: shape.top_k,
            expert_bytes: header.expert_bytes,
            decode,
            prefill,
            warnings,
        }
    }

    fn merged_stats(&self, counter: &TraceCounter) -> TraceStats {
        let first = &self.traces[0].0;
        let same = |other: &TraceStats| other.model_name == first.model_name;
        let one_model = self.traces.iter().all(|(stats, ..)| same(stats));
        let bytes = self.traces.iter().map(|(stats, ..)| stats.expert_bytes);
        let one_size = bytes.clone().all(|bytes| bytes == first.expert_bytes);
        let header = TraceHeader {
            model_name: if one_model { first.model_name.clone() } else { "several".to_owned() },
            shape: counter.shape().clone(),
            expert_bytes: first.expert_bytes.filter(|_| one_size),
            created_by: String::new(),
        };
        self.stats(self.unused_name("merged"), &header, counter)
    }

    fn overlaps(&self) -> Vec<PairOverlap> {
        let mut pairs = Vec::new();
        for (at, (a, shape_a, top_a)) in self.traces.iter().enumerate() {
            for (b, shape_b, top_b) in &self.traces[at + 1..] {
                if shape_a == shape_b {
                    let sizes = top_a.overlap(top_b, &self.options.jaccard_top);
                    pairs.push(PairOverlap { a: a.name.clone(), b: b.name.clone(), sizes });
                }
            }
        }
        pairs
    }

    /// `name`, or `name (2)` and so on if it is taken.
    fn unused_name(&self, name: &str) -> String {
        let taken = |name: &str| self.traces.iter().any(|(stats, ..)| stats.name == name);
        let numbered = (2_u64..).map(|n| format!("{name} ({n})"));
        let mut names = std::iter::once(name.to_owned()).chain(numbered);
        names.find(|name| !taken(name)).expect("numbers do not end")
    }
}
