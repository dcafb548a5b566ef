//! Experts larger than one advice call can ask for.

use super::*;
use expert_tier::host::Storage;
use expert_tier::observe::SystemRoot;
use safetensors::tensor::{Dtype, TensorView};

/// Values of a part's side: three BF16 parts make an expert of 24 MiB.
const SIDE: usize = 2048;

#[test]
fn one_call_is_clipped_and_pieces_are_not() {
    let dir = tempfile::tempdir_in(parent()).unwrap();
    let bytes = vec![1; 2 * SIDE * SIDE];
    let names = (0..2).flat_map(|expert| {
        ["gate", "up", "down"]
            .map(|part| format!("model.layers.0.mlp.experts.{expert}.{part}_proj.weight"))
    });
    let names: Vec<String> = names.collect();
    let tensors = names.iter().map(|name| {
        (name.as_str(), TensorView::new(Dtype::BF16, vec![SIDE, SIDE], &bytes).unwrap())
    });
    let path = dir.path().join("model.safetensors");
    safetensors::serialize_to_file(tensors, None, &path).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let storage = Storage::probe(&path, &SystemRoot::default()).unwrap();
    let window = storage.read_ahead_kb.ok().max(storage.max_sectors_kb.ok());
    let tier = open(&dir, TierConfig::default());
    let id = ExpertId::new(0, 1);
    let advise = |form| {
        if !cold(&tier, "clipped") {
            return None;
        }
        Some(tier.advisor().advise(id, form, &mut keep_on()).unwrap())
    };
    let Some(pieces) = advise(AdviceForm::Pieces) else { return };
    assert_eq!(pieces.brought_bytes, pieces.expert_bytes);
    assert_eq!(tier.advisor().missing_bytes(id).unwrap(), 0);
    let single = advise(AdviceForm::SingleCall).unwrap();
    assert_eq!(single.asked_bytes, single.expert_bytes);
    match window.map(|kb| kb * 1024) {
        // One extent: the parts lie one behind the other. A folio may reach past the window.
        Some(window) if window + (2 << 20) < single.expert_bytes => {
            println!("one call brings {} of {}", single.brought_bytes, single.expert_bytes);
            assert!(single.brought_bytes <= window + (2 << 20), "{single:?}, window {window}");
        }
        window => println!("SKIPPED clipping: {} bytes, window {window:?}", single.expert_bytes),
    }
}
