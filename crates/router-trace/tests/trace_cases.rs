//! The public faults of router traces (case O18), each against its verdict.
//!
//! Their neutral form (a header line, then tok, layer and experts) is the plain format with
//! its header, so no adaptor is needed.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use router_trace::canonical::{CanonicalCounts, Notice};
use router_trace::format::{self, Format, OpenOptions};
use router_trace::{ExpertId, LayerPass, Tail, TraceError};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/O18")
}

struct Read {
    passes: Vec<LayerPass>,
    notices: Vec<String>,
    counts: CanonicalCounts,
}

impl Read {
    fn uses(&self) -> usize {
        self.passes.iter().map(|pass| pass.experts().len()).sum()
    }

    fn distinct(&self) -> usize {
        let ids = self.passes.iter().flat_map(|pass| {
            pass.experts().iter().map(|&index| ExpertId::new(pass.info.layer, index))
        });
        ids.collect::<BTreeSet<_>>().len()
    }
}

fn read(input: &str, tail: Tail) -> Result<Read, TraceError> {
    let options = OpenOptions { tail, ..OpenOptions::default() };
    let mut reader = format::open(&dir().join(input), &options)?;
    assert_eq!(reader.format(), Format::Plain);
    assert_eq!(reader.header().shape.moe_layers, [0, 1]);
    assert_eq!(reader.header().model_name, "tiny");
    let passes = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
    let inferred = |notice: &Notice| matches!(notice, Notice::ShapeInferred { .. });
    assert!(!reader.notices().iter().any(inferred), "the header has the shape");
    Ok(Read {
        passes,
        notices: reader.notices().iter().map(ToString::to_string).collect(),
        counts: reader.summary().unwrap().canonical.unwrap(),
    })
}

/// What the message must name: the line, the token and layer, and both numbers.
fn needles(input: &str) -> &'static [&'static str] {
    match input {
        "zeros_as_padding.jsonl" => &["line 14: token 6 layer 0 has expert 0 twice in one row"],
        "half_padded.jsonl" => &["line 14: token 6 layer 0 has -1 beside a real id"],
        "stale_row_repeated.jsonl" => &["line 14: stale", "tokens 6 to 72", "67 running"],
        "torn_last_line.jsonl" => &["line 14: torn", "12 whole records"],
        "wrong_top_k.jsonl" => &["line 14: token 6 layer 0 has 3 ids, header says 2"],
        "token_missing_layer.jsonl" => {
            &["line 12: token 5 has 1 of 2 layers", "(layer 0 only)", "layer 1 is missing"]
        }
        "same_row_twice.jsonl" => &["line 14: token 1 layer 1 appears twice"],
        "id_as_float.jsonl" => &["line 14: ", "floating point"],
        "empty.jsonl" => &["line 1: no trace header", "the file is empty"],
        _ => panic!("{input} has no message to look for"),
    }
}

fn check(input: &str, message: &str) {
    for needle in needles(input) {
        assert!(message.contains(needle), "{input}: {needle:?} is not in {message:?}");
    }
}

#[test]
fn every_verdict() {
    let text = std::fs::read(dir().join("verdicts.json")).unwrap();
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&text).unwrap();
    assert_eq!(rows.len(), 13);
    for row in &rows {
        let (input, verdict) = (row["input"].as_str().unwrap(), row["verdict"].as_str().unwrap());
        let lenient = read(input, Tail::Tolerate);
        match verdict {
            "ok" => assert_eq!(lenient.unwrap().notices, [""; 0], "{input}"),
            "warn" => {
                let notices = lenient.unwrap().notices;
                assert_eq!(notices.len(), 1, "{input}: {notices:?}");
                check(input, &notices[0]);
            }
            "trace-invalid" => {
                let error = lenient.err().unwrap_or_else(|| panic!("{input} was taken"));
                assert_eq!(error.kind(), "trace-invalid", "{input}: {error}");
                assert!(error.to_string().contains(input), "names the file: {error}");
                check(input, &error.to_string());
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn what_the_good_ones_hold() {
    for input in ["clean.jsonl", "padded_minus_one.jsonl", "crlf_bom.jsonl"] {
        let read = read(input, Tail::Strict).unwrap();
        assert_eq!((read.passes.len(), read.uses(), read.distinct()), (12, 24, 16), "{input}");
        assert_eq!((read.counts.normal, read.counts.accepted_tokens), (6, 6));
        let padded = input == "padded_minus_one.jsonl";
        assert_eq!(read.counts.padding_rows, if padded { 4 } else { 0 });
        assert_eq!(read.counts.records, if padded { 16 } else { 12 });
    }
    let empty = read("header_only.jsonl", Tail::Strict).unwrap();
    assert_eq!((empty.passes.len(), empty.counts.records), (0, 0));

    let torn = read("torn_last_line.jsonl", Tail::Tolerate).unwrap();
    assert_eq!((torn.passes.len(), torn.uses()), (12, 24));
    let error = read("torn_last_line.jsonl", Tail::Strict).err().unwrap();
    assert_eq!(error.kind(), "trace-invalid");
    check("torn_last_line.jsonl", &error.to_string());

    let stale = read("stale_row_repeated.jsonl", Tail::Strict).unwrap();
    assert_eq!((stale.passes.len(), stale.counts.stale_runs), (12 + 134, 1));
}

#[test]
fn stale_rows_are_refused_where_asked() {
    let mut options = OpenOptions::default();
    options.canonical.stale = router_trace::canonical::Stale::Refuse;
    let path = dir().join("stale_row_repeated.jsonl");
    let error = format::open(&path, &options).unwrap().find_map(Result::err).unwrap();
    // The eighth of the equal tokens 6 to 72 is token 13.
    let text = "line 28: token 13 layer 0 repeats the routes of the 7 tokens before it";
    assert!(error.to_string().contains(text), "{error}");
}
