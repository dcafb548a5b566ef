mod choose;
mod setup;
mod tails;
mod watch;

use crate::admission::Admission;
use crate::adopting::Adopting;
use crate::auto::Auto;
use crate::config::TierConfig;
use crate::demand::DemandWatch;
use crate::error::TierError;
use crate::evict;
use crate::fill::direct::{BufferReader, Method, missing_bytes};
use crate::fill::{Arrival, FillMethod, FillPlan, Filler, Piece, PlanLimits};
use crate::guard::Guard;
use crate::host;
use crate::in_flight::InFlight;
use crate::lease::Adopted;
use crate::notice::Notice;
use crate::observe::{BlockCounters, SystemRoot, Unavailable};
use crate::pool::map::{HUGE_BYTES, Mapping};
use crate::pool::{ExpertLayout, Extent, Pool};
use crate::residency::{ProbeKind, ResidencyProbe};
use crate::stats::{Counters, Snapshot};
use parking_lot::Mutex;
use router_trace::{ExpertId, Route};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How often an eviction is tried before what is left is reported.
const EVICT_ATTEMPTS: usize = 4;
const EVICT_PAUSE: Duration = Duration::from_millis(5);

/// Serves a pool's experts where they lie in the page cache.
///
/// `Send + Sync`: several decode threads adopt at once. Two threads that need the same cold
/// expert share one fill. Clones are the same tier, with the same counters.
#[derive(Clone, Debug)]
pub struct Tier {
    pub(crate) shared: Arc<Shared>,
}

/// What leases keep alive.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: TierConfig,
    /// Before the mapping: fields are dropped in this order.
    guard: Guard,
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) pool: Pool,
    pub(crate) filler: Filler,
    /// For the arms that do not use the mapping.
    pub(crate) reader: Option<Arc<BufferReader>>,
    /// For the arm that chooses.
    pub(crate) auto: Option<Arc<Auto>>,
    /// One a file: what tells the truth depends on who owns it.
    pub(crate) probes: Vec<ResidencyProbe>,
    notices: Vec<Notice>,
    pub(crate) page_bytes: u64,
    edge_bytes: u64,
    whole_tails: bool,
    pub(crate) counters: Counters,
    pub(crate) in_flight: Arc<InFlight>,
    /// Leases that live on each expert; kept only by the arm that forgets behind them.
    leased: Mutex<HashMap<ExpertId, u32>>,
    /// Page runs that are locked in the mapping: the kernel refuses to unmap these.
    pub(crate) locked: Mutex<Vec<Extent>>,
    /// Once somebody asked for it.
    pub(crate) demand: OnceLock<Arc<DemandWatch>>,
    /// Whether what is read stays in the page cache, as far as this tier has a say.
    pub(crate) admits: Arc<AtomicBool>,
    /// Reads what only passes, once something does; or why it cannot.
    pub(crate) passing: OnceLock<Result<Arc<BufferReader>, String>>,
    /// Bytes read that way: of these no model of the page cache knows.
    pub(crate) passed_bytes: Arc<AtomicU64>,
}

/// Resident and total bytes of some extents, as a probe found them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Residency {
    /// Bytes of pages that are in the page cache.
    pub resident_bytes: u64,
    /// Bytes of all pages.
    pub total_bytes: u64,
}

impl Tier {
    /// Map `pool` and make ready to serve it.
    ///
    /// # Errors
    /// A config out of its limits; a file that changed since the pool was opened; a system that
    /// refuses the mapping, the threads, or direct reads where these were asked for.
    pub fn open(pool: Pool, config: TierConfig) -> Result<Self, TierError> {
        config.validate()?;
        let has_windows = pool.layout().iter().any(|(_, expert)| {
            expert.extents.iter().any(|extent| {
                extent.offset.next_multiple_of(HUGE_BYTES) + HUGE_BYTES <= extent.end()
            })
        });
        let mut notices = Vec::new();
        let filler = Filler::new(config.fill_threads, config.fill_method, &mut notices)?;
        let small_only = matches!(filler.method(), FillMethod::WillNeed | FillMethod::Fault);
        let huge = config.huge_folios && has_windows && !small_only;
        let mapping = Mapping::open(&pool, huge)?;
        let probes = setup::choose_probes(&mapping, config.probe)?;
        let reader = match Method::of(config.admission) {
            Some(method) => Some(BufferReader::open(&pool, method, &mapping, &probes)?),
            None => None,
        };
        let whole_tails = huge && tails::choose(&pool, config.whole_tails, &mut notices);
        let guard = Guard::new(&mapping);
        notices.extend(guard.notice().cloned());
        notices.extend(setup::remarks(&mapping, &probes, config, reader.as_ref()));
        let admits = matches!(config.admission, Admission::Admit | Admission::Auto);
        let auto = choose::chooser(config, &pool, filler.method())?;
        let shared = Shared {
            config,
            guard,
            filler,
            reader: reader.map(Arc::new),
            auto,
            probes,
            notices,
            page_bytes: host::page_bytes(),
            edge_bytes: setup::edge_bytes(&mapping),
            whole_tails,
            mapping: Arc::new(mapping),
            pool,
            counters: Counters::default(),
            in_flight: Arc::default(),
            leased: Mutex::default(),
            locked: Mutex::default(),
            demand: OnceLock::new(),
            admits: Arc::new(AtomicBool::new(admits)),
            passing: OnceLock::new(),
            passed_bytes: Arc::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Make a route's experts usable: the only wait of the design. All or nothing.
    ///
    /// # Errors
    /// [`TierError::UnknownExpert`], or a demand read that failed. Counters then show nothing of
    /// the call, and other leases stay valid.
    pub fn adopt(&self, route: &Route) -> Result<Adopted, TierError> {
        self.adopt_batch(route.layer(), route.experts())
    }

    /// The same for experts that several tokens chose, each named once: how a prompt is read.
    ///
    /// # Errors
    /// As for [`Tier::adopt`].
    pub fn adopt_batch(&self, layer: u16, experts: &[u16]) -> Result<Adopted, TierError> {
        self.begin(layer, experts)?.finish()
    }

    /// Begin to adopt experts, and return while they are being read: they become usable one after
    /// the other, in the order in which they are named, so that the first can be computed with
    /// while the device still brings the last.
    ///
    /// # Errors
    /// [`TierError::UnknownExpert`], or a system that refuses a probe or a buffer. A demand read
    /// that fails is told by [`Adopting::wait`] and [`Adopting::finish`].
    pub fn begin(&self, layer: u16, experts: &[u16]) -> Result<Adopting, TierError> {
        Adopting::begin(&self.shared, layer, experts)
    }

    /// As [`Tier::begin`], for experts that are used now and not soon again, as when a prompt is
    /// read: what the page cache has is used where it lies, the rest is read past it, so that
    /// nothing is displaced. Where that cannot be done ([`Tier::passing_unavailable`]), and for
    /// arms that keep nothing anyway, it is [`Tier::begin`].
    ///
    /// # Errors
    /// As [`Tier::begin`].
    pub fn begin_passing(&self, layer: u16, experts: &[u16]) -> Result<Adopting, TierError> {
        match self.shared.passing_reader() {
            Some(Ok(reader)) => Adopting::begin_passing(&self.shared, reader, layer, experts),
            _ => self.begin(layer, experts),
        }
    }

    /// Why experts cannot pass the page cache by here; tried at the first call.
    #[must_use]
    pub fn passing_unavailable(&self) -> Option<&str> {
        self.shared.passing_reader()?.as_ref().err().map(String::as_str)
    }

    /// Counters since the tier was opened.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.shared.counters.snapshot()
    }

    /// The pool that is served.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// The config in force.
    #[must_use]
    pub fn config(&self) -> &TierConfig {
        &self.shared.config
    }

    /// How residency is probed here; `None` for a pool without files.
    #[must_use]
    pub fn probe(&self) -> Option<ProbeKind> {
        self.shared.probes.first().map(ResidencyProbe::kind)
    }

    /// How missing pages are read here.
    #[must_use]
    pub fn fill_method(&self) -> FillMethod {
        self.shared.filler.method()
    }

    /// How the bytes of adopted experts are read, in words for a report: `mapping`;
    /// `read+dontneed` (filled and used as `mapping`, forgotten behind the last lease);
    /// `mapping, misses o-direct (align 512)` while [`Admission::Auto`] has chosen so; `o-direct (align 512)`; `rwf-dontcache`. The last two say `not proved` where no page
    /// could be watched staying out of the page cache.
    #[must_use]
    pub fn read_channel(&self) -> String {
        match &self.shared.reader {
            Some(reader) => reader.channel(),
            None if self.shared.config.admission == Admission::DropBehind => {
                "read+dontneed".to_owned()
            }
            None => self.shared.chosen_channel(),
        }
    }

    /// What a person should know about how this tier works here: which better way could not be
    /// had, and why. Each thing once.
    #[must_use]
    pub fn notices(&self) -> &[Notice] {
        &self.shared.notices
    }

    /// Whether the mapping can hold 2 MiB folios.
    #[must_use]
    pub fn huge_folios(&self) -> bool {
        self.shared.mapping.files().iter().any(|file| file.huge)
    }

    /// Counts what the devices behind the pool's files read from now on, whoever asked for it.
    ///
    /// # Errors
    /// [`Unavailable`] with the reason where no block device can be named (overlays, tmpfs).
    pub fn device_counters(&self, root: &SystemRoot) -> Result<BlockCounters, Unavailable> {
        // One file a file system is enough, and as many descriptors.
        let mapping = &self.shared.mapping;
        let mut seen = HashSet::new();
        let mut files: Vec<(Arc<File>, &Path)> = Vec::new();
        for (index, mapped) in (0_u32..).zip(mapping.files()) {
            if seen.insert(mapped.dev) {
                let file = mapping.handle(index);
                let file = file.map_err(|error| Unavailable::new(error.to_string()))?;
                files.push((file, &mapped.path));
            }
        }
        BlockCounters::for_files(files.iter().map(|(file, path)| (&**file, *path)), root)
    }

    /// What a probe finds in the page cache of these experts (of all, with `None`).
    ///
    /// # Errors
    /// [`TierError::UnknownExpert`], or a system that refuses the probe.
    pub fn residency(&self, experts: Option<&[ExpertId]>) -> Result<Residency, TierError> {
        let mut sum = Residency::default();
        self.shared.each_extent(experts, |extent| {
            let (_, total) = self.shared.pages(extent);
            sum.total_bytes += total;
            sum.resident_bytes += total - self.shared.missing_bytes(extent)?;
            Ok(())
        })?;
        Ok(sum)
    }

    /// Ask the page cache to forget these experts (all, with `None`: then their whole files), and
    /// probe what is left of the pages that were to go. A page that other experts need as well is
    /// not one of them; pages that another process maps or writes stay: the answer tells, it does
    /// not assume.
    ///
    /// # Errors
    /// [`TierError::UnknownExpert`], or a system that refuses.
    pub fn evict(&self, experts: Option<&[ExpertId]>) -> Result<Residency, TierError> {
        let shared = &self.shared;
        // Finds ids that the pool does not have.
        shared.each_extent(experts, |_| Ok(()))?;
        let mut runs = match experts {
            // As few and as long as can be: a folio leaves only if a range covers all of it, and
            // one that was read ahead may hold several experts.
            Some(ids) => evict::private_pages(shared.pool.layout(), ids, shared.page_bytes),
            None => (0_u32..)
                .zip(shared.mapping.files())
                .map(|(file, mapped)| Extent { file, offset: 0, len: mapped.len() })
                .filter(|whole| whole.len > 0)
                .collect(),
        };
        let locked = shared.locked.lock().clone();
        if !locked.is_empty() {
            runs = evict::without(&runs, locked);
        }
        let mut left = shared.forget_runs(&runs)?;
        for _ in 1..EVICT_ATTEMPTS {
            if left.resident_bytes == 0 {
                break;
            }
            // Dirty pages leave once they are written, isolated ones once reclaim lets go.
            for file in runs.iter().map(|run| run.file).collect::<BTreeSet<_>>() {
                drop(shared.mapping.handle(file)?.sync_data());
            }
            std::thread::sleep(EVICT_PAUSE);
            left = shared.forget_runs(&runs)?;
        }
        match experts {
            Some(_) => Ok(left),
            // Other tensors of the files are nobody's question.
            None => self.residency(None),
        }
    }
}

impl Shared {
    /// The layout of an expert that `adopt_batch` found to exist.
    pub(crate) fn layout(&self, id: ExpertId) -> &ExpertLayout {
        self.pool.layout().expert(id).expect("a lease only names experts of its pool")
    }

    /// Whether the bytes of `ids` are still those of the files that were opened.
    pub(crate) fn check(&self, ids: impl Iterator<Item = ExpertId>) -> Result<(), TierError> {
        let extents = ids.flat_map(|id| self.layout(id).extents.iter().copied());
        self.guard.check(&self.mapping, &self.pool, extents)
    }

    /// Whether any page of the expert is missing.
    pub(crate) fn is_missing(&self, id: ExpertId) -> Result<bool, TierError> {
        Ok(self.missing_of(self.layout(id))? > 0)
    }

    /// Begin to fill `ids`, which the caller has claimed in `in_flight`.
    pub(crate) fn start_fill(&self, ids: Vec<ExpertId>) -> Arc<Arrival> {
        let plans = ids.iter().map(|&id| self.plan(id)).collect();
        let in_flight = Arc::clone(&self.in_flight);
        let closed = Box::new(move |index: usize| in_flight.release(ids[index]));
        self.filler.start(&self.mapping, plans, closed)
    }

    pub(crate) fn plan(&self, id: ExpertId) -> FillPlan {
        let mut plan = FillPlan::default();
        for &extent in &self.layout(id).extents {
            let mapped = self.mapping.file(extent.file);
            let limits = PlanLimits {
                page_bytes: self.page_bytes,
                window_bytes: if mapped.huge { HUGE_BYTES } else { 0 },
                edge_bytes: self.edge_bytes,
                whole_tails: self.whole_tails,
            };
            plan.add(extent, mapped.len(), limits);
        }
        plan
    }

    pub(crate) fn missing_of(&self, layout: &ExpertLayout) -> Result<u64, TierError> {
        layout.extents.iter().map(|&extent| self.missing_bytes(extent)).sum()
    }

    /// The same of one piece of a plan.
    pub(crate) fn missing_in(&self, piece: Piece) -> Result<u64, TierError> {
        let probe = self.probes[piece.file as usize];
        missing_bytes(&self.mapping, probe, piece.file, piece.offset, piece.len)
    }

    /// Bytes of the extent's pages that are not in the page cache.
    pub(crate) fn missing_bytes(&self, extent: Extent) -> Result<u64, TierError> {
        let (offset, len) = self.pages(extent);
        let probe = self.probes[extent.file as usize];
        missing_bytes(&self.mapping, probe, extent.file, offset, len)
    }

    /// Start and length of the whole pages that the extent touches, up to the end of the file.
    pub(crate) fn pages(&self, extent: Extent) -> (u64, u64) {
        let start = extent.offset / self.page_bytes * self.page_bytes;
        let file_len = self.mapping.file(extent.file).len();
        (start, extent.end().next_multiple_of(self.page_bytes).min(file_len) - start)
    }

    /// Forget whole pages, the outer ones too: a half-used page left behind would make the next
    /// read of a comparator arm cheaper than it claims to be.
    fn forget(&self, extent: Extent) -> Result<(), TierError> {
        let (offset, len) = self.pages(extent);
        // Up to the page's or the folio's end: the kernel keeps what is only named in part.
        let unit = if self.whole_tails { HUGE_BYTES } else { self.page_bytes };
        let len = (offset + len).next_multiple_of(unit) - offset;
        self.mapping.forget(extent.file, offset, len)
    }

    /// Forget these page runs, and probe what is left of them.
    fn forget_runs(&self, runs: &[Extent]) -> Result<Residency, TierError> {
        let mut left = Residency::default();
        for &run in runs {
            self.forget(run)?;
            let (_, total) = self.pages(run);
            left.total_bytes += total;
            left.resident_bytes += total - self.missing_bytes(run)?;
        }
        Ok(left)
    }

    pub(crate) fn each_extent(
        &self,
        experts: Option<&[ExpertId]>,
        mut visit: impl FnMut(Extent) -> Result<(), TierError>,
    ) -> Result<(), TierError> {
        let layout = self.pool.layout();
        match experts {
            None => layout
                .iter()
                .flat_map(|(_, expert)| expert.extents.iter())
                .try_for_each(|&extent| visit(extent)),
            Some(ids) => ids.iter().try_for_each(|&id| {
                let in_layer = layout.layer(id.layer).len();
                let expert = layout.expert(id).ok_or(TierError::UnknownExpert { id, in_layer })?;
                expert.extents.iter().try_for_each(|&extent| visit(extent))
            }),
        }
    }

    /// Count a lease on each expert before it is probed, so that a lease that ends meanwhile
    /// does not forget pages this one has just found.
    pub(crate) fn hold(&self, ids: &[ExpertId]) {
        if self.config.admission == Admission::DropBehind {
            let mut leased = self.leased.lock();
            for &id in ids {
                *leased.entry(id).or_insert(0) += 1;
            }
        }
    }

    /// End a lease on each expert and forget those that no other lease holds. The lock is held
    /// over the eviction so that no thread can take a hold between count and eviction.
    pub(crate) fn release(&self, ids: impl Iterator<Item = ExpertId>) {
        let mut leased = self.leased.lock();
        for id in ids {
            let Some(count) = leased.get_mut(&id) else { continue };
            *count -= 1;
            if *count == 0 {
                leased.remove(&id);
                for &extent in &self.layout(id).extents {
                    if let Err(error) = self.forget(extent) {
                        tracing::warn!(%id, %error, "drop-behind could not forget an extent");
                    }
                }
            }
        }
    }
}
