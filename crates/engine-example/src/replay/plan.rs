use crate::error::EngineError;
use expert_tier::{Notice, Pool};
use router_trace::policy::StaticSet;
use router_trace::simulate::{HitCurve, Pins, Replay, Span, play};
use router_trace::{
    Accesses, Demand, ExpertId, LayerPass, ModelShape, PassInfo, Phase, TraceError, TraceHeader,
};
use serde::{Deserialize, Serialize};

/// One layer of one forward pass: what is adopted together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PlannedPass {
    /// The layer, as the pool numbers it.
    pub layer: u16,
    /// Its experts, each once, in the order in which the pass names them.
    pub experts: Vec<u16>,
}

/// A trace as a pool can serve it: iterations of passes, as they were issued.
#[derive(Clone, Debug)]
pub struct ReplayPlan {
    accesses: Accesses,
    notices: Vec<Notice>,
}

impl ReplayPlan {
    /// Maps the passes of a trace onto `pool`: by their layers' numbers where the pool has them
    /// all, by their order where it does not. Layers beyond the pool's are left out, which a
    /// notice says. Only decoding is taken, with `prefill` prompts too; speculative passes are
    /// taken as they were issued. At most `iterations` iterations.
    ///
    /// # Errors
    /// [`EngineError::TraceShape`] where the pool has fewer experts a layer, or nothing is left;
    /// what reading the trace answers.
    pub fn new(
        pool: &Pool,
        header: &TraceHeader,
        passes: impl IntoIterator<Item = Result<LayerPass, TraceError>>,
        prefill: bool,
        iterations: usize,
    ) -> Result<Self, EngineError> {
        let shape = pool.layout().shape(header.shape.top_k);
        let mut notices = Vec::new();
        let layers = map_layers(&header.shape, &shape, &mut notices)?;
        let mapped = TraceHeader { shape: shape.clone(), ..header.clone() };
        let mut steps = 0;
        let mut last = None;
        let ours = passes.into_iter().filter_map(|pass| {
            let pass = match pass {
                Ok(pass) => pass,
                Err(error) => return Some(Err(error)),
            };
            if pass.info.phase != Phase::Decode && !prefill {
                return None;
            }
            let slot = header.shape.moe_layers.binary_search(&pass.info.layer).ok()?;
            let layer = *layers.get(slot)?;
            if last.replace(pass.info.step) != Some(pass.info.step) {
                steps += 1;
            }
            if steps > iterations {
                return None;
            }
            let info = PassInfo { layer, ..pass.info };
            LayerPass::new(info, header.shape.top_k, pass.experts().to_vec()).map(Ok)
        });
        let accesses = Accesses::from_passes(&mapped, ours, Demand::OncePerPass)?;
        if accesses.keys().is_empty() {
            return Err(shapes(&header.shape, &shape, "none of its passes is one to replay"));
        }
        let experts = pool.layout().total_experts().max(1) as u64;
        let accesses = accesses.with_expert_bytes(pool.layout().total_bytes() / experts);
        Ok(Self { accesses, notices })
    }

    /// What a person should know of the mapping.
    #[must_use]
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// The accesses, each expert once a pass, in the pool's numbers.
    #[must_use]
    pub fn accesses(&self) -> &Accesses {
        &self.accesses
    }

    /// Mean bytes of an expert.
    #[must_use]
    pub fn expert_bytes(&self) -> u64 {
        self.accesses.expert_bytes().unwrap_or(0)
    }

    /// The passes of each iteration.
    #[must_use]
    pub fn iterations(&self) -> Vec<Vec<PlannedPass>> {
        let space = self.accesses.key_space();
        let pass = |(slot, keys): (u16, &[u32])| PlannedPass {
            layer: space.shape().moe_layers[usize::from(slot)],
            experts: keys.iter().filter_map(|&key| Some(space.id(key)?.index)).collect(),
        };
        let count = self.accesses.n_iterations();
        (0..count).map(|i| self.accesses.passes_in(i..i + 1).map(pass).collect()).collect()
    }

    /// The most experts that one pass adopts.
    #[must_use]
    pub fn widest_pass(&self) -> usize {
        let passes = self.accesses.passes_in(0..self.accesses.n_iterations());
        passes.map(|(_, keys)| keys.len()).max().unwrap_or(0)
    }

    /// All accesses, as one span.
    #[must_use]
    pub fn span(&self) -> Span<'_> {
        Span { trace: &self.accesses, iterations: 0..self.accesses.n_iterations() }
    }

    /// The experts that are used most, at most `count`: what an oracle pins.
    #[must_use]
    pub fn hottest(&self, count: usize) -> Vec<ExpertId> {
        expert_tier::hottest(&self.span(), count)
    }

    /// LRU's hits at every budget, scored after a warm-up over the same accesses, as
    /// [`measure`](super::measure) replays them.
    #[must_use]
    pub fn lru(&self) -> HitCurve {
        HitCurve::of_lru(&self.twice())
    }

    /// Misses of the best fixed set of `count` experts.
    #[must_use]
    pub fn fixed_set_misses(&self, count: usize) -> u64 {
        play(&self.twice(), StaticSet::oracle(count, &self.uses()), Pins::None).total().misses()
    }

    /// The smallest number of experts whose best fixed set misses at most `misses`.
    #[must_use]
    pub fn fixed_set_for(&self, misses: u64) -> usize {
        let mut uses = self.uses();
        uses.sort_unstable_by(|a, b| b.cmp(a));
        let mut missed = self.accesses.keys().len() as u64;
        let mut count = 0;
        while missed > misses {
            missed -= u64::from(uses[count]);
            count += 1;
        }
        count
    }

    /// How often each key is used.
    fn uses(&self) -> Vec<u32> {
        let mut uses = vec![0; self.accesses.n_keys()];
        self.accesses.keys().iter().for_each(|&key| uses[key as usize] += 1);
        uses
    }

    fn twice(&self) -> Replay<'_> {
        Replay { trained: self.span(), warm: self.span(), scored: self.span() }
    }
}

/// For each layer slot of the trace the pool's layer; shorter than the trace's where the pool has
/// fewer.
fn map_layers(
    trace: &ModelShape,
    pool: &ModelShape,
    notices: &mut Vec<Notice>,
) -> Result<Vec<u16>, EngineError> {
    if trace.n_experts > pool.n_experts {
        return Err(shapes(trace, pool, "the pool has fewer experts in a layer"));
    }
    if pool.moe_layers.is_empty() {
        return Err(shapes(trace, pool, "the pool has no routed experts"));
    }
    let has = |layer: &u16| pool.moe_layers.binary_search(layer).is_ok();
    if trace.moe_layers.iter().all(has) {
        return Ok(trace.moe_layers.clone());
    }
    let (wanted, there) = (trace.moe_layers.len(), pool.moe_layers.len());
    let text = format!(
        "the trace's layers are not the pool's: they are taken in order, {} of {wanted} onto {}",
        wanted.min(there),
        describe(pool)
    );
    notices.push(Notice::warning(text));
    Ok(pool.moe_layers.iter().copied().take(wanted).collect())
}

fn shapes(trace: &ModelShape, pool: &ModelShape, reason: &'static str) -> EngineError {
    EngineError::TraceShape { trace: describe(trace), pool: describe(pool), reason }
}

fn describe(shape: &ModelShape) -> String {
    let ends = shape.moe_layers.first().zip(shape.moe_layers.last());
    let ends = ends.map_or_else(String::new, |(first, last)| format!(" ({first} to {last})"));
    format!("{} layers{ends} of {} experts", shape.moe_layers.len(), shape.n_experts)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
