//! Real processes that are killed, and one that may not write long files.

use crate::round_trip::assert_same;
use crate::sources;
use expert_tier::pack::{PackOptions, pack};
use expert_tier::pool::Pool;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const DIR: &str = "PACK_TEST_DIR";

/// Not a test: the body of a child.
#[test]
#[ignore = "the process that the tests beside it start and kill; alone it does nothing"]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = Path::new(&dir);
    let pool = Pool::open(dir.join("from")).unwrap();
    let options = PackOptions { threads: 2, ..PackOptions::default() };
    match pack(&pool, &dir.join("out"), &options, |_| std::thread::sleep(Duration::from_millis(3)))
    {
        Ok(_) => println!("packed"),
        Err(error) => println!("{}: {error}", error.kind()),
    }
}

fn command(dir: &Path, shell: &str) -> Command {
    let mut command = Command::new("sh");
    let program = std::env::current_exe().unwrap();
    command
        .args(["-c", &format!("{shell} exec \"$0\" --exact kill::child --ignored --nocapture")])
        .arg(program)
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

#[test]
fn killed_processes_leave_nothing_that_opens_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let (from, out) = (dir.path().join("from"), dir.path().join("out"));
    fs::create_dir(&from).unwrap();
    sources::write_int4(&from);
    let source = Pool::open(&from).unwrap();
    let mut finished = 0;
    for after in 0..40 {
        let mut child = command(dir.path(), "").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(2 * after));
        child.kill().unwrap();
        child.wait().unwrap();
        match Pool::open(&out) {
            Ok(packed) => {
                assert_same(&source, &packed);
                finished += 1;
                fs::remove_dir_all(&out).unwrap();
            }
            Err(error) => {
                let kinds = ["unfinished-pack", "not-a-model", "io", "incomplete-download"];
                assert!(kinds.contains(&error.kind()), "{error}");
            }
        }
    }
    println!("{finished} of 40 runs came to the end");
    if !out.exists() || Pool::open(&out).is_err() {
        pack(&source, &out, &PackOptions::default(), |_| ()).unwrap();
    }
    assert_same(&source, &Pool::open(&out).unwrap());
}

#[test]
fn a_file_size_limit_is_one_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let (from, out) = (dir.path().join("from"), dir.path().join("out"));
    fs::create_dir(&from).unwrap();
    sources::write_int4(&from);
    // Blocks of 512 or of 1024 bytes: less than the sixteen MiB that the file needs.
    let said = command(dir.path(), "trap '' XFSZ; ulimit -f 8000 || exit 0;").output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("disk-full: ") && said.contains("experts.bin"), "{said}");
    assert!(said.contains("bytes are still to be written"), "{said}");
    assert_eq!(Pool::open(&out).unwrap_err().kind(), "unfinished-pack");
    let source = Pool::open(&from).unwrap();
    pack(&source, &out, &PackOptions::default(), |_| ()).unwrap();
    assert_same(&source, &Pool::open(&out).unwrap());
}
