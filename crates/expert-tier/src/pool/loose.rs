//! A model in many files that no index ties together: one a layer, or one an expert.
//!
//! That they belong together is believed only where they show it: no name is in two of them,
//! none of a numbered set is missing, and together they are the model that the config beside them
//! describes.

use super::collect::Collected;
use super::config::CheckpointConfig;
use super::names::spine_layer;
use super::source::{ShardName, is_tensor_file, list};
use crate::error::TierError;
use crate::notice::Notice;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// First components of a text model's dense tensors. Anything else is of something that lies
/// beside the model, an adapter for example.
const ROOTS: [&str; 6] =
    ["layers", "embed_tokens", "norm", "lm_head", "output_attn_res_norm", "output_attn_res_proj"];

/// A file and the names beside it, which all files of its folder share.
pub(super) type Below = (PathBuf, Rc<[String]>);

/// Why files are not taken for one model.
enum Refusal {
    /// A tensor is in two of them.
    Twice(String),
    /// Together they are something else than the model of the config.
    NotOne(String),
    /// What is wrong with one of them.
    Fault(TierError),
}

impl From<TierError> for Refusal {
    fn from(fault: TierError) -> Self {
        Self::Fault(fault)
    }
}

/// Files of one folder, and those in its sub-folders.
pub(super) struct Files<'a> {
    pub(super) dir: &'a Path,
    /// Names of tensor files in `dir`.
    pub(super) files: &'a [String],
    /// All names in `dir`.
    pub(super) siblings: &'a [String],
    pub(super) below: &'a [Below],
}

impl Files<'_> {
    /// Reads them as one model: those of the folder, and those below it where the first are no
    /// whole model alone.
    ///
    /// # Errors
    /// `ambiguous` where they may be several models, or a part of one; what is wrong with a file.
    pub(super) fn collect(&self) -> Result<Collected, TierError> {
        self.gather().map_err(|refusal| match refusal {
            Refusal::Twice(reason) | Refusal::NotOne(reason) => self.ambiguous(&reason),
            Refusal::Fault(fault) => fault,
        })
    }

    /// The same; `None` where they are no whole model together, so that those below have perhaps
    /// nothing to do with those of the folder.
    ///
    /// # Errors
    /// `ambiguous` where a tensor is in two files; what is wrong with a file.
    pub(super) fn collect_whole(&self) -> Result<Option<Collected>, TierError> {
        match self.gather() {
            Ok(collected) => Ok(Some(collected)),
            Err(Refusal::NotOne(_)) => Ok(None),
            Err(Refusal::Twice(reason)) => Err(self.ambiguous(&reason)),
            Err(Refusal::Fault(fault)) => Err(fault),
        }
    }

    fn ambiguous(&self, reason: &str) -> TierError {
        let reason = format!(
            "{} safetensors files without an index ({}): {reason}",
            self.files.len() + self.below.len(),
            list(self.files)
        );
        TierError::Ambiguous { path: self.dir.to_owned(), reason }
    }

    fn gather(&self) -> Result<Collected, Refusal> {
        let Some(config) = CheckpointConfig::read(&self.dir.join("config.json"))? else {
            let reason = "no config.json says whether they are one model";
            return Err(Refusal::NotOne(reason.to_owned()));
        };
        let mut names = Names::default();
        let mut collected = Collected::default();
        for file in self.files {
            names.add(&mut collected, &self.dir.join(file), self.siblings)?;
        }
        if missing_dense(&collected, &config).is_some() || missing_experts(&collected, &config) {
            for (file, beside) in self.below {
                names.add(&mut collected, file, beside)?;
            }
        }
        if let Some(missing) = missing_dense(&collected, &config) {
            return Err(Refusal::NotOne(format!("{missing}, so they are no whole model")));
        }
        if let Some(missing) = self.missing_number() {
            return Err(Refusal::NotOne(format!("{missing} is not among them")));
        }
        if let Some((name, tensor)) = collected.spine.iter().find(|(name, _)| !of_a_model(name)) {
            let file = collected.path_of(tensor.extent.file, self.dir).display();
            return Err(Refusal::NotOne(format!("{name} (in {file}) is of no text model's")));
        }
        let count = collected.files.len();
        if count > 1 {
            collected.notices.push(Notice::info(format!(
                "{}: {count} files without an index are one model: no name is in two of them",
                self.dir.display()
            )));
        }
        Ok(collected)
    }

    /// The first name that a numbered set (`x-00001-of-00004.safetensors`) lacks: a part of the
    /// dense tensors of a layer would otherwise be missed only when it is wanted.
    fn missing_number(&self) -> Option<String> {
        let below: BTreeSet<&Rc<[String]>> = self.below.iter().map(|(_, names)| names).collect();
        let folders = below.into_iter().flat_map(|names| [&names[..]]).chain([self.siblings]);
        folders.into_iter().find_map(|names| {
            let mut sets: BTreeMap<(&str, u64), BTreeSet<u64>> = BTreeMap::new();
            for name in names.iter().filter(|name| is_tensor_file(name)) {
                if let Some(ShardName { base, number, total }) = ShardName::of(name) {
                    sets.entry((base, total)).or_default().insert(number);
                }
            }
            let (&(base, total), numbers) =
                sets.iter().find(|((_, total), numbers)| (numbers.len() as u64) < *total)?;
            let number = (1..=total).find(|number| !numbers.contains(number))?;
            Some(format!("{base}-{number:05}-of-{total:05}.safetensors"))
        })
    }
}

/// Which file each name was in.
#[derive(Default)]
struct Names {
    file_of: HashMap<String, u32>,
}

impl Names {
    fn add(
        &mut self,
        collected: &mut Collected,
        path: &Path,
        siblings: &[String],
    ) -> Result<(), Refusal> {
        let index = collected.files.len() as u32;
        let mut twice = None;
        let mut visit = |name: &str| match self.file_of.entry(name.to_owned()) {
            Entry::Vacant(entry) => {
                entry.insert(index);
            }
            Entry::Occupied(entry) => {
                twice.get_or_insert_with(|| (name.to_owned(), *entry.get()));
            }
        };
        let added = collected.add_file(path, siblings, &mut visit);
        if let Some((name, other)) = twice {
            let (path, other) = (path.display(), collected.path_of(other, path).display());
            return Err(Refusal::Twice(format!("{name} is in {other} and in {path}")));
        }
        Ok(added?)
    }
}

/// What a whole model of this config has beside its experts, and these files have not.
fn missing_dense(collected: &Collected, config: &CheckpointConfig) -> Option<String> {
    let there = |name: &str| collected.spine.contains_key(name);
    let tied = config.tie_word_embeddings.is_some_and(|setting| setting.value);
    let wanted = ["embed_tokens.weight", "norm.weight", "lm_head.weight"];
    let wanted = &wanted[..if tied { 2 } else { 3 }];
    if let Some(name) = wanted.iter().find(|name| !there(name)) {
        return Some(format!("none of them holds {name}"));
    }
    let Some(layers) = config.num_hidden_layers else {
        return Some("config.json has no num_hidden_layers".to_owned());
    };
    let found: BTreeSet<u64> =
        collected.spine.keys().filter_map(|name| spine_layer(name)).collect();
    let absent = (0..u64::from(layers)).find(|layer| !found.contains(layer))?;
    Some(format!("none of them holds a dense tensor of layer {absent} of {layers}"))
}

/// Whether a layer has none of the experts that the config gives it. Which one of several is
/// missing is told when they are put together.
fn missing_experts(collected: &Collected, config: &CheckpointConfig) -> bool {
    let parts = collected.parts.iter().map(|part| part.layer);
    let stacks = collected.stacks.iter().map(|stack| stack.layer);
    let found: BTreeSet<u16> = parts.chain(stacks).collect();
    config.expert_layers.iter().flatten().any(|layer| !found.contains(layer))
}

fn of_a_model(name: &str) -> bool {
    ROOTS.contains(&name.split('.').next().unwrap_or(name))
}
