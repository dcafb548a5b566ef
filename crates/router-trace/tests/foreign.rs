//! Opening traces of any format: recognised, read, converted, and no bytes make a reader panic.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{SplitMix, mutate};
use router_trace::canonical::Notice;
use router_trace::format::{
    self, ExpertUsage, Format, OpenOptions, OutputFormat, ShapeHints, TraceReader, TraceWriter,
    convert,
};
use router_trace::{
    CompactReader, ExpertId, JsonlReader, LayerPass, ModelShape, PassKind, Tail, TraceError,
};
use std::collections::BTreeSet;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    // The public traces are for everyone, the others for tests.
    let dir = if name.starts_with("tiny_moe") { "tests/data" } else { "traces" };
    Path::new(env!("CARGO_MANIFEST_DIR")).join(dir).join(name)
}

fn read_all(path: &Path, options: &OpenOptions) -> (TraceReader, Vec<LayerPass>) {
    let mut reader = format::open(path, options).unwrap();
    let passes = reader.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
    (reader, passes)
}

fn unzip(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}

fn all_layers(shape: &ModelShape) -> bool {
    shape.moe_layers.iter().enumerate().all(|(at, &layer)| at == usize::from(layer))
}

/// The two public traces, with the figures that two other programs found in them.
#[test]
fn real_waste_traces() {
    for (name, layers, experts, tokens, accesses, distinct) in [
        ("olmoe_299.jsonl.gz", 16, 64, 299, 38_272, 974),
        ("kimi_linear_300.jsonl.gz", 26, 256, 300, 62_400, 5_083),
    ] {
        let (reader, passes) = read_all(&data(name), &OpenOptions::default());
        assert_eq!(reader.format(), Format::Waste);
        let shape = &reader.header().shape;
        assert!(all_layers(shape));
        assert_eq!(
            (shape.moe_layers.len(), shape.n_experts, shape.top_k),
            (layers, experts, 8),
            "{name}"
        );
        assert!(matches!(reader.notices()[..], [Notice::ShapeInferred { .. }]));
        let uses: Vec<_> = passes
            .iter()
            .flat_map(|pass| pass.experts().iter().map(|&e| ExpertId::new(pass.info.layer, e)))
            .collect();
        assert_eq!((uses.len(), uses.iter().collect::<BTreeSet<_>>().len()), (accesses, distinct));
        let counts = reader.summary().unwrap().canonical.unwrap();
        assert_eq!((counts.normal, counts.accepted_tokens), (tokens, tokens));
        assert_eq!((counts.stale_runs, counts.dry_run_passes, counts.missing_steps), (0, 0, 0));
        // Token by token the ids are those of the file, in its order.
        let text = String::from_utf8(unzip(&data(name))).unwrap();
        for (at, line) in text.lines().enumerate() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            for (layer, ids) in row["layers"].as_array().unwrap().iter().enumerate() {
                let pass = &passes[at * layers + layer];
                assert_eq!(pass.info.step, at as u64);
                assert_eq!(pass.info.kind, PassKind::Normal);
                assert_eq!(&serde_json::json!(pass.experts()), ids);
            }
        }
    }
}

#[test]
fn layers_have_the_numbers_that_are_said() {
    // Kimi-Linear's first layer is dense: its 26 expert layers are 1 to 26.
    let shape = ShapeHints {
        moe_layers: Some((1..27).collect()),
        model_name: Some("Kimi-Linear".into()),
        expert_bytes: Some(7),
        ..ShapeHints::default()
    };
    let options = OpenOptions { shape, ..OpenOptions::default() };
    let (reader, passes) = read_all(&data("kimi_linear_300.jsonl.gz"), &options);
    assert_eq!(reader.header().model_name, "Kimi-Linear");
    assert_eq!(reader.header().expert_bytes, Some(7));
    assert_eq!((passes[0].info.layer, passes[25].info.layer), (1, 26));
    let shape = ShapeHints { moe_layers: Some((1..26).collect()), ..ShapeHints::default() };
    let options = OpenOptions { shape, ..OpenOptions::default() };
    let error = format::open(&data("kimi_linear_300.jsonl.gz"), &options).err().unwrap();
    assert!(error.to_string().contains("26 lists, the model has 25 layers"), "{error}");
}

#[test]
fn a_plain_trace_keeps_rank_and_position() {
    let (reader, passes) = read_all(&data("tiny_moe_code_60.jsonl.gz"), &OpenOptions::default());
    assert_eq!(reader.format(), Format::Plain);
    assert_eq!(reader.header().shape.moe_layers, [0, 1, 2, 3, 4, 5]);
    assert_eq!(passes.len(), 360);
    assert_eq!(passes[0].experts(), [35, 47, 49, 52]);
    assert_eq!(passes[1].experts(), [36, 31, 42, 5]);
    assert_eq!((passes[359].info.step, passes[359].info.position), (59, 59));
}

/// From a foreign format to both of ours and back and forth: the same passes everywhere.
#[test]
fn conversions_agree() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["olmoe_299.jsonl.gz", "tiny_moe_code_60.jsonl.gz"] {
        let (reader, passes) = read_all(&data(name), &OpenOptions::default());
        let header = reader.header().clone();
        let mut from = data(name);
        for (file, is) in
            [("a.rtc", Format::Compact), ("b.jsonl", Format::Jsonl), ("c.rtc", Format::Compact)]
        {
            let to = dir.path().join(file);
            let mut reader = format::open(&from, &OpenOptions::default()).unwrap();
            let output = OutputFormat::for_path(&to).unwrap();
            let writer = TraceWriter::create(&to, output, reader.header()).unwrap();
            let converted = convert(&mut reader, writer).unwrap();
            assert_eq!(converted.read.records, passes.len() as u64);
            assert_eq!(converted.written.records, passes.len() as u64);
            assert_eq!(converted.written.bytes, std::fs::metadata(&to).unwrap().len());
            let (reader, again) = read_all(&to, &OpenOptions::default());
            assert_eq!((reader.format(), reader.header()), (is, &header));
            assert_eq!(again, passes);
            from = to;
        }
        let bytes = |file: &str| std::fs::read(dir.path().join(file)).unwrap();
        assert_eq!(bytes("a.rtc"), bytes("c.rtc"), "one trace has one compact form");
    }
    assert_eq!(OutputFormat::for_path(Path::new("trace.txt")), None);
}

#[test]
fn hints_must_agree_with_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.rtc");
    let mut reader = format::open(&data("olmoe_299.jsonl.gz"), &OpenOptions::default()).unwrap();
    let writer = TraceWriter::create(&path, OutputFormat::Compact, reader.header()).unwrap();
    convert(&mut reader, writer).unwrap();
    let with = |shape| OpenOptions { shape, ..OpenOptions::default() };
    let error =
        format::open(&path, &with(ShapeHints { n_experts: Some(128), ..Default::default() }));
    let error = error.err().unwrap().to_string();
    assert!(error.contains("t.rtc: model.n_experts is 64, not 128"), "{error}");
    let named = ShapeHints {
        n_experts: Some(64),
        model_name: Some("OLMoE".into()),
        expert_bytes: Some(9),
        ..Default::default()
    };
    let reader = format::open(&path, &with(named)).unwrap();
    assert_eq!(reader.header().model_name, "OLMoE");
    assert_eq!(reader.header().expert_bytes, Some(9));
}

#[test]
fn a_usage_file_is_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(".coli_usage");
    let text = "-1 3 64\n-2 1 3815245270\n-3 7 8\n1 5 10\n1 7 2\n2 5 10\n3 0 1\n";
    std::fs::write(&path, text).unwrap();
    let error = format::open(&path, &OpenOptions::default()).err().unwrap();
    assert!(matches!(&error, TraceError::InFile { error, .. }
        if matches!(**error, TraceError::CountsOnly { .. })));
    assert!(error.to_string().contains("holds counts, not routes"), "{error}");

    let usage = ExpertUsage::read(&path).unwrap();
    assert_eq!((usage.n_layers, usage.n_experts), (Some(3), Some(64)));
    assert_eq!(usage.engine.as_deref(), Some("glm_moe_dsa"));
    assert_eq!((usage.total(), usage.count(ExpertId::new(1, 7))), (23, 2));
    assert_eq!(usage.count(ExpertId::new(9, 9)), 0);
    let ranked: Vec<_> = usage.ranked().into_iter().map(|(id, _)| (id.layer, id.index)).collect();
    assert_eq!(ranked, [(1, 5), (2, 5), (1, 7), (3, 0)]);

    // Without header rows, as older versions wrote it; and inkling's dense layout.
    std::fs::write(&path, "1 5 10\n1 7 2\n2 5 10\n3 0 1\n").unwrap();
    let old = ExpertUsage::read(&path).unwrap();
    assert_eq!(old.counts().collect::<Vec<_>>(), usage.counts().collect::<Vec<_>>());
    assert_eq!((old.n_layers, old.engine), (None, None));
    let mut dense = b"IKU1\x02\0\0\0\x03\0\0\0".to_vec();
    for count in [0_u32, 4, 0, 1, 0, 70_000] {
        dense.extend_from_slice(&count.to_le_bytes());
    }
    std::fs::write(&path, &dense).unwrap();
    assert_eq!(format::open(&path, &OpenOptions::default()).err().unwrap().kind(), "unsupported");
    let usage = ExpertUsage::read(&path).unwrap();
    let ids: Vec<_> = usage.counts().map(|(id, n)| (id.layer, id.index, n)).collect();
    assert_eq!(ids, [(0, 1, 4), (1, 0, 1), (1, 2, 70_000)]);
    assert_eq!(usage.engine.as_deref(), Some("inkling"));
}

#[test]
fn what_is_no_file_is_not_read_twice() {
    let dir = tempfile::tempdir().unwrap();
    let missing = format::open(&dir.path().join("none"), &OpenOptions::default()).err().unwrap();
    assert_eq!(missing.kind(), "io");
    let pipe = Path::new("/dev/null");
    let error = format::open(pipe, &OpenOptions::default()).err().unwrap();
    assert!(error.to_string().contains("does not say its format"), "{error}");
    let mut options = OpenOptions { format: Some(Format::Colibri), ..OpenOptions::default() };
    options.shape.moe_layers = Some(vec![0]);
    let error = format::open(pipe, &options).err().unwrap();
    assert!(error.to_string().contains("does not say its experts"), "{error}");
    options.shape.n_experts = Some(8);
    options.shape.top_k = Some(2);
    let reader = format::open(pipe, &options).unwrap();
    assert_eq!(reader.count(), 0);
}

#[test]
fn formats_have_names() {
    for format in Format::ALL {
        assert_eq!(format.name().parse::<Format>().unwrap(), format);
    }
    let error = "gguf".parse::<Format>().unwrap_err().to_string();
    assert!(error.contains("\"gguf\""), "{error}");
}

/// The committed malicious files of each format, each with the error it must give.
#[test]
fn attacks() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("attacks");
    for folder in ["colibri", "compact", "plain", "usage", "waste"] {
        let dir = root.join(folder);
        let expected = std::fs::read_to_string(dir.join("EXPECTED.tsv")).unwrap();
        let mut listed = 0;
        for row in expected.lines().filter(|row| !row.starts_with('#')) {
            let [file, kind, text] = row.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{folder}: {row}")
            };
            let path = dir.join(file);
            let error = if folder == "usage" {
                ExpertUsage::read(&path).expect_err(file)
            } else {
                open_and_read(&path).expect_err(file)
            };
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(text), "{folder}/{file}: {error}");
            assert!(error.to_string().contains(file), "names the file: {error}");
            listed += 1;
        }
        let files = std::fs::read_dir(&dir).unwrap().count();
        assert_eq!(listed + 1, files, "every file in attacks/{folder}/ is in its EXPECTED.tsv");
    }
}

fn open_and_read(path: &Path) -> Result<usize, TraceError> {
    let reader = format::open(path, &OpenOptions::default())?;
    reader.map(|pass| pass.map(|_| 1)).sum()
}

/// Damages a valid file of each format again and again: passes and then perhaps one error.
#[test]
fn no_bytes_panic_a_reader() {
    let colibri = "0 0 1 3:0.5000 2:0.5000\n1 0 2 7:0.5 1:0.5\n\
                   2 0 1 3:0.5000 0:0.5000\n2 1 1 5:0.5 6:0.5\n3 0 2 7:0.5 1:0.5\n3 1 2 2:0.5 1:1\n\
                   4 0 1 3:0.5000 0:0.5000\n5 0 2 7:0.5000 1:0.5000\n";
    let waste =
        "{\"tok\": 0, \"layers\": [[1, 2], [0, 7]]}\n{\"tok\": 1, \"layers\": [[3, 2], [0, 5]]}\n";
    let plain = "{\"model\":\"m\",\"num_experts\":8,\"top_k\":2,\"moe_layers\":[1,2]}\n\
                 {\"step\":0,\"layer\":1,\"experts\":[1,2]}\n{\"step\":0,\"layer\":2,\"experts\":[[1,2]]}\n\
                 {\"step\":1,\"pos\":4,\"layer\":1,\"experts\":[1,2,7,0]}\n{\"step\":1,\"layer\":2,\"experts\":[1,2,3,4]}\n";
    let usage = "-1 2 8\n-2 1 3815245270\n0 1 7\n1 3 9\n2 7 1\n";
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut gz, plain.as_bytes()).unwrap();
    let gz = gz.finish().unwrap();
    let mut random = SplitMix(20_251_130);
    for (name, whole) in [
        ("colibri", colibri.as_bytes()),
        ("waste", waste.as_bytes()),
        ("plain", plain.as_bytes()),
        ("usage", usage.as_bytes()),
        ("gz", &gz),
    ] {
        let (mut refused, mut taken) = (0, 0);
        for round in 0..3_000 {
            let mut bytes = whole.to_vec();
            if round > 0 {
                mutate(&mut bytes, &mut random);
            }
            let mut options = OpenOptions::default();
            if random.below(2) == 0 {
                options.tail = Tail::Tolerate;
            }
            if random.below(2) == 0 {
                options.format = Some(Format::ALL[random.below(Format::ALL.len())]);
            }
            if random.below(2) == 0 {
                options.shape.moe_layers = Some(vec![1, 2]);
                options.shape.n_experts = Some(8);
                options.shape.top_k = Some(2);
            }
            if name == "usage" {
                let read = ExpertUsage::from_reader(Box::new(Cursor::new(bytes.clone())));
                if read.is_ok() {
                    taken += 1;
                } else {
                    refused += 1;
                };
            }
            let Ok(mut reader) = format::open_bytes(bytes, &options) else {
                refused += 1;
                continue;
            };
            let shape = reader.header().shape.clone();
            let mut failed = false;
            for item in reader.by_ref() {
                assert!(!failed, "nothing follows an error");
                failed = item.is_err();
                if let Ok(pass) = item {
                    assert!(pass.experts().iter().all(|&id| id < shape.n_experts));
                }
            }
            assert_eq!(reader.summary().is_none(), failed);
            if failed {
                refused += 1;
            } else {
                taken += 1;
            };
        }
        assert!(refused > 300, "{name}: {refused} refused, {taken} taken");
        // A change of compressed bytes is hardly ever harmless.
        let few = if name == "gz" { 1 } else { 100 };
        assert!(taken >= few, "{name}: {refused} refused, {taken} taken");
    }
}

/// Bytes that are no trace at all, and prefixes that promise one.
#[test]
fn arbitrary_bytes_are_refused_or_read() {
    let mut random = SplitMix(7);
    let starts: [&[u8]; 8] = [
        b"",
        b"\x1f\x8b\x08\0",
        b"\x89ETC\r\n\x1a\n\x01\0\0\0",
        b"IKU1",
        b"{",
        b"0 0 0 ",
        b"1 2 3",
        b"\xef\xbb\xbf",
    ];
    for round in 0..2_000 {
        let mut bytes = starts[round % starts.len()].to_vec();
        let more = random.below(300);
        bytes.extend((0..more).map(|_| random.below(256) as u8));
        let options = OpenOptions {
            format: (round % 3 > 0).then(|| Format::ALL[random.below(Format::ALL.len())]),
            tail: if round % 2 == 0 { Tail::Strict } else { Tail::Tolerate },
            ..OpenOptions::default()
        };
        if let Ok(reader) = format::open_bytes(bytes.clone(), &options) {
            let _may_fail = reader.last();
        }
        let _may_fail = ExpertUsage::from_reader(Box::new(Cursor::new(bytes.clone())));
        let _may_fail = JsonlReader::new(bytes.as_slice(), Tail::Tolerate).map(Iterator::last);
        let _may_fail = CompactReader::new(bytes.as_slice(), Tail::Tolerate).map(Iterator::last);
    }
}

/// A gzip file that expands without end is read in the memory of one line.
#[test]
fn a_bomb_is_refused_at_its_first_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bomb.jsonl.gz");
    let mut gz = flate2::write::GzEncoder::new(
        std::fs::File::create(&path).unwrap(),
        flate2::Compression::best(),
    );
    let zeros = vec![b' '; 1 << 20];
    for _ in 0..64 {
        std::io::Write::write_all(&mut gz, &zeros).unwrap();
    }
    gz.finish().unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() < 100_000);
    let error = open_and_read(&path).unwrap_err();
    assert!(error.to_string().contains("line 1: longer than 2097152 bytes"), "{error}");
}
