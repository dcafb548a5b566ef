use super::*;
use memmap2::{Advice, Mmap};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Instant;

const KINDS: [ProbeKind; 3] = [ProbeKind::Mincore, ProbeKind::Cachestat, ProbeKind::ReadNoWait];
const MIB: u64 = 1 << 20;

/// A file on disk with nothing of it in the page cache; `None` where that cannot be had.
fn cold_file(len: u64) -> Option<File> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![7; len as usize]).unwrap();
    file.sync_all().unwrap();
    evict(&file);
    let probe = ResidencyProbe::choose(&file, None).unwrap();
    let map = map(&file);
    if probe.missing_bytes(&file, &map, 0, len).unwrap() == len {
        return Some(file);
    }
    println!("SKIPPED: the temporary directory's file system keeps its pages");
    None
}

fn evict(file: &File) {
    posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
}

fn map(file: &File) -> Mmap {
    // SAFETY: the file has no name, so nothing else truncates it.
    unsafe { Mmap::map(file) }.unwrap()
}

/// The probes that this kernel has.
fn probes(file: &File) -> Vec<ResidencyProbe> {
    KINDS.iter().filter_map(|&kind| ResidencyProbe::choose(file, Some(kind)).ok()).collect()
}

#[test]
fn absent_half_and_whole() {
    let len = 4 * MIB + 100;
    let Some(file) = cold_file(len) else { return };
    // No read-ahead: exactly what is read below becomes resident.
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM).unwrap();
    let map = map(&file);
    let mut half = vec![0; 2 * MIB as usize];
    file.read_exact_at(&mut half, 0).unwrap();
    for probe in probes(&file).iter().filter(|probe| probe.kind() != ProbeKind::ReadNoWait) {
        let missing = |offset, len| probe.missing_bytes(&file, &map, offset, len).unwrap();
        assert_eq!(missing(0, 2 * MIB), 0, "{probe:?}");
        assert_eq!(missing(0, len), len.next_multiple_of(4096) - 2 * MIB, "{probe:?}");
        assert_eq!(missing(2 * MIB + 5, 1), 1, "{probe:?}");
        assert_eq!(missing(2 * MIB - 1, 2), 2, "{probe:?}: one page of two is missing");
        assert!(probe.is_resident(&file, &map, 5, MIB).unwrap());
        assert!(!probe.is_resident(&file, &map, 5, 3 * MIB).unwrap());
    }
    let nowait = ResidencyProbe::choose(&file, Some(ProbeKind::ReadNoWait)).unwrap();
    assert_eq!(nowait.missing_bytes(&file, &map, 0, 2 * MIB).unwrap(), 0);
    assert_eq!(nowait.missing_bytes(&file, &map, 0, 4 * MIB).unwrap(), 4 * MIB);

    let mut rest = vec![0; len as usize];
    file.read_exact_at(&mut rest, 0).unwrap();
    for probe in probes(&file) {
        assert_eq!(probe.missing_bytes(&file, &map, 0, len).unwrap(), 0, "{probe:?}");
    }
}

#[test]
fn larger_than_one_mincore_call() {
    let len = 40 * MIB;
    let Some(file) = cold_file(len) else { return };
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM).unwrap();
    let map = map(&file);
    for offset in [0, 17 * MIB + 123, len - 1] {
        file.read_exact_at(&mut [0], offset).unwrap();
    }
    for probe in probes(&file).iter().filter(|probe| probe.kind() != ProbeKind::ReadNoWait) {
        let missing = probe.missing_bytes(&file, &map, 0, len).unwrap();
        assert_eq!(missing, len - 3 * 4096, "{probe:?}");
    }
}

#[test]
fn an_extent_outside_the_mapping_is_refused() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[1; 10_000]).unwrap();
    let map = map(&file);
    for probe in probes(&file) {
        for (offset, len) in [(0, 10_001), (10_001, 0), (u64::MAX, 2)] {
            let error = probe.missing_bytes(&file, &map, offset, len).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        assert_eq!(probe.missing_bytes(&file, &map, 10_000, 0).unwrap(), 0);
    }
}

/// Another user's read-only file: `mincore` would claim that all of it is present.
#[test]
fn a_file_of_someone_else_is_not_probed_by_mincore() {
    let Some(file) = cold_file(MIB) else { return };
    // SAFETY: the call has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIPPED: only root can become someone else");
        return;
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let file = File::open(path).unwrap();
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let map = map(&file);
    std::thread::scope(|scope| {
        // The identity for files is a thread's own; this thread ends with it.
        scope.spawn(|| {
            // SAFETY: the call takes a number and changes this thread alone.
            unsafe { libc::setfsuid(65_534) };
            let error = ResidencyProbe::choose(&file, Some(ProbeKind::Mincore)).unwrap_err();
            assert!(error.to_string().contains("claims pages that are absent"), "{error}");
            let probe = ResidencyProbe::choose(&file, None).unwrap();
            assert_ne!(probe.kind(), ProbeKind::Mincore);
            println!("chosen for a file of someone else: {probe:?}");
            assert_eq!(probe.missing_bytes(&file, &map, 0, MIB).unwrap(), MIB);
        });
    });
}

/// Costs a 4.5 MiB question; run with `--ignored --nocapture`, release for the record.
#[test]
#[ignore = "prints times and checks none: run on an idle machine with --ignored --nocapture"]
fn measure_the_cost_of_a_probe() {
    let len = 18 * MIB;
    let extent = (2 * MIB, 4 * MIB + MIB / 2);
    let Some(file) = cold_file(len) else { return };
    let rows = |state: &str, map: &Mmap| {
        for probe in probes(&file) {
            let mut costs: Vec<f64> = (0..201)
                .map(|_| {
                    let start = Instant::now();
                    let missing = probe.missing_bytes(&file, map, extent.0, extent.1).unwrap();
                    std::hint::black_box(missing);
                    start.elapsed().as_nanos() as f64 / 1000.0
                })
                .collect();
            costs.sort_by(f64::total_cmp);
            let missing = probe.missing_bytes(&file, map, extent.0, extent.1).unwrap();
            println!(
                "{state:32} {:11} median {:7.2} us, p95 {:7.2} us, missing {missing}",
                format!("{:?}", probe.kind()),
                costs[100],
                costs[190]
            );
        }
    };
    let plain = map(&file);
    plain.advise(Advice::Random).unwrap();
    rows("absent", &plain);
    drop(plain);
    evict(&file);
    let plain = map(&file);
    for start in (0..len).step_by(MIB as usize) {
        plain.advise_range(Advice::WillNeed, start as usize, MIB as usize).unwrap();
    }
    let now = |kind| {
        let probe = ResidencyProbe::choose(&file, Some(kind)).unwrap();
        probe.missing_bytes(&file, &plain, 0, len).unwrap()
    };
    let (mincore, cachestat) = (now(ProbeKind::Mincore), now(ProbeKind::Cachestat));
    println!("right after WILLNEED: mincore misses {mincore}, cachestat misses {cachestat}");
    std::thread::sleep(std::time::Duration::from_millis(500));
    rows("4 KiB folios, not mapped", &plain);
    plain.advise(Advice::PopulateRead).unwrap();
    rows("4 KiB folios, mapped", &plain);
    drop(plain);
    evict(&file);
    let huge = map(&file);
    huge.advise(Advice::HugePage).unwrap();
    huge.advise(Advice::PopulateRead).unwrap();
    rows("2 MiB folios, mapped", &huge);
    drop(huge);
    let huge = map(&file);
    rows("2 MiB folios, not mapped", &huge);
}
