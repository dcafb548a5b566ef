use expert_tier::observe::{MemoryScope, Unavailable};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a scope is asked what is charged to it.
const PERIOD: Duration = Duration::from_millis(100);
/// Points of a timeline that are kept; it is thinned out beyond.
const MOST_POINTS: usize = 512;

/// What was charged to a scope at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UsagePoint {
    /// Milliseconds since the process was let go.
    pub at_ms: u64,
    /// Bytes, page cache included.
    pub usage_bytes: u64,
}

/// A process that ran alone in its scope, and what the scope says of it.
#[derive(Debug)]
pub struct CellRun {
    /// What it wrote to standard output.
    pub output: Vec<u8>,
    /// How it ended.
    pub status: ExitStatus,
    /// What was charged to the scope over time.
    pub timeline: Vec<UsagePoint>,
    /// The most that was charged; `None` without a scope.
    pub peak_bytes: Option<Result<u64, Unavailable>>,
    /// Processes killed for want of memory, likewise.
    pub oom_kills: Option<Result<u64, Unavailable>>,
    /// Whether the scope was there to the end.
    pub scope_alive: bool,
}

/// Runs `command` in `scope`: it is put there before it is given `input`, for which it must wait
/// before it allocates or reads anything. So warm-up and measurement are charged to one scope; in
/// two, pages of the first would be charged to nobody and look like a larger cache.
///
/// # Errors
/// A process that cannot be started, moved or talked to; it does not live on then.
pub fn run_cell(
    command: &mut Command,
    scope: Option<&MemoryScope>,
    input: &[u8],
) -> io::Result<CellRun> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    match attend(&mut child, scope, input) {
        Ok((output, timeline)) => {
            let status = child.wait()?;
            Ok(CellRun {
                output,
                status,
                timeline,
                peak_bytes: scope.map(MemoryScope::peak_bytes),
                oom_kills: scope.map(MemoryScope::oom_kills),
                scope_alive: scope.is_none_or(|scope| scope.usage_bytes().is_ok()),
            })
        }
        Err(error) => {
            child.kill()?;
            child.wait()?;
            Err(error)
        }
    }
}

fn attend(
    child: &mut Child,
    scope: Option<&MemoryScope>,
    input: &[u8],
) -> io::Result<(Vec<u8>, Vec<UsagePoint>)> {
    if let Some(scope) = scope {
        scope.add(child.id()).map_err(io::Error::other)?;
    }
    let pipe = || io::Error::other("no pipe to the process");
    let (mut stdin, mut stdout) =
        (child.stdin.take().ok_or_else(pipe)?, child.stdout.take().ok_or_else(pipe)?);
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let watcher = threads.spawn(|| watch(scope, &over));
        let mut output = Vec::new();
        // One that was killed meanwhile no longer reads; its status says more than this.
        let told = match stdin.write_all(input) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            told => told,
        };
        drop(stdin);
        let told = told.and_then(|()| stdout.read_to_end(&mut output));
        over.store(true, Ordering::Relaxed);
        let timeline = watcher.join().unwrap_or_default();
        told.map(|_| (output, timeline))
    })
}

fn watch(scope: Option<&MemoryScope>, over: &AtomicBool) -> Vec<UsagePoint> {
    let Some(scope) = scope else { return Vec::new() };
    let started = Instant::now();
    let mut points = Vec::new();
    let mut period = PERIOD;
    while !over.load(Ordering::Relaxed) {
        if let Ok(usage_bytes) = scope.usage_bytes() {
            let at_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            points.push(UsagePoint { at_ms, usage_bytes });
        }
        if points.len() >= MOST_POINTS {
            let mut number = 0;
            points.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            period *= 2;
        }
        // Short naps, so that the end is not waited for.
        let nap = Instant::now();
        while nap.elapsed() < period && !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    points
}

impl CellRun {
    /// Why the run must be thrown away, as far as the parent can tell: the process failed, someone
    /// was killed for want of memory, or the scope is gone.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let kills = self.oom_kills.as_ref().and_then(|kills| kills.as_ref().ok().copied());
        if let Some(kills) = kills.filter(|&kills| kills > 0) {
            return Some(format!("{kills} processes were killed for want of memory"));
        }
        if !self.status.success() {
            return Some(format!("the process ended with {}", self.status));
        }
        if let Some(Err(error)) = &self.oom_kills {
            return Some(format!("nobody knows whether memory ran out: {error}"));
        }
        (!self.scope_alive).then(|| "the scope did not live to the end".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_is_told_and_says_goes_through() {
        let run = run_cell(&mut Command::new("cat"), None, b"all of it\n").unwrap();
        assert_eq!((run.output.as_slice(), run.fault()), (&b"all of it\n"[..], None));
        assert!(run.timeline.is_empty() && run.peak_bytes.is_none());
    }

    #[test]
    fn a_process_that_fails_or_is_killed_is_a_reason() {
        let mut command = Command::new("sh");
        command.args(["-c", "read line; exit 3"]);
        let run = run_cell(&mut command, None, b"go\n").unwrap();
        assert!(run.fault().unwrap().contains('3'));
        let mut command = Command::new("sh");
        command.args(["-c", "kill -9 $$"]);
        let run = run_cell(&mut command, None, &vec![b'x'; 1 << 20]).unwrap();
        assert!(run.fault().unwrap().contains('9'));
    }

    #[test]
    fn a_kill_for_want_of_memory_comes_first() {
        let mut run = run_cell(&mut Command::new("true"), None, b"").unwrap();
        run.oom_kills = Some(Ok(2));
        assert!(run.fault().unwrap().contains("2 processes were killed"));
        run.oom_kills = Some(Ok(0));
        assert_eq!(run.fault(), None);
        run.scope_alive = false;
        assert!(run.fault().unwrap().contains("scope"));
    }
}
