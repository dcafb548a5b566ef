//! Sets of files: `NAME-00001-of-00003.gguf` and on, or one file of any name.

use super::header::{Header, read_header, read_header_alone};
use crate::error::TierError;
use crate::notice::Notice;
use crate::pool::collect::{Collected, open_regular};
use crate::pool::source::{list, parent};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// No set is near it; a name that says more is no set's.
const MOST_FILES: u64 = 100_000;

/// Whether a file of this name holds a model (`._x` are resource forks that macOS leaves).
pub(in crate::pool) fn is_gguf_name(name: &str) -> bool {
    name.ends_with(".gguf") && !name.starts_with("._")
}

/// A name's place in a set.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    base: String,
    total: u64,
    /// From 1 on.
    number: u64,
}

impl Place {
    /// `m-00002-of-00003.gguf` → base `m`, 2 of 3.
    fn of(name: &str) -> Option<Self> {
        let stem = name.strip_suffix(".gguf")?;
        let (rest, total) = stem.rsplit_once("-of-")?;
        let (base, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let plain = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse().ok()).flatten()
        };
        let (number, total): (u64, u64) = (digits(number)?, digits(total)?);
        let sound = (1..=total).contains(&number) && total < MOST_FILES;
        sound.then(|| Self { base: base.to_owned(), total, number })
    }

    fn file(&self, number: u64) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.base, self.total)
    }
}

/// Reads the set that the file `path` belongs to into `collected`, which is empty. `names` are
/// those in its folder.
pub(in crate::pool) fn collect_file(
    path: &Path,
    names: &[String],
    mut collected: Collected,
) -> Result<Collected, TierError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match Place::of(name) {
        Some(place) => collect_set(parent(path), &place, names, &mut collected)?,
        None => {
            let keys = collected.add_gguf(path, names)?;
            if let Some(count) = keys.count.filter(|&count| count > 1) {
                return Err(inconsistent(
                    path,
                    format!(
                        "split.count says it is one of {count} files, but its name has no \
                         -NNNNN-of-NNNNN that tells where the others are"
                    ),
                ));
            }
        }
    }
    Ok(collected)
}

/// Reads the only model in a folder into `collected`, which is empty.
pub(in crate::pool) fn collect_dir(
    dir: &Path,
    names: &[String],
    collected: Collected,
) -> Result<Collected, TierError> {
    let all: Vec<&String> = names.iter().filter(|name| is_gguf_name(name)).collect();
    // Projectors of vision models lie beside the text model that is meant.
    let (beside, models): (Vec<&String>, Vec<&String>) =
        all.into_iter().partition(|name| name.starts_with("mmproj"));
    let mut choices: BTreeMap<String, &String> = BTreeMap::new();
    for name in models {
        let key = Place::of(name).map_or_else(
            || name.clone(),
            |place| format!("{} of {} files", place.file(1), place.total),
        );
        choices.entry(key).or_insert(name);
    }
    let mut collected = match choices.iter().next() {
        Some((_, first)) if choices.len() == 1 => collect_file(&dir.join(first), names, collected)?,
        None => return Err(nothing(dir, &beside)),
        Some(_) => {
            let choices: Vec<String> = choices.into_keys().collect();
            let (path, count) = (dir.to_owned(), choices.len());
            let reason = format!("holds {count} models, name one of: {}", list(&choices));
            return Err(TierError::Ambiguous { path, reason });
        }
    };
    if let Some(first) = beside.first() {
        let text = format!("{}: {first} is of another model, left out", dir.display());
        collected.notices.push(Notice::info(text));
    }
    Ok(collected)
}

fn nothing(dir: &Path, beside: &[&String]) -> TierError {
    let only = beside.first().map_or("", |name| name.as_str());
    let reason = format!("no text model, only {only}");
    TierError::NotAModel { path: dir.to_owned(), reason }
}

/// What a file says about its set.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct SplitKeys {
    /// From 0 on.
    no: Option<u64>,
    count: Option<u64>,
    /// Tensors of the whole set.
    tensors: Option<u64>,
    /// Tensors of this file.
    own: u64,
}

impl SplitKeys {
    pub(in crate::pool) fn of(header: &Header) -> Result<Self, TierError> {
        let number = |key| header.metadata.unsigned(key);
        Ok(Self {
            no: number("split.no")?,
            count: number("split.count")?,
            tensors: number("split.tensors.count")?,
            own: header.tensors.len() as u64,
        })
    }
}

fn collect_set(
    dir: &Path,
    place: &Place,
    names: &[String],
    collected: &mut Collected,
) -> Result<(), TierError> {
    let known: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let files: Vec<String> = (1..=place.total).map(|number| place.file(number)).collect();
    // A folder that cannot be listed still lets its files be opened.
    let there = |name: &String| known.contains(name.as_str()) || dir.join(name).exists();
    let (present, missing): (Vec<&String>, Vec<&String>) =
        files.iter().partition(|name| there(name));
    if !missing.is_empty() {
        let error = missing_files(dir, &present, &missing, collected.headers_only)?;
        collected.lack(error)?;
    }
    let mut held = 0;
    let mut said = None;
    for (index, name) in (0_u64..).zip(&files).filter(|(_, name)| !missing.contains(name)) {
        let path = dir.join(name);
        let keys = collected.add_gguf(&path, names)?;
        if let Some(no) = keys.no.filter(|&no| no != index) {
            let reason = format!("split.no is {no}, the name says {index} (counted from 0)");
            return Err(inconsistent(&path, reason));
        }
        if let Some(count) = keys.count.filter(|&count| count != place.total) {
            let reason = format!("split.count is {count}, the name says {}", place.total);
            return Err(inconsistent(&path, reason));
        }
        if keys.count.is_none() && place.total > 1 {
            let reason = format!(
                "the name says it is one of {} files, but there is no split.count in it",
                place.total
            );
            return Err(inconsistent(&path, reason));
        }
        held += keys.own;
        said = said.or(keys.tensors);
    }
    match said {
        Some(said) if said != held && missing.is_empty() => Err(inconsistent(
            &dir.join(&files[0]),
            format!("split.tensors.count is {said}, the files hold {held} tensors"),
        )),
        _ => Ok(()),
    }
}

/// What is missing, and how many tensors with it.
fn missing_files(
    dir: &Path,
    present: &[&String],
    missing: &[&String],
    headers_only: bool,
) -> Result<TierError, TierError> {
    let read = if headers_only { read_header_alone } else { read_header };
    let (mut held, mut said) = (0, None);
    for name in present {
        let path = dir.join(name);
        let (file, stat) = open_regular(&path)?;
        let keys = SplitKeys::of(&read(&file, stat.len(), &path)?)?;
        held += keys.own;
        said = said.or(keys.tensors);
    }
    let tensors = said.unwrap_or(held).max(held);
    let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Ok(TierError::MissingShard {
        index: dir.to_owned(),
        missing: missing.iter().map(|name| (*name).clone()).collect(),
        present: present.len(),
        total: present.len() + missing.len(),
        unreachable: count(tensors - held),
        tensors: count(tensors),
    })
}

fn inconsistent(path: &Path, reason: String) -> TierError {
    TierError::SplitSet { path: path.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_place() {
        let place = Place::of("my-model-Q4_K_M-00002-of-00012.gguf").unwrap();
        assert_eq!((place.base.as_str(), place.number, place.total), ("my-model-Q4_K_M", 2, 12));
        assert_eq!(place.file(12), "my-model-Q4_K_M-00012-of-00012.gguf");
        for name in [
            "m.gguf",
            "m-00000-of-00003.gguf",
            "m-00004-of-00003.gguf",
            "m-1-of-3.gguf",
            "m-00001-of-00003.safetensors",
            "m-0000x-of-00003.gguf",
        ] {
            assert_eq!(Place::of(name), None, "{name}");
        }
    }
}
