//! From a tensor's name in some dialect to what it is.

use super::expert::PartRole;
use crate::error::TierError;
use router_trace::ExpertId;
use std::fmt;
use std::path::Path;

/// Prefixes of the language model, longest first: the first that fits is stripped.
const PREFIXES: [&str; 5] =
    ["model.language_model.", "language_model.model.", "language_model.", "model.", ""];

/// What blocks of routed experts are called inside a layer. `switch_mlp` is the stacked form
/// that mlx writes.
const BLOCKS: [&str; 4] =
    ["mlp.experts.", "block_sparse_moe.experts.", "ffn.experts.", "mlp.switch_mlp."];

const PROJECTIONS: [(&str, PartRole); 6] = [
    ("gate_proj", PartRole::Gate),
    ("up_proj", PartRole::Up),
    ("down_proj", PartRole::Down),
    ("w1", PartRole::Gate),
    ("w3", PartRole::Up),
    ("w2", PartRole::Down),
];

const SUFFIXES: [(&str, Piece); 6] = [
    ("weight", Piece::Weight),
    ("weight_packed", Piece::Weight),
    ("weight_scale_inv", Piece::Scale),
    ("weight_scale", Piece::Scale),
    ("scale", Piece::Scale),
    ("weight_shape", Piece::Shape),
];

/// First components (without a prefix) of other models in the same file: vision and audio
/// towers, and separate heads that predict further tokens.
const FOREIGN: [&str; 10] = [
    "vision_tower",
    "vision_model",
    "visual",
    "mm_projector",
    "multi_modal_projector",
    "audio_tower",
    "audio_model",
    "image_newline",
    "mtp",
    "draft",
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Piece {
    Weight,
    Scale,
    Shape,
}

/// Which tensor of which expert, small enough to keep one for every tensor; its text is the
/// stored name again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ExpertName {
    pub(super) id: ExpertId,
    prefix: u8,
    block: u8,
    projection: u8,
    suffix: u8,
}

impl ExpertName {
    pub(super) fn role(self) -> PartRole {
        let weight = PROJECTIONS[usize::from(self.projection)].1;
        if self.piece() == Piece::Scale { scale_of(weight) } else { weight }
    }

    /// Whether it is the logical shape of a packed weight: metadata, never served.
    pub(super) fn is_shape(self) -> bool {
        self.piece() == Piece::Shape
    }

    fn piece(self) -> Piece {
        SUFFIXES[usize::from(self.suffix)].1
    }
}

impl fmt::Display for ExpertName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = PREFIXES[usize::from(self.prefix)];
        let block = BLOCKS[usize::from(self.block)];
        let projection = PROJECTIONS[usize::from(self.projection)].0;
        let suffix = SUFFIXES[usize::from(self.suffix)].0;
        let ExpertId { layer, index } = self.id;
        write!(f, "{prefix}layers.{layer}.{block}{index}.{projection}.{suffix}")
    }
}

fn scale_of(weight: PartRole) -> PartRole {
    match weight {
        PartRole::Gate | PartRole::GateScale => PartRole::GateScale,
        PartRole::Up | PartRole::UpScale => PartRole::UpScale,
        PartRole::Down | PartRole::DownScale => PartRole::DownScale,
    }
}

/// What a stack of all experts of a layer holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StackKind {
    /// One projection, `[experts, rows, columns]`.
    One(PartRole),
    /// Gate rows, then up rows.
    GateUp,
}

/// What a tensor is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum TensorName<'a> {
    /// A tensor of one expert.
    Expert(ExpertName),
    /// All experts of a layer in one tensor.
    Stack {
        layer: u16,
        kind: StackKind,
        /// The dialect stores `[out, in]` in every model.
        row_major: bool,
    },
    /// Under a block of experts, but of a kind this version does not serve.
    UnknownExpertTensor,
    /// Of another model in the same files.
    Foreign,
    /// Used by every token; the name without its prefix.
    Spine(&'a str),
}

/// Says what the tensor `name` is.
///
/// # Errors
///
/// `limit` for layer or expert numbers above 65535.
pub(super) fn classify<'a>(name: &'a str, path: &Path) -> Result<TensorName<'a>, TierError> {
    let (prefix, rest) = strip_prefix(name);
    let head = rest.split('.').next().unwrap_or(rest);
    if FOREIGN.contains(&head) {
        return Ok(TensorName::Foreign);
    }
    let Some((layer, inner)) = rest.strip_prefix("layers.").and_then(split_number) else {
        return Ok(TensorName::Spine(rest));
    };
    let Some((block, tail)) =
        (0_u8..).zip(BLOCKS).find_map(|(block, text)| Some((block, inner.strip_prefix(text)?)))
    else {
        return Ok(TensorName::Spine(rest));
    };
    let layer = narrow(layer, "layer", name, path)?;
    let Some((index, tail)) = split_number(tail) else {
        return Ok(stack(layer, block, tail));
    };
    let index = narrow(index, "expert", name, path)?;
    let Some((projection, suffix)) = tail.split_once('.').and_then(|(projection, suffix)| {
        Some((
            position(PROJECTIONS.iter().map(|known| known.0), projection)?,
            position(SUFFIXES.iter().map(|known| known.0), suffix)?,
        ))
    }) else {
        return Ok(TensorName::UnknownExpertTensor);
    };
    let id = ExpertId::new(layer, index);
    Ok(TensorName::Expert(ExpertName { id, prefix, block, projection, suffix }))
}

/// The layer number of a spine tensor, by its canonical name.
pub(super) fn spine_layer(canonical: &str) -> Option<u64> {
    canonical.strip_prefix("layers.").and_then(split_number).map(|(layer, _)| layer)
}

fn strip_prefix(name: &str) -> (u8, &str) {
    (0_u8..)
        .zip(PREFIXES)
        .find_map(|(index, prefix)| Some((index, name.strip_prefix(prefix)?)))
        .unwrap_or((0, name))
}

fn stack<'a>(layer: u16, block: u8, tail: &str) -> TensorName<'a> {
    let row_major = BLOCKS[usize::from(block)] == "mlp.switch_mlp.";
    let tail = tail.strip_suffix(".weight").unwrap_or(tail);
    let kind = match tail {
        "gate_up_proj" => StackKind::GateUp,
        "gate_proj" => StackKind::One(PartRole::Gate),
        "up_proj" => StackKind::One(PartRole::Up),
        "down_proj" => StackKind::One(PartRole::Down),
        _ => return TensorName::UnknownExpertTensor,
    };
    TensorName::Stack { layer, kind, row_major }
}

/// `12.rest` → (12, `rest`). A number that does not fit 64 bits becomes the largest one, so
/// that the caller's limit names it. Leading zeros are no number: they would be a second
/// spelling of the same layer.
pub(super) fn split_number(text: &str) -> Option<(u64, &str)> {
    let (digits, rest) = text.split_once('.')?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    if !plain || digits.is_empty() || (digits.len() > 1 && digits.starts_with('0')) {
        return None;
    }
    Some((digits.parse().unwrap_or(u64::MAX), rest))
}

pub(super) fn narrow(value: u64, what: &str, name: &str, path: &Path) -> Result<u16, TierError> {
    // The last value stays free so that a count of experts fits 16 bits too.
    match u16::try_from(value) {
        Ok(number) if number < u16::MAX => Ok(number),
        _ => Err(TierError::Limit {
            path: path.to_owned(),
            what: format!("tensor {name}: the {what} number"),
            value,
            most: u64::from(u16::MAX) - 1,
        }),
    }
}

fn position<'a>(mut known: impl Iterator<Item = &'a str>, text: &str) -> Option<u8> {
    known.position(|name| name == text).and_then(|index| u8::try_from(index).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> TensorName<'_> {
        classify(name, Path::new("x")).unwrap()
    }

    #[test]
    fn expert_names_print_as_they_are_stored() {
        for (name, role) in [
            ("model.layers.3.mlp.experts.17.gate_proj.weight", PartRole::Gate),
            ("model.layers.3.mlp.experts.0.up_proj.weight_scale_inv", PartRole::UpScale),
            (
                "language_model.model.layers.60.mlp.experts.383.down_proj.weight_packed",
                PartRole::Down,
            ),
            (
                "model.language_model.layers.1.mlp.experts.2.down_proj.weight_scale",
                PartRole::DownScale,
            ),
            ("layers.0.block_sparse_moe.experts.5.w1.weight", PartRole::Gate),
            ("model.layers.0.block_sparse_moe.experts.5.w2.weight", PartRole::Down),
            ("model.layers.0.block_sparse_moe.experts.5.w3.weight_scale", PartRole::UpScale),
            ("layers.0.ffn.experts.5.w3.scale", PartRole::UpScale),
        ] {
            let TensorName::Expert(expert) = of(name) else { panic!("{name}") };
            assert_eq!((expert.to_string().as_str(), expert.role()), (name, role));
            assert!(!expert.is_shape());
        }
        let TensorName::Expert(shape) = of("model.layers.1.mlp.experts.2.up_proj.weight_shape")
        else {
            panic!()
        };
        assert!(shape.is_shape());
    }

    #[test]
    fn the_spine_loses_its_prefix() {
        for (name, canonical) in [
            ("model.embed_tokens.weight", "embed_tokens.weight"),
            ("language_model.lm_head.weight", "lm_head.weight"),
            ("lm_head.weight", "lm_head.weight"),
            ("model.language_model.norm.weight", "norm.weight"),
            (
                "layers.0.mlp.shared_experts.up_proj.weight",
                "layers.0.mlp.shared_experts.up_proj.weight",
            ),
            ("model.layers.0.mlp.gate.weight", "layers.0.mlp.gate.weight"),
            (
                "model.layers.00.mlp.experts.0.up_proj.weight",
                "layers.00.mlp.experts.0.up_proj.weight",
            ),
            ("", ""),
            ("model.", ""),
            ("layers.", "layers."),
        ] {
            assert_eq!(of(name), TensorName::Spine(canonical), "{name}");
        }
    }

    #[test]
    fn stacks_foreign_and_unknown_tensors_are_told_apart() {
        let gate_up = TensorName::Stack { layer: 4, kind: StackKind::GateUp, row_major: false };
        assert_eq!(of("model.layers.4.mlp.experts.gate_up_proj"), gate_up);
        assert_eq!(of("model.layers.4.mlp.experts.gate_up_proj.weight"), gate_up);
        let down = StackKind::One(PartRole::Down);
        assert_eq!(
            of("model.layers.4.mlp.switch_mlp.down_proj.weight"),
            TensorName::Stack { layer: 4, kind: down, row_major: true }
        );
        for name in [
            "vision_tower.x",
            "model.visual.blocks.0.w",
            "visual.layers.0.mlp.experts.0.up_proj.weight",
        ] {
            assert_eq!(of(name), TensorName::Foreign, "{name}");
        }
        for name in [
            "model.layers.4.mlp.experts.gate_up_proj_blocks",
            "model.layers.4.mlp.experts.0.up_proj.bias",
            "model.layers.4.mlp.experts.0.up_proj",
            "model.layers.4.mlp.switch_mlp.up_proj.scales",
        ] {
            assert_eq!(of(name), TensorName::UnknownExpertTensor, "{name}");
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_named() {
        for name in [
            "model.layers.65535.mlp.experts.0.up_proj.weight",
            "model.layers.0.mlp.experts.65535.up_proj.weight",
            "layers.0.mlp.experts.99999999999999999999999.up_proj.weight",
        ] {
            let error = classify(name, Path::new("f")).unwrap_err();
            assert_eq!(error.kind(), "limit");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
