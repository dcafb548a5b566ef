//! From parts to complete experts, and from layers to the set the config asks for.

use super::checks;
use super::coalesce::coalesce;
use super::collect::{Collected, Origin, RawPart};
use super::config::{CheckpointConfig, Family};
use super::expert::{ExpertLayout, Part, PartRole, PoolLayout};
use super::{SetAside, names, packed, stacks};
use crate::error::{ExpertSetProblem, TierError};
use crate::notice::Notice;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The layout and what was left out of it.
pub(super) struct Assembled {
    pub(super) layout: PoolLayout,
    /// Tensors of layers behind the model's last one.
    pub(super) beyond: SetAside,
}

/// Parts of one layer, sorted by expert and role.
type Layers = BTreeMap<u16, Vec<RawPart>>;

/// Builds the layout. Layers behind the last one are taken out of `collected`, too.
pub(super) fn assemble(
    collected: &mut Collected,
    config: Option<&CheckpointConfig>,
    root: &Path,
) -> Result<Assembled, TierError> {
    let mut parts = std::mem::take(&mut collected.parts);
    parts.extend(stacks::expand(collected, config)?);
    parts.sort_unstable_by_key(RawPart::key);
    check_unique(&parts, collected)?;
    let mut layers = Layers::new();
    for layer in parts.chunk_by(|a, b| a.layer == b.layer) {
        layers.insert(layer[0].layer, layer.to_vec());
    }
    drop(parts);
    let mut beyond = SetAside::default();
    let extra_layers = take_beyond(&mut layers, collected, config, &mut beyond);
    let set = Set { config, root };
    set.check_layers(&layers)?;
    let mut built = BTreeMap::new();
    for (layer, parts) in layers {
        built.insert(layer, set.build_layer(layer, &parts, collected)?);
    }
    Ok(Assembled { layout: PoolLayout::new(built, extra_layers), beyond })
}

/// The stored name behind a part.
pub(super) fn tensor_name(part: &RawPart, collected: &Collected) -> String {
    match part.origin {
        Origin::Tensor(name) => name.to_string(),
        Origin::Stack(index) => collected.stacks[index as usize].name.clone(),
        Origin::Packed => packed::part_name(part),
    }
}

/// The file that holds a part.
pub(super) fn part_path(part: &Part, collected: &Collected) -> PathBuf {
    collected.path_of(part.extent.file, Path::new("")).to_owned()
}

fn check_unique(parts: &[RawPart], collected: &Collected) -> Result<(), TierError> {
    let Some([a, b]) = parts.array_windows::<2>().find(|[a, b]| a.key() == b.key()) else {
        return Ok(());
    };
    let (first, second) = (tensor_name(a, collected), tensor_name(b, collected));
    let other = part_path(&a.part, collected);
    let path = part_path(&b.part, collected);
    if first == second {
        let other = Some(other.display().to_string());
        return Err(TierError::DuplicateName { path, name: second, other });
    }
    Err(TierError::Ambiguous {
        path,
        reason: format!(
            "{second} and {first} (in {}) are both the {:?} tensor of layer {} expert {}",
            other.display(),
            b.part.role,
            b.layer,
            b.index
        ),
    })
}

/// Takes the layers behind the model's last one out: those that the config announces are
/// counted, others are warned about.
fn take_beyond(
    layers: &mut Layers,
    collected: &mut Collected,
    config: Option<&CheckpointConfig>,
    beyond: &mut SetAside,
) -> BTreeMap<u16, usize> {
    let Some((config, last)) = config.and_then(|config| Some((config, config.num_hidden_layers?)))
    else {
        return BTreeMap::new();
    };
    let announced = u64::from(last) + u64::from(config.num_nextn_predict_layers);
    let mut extra = BTreeMap::new();
    let mut unannounced = BTreeSet::new();
    for (layer, parts) in layers.split_off(&last) {
        for part in &parts {
            beyond.add(&tensor_name(part, collected), part.part.extent.len);
        }
        if u64::from(layer) < announced {
            extra.insert(layer, parts.chunk_by(|a, b| a.index == b.index).count());
        } else {
            unannounced.insert(u64::from(layer));
        }
    }
    collected.spine.retain(|name, tensor| match names::spine_layer(name) {
        Some(layer) if layer >= u64::from(last) => {
            beyond.add(&tensor.stored_name, tensor.extent.len);
            if layer >= announced {
                unannounced.insert(layer);
            }
            false
        }
        _ => true,
    });
    collected.weight_shapes.retain(|shape| shape.id.layer < last);
    if !unannounced.is_empty() {
        let named: Vec<String> = unannounced.iter().take(8).map(u64::to_string).collect();
        collected.notices.push(Notice::warning(format!(
            "{}: layer {}{} of the checkpoint lies beyond num_hidden_layers ({last}) and \
             num_nextn_predict_layers names no such extra layer: ignored",
            config.path.display(),
            named.join(", "),
            if unannounced.len() > named.len() { " and more" } else { "" },
        )));
    }
    extra
}

struct Set<'a> {
    config: Option<&'a CheckpointConfig>,
    root: &'a Path,
}

impl Set<'_> {
    fn error(&self, layer: u16, problem: ExpertSetProblem) -> TierError {
        TierError::ExpertSet { path: self.root.to_owned(), layer, problem }
    }

    /// The number of experts, where the family's meaning of the key is known.
    fn wanted_experts(&self) -> Option<usize> {
        let config = self.config.filter(|config| config.family != Family::Other)?;
        config.n_experts.map(usize::from)
    }

    fn check_layers(&self, layers: &Layers) -> Result<(), TierError> {
        let Some(wanted) = self.config.and_then(|config| config.expert_layers.as_ref()) else {
            return Ok(());
        };
        let experts = self.wanted_experts().unwrap_or(0);
        if let Some(&layer) = wanted.iter().find(|layer| !layers.contains_key(layer)) {
            return Err(self.error(layer, ExpertSetProblem::NoExperts { wanted: experts }));
        }
        let dense = layers.iter().find(|(layer, _)| wanted.binary_search(layer).is_err());
        match dense {
            Some((&layer, parts)) => {
                let found = parts.chunk_by(|a, b| a.index == b.index).count();
                Err(self.error(layer, ExpertSetProblem::ShouldBeDense { found }))
            }
            None => Ok(()),
        }
    }

    fn build_layer(
        &self,
        layer: u16,
        parts: &[RawPart],
        collected: &Collected,
    ) -> Result<Vec<ExpertLayout>, TierError> {
        let found = parts.chunk_by(|a, b| a.index == b.index).count();
        let highest = parts.last().map_or(0, |part| usize::from(part.index) + 1);
        let wanted = self.wanted_experts().unwrap_or(highest);
        let mut experts = Vec::with_capacity(found);
        for (index, parts) in parts.chunk_by(|a, b| a.index == b.index).enumerate() {
            if usize::from(parts[0].index) != index {
                return Err(self.error(layer, ExpertSetProblem::Missing { index, wanted, found }));
            }
            if index >= wanted {
                return Err(self.error(layer, ExpertSetProblem::TooMany { index, wanted, found }));
            }
            experts.push(self.build_expert(parts, collected)?);
        }
        if found < wanted {
            let problem = ExpertSetProblem::Missing { index: found, wanted, found };
            return Err(self.error(layer, problem));
        }
        Ok(experts)
    }

    fn build_expert(
        &self,
        parts: &[RawPart],
        collected: &Collected,
    ) -> Result<ExpertLayout, TierError> {
        for role in [PartRole::Gate, PartRole::Up, PartRole::Down] {
            if !parts.iter().any(|part| part.part.role == role) {
                let (layer, index) = (parts[0].layer, parts[0].index);
                return Err(self.error(layer, ExpertSetProblem::NoPart { index, role }));
            }
        }
        checks::check_expert(self.config, parts, collected)?;
        let extents = coalesce(parts.iter().map(|part| part.part.extent));
        Ok(ExpertLayout { parts: parts.iter().map(|part| part.part).collect(), extents })
    }
}
