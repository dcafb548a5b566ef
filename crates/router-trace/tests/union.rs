//! Batches of traces: every pass kept, cut to the shortest, tokens counted.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{SplitMix, decode, header};
use proptest::prelude::*;
use router_trace::canonical::Iterations;
use router_trace::format::{self, OpenOptions};
use router_trace::union::{BatchUnion, UnionSummary};
use router_trace::{
    JsonlReader, JsonlWriter, LayerPass, PassInfo, PassKind, Phase, Tail, TraceError, TraceHeader,
};
use std::collections::BTreeSet;
use std::path::Path;

type Passes = std::vec::IntoIter<Result<LayerPass, TraceError>>;

/// One trace: what kind each of its iterations is.
fn trace(kinds: &[PassKind], seed: u64) -> Vec<LayerPass> {
    let mut random = SplitMix(seed);
    let mut passes = Vec::new();
    let (mut step, mut position) = (0, 100 * seed);
    for &kind in kinds {
        let widths: &[usize] = match kind {
            PassKind::Normal => &[1],
            PassKind::SpecAccept => &[2],
            PassKind::SpecFallback => &[2, 1],
        };
        for &tokens in widths {
            for layer in [1, 2, 5] {
                let experts = (0..tokens).flat_map(|_| {
                    let first = random.below(8) as u16;
                    [first, (first + 1 + random.below(7) as u16) % 8]
                });
                let info = PassInfo { position, kind, ..decode(step, layer) };
                passes.push(LayerPass::new(info, 2, experts.collect()).unwrap());
            }
            step += 1;
        }
        position += if kind == PassKind::SpecAccept { 2 } else { 1 };
    }
    passes
}

fn union(traces: &[Vec<LayerPass>]) -> (Vec<LayerPass>, UnionSummary) {
    let inputs: Vec<(TraceHeader, Passes)> = traces
        .iter()
        .map(|passes| {
            let passes: Vec<_> = passes.iter().cloned().map(Ok).collect();
            (header(), passes.into_iter())
        })
        .collect();
    let mut union = BatchUnion::new(inputs).unwrap();
    let passes = union.by_ref().collect::<Result<_, _>>().unwrap();
    let summary = union.summary().unwrap().clone();
    (passes, summary)
}

fn any_kind() -> impl Strategy<Value = PassKind> {
    prop_oneof![
        3 => Just(PassKind::Normal),
        1 => Just(PassKind::SpecAccept),
        1 => Just(PassKind::SpecFallback),
    ]
}

proptest! {
    #[test]
    fn nothing_is_lost_or_invented(
        kinds in prop::collection::vec(prop::collection::vec(any_kind(), 0..12), 1..5)
    ) {
        let traces: Vec<_> =
            kinds.iter().enumerate().map(|(at, kinds)| trace(kinds, at as u64)).collect();
        let (merged, summary) = union(&traces);
        let shortest = kinds.iter().map(Vec::len).min().unwrap();
        prop_assert_eq!(summary.iterations, shortest as u64);

        // A second way to the same figures: iteration by iteration with sets.
        let (mut uses, mut separate, mut together, mut accepted, mut passes) = (0, 0, 0, 0, 0);
        for at in 0..shortest {
            let mut all = BTreeSet::new();
            for (kinds, trace) in kinds.iter().zip(&traces) {
                let fallbacks =
                    kinds[..at].iter().filter(|kind| **kind == PassKind::SpecFallback).count();
                let first = (at + fallbacks) as u64;
                let steps = if kinds[at] == PassKind::SpecFallback { 2 } else { 1 };
                let mut own = BTreeSet::new();
                for pass in trace {
                    if (first..first + steps).contains(&pass.info.step) {
                        uses += pass.experts().len() as u64;
                        own.extend(pass.experts().iter().map(|&e| (pass.info.layer, e)));
                    }
                }
                separate += own.len() as u64;
                all.extend(own);
                accepted += if kinds[at] == PassKind::SpecAccept { 2 } else { 1 };
                passes += steps;
            }
            together += all.len() as u64;
        }
        prop_assert_eq!(
            (summary.uses, summary.separate_experts, summary.union_experts),
            (uses, separate, together)
        );
        prop_assert_eq!((summary.accepted_tokens, summary.passes), (accepted, passes));
        for (part, kinds) in summary.traces.iter().zip(&kinds) {
            let count = |kinds: &[PassKind]| {
                kinds.iter().map(|kind| if *kind == PassKind::SpecAccept { 2 } else { 1 }).sum()
            };
            let all: u64 = count(kinds);
            let window: u64 = count(&kinds[..shortest]);
            prop_assert_eq!(part.iterations, kinds.len() as u64);
            prop_assert_eq!((part.accepted_tokens, part.window_tokens), (all, window));
        }
        // Every id of the window is in the merged passes, and the merged trace is a trace
        // whose iterations tell the accepted tokens again.
        let merged_uses: usize = merged.iter().map(|pass| pass.experts().len()).sum();
        prop_assert_eq!(merged_uses as u64, uses);
        let mut bytes = Vec::new();
        let mut writer = JsonlWriter::new(&mut bytes, &header()).unwrap();
        for pass in &merged {
            writer.write_pass(pass).unwrap();
        }
        writer.finish(Default::default()).unwrap();
        let again = JsonlReader::new(bytes.as_slice(), Tail::Strict).unwrap();
        let tokens: u64 =
            Iterations::new(again).map(|iteration| iteration.unwrap().accepted_tokens()).sum();
        prop_assert_eq!(tokens, accepted);
    }
}

#[test]
fn passes_of_one_kind_run_together() {
    let (normal, accept, fallback) =
        (PassKind::Normal, PassKind::SpecAccept, PassKind::SpecFallback);
    let traces =
        [trace(&[normal, fallback], 1), trace(&[accept, fallback], 2), trace(&[normal, normal], 3)];
    let (merged, summary) = union(&traces);
    let steps: Vec<_> = merged
        .iter()
        .filter(|pass| pass.info.layer == 2)
        .map(|pass| (pass.info.step, pass.info.kind, pass.n_tokens(), pass.info.position))
        .collect();
    assert_eq!(
        steps,
        [
            (0, normal, 2, 0),
            (1, accept, 2, 2),
            (2, normal, 1, 4),
            (3, fallback, 4, 5),
            (4, fallback, 2, 5),
        ]
    );
    assert_eq!(summary.accepted_tokens, 2 + 2 + 1 + 2);
    // Tokens lie in the order of the traces.
    let second = |trace: &[LayerPass], step| {
        trace.iter().find(|pass| (pass.info.step, pass.info.layer) == (step, 5)).unwrap().clone()
    };
    let expected = [second(&traces[0], 1), second(&traces[1], 1)];
    let merged = second(&merged, 3);
    assert_eq!(merged.experts(), [expected[0].experts(), expected[1].experts()].concat());
}

#[test]
fn prompts_are_left_out() {
    let mut with_prompt = trace(&[PassKind::Normal, PassKind::Normal], 1);
    for pass in &mut with_prompt[..3] {
        let info = PassInfo { phase: Phase::Prefill, ..pass.info };
        *pass = LayerPass::new(info, 2, pass.experts().repeat(9)).unwrap();
    }
    let (merged, summary) = union(&[with_prompt, trace(&[PassKind::Normal], 2)]);
    assert_eq!((merged.len(), summary.iterations, summary.accepted_tokens), (3, 1, 2));
    assert_eq!((summary.traces[0].prefill_passes, summary.traces[1].prefill_passes), (1, 0));
}

#[test]
fn traces_of_different_models_are_refused() {
    let passes = || Vec::new().into_iter();
    let mut other = header();
    other.shape.n_experts = 9;
    let inputs: Vec<(TraceHeader, Passes)> = vec![(header(), passes()), (other, passes())];
    let error = BatchUnion::new(inputs).err().unwrap().to_string();
    assert!(error.contains("n_experts: 9") && error.contains("(trace 1)"), "{error}");
    let mut other = header();
    other.expert_bytes = Some(5);
    let inputs: Vec<(TraceHeader, Passes)> = vec![(header(), passes()), (other, passes())];
    assert!(BatchUnion::new(inputs).is_err());
    let none: Vec<(TraceHeader, Passes)> = Vec::new();
    assert!(BatchUnion::new(none).is_err());
    let (merged, summary) = union(&[Vec::new(), trace(&[PassKind::Normal], 1)]);
    assert_eq!((merged.len(), summary.dedup_factor()), (0, None));
    assert_eq!(summary.bytes_per_iteration(9), None);
    assert_eq!(summary.traces[1].iterations, 1);
}

#[test]
fn an_error_in_one_trace_ends_the_batch() {
    let torn: Vec<_> = trace(&[PassKind::Normal], 1)
        .into_iter()
        .map(Ok)
        .chain([Err(TraceError::Torn { line: 5, records: 3 })])
        .collect();
    let good: Vec<_> = trace(&[PassKind::Normal; 3], 2).into_iter().map(Ok).collect();
    let inputs = vec![(header(), torn.into_iter()), (header(), good.into_iter())];
    let mut union = BatchUnion::new(inputs).unwrap();
    assert!(matches!(union.find_map(Result::err), Some(TraceError::Torn { .. })));
    assert!(union.next().is_none() && union.summary().is_none());
}

/// A real trace cut into four streams: the factor is measured, and near what little the
/// streams of one text share.
#[test]
fn a_real_batch() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/kimi_linear_300.jsonl.gz");
    let mut reader = format::open(&path, &OpenOptions::default()).unwrap();
    let header = reader.header().clone();
    let passes: Vec<_> = reader.by_ref().collect::<Result<_, _>>().unwrap();
    let streams = passes.chunks(75 * 26).map(|part| {
        let part: Vec<_> = part.iter().cloned().map(Ok).collect();
        (header.clone(), part.into_iter())
    });
    let mut union = BatchUnion::new(streams.collect()).unwrap();
    assert!(union.by_ref().all(|pass| pass.is_ok()));
    let summary = union.summary().unwrap();
    assert_eq!((summary.iterations, summary.accepted_tokens), (75, 300));
    assert_eq!(summary.separate_experts, 62_400);
    let distinct: usize = (0..75)
        .map(|at| {
            let streams = (0..4).flat_map(|stream| {
                let start = (75 * stream + at) * 26;
                &passes[start..start + 26]
            });
            let ids = streams.flat_map(|pass| pass.experts().iter().map(|&e| (pass.info.layer, e)));
            ids.collect::<BTreeSet<_>>().len()
        })
        .sum();
    assert_eq!(summary.union_experts, distinct as u64);
    let factor = summary.dedup_factor().unwrap();
    println!("kimi-linear, 4 streams: dedup {factor:.3}");
    assert!((1.0..4.0).contains(&factor));
}
