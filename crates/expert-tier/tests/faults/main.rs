//! A failing disk is an answer: files that shrink, change or cannot be read under a running tier.
//!
//! What could end a process by a signal runs in a child: this program, started again for the test
//! `child` with the scene in its environment.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../tier/checkpoint.rs"]
mod checkpoint;
mod scenes;

use checkpoint::{EXPERTS, pattern, write_checkpoint};
use expert_tier::pool::PartRole;
use expert_tier::{Adopted, Pool, Tier, TierConfig};
use router_trace::Route;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

fn checkpoint() -> TempDir {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    write_checkpoint(dir.path());
    File::open(dir.path().join("model.safetensors")).unwrap().sync_all().unwrap();
    dir
}

fn open(dir: &Path) -> Tier {
    Tier::open(Pool::open(dir).unwrap(), TierConfig::default()).unwrap()
}

fn adopt(tier: &Tier, layer: u16, expert: u16) -> Adopted {
    tier.adopt(&Route::new(layer, &[expert]).unwrap()).unwrap()
}

fn assert_bytes(adopted: &Adopted) {
    for expert in adopted.experts() {
        for role in [PartRole::Gate, PartRole::Up, PartRole::Down] {
            let bytes = expert.part(role).unwrap().bytes.host().unwrap();
            assert!(bytes == pattern(expert.id(), role), "{} {role:?}", expert.id());
        }
    }
    adopted.check().unwrap();
}

/// What computation does to a lease: every byte of it.
fn sum(adopted: &Adopted) -> u64 {
    let parts = adopted.experts().flat_map(|expert| expert.parts().to_vec());
    let bytes = parts.filter_map(|part| part.bytes.host()).flatten();
    bytes.map(|&byte| u64::from(byte)).sum()
}

fn run(scene: &str, dir: &Path) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("TIER_FAULT_SCENE", scene)
        .env("TIER_FAULT_DIR", dir)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn child() {
    if let Ok(scene) = std::env::var("TIER_FAULT_SCENE") {
        let dir = std::env::var("TIER_FAULT_DIR").unwrap();
        std::process::exit(scenes::play(&scene, Path::new(&dir)));
    }
}

#[test]
fn a_file_cut_under_a_computing_thread_is_an_error_and_no_signal() {
    let dir = checkpoint();
    let output = run("cut", dir.path());
    let errors = text(&output);
    assert_eq!(output.status.code(), Some(3), "{:?}: {errors}", output.status);
    for word in ["model.safetensors", "bytes 8192 to ", "could not be read"] {
        assert!(errors.contains(word), "no {word:?} in {errors}");
    }
}

#[test]
fn signals_of_others_go_where_they_went_before() {
    let dir = checkpoint();
    let killed = run("foreign", dir.path());
    assert_eq!(killed.status.signal(), Some(libc::SIGBUS), "{}", text(&killed));
    let handled = run("foreign-handler", dir.path());
    assert_eq!(handled.status.code(), Some(42), "{}", text(&handled));
    let ignored = run("sent-while-ignored", dir.path());
    assert_eq!(ignored.status.code(), Some(0), "{}", text(&ignored));
}

/// A loop device whose backing file is cut answers reads with EIO, as a bad disk does.
#[test]
fn a_page_that_the_device_lost_is_an_error_and_no_signal() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (image, mount) = (dir.path().join("image"), dir.path().join("mount"));
    File::create(&image).unwrap().set_len(192 << 20).unwrap();
    fs::create_dir(&mount).unwrap();
    let script = r#"set -e; loop=$(losetup -f --show "$1"); echo "$loop"
        mkfs.ext4 -q -F "$loop" || { losetup -d "$loop"; exit 1; }
        mount "$loop" "$2" || { losetup -d "$loop"; exit 1; }"#;
    let mut command = Command::new("bash");
    let made = command.args(["-c", script, "-"]).args([&image, &mount]).output();
    let made = match made {
        Ok(made) if made.status.success() => made,
        refused => {
            println!("SKIPPED device_lost: no loop device can be mounted here: {refused:?}");
            return;
        }
    };
    write_checkpoint(&mount);
    // Past the page cache of the loop device's own file: what is cut must really be there.
    Command::new("sync").status().unwrap();
    let output = run("device-lost", dir.path());
    let loop_device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    let undo = r#"umount "$2" || umount -l "$2"; losetup -d "$1""#;
    let undone = Command::new("bash").args(["-c", undo, "-", &loop_device]).arg(&mount).status();
    assert!(undone.unwrap().success());
    let errors = text(&output);
    assert_eq!(output.status.code(), Some(3), "{:?}: {errors}", output.status);
    for word in ["model.safetensors", "could not be read", "then: "] {
        assert!(errors.contains(word), "no {word:?} in {errors}");
    }
}

#[test]
fn a_replaced_file_keeps_its_leases_and_new_tiers_see_the_change() {
    let dir = checkpoint();
    let path = dir.path().join("model.safetensors");
    let pool = Pool::open(dir.path()).unwrap();
    let tier = Tier::open(pool.clone(), TierConfig::default()).unwrap();
    let held = adopt(&tier, 0, 1);
    fs::copy(&path, dir.path().join("new")).unwrap();
    fs::rename(dir.path().join("new"), &path).unwrap();
    assert_bytes(&held);
    assert_bytes(&adopt(&tier, 1, EXPERTS - 1));
    let error = Tier::open(pool, TierConfig::default()).unwrap_err();
    assert_eq!(error.kind(), "io-changed", "{error}");
    fs::remove_file(&path).unwrap();
    assert_bytes(&adopt(&tier, 0, 2));
}

#[test]
fn a_file_rewritten_in_place_is_noticed_by_leases_and_adoptions() {
    use std::os::unix::fs::FileExt;
    let dir = checkpoint();
    let tier = open(dir.path());
    let held = adopt(&tier, 0, 1);
    let file = File::options().write(true).open(dir.path().join("model.safetensors")).unwrap();
    let len = file.metadata().unwrap().len();
    file.write_all_at(&[1], len - 1).unwrap();
    // Time stamps are only as fine as the kernel's clock tick.
    file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(1)).unwrap();
    let before = tier.snapshot();
    for error in [held.check().unwrap_err(), tier.adopt(&Route::new(0, &[1]).unwrap()).unwrap_err()]
    {
        assert_eq!(error.kind(), "io-changed");
        assert!(error.to_string().contains("model.safetensors"), "{error}");
    }
    assert_eq!(tier.snapshot(), before, "a failed adopt is not counted");
}

#[test]
fn more_mappings_than_can_be_guarded_are_told() {
    let dir = checkpoint();
    let tiers: Vec<Tier> = (0..8).map(|_| open(dir.path())).collect();
    assert!(tiers.iter().all(|tier| tier.notices().is_empty()));
    let pool = Pool::open(dir.path()).unwrap();
    let config = TierConfig { fill_threads: 1, ..TierConfig::default() };
    let mut many = Vec::new();
    for _ in 0..1024 {
        many.push(Tier::open(pool.clone(), config).unwrap());
        if !many.last().unwrap().notices().is_empty() {
            break;
        }
    }
    let notices = many.last().unwrap().notices();
    assert!(notices[0].warning && notices[0].text.contains("1024"), "{notices:?}");
    drop(many);
    assert!(Tier::open(pool, config).unwrap().notices().is_empty(), "places are given back");
}
