//! Packs that end at every change they make to the disk, and what the next run makes of it.

use super::disk::{Change, Disk, Refusal};
use super::run::run;
use super::*;
use crate::error::OutputError;
use crate::pool::packed::{EXPERTS, INDEX, JOURNAL};
use crate::pool::{Dtype, PartRole, PoolFormat};
use nix::errno::Errno;
use router_trace::ExpertId;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes made of a pattern.
struct Pattern {
    name: &'static str,
    layers: u16,
}

const EXPERTS_A_LAYER: u16 = 4;

fn byte(seed: u64, at: u64) -> u8 {
    (seed.wrapping_mul(0x9e37_79b9).wrapping_add(at * 131) >> 3) as u8
}

fn part_seed(id: ExpertId, role: PartRole) -> u64 {
    (u64::from(id.layer) << 32) | (u64::from(id.index) << 8) | role as u64
}

fn fill(seed: u64, offset: u64, out: &mut [u8]) {
    for (at, out) in (offset..).zip(out) {
        *out = byte(seed, at);
    }
}

impl PackSource for Pattern {
    fn identity(&self) -> Vec<String> {
        vec!["a pattern".to_owned(), self.name.to_owned()]
    }

    fn experts(&self) -> Vec<PackExpert> {
        let part = |role, dtype, rows, cols| PackPart { role, dtype, rows, cols };
        let mut experts = Vec::new();
        for layer in 0..self.layers {
            for index in 0..EXPERTS_A_LAYER {
                // The layers differ in form, and no part ends at a multiple of 64.
                let cols = 30 + u32::from(layer);
                let mut parts = vec![part(PartRole::Gate, Dtype::Bf16, 21, cols)];
                if layer == 1 {
                    parts.push(part(PartRole::GateScale, Dtype::F32, 3, 1));
                }
                parts.push(part(PartRole::Up, Dtype::Bf16, 21, cols));
                parts.push(part(PartRole::Down, Dtype::U8, cols, 21));
                experts.push(PackExpert { id: ExpertId::new(layer, index), parts });
            }
        }
        experts
    }

    fn read_part(&self, id: ExpertId, role: PartRole, out: &mut [u8]) -> Result<(), TierError> {
        fill(part_seed(id, role), 0, out);
        Ok(())
    }

    fn spine(&self) -> Vec<PackTensor> {
        let tensor = |name: &str, shape: &[u64]| PackTensor {
            name: name.to_owned(),
            dtype: Dtype::F32,
            shape: shape.to_vec(),
        };
        vec![
            tensor("embed_tokens.weight", &[40, 7]),
            tensor("layers.0.mlp.gate.weight", &[4, 7]),
            tensor("lm_head.weight", &[40, 7]),
            tensor("norm.weight", &[0]),
        ]
    }

    fn read_spine(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        fill(1000 + tensor as u64, offset, out);
        Ok(())
    }

    fn files(&self) -> Result<Vec<PackFile>, TierError> {
        let file = |name: &str, text: &str| PackFile { name: name.to_owned(), bytes: text.into() };
        Ok(vec![file("config.json", "{\"model_type\":\"x\"}"), file("tokenizer.json", "{}")])
    }

    fn check_unchanged(&self) -> Result<(), TierError> {
        Ok(())
    }
}

const SOURCE: Pattern = Pattern { name: "one", layers: 2 };

fn options(threads: usize) -> PackOptions {
    PackOptions { threads, spine_shard_bytes: 1500, ..PackOptions::default() }
}

fn go(source: &Pattern, out: &Path, threads: usize) -> Result<PackReport, TierError> {
    pack_from(source, out, &options(threads), |_| ())
}

/// Everything that was packed reads back as the pattern says.
fn assert_whole(out: &Path, source: &Pattern) {
    let pool = Pool::open(out).unwrap();
    assert_eq!(pool.format(), PoolFormat::Packed);
    assert!(pool.holes().is_empty() && pool.notices().iter().all(|notice| !notice.warning));
    let experts = source.experts();
    assert_eq!(pool.layout().total_experts(), experts.len());
    let file = File::open(out.join(EXPERTS)).unwrap();
    for expert in experts {
        let layout = pool.layout().expert(expert.id).unwrap();
        let [extent] = *layout.extents else { panic!("one extent") };
        assert!(extent.offset.is_multiple_of(2 << 20));
        assert_eq!(layout.parts.len(), expert.parts.len());
        for part in &layout.parts {
            assert!((part.extent.offset - extent.offset).is_multiple_of(64));
            let mut found = vec![0; part.extent.len as usize];
            let mut wanted = found.clone();
            file.read_exact_at(&mut found, part.extent.offset).unwrap();
            fill(part_seed(expert.id, part.role), 0, &mut wanted);
            assert!(found == wanted, "{} {:?}", expert.id, part.role);
        }
        let mut bytes = vec![0; extent.len as usize];
        file.read_exact_at(&mut bytes, extent.offset).unwrap();
        assert_eq!(pool.checksum(expert.id), Some(xxh3_64(&bytes)));
    }
    for (number, tensor) in source.spine().iter().enumerate() {
        let stored = &pool.spine()[&tensor.name];
        assert_eq!(stored.shape, tensor.shape);
        let mut found = vec![0; stored.extent.len as usize];
        let mut wanted = found.clone();
        let file = File::open(pool.path_of(stored.extent.file)).unwrap();
        file.read_exact_at(&mut found, stored.extent.offset).unwrap();
        fill(1000 + number as u64, 0, &mut wanted);
        assert!(found == wanted, "{}", tensor.name);
    }
    let report = verify(&pool, |_, _| ()).unwrap();
    assert_eq!((report.experts, report.mismatches), (pool.layout().total_experts(), vec![]));
    assert_eq!(report.spine_files, 2);
}

/// Every change from the `at`-th on fails; that one may be torn.
fn dies_at(at: usize, count: &AtomicUsize) -> Disk<'_> {
    Disk::gated(move |_, change| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        if number < at {
            return Ok(());
        }
        let written = match change {
            Change::Write(len) if number == at => [0, 1, len / 2, len - 1, len][at % 5],
            _ => 0,
        };
        Err(Refusal { written, error: io::Error::other("killed") })
    })
}

fn killed_at(at: usize, out: &Path, threads: usize) -> (Result<PackReport, TierError>, usize) {
    let count = AtomicUsize::new(0);
    let disk = dies_at(at, &count);
    let result = run(&SOURCE, out, &options(threads), &disk, &mut |_| ());
    drop(disk);
    (result, count.into_inner())
}

/// What a power cut may leave of bytes that were never synced: anything.
fn spoil_what_the_journal_does_not_have(out: &Path) {
    let journal = fs::read_to_string(out.join(JOURNAL)).unwrap_or_default();
    let finished: Vec<usize> = journal
        .lines()
        .filter_map(|line| line.strip_prefix("e ")?.split(' ').next()?.parse().ok())
        .collect();
    let Ok(file) = File::options().write(true).open(out.join(EXPERTS)) else { return };
    for number in (0..8).filter(|number| !finished.contains(number)) {
        file.write_all_at(&[0xee; 3000], number as u64 * (2 << 20)).unwrap();
    }
}

#[test]
fn a_pack_killed_at_any_change_goes_on() {
    for threads in [1, 3] {
        let whole = tempfile::tempdir().unwrap();
        let (result, changes) = killed_at(usize::MAX, &whole.path().join("p"), threads);
        result.unwrap();
        assert_whole(&whole.path().join("p"), &SOURCE);
        assert!(changes > 30, "{changes}");
        let mut resumed = 0;
        for at in 0..changes {
            let dir = tempfile::tempdir().unwrap();
            let out = dir.path().join("p");
            let (result, _) = killed_at(at, &out, threads);
            if result.is_ok() {
                // Threads may need fewer syncs this time.
                assert!(threads > 1);
                continue;
            }
            if out.join(INDEX).exists() {
                assert_whole(&out, &SOURCE);
                assert_eq!(go(&SOURCE, &out, threads).unwrap_err().kind(), "output-refused");
                continue;
            }
            let error = Pool::open(&out).unwrap_err();
            assert!(
                ["unfinished-pack", "incomplete-download", "not-a-model", "io"]
                    .contains(&error.kind()),
                "{error}"
            );
            spoil_what_the_journal_does_not_have(&out);
            let report = go(&SOURCE, &out, threads).unwrap();
            resumed += report.resumed_experts;
            assert_whole(&out, &SOURCE);
            assert!(!out.join(JOURNAL).exists() && !out.join(target::NEW_INDEX).exists());
        }
        assert!(resumed > 50, "{resumed}");
    }
}

#[test]
fn many_short_runs_come_to_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("p");
    let mut runs = 0;
    while !out.join(INDEX).exists() {
        drop(killed_at(16, &out, 1));
        runs += 1;
        assert!(runs < 20, "no progress");
    }
    assert!(runs > 2);
    assert_whole(&out, &SOURCE);
}

/// An unfinished pack that lacks only its index.
fn almost_done() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::gated(|path, change| match change {
        Change::Rename if path.ends_with(INDEX) => {
            Err(Refusal { written: 0, error: io::Error::other("killed") })
        }
        _ => Ok(()),
    });
    run(&SOURCE, &dir.path().join("p"), &options(2), &disk, &mut |_| ()).unwrap_err();
    dir
}

#[test]
fn a_torn_or_spoilt_journal_is_trusted_up_to_its_last_sound_line() {
    let dir = almost_done();
    let out = dir.path().join("p");
    let whole = fs::read(out.join(JOURNAL)).unwrap();
    let head = whole.iter().position(|&b| b == b'\n').unwrap() + 1;
    let mut counts = Vec::new();
    let again = |journal: &[u8]| {
        fs::remove_file(out.join(INDEX)).ok();
        fs::write(out.join(JOURNAL), journal).unwrap();
        spoil_what_the_journal_does_not_have(&out);
        let report = go(&SOURCE, &out, 2).unwrap();
        report.resumed_experts
    };
    for cut in (head..=whole.len()).step_by(7).chain([whole.len()]) {
        counts.push(again(&whole[..cut]));
    }
    assert!(counts.is_sorted() && counts[0] == 0 && counts.last() == Some(&8), "{counts:?}");
    assert_whole(&out, &SOURCE);
    for at in (head..whole.len()).step_by(11) {
        let mut spoilt = whole.clone();
        spoilt[at] ^= 1;
        assert!(again(&spoilt) < 8);
    }
    assert_whole(&out, &SOURCE);
    // A first line that is none: what lies there is not ours to change.
    fs::remove_file(out.join(INDEX)).unwrap();
    for cut in [0, 1, head / 2, head - 2] {
        fs::write(out.join(JOURNAL), &whole[..cut]).unwrap();
        assert_eq!(go(&SOURCE, &out, 1).unwrap_err().kind(), "output-refused", "{cut}");
    }
}

#[test]
fn files_that_were_cut_or_removed_are_written_again() {
    let dir = almost_done();
    let out = dir.path().join("p");
    let journal = fs::read(out.join(JOURNAL)).unwrap();
    let experts = out.join(EXPERTS);
    let set_len = |len| File::options().write(true).open(&experts).unwrap().set_len(len).unwrap();
    let len = fs::metadata(&experts).unwrap().len();
    let again = || {
        let report = go(&SOURCE, &out, 2).unwrap();
        assert_whole(&out, &SOURCE);
        fs::remove_file(out.join(INDEX)).unwrap();
        fs::write(out.join(JOURNAL), &journal).unwrap();
        report.resumed_experts
    };
    assert_eq!(again(), 8);
    set_len(0);
    assert_eq!(again(), 0);
    set_len((4 << 20) + 100);
    assert_eq!(again(), 2);
    set_len(5 << 20);
    set_len(len + 5000);
    assert!(again() <= 8, "file systems that know no holes cannot tell");
    fs::remove_file(&experts).unwrap();
    assert_eq!(again(), 0);
    for name in ["spine-00001-of-00002.safetensors", "spine-00002-of-00002.safetensors"] {
        set_len(len);
        File::options().write(true).open(out.join(name)).unwrap().set_len(10).unwrap();
        assert_eq!(again(), 8);
        fs::remove_file(out.join(name)).unwrap();
        assert_eq!(again(), 8);
    }
    // Bytes that changed although they were synced: only reading them back can tell.
    let file = File::options().write(true).open(&experts).unwrap();
    file.write_all_at(&[1, 2, 3], (2 << 20) + 70).unwrap();
    let recheck = PackOptions { recheck: true, ..options(2) };
    let mut stages = Vec::new();
    let report = pack_from(&SOURCE, &out, &recheck, |step| stages.push(step.stage)).unwrap();
    assert_eq!(report.resumed_experts, 7);
    assert!(stages.contains(&PackStage::Recheck));
    assert_whole(&out, &SOURCE);
}

#[test]
fn a_full_disk_keeps_what_is_finished() {
    for fail in [Change::Write(0), Change::SetLen, Change::Sync] {
        let mut resumed = Vec::new();
        for nth in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let out = dir.path().join("p");
            let count = AtomicUsize::new(0);
            let disk = Disk::gated(|path, change| {
                let same = std::mem::discriminant(&change) == std::mem::discriminant(&fail);
                let full = same && path.ends_with(EXPERTS);
                if full && count.fetch_add(1, Ordering::Relaxed) >= nth {
                    let error = io::Error::from_raw_os_error(Errno::ENOSPC as i32);
                    return Err(Refusal { written: 5, error });
                }
                Ok(())
            });
            let Err(error) = run(&SOURCE, &out, &options(2), &disk, &mut |_| ()) else { break };
            let text = error.to_string();
            assert_eq!(error.kind(), "disk-full", "{text}");
            assert!(text.contains(" bytes are still to be written"), "{text}");
            assert!(matches!(
                error,
                TierError::Output(OutputError::DiskFull { available: Some(_), .. })
            ));
            assert_eq!(Pool::open(&out).unwrap_err().kind(), "unfinished-pack");
            resumed.push(go(&SOURCE, &out, 2).unwrap().resumed_experts);
            assert_whole(&out, &SOURCE);
        }
        if matches!(fail, Change::Write(_)) {
            assert!(resumed.len() == 8 && resumed[7] >= 5, "{resumed:?}");
        }
    }
}

#[test]
fn room_is_asked_for_before_the_first_write() {
    struct Huge;
    impl PackSource for Huge {
        fn identity(&self) -> Vec<String> {
            Vec::new()
        }
        fn experts(&self) -> Vec<PackExpert> {
            let part = |role| PackPart { role, dtype: Dtype::F64, rows: 1 << 20, cols: 1 << 20 };
            let parts = [PartRole::Gate, PartRole::Up, PartRole::Down].map(part).to_vec();
            (0..1000)
                .map(|i| PackExpert { id: ExpertId::new(0, i), parts: parts.clone() })
                .collect()
        }
        fn read_part(&self, _: ExpertId, _: PartRole, _: &mut [u8]) -> Result<(), TierError> {
            panic!("nothing is read")
        }
        fn spine(&self) -> Vec<PackTensor> {
            Vec::new()
        }
        fn read_spine(&self, _: usize, _: u64, _: &mut [u8]) -> Result<(), TierError> {
            panic!("nothing is read")
        }
        fn files(&self) -> Result<Vec<PackFile>, TierError> {
            panic!("nothing is read")
        }
        fn check_unchanged(&self) -> Result<(), TierError> {
            Ok(())
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("p");
    let error = pack_from(&Huge, &out, &PackOptions::default(), |_| ()).unwrap_err();
    assert_eq!(error.kind(), "disk-full");
    assert!(error.to_string().contains("bytes are still to be written"), "{error}");
    assert!(!out.exists());
}

#[test]
fn another_source_needs_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("p");
    killed_at(30, &out, 1).0.unwrap_err();
    let other = Pattern { name: "two", layers: 2 };
    let error = go(&other, &out, 1).unwrap_err();
    assert_eq!(error.kind(), "pack-source-changed");
    assert!(error.to_string().contains("it was one, it is two"), "{error}");
    let shallow = Pattern { name: "one", layers: 1 };
    assert_eq!(go(&shallow, &out, 1).unwrap_err().kind(), "pack-source-changed");
    let restart = PackOptions { restart: true, ..options(1) };
    let report = pack_from(&shallow, &out, &restart, |_| ()).unwrap();
    assert_eq!((report.resumed_experts, report.notices.len()), (0, 1));
    assert_whole(&out, &shallow);
}

#[test]
fn only_new_places_are_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |out: &Path| {
        let error = go(&SOURCE, out, 1).unwrap_err();
        assert_eq!(error.kind(), "output-refused");
        error.to_string()
    };
    fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    assert!(refused(dir.path()).contains("notes.txt"));
    assert!(refused(&dir.path().join("notes.txt")).contains("no folder"));
    let out = dir.path().join("deep/er/p");
    go(&SOURCE, &out, 1).unwrap();
    assert!(refused(&out).contains("finished"));
    assert_whole(&out, &SOURCE);
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    go(&SOURCE, &empty, 1).unwrap();
    for threads in [0, PackOptions::MAX_THREADS + 1] {
        assert_eq!(go(&SOURCE, &dir.path().join("q"), threads).unwrap_err().kind(), "limit");
    }
}

#[test]
fn two_packs_do_not_write_into_one_folder() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("p");
    let mut second = None;
    pack_from(&SOURCE, &out, &options(1), |step| {
        if step.stage == PackStage::Experts && second.is_none() {
            second = Some(go(&SOURCE, &out, 1));
        }
    })
    .unwrap();
    let error = second.unwrap().unwrap_err();
    assert!(error.to_string().contains("another pack"), "{error}");
    assert_whole(&out, &SOURCE);
}

#[test]
fn progress_is_told_and_ends_at_the_total() {
    let dir = tempfile::tempdir().unwrap();
    let mut steps: Vec<PackProgress> = Vec::new();
    pack_from(&SOURCE, &dir.path().join("p"), &options(2), |step| steps.push(*step)).unwrap();
    assert!(steps.is_sorted_by_key(|step| step.done_bytes));
    let last = steps.last().unwrap();
    assert_eq!((last.stage, last.done_bytes), (PackStage::Finish, last.total_bytes));
    assert_eq!((last.done_experts, last.total_experts), (8, 8));
}

#[test]
fn the_holes_behind_experts_take_no_room() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("p");
    let report = go(&SOURCE, &out, 2).unwrap();
    let metadata = fs::metadata(out.join(EXPERTS)).unwrap();
    assert_eq!(metadata.len(), report.experts_file_len);
    assert_eq!(metadata.len(), 8 * (2 << 20));
    assert!(metadata.blocks() * 512 <= 8 * 4096 + 4096, "{} blocks", metadata.blocks());
}
