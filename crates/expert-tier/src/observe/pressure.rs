use super::root::{SystemRoot, Unavailable};
use serde::Serialize;

/// How much of the time tasks waited for one resource (PSI), in per cent over ten seconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Pressure {
    /// At least one task waited.
    pub some_avg10: Result<f64, Unavailable>,
    /// All tasks waited at once.
    pub full_avg10: Result<f64, Unavailable>,
}

impl Pressure {
    /// Memory pressure of the machine.
    #[must_use]
    pub fn memory(root: &SystemRoot) -> Self {
        Self::read("/proc/pressure/memory", root)
    }

    /// Storage pressure of the machine.
    #[must_use]
    pub fn io(root: &SystemRoot) -> Self {
        Self::read("/proc/pressure/io", root)
    }

    fn read(path: &str, root: &SystemRoot) -> Self {
        // Once for both: a kernel may have the file and refuse to read it.
        let text = root.read(path);
        let value = |row: &str| {
            let text = text.as_ref().map_err(Unavailable::clone)?;
            let line = text.lines().find_map(|line| line.strip_prefix(row));
            let number = line.and_then(|line| {
                line.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
            });
            number.ok_or_else(|| Unavailable::new(format!("{path}: no {row} avg10")))
        };
        Self { some_avg10: value("some"), full_avg10: value("full") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(text: Option<&str>) -> Pressure {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/pressure")).unwrap();
        if let Some(text) = text {
            std::fs::write(dir.path().join("proc/pressure/memory"), text).unwrap();
        }
        Pressure::memory(&SystemRoot::at(dir.path()))
    }

    #[test]
    fn values_or_a_reason_never_zero() {
        let some = "some avg10=1.50 avg60=0.10 avg300=0.00 total=12\n";
        let full = "full avg10=0.75 avg60=0.00 avg300=0.00 total=3\n";
        let both = memory(Some(&format!("{some}{full}")));
        assert_eq!((both.some_avg10, both.full_avg10), (Ok(1.5), Ok(0.75)));
        let only = memory(Some(some));
        assert_eq!(only.some_avg10, Ok(1.5));
        assert!(only.full_avg10.unwrap_err().reason.contains("no full"));
        for text in [None, Some(""), Some("some avg10=x\nfull\n")] {
            let none = memory(text);
            assert!(none.some_avg10.is_err() && none.full_avg10.is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_file_that_opens_and_cannot_be_read_is_unavailable() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/pressure/memory")).unwrap();
        let found = Pressure::memory(&SystemRoot::at(dir.path()));
        assert!(found.some_avg10.unwrap_err().reason.contains("/proc/pressure/memory"));
    }
}
