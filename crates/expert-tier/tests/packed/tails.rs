//! Experts that do not fill their last 2 MiB window.

use expert_tier::observe::SystemRoot;
use expert_tier::pack::{
    PackExpert, PackFile, PackOptions, PackPart, PackSource, PackTensor, pack_from,
};
use expert_tier::pool::{Dtype, PartRole, Pool};
use expert_tier::{Admission, Snapshot, Tier, TierConfig, TierError};
use router_trace::ExpertId;

const EXPERTS: u16 = 3;
/// Of one part; three make one window and a quarter.
const ROWS: u32 = 428;
const ROLES: [PartRole; 3] = [PartRole::Gate, PartRole::Up, PartRole::Down];
const COLS: u32 = 1024;
const MIB: u64 = 1 << 20;

struct Ragged;

impl PackSource for Ragged {
    fn identity(&self) -> Vec<String> {
        vec!["ragged".to_owned()]
    }

    fn experts(&self) -> Vec<PackExpert> {
        let part = |role| PackPart { role, dtype: Dtype::Bf16, rows: ROWS, cols: COLS };
        let expert = |index| ExpertId::new(0, index);
        (0..EXPERTS)
            .map(|index| PackExpert { id: expert(index), parts: ROLES.map(part).to_vec() })
            .collect()
    }

    fn read_part(&self, id: ExpertId, role: PartRole, out: &mut [u8]) -> Result<(), TierError> {
        out.chunks_mut(2).zip(0_u32..).for_each(|(pair, number)| {
            pair.copy_from_slice(
                &number.wrapping_mul(u32::from(id.index) * 3 + role as u32 + 1).to_le_bytes()[..2],
            );
        });
        Ok(())
    }

    fn spine(&self) -> Vec<PackTensor> {
        vec![PackTensor { name: "norm.weight".to_owned(), dtype: Dtype::Bf16, shape: vec![8] }]
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

fn adopt_all(tier: &Tier) -> Snapshot {
    let before = tier.snapshot();
    let adopted = tier.adopt_batch(0, &[0, 1, 2]).unwrap();
    for expert in adopted.experts() {
        for part in expert.parts() {
            let bytes = part.bytes.host().unwrap();
            let mut expected = vec![0; bytes.len()];
            Ragged.read_part(expert.id(), part.role, &mut expected).unwrap();
            assert!(bytes == expected, "{} {:?}", expert.id(), part.role);
        }
    }
    tier.snapshot() - before
}

#[test]
fn whole_tails_bring_the_same_bytes_from_the_device_and_leave_nothing_behind() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let out = dir.path().join("pool");
    pack_from(&Ragged, &out, &PackOptions::default(), |_| ()).unwrap();
    let pool = Pool::open(&out).unwrap();
    let bytes = u64::from(EXPERTS) * u64::from(3 * ROWS * COLS * 2);
    assert_eq!(pool.layout().total_bytes(), bytes);
    for admission in [Admission::Admit, Admission::DropBehind] {
        for whole_tails in [Some(true), Some(false), None] {
            let config = TierConfig { admission, whole_tails, ..TierConfig::default() };
            let tier = Tier::open(pool.clone(), config).unwrap();
            if tier.evict(None).unwrap().resident_bytes > 0 {
                println!("SKIPPED: this file system keeps its pages");
                return;
            }
            let device = tier.device_counters(&SystemRoot::default()).ok();
            let found = adopt_all(&tier);
            assert_eq!((found.cold_experts, found.missing_bytes), (u64::from(EXPERTS), bytes));
            if let Some(read) = device.and_then(|counters| counters.read_bytes().ok()) {
                // Others may read as well; whole windows of data would be 1.6 times the bytes.
                assert!(read >= bytes, "{read} of {bytes}");
            }
            let kept = tier.residency(None).unwrap().resident_bytes;
            assert_eq!(kept, if admission == Admission::Admit { bytes } else { 0 });
            let mapped = mapped_mib(&out);
            if tier.huge_folios() && mapped > 0 && admission == Admission::Admit {
                // 2 MiB entries: with the tails, three experts and the holes behind two of them.
                let whole = whole_tails.unwrap_or(mapped > u64::from(EXPERTS) * 2);
                assert_eq!(mapped >= 10, whole, "{mapped} MiB by 2 MiB entries");
            }
            if admission == Admission::Admit {
                assert_eq!(adopt_all(&tier).warm_experts, u64::from(EXPERTS));
                assert_eq!(tier.evict(Some(&[ExpertId::new(0, 1)])).unwrap().resident_bytes, 0);
                assert_eq!(adopt_all(&tier).cold_experts, 1);
            }
            assert_eq!(tier.evict(None).unwrap().resident_bytes, 0);
        }
    }
}

/// MiB of the pool's expert file that 2 MiB entries of this process map.
fn mapped_mib(pool: &std::path::Path) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let file = pool.join("experts.bin").canonicalize().unwrap();
    let (mut inside, mut kb) = (false, 0);
    for line in text.lines() {
        if let Some(found) = line.strip_prefix("FilePmdMapped:") {
            let found = found.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
            kb += if inside { found } else { 0 };
        } else if line.split(' ').next().is_some_and(|word| word.contains('-')) {
            inside = line.ends_with(&*file.to_string_lossy());
        }
    }
    kb * 1024 / MIB
}
