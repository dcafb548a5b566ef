use super::machine::MachineFacts;
use expert_tier::host::{Host, Storage};
use expert_tier::observe::{MemoryLimits, Pressure, ProcessLimits, SystemRoot, Unavailable};
use expert_tier::{Admission, FillMethod, Pool, ProbeKind, Tier, TierConfig};
use serde::Serialize;
use std::path::PathBuf;

/// Everything that was found; what cannot be known says why.
#[derive(Debug, Serialize)]
pub(super) struct Facts {
    pub(super) host: Host,
    pub(super) process_limits: ProcessLimits,
    pub(super) memory_limits: MemoryLimits,
    pub(super) headroom_bytes: Option<u64>,
    pub(super) memory_pressure: Pressure,
    pub(super) io_pressure: Pressure,
    pub(super) pool: PoolFacts,
    pub(super) machine: MachineFacts,
}

#[derive(Debug, Serialize)]
pub(super) struct PoolFacts {
    pub(super) path: PathBuf,
    pub(super) files: usize,
    pub(super) experts: usize,
    pub(super) expert_bytes: u64,
    pub(super) spine_bytes: u64,
    pub(super) storage: Result<Storage, String>,
    /// What a tier over this pool uses, or why there can be none.
    pub(super) tier: Result<TierFacts, String>,
    /// Why the `direct` arm cannot run; `null` if it can.
    pub(super) direct_refused: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct TierFacts {
    pub(super) fill_method: FillMethod,
    pub(super) probe: Option<ProbeKind>,
    pub(super) huge_folios: bool,
    /// Experts in the page cache right now.
    pub(super) resident_bytes: Result<u64, String>,
    /// Why the devices' counters cannot be read; `null` if they can.
    pub(super) device_counters_unavailable: Option<Unavailable>,
    pub(super) notices: Vec<String>,
}

impl Facts {
    pub(super) fn gather(pool: &Pool) -> Self {
        let root = SystemRoot::default();
        let memory_limits = MemoryLimits::read(&root);
        let tier = Tier::open(pool.clone(), TierConfig::default());
        let direct = TierConfig { admission: Admission::Direct, ..TierConfig::default() };
        // The file system of the experts, which may not be that of the folder.
        let place = pool.files().first().map_or(pool.root(), |file| file.path.as_path());
        let host = Host::probe(&root);
        Self {
            machine: MachineFacts::gather(pool, &host, &root),
            host,
            process_limits: ProcessLimits::read(&root),
            headroom_bytes: memory_limits.headroom_bytes(),
            memory_limits,
            memory_pressure: Pressure::memory(&root),
            io_pressure: Pressure::io(&root),
            pool: PoolFacts {
                path: pool.root().to_owned(),
                files: pool.files().len(),
                experts: pool.layout().total_experts(),
                expert_bytes: pool.layout().total_bytes(),
                spine_bytes: pool.spine().values().map(|tensor| tensor.extent.len).sum(),
                storage: Storage::probe(place, &root).map_err(|error| error.to_string()),
                tier: tier.map(|tier| TierFacts::of(&tier, &root)).map_err(|e| e.to_string()),
                direct_refused: Tier::open(pool.clone(), direct).err().map(|e| e.to_string()),
            },
        }
    }
}

impl TierFacts {
    fn of(tier: &Tier, root: &SystemRoot) -> Self {
        let resident = tier.residency(None).map(|found| found.resident_bytes);
        Self {
            fill_method: tier.fill_method(),
            probe: tier.probe(),
            huge_folios: tier.huge_folios(),
            resident_bytes: resident.map_err(|error| error.to_string()),
            device_counters_unavailable: tier.device_counters(root).err(),
            notices: tier.notices().iter().map(|notice| notice.text.clone()).collect(),
        }
    }
}
