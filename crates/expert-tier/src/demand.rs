//! What exact LRU would have had to read, beside what was read: the demand model of the paper
//! (section 4), fed by a live tier.

use crate::host::{Host, Reclaim};
use crate::notice::Notice;
use crate::observe::{
    BlockCounters, FileBudget, Pressure, ProcessCounters, SystemRoot, Unavailable, VmCounters,
    unevictable_share,
};
use parking_lot::Mutex;
use router_trace::{DemandModel, ExpertId, MAX_TOP_K, Route};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When the watch looks around, and what alarms it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct DemandConfig {
    /// How often the memory left to files is read anew, and reads are compared.
    pub refresh: Duration,
    /// Over how long reads are compared with misses.
    pub window: Duration,
    /// Alert where reads are more than so many times the misses ...
    pub alert_ratio: f64,
    /// ... and by at least so many bytes more.
    pub alert_least_bytes: u64,
}

impl Default for DemandConfig {
    /// Once a second, over ten; 1.25 times and 64 MiB, which no rounding to pages reaches.
    fn default() -> Self {
        Self {
            refresh: Duration::from_secs(1),
            window: Duration::from_secs(10),
            alert_ratio: 1.25,
            alert_least_bytes: 64 << 20,
        }
    }
}

/// What was computed and what was measured since the watch began.
///
/// The model begins with an empty cache, so a pool that was warm reads less than computed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DemandReport {
    /// The memory that the file cache can have now.
    pub budget: Result<FileBudget, Unavailable>,
    /// Whole experts of mean size that fit into it.
    pub capacity_experts: usize,
    /// Bytes of an expert, mean.
    pub expert_bytes: u64,
    /// Experts adopted.
    pub accesses: u64,
    /// Of these, how many exact LRU within the budget would have read.
    pub computed_misses: u64,
    /// The same in bytes.
    pub computed_miss_bytes: u64,
    /// Bytes that the devices behind the pool read, for whomever; `None` where unknown.
    pub device_bytes: Option<u64>,
    /// Bytes that the kernel read for this process; `None` where unknown.
    pub process_read_bytes: Option<u64>,
    /// The smaller of the two over the computed bytes: others' reads are not this tier's.
    pub amplification: Option<f64>,
    /// What reclaim did meanwhile, on the whole machine.
    pub reclaim: Result<VmCounters, Unavailable>,
    /// Pages that kswapd looked at for each page it took.
    pub kswapd_scan_per_steal: Option<f64>,
    /// Share of memory that cannot be evicted.
    pub unevictable_share: Result<f64, Unavailable>,
    /// Memory pressure now.
    pub memory_pressure: Pressure,
    /// Storage pressure now.
    pub io_pressure: Pressure,
    /// The alert, once there was one.
    pub alert: Option<Notice>,
}

/// Adopted experts after which the model is brought up to date.
const BATCH: usize = 4096;
/// So many that wait for it are no longer left to another thread.
const MOST_PENDING: usize = 16 * BATCH;

/// Watches one tier. A decode thread only notes what it has adopted, under a lock that nobody
/// holds for long; the model follows on another thread, which also reads the kernel's files, once
/// a [`DemandConfig::refresh`].
#[derive(Debug)]
pub(crate) struct DemandWatch {
    config: DemandConfig,
    root: SystemRoot,
    kept: Kept,
    pending: Mutex<Pending>,
    expert_bytes: u64,
    device: Result<BlockCounters, Unavailable>,
    process: Option<ProcessCounters>,
    vm: Result<VmCounters, Unavailable>,
    state: Mutex<State>,
}

/// What a tier lets the page cache keep.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    /// Whether it keeps what it reads, as the model does.
    pub(crate) admits: Arc<AtomicBool>,
    /// Bytes read that only passed: the model does not know of them.
    pub(crate) passed_bytes: Arc<AtomicU64>,
}

/// What was adopted since the model was brought up to date.
#[derive(Debug)]
struct Pending {
    ids: Vec<ExpertId>,
    /// Somebody was told to bring it up to date.
    asked: bool,
    due: Instant,
}

struct State {
    model: DemandModel,
    /// To change places with the pending ones, so that neither is allocated anew.
    batch: Vec<ExpertId>,
    budget: Result<FileBudget, Unavailable>,
    refreshed: Instant,
    samples: VecDeque<Sample>,
    alert: Option<Notice>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("count", &self.model.count()).finish_non_exhaustive()
    }
}

/// Totals at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sample {
    at: Instant,
    computed_bytes: u64,
    read_bytes: u64,
}

impl DemandWatch {
    /// `model` is cold and has any capacity; it gets the budget's.
    pub(crate) fn new(
        mut model: DemandModel,
        expert_bytes: u64,
        kept: Kept,
        device: Result<BlockCounters, Unavailable>,
        config: DemandConfig,
        root: &SystemRoot,
    ) -> Self {
        let budget = FileBudget::read(root);
        model.set_capacity_bytes(budget.as_ref().map_or(u64::MAX, |budget| budget.bytes));
        let now = Instant::now();
        let samples = VecDeque::from([Sample { at: now, computed_bytes: 0, read_bytes: 0 }]);
        let room = || Vec::with_capacity(2 * BATCH);
        let pending = Pending { ids: room(), asked: false, due: now + config.refresh };
        let state = State { model, batch: room(), budget, refreshed: now, samples, alert: None };
        Self {
            config,
            root: root.clone(),
            kept,
            pending: Mutex::new(pending),
            expert_bytes,
            device,
            process: ProcessCounters::now(root).ok(),
            vm: VmCounters::now(root),
            state: Mutex::new(state),
        }
    }

    /// Experts were adopted, in this order, by a call that began at `now`. `true` if the caller is
    /// to have [`DemandWatch::follow`] called soon, on another thread if [`DemandWatch::can_wait`].
    #[inline]
    pub(crate) fn note(&self, ids: impl ExactSizeIterator<Item = ExpertId>, now: Instant) -> bool {
        let mut pending = self.pending.lock();
        pending.ids.extend(ids);
        (pending.ids.len() >= BATCH || now >= pending.due) && pending.ask()
    }

    /// Whether so little is pending that another thread may take its time.
    pub(crate) fn can_wait(&self) -> bool {
        self.pending.lock().ids.len() < MOST_PENDING
    }

    /// Bring the model up to date.
    pub(crate) fn follow(&self) {
        let mut state = self.state.lock();
        self.catch_up(&mut state);
        if state.refreshed.elapsed() >= self.config.refresh {
            self.refresh(&mut state);
        }
    }

    /// Under the state's lock from the first to the last, so that order is kept.
    fn catch_up(&self, state: &mut State) {
        let mut batch = std::mem::take(&mut state.batch);
        {
            let mut pending = self.pending.lock();
            std::mem::swap(&mut pending.ids, &mut batch);
            pending.asked = false;
            pending.due = Instant::now() + self.config.refresh;
        }
        for ids in batch.chunk_by(|one, next| one.layer == next.layer) {
            for ids in ids.chunks(MAX_TOP_K) {
                let mut experts = [0_u16; MAX_TOP_K];
                for (expert, id) in experts.iter_mut().zip(ids) {
                    *expert = id.index;
                }
                if let Some(route) = Route::new(ids[0].layer, &experts[..ids.len()]) {
                    // Only experts of the pool are adopted, and the model is the pool's.
                    let _ = state.model.observe(&route);
                }
            }
        }
        batch.clear();
        state.batch = batch;
    }

    /// What is known so far; compares reads with misses as the clock does.
    pub(crate) fn report(&self) -> DemandReport {
        let mut state = self.state.lock();
        self.catch_up(&mut state);
        self.refresh(&mut state);
        let count = state.model.count();
        let (device_bytes, process_read_bytes) = self.read_bytes();
        let read = self.kept(least(device_bytes, process_read_bytes));
        let reclaim = self.reclaim();
        DemandReport {
            budget: state.budget.clone(),
            capacity_experts: state.model.capacity_experts(),
            expert_bytes: self.expert_bytes,
            accesses: count.accesses,
            computed_misses: count.misses,
            computed_miss_bytes: count.miss_bytes,
            device_bytes,
            process_read_bytes,
            amplification: read.and_then(|read| count.amplification(read)),
            kswapd_scan_per_steal: scan_per_steal(&reclaim),
            reclaim,
            unevictable_share: unevictable_share(&self.root),
            memory_pressure: Pressure::memory(&self.root),
            io_pressure: Pressure::io(&self.root),
            alert: state.alert.clone(),
        }
    }

    /// Take the budget as it is now, and judge the last window.
    fn refresh(&self, state: &mut State) {
        let now = Instant::now();
        state.refreshed = now;
        state.budget = FileBudget::read(&self.root);
        if let Ok(budget) = &state.budget {
            state.model.set_capacity_bytes(budget.bytes);
        }
        let (device, process) = self.read_bytes();
        let Some(read_bytes) = self.kept(least(device, process)) else { return };
        let computed_bytes = state.model.count().miss_bytes;
        state.samples.push_back(Sample { at: now, computed_bytes, read_bytes });
        // The oldest sample that is still needed is the last one before the window.
        while state.samples.get(1).is_some_and(|next| now - next.at >= self.config.window) {
            state.samples.pop_front();
        }
        let admits = self.kept.admits.load(Ordering::Relaxed);
        if !admits || state.alert.is_some() || state.budget.is_err() {
            return;
        }
        if let Some((read, computed)) = excess(&state.samples, &self.config) {
            state.alert = Some(self.alert(state, read, computed));
        }
    }

    fn alert(&self, state: &State, read: u64, computed: u64) -> Notice {
        let times = if computed == 0 {
            String::new()
        } else {
            format!(" ({:.2} times)", read as f64 / computed as f64)
        };
        let budget = state.budget.as_ref().map_or(0, |budget| budget.bytes);
        let mut text = format!(
            "device reads exceed computed misses: {read} bytes read for {computed} bytes of \
             misses{times} within {} s, with {budget} bytes left to files",
            self.config.window.as_secs()
        );
        if let Some(ratio) = scan_per_steal(&self.reclaim()) {
            text.push_str(&format!("; kswapd looked at {ratio:.1} pages for each one it took"));
        }
        if let Ok(share) = unevictable_share(&self.root) {
            text.push_str(&format!("; {:.0} % of memory cannot be evicted", 100.0 * share));
        }
        let mglru = match Host::probe(&self.root).reclaim {
            Reclaim::Mglru { .. } => "which is on: echo n > /sys/kernel/mm/lru_gen/enabled",
            Reclaim::Legacy => "which is off here",
        };
        text.push_str(&format!(
            "; what helped where this was measured: read in a control group with a memory limit, \
             lock less memory, switch the multi-generational LRU off ({mglru})"
        ));
        Notice::warning(text)
    }

    fn reclaim(&self) -> Result<VmCounters, Unavailable> {
        let before = self.vm.as_ref().map_err(Unavailable::clone)?;
        Ok(VmCounters::now(&self.root)?.since(before))
    }

    /// What of `read` bytes may have stayed in the page cache.
    fn kept(&self, read: Option<u64>) -> Option<u64> {
        read.map(|read| read.saturating_sub(self.kept.passed_bytes.load(Ordering::Relaxed)))
    }

    /// What the devices read, and what was read for this process.
    fn read_bytes(&self) -> (Option<u64>, Option<u64>) {
        let device = self.device.as_ref().ok().and_then(|device| device.read_bytes().ok());
        let process = self
            .process
            .as_ref()
            .and_then(|then| ProcessCounters::now(&self.root).ok()?.since(then).read_bytes.ok());
        (device, process)
    }
}

impl Pending {
    /// Whether nobody else was told; where nobody came although much is pending, again and again.
    #[cold]
    fn ask(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.asked, true);
        first || self.ids.len() >= MOST_PENDING
    }
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

fn scan_per_steal(reclaim: &Result<VmCounters, Unavailable>) -> Option<f64> {
    reclaim.as_ref().ok().and_then(VmCounters::kswapd_scan_per_steal)
}

/// Bytes read and computed between the first sample and the last, where that is alarming.
fn excess(samples: &VecDeque<Sample>, config: &DemandConfig) -> Option<(u64, u64)> {
    let (first, last) = (samples.front()?, samples.back()?);
    let read = last.read_bytes.saturating_sub(first.read_bytes);
    let computed = last.computed_bytes.saturating_sub(first.computed_bytes);
    let over = read.saturating_sub(computed) >= config.alert_least_bytes.max(1);
    (over && read as f64 > config.alert_ratio * computed as f64).then_some((read, computed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_needs_both_a_ratio_and_bytes() {
        let config = DemandConfig { alert_least_bytes: 100, ..DemandConfig::default() };
        let at = Instant::now();
        let between = |read_bytes: u64, computed_bytes: u64| {
            let first = Sample { at, computed_bytes: 1000, read_bytes: 500 };
            let last =
                Sample { at, computed_bytes: 1000 + computed_bytes, read_bytes: 500 + read_bytes };
            excess(&VecDeque::from([first, last]), &config)
        };
        assert_eq!(between(2220, 1000), Some((2220, 1000)));
        assert_eq!(between(1250, 1000), None, "not more than the ratio");
        assert_eq!(between(1251, 1000), Some((1251, 1000)));
        assert_eq!(between(150, 60), None, "2.5 times, yet only 90 bytes more");
        assert_eq!(between(0, 0), None);
        assert_eq!(between(100, 0), Some((100, 0)), "reads without any miss");
        assert_eq!(excess(&VecDeque::new(), &config), None);
    }

    fn watch() -> DemandWatch {
        let shape = router_trace::ModelShape { moe_layers: vec![0, 1], n_experts: 128, top_k: 8 };
        let model = DemandModel::new(&shape, 1 << 20, 0).unwrap();
        let (device, root) = (Err(Unavailable::new("none")), SystemRoot::at("/nowhere"));
        let config = DemandConfig { refresh: Duration::from_secs(3600), ..DemandConfig::default() };
        DemandWatch::new(model, 1 << 20, Kept::default(), device, config, &root)
    }

    fn ids(first: u16, count: u16) -> impl ExactSizeIterator<Item = ExpertId> {
        (first..first + count).map(|index| ExpertId::new(0, index))
    }

    #[test]
    fn what_is_noted_is_counted_in_order_once_and_whoever_must_follow_is_told_once() {
        let watch = watch();
        let now = Instant::now();
        let routes = BATCH / 8;
        for step in 0..routes - 1 {
            assert!(!watch.note(ids(step as u16 % 100, 8), now), "{step}");
        }
        assert!(watch.note(ids(0, 8), now), "a batch is full");
        assert!(!watch.note(ids(0, 8), now), "somebody has been told");
        assert!(watch.can_wait());
        watch.follow();
        assert!(!watch.note([ExpertId::new(1, 3)].into_iter(), now), "told, and done");
        let report = watch.report();
        assert_eq!(report.accesses, (routes as u64 + 1) * 8 + 1);
        // Everything fits, so only first uses miss: 107 of layer 0 and one of layer 1.
        assert_eq!(report.computed_misses, 108);
        assert!(watch.note(ids(0, 1), now + Duration::from_secs(7200)), "the clock asks as well");
    }

    #[test]
    fn what_nobody_follows_is_asked_for_again_and_bounded() {
        let watch = watch();
        let now = Instant::now();
        let told = (0..MOST_PENDING / 8).filter(|_| watch.note(ids(0, 8), now)).count();
        assert_eq!(told, 2, "at the first batch, and at the bound");
        assert!(!watch.can_wait());
        assert!(watch.note(ids(0, 8), now), "each time from then on");
        watch.follow();
        assert!(watch.can_wait());
    }

    /// Threads note and follow at once: nothing is lost or counted twice.
    #[test]
    fn threads_note_and_follow_at_once() {
        let watch = watch();
        let now = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for step in 0..4000_u16 {
                        if watch.note(ids(step % 100, 8), now) {
                            watch.follow();
                        }
                    }
                });
            }
        });
        assert_eq!(watch.report().accesses, 4 * 4000 * 8);
    }
}
