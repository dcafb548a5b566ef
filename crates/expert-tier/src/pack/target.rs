//! The folder that is written: what may be there, and how much room there is.

use super::source::folder;
use crate::error::{OutputError, TierError};
use crate::pool::Pool;
use crate::pool::packed::{EXPERTS, GGUF_SPINE, INDEX, JOURNAL};
use nix::sys::statvfs::statvfs;
use std::fs;
use std::path::Path;

pub(super) const NEW_JOURNAL: &str = "pack.journal.part";
pub(super) const NEW_INDEX: &str = "pool.json.part";

/// What is at the place that was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Nothing.
    Absent,
    /// A folder without anything to keep.
    Empty,
    /// A folder with a journal.
    Unfinished,
}

fn refused(path: &Path, reason: impl Into<String>) -> TierError {
    TierError::Output(OutputError::Refused { path: path.to_owned(), reason: reason.into() })
}

/// A pool that is packed into its own folder would be taken for two models.
pub(super) fn refuse_own_folder(pool: &Pool, out: &Path) -> Result<(), TierError> {
    let source = folder(pool);
    let Ok(source) = fs::canonicalize(&source) else { return Ok(()) };
    let Ok(out) = std::path::absolute(out) else { return Ok(()) };
    // The part of `out` that is there.
    let there = out.ancestors().find_map(|path| fs::canonicalize(path).ok());
    let inside = there.as_deref().is_some_and(|there| there.starts_with(&source));
    if fs::canonicalize(&out).is_ok_and(|out| out == source) {
        return Err(refused(&out, "it is the source's own folder"));
    }
    if inside && pool.root().is_dir() {
        let reason = format!("it lies inside the source's folder {}", source.display());
        return Err(refused(&out, reason));
    }
    Ok(())
}

/// Looks at `out` without changing it.
pub(super) fn inspect(out: &Path) -> Result<State, TierError> {
    let io = |source| TierError::Io { path: out.to_owned(), operation: "list", source };
    match fs::metadata(out) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(State::Absent),
        Err(error) => return Err(io(error)),
        Ok(metadata) if !metadata.is_dir() => return Err(refused(out, "it is no folder")),
        Ok(_) => {}
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(out).map_err(io)? {
        names.push(entry.map_err(io)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if has(INDEX) {
        return Err(refused(out, "there is a finished pool"));
    }
    if has(JOURNAL) {
        return Ok(State::Unfinished);
    }
    match names.iter().find(|name| *name != NEW_JOURNAL) {
        None => Ok(State::Empty),
        Some(name) => {
            Err(refused(out, format!("the folder holds other things, for example {name}")))
        }
    }
}

/// Files of an unfinished pack that another source must not inherit.
pub(super) fn leftovers(out: &Path) -> Result<Vec<String>, TierError> {
    let io = |source| TierError::Io { path: out.to_owned(), operation: "list", source };
    let mut names = Vec::new();
    for entry in fs::read_dir(out).map_err(io)? {
        if let Ok(name) = entry.map_err(io)?.file_name().into_string() {
            let spine = name.starts_with("spine") && name.ends_with(".safetensors");
            if spine || [EXPERTS, GGUF_SPINE, NEW_INDEX].contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    Ok(names)
}

/// Bytes that this user may still write to the file system of `path`.
pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    let path = std::path::absolute(path).ok()?;
    let path = path.ancestors().find(|path| path.exists())?;
    let stat = statvfs(path).ok()?;
    Some((stat.blocks_available() as u64).saturating_mul(stat.fragment_size() as u64))
}

/// Refuses what cannot fit. File systems that do not tell are tried.
pub(super) fn check_room(out: &Path, needed: u64) -> Result<(), TierError> {
    match free_bytes(out) {
        Some(available) if available < needed => Err(TierError::Output(OutputError::DiskFull {
            path: out.to_owned(),
            needed,
            available: Some(available),
            source: None,
        })),
        _ => Ok(()),
    }
}
