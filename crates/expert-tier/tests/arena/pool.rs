//! A pool of the traced model's shape with experts of 8 KiB, whose bytes say which they are.

use expert_tier::{Adopted, Pool};
use router_trace::format::{self, OpenOptions};
use router_trace::{Accesses, Demand, ExpertId};
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;
use tempfile::TempDir;

pub(crate) const LAYERS: u16 = 16;
pub(crate) const EXPERTS: u16 = 64;
pub(crate) const EXPERT_BYTES: u64 = 8 << 10;
const PARTS: [(&str, [usize; 2]); 3] =
    [("gate_proj", [16, 64]), ("up_proj", [16, 64]), ("down_proj", [64, 32])];

/// OLMoE: 299 tokens, 16 layers, 8 of 64 experts.
pub(crate) fn olmoe() -> Accesses {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../router-trace/traces/olmoe_299.jsonl.gz");
    let mut options = OpenOptions::default();
    options.shape.n_experts = Some(EXPERTS);
    let reader = format::open(&path, &options).unwrap();
    let header = reader.header().clone();
    let accesses = Accesses::from_passes(&header, reader, Demand::EachToken).unwrap();
    assert_eq!(accesses.keys().len(), 299 * 16 * 8);
    accesses.with_expert_bytes(EXPERT_BYTES)
}

/// In a folder on a real file system: direct reads are no use on a tmpfs.
pub(crate) fn write() -> (TempDir, Pool) {
    let parent = std::env::var_os("TIER_TEST_DIR");
    let dir =
        tempfile::tempdir_in(parent.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into())).unwrap();
    let ids =
        (0..LAYERS).flat_map(|layer| (0..EXPERTS).map(move |index| ExpertId::new(layer, index)));
    let tensors: Vec<_> = ids
        .flat_map(|id| PARTS.map(|(name, shape)| (id, name, shape)))
        .map(|(ExpertId { layer, index }, name, shape)| {
            let path = format!("model.layers.{layer}.mlp.experts.{index}.{name}.weight");
            let len = 2 * shape[0] * shape[1];
            let bytes: Vec<u8> = word(layer, index).into_iter().cycle().take(len).collect();
            (path, shape, bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::BF16, shape.to_vec(), bytes).unwrap())
    });
    let path = dir.path().join("model.safetensors");
    safetensors::serialize_to_file(views, None, &path).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let pool = Pool::open(dir.path()).unwrap();
    (dir, pool)
}

pub(crate) fn assert_bytes(adopted: &Adopted) {
    for expert in adopted.experts() {
        let ExpertId { layer, index } = expert.id();
        let parts = expert.parts().iter().map(|part| part.bytes.host().unwrap());
        let mut len = 0;
        for bytes in parts {
            assert!(bytes.chunks(4).all(|chunk| chunk == word(layer, index)), "{}", expert.id());
            len += bytes.len() as u64;
        }
        assert_eq!(len, EXPERT_BYTES);
    }
}

fn word(layer: u16, index: u16) -> [u8; 4] {
    let [a, b] = layer.to_le_bytes();
    let [c, d] = index.to_le_bytes();
    [a ^ 0xa5, b, c, d ^ 0x5a]
}
