//! Synthetic pools: the same experts packed and as an ordinary checkpoint. Made once, reused.

use anyhow::{Context, Result, ensure};
use expert_tier::pack::pack_from;
use expert_tier::pack::{PackExpert, PackFile, PackOptions, PackPart, PackSource, PackTensor};
use expert_tier::pool::{Dtype, ExpertLayout, PartRole};
use expert_tier::{Pool, TierError};
use router_trace::ExpertId;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Values in a row of a part.
const COLS: u32 = 1024;
/// Bytes of such a row, in BF16.
const ROW_BYTES: usize = 2 * COLS as usize;
const MARKER: &str = "tier-bench.txt";
const PARTS: [(PartRole, &str); 3] =
    [(PartRole::Down, "down_proj"), (PartRole::Gate, "gate_proj"), (PartRole::Up, "up_proj")];

/// How a pool is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// Every expert at a multiple of 2 MiB.
    Packed,
    /// Safetensors: tensor behind tensor, from an offset that no page starts at.
    Unaligned,
}

/// A pool of experts of one size. Content depends on ids alone: the same in both layouts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) layout: Layout,
    pub(crate) layers: u16,
    pub(crate) experts: u16,
    /// Bytes of one expert: a multiple of 2 KiB.
    pub(crate) expert_bytes: usize,
}

impl Spec {
    pub(crate) const fn of_size(
        name: &'static str,
        layout: Layout,
        experts: u16,
        expert_bytes: usize,
    ) -> Self {
        Self { name, layout, layers: 1, experts, expert_bytes }
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.expert_bytes as u64 * u64::from(self.layers) * u64::from(self.experts)
    }

    fn rows(&self, role: PartRole) -> usize {
        let rows = self.expert_bytes / ROW_BYTES;
        if role == PartRole::Down { rows - 2 * (rows / 3) } else { rows / 3 }
    }

    /// Opens the pool below `dir`, writing it first if it is not there.
    pub(crate) fn open(&self, dir: &Path) -> Result<Pool> {
        let home = dir.join(self.name);
        let marker = format!("{self:?} v1\n");
        if fs::read_to_string(home.join(MARKER)).ok().as_deref() != Some(&marker) {
            self.write(dir, &home).with_context(|| format!("writing {}", home.display()))?;
            fs::write(home.join(MARKER), marker)?;
        }
        let pool = Pool::open(self.path(&home))?;
        let expert = ExpertId::new(0, 0);
        let bytes = pool.layout().expert(expert).map(ExpertLayout::nominal_bytes);
        ensure!(bytes == Some(self.expert_bytes as u64), "{}: {bytes:?} bytes", home.display());
        Ok(pool)
    }

    fn path(&self, home: &Path) -> PathBuf {
        match self.layout {
            Layout::Packed => home.join("pool"),
            Layout::Unaligned => home.join("model.safetensors"),
        }
    }

    fn write(&self, dir: &Path, home: &Path) -> Result<()> {
        fs::create_dir_all(dir)?;
        if home.exists() {
            ensure!(home.join(MARKER).exists(), "exists and is not a pool of this bench");
            fs::remove_dir_all(home)?;
        }
        fs::create_dir_all(home)?;
        // The claim on the folder comes first: what a killed run left behind is ours to replace.
        fs::write(home.join(MARKER), "unfinished\n")?;
        eprintln!("writing {}, {} MiB", home.display(), self.total_bytes() >> 20);
        match self.layout {
            Layout::Packed => {
                pack_from(self, &self.path(home), &PackOptions::default(), |_| ())?;
            }
            Layout::Unaligned => self.write_safetensors(&self.path(home))?,
        }
        Ok(())
    }

    fn ids(&self) -> impl Iterator<Item = ExpertId> + use<> {
        let Self { layers, experts, .. } = *self;
        (0..layers).flat_map(move |layer| (0..experts).map(move |e| ExpertId::new(layer, e)))
    }

    fn write_safetensors(&self, path: &Path) -> Result<()> {
        let mut head = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
        let mut at = 0;
        for id in self.ids() {
            for (role, name) in PARTS {
                let (rows, start) = (self.rows(role), at);
                at += rows * ROW_BYTES;
                let ExpertId { layer, index } = id;
                head.push_str(&format!(
                    ",\"model.layers.{layer}.mlp.experts.{index}.{name}.weight\":{{\"dtype\":\
                     \"BF16\",\"shape\":[{rows},{COLS}],\"data_offsets\":[{start},{at}]}}"
                ));
            }
        }
        head.push('}');
        // The usual alignment of safetensors, 8 bytes, and certainly not that of a page.
        while (head.len() + 8) % 4096 != 1608 {
            head.push(' ');
        }
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
        out.write_all(&(head.len() as u64).to_le_bytes())?;
        out.write_all(head.as_bytes())?;
        for id in self.ids() {
            for (role, _) in PARTS {
                let mut bytes = vec![0; self.rows(role) * ROW_BYTES];
                fill(id, role, &mut bytes);
                out.write_all(&bytes)?;
            }
        }
        // What is not on the device yet cannot be evicted.
        Ok(out.into_inner()?.sync_all()?)
    }
}

/// Numbers without pattern, the same for the same expert and role everywhere.
fn fill(id: ExpertId, role: PartRole, out: &mut [u8]) {
    let seed = (u64::from(id.layer) << 32) | (u64::from(id.index) << 8) | role as u64;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in out.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}

impl PackSource for Spec {
    fn identity(&self) -> Vec<String> {
        vec![format!("{self:?}")]
    }

    fn experts(&self) -> Vec<PackExpert> {
        let part =
            |role| PackPart { role, dtype: Dtype::Bf16, rows: self.rows(role) as u32, cols: COLS };
        let parts = [PartRole::Gate, PartRole::Up, PartRole::Down].map(part);
        self.ids().map(|id| PackExpert { id, parts: parts.to_vec() }).collect()
    }

    fn read_part(&self, id: ExpertId, role: PartRole, out: &mut [u8]) -> Result<(), TierError> {
        fill(id, role, out);
        Ok(())
    }

    fn spine(&self) -> Vec<PackTensor> {
        let name = "norm.weight".to_owned();
        vec![PackTensor { name, dtype: Dtype::Bf16, shape: vec![8] }]
    }

    fn read_spine(&self, _: usize, _: u64, out: &mut [u8]) -> Result<(), TierError> {
        out.fill(0);
        Ok(())
    }

    fn files(&self) -> Result<Vec<PackFile>, TierError> {
        Ok(Vec::new())
    }

    fn check_unchanged(&self) -> Result<(), TierError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expert_tier::{Tier, TierConfig};

    #[test]
    fn both_layouts_hold_the_same_experts_and_are_reused() {
        let dir = tempfile::tempdir().unwrap();
        let size = 32 << 10;
        let packed = Spec::of_size("p", Layout::Packed, 3, size);
        let plain = Spec::of_size("u", Layout::Unaligned, 3, size);
        let sums = [packed, plain].map(|spec| {
            spec.open(dir.path()).unwrap();
            let written = fs::metadata(dir.path().join(spec.name).join(MARKER)).unwrap();
            let pool = spec.open(dir.path()).unwrap();
            let again = fs::metadata(dir.path().join(spec.name).join(MARKER)).unwrap();
            assert_eq!(written.modified().unwrap(), again.modified().unwrap());
            let tier = Tier::open(pool, TierConfig::default()).unwrap();
            let adopted = tier.adopt_batch(0, &[0, 1, 2]).unwrap();
            adopted.experts().map(|expert| crate::consume::expert(&expert)).collect::<Vec<_>>()
        });
        assert_eq!(sums[0], sums[1]);
        assert_ne!(sums[0][0], sums[0][1]);
    }
}
