//! What an unfinished pack has finished: one line an entry, appended and synced in batches.
//!
//! The first line is a JSON object with the plan's fingerprint and the source's identity. An
//! entry is `e NUMBER XXH3 CHECK` (an expert) or `s NUMBER XXH3 CHECK` (a spine file): its
//! place in the plan, the checksum of its bytes, and the low half of XXH3-64 of the line
//! before it, seeded with the fingerprint. Whatever is behind the last sound line was torn.

use super::disk::{Disk, io_error, write_error};
use crate::error::{OutputError, TierError};
use crate::pool::packed::JOURNAL;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A line an expert is about 40 bytes; a longer file is none of ours.
const CAP: u64 = 256 << 20;
const FORMAT: &str = "expert-tier-pack-journal";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Head {
    format: String,
    version: u32,
    plan: String,
    source: Vec<String>,
}

/// Something that is finished and synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    Expert { number: usize, checksum: u64 },
    Spine { number: usize, checksum: u64 },
}

/// An open journal, locked against a second pack into the same folder.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: Flock<File>,
    len: u64,
    seed: u64,
}

/// What a folder's journal says.
pub(super) enum Found {
    /// It is not a journal.
    Foreign,
    /// It was begun from something else: what it was, and what it is now.
    Other { was: String, is: String },
    /// It can be continued.
    Same(Journal, Vec<Entry>),
}

fn head(fingerprint: u64, source: Vec<String>) -> Head {
    Head { format: FORMAT.to_owned(), version: 1, plan: format!("{fingerprint:016x}"), source }
}

fn lock(file: File, path: &Path) -> Result<Flock<File>, TierError> {
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
        let reason = "another pack is writing here".to_owned();
        TierError::Output(OutputError::Refused { path: path.to_owned(), reason })
    })
}

impl Journal {
    /// Begins a journal, in the place of one that may be there.
    pub(super) fn create(
        dir: &Path,
        fingerprint: u64,
        source: Vec<String>,
        disk: &Disk<'_>,
    ) -> Result<Self, TierError> {
        let path = dir.join(JOURNAL);
        let new = dir.join(super::target::NEW_JOURNAL);
        let mut text = serde_json::to_string(&head(fingerprint, source))
            .map_err(|error| io_error(&path, "write")(error.into()))?;
        text.push('\n');
        let file = lock(disk.open(&new, true)?, &path)?;
        let len = text.len() as u64;
        disk.write(&file, &new, text.as_bytes(), 0)
            .and_then(|()| disk.sync(&file, &new))
            .map_err(write_error(&new, len))?;
        disk.rename(&new, &path)?;
        disk.sync_dir(dir)?;
        Ok(Self { path, file, len, seed: fingerprint })
    }

    /// Reads the journal of a folder that has one.
    pub(super) fn open(
        dir: &Path,
        fingerprint: u64,
        source: Vec<String>,
        disk: &Disk<'_>,
    ) -> Result<Found, TierError> {
        let path = dir.join(JOURNAL);
        let file = lock(disk.open(&path, false)?, &path)?;
        let mut text = Vec::new();
        (&*file).take(CAP).read_to_end(&mut text).map_err(io_error(&path, "read"))?;
        let Some(first) = text.split_inclusive(|&b| b == b'\n').next() else {
            return Ok(Found::Foreign);
        };
        let Ok(found) = serde_json::from_slice::<Head>(first) else { return Ok(Found::Foreign) };
        if found.format != FORMAT {
            return Ok(Found::Foreign);
        }
        let wanted = head(fingerprint, source);
        if found != wanted {
            let (was, is) = difference(&found, &wanted);
            return Ok(Found::Other { was, is });
        }
        let (entries, sound) = entries(&text, first.len(), fingerprint);
        let journal = Self { path, file, len: sound as u64, seed: fingerprint };
        if sound < text.len() {
            disk.set_len(&journal.file, &journal.path, journal.len)
                .map_err(io_error(&journal.path, "cut"))?;
        }
        Ok(Found::Same(journal, entries))
    }

    /// Adds entries whose bytes are synced, and syncs them.
    pub(super) fn append(&mut self, entries: &[Entry], disk: &Disk<'_>) -> Result<(), TierError> {
        let text: String = entries.iter().map(|&entry| line(entry, self.seed)).collect();
        disk.write(&self.file, &self.path, text.as_bytes(), self.len)
            .and_then(|()| disk.sync(&self.file, &self.path))
            .map_err(write_error(&self.path, text.len() as u64))?;
        self.len += text.len() as u64;
        Ok(())
    }
}

fn line(entry: Entry, seed: u64) -> String {
    let (kind, number, checksum) = match entry {
        Entry::Expert { number, checksum } => ('e', number, checksum),
        Entry::Spine { number, checksum } => ('s', number, checksum),
    };
    let text = format!("{kind} {number} {checksum:016x}");
    let check = xxh3_64_with_seed(text.as_bytes(), seed) as u32;
    format!("{text} {check:08x}\n")
}

fn parse(text: &[u8], seed: u64) -> Option<Entry> {
    let plain = std::str::from_utf8(text).ok()?;
    let mut words = plain.strip_suffix('\n')?.split(' ');
    let (kind, number, checksum) = (words.next()?, words.next()?, words.next()?);
    let number = number.parse().ok()?;
    let checksum = u64::from_str_radix(checksum, 16).ok()?;
    let entry = match kind {
        "e" => Entry::Expert { number, checksum },
        "s" => Entry::Spine { number, checksum },
        _ => return None,
    };
    // One spelling, and the check value with it.
    (line(entry, seed) == plain).then_some(entry)
}

/// The sound entries behind the first line, and where they end.
fn entries(text: &[u8], head_len: usize, seed: u64) -> (Vec<Entry>, usize) {
    let mut sound = head_len;
    let mut entries = Vec::new();
    for line in text[head_len..].split_inclusive(|&b| b == b'\n') {
        let Some(entry) = parse(line, seed) else { break };
        entries.push(entry);
        sound += line.len();
    }
    (entries, sound)
}

fn difference(was: &Head, is: &Head) -> (String, String) {
    let lines = was.source.len().max(is.source.len());
    let line = |head: &Head, at: usize| {
        head.source.get(at).cloned().unwrap_or_else(|| format!("{} files", head.source.len()))
    };
    let differs = (0..lines).find(|&at| was.source.get(at) != is.source.get(at));
    match differs {
        Some(at) => (line(was, at), line(is, at)),
        None if was.version != is.version => {
            (format!("journal version {}", was.version), format!("version {}", is.version))
        }
        None => (format!("plan {}", was.plan), format!("plan {}", is.plan)),
    }
}
