//! A page that cannot be read is an answer, not a signal.
//!
//! A mapped page whose file was cut, or that the device cannot deliver, is told by `SIGBUS` to
//! whatever thread touches it. This island owns the one handler of the process. For an address
//! inside a registered mapping it first writes down which bytes are lost, then puts zero pages
//! in their place, so that the thread can finish; who computed asks [`Registration::lost`]
//! afterwards and throws the result away. Every other `SIGBUS` goes to whoever handled it before.
//!
//! The handler allocates nothing and takes no lock: fixed arrays of atomics, `fstat` and `mmap`.
#![expect(unsafe_code, reason = "island 5: the SIGBUS handler")]

use parking_lot::Mutex;
use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering, fence};

/// Mappings that can be registered at once.
pub(crate) const SLOTS: usize = 1024;

/// Lost ranges that one mapping remembers one by one.
const RANGES: usize = 32;

/// So many single pages may be lost, then whole windows, and then the mapping: each replaced
/// range splits the kernel's description of the mapping, and there are not many to be had.
const SINGLE_PAGES: usize = 8;
const SINGLE_WINDOWS: usize = 24;
const WINDOW_BYTES: usize = 2 << 20;

static REGISTRY: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];
/// Held while slots are given out and taken back; the handler never takes it.
static CLAIMS: Mutex<()> = Mutex::new(());
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);
/// Who handled the signal before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

struct Slot {
    /// Odd while the slot describes a mapping; goes up with every change.
    turn: AtomicU64,
    start: AtomicUsize,
    len: AtomicUsize,
    fd: AtomicI32,
    /// Everything is lost.
    all: AtomicBool,
    /// Ranges begun; may count past [`RANGES`].
    begun: AtomicUsize,
    ranges: [LostRange; RANGES],
}

struct LostRange {
    offset: AtomicU64,
    /// Written last; 0 means not yet.
    len: AtomicU64,
}

/// What a live slot describes.
#[derive(Clone, Copy)]
struct Mapped {
    start: usize,
    len: usize,
    fd: RawFd,
}

impl Slot {
    const fn new() -> Self {
        Self {
            turn: AtomicU64::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            fd: AtomicI32::new(-1),
            all: AtomicBool::new(false),
            begun: AtomicUsize::new(0),
            ranges: [const { LostRange { offset: AtomicU64::new(0), len: AtomicU64::new(0) } };
                RANGES],
        }
    }

    /// Nothing if the slot is free or changes hands right now.
    fn mapped(&self) -> Option<Mapped> {
        let turn = self.turn.load(Ordering::Acquire);
        if turn.is_multiple_of(2) {
            return None;
        }
        let mapped = Mapped {
            start: self.start.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            fd: self.fd.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire);
        (self.turn.load(Ordering::Relaxed) == turn).then_some(mapped)
    }

    /// Write down that a range is lost. Before its pages are replaced: whoever reads the zeros
    /// finds this afterwards.
    fn lose(&self, offset: usize, len: usize) {
        let index = self.begun.fetch_add(1, Ordering::AcqRel);
        match self.ranges.get(index) {
            Some(range) => {
                range.offset.store(offset as u64, Ordering::Relaxed);
                range.len.store(len as u64, Ordering::Release);
            }
            None => self.all.store(true, Ordering::Release),
        }
    }
}

/// A mapping that the handler knows, for as long as this lives. It must not outlive the mapping.
#[derive(Debug)]
pub(crate) struct Registration {
    slot: usize,
}

impl Registration {
    /// Tell the handler of `len` bytes mapped at `start` from the first byte of `fd` on, which
    /// stays open (-1: there is no descriptor to ask for the file's length); `None` if [`SLOTS`] mappings are registered already.
    pub(crate) fn new(start: usize, len: usize, fd: RawFd) -> Option<Self> {
        let claims = CLAIMS.lock();
        let free = |slot: &Slot| slot.turn.load(Ordering::Relaxed).is_multiple_of(2);
        let index = REGISTRY.iter().position(free)?;
        let slot = &REGISTRY[index];
        slot.start.store(start, Ordering::Relaxed);
        slot.len.store(len, Ordering::Relaxed);
        slot.fd.store(fd, Ordering::Relaxed);
        slot.all.store(false, Ordering::Relaxed);
        for range in &slot.ranges {
            range.len.store(0, Ordering::Relaxed);
        }
        slot.begun.store(0, Ordering::Relaxed);
        slot.turn.fetch_add(1, Ordering::Release);
        drop(claims);
        Some(Self { slot: index })
    }

    /// The first lost range, as offset and length, that touches these bytes of the mapping.
    pub(crate) fn lost(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        let slot = &REGISTRY[self.slot];
        let begun = slot.begun.load(Ordering::Acquire);
        if begun == 0 || len == 0 {
            return None;
        }
        if slot.all.load(Ordering::Acquire) {
            return Some((0, slot.len.load(Ordering::Relaxed) as u64));
        }
        slot.ranges.iter().take(begun).find_map(|range| {
            let lost_len = range.len.load(Ordering::Acquire);
            let lost = range.offset.load(Ordering::Relaxed);
            (lost < offset + len && offset < lost + lost_len).then_some((lost, lost_len))
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _claims = CLAIMS.lock();
        REGISTRY[self.slot].turn.fetch_add(1, Ordering::Release);
    }
}

/// Put the handler in place, once a process.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        PAGE_BYTES.store(crate::host::page_bytes() as usize, Ordering::Relaxed);
        set_handler().map_err(|error| error.raw_os_error().unwrap_or(0))
    });
    installed.map_err(io::Error::from_raw_os_error)
}

fn set_handler() -> io::Result<()> {
    let mut previous = empty_action();
    // SAFETY: a null new action only asks; `previous` is a live value of the right type.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut previous) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    let _ = PREVIOUS.set(previous); // set once: `install` runs this once
    let mut action = empty_action();
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
    action.sa_sigaction = handler as usize;
    // ONSTACK: a thread may touch its last stack page in compute code.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: `action` is complete: a handler of the three-argument form that SA_SIGINFO
    // announces, and an empty mask. The handler does only what a handler may (its comment).
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The default disposition, with an empty mask.
fn empty_action() -> libc::sigaction {
    // SAFETY: all-zero bytes are a valid `sigaction` on Linux: SIG_DFL, no flags, empty mask.
    unsafe { std::mem::zeroed() }
}

/// Runs on the thread that touched the page, at any instruction of it: atomics and system calls
/// only.
extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid `siginfo_t`, for as long as this runs.
    let about = unsafe { &*info };
    let code = about.si_code;
    // A process that sends the signal has a code of 0 or less; a misaligned access is a bug.
    let unreadable = matches!(code, libc::BUS_ADRERR | libc::BUS_OBJERR | libc::BUS_MCEERR_AR);
    if unreadable {
        // SAFETY: for these codes the kernel fills in the address.
        let address = unsafe { about.si_addr() } as usize;
        // SAFETY: the C library's address of this thread's errno is valid while the thread runs.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: that address; nothing else uses it while this thread is here.
        let kept = unsafe { errno.read() };
        let replaced = replace(address);
        // SAFETY: as above; the interrupted code finds the errno that it left.
        unsafe { errno.write(kept) };
        if replaced {
            return;
        }
    }
    hand_on(signal, code, info, context);
}

/// Write down and replace what cannot be read at `address`; `false` if it is in no mapping of ours.
fn replace(address: usize) -> bool {
    let page = PAGE_BYTES.load(Ordering::Relaxed);
    for slot in &REGISTRY {
        let Some(mapped) = slot.mapped() else { continue };
        let whole = mapped.len.next_multiple_of(page);
        let at = address.wrapping_sub(mapped.start);
        if at >= whole {
            continue;
        }
        let (offset, len) = lost_with(slot, mapped, at / page * page, page);
        slot.lose(offset, len);
        let target = ptr::without_provenance_mut(mapped.start + offset);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: `offset..offset + len` are whole pages of a mapping that is registered, so it is
        // live and owned by this crate: MAP_FIXED replaces nothing else. It was readable and
        // stays readable; that its bytes change is written down before, and no result computed
        // from them is used (`Adopted::check`).
        let got = unsafe { libc::mmap(target, len, libc::PROT_READ, flags, -1, 0) };
        return got != libc::MAP_FAILED;
    }
    false
}

/// How much is given up together with the page at `at`, as offset and length.
fn lost_with(slot: &Slot, mapped: Mapped, at: usize, page: usize) -> (usize, usize) {
    let whole = mapped.len.next_multiple_of(page);
    let begun = slot.begun.load(Ordering::Relaxed);
    if begun >= SINGLE_WINDOWS {
        slot.all.store(true, Ordering::Release);
        return (0, whole);
    }
    // A cut file: all pages behind its end are gone, in one go.
    if let Some(file_len) = file_len(mapped.fd) {
        let end = file_len.next_multiple_of(page);
        if end <= at {
            return (end, whole - end);
        }
    }
    if begun < SINGLE_PAGES {
        return (at, page);
    }
    let first = at / WINDOW_BYTES * WINDOW_BYTES;
    (first, WINDOW_BYTES.min(whole - first))
}

fn file_len(fd: RawFd) -> Option<usize> {
    // SAFETY: all-zero bytes are a valid `stat`, which is plain numbers.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is live; the descriptor is open while the mapping is registered, and
    // `fstat` may be called in a signal handler.
    let rc = unsafe { libc::fstat(fd, &raw mut stat) };
    if rc == 0 { usize::try_from(stat.st_size).ok() } else { None }
}

/// Do what would have been done without us.
fn hand_on(signal: i32, code: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous = PREVIOUS.get();
    let handler = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    let with_info = previous.is_some_and(|previous| previous.sa_flags & libc::SA_SIGINFO != 0);
    let sent = code <= 0;
    if handler == libc::SIG_IGN && sent {
        return;
    }
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        let default = empty_action();
        // SAFETY: `default` is the default disposition; sigaction may be called in a handler.
        unsafe { libc::sigaction(signal, &raw const default, ptr::null_mut()) };
        if sent {
            // SAFETY: raise may be called in a handler; the signal arrives when this returns.
            // (One that the kernel raised comes again by itself.)
            unsafe { libc::raise(signal) };
        }
    } else if with_info {
        type WithInfo = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: SA_SIGINFO says that the stored address is a handler of this form.
        let handler = unsafe { std::mem::transmute::<usize, WithInfo>(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: without SA_SIGINFO the stored address is a handler of one argument.
        let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(i32)>(handler) };
        handler(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots are described but no such memory exists: only the book-keeping is used.
    #[test]
    fn lost_ranges_are_found_by_those_they_touch() {
        let one = Registration::new(1 << 40, 1 << 24, -1).unwrap();
        let two = Registration::new(1 << 41, 1 << 24, -1).unwrap();
        assert_eq!(one.lost(0, 1 << 24), None);
        REGISTRY[one.slot].lose(8192, 4096);
        assert_eq!(one.lost(0, 8192), None);
        assert_eq!(one.lost(12288, 100), None);
        assert_eq!(one.lost(8191, 2), Some((8192, 4096)));
        assert_eq!(one.lost(12287, 1), Some((8192, 4096)));
        assert_eq!(one.lost(9000, 0), None);
        assert_eq!(two.lost(0, 1 << 24), None, "the other mapping is whole");
        for _ in 0..RANGES {
            REGISTRY[one.slot].lose(0, 4096);
        }
        assert_eq!(one.lost(1 << 23, 1), Some((0, 1 << 24)), "past counting all is lost");
        let slot = one.slot;
        drop(one);
        assert!(REGISTRY[slot].mapped().is_none());
    }

    #[test]
    fn losses_grow_from_pages_to_windows_to_everything() {
        let slot = Slot::new();
        let mapped = Mapped { start: 0, len: (5 << 20) + 1, fd: -1 };
        let at = 3 << 20;
        assert_eq!(lost_with(&slot, mapped, at, 4096), (at, 4096));
        slot.begun.store(SINGLE_PAGES, Ordering::Relaxed);
        assert_eq!(lost_with(&slot, mapped, at, 4096), (2 << 20, 2 << 20));
        assert_eq!(lost_with(&slot, mapped, 5 << 20, 4096), (4 << 20, (1 << 20) + 4096));
        slot.begun.store(SINGLE_WINDOWS, Ordering::Relaxed);
        assert_eq!(lost_with(&slot, mapped, at, 4096), (0, (5 << 20) + 4096));
        assert!(slot.all.load(Ordering::Relaxed));
    }
}
