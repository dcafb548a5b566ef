//! The largest checkpoint there is has half a million tensors in 96 shards: opening it must
//! cost neither seconds nor memory.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{Tensor, tensor, write_sparse};
use expert_tier::Pool;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

const LAYERS: usize = 92;
const EXPERTS: usize = 896;
const SHARDS: usize = 96;

fn status_kib(key: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn tensors(shard: usize) -> Vec<Tensor> {
    let prefix = "language_model.model";
    let mut tensors = Vec::new();
    for expert in
        (0..LAYERS * EXPERTS).filter(|expert| expert * SHARDS / (LAYERS * EXPERTS) == shard)
    {
        let (layer, index) = (1 + expert / EXPERTS, expert % EXPERTS);
        let block = format!("{prefix}.layers.{layer}.block_sparse_moe.experts.{index}");
        for name in ["w1", "w2", "w3"] {
            tensors.push(tensor(format!("{block}.{name}.weight_packed"), "U8", &[8, 4]));
            tensors.push(tensor(format!("{block}.{name}.weight_scale"), "U8", &[8, 1]));
        }
    }
    for dense in 0..57 {
        let name = format!("{prefix}.layers.{shard}.self_attn.t{dense}.weight");
        tensors.push(tensor(name, "BF16", &[4]));
    }
    tensors
}

fn write_checkpoint(dir: &Path) -> usize {
    let mut index = BufWriter::new(File::create(dir.join("model.safetensors.index.json")).unwrap());
    write!(index, "{{\"metadata\":{{}},\"weight_map\":{{").unwrap();
    let mut count = 0;
    for shard in 0..SHARDS {
        let name = format!("model-{:05}-of-{SHARDS:05}.safetensors", shard + 1);
        let tensors = tensors(shard);
        write_sparse(&dir.join(&name), &tensors);
        for tensor in &tensors {
            let comma = if count == 0 { "" } else { "," };
            write!(index, "{comma}\n\"{}\":\"{name}\"", tensor.name).unwrap();
            count += 1;
        }
    }
    write!(index, "}}}}").unwrap();
    index.flush().unwrap();
    count
}

#[test]
fn half_a_million_tensors_open_quickly() {
    let dir = tempfile::tempdir().unwrap();
    let count = write_checkpoint(dir.path());
    assert!(count >= 500_000, "{count}");
    // 5 resets the high-water mark; where that is not allowed the figure is only larger.
    fs::write("/proc/self/clear_refs", "5").ok();
    let before = status_kib("VmRSS:");
    let start = Instant::now();
    let pool = Pool::open(dir.path()).unwrap();
    let took = start.elapsed();
    let grown_mib = status_kib("VmHWM:").saturating_sub(before) / 1024;
    println!("{count} tensors: {} ms, peak memory +{grown_mib} MiB", took.as_millis());
    assert_eq!(pool.layout().total_experts(), LAYERS * EXPERTS);
    assert_eq!(pool.files().len(), SHARDS);
    // Half of it when optimised; the bound leaves room for a busy machine.
    assert!(took.as_secs() < 15, "{took:?}");
    assert!(grown_mib < 300, "{grown_mib} MiB");
}
