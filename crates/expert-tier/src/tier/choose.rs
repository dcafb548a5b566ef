//! Where a tier asks how to read what is missing, and what it chose.

use super::{Shared, Tier};
use crate::admission::Admission;
use crate::auto::{Auto, AutoChoice, AutoConfig, Job, Lane};
use crate::config::TierConfig;
use crate::error::TierError;
use crate::fill::FillMethod;
use crate::fill::direct::{BufferReader, Method};
use crate::observe::SystemRoot;
use crate::pool::Pool;
use crate::stats::Snapshot;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Tier {
    /// What [`Admission::Auto`] has chosen so far, and why; `None` for the other arms.
    #[must_use]
    pub fn admission_choice(&self) -> Option<AutoChoice> {
        self.shared.auto.as_deref().map(Auto::choice)
    }

    /// Have [`Admission::Auto`] begin anew with `config`, and read memory below `root`. Nothing
    /// happens to a tier of another arm.
    ///
    /// # Errors
    /// A config out of its limits; nothing has changed then.
    pub fn tune_admission(&self, config: AutoConfig, root: &SystemRoot) -> Result<(), TierError> {
        let Some(auto) = &self.shared.auto else { return Ok(()) };
        let adopted = self.shared.counters.adopted_bytes.load(Ordering::Relaxed);
        auto.restart(config, self.pool().layout().total_bytes(), adopted, root)?;
        self.shared.admits.store(true, Ordering::Relaxed);
        if self.fill_method() == FillMethod::Fault {
            auto.disable(UNTIMED.to_owned());
        }
        Ok(())
    }
}

const UNTIMED: &str = "page faults come while the bytes are used, where nobody can time them";

/// The choosing part of a tier, where its config asks for one.
pub(super) fn chooser(
    config: TierConfig,
    pool: &Pool,
    fill: FillMethod,
) -> Result<Option<Arc<Auto>>, TierError> {
    if config.admission != Admission::Auto {
        return Ok(None);
    }
    let bytes = pool.layout().total_bytes();
    let auto = Auto::new(AutoConfig::default(), bytes, 0, &SystemRoot::default())?;
    if fill == FillMethod::Fault {
        auto.disable(UNTIMED.to_owned());
    }
    Ok(Some(Arc::new(auto)))
}

impl Shared {
    /// For reports: what is read through the mapping may, at the moment, be missed past it.
    pub(super) fn chosen_channel(&self) -> String {
        let auto = self.auto.as_ref().filter(|_| !self.admits.load(Ordering::Relaxed));
        match auto.and_then(|auto| auto.reader()) {
            Some(reader) => format!("mapping, misses {}", reader.channel()),
            None => "mapping".to_owned(),
        }
    }

    /// How an adoption that misses something reads it.
    pub(crate) fn lane(&self) -> (Lane, Option<&Arc<BufferReader>>) {
        let Some(auto) = &self.auto else { return (Lane::Through, None) };
        let lane = auto.lane();
        match auto.reader().filter(|_| lane.is_past()) {
            Some(reader) => (lane, Some(reader)),
            // A lane is only told where there is a reader for it; without one, none is timed.
            None if lane.is_past() => (Lane::Through, None),
            None => (lane, None),
        }
    }

    /// Reads what only passes; `None` for arms that need no such reader.
    pub(crate) fn passing_reader(&self) -> Option<&Result<Arc<BufferReader>, String>> {
        let keeps = matches!(self.config.admission, Admission::Admit | Admission::Auto);
        if !keeps || self.filler.method() == FillMethod::Fault {
            return None;
        }
        Some(self.passing.get_or_init(|| self.unbuffered_reader()))
    }

    /// Direct reads, if they are proved to leave nothing in the page cache.
    fn unbuffered_reader(&self) -> Result<Arc<BufferReader>, String> {
        let reader = BufferReader::open(&self.pool, Method::Direct, &self.mapping, &self.probes)
            .map_err(|error| error.to_string())?;
        if reader.unproved() > 0 {
            return Err("unbuffered reads are not proved to pass the page cache by".to_owned());
        }
        Ok(Arc::new(reader))
    }

    /// An adoption that missed something is complete and counted. A function of its own, so that
    /// its cost can be told apart.
    #[inline(never)]
    pub(crate) fn note_admission(&self, lane: Lane, delta: &Snapshot) {
        let Some(auto) = &self.auto else { return };
        let adopted = self.counters.adopted_bytes.load(Ordering::Relaxed);
        let spawn = |job: Job| self.filler.spawn(job);
        auto.note(lane, delta, adopted, &self.admits, spawn, || self.unbuffered_reader());
    }
}
