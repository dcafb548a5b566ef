use super::*;
use std::fs;

/// A tree of files that looks like a machine.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        for (path, text) in files {
            tree.put(path, text);
        }
        tree
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn root(&self) -> SystemRoot {
        SystemRoot::at(self.0.path())
    }

    fn counter(&self, major: u64, minor: u64) -> Result<BlockCounter, Unavailable> {
        let path = Some(Path::new("/data/model.safetensors"));
        BlockCounter::for_device(DeviceNumber { major, minor }, path, &self.root())
    }
}

fn stat(sectors: u64) -> String {
    format!("   14959     5906  {sectors}    12807     3127    23419  1779928     3997\n")
}

#[test]
fn a_partition_counts_itself_and_not_its_disk() {
    let tree = Tree::new(&[
        ("sys/dev/block/259:0/stat", &stat(1000)),
        ("sys/dev/block/259:2/stat", &stat(992)),
    ]);
    let counter = tree.counter(259, 2).unwrap();
    assert_eq!(counter.read_bytes(), Ok(0));
    tree.put("sys/dev/block/259:0/stat", &stat(21_000));
    tree.put("sys/dev/block/259:2/stat", &stat(20_992));
    assert_eq!(counter.read_bytes(), Ok(10_240_000));
}

#[test]
fn old_kernels_print_fewer_columns_of_diskstats() {
    let tree = Tree::new(&[("proc/diskstats", "   8       1 sda1 5 0 100 1 0 0 0 0 0 1 1\n")]);
    let counter = tree.counter(8, 1).unwrap();
    tree.put("proc/diskstats", "   8       1 sda1 9 0 300 1 0 0 0 0 0 1 1\n");
    assert_eq!(counter.read_bytes(), Ok(102_400));
}

#[test]
fn a_multipath_head_that_counts_nothing_counts_its_paths() {
    let line = |sectors| {
        format!(
            "   0 0 nvme0c0n1 60 0 {sectors} 10 0 0 0 0 0 10 10\n 259 1 nvme0n1 0 0 0 10 0 0 0\n"
        )
    };
    let tree = Tree::new(&[
        ("sys/dev/block/259:1/multipath/nvme0c0n1/hidden", "1"),
        ("proc/diskstats", &line(4000)),
    ]);
    let counter = tree.counter(259, 1).unwrap();
    tree.put("proc/diskstats", &line(14_000));
    assert_eq!(counter.read_bytes(), Ok(5_120_000));
}

#[test]
fn a_counter_that_goes_back_or_away_is_unknown() {
    let tree = Tree::new(&[("sys/dev/block/8:1/stat", &stat(5000))]);
    let counter = tree.counter(8, 1).unwrap();
    tree.put("sys/dev/block/8:1/stat", &stat(10));
    let reason = counter.read_bytes().unwrap_err().reason;
    assert!(reason.contains("device 8:1 went back from 5000 to 10 sectors"), "{reason}");
    fs::remove_dir_all(tree.0.path().join("sys")).unwrap();
    tree.put("proc/diskstats", "   8      16 sdb 1 0 10 10 0 0 0 0 0 10 10\n");
    assert!(counter.read_bytes().unwrap_err().reason.contains("no counter of device 8:1"));
    tree.put("sys/dev/block/8:1/stat", "nonsense");
    assert!(counter.read_bytes().is_err());
}

#[test]
fn file_systems_without_a_device_say_so() {
    let table = "1 0 0:45 / / rw - overlay overlay rw,lowerdir=/a\n\
                 2 1 0:46 / /tmp rw - tmpfs tmpfs rw\n3 1 0:47 / /net rw - nfs4 host:/x rw\n";
    let tree = Tree::new(&[("proc/self/mountinfo", table)]);
    for (minor, text) in [(45, "overlay at /"), (46, "tmpfs at /tmp"), (47, "nfs4 at /net")] {
        let reason = tree.counter(0, minor).unwrap_err().reason;
        assert!(reason.contains(text), "{reason}");
    }
    let bare = Tree::new(&[]);
    assert!(bare.counter(0, 9).unwrap_err().reason.contains("0:9 is not in mountinfo"));
}

#[test]
fn btrfs_is_resolved_to_all_its_devices() {
    let tree = Tree::new(&[
        ("proc/self/mountinfo", "1 0 0:30 /@ /data rw - btrfs /dev/sdb1 rw,subvol=/@\n"),
        ("sys/class/block/sdb1/dev", "8:17\n"),
        ("sys/class/block/sdc1/dev", "8:33\n"),
        ("sys/fs/btrfs/features/raid1c34", "0"),
        ("sys/fs/btrfs/0000-id/devices/sdb1/x", ""),
        ("sys/fs/btrfs/0000-id/devices/sdc1/x", ""),
        ("sys/dev/block/8:17/stat", &stat(10)),
        ("sys/dev/block/8:33/stat", &stat(20)),
    ]);
    // 0:31 is the subvolume's own number: only the path leads to the mount.
    let counter = tree.counter(0, 31).unwrap();
    tree.put("sys/dev/block/8:17/stat", &stat(11));
    tree.put("sys/dev/block/8:33/stat", &stat(23));
    assert_eq!(counter.read_bytes(), Ok(4 * 512));
}

#[test]
fn several_files_of_one_device_count_once() {
    let dir = tempfile::tempdir().unwrap();
    let paths = [dir.path().join("a"), dir.path().join("b")];
    let files = paths.each_ref().map(|path| File::create_new(path).unwrap());
    let pairs = files.iter().zip(paths.iter().map(PathBuf::as_path));
    match BlockCounters::for_files(pairs, &SystemRoot::default()) {
        Ok(counters) => {
            assert_eq!(counters.counter.sources.len(), 1);
            counters.read_bytes().unwrap();
        }
        Err(unknown) => println!("SKIPPED: {unknown}"),
    }
}
