//! The priority of a thread's reads: advice must not stand in the queue before demand.
#![expect(unsafe_code, reason = "island 2: ioprio_set has no safe wrapper")]

use std::io;

/// `IOPRIO_WHO_PROCESS`: one thread, as for every call that takes a thread's number.
const WHO_THREAD: libc::c_long = 1;
/// `IOPRIO_CLASS_IDLE`: served when nobody else has asked the device for a while.
const CLASS_IDLE: libc::c_long = 3;
/// `IOPRIO_CLASS_SHIFT`.
const CLASS_SHIFT: u32 = 13;

/// Put the reads of the calling thread into the idle class, for its life. Which schedulers heed
/// that: mq-deadline (since 5.14) and bfq; the others take the call and change nothing.
///
/// # Errors
/// What the kernel answers, for example `ENOSYS` without block devices.
pub(crate) fn idle_reads() -> io::Result<()> {
    // The thread itself.
    const OURSELVES: libc::c_long = 0;
    // SAFETY: three numbers, no memory; the kernel checks them and changes only the priority that
    // the calling thread's later reads are queued with.
    let answer = unsafe {
        libc::syscall(libc::SYS_ioprio_set, WHO_THREAD, OURSELVES, CLASS_IDLE << CLASS_SHIFT)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_that_the_thread_and_no_other_is_idle() {
        fn class() -> libc::c_long {
            // SAFETY: two numbers, no memory; asks for the calling thread's priority.
            unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_THREAD, 0) >> CLASS_SHIFT }
        }
        let before = class();
        let lowered = std::thread::spawn(|| idle_reads().map(|()| class())).join().unwrap();
        match lowered {
            Ok(class) => assert_eq!(class, CLASS_IDLE),
            Err(error) => println!("SKIPPED: this kernel has no I/O priorities: {error}"),
        }
        assert_eq!(class(), before);
    }
}
