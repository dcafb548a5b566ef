use super::Watched;
use crate::cli::metrics;
use anyhow::Result;
use expert_tier::observe::{
    CastState, FileBudget, Pressure, Unavailable, VmCounters, unevictable_share,
};
use expert_tier::{Residency, Tier};
use router_trace::ExpertId;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Instant;

/// Everything at one moment.
pub(super) struct Sample {
    at: Instant,
    /// By the exporter's names; empty without one.
    tier: BTreeMap<String, f64>,
    vm: Result<VmCounters, Unavailable>,
    device_read_bytes: Option<u64>,
    residency: Option<PoolResidency>,
    now: Now,
}

/// What does not need an interval.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Now {
    /// Memory that files can have.
    pub(super) file_budget: Result<FileBudget, Unavailable>,
    pub(super) unevictable_share: Result<f64, Unavailable>,
    pub(super) memory_pressure: Pressure,
    pub(super) io_pressure: Pressure,
    /// `null` for a kernel without it.
    pub(super) cast: Option<CastState>,
}

/// What the page cache holds of a pool.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PoolResidency {
    pub(super) total: Residency,
    pub(super) layers: Vec<LayerResidency>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct LayerResidency {
    pub(super) layer: u16,
    #[serde(flatten)]
    pub(super) residency: Residency,
}

/// What happened between two samples, a second.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rates {
    pub(super) seconds: f64,
    /// The tier's counters a second, by the exporter's names without `_total`.
    pub(super) tier_per_s: BTreeMap<String, f64>,
    /// The tier's gauges.
    pub(super) tier: BTreeMap<String, f64>,
    /// Adopted experts that were warm, of those adopted meanwhile.
    pub(super) warm_share: Option<f64>,
    /// Time that adoptions waited, of all time.
    pub(super) waiting_share: Option<f64>,
    pub(super) device_read_bytes_per_s: Option<f64>,
    /// Reclaim of the whole machine, pages.
    pub(super) reclaim: Result<VmCounters, Unavailable>,
    pub(super) pool: Option<PoolResidency>,
    #[serde(flatten)]
    pub(super) now: Now,
}

impl Sample {
    pub(super) fn take(watched: &Watched) -> Result<Self> {
        let root = &watched.root;
        let tier = match &watched.address {
            Some(address) => metrics::fetch(address)?.into_iter().collect(),
            None => BTreeMap::new(),
        };
        Ok(Self {
            at: Instant::now(),
            tier,
            vm: VmCounters::now(root),
            device_read_bytes: watched.device.as_ref().and_then(|read| read.read_bytes().ok()),
            residency: watched.pool.as_ref().map(residency).transpose()?,
            now: Now {
                file_budget: FileBudget::read(root),
                unevictable_share: unevictable_share(root),
                memory_pressure: Pressure::memory(root),
                io_pressure: Pressure::io(root),
                cast: CastState::read(root),
            },
        })
    }
}

fn residency(tier: &Tier) -> Result<PoolResidency> {
    let layout = tier.pool().layout();
    let mut total = Residency::default();
    let layers = layout.moe_layers().map(|layer| {
        let experts = 0..u16::try_from(layout.layer(layer).len()).unwrap_or(u16::MAX);
        let ids: Vec<ExpertId> = experts.map(|index| ExpertId::new(layer, index)).collect();
        let residency = tier.residency(Some(&ids))?;
        total.resident_bytes += residency.resident_bytes;
        total.total_bytes += residency.total_bytes;
        Ok(LayerResidency { layer, residency })
    });
    let layers = layers.collect::<Result<Vec<_>>>()?;
    Ok(PoolResidency { total, layers })
}

impl Rates {
    pub(super) fn between(earlier: &Sample, later: &Sample) -> Self {
        let seconds = (later.at - earlier.at).as_secs_f64().max(1e-9);
        let mut tier_per_s = BTreeMap::new();
        let mut tier = BTreeMap::new();
        for (name, value) in &later.tier {
            match name.strip_suffix("_total") {
                // A tier that began anew counts from zero again.
                Some(counter) => {
                    let before = earlier.tier.get(name).copied().unwrap_or(0.0);
                    let gained = if *value < before { *value } else { value - before };
                    tier_per_s.insert(counter.to_owned(), gained / seconds);
                }
                None => {
                    tier.insert(name.clone(), *value);
                }
            }
        }
        let rate = |name: &str| tier_per_s.get(name).copied();
        let adopted = rate("adopted_experts").filter(|&adopted| adopted > 0.0);
        let warm_share = rate("warm_experts").zip(adopted).map(|(warm, adopted)| warm / adopted);
        let waiting_share = rate("adopt_ns").map(|ns| ns / 1e9);
        let read = later.device_read_bytes.zip(earlier.device_read_bytes);
        let own = read.map(|(later, earlier)| later.saturating_sub(earlier) as f64 / seconds);
        let device_read_bytes_per_s = own.or_else(|| rate("device_read_bytes"));
        let reclaim = match (&later.vm, &earlier.vm) {
            (Ok(later), Ok(earlier)) => Ok(later.since(earlier)),
            (Err(why), _) | (_, Err(why)) => Err(why.clone()),
        };
        Self {
            seconds,
            tier_per_s,
            tier,
            warm_share,
            waiting_share,
            device_read_bytes_per_s,
            reclaim,
            pool: later.residency.clone(),
            now: later.now.clone(),
        }
    }
}
