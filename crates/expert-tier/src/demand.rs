//! What exact LRU would have had to read, beside what was read: the demand model of the paper
//! (section 4), fed by a live tier.

use crate::admission::Admission;
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

/// Watches one tier. Its cost on the decode thread is one lock, and some tens of nanoseconds an
/// expert; files of the kernel are read once a [`DemandConfig::refresh`].
#[derive(Debug)]
pub(crate) struct DemandWatch {
    config: DemandConfig,
    root: SystemRoot,
    /// Only this arm keeps what it reads, as the model does.
    admits: bool,
    expert_bytes: u64,
    device: Result<BlockCounters, Unavailable>,
    process: Option<ProcessCounters>,
    vm: Result<VmCounters, Unavailable>,
    state: Mutex<State>,
}

struct State {
    model: DemandModel,
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
        admission: Admission,
        device: Result<BlockCounters, Unavailable>,
        config: DemandConfig,
        root: &SystemRoot,
    ) -> Self {
        let budget = FileBudget::read(root);
        model.set_capacity_bytes(budget.as_ref().map_or(u64::MAX, |budget| budget.bytes));
        let now = Instant::now();
        let samples = VecDeque::from([Sample { at: now, computed_bytes: 0, read_bytes: 0 }]);
        Self {
            config,
            root: root.clone(),
            admits: admission == Admission::Admit,
            expert_bytes,
            device,
            process: ProcessCounters::now(root).ok(),
            vm: VmCounters::now(root),
            state: Mutex::new(State { model, budget, refreshed: now, samples, alert: None }),
        }
    }

    /// Experts of one layer were adopted, in this order.
    pub(crate) fn observe(&self, ids: impl Iterator<Item = ExpertId>) {
        let mut state = self.state.lock();
        let (mut layer, mut chunk, mut used) = (0, [0_u16; MAX_TOP_K], 0);
        let flush = |state: &mut State, layer: u16, experts: &[u16]| {
            if let Some(route) = Route::new(layer, experts) {
                // Only experts of the pool are adopted, and the model is the pool's.
                let _ = state.model.observe(&route);
            }
        };
        for id in ids {
            if used == MAX_TOP_K {
                flush(&mut state, layer, &chunk);
                used = 0;
            }
            layer = id.layer;
            chunk[used] = id.index;
            used += 1;
        }
        flush(&mut state, layer, &chunk[..used]);
        if state.refreshed.elapsed() >= self.config.refresh {
            self.refresh(&mut state);
        }
    }

    /// What is known so far; compares reads with misses as the clock does.
    pub(crate) fn report(&self) -> DemandReport {
        let mut state = self.state.lock();
        self.refresh(&mut state);
        let count = state.model.count();
        let (device_bytes, process_read_bytes) = self.read_bytes();
        let read = least(device_bytes, process_read_bytes);
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
        let Some(read_bytes) = least(device, process) else { return };
        let computed_bytes = state.model.count().miss_bytes;
        state.samples.push_back(Sample { at: now, computed_bytes, read_bytes });
        // The oldest sample that is still needed is the last one before the window.
        while state.samples.get(1).is_some_and(|next| now - next.at >= self.config.window) {
            state.samples.pop_front();
        }
        if !self.admits || state.alert.is_some() || state.budget.is_err() {
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

    /// Prints what one adoption of eight experts costs the watch. Run it on an idle machine.
    #[test]
    #[ignore = "prints times and checks none: run on an idle machine with --ignored --nocapture"]
    fn measure_the_cost_of_an_observation() {
        let shape = router_trace::ModelShape { moe_layers: vec![0], n_experts: 128, top_k: 8 };
        let model = DemandModel::new(&shape, 1 << 20, 0).unwrap();
        let (device, root) = (Err(Unavailable::new("none")), SystemRoot::default());
        let config = DemandConfig::default();
        let watch = DemandWatch::new(model, 1 << 20, Admission::Admit, device, config, &root);
        for _ in 0..5 {
            let started = Instant::now();
            for step in 0..200_000_u32 {
                let first = (step * 7 % 120) as u16;
                watch.observe((first..first + 8).map(|index| ExpertId::new(0, index)));
            }
            println!("{} ns for eight experts", started.elapsed().as_nanos() / 200_000);
        }
        assert_eq!(watch.report().accesses, 5 * 8 * 200_000);
    }
}
