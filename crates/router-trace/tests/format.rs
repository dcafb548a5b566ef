//! The trace format: what is written is what is read, and no bytes make the reader panic.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod common;

use common::{SplitMix, decode, header, mutate};
use proptest::prelude::*;
use router_trace::{
    Dropped, JsonlReader, JsonlWriter, LayerPass, PassInfo, PassKind, Phase, Tail, TraceError,
    TraceHeader, read_all,
};
use std::path::Path;

fn write(header: &TraceHeader, passes: &[LayerPass], dropped: Dropped) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = JsonlWriter::new(&mut bytes, header).unwrap();
    for pass in passes {
        writer.write_pass(pass).unwrap();
    }
    let summary = writer.finish(dropped).unwrap();
    assert_eq!(summary.bytes, bytes.len() as u64);
    assert_eq!(summary.records, passes.len() as u64);
    bytes
}

fn sample() -> Vec<u8> {
    let mut passes = Vec::new();
    for step in 0..4_u16 {
        for layer in [1, 2, 5] {
            let experts = vec![step, 7, 6, step + 1, 0, 5];
            passes.push(LayerPass::new(decode(step.into(), layer), 2, experts).unwrap());
        }
    }
    write(&header(), &passes, Dropped { records: 1, tokens: 3 })
}

prop_compose! {
    fn any_route()(ids in prop::sample::subsequence((0..8_u16).collect::<Vec<_>>(), 2), swap: bool)
        -> Vec<u16> {
        if swap { vec![ids[1], ids[0]] } else { ids }
    }
}

prop_compose! {
    fn any_pass()(
        pause in 0..3_u64,
        position: u64,
        layer in prop::sample::select(vec![1_u16, 2, 5]),
        phase in prop::sample::select(vec![Phase::Decode, Phase::Prefill]),
        kind in prop::sample::select(
            vec![PassKind::Normal, PassKind::SpecAccept, PassKind::SpecFallback]),
        routes in prop::collection::vec(any_route(), 1..20),
    ) -> LayerPass {
        let info = PassInfo { step: pause, position, layer, phase, kind };
        LayerPass::new(info, 2, routes.concat()).unwrap()
    }
}

proptest! {
    #[test]
    fn round_trip(mut passes in prop::collection::vec(any_pass(), 0..30), records: u64) {
        // `step` was generated as a pause; a repeated layer begins a new step.
        let mut last = (0, 0);
        for pass in &mut passes {
            let repeated = u64::from(pass.info.layer <= last.1);
            pass.info.step = last.0 + pass.info.step.max(repeated);
            last = (pass.info.step, pass.info.layer);
        }
        let dropped = Dropped { records, tokens: 9 };
        let bytes = write(&header(), &passes, dropped);
        let mut reader = JsonlReader::new(bytes.as_slice(), Tail::Strict).unwrap();
        prop_assert_eq!(reader.header(), &header());
        let read: Vec<_> = reader.by_ref().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(read, passes);
        prop_assert_eq!(reader.end().unwrap().dropped, dropped);
    }
}

/// Every prefix of a trace is whole records and a tear, and nothing else.
#[test]
fn torn_anywhere() {
    let whole = sample();
    let header_bytes = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    let before_end = whole.len() - 1;
    for cut in header_bytes..before_end {
        let records = whole[header_bytes..cut].iter().filter(|&&byte| byte == b'\n').count();
        // A record that only lacks its line feed is whole.
        let complete = usize::from(whole[cut] == b'\n');
        let mut reader = JsonlReader::new(&whole[..cut], Tail::Tolerate).unwrap();
        assert_eq!(reader.by_ref().map(Result::unwrap).count(), records + complete, "cut {cut}");
        let torn = reader.torn().unwrap();
        assert_eq!(torn.records, (records + complete) as u64);
        assert!(reader.end().is_none());

        let strict = JsonlReader::new(&whole[..cut], Tail::Strict).unwrap();
        let error = strict.filter_map(Result::err).next().unwrap();
        assert!(matches!(error, TraceError::Torn { .. }), "cut {cut}: {error}");
    }
    for cut in [before_end, whole.len()] {
        let mut reader = JsonlReader::new(&whole[..cut], Tail::Strict).unwrap();
        assert!(reader.by_ref().all(|pass| pass.is_ok()));
        assert_eq!(reader.end().unwrap().records, 12);
    }
}

#[test]
fn a_writer_that_is_dropped_leaves_a_torn_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.jsonl");
    let mut writer = JsonlWriter::create(&path, &header()).unwrap();
    writer.write(decode(0, 1), &[0, 1]).unwrap();
    drop(writer);
    let error = read_all(&path, Tail::Strict).unwrap_err();
    assert_eq!(error.kind(), "trace-invalid");
    assert!(error.to_string().contains("t.jsonl: line 3: torn"), "{error}");
    let trace = read_all(&path, Tail::Tolerate).unwrap();
    assert_eq!((trace.passes.len(), trace.torn.unwrap().records), (1, 1));
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut bytes = Vec::new();
    let mut writer = JsonlWriter::new(&mut bytes, &header()).unwrap();
    writer.write(decode(3, 2), &[0, 1]).unwrap();
    for (info, experts, text) in [
        (decode(3, 1), &[0_u16, 1][..], "step 3 has layer 1 after layer 2"),
        (decode(2, 5), &[0, 1], "is 2 after 3"),
        (decode(4, 3), &[0, 1], "not one of the header's 3 layers"),
        (decode(4, 1), &[0, 8], "has expert 8, model has 8"),
        (decode(4, 1), &[4, 4], "expert 4 twice"),
        (decode(4, 1), &[0, 1, 2], "token 1 layer 1 has 1 ids, header says 2"),
        (decode(4, 1), &[], "has 0 tokens"),
    ] {
        let error = writer.write(info, experts).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    // A refused record leaves no trace: the file is whole and the same step may still come.
    writer.write(decode(4, 1), &[0, 1]).unwrap();
    writer.finish(Dropped::default()).unwrap();
    let reader = JsonlReader::new(bytes.as_slice(), Tail::Strict).unwrap();
    assert_eq!(reader.map(Result::unwrap).count(), 2);
}

#[test]
fn other_systems_line_ends_and_unknown_fields() {
    let text = String::from_utf8(sample()).unwrap().replace('\n', "\r\n");
    let text = text.replace("\"step\"", "\"new\":{\"a\":[1]},\"step\"");
    let bytes = format!("\u{feff}{text}\r\n\r\n");
    let reader = JsonlReader::new(bytes.as_bytes(), Tail::Strict).unwrap();
    assert_eq!(reader.map(Result::unwrap).count(), 12);
}

#[test]
fn a_line_without_end_is_refused_in_bounded_memory() {
    let mut bytes = sample();
    bytes.resize(bytes.len() + (8 << 20), b' ');
    let error =
        JsonlReader::new(bytes.as_slice(), Tail::Strict).unwrap().find_map(Result::err).unwrap();
    assert!(matches!(error, TraceError::LineTooLong { .. }), "{error}");
}

/// The committed malicious files, each with the error it must give.
#[test]
fn attacks() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("attacks");
    let expected = std::fs::read_to_string(dir.join("EXPECTED.tsv")).unwrap();
    let mut listed = 0;
    for row in expected.lines().filter(|row| !row.starts_with('#')) {
        let [file, kind, text] = row.split('\t').collect::<Vec<_>>()[..] else { panic!("{row}") };
        let error = read_all(&dir.join(file), Tail::Strict).expect_err(file);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{file}: {error}");
        assert!(error.to_string().contains(file), "names the file: {error}");
        listed += 1;
    }
    // Other formats have folders there, each with its own list.
    let is_file = |entry: &std::fs::DirEntry| entry.path().is_file();
    let files = std::fs::read_dir(&dir).unwrap().map(Result::unwrap).filter(is_file).count();
    assert_eq!(listed + 1, files, "every file in attacks/ is listed in EXPECTED.tsv");
}

#[test]
fn no_bytes_panic_the_reader() {
    let whole = sample();
    let mut random = SplitMix(20_251_130);
    let (mut refused, mut taken) = (0, 0);
    for _ in 0..30_000 {
        let mut bytes = whole.clone();
        mutate(&mut bytes, &mut random);
        let tail = if random.below(2) == 0 { Tail::Strict } else { Tail::Tolerate };
        let Ok(mut reader) = JsonlReader::new(bytes.as_slice(), tail) else {
            refused += 1;
            continue;
        };
        let mut failed = false;
        for item in reader.by_ref() {
            assert!(!failed, "nothing follows an error");
            failed = item.is_err();
        }
        assert_eq!(failed, reader.end().is_none() && reader.torn().is_none());
        if failed { refused += 1 } else { taken += 1 }
    }
    // Both kinds must be common, or the mutations test nothing.
    assert!(refused > 1000 && taken > 1000, "{refused} refused, {taken} taken");
}
