//! The one thread that gives advice.

use crate::plan::{MAX_WIDTH, Plan};
use crate::settle::{Brought, Outcomes, Settled, Truth};
use crate::slot::{self, Counts, Poster, SlotCounts, Taken, Taker};
use expert_tier::{AdviceEnd, AdviceForm, Advised, Advisor, Notice, TierError};
use parking_lot::Mutex;
use router_trace::ExpertId;
use serde::{Deserialize, Serialize};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Who carries hints out.
pub trait Advise: Send + 'static {
    /// Called once, on the worker's thread, before the first hint.
    fn begin(&self) {}

    /// Bring the expert `id` in; see [`Advisor::advise`].
    ///
    /// # Errors
    /// A hint that failed; the worker counts it and goes on.
    fn advise(
        &self,
        id: ExpertId,
        form: AdviceForm,
        stale: &mut dyn FnMut() -> bool,
    ) -> Result<Advised, TierError>;

    /// What a person should know of how it works.
    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }
}

/// The control: takes every hint and reads nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAdvice;

impl Advise for NoAdvice {
    fn advise(
        &self,
        _: ExpertId,
        _: AdviceForm,
        stale: &mut dyn FnMut() -> bool,
    ) -> Result<Advised, TierError> {
        let end = if stale() { AdviceEnd::Stale } else { AdviceEnd::Bypassed };
        Ok(Advised { end, expert_bytes: 0, already_bytes: 0, asked_bytes: 0, brought_bytes: 0 })
    }
}

/// An advisor whose reads are served after everybody else's.
#[derive(Clone, Debug)]
struct Yielding(Advisor);

impl Advise for Yielding {
    fn begin(&self) {
        self.0.lower_reads();
    }

    fn advise(
        &self,
        id: ExpertId,
        form: AdviceForm,
        stale: &mut dyn FnMut() -> bool,
    ) -> Result<Advised, TierError> {
        self.0.advise(id, form, stale)
    }

    fn notices(&self) -> Vec<Notice> {
        self.0.notices()
    }
}

/// How many bytes one plan may have read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ByteBudget {
    /// What the device brings between two posts, both measured while decoding.
    #[default]
    Measured,
    /// So many.
    Bytes(u64),
    /// All that the plan names.
    Unlimited,
}

/// How a [`Worker`] works. Plain data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkerConfig {
    /// How hints are given.
    pub form: AdviceForm,
    /// Bytes a plan may have read.
    pub budget: ByteBudget,
    /// Missing experts a plan may have read, 1 to [`MAX_WIDTH`]: together with the form what may
    /// be outstanding at most. With [`AdviceForm::Pieces`] that is one piece of one expert.
    pub max_experts: usize,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        let form = AdviceForm::default();
        Self { form, budget: ByteBudget::default(), max_experts: 32 }
    }
}

/// Why there is no worker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// A setting outside its limits.
    #[error("{what} is {value}, must be {min} to {max}")]
    SettingLimit {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// The system gives no thread.
    #[error("cannot start the thread that gives advice: {source}")]
    Thread {
        /// Its answer.
        #[source]
        source: std::io::Error,
    },
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// What the worker's hints did so far. Bytes are those of whole pages.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        pub struct HintCounts { $($(#[doc = $doc])+ pub $name: u64),+ }

        #[derive(Debug, Default)]
        struct Counters { $($name: AtomicU64),+ }

        impl Counters {
            // Each is monotone and read for reports only: no ordering is needed.
            fn now(&self) -> HintCounts {
                HintCounts { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }
        }
    };
}

counters! {
    /// Hints of all plans that were taken.
    hints,
    /// Hints that read something.
    advised_hints,
    /// Missing bytes that the kernel was asked for.
    advised_bytes,
    /// The part of these that a probe found afterwards.
    brought_bytes,
    /// Hints whose expert was there already.
    warm_hints,
    /// Bytes that hints found there already.
    warm_bytes,
    /// Hints that demand overtook, or was at already.
    late_hints,
    /// Bytes of these that were left to demand.
    late_bytes,
    /// Hints that were dropped, or left half done, because their plan was stale.
    stale_hints,
    /// Hints that the plan's budget had no room for.
    unaffordable_hints,
    /// Hints of a tier that reads past the page cache.
    bypassed_hints,
    /// Hints that failed.
    errors,
    /// The part of these that panicked.
    panics,
    /// Time in which advice was given, in nanoseconds.
    busy_ns,
}

/// All that a worker knows of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WorkerSnapshot {
    /// Its plans.
    pub plans: SlotCounts,
    /// Its hints.
    pub hints: HintCounts,
    /// What of the bytes it brought was demanded by the layer that they were meant for.
    pub settled: Settled,
}

/// The decode thread's handle to the thread that gives advice. Nothing here waits for that
/// thread but the drop: it ends within a piece.
#[derive(Debug)]
pub struct Worker {
    /// `None` only while it is dropped.
    poster: Option<Poster<Plan>>,
    counts: Counts<Plan>,
    common: Arc<Common>,
    outcomes: Outcomes,
    handle: Option<JoinHandle<()>>,
}

/// What the two threads share beside the slot.
#[derive(Debug, Default)]
struct Common {
    counters: Counters,
    settle: Mutex<Vec<Brought>>,
    notices: Mutex<Vec<Notice>>,
}

impl Worker {
    /// Start the thread, which gives its hints through `advisor` at the lowest I/O priority.
    ///
    /// # Errors
    /// [`WorkerError`]: a setting out of its limits, or no thread to be had.
    pub fn start(advisor: Advisor, config: WorkerConfig) -> Result<Self, WorkerError> {
        Self::with(Yielding(advisor), config)
    }

    /// The same with any other adviser, for example the control [`NoAdvice`].
    ///
    /// # Errors
    /// As for [`Worker::start`].
    pub fn with(advise: impl Advise, config: WorkerConfig) -> Result<Self, WorkerError> {
        let (value, max) = (config.max_experts as u64, MAX_WIDTH as u64);
        if !(1..=max).contains(&value) {
            return Err(WorkerError::SettingLimit { what: "max_experts", value, min: 1, max });
        }
        let common = Arc::new(Common::default());
        let theirs = Arc::clone(&common);
        let started = slot::spawn(
            || Plan::new(0, 0),
            move |taker| {
                let run = move || Run::new(advise, config, theirs).all(taker);
                std::thread::Builder::new().name("pilot-advice".to_owned()).spawn(run)
            },
        );
        let (poster, counts, handle) = started.map_err(|source| WorkerError::Thread { source })?;
        let outcomes = Outcomes::default();
        Ok(Self { poster: Some(poster), counts, common, outcomes, handle: Some(handle) })
    }

    /// Hand a plan over in place of the one before, if that has not been taken. Never waits.
    pub fn post(&mut self, plan: &Plan) {
        self.post_first(plan, MAX_WIDTH);
    }

    /// The same with the `width` likeliest hints of the plan alone.
    pub fn post_first(&mut self, plan: &Plan, width: usize) {
        if let Some(poster) = &mut self.poster {
            let position = slot::position(plan.step(), plan.layer());
            poster.post(position, |place| place.copy_first(plan, width));
        }
    }

    /// Layer `layer` of pass `step` begins to demand `experts`: to be called just before they are
    /// adopted. Plans for it are stale from here on. Never waits.
    pub fn begin_demand(&mut self, step: u64, layer: u16, experts: &[u16]) {
        if let Some(poster) = &self.poster {
            poster.begin_demand(slot::position(step, layer));
        }
        self.outcomes.demand(Truth::of(step, layer, experts));
    }

    /// The demand that began last found `missing` of its experts missing
    /// ([`Adopting::missing`](expert_tier::Adopting::missing)): what plans for it have brought
    /// counts as used, wasted or evicted from here on. Never waits.
    pub fn demanded(&mut self, missing: impl IntoIterator<Item = u16>) {
        self.outcomes.looked(missing);
        if let Some(mut brought) = self.common.settle.try_lock() {
            self.outcomes.settle(&mut brought);
        }
    }

    /// Counters since the start.
    #[must_use]
    pub fn snapshot(&self) -> WorkerSnapshot {
        WorkerSnapshot {
            plans: self.counts.now(),
            hints: self.common.counters.now(),
            settled: self.outcomes.settled(),
        }
    }

    /// What a person should know of how advice goes here, each thing once.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        self.common.notices.lock().clone()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Closes the slot.
        self.poster = None;
        if let Some(handle) = self.handle.take() {
            // Its panics are caught where hints are given; another would be ours.
            if handle.join().is_err() {
                tracing::error!("the thread that gives advice panicked");
            }
        }
    }
}

/// The worker's own side.
struct Run<A> {
    advise: A,
    config: WorkerConfig,
    common: Arc<Common>,
    pace: Pace,
    failed_before: bool,
}

impl<A: Advise> Run<A> {
    fn new(advise: A, config: WorkerConfig, common: Arc<Common>) -> Self {
        Self { advise, config, common, pace: Pace::default(), failed_before: false }
    }

    fn all(mut self, mut taker: Taker<Plan>) {
        self.advise.begin();
        self.take_notices();
        while let Some(taken) = taker.take() {
            self.pace.taken();
            self.deliver(taken);
        }
    }

    /// Give the hints of one plan, the likeliest first.
    fn deliver(&mut self, taken: Taken<'_, Plan>) {
        let common = Arc::clone(&self.common);
        let counters = &common.counters;
        let plan = taken.value();
        let hints = plan.hints().len();
        add(&counters.hints, hints as u64);
        let (mut experts, mut bytes) = (0, 0);
        let budget = match self.config.budget {
            ByteBudget::Measured => self.pace.budget_bytes(),
            ByteBudget::Bytes(bytes) => Some(bytes),
            ByteBudget::Unlimited => None,
        };
        for (number, id) in plan.ids().enumerate() {
            let rest = (hints - number) as u64;
            if taken.is_stale() {
                add(&counters.stale_hints, rest);
                return;
            }
            // The first may always be read: a budget below one expert would end all advice.
            let spent = experts > 0 && budget.is_some_and(|budget| bytes >= budget);
            if experts >= self.config.max_experts || spent {
                add(&counters.unaffordable_hints, rest);
                break;
            }
            let Some(told) = self.hint(id, &taken) else { continue };
            add(&counters.advised_bytes, told.asked_bytes);
            add(&counters.brought_bytes, told.brought_bytes);
            add(&counters.warm_bytes, told.already_bytes);
            bytes += told.asked_bytes;
            if told.asked_bytes > 0 {
                experts += 1;
                add(&counters.advised_hints, 1);
                common.brought(plan.step(), id, &told, taken.is_stale());
            }
            match told.end {
                AdviceEnd::Done => {}
                AdviceEnd::Warm => add(&counters.warm_hints, 1),
                AdviceEnd::Overtaken | AdviceEnd::InFlight => {
                    add(&counters.late_hints, 1);
                    let there = told.already_bytes + told.asked_bytes;
                    add(&counters.late_bytes, told.expert_bytes.saturating_sub(there));
                }
                AdviceEnd::Bypassed => add(&counters.bypassed_hints, 1),
                AdviceEnd::Stale => {
                    add(&counters.stale_hints, rest);
                    return;
                }
            }
        }
        taken.complete();
    }

    /// One hint; `None` if it failed, which is counted, and told once.
    fn hint(&mut self, id: ExpertId, taken: &Taken<'_, Plan>) -> Option<Advised> {
        let started = Instant::now();
        let mut stale = || taken.is_stale();
        let (advise, form) = (&self.advise, self.config.form);
        // Whatever breaks here, decoding goes on: a hint has nothing that it could leave half done.
        let told = catch_unwind(AssertUnwindSafe(|| advise.advise(id, form, &mut stale)));
        let took = started.elapsed();
        let counters = &self.common.counters;
        add(&counters.busy_ns, nanos(took));
        let why = match told {
            Ok(Ok(told)) => {
                self.pace.brought(told.brought_bytes, took);
                self.take_notices();
                return Some(told);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => {
                add(&counters.panics, 1);
                "the adviser panicked".to_owned()
            }
        };
        add(&counters.errors, 1);
        if !std::mem::replace(&mut self.failed_before, true) {
            let text = format!("advice on {id} failed (others are counted): {why}");
            self.common.notices.lock().push(Notice::warning(text));
        }
        None
    }

    fn take_notices(&self) {
        let found = self.advise.notices();
        if found.is_empty() {
            return;
        }
        let mut notices = self.common.notices.lock();
        for notice in found {
            if !notices.contains(&notice) {
                notices.push(notice);
            }
        }
    }
}

impl Common {
    fn brought(&self, step: u64, id: ExpertId, told: &Advised, late: bool) {
        let bytes = told.brought_bytes;
        let left = told.expert_bytes.saturating_sub(told.already_bytes + bytes);
        let mut all = self.settle.lock();
        // Nobody settles: do not grow for ever.
        if all.len() < MAX_WIDTH * 8 {
            all.push(Brought { step, id, bytes, left, late });
        }
    }
}

/// What the device brings between two plans: means that forget, a quarter of them each time.
#[derive(Debug, Default)]
struct Pace {
    last_taken: Option<Instant>,
    between_ns: Option<f64>,
    bytes_per_ns: Option<f64>,
}

impl Pace {
    fn taken(&mut self) {
        let now = Instant::now();
        if let Some(last) = self.last_taken.replace(now) {
            mix(&mut self.between_ns, nanos(now - last) as f64);
        }
    }

    fn brought(&mut self, bytes: u64, took: Duration) {
        // What is smaller says more of the calls than of the device.
        if bytes >= 64 << 10 {
            mix(&mut self.bytes_per_ns, bytes as f64 / nanos(took).max(1) as f64);
        }
    }

    /// `None` before both are measured.
    fn budget_bytes(&self) -> Option<u64> {
        Some((self.between_ns? * self.bytes_per_ns?) as u64)
    }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

fn mix(mean: &mut Option<f64>, new: f64) {
    *mean = Some(mean.map_or(new, |old| old + (new - old) / 4.0));
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
