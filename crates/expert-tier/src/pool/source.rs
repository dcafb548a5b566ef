//! From the path that was given to the set of files it means.

use super::collect::{Collected, open_regular};
use super::gguf;
use super::loose::{Below, Files};
use super::shards::{self, Index};
use super::sniff;
use crate::error::TierError;
use crate::notice::Notice;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const INDEX_ENDING: &str = ".safetensors.index.json";

/// Whether a file of this name holds tensors (`._x` are resource forks that macOS leaves).
pub(super) fn is_tensor_file(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.starts_with("._")
}

/// The folder of a file; the current one for a bare name.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// At most eight names, and how many more.
pub(super) fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

/// Reads the headers of all files that `path` means.
pub(super) fn collect(path: &Path) -> Result<Collected, TierError> {
    let metadata = fs::metadata(path).map_err(|source| TierError::Io {
        path: path.to_owned(),
        operation: "stat",
        source,
    })?;
    if metadata.is_dir() {
        let names = names_in(path)?;
        return collect_dir(path, &names);
    }
    let dir = parent(path);
    // A folder that may be entered but not listed hides only what stands beside the file.
    let names = names_in(dir).unwrap_or_default();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name.ends_with(INDEX_ENDING) {
        return collect_index(path, &names);
    }
    if gguf::is_gguf_name(name) || begins_as_gguf(path) {
        return gguf::collect_file(path, &names, Collected::default());
    }
    // A shard of a set means the set, if the index beside it agrees.
    if let Some(index) = index_of_shard(name) {
        for index in [index.as_str(), INDEX] {
            if names.binary_search_by(|known| known.as_str().cmp(index)).is_err() {
                continue;
            }
            let index_path = dir.join(index);
            let text = shards::read_index(&index_path)?;
            let index = Index::parse(&text, &index_path)?;
            if index.shards().iter().any(|shard| shard == name) {
                let mut collected = Collected::default();
                index.collect(&index_path, &names, &mut collected)?;
                return Ok(collected);
            }
        }
    }
    collect_single(path, &names)
}

/// Reads what is there of the headers that `path` means, if it means a GGUF model.
pub(super) fn collect_headers(path: &Path) -> Result<Option<Collected>, TierError> {
    let collected = Collected { headers_only: true, ..Collected::default() };
    if path.is_dir() {
        let names = names_in(path)?;
        let other = |name: &String| is_tensor_file(name) || name.ends_with(INDEX_ENDING);
        if names.iter().any(other) || !names.iter().any(|name| gguf::is_gguf_name(name)) {
            return Ok(None);
        }
        return gguf::collect_dir(path, &names, collected).map(Some);
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !gguf::is_gguf_name(name) && !begins_as_gguf(path) {
        return Ok(None);
    }
    let names = names_in(parent(path)).unwrap_or_default();
    gguf::collect_file(path, &names, collected).map(Some)
}

/// Whether the file is a GGUF file of another name (a blob of a hub's cache). What cannot be read
/// is not one: whoever opens it says why.
fn begins_as_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let file = open_regular(path).and_then(|(file, _)| {
        file.read_exact_at(&mut magic, 0).map_err(|source| TierError::Io {
            path: path.to_owned(),
            operation: "read",
            source,
        })
    });
    file.is_ok() && magic == *gguf::MAGIC
}

fn collect_single(path: &Path, names: &[String]) -> Result<Collected, TierError> {
    let mut collected = Collected::default();
    collected.add_file(path, names, &mut |_| ())?;
    Ok(collected)
}

fn collect_index(path: &Path, names: &[String]) -> Result<Collected, TierError> {
    let text = shards::read_index(path)?;
    let mut collected = Collected::default();
    Index::parse(&text, path)?.collect(path, names, &mut collected)?;
    Ok(collected)
}

fn collect_dir(dir: &Path, names: &[String]) -> Result<Collected, TierError> {
    let ambiguous = |reason: String| Err(TierError::Ambiguous { path: dir.to_owned(), reason });
    let indexes: Vec<String> =
        names.iter().filter(|name| name.ends_with(INDEX_ENDING)).cloned().collect();
    let files: Vec<String> = names.iter().filter(|name| is_tensor_file(name)).cloned().collect();
    let has = |wanted: &str, names: &[String]| names.iter().any(|name| name == wanted);
    match (has(SINGLE, &files), has(INDEX, &indexes)) {
        (true, true) => return collect_both(dir, names),
        (true, false) => {
            let mut collected = collect_single(&dir.join(SINGLE), names)?;
            let others: Vec<String> = files.into_iter().filter(|name| name != SINGLE).collect();
            if !others.is_empty() {
                collected.notices.push(Notice::info(format!(
                    "{}: {SINGLE} is used, not {}",
                    dir.display(),
                    list(&others)
                )));
            }
            return Ok(collected);
        }
        (false, true) => return collect_index(&dir.join(INDEX), names),
        (false, false) => {}
    }
    let gguf = names.iter().find(|name| gguf::is_gguf_name(name));
    match (&indexes[..], &files[..]) {
        ([], [file, ..]) if gguf.is_some() => ambiguous(format!(
            "holds safetensors and GGUF files, for example {file} and {}: name one",
            gguf.map_or("", String::as_str)
        )),
        ([index], _) => collect_index(&dir.join(index), names),
        ([], [file]) => collect_one(dir, file, names),
        ([], []) if gguf.is_some() => gguf::collect_dir(dir, names, Collected::default()),
        ([], []) => match collect_below(dir, names)? {
            Some(collected) => Ok(collected),
            None => Err(nothing_there(dir, names)),
        },
        ([], _) => {
            let below = below(dir, names)?;
            Files { dir, files: &files, siblings: names, below: &below }.collect()
        }
        _ => ambiguous(format!("{} indexes: {}", indexes.len(), list(&indexes))),
    }
}

/// The only tensor file of a folder; with those below it where it is the dense part of their
/// model.
fn collect_one(dir: &Path, file: &str, names: &[String]) -> Result<Collected, TierError> {
    let below = below(dir, names)?;
    if !below.is_empty() {
        let files = &[file.to_owned()];
        let files = Files { dir, files, siblings: names, below: &below };
        if let Some(collected) = files.collect_whole()? {
            return Ok(collected);
        }
    }
    collect_single(&dir.join(file), names)
}

/// A model whose files all lie in sub-folders, one a layer for example.
fn collect_below(dir: &Path, names: &[String]) -> Result<Option<Collected>, TierError> {
    let mut collected = Collected::default();
    for (file, beside) in below(dir, names)? {
        collected.add_file(&file, &beside, &mut |_| ())?;
    }
    Ok((!collected.files.is_empty()).then_some(collected))
}

/// Tensor files in the sub-folders of a folder with a config. Sub-folders with configs are models
/// of their own.
fn below(dir: &Path, names: &[String]) -> Result<Vec<Below>, TierError> {
    let mut found = Vec::new();
    if !names.iter().any(|name| name == "config.json") {
        return Ok(found);
    }
    for name in names.iter().filter(|name| !name.starts_with('.') && !is_tensor_file(name)) {
        let folder = dir.join(name);
        if !folder.is_dir() {
            continue;
        }
        let inside: Rc<[String]> = names_in(&folder)?.into();
        if inside.iter().any(|name| name == "config.json" || name.ends_with(INDEX_ENDING)) {
            continue;
        }
        let files = inside.iter().filter(|name| is_tensor_file(name));
        found.extend(files.map(|file| (folder.join(file), Rc::clone(&inside))));
    }
    Ok(found)
}

/// Both a single file and an index: fine if the index means the single file (some converters
/// write it), two models in one folder if its shards are there.
fn collect_both(dir: &Path, names: &[String]) -> Result<Collected, TierError> {
    let path = dir.join(INDEX);
    let text = shards::read_index(&path)?;
    let index = Index::parse(&text, &path)?;
    if let [only] = index.shards()
        && only == SINGLE
    {
        let mut collected = Collected::default();
        index.collect(&path, names, &mut collected)?;
        return Ok(collected);
    }
    if let Some(shard) = index.shards().iter().find(|shard| dir.join(shard).exists()) {
        return Err(TierError::Ambiguous {
            path: dir.to_owned(),
            reason: format!("holds two models: {SINGLE}, and {shard} of {INDEX}"),
        });
    }
    let mut collected = collect_single(&dir.join(SINGLE), names)?;
    collected.notices.push(Notice::warning(format!(
        "{}: none of its {} shards is there; {SINGLE} is used",
        path.display(),
        index.shards().len()
    )));
    Ok(collected)
}

fn nothing_there(dir: &Path, names: &[String]) -> TierError {
    let path = dir.to_owned();
    let unfinished =
        names.iter().find(|name| sniff::DOWNLOAD_MARKS.iter().any(|mark| name.ends_with(mark)));
    if let Some(name) = unfinished {
        let reason = format!("no model file, but {name}: the download is not finished");
        return TierError::IncompleteDownload { path, reason };
    }
    let reason =
        format!("no safetensors or GGUF file among the {} entries of the folder", names.len());
    TierError::NotAModel { path, reason }
}

/// `x-00002-of-00004.safetensors` → `x.safetensors.index.json`.
fn index_of_shard(name: &str) -> Option<String> {
    let stem = name.strip_suffix(".safetensors")?;
    let (rest, total) = stem.rsplit_once("-of-")?;
    let (base, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(total) && digits(number)).then(|| format!("{base}{INDEX_ENDING}"))
}

/// A place in a numbered set: `x-00002-of-00004.safetensors`, with exactly five digits, is 2 of 4
/// of `x`.
pub(super) struct ShardName<'a> {
    pub(super) base: &'a str,
    pub(super) number: u64,
    pub(super) total: u64,
}

impl<'a> ShardName<'a> {
    pub(super) fn of(name: &'a str) -> Option<Self> {
        let (rest, total) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
        let (base, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let plain = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse::<u64>().ok()).flatten()
        };
        let (number, total) = (digits(number)?, digits(total)?);
        (number <= total).then_some(Self { base, number, total })
    }
}

/// The names in a folder, sorted; names that are not UTF-8 cannot be ours.
fn names_in(dir: &Path) -> Result<Vec<String>, TierError> {
    let io = |source| TierError::Io { path: dir.to_owned(), operation: "list", source };
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(io)? {
        if let Ok(name) = entry.map_err(io)?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
