//! Traces with nothing, or hardly anything, in them.

use super::data::{Real, decode, header, report};
use router_trace::locality::{LocalityBuilder, LocalityOptions};
use router_trace::{LayerPass, TraceError};

fn one_layer(tokens: u64) -> Real {
    let pass = |step| LayerPass::new(decode(step, 0), 1, vec![(step % 3) as u16]).unwrap();
    Real { header: header("small", 1, 8, 1), passes: (0..tokens).map(pass).collect() }
}

#[test]
fn a_trace_without_rows_has_no_figures() {
    let report = report(&[("empty", &one_layer(0))], LocalityOptions::default());
    let stats = &report.traces[0].decode;
    assert_eq!((stats.records, stats.tokens, stats.selections), (0, 0, 0));
    assert!(stats.coverage.is_none() && stats.zipf.is_none() && stats.growth.is_none());
    assert!(stats.reuse.is_empty() && stats.top_share.is_empty() && stats.per_layer.is_empty());
    assert!(stats.halves.is_none() && stats.shared_passes.is_none());
    let json = serde_json::to_value(&report).unwrap();
    assert!(json["traces"][0]["decode"]["coverage"].is_null());
    assert!(report.merged.is_none() && report.overlaps.is_empty());
}

#[test]
fn one_token_of_one_layer() {
    let report = report(&[("one", &one_layer(1))], LocalityOptions::default());
    let stats = &report.traces[0].decode;
    assert_eq!((stats.tokens, stats.coverage), (1, Some(0.125)));
    assert!(stats.zipf.is_none(), "one expert has no slope");
    assert!(stats.reuse.is_empty(), "nothing was before it");
    assert_eq!(stats.share_of(1).unwrap().share.mean, 1.0);
    assert!(stats.share_of(8).is_none(), "eight of eight is every expert");
    assert_eq!(stats.growth.as_ref().unwrap().points.len(), 1);
    assert_eq!(stats.per_layer[0].effective_experts, 1.0);
}

#[test]
fn short_traces_have_no_wide_windows() {
    let report = report(&[("ten", &one_layer(10))], LocalityOptions::default());
    let windows: Vec<_> = report.traces[0].decode.reuse.iter().map(|r| r.window_tokens).collect();
    assert_eq!(windows, [1, 2, 4, 8]);
    // 0 1 2 0 1 2 ...: never within two, always within four.
    let measured: Vec<_> = report.traces[0].decode.reuse.iter().map(|r| r.measured).collect();
    assert_eq!(measured, [0.0, 0.0, 1.0, 1.0]);
}

#[test]
fn other_shapes_are_neither_merged_nor_compared() {
    let wide = Real { header: header("wide", 1, 9, 1), passes: one_layer(4).passes };
    let report = report(&[("a", &one_layer(40)), ("b", &wide)], LocalityOptions::default());
    assert!(report.merged.is_none() && report.overlaps.is_empty());
    assert_eq!(report.traces.len(), 2);
}

#[test]
fn missing_routes_are_told() {
    let mut trace = Real { header: header("two", 2, 8, 1), passes: one_layer(5).passes };
    trace.passes.push(LayerPass::new(decode(5, 1), 1, vec![7]).unwrap());
    let report = report(&[("two", &trace)], LocalityOptions::default());
    let warnings = &report.traces[0].warnings;
    assert_eq!(warnings, &["decode: 4 of 10 routes are missing (5 tokens of 2 layers)"]);
}

#[test]
fn errors_stop_the_trace_and_name_the_place() {
    let mut builder = LocalityBuilder::new(LocalityOptions::default()).unwrap();
    let small = one_layer(3);
    let torn = || {
        let passes = small.passes.iter().cloned().map(Ok);
        passes.chain([Err(TraceError::Torn { line: 5, records: 3 })])
    };
    let error = builder.add("torn", &small.header, torn()).unwrap_err();
    assert_eq!(error.to_string(), "line 5: torn: no end record; 3 whole records before");
    let foreign = LayerPass::new(decode(9, 4), 1, vec![0]).unwrap();
    let error = builder.add("foreign", &small.header, [Ok(foreign)]).unwrap_err();
    assert_eq!(error.to_string(), "step 9 layer 4: layer is 4, the model has 1 of them");
    assert_eq!(error.kind(), "trace-invalid");
    assert!(builder.finish().traces.is_empty());
}
