use super::*;
use crate::observe::fixture::tree;
use std::fs;

#[test]
fn reads_another_machine() {
    let (_dir, root) = tree(&[
        ("proc/sys/kernel/osrelease", "6.12.9-gentoo\n"),
        ("proc/meminfo", "MemTotal:    1024 kB\nMemFree: 1 kB\nMemAvailable:  512 kB\n"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        ("sys/kernel/mm/lru_gen/enabled", "0x0007\n"),
        ("sys/kernel/mm/lru_gen/min_ttl_ms", "1000\n"),
    ]);
    let host = Host::probe(&root);
    assert_eq!(host.kernel.as_deref(), Some("6.12.9-gentoo"));
    assert_eq!(host.thp.as_deref(), Some("madvise"));
    assert_eq!(host.memory_total_bytes, Some(1 << 20));
    assert_eq!(host.memory_available_bytes, Some(512 << 10));
    assert_eq!(host.reclaim, Reclaim::Mglru { features: 7, min_ttl_ms: 1000 });
    assert!(!host.wsl);
    let json = serde_json::to_value(&host).unwrap();
    assert_eq!(json["reclaim"]["kind"], "mglru");
}

#[test]
fn an_empty_tree_is_a_machine_too() {
    let (_dir, root) = tree(&[]);
    let host = Host::probe(&root);
    assert_eq!((host.kernel, host.thp, host.reclaim), (None, None, Reclaim::Legacy));
    assert!(host.page_bytes.is_power_of_two());
}

#[test]
fn mglru_switched_off_is_legacy_and_wsl_is_named() {
    let (_dir, root) = tree(&[
        ("sys/kernel/mm/lru_gen/enabled", "0x0000\n"),
        ("proc/version", "Linux version 5.15.0-microsoft-standard-WSL2 (build) #1 SMP\n"),
    ]);
    let host = Host::probe(&root);
    assert_eq!(host.reclaim, Reclaim::Legacy);
    assert!(host.wsl);
}

#[test]
fn a_partition_has_its_disks_queue() {
    let (dir, root) = tree(&[
        ("sys/devices/sda/queue/max_sectors_kb", "1280\n"),
        ("sys/devices/sda/queue/read_ahead_kb", "128\n"),
        ("sys/devices/sda/queue/logical_block_size", "4096\n"),
        ("sys/devices/sda/sda1/dev", "8:1\n"),
        ("sys/dev/block/x", ""),
    ]);
    let link = dir.path().join("sys/dev/block/8:1");
    std::os::unix::fs::symlink("../../devices/sda/sda1", link).unwrap();
    let device = DeviceNumber { major: 8, minor: 1 };
    let probe =
        |root| Storage::of_device(FsType::from_magic(0xef53), device, Path::new("/m"), root);
    let storage = probe(&root);
    assert_eq!((storage.read_ahead_kb, storage.max_sectors_kb), (Ok(128), Ok(1280)));

    // The file system's own window goes before the disk's.
    fs::create_dir_all(dir.path().join("sys/class/bdi/8:1")).unwrap();
    fs::write(dir.path().join("sys/class/bdi/8:1/read_ahead_kb"), "4096").unwrap();
    assert_eq!(probe(&root).read_ahead_kb, Ok(4096));

    let block = |root| logical_block_bytes(libc::makedev(8, 1), dir.path(), root);
    assert_eq!(block(&root), Some(4096));

    let (_dir, empty) = tree(&[]);
    assert_eq!(block(&empty), None);
    let reason = probe(&empty).max_sectors_kb.unwrap_err().reason;
    assert!(reason.contains("/sys/dev/block/8:1/queue/max_sectors_kb"), "{reason}");
}

#[test]
fn file_system_types() {
    for (magic, name, kind, warned) in [
        (26_985, "nfs", FsKind::Network, true),
        (1_702_057_286, "fuse", FsKind::UserSpace, true),
        (16_914_839, "9p", FsKind::VirtualMachineShare, true),
        (4_283_649_346, "cifs", FsKind::Network, true),
        (198_183_888, "lustre", FsKind::Network, true),
        (16_914_836, "tmpfs", FsKind::Memory, false),
        (801_189_825, "zfs", FsKind::SecondCache, false),
        (2_435_016_766, "btrfs", FsKind::Local, false),
        (1_481_003_842, "xfs", FsKind::Local, false),
        (61_267, "ext4", FsKind::Local, false),
        (2_035_054_128, "overlay", FsKind::Layered, false),
        (1_936_814_952, "squashfs", FsKind::Compressed, false),
        (1_397_118_030, "ntfs", FsKind::Local, false),
        (1_936_094_318, "ntfs3", FsKind::Local, false),
        (3_735_928_559, "0xdeadbeef", FsKind::Unknown, false),
    ] {
        let fs = FsType::from_magic(magic);
        assert_eq!((fs.name.as_str(), fs.kind), (name, kind));
        assert_eq!(fs.mapping_warning().is_some(), warned, "{name}");
    }
}

#[test]
fn this_machine() {
    let dir = tempfile::tempdir().unwrap();
    let storage = Storage::probe(dir.path(), &SystemRoot::default()).unwrap();
    println!("{storage:?}\n{:?}", Host::probe(&SystemRoot::default()));
    assert!(Storage::probe(&dir.path().join("absent"), &SystemRoot::default()).is_err());
}
