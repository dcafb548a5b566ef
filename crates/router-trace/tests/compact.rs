//! The compact form: what is written is what is read, small, seekable, and no damage is silent.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod common;

use common::{SplitMix, decode, header, mutate};
use proptest::prelude::*;
use router_trace::{
    CompactReader, CompactWriter, Dropped, JsonlWriter, LayerPass, ModelShape, PassInfo, PassKind,
    Phase, Tail, TraceError, TraceHeader,
};
use std::io::Cursor;

fn write(header: &TraceHeader, passes: &[LayerPass], dropped: Dropped) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = CompactWriter::new(&mut bytes, header).unwrap();
    for pass in passes {
        writer.write_pass(pass).unwrap();
    }
    let summary = writer.finish(dropped).unwrap();
    assert_eq!(summary.bytes, bytes.len() as u64);
    assert_eq!(summary.records, passes.len() as u64);
    bytes
}

/// Ordinary decoding: `tokens` steps through every layer.
fn decoding(shape: &ModelShape, tokens: u64, seed: u64) -> Vec<LayerPass> {
    let mut random = SplitMix(seed);
    let mut passes = Vec::new();
    for step in 0..tokens {
        for &layer in &shape.moe_layers {
            let mut experts = Vec::new();
            while experts.len() < usize::from(shape.top_k) {
                let expert = random.below(shape.n_experts.into()) as u16;
                if !experts.contains(&expert) {
                    experts.push(expert);
                }
            }
            passes.push(LayerPass::new(decode(step, layer), shape.top_k, experts).unwrap());
        }
    }
    passes
}

prop_compose! {
    fn any_route()(ids in prop::sample::subsequence((0..8_u16).collect::<Vec<_>>(), 2), swap: bool)
        -> Vec<u16> {
        if swap { vec![ids[1], ids[0]] } else { ids }
    }
}

prop_compose! {
    fn any_pass()(
        pause in prop_oneof![0..3_u64, 0..1_u64 << 40],
        position in prop_oneof![0..9_u64, any::<u64>()],
        layer in prop::sample::select(vec![1_u16, 2, 5]),
        phase in prop::sample::select(vec![Phase::Decode, Phase::Prefill]),
        kind in prop::sample::select(
            vec![PassKind::Normal, PassKind::SpecAccept, PassKind::SpecFallback]),
        routes in prop::collection::vec(any_route(), 1..3),
        repeat in prop_oneof![Just(1_usize), 1..4000_usize],
    ) -> LayerPass {
        let info = PassInfo { step: pause, position, layer, phase, kind };
        LayerPass::new(info, 2, routes.concat().repeat(repeat)).unwrap()
    }
}

/// `step` was generated as a pause; a repeated layer begins a new step.
fn number_steps(passes: &mut [LayerPass]) {
    let mut last = (0, 0);
    for pass in passes {
        let repeated = u64::from(pass.info.layer <= last.1);
        pass.info.step = last.0 + pass.info.step.max(repeated);
        last = (pass.info.step, pass.info.layer);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Wide records, so that the trace has several blocks and steps lie across them.
    #[test]
    fn round_trip_and_seek(mut passes in prop::collection::vec(any_pass(), 0..60), records: u64) {
        number_steps(&mut passes);
        let dropped = Dropped { records, tokens: 9 };
        let bytes = write(&header(), &passes, dropped);
        let mut reader = CompactReader::new(Cursor::new(&bytes), Tail::Strict).unwrap();
        prop_assert_eq!(reader.header(), &header());
        let read: Vec<_> = reader.by_ref().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(&read, &passes);
        prop_assert_eq!(reader.end().unwrap().dropped, dropped);

        let steps = passes.iter().map(|pass| pass.info.step);
        for step in steps.flat_map(|step| [step, step + 1]).step_by(11).chain([0, u64::MAX]) {
            let from = passes.iter().position(|p| p.info.step >= step).unwrap_or(passes.len());
            reader.seek_step(step).unwrap();
            let read: Vec<_> = reader.by_ref().collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(&read, &passes[from..], "step {}", step);
            // From there the counts still hold to the end.
            prop_assert_eq!(reader.end().unwrap().records, passes.len() as u64);
        }
        let mut first_token = 0;
        for (at, pass) in passes.iter().enumerate() {
            if at > 0 && passes[at - 1].info.step == pass.info.step {
                continue;
            }
            let last_token = first_token + pass.n_tokens() as u64 - 1;
            let some = if at % 3 == 0 { &[first_token, last_token][..] } else { &[] };
            for &token in some {
                reader.seek_token(token).unwrap();
                prop_assert_eq!(&reader.next().unwrap().unwrap(), pass, "token {}", token);
            }
            first_token = last_token + 1;
        }
        reader.seek_token(first_token).unwrap();
        prop_assert!(reader.next().is_none());
    }
}

/// The figure that the format is made for: 1,500 tokens of 92 layers, 16 of 896 experts.
#[test]
fn a_k3_trace_is_small() {
    let shape = ModelShape { moe_layers: (1..93).collect(), n_experts: 896, top_k: 16 };
    let header = TraceHeader {
        model_name: "Kimi K3".into(),
        shape,
        expert_bytes: Some(17_550_000),
        created_by: "a test".into(),
    };
    let passes = decoding(&header.shape, 1500, 20_251_130);
    let bytes = write(&header, &passes, Dropped::default());
    // Each record: 1 byte and 16 ids of 10 bits; each block of 64 KiB: 64 bytes and a first
    // record that is told in full. Random routes, so that nothing rests on what a trace is.
    let records = 1500 * 92;
    assert!(bytes.len() > records * 21, "{}", bytes.len());
    assert!(bytes.len() < records * 21 + 16_000, "{}", bytes.len());
    assert!(bytes.len() < 3_000_000, "{}", bytes.len());
    let mut text = JsonlWriter::new(std::io::sink(), &header).unwrap();
    for pass in &passes {
        text.write_pass(pass).unwrap();
    }
    let text_bytes = text.finish(Dropped::default()).unwrap().bytes;
    assert!(text_bytes > 6 * bytes.len() as u64, "{text_bytes} against {}", bytes.len());

    let mut reader = CompactReader::new(Cursor::new(&bytes), Tail::Strict).unwrap();
    reader.seek_token(1234).unwrap();
    assert_eq!(reader.next().unwrap().unwrap(), passes[1234 * 92]);
}

fn few_blocks() -> (Vec<LayerPass>, Vec<u8>) {
    let mut passes = decoding(&header().shape, 14, 7);
    for pass in &mut passes {
        let experts = pass.experts().repeat(8000);
        *pass = LayerPass::new(pass.info, 2, experts).unwrap();
    }
    let bytes = write(&header(), &passes, Dropped { records: 1, tokens: 3 });
    (passes, bytes)
}

/// Every prefix of a trace is whole blocks and a tear, and nothing else.
#[test]
fn torn_anywhere() {
    let (passes, whole) = few_blocks();
    let mut reader = CompactReader::new(whole.as_slice(), Tail::Strict).unwrap();
    assert!(reader.by_ref().all(|pass| pass.is_ok()));
    let head = whole.windows(4).position(|four| four == b"BLK\n").unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for cut in (head..whole.len()).step_by(3989).chain(whole.len() - 60..whole.len()) {
        let mut reader = CompactReader::new(&whole[..cut], Tail::Tolerate).unwrap();
        let read: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
        assert_eq!(read, passes[..read.len()]);
        assert_eq!(reader.torn().unwrap().records, read.len() as u64, "cut {cut}");
        assert!(reader.end().is_none());
        seen.insert(read.len());

        let strict = CompactReader::new(&whole[..cut], Tail::Strict).unwrap();
        let error = strict.filter_map(Result::err).next().unwrap();
        assert!(matches!(error, TraceError::TornBlock { .. }), "cut {cut}: {error}");
    }
    assert!(seen.len() > 2, "the trace has several blocks: {seen:?}");
    // What a file system leaves of blocks it never wrote is a tear as well.
    let mut zeros = whole[..whole.len() - 56].to_vec();
    zeros.resize(zeros.len() + 4096, 0);
    let mut reader = CompactReader::new(zeros.as_slice(), Tail::Tolerate).unwrap();
    assert_eq!(reader.by_ref().map(Result::unwrap).count(), passes.len());
    assert_eq!(reader.torn().unwrap().records, passes.len() as u64);
}

/// A place before the tear can be gone to; one behind it is the tear.
#[test]
fn seeking_in_a_torn_file() {
    let (passes, whole) = few_blocks();
    let cut = &whole[..whole.len() / 2];
    let mut reader = CompactReader::new(Cursor::new(cut), Tail::Tolerate).unwrap();
    reader.seek_step(3).unwrap();
    assert_eq!(reader.next().unwrap().unwrap(), passes[9]);
    reader.seek_step(13).unwrap();
    assert!(reader.next().is_none() && reader.torn().is_some());
    // The reader goes back from there.
    reader.seek_token(0).unwrap();
    assert_eq!(reader.next().unwrap().unwrap(), passes[0]);
    let mut strict = CompactReader::new(Cursor::new(cut), Tail::Strict).unwrap();
    assert!(matches!(strict.seek_step(13), Err(TraceError::TornBlock { .. })));
    assert!(strict.next().is_none());
    strict.seek_step(0).unwrap();
    assert_eq!(strict.next().unwrap().unwrap(), passes[0]);
}

/// One changed byte anywhere is told, whatever the tail may be.
#[test]
fn flipped_anywhere() {
    let (_, whole) = few_blocks();
    for at in (0..whole.len()).step_by(3989).chain(0..600).chain(whole.len() - 120..whole.len()) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        let first = CompactReader::new(bytes.as_slice(), Tail::Tolerate);
        let error = first.err().or_else(|| {
            let mut reader = CompactReader::new(bytes.as_slice(), Tail::Tolerate).unwrap();
            reader.find_map(Result::err)
        });
        let error = error.unwrap_or_else(|| panic!("byte {at} flipped and nobody saw it"));
        assert!(["trace-invalid", "unsupported"].contains(&error.kind()), "byte {at}: {error}");
    }
}

/// A block that is lost, moved or repeated is told though each block is whole.
#[test]
fn blocks_have_their_place() {
    let (_, whole) = few_blocks();
    let starts: Vec<_> =
        (0..whole.len() - 4).filter(|&at| &whole[at..at + 4] == b"BLK\n").collect();
    let (first, second, third) = (starts[0], starts[1], starts[2]);
    let (head, one, two, rest) =
        (&whole[..first], &whole[first..second], &whole[second..third], &whole[third..]);
    for parts in [[head, two, rest, &[]], [head, one, one, rest], [head, two, one, rest]] {
        let bytes = parts.concat();
        let error = CompactReader::new(bytes.as_slice(), Tail::Tolerate)
            .unwrap()
            .find_map(Result::err)
            .unwrap();
        assert!(error.to_string().contains("a block says"), "{error}");
    }
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut bytes = Vec::new();
    let mut writer = CompactWriter::new(&mut bytes, &header()).unwrap();
    writer.write(decode(3, 2), &[0, 1]).unwrap();
    for (info, experts, text) in [
        (decode(3, 1), &[0_u16, 1][..], "step 3 has layer 1 after layer 2"),
        (decode(2, 5), &[0, 1], "is 2 after 3"),
        (decode(4, 3), &[0, 1], "not one of the header's 3 layers"),
        (decode(4, 1), &[0, 8], "has expert 8, model has 8"),
        (decode(4, 1), &[4, 4], "expert 4 twice"),
        (decode(4, 1), &[], "has 0 tokens"),
    ] {
        let error = writer.write(info, experts).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    writer.write(decode(4, 1), &[0, 1]).unwrap();
    writer.finish(Dropped::default()).unwrap();
    let reader = CompactReader::new(bytes.as_slice(), Tail::Strict).unwrap();
    assert_eq!(reader.map(Result::unwrap).count(), 2);
}

#[test]
fn a_flushed_block_survives_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.rtc");
    let mut writer = CompactWriter::create(&path, &header()).unwrap();
    writer.write(decode(0, 1), &[0, 1]).unwrap();
    writer.flush().unwrap();
    writer.write(decode(0, 2), &[0, 1]).unwrap();
    drop(writer);
    let mut reader = CompactReader::open(&path, Tail::Tolerate).unwrap();
    assert_eq!(reader.by_ref().map(Result::unwrap).count(), 1);
    assert_eq!(reader.torn().unwrap().records, 1);
    let error = CompactReader::open(&path, Tail::Strict).unwrap().find_map(Result::err).unwrap();
    assert!(error.to_string().contains("t.rtc: byte "), "names the file: {error}");
    assert!(error.to_string().contains("torn: 56 bytes are needed, 0 are there"), "{error}");
}

/// Damage that keeps its checksums right: a writer's fault, or malice.
#[test]
fn no_bytes_panic_the_reader() {
    let passes = decoding(&header().shape, 6, 3);
    let whole = write(&header(), &passes, Dropped::default());
    let head = whole.windows(4).position(|four| four == b"BLK\n").unwrap();
    let mut random = SplitMix(20_251_130);
    let (mut refused, mut taken) = (0, 0);
    let mut kinds = std::collections::HashSet::new();
    for round in 0..40_000 {
        let mut bytes = whole.clone();
        if round % 2 == 0 {
            mutate(&mut bytes, &mut random);
        } else {
            let (payload, end) = (head + 64, whole.len() - 56);
            for _ in 0..=random.below(2) {
                let at = payload + random.below(end - payload);
                bytes[at] ^= 1 << random.below(8);
            }
            reseal(&mut bytes, head, end);
        }
        let tail = if random.below(2) == 0 { Tail::Strict } else { Tail::Tolerate };
        let Ok(mut reader) = CompactReader::new(Cursor::new(&bytes), tail) else {
            refused += 1;
            continue;
        };
        let mut failed = false;
        for item in reader.by_ref() {
            assert!(!failed, "nothing follows an error");
            if let Err(error) = &item {
                kinds.insert(std::mem::discriminant(error));
                failed = true;
            }
        }
        assert_eq!(failed, reader.end().is_none() && reader.torn().is_none());
        if failed {
            refused += 1;
        } else {
            taken += 1;
        }
        let _may_fail = reader.seek_step(random.below(8) as u64);
        let _may_fail = reader.by_ref().last();
        let _may_fail = reader.seek_token(random.below(8) as u64);
        let _may_fail = reader.by_ref().last();
    }
    assert!(refused > 1000 && taken > 1000, "{refused} refused, {taken} taken");
    assert!(kinds.len() >= 4, "checksums, tears, faults inside blocks: {kinds:?}");
}

/// Makes the checksums of a trace with one block right again.
fn reseal(bytes: &mut [u8], head: usize, end: usize) {
    let payload_hash = xxhash_rust::xxh3::xxh3_64(&bytes[head + 64..end]);
    bytes[head + 48..head + 56].copy_from_slice(&payload_hash.to_le_bytes());
    let header_hash = xxhash_rust::xxh3::xxh3_64(&bytes[head..head + 56]);
    bytes[head + 56..head + 64].copy_from_slice(&header_hash.to_le_bytes());
}
