use super::*;
use std::fs;

const GIB: u64 = 1 << 30;
const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n";
const V1_MOUNT: &str = "31 23 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
    32 31 0:28 / /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory\n";
const MEMINFO: &str = "MemTotal:       67108864 kB\nMemAvailable:   62914560 kB\n";

fn read(files: &[(&str, &str)]) -> MemoryLimits {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in [("proc/meminfo", MEMINFO)].iter().chain(files) {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    MemoryLimits::read(&SystemRoot::at(dir.path()))
}

fn v2(max: &str, current: u64, stat: &str) -> MemoryLimits {
    read(&[
        ("proc/self/cgroup", "0::/box\n"),
        ("proc/self/mountinfo", V2_MOUNT),
        ("sys/fs/cgroup/box/memory.max", max),
        ("sys/fs/cgroup/box/memory.current", &current.to_string()),
        ("sys/fs/cgroup/box/memory.stat", stat),
    ])
}

#[test]
fn page_cache_counts_as_room() {
    let stat = "anon 1073741824\nfile 13958643712\ninactive_file 8589934592\n\
                active_file 5368709120\nslab_reclaimable 536870912\nunevictable 0\n";
    let limits = v2("17179869184", 15 * GIB, stat);
    assert_eq!((limits.version, limits.limit_bytes), (Some(CgroupVersion::V2), Some(16 * GIB)));
    assert_eq!(limits.reclaimable_bytes, 13 * GIB + GIB / 2);
    assert_eq!(limits.headroom_bytes(), Some(14 * GIB + GIB / 2));
    assert!(limits.limit_path.unwrap().ends_with("box/memory.max"));
}

#[test]
fn locked_file_pages_do_not() {
    // Nine of the fifteen GiB are locked: they stand under `unevictable` alone.
    let stat = "inactive_file 2147483648\nactive_file 2147483648\nunevictable 9663676416\n";
    assert_eq!(v2("17179869184", 15 * GIB, stat).headroom_bytes(), Some(5 * GIB));
}

#[test]
fn max_is_no_limit_and_zero_is_one() {
    let limits = v2("max\n", 26 * GIB, "");
    assert_eq!((limits.limit_bytes, limits.headroom_bytes()), (None, Some(60 * GIB)));
    assert_eq!(limits.effective_limit_bytes(), Some(64 * GIB));
    let limits = v2("0\n", 0, "");
    assert_eq!((limits.limit_bytes, limits.headroom_bytes()), (Some(0), Some(0)));
}

#[test]
fn an_unreadable_limit_is_told_and_ignored() {
    let limits = v2("12x", 1, "");
    assert_eq!((limits.limit_bytes, limits.headroom_bytes()), (None, Some(60 * GIB)));
    let [notice] = &limits.notices[..] else { panic!("{:?}", limits.notices) };
    assert!(notice.warning);
    assert!(notice.text.contains("/sys/fs/cgroup/box/memory.max: \"12x\""), "{notice}");
}

#[test]
fn a_limit_above_the_machine_is_the_machine() {
    let limits = v2(&(200 * GIB).to_string(), GIB, "");
    assert_eq!(limits.effective_limit_bytes(), Some(64 * GIB));
    assert_eq!(limits.headroom_bytes(), Some(60 * GIB));
}

#[test]
fn the_smallest_limit_on_the_way_up_and_high_before_max() {
    let limits = read(&[
        ("proc/self/cgroup", "0::/a/b/c\n"),
        ("proc/self/mountinfo", V2_MOUNT),
        ("sys/fs/cgroup/a/memory.max", "34359738368"),
        ("sys/fs/cgroup/a/memory.high", "8589934592"),
        ("sys/fs/cgroup/a/memory.current", "2147483648"),
        ("sys/fs/cgroup/a/b/memory.max", "17179869184"),
        ("sys/fs/cgroup/a/b/memory.current", "1073741824"),
        ("sys/fs/cgroup/a/b/c/memory.max", "max"),
        ("sys/fs/cgroup/a/b/c/memory.current", "1"),
    ]);
    assert_eq!((limits.limit_bytes, limits.headroom_bytes()), (Some(8 * GIB), Some(6 * GIB)));
    assert!(limits.limit_path.unwrap().ends_with("a/memory.high"));
}

#[test]
fn version_1_and_hybrid() {
    for other in ["", "33 31 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"] {
        let limits = read(&[
            ("proc/self/cgroup", "4:cpu,memory:/box\n1:name=systemd:/\n0::/user.slice\n"),
            ("proc/self/mountinfo", &format!("{V1_MOUNT}{other}")),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "17179869184"),
            ("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "16106127360"),
            (
                "sys/fs/cgroup/memory/box/memory.stat",
                "inactive_file 1\ntotal_inactive_file 8589934592\ntotal_active_file 5368709120\n",
            ),
        ]);
        assert_eq!(limits.version, Some(CgroupVersion::V1));
        assert_eq!((limits.limit_bytes, limits.headroom_bytes()), (Some(16 * GIB), Some(14 * GIB)));
    }
}

#[test]
fn version_1_no_limit_under_a_limited_parent() {
    let limits = read(&[
        ("proc/self/cgroup", "4:memory:/parent/leaf\n"),
        ("proc/self/mountinfo", V1_MOUNT),
        ("sys/fs/cgroup/memory/parent/memory.limit_in_bytes", "1073741824"),
        ("sys/fs/cgroup/memory/parent/memory.usage_in_bytes", "0"),
        ("sys/fs/cgroup/memory/parent/leaf/memory.limit_in_bytes", "9223372036854771712"),
    ]);
    assert_eq!((limits.limit_bytes, limits.headroom_bytes()), (Some(GIB), Some(GIB)));
}

#[test]
fn a_container_that_sees_its_own_part_only() {
    let mount = "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    for path in ["/docker/abc", "/docker/other", "/../outside"] {
        let limits = read(&[
            ("proc/self/cgroup", &format!("0::{path}\n")),
            ("proc/self/mountinfo", mount),
            ("sys/fs/cgroup/memory.max", "1073741824"),
            ("sys/fs/cgroup/memory.current", "0"),
        ]);
        assert_eq!(limits.limit_bytes, Some(GIB), "{path}");
    }
}

#[test]
fn no_groups_at_all_is_said_once() {
    let limits = read(&[("proc/self/cgroup", ""), ("proc/self/mountinfo", "")]);
    assert_eq!((limits.version, limits.headroom_bytes()), (None, Some(60 * GIB)));
    assert_eq!(limits.notices.len(), 1);
    assert!(!limits.notices[0].warning);
}

#[test]
fn this_machine_is_read_without_panic() {
    let limits = MemoryLimits::read(&SystemRoot::default());
    assert!(limits.effective_limit_bytes().is_some());
}
