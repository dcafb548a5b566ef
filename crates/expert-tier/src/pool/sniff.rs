//! What a file is when it is no model, and what was never written into it.

use super::gguf::MAGIC;
use super::{Extent, Hole};
use crate::error::TierError;
use nix::unistd::{Whence, lseek};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// As much of the head as the decisions below need.
const HEAD_BYTES: usize = 4096;
/// Fewer zero bytes than a disk sector are a broken header, not a reserved file.
const RESERVED_BYTES: usize = 512;
/// More separate holes than this add nothing to a warning.
const MAX_HOLES: usize = 256;

/// How the formats before GGUF begin.
const OLD_MAGICS: [(&[u8; 4], &str); 3] = [
    (b"tjgg", "a GGJT file, a format before GGUF: convert the model again"),
    (b"lmgg", "a GGML file, a format before GGUF: convert the model again"),
    (b"fmgg", "a GGMF file, a format before GGUF: convert the model again"),
];

/// Endings that downloaders give to their own files beside the target.
pub(super) const DOWNLOAD_MARKS: [&str; 7] =
    [".aria2", ".incomplete", ".part", ".partial", ".crdownload", ".download", ".lock.tmp"];

/// Reads the first bytes and says what the file is if it is recognisably something else.
pub(super) fn check_head(file: &File, len: u64, path: &Path) -> Result<Vec<u8>, TierError> {
    let mut head = vec![0; HEAD_BYTES.min(usize::try_from(len).unwrap_or(HEAD_BYTES))];
    file.read_exact_at(&mut head, 0).map_err(|source| TierError::Io {
        path: path.to_owned(),
        operation: "read",
        source,
    })?;
    // As a length these four letters would be far beyond any header's.
    if head.starts_with(MAGIC) {
        return Ok(head);
    }
    // A header begins at byte 8: with its brace there, the first bytes are a length, whatever
    // they happen to spell.
    if head.get(8) != Some(&b'{') {
        recognise(&head, path)?;
    }
    Ok(head)
}

fn recognise(head: &[u8], path: &Path) -> Result<(), TierError> {
    let incomplete =
        |reason: String| Err(TierError::IncompleteDownload { path: path.to_owned(), reason });
    let not_a_model = |reason: &str| {
        Err(TierError::NotAModel { path: path.to_owned(), reason: reason.to_owned() })
    };
    if let Some(size) = lfs_pointer(head) {
        return incomplete(format!(
            "this is a Git LFS pointer, the content ({size} bytes) was not fetched: run `git lfs \
             pull` or download the file itself"
        ));
    }
    if let Some((_, what)) = OLD_MAGICS.iter().find(|(magic, _)| head.starts_with(*magic)) {
        return not_a_model(what);
    }
    if head.starts_with(b"PK\x03\x04") {
        return not_a_model("a ZIP archive (an old PyTorch file?), not safetensors");
    }
    if head.starts_with(b"\x80\x02") {
        return not_a_model("a Python pickle (an old PyTorch file?), not safetensors");
    }
    if head.len() >= RESERVED_BYTES && head.iter().all(|&byte| byte == 0) {
        return incomplete(format!(
            "all zeros: the first {} bytes were reserved but never written",
            head.len()
        ));
    }
    let text = head.trim_ascii_start();
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    if [&b"<!doctype"[..], b"<html", b"<?xml", b"<head"]
        .iter()
        .any(|tag| text.get(..tag.len()).is_some_and(|start| start.eq_ignore_ascii_case(tag)))
    {
        return not_a_model("a web page was saved instead of the file");
    }
    if head.len() > 8
        && head.iter().take(64).all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace())
    {
        let line: String = head.iter().take(48).map(|&b| char::from(b)).collect();
        return not_a_model(&format!("a text that begins {line:?}"));
    }
    Ok(())
}

/// The size that a Git LFS pointer promises.
fn lfs_pointer(head: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(head);
    let rest = text.strip_prefix("version https://git-lfs")?;
    let size = rest.lines().find_map(|line| line.strip_prefix("size ")).unwrap_or("unknown");
    Some(size.to_owned())
}

/// Ranges of tensors that the file system says were never written. `tensors` are in byte
/// order, with their ends counted from `data_start`; nothing is read. File systems that cannot
/// tell have none.
pub(super) fn holes(
    file: &File,
    index: u32,
    data_start: u64,
    len: u64,
    tensors: &[(&str, u64)],
) -> Vec<Hole> {
    let mut found = Vec::new();
    let mut at = data_start;
    while at < len && found.len() < MAX_HOLES {
        let Some(hole) = seek(file, at, Whence::SeekHole).filter(|&hole| hole < len) else { break };
        let end = seek(file, hole, Whence::SeekData).unwrap_or(len).min(len);
        if end <= hole {
            break;
        }
        let start = hole.max(data_start);
        // The first tensor that ends behind the start of the hole.
        let first = tensors.partition_point(|(_, tensor_end)| data_start + tensor_end <= start);
        if let Some((name, _)) = tensors.get(first) {
            found.push(Hole {
                tensor: (*name).to_owned(),
                extent: Extent { file: index, offset: start, len: end - start },
            });
        }
        at = end;
    }
    found
}

fn seek(file: &File, at: u64, whence: Whence) -> Option<u64> {
    let at = i64::try_from(at).ok()?;
    // An error means no data (or hole) behind `at`, or a file system that cannot tell.
    lseek(file, at, whence).ok().and_then(|offset| u64::try_from(offset).ok())
}

/// The downloader's side file that belongs to `name`, if one of `siblings` is, which are sorted.
pub(super) fn side_file<'s>(name: &str, siblings: &'s [String]) -> Option<&'s str> {
    DOWNLOAD_MARKS.iter().find_map(|mark| {
        let place = siblings.binary_search(&format!("{name}{mark}")).ok()?;
        Some(siblings[place].as_str())
    })
}
