use crate::observe::{FileBudget, Pressure, SystemRoot, VmCounters};
use serde::Serialize;
use std::time::Instant;

/// How memory is doing, as far as the choice depends on it. What is not known is `None`.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct MemoryState {
    /// Memory that files can have, in bytes.
    pub room_bytes: Option<u64>,
    /// Per cent of ten seconds in which a task waited for memory (PSI, some).
    pub pressure: Option<f64>,
    /// File pages a second that were read again soon after they had been taken.
    pub refaults_per_s: Option<f64>,
}

impl MemoryState {
    /// What is so different from `earlier` that a choice made then may not hold any more.
    pub(super) fn change_since(&self, earlier: &Self) -> Option<String> {
        if let (Some(now), Some(then)) = (self.room_bytes, earlier.room_bytes)
            && now.abs_diff(then) > then / 8
        {
            return Some(format!(
                "the memory for files went from {} to {} MiB",
                then >> 20,
                now >> 20
            ));
        }
        if let (Some(now), Some(then)) = (self.pressure, earlier.pressure)
            && (now - then).abs() > 10.0
        {
            return Some(format!("memory pressure went from {then:.0} to {now:.0} %"));
        }
        let (now, then) = self.refaults_per_s.zip(earlier.refaults_per_s)?;
        // A thousand pages a second are 4 MiB: below, a factor says nothing.
        let (least, most) = (now.min(then).max(1000.0), now.max(then));
        (most > 4.0 * least)
            .then(|| format!("pages read again went from {then:.0} to {now:.0} a second"))
    }
}

/// Reads it, and remembers what rates are taken from.
#[derive(Debug)]
pub(super) struct MemoryReader {
    root: SystemRoot,
    before: Option<(Instant, u64)>,
}

impl MemoryReader {
    pub(super) fn new(root: &SystemRoot) -> Self {
        Self { root: root.clone(), before: None }
    }

    pub(super) fn read(&mut self) -> MemoryState {
        let now = Instant::now();
        let refaults = VmCounters::now(&self.root).ok().map(|vm| vm.file_refault_pages);
        let rate = refaults.zip(self.before).and_then(|(pages, (then, before))| {
            let seconds = (now - then).as_secs_f64();
            (seconds >= 0.1).then(|| pages.saturating_sub(before) as f64 / seconds)
        });
        self.before = refaults.map(|pages| (now, pages));
        MemoryState {
            room_bytes: FileBudget::read(&self.root).ok().map(|budget| budget.bytes),
            pressure: Pressure::memory(&self.root).some_avg10.ok(),
            refaults_per_s: rate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::fixture::tree;

    #[test]
    fn what_matters_is_a_change_and_what_is_unknown_is_none() {
        let then = MemoryState {
            room_bytes: Some(800 << 20),
            pressure: Some(2.0),
            refaults_per_s: Some(10.0),
        };
        assert_eq!(then.change_since(&then), None);
        let with = |change: fn(&mut MemoryState)| {
            let mut now = then;
            change(&mut now);
            now.change_since(&then)
        };
        assert_eq!(with(|now| now.room_bytes = Some(900 << 20)), None, "an eighth");
        let text = with(|now| now.room_bytes = Some(901 << 20)).unwrap();
        assert!(text.contains("800 to 901 MiB"), "{text}");
        assert!(with(|now| now.room_bytes = Some(600 << 20)).is_some());
        assert_eq!(with(|now| now.pressure = Some(12.0)), None);
        assert!(with(|now| now.pressure = Some(12.5)).unwrap().contains("2 to 12 %"));
        assert_eq!(with(|now| now.refaults_per_s = Some(4000.0)), None);
        assert!(with(|now| now.refaults_per_s = Some(4001.0)).is_some());
        assert_eq!(MemoryState::default().change_since(&then), None);
    }

    #[test]
    fn it_is_read_from_the_kernels_files() {
        let vm = "pgscan_kswapd 0\npgsteal_kswapd 0\npgscan_direct 0\npgsteal_direct 0\n";
        let (_dir, root) = tree(&[
            ("proc/meminfo", "MemAvailable: 600 kB\n"),
            ("proc/pressure/memory", "some avg10=1.50 avg60=0.00 avg300=0.00 total=1\n"),
            ("proc/vmstat", &format!("{vm}workingset_refault_file 7\n")),
        ]);
        let found = MemoryReader::new(&root).read();
        assert_eq!((found.room_bytes, found.pressure), (Some(600 << 10), Some(1.5)));
        assert_eq!(found.refaults_per_s, None, "a rate needs two readings");
        let nothing = MemoryReader::new(&SystemRoot::at("/nowhere")).read();
        assert_eq!(nothing, MemoryState::default());
    }
}
