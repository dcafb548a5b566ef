//! Reports: what they hold, that they are the same every time, and that hostile text in a
//! trace stays text.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

#[path = "../locality/data.rs"]
mod data;

use data::{DOMAINS, Real, decode, domain, header, public, report};
use proptest::prelude::*;
use router_trace::locality::{BatchStats, LocalityBuilder, LocalityOptions, LocalityReport};
use router_trace::report::{
    Axis, Chart, Mark, Matrix, Page, Section, Series, locality_page, locality_tables, write_csv,
};
use router_trace::{LayerPass, PassInfo, PassKind, Phase};

fn texts(svg: &str) -> Vec<String> {
    let document = roxmltree::Document::parse(svg).unwrap();
    let text = document.descendants().filter(|node| node.has_tag_name("text"));
    text.map(|node| node.text().unwrap().trim().to_owned()).collect()
}

fn count(svg: &str, tag: &str, attribute: (&str, &str)) -> usize {
    let document = roxmltree::Document::parse(svg).unwrap();
    let nodes = document.descendants().filter(|node| node.tag_name().name() == tag);
    nodes.filter(|node| node.attribute(attribute.0) == Some(attribute.1)).count()
}

fn drawings(html: &str) -> Vec<&str> {
    let starts = html.match_indices("<svg ").map(|(at, _)| at);
    starts.map(|at| &html[at..at + html[at..].find("</svg>").unwrap() + 6]).collect()
}

/// The four domains, and a batch of them.
fn four() -> LocalityReport {
    let traces = DOMAINS.map(domain);
    let shape = traces[0].header.shape.clone();
    let mut builder = LocalityBuilder::new(LocalityOptions::default()).unwrap();
    for (name, trace) in DOMAINS.iter().zip(&traces) {
        builder.add(name, &trace.header, trace.passes.iter().cloned().map(Ok)).unwrap();
    }
    let streams = DOMAINS.iter().zip(traces);
    let streams =
        streams.map(|(name, trace)| ((*name).to_owned(), trace.passes.into_iter().map(Ok)));
    builder.set_batch(BatchStats::count(&shape, streams.collect()).unwrap());
    builder.finish()
}

#[test]
fn a_chart_has_axes_units_series_and_legend() {
    let chart = Chart::new("Hit rate", Axis::log2("experts held"), Axis::percent("hits"))
        .with(Series::new("LRU", Mark::Dotted, vec![(64.0, 0.0), (128.0, 31.9), (256.0, 56.5)]))
        .with(Series::new("", Mark::Dashed, vec![(64.0, 39.5), (256.0, 76.6)]))
        .with(Series::new("static", Mark::Line, vec![(64.0, 19.4), (256.0, 46.0)]))
        .with(Series::new("each", Mark::Faint, vec![(64.0, 5.0), (256.0, 6.0)]));
    let svg = chart.to_svg().unwrap();
    assert_eq!(svg, chart.to_svg().unwrap());
    let texts = texts(&svg);
    for want in
        ["Hit rate", "experts held", "hits (%)", "LRU", "static", "each", "64", "256", "100"]
    {
        assert!(texts.iter().any(|text| text == want), "{want} in {texts:?}");
    }
    // A line and its place in the legend, of the first colour; its dots, one in the legend; a
    // dashed comparison of the same colour in pieces.
    let first = ("stroke", "#2F7FD0");
    let dots = count(&svg, "circle", ("fill", "#2F7FD0"));
    assert_eq!(dots, 4);
    assert!(count(&svg, "polyline", first) > 5, "dashes");
    assert_eq!(count(&svg, "polyline", ("stroke", "#D06A1A")), 2);
    assert_eq!(count(&svg, "polyline", ("opacity", "0.45")), 2);
    for outside in ["href", "src=", "url(", "<script", "<style", "<image"] {
        assert!(!svg.contains(outside), "{outside}");
    }
}

#[test]
fn many_series_stay_apart() {
    let line = |n: i32| vec![(1.0, f64::from(n)), (2.0, f64::from(n + 1))];
    let mut chart = Chart::new("many", Axis::linear("x"), Axis::linear("y"));
    for n in 0..30 {
        chart = chart.with(Series::new(&format!("series {n}"), Mark::Dotted, line(n)));
    }
    let svg = chart.to_svg().unwrap();
    // The ninth has the first one's colour and another shape: two dots and the legend's.
    assert_eq!(count(&svg, "circle", ("fill", "#2F7FD0")), 3);
    assert_eq!(count(&svg, "polygon", ("fill", "#2F7FD0")), 3);
    let texts = texts(&svg);
    assert!(texts.contains(&"series 19".to_owned()) && texts.contains(&"and 10 more".to_owned()));
    assert!(!texts.contains(&"series 20".to_owned()));
}

#[test]
fn tokens_of_one_pass_have_a_table() {
    let info = PassInfo { phase: Phase::Prefill, ..decode(0, 0) };
    let pass = LayerPass::new(info, 2, vec![0, 1, 1, 2, 0, 1]).unwrap();
    let trace = Real { header: header("prompt", 1, 8, 2), passes: vec![pass] };
    let report = report(&[("prompt", &trace)], LocalityOptions::default());
    let tables = locality_tables(&report);
    let table = tables.iter().find(|table| table.name == "shared_passes").unwrap();
    let row: Vec<_> = table.rows[0].iter().map(router_trace::report::Cell::shown).collect();
    assert_eq!(row, ["prompt", "prefill", "1", "3", "6", "3", "2.000"]);
    assert!(locality_page(&report).to_html().unwrap().contains("prompt (prefill)"));
}

#[test]
fn nothing_to_draw_is_said() {
    let empty = Chart::new("t", Axis::linear("x"), Axis::log10("y"));
    let unplottable =
        empty.clone().with(Series::new("s", Mark::Line, vec![(1.0, 0.0), (2.0, -1.0)]));
    for chart in [empty, unplottable] {
        assert!(texts(&chart.to_svg().unwrap()).contains(&"no data".to_owned()));
    }
    let matrix = Matrix {
        title: "m".into(),
        names: vec!["a".into(), "b".into()],
        cells: vec![vec![Some(1.0), None], vec![Some(f64::NAN), Some(0.25)]],
        note: String::new(),
    };
    let texts = texts(&matrix.to_svg().unwrap());
    assert_eq!(texts.iter().filter(|text| *text == "n/a").count(), 2);
    assert!(texts.contains(&"0.250".to_owned()) && !texts.iter().any(|text| text.contains("NaN")));
}

#[test]
fn the_page_has_the_papers_plots() {
    let report = four();
    let html = locality_page(&report).to_html().unwrap();
    assert_eq!(html, locality_page(&report).to_html().unwrap(), "the same every time");
    let titles: Vec<String> = drawings(&html).iter().map(|svg| texts(svg)[0].clone()).collect();
    let want = [
        "Reuse by window",
        "Recency: reuse beyond popularity",
        "Rank and frequency, experts of all layers in one list",
        "Rank and frequency by layer: systems",
        "Rank and frequency by layer: code",
        "Rank and frequency by layer: math",
        "Rank and frequency by layer: fiction",
        "Share of the 8 busiest experts by layer",
        "Effective experts by layer",
        "Growth of coverage",
        "Coverage by layer",
        "Jaccard index of the 16 busiest experts a layer",
    ];
    assert_eq!(titles, want);
    let matrix = texts(drawings(&html).last().unwrap());
    for cell in ["0.330", "0.086", "0.664"] {
        assert!(matrix.contains(&cell.to_owned()), "{cell} in {matrix:?}");
    }
    for heading in
        ["Summary", "Reuse", "Concentration", "Coverage", "Overlap between traces", "Shared reads"]
    {
        assert!(html.contains(&format!("<h2>{heading}</h2>")), "{heading}");
    }
    assert!(html.contains("prefers-color-scheme: dark"));
    // Nothing to load: the only address is the name of SVG's vocabulary.
    assert_eq!(
        html.matches("http").count(),
        html.matches("http://www.w3.org/2000/svg").count() + 1
    );
    assert!(html.contains("http-equiv=\"Content-Security-Policy\""));
}

#[test]
fn hostile_names_stay_text() {
    let evil = "</text></svg><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u{0}";
    let mut trace = Real { header: header(evil, 1, 8, 1), passes: Vec::new() };
    for step in 0..40 {
        trace.passes.push(LayerPass::new(decode(step, 0), 1, vec![(step % 5) as u16]).unwrap());
    }
    let mut builder = LocalityBuilder::new(LocalityOptions::default()).unwrap();
    for name in [evil, "=1+1"] {
        builder.add(name, &trace.header, trace.passes.iter().cloned().map(Ok)).unwrap();
    }
    builder.warn(evil);
    let report = builder.finish();
    let html = locality_page(&report).to_html().unwrap();
    assert!(!html.contains("<script") && !html.contains("<img") && !html.contains('\0'));
    assert!(html.contains("&lt;script&gt;"));
    assert_eq!(html.matches("</svg>").count(), html.matches("<svg ").count());
    for svg in drawings(&html) {
        // Well-formed, and made of the few elements that plots are made of.
        let document = roxmltree::Document::parse(svg).unwrap();
        let known = ["svg", "text", "line", "polyline", "circle", "rect", "polygon"];
        let elements = document.descendants().filter(roxmltree::Node::is_element);
        for element in elements {
            assert!(known.contains(&element.tag_name().name()), "{element:?}");
            assert!(element.attributes().all(|attribute| !attribute.name().starts_with("on")));
        }
    }
    let section = Section::new(evil).paragraph(evil);
    let page = Page::new(evil).paragraph(evil).section(section).to_html().unwrap();
    assert!(!page.contains("<script") && !page.contains("<img"));
    for table in locality_tables(&report) {
        assert!(!table.to_text().chars().any(|c| c.is_control() && c != '\n'));
    }
}

#[test]
fn tables_and_csv_hold_the_figures() {
    let report = four();
    let tables = locality_tables(&report);
    let sizes: Vec<_> = tables.iter().map(|table| (&*table.name, table.rows.len())).collect();
    let traces = 5; // four and merged
    let want = [
        ("summary", 22),
        ("zipf", traces * 4),
        ("reuse", traces * 9),
        ("top_share", traces * 4),
        ("overlap", 6 * 3 + 4 * 3),
        ("batch", 4),
        ("layers", traces * 6),
        ("layer_reuse", traces * 6 * 9),
    ];
    assert_eq!(sizes[..8], want);
    assert_eq!((sizes[8].0, sizes[9].0, sizes.len()), ("growth", "ranks", 10));

    let csv = |name: &str| {
        let mut bytes = Vec::new();
        write_csv(tables.iter().find(|table| table.name == name).unwrap(), &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    let reuse = csv("reuse");
    let mut lines = reuse.lines();
    let head = "trace,phase,window_tokens,scored,reused,measured,shuffled,recency";
    assert_eq!(lines.next(), Some(head));
    assert!(lines.next().unwrap().starts_with("systems,decode,1,49128,11357,0.231"));
    let summary = csv("summary");
    assert!(summary.starts_with("figure,systems,code,math,fiction,merged\r\n"));
    let text = tables[0].to_text();
    assert!(text.contains("| reuse W1 ") && text.contains(" 23.12 % |"), "{text}");
}

#[test]
fn json_names_are_stable() {
    let report = report(&[("olmoe", &public("olmoe_299", 64))], LocalityOptions::default());
    let json = serde_json::to_value(&report).unwrap();
    let keys = |value: &serde_json::Value| -> Vec<String> {
        let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(&json), ["batch", "merged", "options", "overlaps", "traces", "version"]);
    let trace = &json["traces"][0];
    let want = [
        "decode",
        "expert_bytes",
        "layers",
        "model_name",
        "n_experts",
        "name",
        "prefill",
        "top_k",
        "warnings",
    ];
    assert_eq!(keys(trace), want);
    let want = [
        "coverage",
        "growth",
        "halves",
        "layer_tokens",
        "passes",
        "per_layer",
        "records",
        "reuse",
        "selections",
        "shared_passes",
        "superseded_tokens",
        "tokens",
        "top_share",
        "used_experts",
        "zipf",
    ];
    assert_eq!(keys(&trace["decode"]), want);
    let reuse = &trace["decode"]["reuse"][0];
    assert_eq!(keys(reuse), ["measured", "reused", "scored", "shuffled", "window_tokens"]);
    assert_eq!((&reuse["reused"], &reuse["scored"]), (&16_600.into(), &38_144.into()));
    let want = ["alpha", "alpha_ml", "ln_first", "r2", "used_experts"];
    assert_eq!(keys(&trace["decode"]["zipf"]["pooled"]), want);
    assert_eq!((&json["version"], &json["merged"]), (&1.into(), &serde_json::Value::Null));
}

#[test]
fn an_empty_trace_has_a_report_that_says_so() {
    let empty = Real { header: header("empty", 2, 8, 1), passes: Vec::new() };
    let report = report(&[("empty", &empty)], LocalityOptions::default());
    let tables = locality_tables(&report);
    assert_eq!(tables.len(), 1);
    let text = tables[0].to_text();
    assert!(text.contains("| coverage                           |          n/a |"), "{text}");
    assert!(!text.contains("NaN"));
    let html = locality_page(&report).to_html().unwrap();
    assert!(html.contains("no data") && html.contains("n&#x2f;a") && !html.contains("NaN"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever is in a trace, every report can be made, holds no NaN and reads back.
    #[test]
    fn any_small_trace_has_every_report(
        passes in prop::collection::vec((0_u16..3, any::<bool>(), prop::collection::vec(0_u16..6, 1..5)), 0..30),
        single in any::<bool>(),
    ) {
        let trace = |skip: usize| Real {
            header: header("any", 3, 6, 1),
            passes: (0..).zip(passes.iter().skip(skip)).map(|(step, (layer, prompt, experts))| {
                let phase = if *prompt { Phase::Prefill } else { Phase::Decode };
                let kind = PassKind::Normal;
                let info = PassInfo { step, position: step, layer: *layer, phase, kind };
                LayerPass::new(info, 1, experts.clone()).unwrap()
            }).collect(),
        };
        let (one, two) = (trace(0), trace(7));
        let both = [("one", &one), ("two", &two)];
        let report = report(&both[..if single { 1 } else { 2 }], LocalityOptions::default());
        let json = serde_json::to_string(&report).unwrap();
        // A NaN would have become a null where a number must be.
        let back: LocalityReport = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(back.traces.len(), report.traces.len());
        let html = locality_page(&report).to_html().unwrap();
        prop_assert!(!html.contains("NaN") && !html.contains("inf"));
        for svg in drawings(&html) {
            prop_assert!(roxmltree::Document::parse(svg).is_ok());
        }
        for table in locality_tables(&report) {
            prop_assert!(!table.to_text().contains("NaN"));
        }
    }
}
