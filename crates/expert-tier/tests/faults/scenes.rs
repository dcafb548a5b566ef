//! What the child does. Exit codes: 3 for the error that the scene is about.
#![expect(unsafe_code, reason = "signals of others need mappings and handlers that are not ours")]

use super::{adopt, assert_bytes, checkpoint, open, sum};
use router_trace::{ExpertId, Route};
use std::fs::File;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

pub(crate) fn play(scene: &str, dir: &Path) -> i32 {
    match scene {
        "cut" => cut(dir),
        "device-lost" => device_lost(dir),
        "foreign" => {
            let _tier = open(dir);
            foreign(dir)
        }
        "foreign-handler" => {
            set_handler(leave as extern "C" fn(i32) as usize);
            let _tier = open(dir);
            foreign(dir)
        }
        "sent-while-ignored" => {
            set_handler(libc::SIG_IGN);
            let _tier = open(dir);
            // SAFETY: raising a signal touches no memory of ours.
            unsafe { libc::raise(libc::SIGBUS) };
            0
        }
        _ => 1,
    }
}

fn cut(dir: &Path) -> i32 {
    let other_dir = checkpoint();
    let (tier, other) = (open(dir), open(other_dir.path()));
    let (held, other_held) = (adopt(&tier, 1, 5), adopt(&other, 0, 0));
    assert_bytes(&held);
    let (passes, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::hint::black_box(sum(&held));
                passes.fetch_add(1, Ordering::Relaxed);
            }
        });
        let wait_for = |count| {
            while passes.load(Ordering::Relaxed) < count {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        wait_for(2);
        let file = File::options().write(true).open(dir.join("model.safetensors")).unwrap();
        file.set_len(5000).unwrap();
        wait_for(passes.load(Ordering::Relaxed) + 3);
        stop.store(true, Ordering::Relaxed);
    });
    let error = held.check().unwrap_err();
    eprintln!("{error}");
    assert_eq!(error.kind(), "io-changed");
    for expert in [5, 0] {
        let later = tier.adopt(&Route::new(1, &[expert]).unwrap()).unwrap_err();
        assert_eq!(later.kind(), "io-changed", "{later}");
    }
    assert_bytes(&other_held);
    assert_bytes(&adopt(&other, 1, 5));
    3
}

fn device_lost(dir: &Path) -> i32 {
    let tier = open(&dir.join("mount"));
    let (kept, lost) = (adopt(&tier, 0, 0), adopt(&tier, 1, 3));
    assert_bytes(&kept);
    assert_bytes(&lost);
    let left = tier.evict(Some(&[ExpertId::new(1, 3)])).unwrap();
    assert_eq!(left.resident_bytes, 0);
    let image = File::options().write(true).open(dir.join("image")).unwrap();
    image.set_len(1 << 20).unwrap();
    std::hint::black_box(sum(&lost));
    let error = lost.check().unwrap_err();
    eprintln!("{error}");
    let later = tier.adopt(&Route::new(1, &[3]).unwrap()).unwrap_err();
    eprintln!("then: {later}");
    let cold = tier.evict(Some(&[ExpertId::new(1, 1)])).unwrap();
    assert_eq!(cold.resident_bytes, 0);
    let demand = tier.adopt(&Route::new(1, &[1]).unwrap()).unwrap_err();
    assert_eq!(demand.kind(), "io-changed", "a demand read fails by itself: {demand}");
    assert_bytes(&kept);
    3
}

/// Touch a page of a cut file that no tier maps.
fn foreign(dir: &Path) -> i32 {
    let path = dir.join("foreign");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
    let file = file.unwrap();
    file.set_len(8192).unwrap();
    // SAFETY: read through the raw pointer only, by one volatile read that is meant to fault.
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    file.set_len(0).unwrap();
    // SAFETY: the address is mapped; that the page cannot be had is the point of the scene.
    i32::from(unsafe { ptr::read_volatile(map.as_ptr()) })
}

extern "C" fn leave(_signal: i32) {
    // SAFETY: _exit may be called in a handler.
    unsafe { libc::_exit(42) }
}

fn set_handler(handler: usize) {
    // SAFETY: all-zero bytes are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    // SAFETY: `action` holds a disposition or a handler of one argument, as its flags say.
    let rc = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
    assert_eq!(rc, 0);
}
