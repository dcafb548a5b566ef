//! What a tier finds out once, when it is opened.

use crate::config::TierConfig;
use crate::error::TierError;
use crate::fill::direct::BufferReader;
use crate::host::Storage;
use crate::notice::Notice;
use crate::observe::SystemRoot;
use crate::pool::map::{HUGE_BYTES, Mapping};
use crate::residency::{ProbeKind, ResidencyProbe};
use std::collections::HashSet;
use std::path::Path;

pub(super) fn choose_probes(
    mapping: &Mapping,
    forced: Option<ProbeKind>,
) -> Result<Vec<ResidencyProbe>, TierError> {
    let choose = |(index, path): (u32, &Path)| {
        let file = mapping.handle(index)?;
        ResidencyProbe::choose(&file, forced).map_err(|source| TierError::Io {
            path: path.to_owned(),
            operation: "probe",
            source,
        })
    };
    (0_u32..).zip(mapping.files().iter().map(|mapped| &*mapped.path)).map(choose).collect()
}

/// What is not as it could be, each thing once, with the first file that shows it.
pub(super) fn remarks(
    mapping: &Mapping,
    probes: &[ResidencyProbe],
    config: TierConfig,
    reader: Option<&BufferReader>,
) -> Vec<Notice> {
    let files = mapping.files();
    let mut notices = Vec::new();
    let mut small = files.iter().filter_map(|file| Some((file, file.not_huge.as_ref()?)));
    if let Some((file, why)) = small.next() {
        let more = small.count();
        let text = format!("{}: no 2 MiB folios: {why}", file.path.display());
        notices.push(Notice::info(match more {
            0 => text,
            _ => format!("{text} (and {more} more files)"),
        }));
    }
    let mut doubted = files.iter().zip(probes).filter(|(_, probe)| probe.needs_file());
    if config.probe.is_none()
        && let Some((file, probe)) = doubted.next()
    {
        let (path, kind) = (file.path.display(), probe.kind());
        notices.push(Notice::info(format!(
            "{path}: residency is asked by {kind:?}, as mincore does not tell it here"
        )));
    }
    if reader.is_some_and(|reader| reader.unproved() > 0) {
        let arm = config.admission;
        notices.push(Notice::warning(format!(
            "{arm}: not proved to pass the page cache by: every page that was tried stays in it"
        )));
    }
    notices
}

/// Longest piece that one advice call really brings in: calls are clipped to the device's
/// read-ahead window, and pieces over 2 MiB gain nothing.
pub(super) fn edge_bytes(mapping: &Mapping) -> u64 {
    const FALLBACK_KB: u64 = 128; // the kernel's default window
    let mut seen = HashSet::new();
    let mut window_kb = u64::MAX;
    for mapped in mapping.files() {
        if seen.insert(mapped.dev) {
            let storage = Storage::probe(&mapped.path, &SystemRoot::default());
            let found = storage.ok().and_then(|storage| storage.read_ahead_kb.ok());
            window_kb = window_kb.min(found.unwrap_or(FALLBACK_KB));
        }
    }
    window_kb.saturating_mul(1024).clamp(64 << 10, HUGE_BYTES)
}
