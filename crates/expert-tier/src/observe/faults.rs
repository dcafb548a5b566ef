use super::root::{SystemRoot, Unavailable};
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;

/// What the kernel counted for this process, all threads together, since it started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ProcessCounters {
    /// Page faults answered from memory.
    pub minor_faults: u64,
    /// Page faults that waited for a device.
    pub major_faults: u64,
    /// Times a thread gave up its CPU to wait.
    pub voluntary_switches: u64,
    /// Bytes that the process caused to be read from devices (read-ahead included; reads
    /// that another process or a kernel worker made are not).
    pub read_bytes: Result<u64, Unavailable>,
}

impl ProcessCounters {
    /// Reads the counters of this process; `read_bytes` through `root`.
    ///
    /// # Errors
    ///
    /// What `getrusage` answers.
    pub fn now(root: &SystemRoot) -> std::io::Result<Self> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let count = |value: i64| u64::try_from(value).unwrap_or(0);
        Ok(Self {
            minor_faults: count(usage.minor_page_faults()),
            major_faults: count(usage.major_page_faults()),
            voluntary_switches: count(usage.voluntary_context_switches()),
            read_bytes: read_bytes(root),
        })
    }

    /// The difference to an `earlier` reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let read_bytes = match (&self.read_bytes, &earlier.read_bytes) {
            (Ok(now), Ok(then)) => now.checked_sub(*then).ok_or_else(|| {
                Unavailable::new(format!("/proc/self/io: read_bytes went back: {then} to {now}"))
            }),
            (Err(error), _) | (_, Err(error)) => Err(error.clone()),
        };
        Self {
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            read_bytes,
        }
    }
}

fn read_bytes(root: &SystemRoot) -> Result<u64, Unavailable> {
    const PATH: &str = "/proc/self/io";
    let text = root.read(PATH)?;
    let value = text.lines().find_map(|line| line.strip_prefix("read_bytes:"));
    value
        .and_then(|value| value.trim().parse().ok())
        .ok_or_else(|| Unavailable::new(format!("{PATH}: no read_bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_subtracts() {
        let dir = tempfile::tempdir().unwrap();
        let root = SystemRoot::at(dir.path());
        let before = ProcessCounters::now(&root).unwrap();
        assert!(before.read_bytes.as_ref().unwrap_err().reason.contains("/proc/self/io"));

        std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        let write = |bytes: &str| {
            let text = format!("rchar: 9\nread_bytes: {bytes}\nwrite_bytes: 7\n");
            std::fs::write(dir.path().join("proc/self/io"), text).unwrap();
            ProcessCounters::now(&root).unwrap()
        };
        let (first, second) = (write("4096"), write("12288"));
        assert_eq!(second.since(&first).read_bytes, Ok(8192));
        assert!(first.since(&second).read_bytes.is_err(), "no wrap-around");
        assert!(write("-1").read_bytes.is_err());
    }

    #[test]
    fn this_process_faults() {
        let root = SystemRoot::default();
        let before = ProcessCounters::now(&root).unwrap();
        let pages: Vec<u8> = vec![1; 8 << 20];
        assert_eq!(pages.iter().map(|&byte| u64::from(byte)).sum::<u64>(), 8 << 20);
        let after = ProcessCounters::now(&root).unwrap();
        assert!(after.since(&before).minor_faults > 0);
    }
}
