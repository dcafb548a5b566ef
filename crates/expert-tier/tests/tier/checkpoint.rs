//! A checkpoint made of a pattern, so that every byte an expert shows can be predicted.

use expert_tier::pool::PartRole;
use router_trace::ExpertId;
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;

pub(crate) const LAYERS: u16 = 2;
pub(crate) const EXPERTS: u16 = 6;
pub(crate) const HIDDEN: usize = 1000;
pub(crate) const INTERMEDIATE: usize = 760;

/// A part's bytes: 32-bit words that count up from a start of its own.
pub(crate) fn pattern(id: ExpertId, role: PartRole) -> Vec<u8> {
    let start = (u32::from(id.layer) << 28) | (u32::from(id.index) << 23) | ((role as u32) << 20);
    (0..(HIDDEN * INTERMEDIATE / 2) as u32).flat_map(|word| (start ^ word).to_le_bytes()).collect()
}

/// One BF16 checkpoint of about 55 MB: 12 experts of 4.6 MB at offsets that nothing is aligned to.
pub(crate) fn write_checkpoint(dir: &Path) {
    let mut tensors = Vec::new();
    for layer in 0..LAYERS {
        for index in 0..EXPERTS {
            let id = ExpertId::new(layer, index);
            let roles = [PartRole::Gate, PartRole::Up, PartRole::Down];
            for (role, name) in roles.into_iter().zip(["gate", "up", "down"]) {
                let shape = match role {
                    PartRole::Down => vec![HIDDEN, INTERMEDIATE],
                    _ => vec![INTERMEDIATE, HIDDEN],
                };
                let name = format!("model.layers.{layer}.mlp.experts.{index}.{name}_proj.weight");
                tensors.push((name, shape, pattern(id, role)));
            }
        }
    }
    tensors.push(("model.norm.weight".to_owned(), vec![HIDDEN], vec![7; 2 * HIDDEN]));
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::BF16, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
}
