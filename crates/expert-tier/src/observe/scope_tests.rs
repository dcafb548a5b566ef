use super::*;

/// A machine whose process is in the group `own` of a hierarchy of `fs_type` at `/cg`.
fn machine(fs_type: &str, options: &str, own: &str) -> (tempfile::TempDir, SystemRoot) {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let controllers = if fs_type == "cgroup" { "memory" } else { "" };
    write("proc/self/cgroup", &format!("4:{controllers}:/{own}\n"));
    write("proc/self/mountinfo", &format!("1 0 0:1 / /cg rw - {fs_type} x {options}\n"));
    write("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\n");
    fs::create_dir_all(dir.path().join("cg").join(own)).unwrap();
    let root = SystemRoot::at(dir.path());
    (dir, root)
}

#[test]
fn version_1_lies_below_our_own_group() {
    let (dir, root) = machine("cgroup", "rw,memory", "a/b");
    let scope = MemoryScope::create("cell", 1 << 30, &root).unwrap();
    assert_eq!((scope.version(), scope.dir()), (CgroupVersion::V1, Path::new("/cg/a/b/cell")));
    scope.add(77).unwrap();
    let read = |file: &str| fs::read_to_string(dir.path().join("cg/a/b/cell").join(file)).unwrap();
    assert_eq!(read("memory.limit_in_bytes"), "1073741824");
    assert_eq!(read("memory.memsw.limit_in_bytes"), "1073741824");
    assert_eq!(read("cgroup.procs"), "77");
    assert!(scope.usage_bytes().unwrap_err().reason.contains("memory.usage_in_bytes"));
    let group = dir.path().join("cg/a/b/cell");
    fs::write(group.join("memory.usage_in_bytes"), "4096\n").unwrap();
    fs::write(group.join("memory.max_usage_in_bytes"), "8192\n").unwrap();
    fs::write(group.join("memory.oom_control"), "under_oom 0\noom_kill 3\n").unwrap();
    assert_eq!((scope.usage_bytes(), scope.peak_bytes()), (Ok(4096), Ok(8192)));
    assert_eq!(scope.oom_kills(), Ok(3));
}

#[test]
fn version_2_turns_the_controller_on() {
    let (dir, root) = machine("cgroup2", "rw", "");
    let scope = MemoryScope::create("cell", 1 << 30, &root).unwrap();
    assert_eq!((scope.version(), scope.dir()), (CgroupVersion::V2, Path::new("/cg/cell")));
    let read = |file: &str| fs::read_to_string(dir.path().join("cg/cell").join(file)).unwrap();
    assert_eq!(
        (read("memory.max").as_str(), read("memory.swap.max").as_str()),
        ("1073741824", "0")
    );
    fs::write(dir.path().join("cg/cell/memory.events"), "low 0\noom 1\noom_kill 0\n").unwrap();
    assert_eq!(scope.oom_kills(), Ok(0));
}

#[test]
fn a_place_that_is_taken_is_said_with_its_name_and_left_alone() {
    let (dir, root) = machine("cgroup", "rw,memory", "a");
    fs::create_dir(dir.path().join("cg/a/cell")).unwrap();
    let error = MemoryScope::create("cell", 1 << 30, &root).unwrap_err();
    assert!(error.reason.contains("/cg/a/cell"), "{error}");
    assert!(dir.path().join("cg/a/cell").is_dir());
}

#[test]
fn a_lower_limit_of_our_own_is_said_with_both_numbers() {
    let (dir, root) = machine("cgroup", "rw,memory", "a");
    fs::write(dir.path().join("cg/a/memory.limit_in_bytes"), "1000000\n").unwrap();
    fs::write(dir.path().join("cg/a/memory.usage_in_bytes"), "10\n").unwrap();
    let error = MemoryScope::create("cell", 1 << 30, &root).unwrap_err();
    assert!(error.reason.contains("1000000") && error.reason.contains("1073741824"), "{error}");
}

#[test]
fn without_control_groups_there_is_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let error = MemoryScope::create("cell", 1, &SystemRoot::at(dir.path())).unwrap_err();
    assert!(error.reason.contains("no control groups"), "{error}");
}
