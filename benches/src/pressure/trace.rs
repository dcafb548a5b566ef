//! A recorded trace, and the exact LRU that the kernel is held against.

use anyhow::{Context, Result};
use router_trace::format::{OpenOptions, open, open_bytes};
use router_trace::simulate::{HitCurve, Replay, Window};
use router_trace::{Accesses, Demand, LayerPass, Phase, TraceError, TraceHeader};
use std::path::Path;

/// OLMoE, 299 tokens; see `data/README.md`.
const OLMOE: &[u8] = include_bytes!("../../data/olmoe_299.jsonl");
pub(crate) const TOKENS: usize = 299;
pub(crate) const LAYERS: u16 = 16;
pub(crate) const EXPERTS: u16 = 64;

/// The accesses of the first `tokens` tokens, in the order token, layer, expert.
pub(crate) fn olmoe(tokens: usize) -> Result<Accesses> {
    let (header, passes) = passes(tokens)?;
    let passes = passes.into_iter().map(Ok);
    Ok(Accesses::from_passes(&header, passes, Demand::EachToken)?)
}

/// Its header and the passes of its first `tokens` tokens.
pub(crate) fn passes(tokens: usize) -> Result<(TraceHeader, Vec<LayerPass>)> {
    let mut options = OpenOptions::default();
    options.shape.n_experts = Some(EXPERTS);
    let reader = open_bytes(OLMOE, &options).context("the trace of OLMoE")?;
    let header = reader.header().clone();
    let first = |pass: &Result<LayerPass, TraceError>| {
        pass.as_ref().map_or(true, |pass| pass.info.step < tokens as u64)
    };
    Ok((header, reader.take_while(first).collect::<Result<_, _>>()?))
}

/// The passes of the first `tokens` tokens that a trace at `path` decodes, with the step numbers
/// that it gives them.
pub(crate) fn passes_of(path: &Path, tokens: usize) -> Result<(TraceHeader, Vec<LayerPass>)> {
    let reader = open(path, &OpenOptions::default()).with_context(|| path.display().to_string())?;
    let header = reader.header().clone();
    let mut passes = Vec::new();
    for pass in reader {
        let pass = pass?;
        if pass.info.phase != Phase::Decode {
            continue;
        }
        let first = passes.first().map_or(pass.info.step, |first: &LayerPass| first.info.step);
        if pass.info.step >= first + tokens as u64 {
            break;
        }
        passes.push(pass);
    }
    Ok((header, passes))
}

/// What is scored: the last 60 % of the tokens, after 40 % that warm.
pub(crate) fn replay(trace: &Accesses) -> Result<Replay<'_>> {
    let window = Window::new(40, 60).expect("60 after 40 per cent is a window");
    Ok(Replay::of(trace, window)?)
}

/// Share of the scored accesses that exact LRU misses, at every number of places.
pub(crate) fn lru(trace: &Accesses) -> Result<impl Fn(usize) -> f64 + use<>> {
    let curve = HitCurve::of_lru(&replay(trace)?);
    Ok(move |places| 1.0 - curve.hit_rate(places))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_has_all_its_accesses() {
        assert_eq!(olmoe(TOKENS).unwrap().keys().len(), 299 * 16 * 8);
        assert_eq!(olmoe(10).unwrap().keys().len(), 10 * 16 * 8);
    }

    #[test]
    fn the_scored_part_misses_what_was_measured_before() {
        let trace = olmoe(TOKENS).unwrap();
        let found = lru(&trace).unwrap()(256);
        assert!((found - 0.4076).abs() < 0.0005, "{found}");
    }
}
