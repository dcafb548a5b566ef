use crate::error::TierError;
use crate::evict;
use crate::lock;
use crate::observe::SystemRoot;
use crate::pool::Extent;
use crate::tier::{Shared, Tier};
use router_trace::ExpertId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Experts that are read together before they are locked: bounds what is on its way.
const PRELOAD: usize = 64;
const WHAT: &str = "the hot set in the mapping";

/// Experts whose pages the kernel may not evict while this lives: a hot set inside the one
/// mapping, so that it costs no second copy and is used as any other expert is.
///
/// [`Tier::evict`] passes them by. Two of these on one tier should not share experts: the pages are
/// unlocked with the first that drops.
#[derive(Debug)]
pub struct LockedExperts {
    shared: Arc<Shared>,
    runs: Vec<Extent>,
}

impl Tier {
    /// Read `experts` and lock their pages in the mapping. The tier's counters do not hear of it.
    ///
    /// # Errors
    /// [`TierError::UnknownExpert`]; [`TierError::Lock`] where there is no room, which is found
    /// before the kernel would have to kill, or where the process may not lock as much.
    pub fn lock_experts(&self, experts: &[ExpertId]) -> Result<LockedExperts, TierError> {
        let shared = &self.shared;
        shared.each_extent(Some(experts), |_| Ok(()))?;
        let runs = evict::page_runs(shared.pool.layout(), experts, shared.page_bytes);
        let bytes = runs.iter().map(|run| run.len).sum();
        lock::check_headroom(bytes, WHAT, &SystemRoot::default())?;
        // In parallel and in large pieces; `mlock` alone would fault them in one by one.
        let mut layers: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
        for id in experts {
            layers.entry(id.layer).or_default().push(id.index);
        }
        for (layer, indices) in layers {
            for indices in indices.chunks(PRELOAD) {
                let mut adopting = self.begin(layer, indices)?;
                while !adopting.wait()?.is_empty() {}
            }
        }
        let mut locked = LockedExperts { shared: Arc::clone(shared), runs: Vec::new() };
        for run in runs {
            // The last page of a file ends with it.
            let len = run.end().min(shared.mapping.file(run.file).len()) - run.offset;
            let run = Extent { len, ..run };
            lock::lock_range(shared.mapping.bytes(run), bytes, WHAT)?;
            locked.runs.push(run);
            shared.locked.lock().push(run);
        }
        Ok(locked)
    }
}

impl LockedExperts {
    /// Bytes of the pages that are locked: what `VmLck` rises by, but for the last page of a file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.len).sum()
    }
}

impl Drop for LockedExperts {
    fn drop(&mut self) {
        for &run in &self.runs {
            lock::unlock_range(self.shared.mapping.bytes(run));
        }
        self.shared.locked.lock().retain(|run| !self.runs.contains(run));
    }
}
