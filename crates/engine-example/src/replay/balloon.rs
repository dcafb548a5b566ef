use super::system::locked_bytes;
use crate::error::EngineError;
use expert_tier::observe::{MemoryLimits, SystemRoot};
use memmap2::MmapMut;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

/// What must stay for everyone else: a machine without memory answers nobody.
const FLOOR_BYTES: u64 = 512 << 20;

/// A process that holds locked memory, so that the machine has less. Let go when dropped.
#[derive(Debug)]
pub struct Balloon {
    helper: Child,
    locked_bytes: u64,
}

impl Balloon {
    /// Has `command`, a process that calls [`hold_balloon`], lock `bytes`, and looks whether it did.
    ///
    /// # Errors
    /// [`EngineError::Wall`] where so much cannot be locked; it is not tried where less than
    /// 512 MiB would stay.
    pub fn inflate(
        mut command: Command,
        bytes: u64,
        root: &SystemRoot,
    ) -> Result<Self, EngineError> {
        let wall = |reason: String| EngineError::Wall { wall: format!("balloon={bytes}"), reason };
        let room = MemoryLimits::read(root).headroom_bytes();
        if let Some(room) = room.filter(|room| room.saturating_sub(FLOOR_BYTES) < bytes) {
            return Err(wall(format!("{room} bytes are left, {FLOOR_BYTES} of them must stay")));
        }
        let spawned = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| wall(format!("its process cannot be started: {error}")))?;
        let mut balloon = Self { helper: spawned, locked_bytes: 0 };
        let mut line = String::new();
        let stdout = balloon.helper.stdout.take();
        let said = stdout.map(|out| BufReader::new(out).read_line(&mut line));
        if said.is_none_or(|said| said.is_err()) || line.trim() != "locked" {
            let mut text = String::new();
            balloon.helper.stdin.take();
            if let Some(stderr) = &mut balloon.helper.stderr {
                drop(stderr.read_to_string(&mut text));
            }
            return Err(wall(format!("its process gave up: {}", text.trim())));
        }
        let found = locked_bytes(Some(balloon.helper.id()), root);
        let wanted = bytes.next_multiple_of(expert_tier::host::page_bytes());
        if found != Some(wanted) {
            return Err(wall(format!("VmLck of its process is {found:?} bytes, not {wanted}")));
        }
        balloon.locked_bytes = wanted;
        Ok(balloon)
    }

    /// What it holds, as `VmLck` of its process said.
    #[must_use]
    pub fn locked_bytes(&self) -> u64 {
        self.locked_bytes
    }

    /// Whether it still holds that.
    #[must_use]
    pub fn holds(&self, root: &SystemRoot) -> bool {
        locked_bytes(Some(self.helper.id()), root) == Some(self.locked_bytes)
    }
}

impl Drop for Balloon {
    fn drop(&mut self) {
        // Its standard input ends, and with it the process.
        drop(self.helper.stdin.take());
        drop(self.helper.wait());
    }
}

/// Locks `bytes`, says so in a line on `out`, and holds them until `input` ends.
///
/// # Errors
/// What the system answers.
pub fn hold_balloon(bytes: u64, mut input: impl Read, mut out: impl Write) -> io::Result<()> {
    let len = usize::try_from(bytes).map_err(io::Error::other)?;
    let memory = MmapMut::map_anon(len.max(1))?;
    // Brings every page in as well.
    memory.lock()?;
    writeln!(out, "locked")?;
    out.flush()?;
    io::copy(&mut input, &mut io::sink())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_when_it_holds_and_ends_with_its_input() {
        let mut said = Vec::new();
        match hold_balloon(64 << 10, io::empty(), &mut said) {
            Ok(()) => assert_eq!(said, b"locked\n"),
            Err(error) => println!("SKIPPED: 64 KiB cannot be locked: {error}"),
        }
    }

    #[test]
    fn it_is_not_tried_where_too_little_would_stay() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        std::fs::write(dir.path().join("proc/meminfo"), "MemAvailable: 600000 kB\n").unwrap();
        let root = SystemRoot::at(dir.path());
        // Would be found out if it were started.
        let command = Command::new("/nonexistent");
        let error = Balloon::inflate(command, 256 << 20, &root).unwrap_err();
        assert_eq!(error.kind(), "limit");
        let text = error.to_string();
        assert!(text.contains("614400000") && text.contains("balloon=268435456"), "{text}");
        let error = Balloon::inflate(Command::new("/nonexistent"), 1 << 20, &root).unwrap_err();
        assert!(error.to_string().contains("cannot be started"), "{error}");
    }

    #[test]
    fn a_process_that_gives_up_is_quoted() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no room today >&2"]);
        let dir = tempfile::tempdir().unwrap();
        let error = Balloon::inflate(command, 4096, &SystemRoot::at(dir.path())).unwrap_err();
        assert!(error.to_string().contains("no room today"), "{error}");
    }

    #[test]
    fn a_process_that_only_says_so_is_found_out() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo locked; cat"]);
        let root = SystemRoot::default();
        let error = Balloon::inflate(command, 64 << 10, &root).unwrap_err();
        assert!(error.to_string().contains("VmLck"), "{error}");
    }
}
