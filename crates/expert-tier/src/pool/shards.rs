//! `model.safetensors.index.json`: which shard holds which tensor.

use super::collect::Collected;
use super::json::Text;
use super::source::{self, list};
use crate::error::TierError;
use crate::notice::Notice;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path};

/// An index names every tensor once; a file beyond this is something else (a header with as
/// many names would break its own cap).
const INDEX_CAP: u64 = 256 << 20;

/// A parsed index; every shard's name is safe to join to the folder.
#[derive(Debug, Default)]
pub(super) struct Index<'a> {
    /// Tensor → place in `shards`.
    entries: HashMap<Cow<'a, str>, u32>,
    shards: Vec<String>,
    total_size: Option<Value>,
}

/// Reads the text of the index.
pub(super) fn read_index(path: &Path) -> Result<Vec<u8>, TierError> {
    let io = |operation, source| TierError::Io { path: path.to_owned(), operation, source };
    let file = File::open(path).map_err(|source| io("open", source))?;
    let claimed = file.metadata().map_err(|source| io("stat", source))?.len();
    if claimed > INDEX_CAP {
        return Err(TierError::Limit {
            path: path.to_owned(),
            what: "the size of the index in bytes".to_owned(),
            value: claimed,
            most: INDEX_CAP,
        });
    }
    let mut text = Vec::new();
    file.take(INDEX_CAP).read_to_end(&mut text).map_err(|source| io("read", source))?;
    Ok(text)
}

impl<'a> Index<'a> {
    pub(super) fn parse(text: &'a [u8], path: &Path) -> Result<Self, TierError> {
        let mut index = Index::default();
        let mut fault = None;
        let mut by_name = HashMap::new();
        let mut json = serde_json::Deserializer::from_slice(text);
        let mut has_map = false;
        let parsed = json
            .deserialize_map(IndexVisitor {
                index: &mut index,
                has_map: &mut has_map,
                map: &mut MapState { by_name: &mut by_name, fault: &mut fault, path },
            })
            .and_then(|()| json.end());
        let invalid = |tensor, reason: String| TierError::HeaderInvalid {
            path: path.to_owned(),
            tensor,
            reason,
        };
        match (parsed, fault) {
            (Err(_), Some(Fault::Error(error))) => Err(error),
            (Err(error), Some(Fault::In(entry))) => Err(invalid(Some(entry), error.to_string())),
            (Err(error), None) => Err(invalid(None, error.to_string())),
            (Ok(()), _) if !has_map => Err(invalid(None, "there is no weight_map".to_owned())),
            (Ok(()), _) => Ok(index),
        }
    }

    /// The files the index names.
    pub(super) fn shards(&self) -> &[String] {
        &self.shards
    }

    /// Opens every shard and checks that index and shards say the same.
    pub(super) fn collect(
        &self,
        path: &Path,
        siblings: &[String],
        collected: &mut Collected,
    ) -> Result<(), TierError> {
        let dir = source::parent(path);
        self.check_present(path, dir)?;
        let mut order: Vec<u32> = (0..self.shards.len() as u32).collect();
        order.sort_by_key(|&shard| &self.shards[shard as usize]);
        let mut seen = 0_usize;
        let mut unlisted = Vec::new();
        let mut misplaced: Vec<(String, u32, u32)> = Vec::new();
        for shard in order {
            let file = dir.join(&self.shards[shard as usize]);
            collected.add_file(&file, siblings, &mut |tensor| match self.entries.get(tensor) {
                Some(&said) if said == shard => seen += 1,
                Some(&said) => misplaced.push((tensor.to_owned(), said, shard)),
                None => unlisted.push(tensor.to_owned()),
            })?;
        }
        if seen != self.entries.len() || !misplaced.is_empty() {
            return Err(self.disagreement(path, dir, misplaced.first()));
        }
        self.add_notices(path, siblings, &unlisted, collected);
        Ok(())
    }

    fn check_present(&self, path: &Path, dir: &Path) -> Result<(), TierError> {
        let present = |name: &String| match fs::metadata(dir.join(name)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            // `sub` of `sub/b.safetensors` is a file.
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => Ok(false),
            Err(source) => Err(TierError::Io { path: dir.join(name), operation: "stat", source }),
        };
        let there: Vec<bool> = self.shards.iter().map(present).collect::<Result<_, _>>()?;
        if there.iter().all(|&there| there) {
            return Ok(());
        }
        let unreachable = self.entries.values().filter(|&&shard| !there[shard as usize]).count();
        let absent = self.shards.iter().zip(&there).filter(|&(_, &there)| !there);
        let mut missing: Vec<String> = absent.map(|(name, _)| name.clone()).collect();
        missing.sort();
        Err(TierError::MissingShard {
            index: path.to_owned(),
            present: self.shards.len() - missing.len(),
            missing,
            total: self.shards.len(),
            unreachable,
            tensors: self.entries.len(),
        })
    }

    /// The error for tensors that are not where the index says. Only now is it worth a second
    /// look at the headers to tell a tensor that is twice there from one that has moved.
    fn disagreement(
        &self,
        path: &Path,
        dir: &Path,
        misplaced: Option<&(String, u32, u32)>,
    ) -> TierError {
        let shard_name = |shard: u32| self.shards[shard as usize].clone();
        let mut missing: HashMap<&str, u32> =
            self.entries.iter().map(|(tensor, &shard)| (tensor.as_ref(), shard)).collect();
        for (shard, name) in (0_u32..).zip(&self.shards) {
            let reread = Collected::default().add_file(&dir.join(name), &[], &mut |tensor| {
                if missing.get(tensor) == Some(&shard) {
                    missing.remove(tensor);
                }
            });
            if let Err(error) = reread {
                return error;
            }
        }
        let inconsistent = |tensor: &str, reason: String| TierError::ShardSetInconsistent {
            index: path.to_owned(),
            tensor: tensor.to_owned(),
            reason,
        };
        if let Some((tensor, said, found)) = misplaced {
            let (said_name, found_name) = (shard_name(*said), shard_name(*found));
            if !missing.contains_key(tensor.as_str()) {
                return TierError::DuplicateName {
                    path: dir.join(found_name),
                    name: tensor.clone(),
                    other: Some(said_name),
                };
            }
            return inconsistent(tensor, format!("said to be in {said_name}, is in {found_name}"));
        }
        let Some((tensor, &shard)) = missing.iter().min() else {
            return inconsistent("(none)", "a shard changed while it was read".to_owned());
        };
        let more = missing.len() - 1;
        let said = shard_name(shard);
        inconsistent(
            tensor,
            format!("in the index, but not in its shard {said} ({more} more such tensors)"),
        )
    }

    fn add_notices(
        &self,
        path: &Path,
        siblings: &[String],
        unlisted: &[String],
        collected: &mut Collected,
    ) {
        let mut warn = |text: String| {
            collected.notices.push(Notice::warning(format!("{}: {text}", path.display())));
        };
        if !unlisted.is_empty() {
            warn(format!("not in the index: {} ({} in all)", list(unlisted), unlisted.len()));
        }
        let ours: HashSet<&String> = self.shards.iter().collect();
        let stale: Vec<String> = siblings
            .iter()
            .filter(|name| source::is_tensor_file(name) && !ours.contains(name))
            .cloned()
            .collect();
        if !stale.is_empty() {
            warn(format!(
                "beside it, but not in it, and ignored: {} ({} in all)",
                stale.len(),
                list(&stale)
            ));
        }
        if let Some(said) = &self.total_size {
            let held = collected.tensor_bytes;
            // Some writers store the total as a float; both are exact where it matters.
            let agrees = said.as_u64() == Some(held) || said.as_f64() == Some(held as f64);
            if !agrees {
                warn(format!("total_size says {said}, the tensors hold {held} bytes"));
            }
        }
    }
}

/// Why `name` must not be joined to the folder; decided on the text, before any open.
pub(super) fn unsafe_reason(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("it is empty");
    }
    if name.contains('\0') {
        return Some("it holds a NUL");
    }
    let mut last = None;
    for component in Path::new(name).components() {
        match component {
            Component::RootDir | Component::Prefix(_) => return Some("it is absolute"),
            Component::ParentDir => return Some("it goes up"),
            Component::CurDir => {}
            Component::Normal(part) => last = Some(part),
        }
    }
    match last {
        None => Some("it names the folder itself"),
        Some(_) if name.ends_with('/') => Some("it names a folder"),
        // Two spellings of one file would be read as two shards.
        Some(_) if name.split('/').any(|part| part.is_empty() || part == ".") => {
            Some("it has empty or dot components")
        }
        Some(_) => None,
    }
}

enum Fault {
    Error(TierError),
    /// serde's error is enough, but it lies in this entry.
    In(String),
}

struct MapState<'s> {
    by_name: &'s mut HashMap<String, u32>,
    fault: &'s mut Option<Fault>,
    path: &'s Path,
}

struct IndexVisitor<'i, 'de, 's> {
    index: &'i mut Index<'de>,
    has_map: &'i mut bool,
    map: &'i mut MapState<'s>,
}

impl<'de> Visitor<'de> for IndexVisitor<'_, 'de, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Text(key)) = map.next_key()? {
            match key.as_ref() {
                "weight_map" if *self.has_map => {
                    return Err(de::Error::custom("weight_map is there twice"));
                }
                "weight_map" => {
                    *self.has_map = true;
                    map.next_value_seed(WeightMap { index: self.index, state: self.map })?;
                }
                "metadata" => {
                    let metadata: Value = map.next_value()?;
                    self.index.total_size = metadata.get("total_size").cloned();
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

struct WeightMap<'i, 'de, 's> {
    index: &'i mut Index<'de>,
    state: &'i mut MapState<'s>,
}

impl<'de> DeserializeSeed<'de> for WeightMap<'_, 'de, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap<'_, 'de, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensors to shards")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let fail = |fault: &mut Option<Fault>, error| {
            *fault = Some(Fault::Error(error));
            Err(de::Error::custom("refused"))
        };
        while let Some(Text(tensor)) = map.next_key()? {
            let Text(name) = match map.next_value() {
                Ok(name) => name,
                Err(error) => {
                    *self.state.fault = Some(Fault::In(tensor.into_owned()));
                    return Err(error);
                }
            };
            let shard = match self.state.by_name.get(name.as_ref()) {
                Some(&shard) => shard,
                None => {
                    if let Some(reason) = unsafe_reason(&name) {
                        let error = TierError::UnsafePath {
                            index: self.state.path.to_owned(),
                            entry: tensor.into_owned(),
                            value: name.into_owned(),
                            reason,
                        };
                        return fail(self.state.fault, error);
                    }
                    let shard = self.index.shards.len() as u32;
                    self.index.shards.push(name.to_string());
                    self.state.by_name.insert(name.into_owned(), shard);
                    shard
                }
            };
            if self.index.entries.contains_key(&tensor) {
                let error = TierError::DuplicateName {
                    path: self.state.path.to_owned(),
                    name: tensor.into_owned(),
                    other: None,
                };
                return fail(self.state.fault, error);
            }
            self.index.entries.insert(tensor, shard);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_judged_by_their_text() {
        for name in [
            "",
            ".",
            "..",
            "/",
            "../a",
            "a/../../b",
            "a/..",
            "/etc/passwd",
            "a\0b",
            "./",
            "a/",
            "./a",
            "a//b",
            "a/./b",
        ] {
            assert!(unsafe_reason(name).is_some(), "{name:?}");
        }
        for name in ["a", "sub/b.safetensors", "..\\a", "..a", "a..", "a/..b"] {
            assert_eq!(unsafe_reason(name), None, "{name:?}");
        }
    }

    #[test]
    fn malformed_indexes_are_told_apart() {
        let parse = |text: &str| Index::parse(text.as_bytes(), Path::new("i")).map(|_| ());
        for text in [
            "",
            "[]",
            "{}",
            "{\"weight_map\":[]}",
            "{\"weight_map\":{\"a\":5}}",
            "{\"weight_map\":{}} x",
        ] {
            assert_eq!(parse(text).unwrap_err().kind(), "header-invalid", "{text}");
        }
        let twice = "{\"weight_map\":{\"a\":\"x\",\"a\":\"x\"}}";
        assert_eq!(parse(twice).unwrap_err().kind(), "duplicate-name");
        let escaped = "{\"weight_map\":{\"a\":\"\\u002e\\u002e/x\"}}";
        assert_eq!(parse(escaped).unwrap_err().kind(), "unsafe-path");
        assert!(parse("{\"metadata\":null,\"weight_map\":{}}").is_ok());
    }
}
