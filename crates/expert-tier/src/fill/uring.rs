//! The calls of a populate fill, handed to the workers of one `io_uring`: the caller sleeps once
//! for the whole batch instead of once a thread.
#![expect(unsafe_code, reason = "island 2: pushing to a submission queue")]

use super::{NO_POPULATE, Piece, advise};
use crate::pool::map::Mapping;
use io_uring::squeue::Entry;
use io_uring::{IoUring, Probe, opcode};
use memmap2::Advice;
use parking_lot::Mutex;
use std::fmt;
use std::io;

/// Calls in flight at a time. The kernel's completion queue holds twice as many.
const ENTRIES: u32 = 128;

/// One ring, for one fill at a time.
pub(super) struct Ring {
    state: Mutex<State>,
}

struct State {
    ring: IoUring,
    /// Of the calls in flight; an answer with another number is left over from a failed batch.
    batch: u32,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring of which at most `workers` kernel threads wait for storage.
    pub(super) fn new(workers: usize) -> io::Result<Self> {
        let unsupported = |why: &str| io::Error::new(io::ErrorKind::Unsupported, why);
        if !Advice::PopulateRead.is_supported() {
            return Err(unsupported(NO_POPULATE));
        }
        let ring = IoUring::new(ENTRIES)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Madvise::CODE) {
            return Err(unsupported("this kernel's io_uring has no MADVISE (Linux 5.6)"));
        }
        let workers = u32::try_from(workers).unwrap_or(u32::MAX);
        ring.submitter().register_iowq_max_workers(&mut [workers, workers])?;
        Ok(Self { state: Mutex::new(State { ring, batch: 0 }) })
    }

    /// Make all `calls`, and hand each answer to `answered` with the call's number as it comes.
    pub(super) fn advise_all(
        &self,
        mapping: &Mapping,
        calls: &[(Piece, i32)],
        answered: &mut dyn FnMut(usize, io::Result<()>),
    ) {
        let mut known = vec![false; calls.len()];
        let mut tell = |index: usize, code: i32| {
            if std::mem::replace(&mut known[index], true) {
                return false;
            }
            let (piece, advice) = &calls[index];
            answered(index, answer(mapping, piece, *advice, code));
            true
        };
        let broken = match calls {
            [] => Ok(()),
            _ => self.state.lock().run(mapping, calls, &mut tell),
        };
        let why = broken.err().unwrap_or_else(|| io::Error::other("the ring lost an answer"));
        for index in (0..calls.len()).filter(|&index| !known[index]) {
            answered(index, Err(io::Error::new(why.kind(), why.to_string())));
        }
    }
}

fn answer(mapping: &Mapping, piece: &Piece, advice: i32, code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        // A worker may be interrupted where a thread would not be: the last word is ours.
        code if code == -libc::EINTR || code == -libc::EAGAIN => match advice {
            libc::MADV_POPULATE_READ => advise(mapping, Advice::PopulateRead, piece),
            _ => Ok(()),
        },
        code => Err(io::Error::from_raw_os_error(-code)),
    }
}

impl State {
    fn run(
        &mut self,
        mapping: &Mapping,
        calls: &[(Piece, i32)],
        tell: &mut dyn FnMut(usize, i32) -> bool,
    ) -> io::Result<()> {
        self.batch = self.batch.wrapping_add(1);
        let tag = u64::from(self.batch) << 32;
        let (mut next, mut answered) = (0_usize, 0_usize);
        while answered < calls.len() {
            while next < calls.len() && next - answered < ENTRIES as usize {
                let (piece, advice) = calls[next];
                if !self.push(&entry(mapping, &piece, advice).user_data(tag | next as u64)) {
                    break;
                }
                next += 1;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Too much under way: take answers, then go on.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                    std::thread::yield_now();
                }
                Err(error) => return Err(error),
            }
            for completion in self.ring.completion() {
                let data = completion.user_data();
                let index = (data & u64::from(u32::MAX)) as usize;
                if data & !u64::from(u32::MAX) == tag && tell(index, completion.result()) {
                    answered += 1;
                }
            }
        }
        Ok(())
    }

    /// `false` if the queue is full.
    fn push(&mut self, entry: &Entry) -> bool {
        let mut queue = self.ring.submission();
        // SAFETY: the only entries are those of `entry`: MADV_WILLNEED and MADV_POPULATE_READ on
        // a piece of the mapping. The mapping is borrowed until `run` has seen all answers; and
        // even if it gives up before, these two only read pages in: whatever is mapped there by
        // then, they change no byte of it, and the kernel checks the range itself.
        unsafe { queue.push(entry) }.is_ok()
    }
}

fn entry(mapping: &Mapping, piece: &Piece, advice: i32) -> Entry {
    let map = mapping.file(piece.file).map();
    let range = &map[piece.offset as usize..(piece.offset + piece.len) as usize];
    let len = libc::off_t::try_from(range.len()).unwrap_or(libc::off_t::MAX);
    opcode::Madvise::new(range.as_ptr().cast(), len, advice).build()
}
