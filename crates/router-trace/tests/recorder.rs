//! The recorder: never waits, loses nothing silently, tells what its writer met.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod common;

use common::{decode, header};
use router_trace::{
    DEFAULT_CAPACITY_BYTES, JsonlReader, JsonlWriter, MAX_CAPACITY_BYTES, MIN_CAPACITY_BYTES,
    Recorder, Tail, TraceError, read_all,
};
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// An output that waits at its first flush or large write until it is released.
struct Stalled {
    gate: Option<Receiver<()>>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Stalled {
    fn new() -> (Self, Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (release, gate) = channel();
        let bytes = Arc::default();
        (Self { gate: Some(gate), bytes: Arc::clone(&bytes) }, release, bytes)
    }
}

impl Write for Stalled {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(gate) = self.gate.take() {
            gate.recv().map_err(io::Error::other)?;
        }
        self.bytes.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stalled_sink_costs_records_not_time() {
    let (sink, release, bytes) = Stalled::new();
    let writer = JsonlWriter::new(sink, &header()).unwrap();
    let mut recorder = Recorder::spawn(writer, MIN_CAPACITY_BYTES).unwrap();
    let capacity = recorder.capacity_records();
    assert!((10..2000).contains(&capacity), "{capacity}");

    // All of it while the sink stands still: if `record` waited, this would hang.
    let steps = 20 * capacity as u64;
    let mut taken = 0;
    for step in 0..steps {
        taken += u64::from(recorder.record(decode(step, 1), &[3, 4]));
    }
    let dropped = recorder.dropped();
    assert!(dropped.records > 0);
    assert_eq!(taken + dropped.records, steps);

    release.send(()).unwrap();
    let summary = recorder.finish().unwrap();
    assert_eq!((summary.records, summary.dropped), (taken, dropped));
    let bytes = bytes.lock().unwrap();
    let mut reader = JsonlReader::new(bytes.as_slice(), Tail::Strict).unwrap();
    assert_eq!(reader.by_ref().map(Result::unwrap).count() as u64, taken);
    assert_eq!(reader.end().unwrap().dropped, dropped);
}

#[test]
fn prefill_chunks_grow_within_the_capacity_and_give_it_back() {
    let (sink, release, _) = Stalled::new();
    let writer = JsonlWriter::new(sink, &header()).unwrap();
    let mut recorder = Recorder::spawn(writer, MIN_CAPACITY_BYTES).unwrap();
    // 4,000 tokens are 16,000 bytes: half of 64 KiB holds two of them.
    let chunk = [5, 6].repeat(4000);
    let taken = (0..50).filter(|&step| recorder.record(decode(step, 1), &chunk)).count();
    assert!((1..=4).contains(&taken), "{taken}");
    assert_eq!(recorder.dropped().tokens, (50 - taken as u64) * 4000);
    release.send(()).unwrap();
    // Once the writer has caught up, there is room again.
    let mut step = 50;
    while !recorder.record(decode(step, 1), &chunk) {
        std::thread::yield_now();
        step += 1;
    }
    let summary = recorder.finish().unwrap();
    assert_eq!(summary.tokens, (taken as u64 + 1) * 4000);
}

#[test]
fn several_recorders_at_once_keep_every_count() {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let path = dir.path().join(format!("{n}.jsonl"));
            scope.spawn(move || {
                let writer = JsonlWriter::create(&path, &header()).unwrap();
                let mut recorder = Recorder::spawn(writer, 1 << 20).unwrap();
                for step in 0..5000 {
                    for layer in [1, 2, 5] {
                        recorder.record(decode(step, layer), &[step as u16 % 7, 7]);
                    }
                }
                let summary = recorder.finish().unwrap();
                assert_eq!(summary.records + summary.dropped.records, 15_000);
                let trace = read_all(&path, Tail::Strict).unwrap();
                assert_eq!(trace.passes.len() as u64, summary.records);
                for pass in &trace.passes {
                    assert_eq!(pass.experts(), [pass.info.step as u16 % 7, 7]);
                }
            });
        }
    });
}

#[test]
fn a_full_disk_names_the_file_and_the_numbers() {
    let full = Path::new("/dev/full");
    if !full.exists() {
        println!("SKIPPED: no /dev/full here");
        return;
    }
    let writer = JsonlWriter::create(full, &header()).unwrap();
    let mut recorder = Recorder::spawn(writer, DEFAULT_CAPACITY_BYTES).unwrap();
    for step in 0..10 {
        recorder.record(decode(step, 1), &[0, 1]);
    }
    let error = recorder.finish().unwrap_err();
    assert_eq!(error.kind(), "io");
    let text = error.to_string();
    assert!(text.starts_with("/dev/full: "), "{text}");
    assert!(text.contains("after 10 whole records"), "{text}");
}

#[test]
fn a_bad_record_surfaces_at_finish() {
    let writer = JsonlWriter::new(io::sink(), &header()).unwrap();
    let mut recorder = Recorder::spawn(writer, DEFAULT_CAPACITY_BYTES).unwrap();
    recorder.record(decode(0, 1), &[0, 1]);
    recorder.record(decode(0, 1), &[0, 1]);
    let error = recorder.finish().unwrap_err();
    assert!(matches!(error, TraceError::LayerOrder { line: 3, .. }), "{error}");
}

#[test]
fn a_recorder_that_is_dropped_leaves_a_torn_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.jsonl");
    let writer = JsonlWriter::create(&path, &header()).unwrap();
    let mut recorder = Recorder::spawn(writer, DEFAULT_CAPACITY_BYTES).unwrap();
    recorder.record(decode(0, 1), &[0, 1]);
    drop(recorder);
    assert_eq!(read_all(&path, Tail::Tolerate).unwrap().torn.unwrap().records, 1);
}

#[test]
fn capacity_has_limits() {
    for bytes in [0, MIN_CAPACITY_BYTES - 1, MAX_CAPACITY_BYTES + 1] {
        let writer = JsonlWriter::new(io::sink(), &header()).unwrap();
        let error = Recorder::spawn(writer, bytes).err().unwrap();
        assert_eq!(error.kind(), "limit");
        assert!(error.to_string().contains(&bytes.to_string()), "{error}");
    }
}
