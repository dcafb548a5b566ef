//! Hints: experts brought into the page cache before anybody demands them.

use crate::error::TierError;
use crate::fill::advice::{Hinter, bring, read_whole};
use crate::fill::priority;
use crate::in_flight::AdviceClaim;
use crate::notice::Notice;
use crate::pool::ExpertLayout;
use crate::residency::{ProbeKind, ResidencyProbe};
use crate::tier::{Shared, Tier};
use parking_lot::Mutex;
use router_trace::ExpertId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// How advice is given.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdviceForm {
    /// In pieces of at most 2 MiB and the device's read-ahead window, by the calls that the
    /// tier's own fill makes, so that an advised expert lies in the same folios as a demanded
    /// one. Stops between pieces.
    #[default]
    Pieces,
    /// Plain reads of the whole expert into a buffer that is thrown away: the control. Does not
    /// stop once begun.
    BlockingRead,
    /// One `posix_fadvise(WILLNEED)` an extent: what most programs do, and what the kernel clips
    /// to the larger of read-ahead window and largest device request. Kept to show that.
    SingleCall,
}

/// How advice on one expert ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdviceEnd {
    /// Every page was in the page cache: nothing was asked for.
    Warm,
    /// All that was missing was asked for.
    Done,
    /// The caller's plan was stale.
    Stale,
    /// Demand has begun to read the expert, and reads the rest itself.
    Overtaken,
    /// Someone else brings it already: demand, or another advisor.
    InFlight,
    /// The tier's reads pass the page cache: a hint would be read and never used.
    Bypassed,
}

/// What advice on one expert did, in bytes of whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Advised {
    /// How it ended.
    pub end: AdviceEnd,
    /// Bytes of the expert's pages.
    pub expert_bytes: u64,
    /// The part of them that a probe found in the page cache beforehand.
    pub already_bytes: u64,
    /// Missing bytes that the kernel was asked for.
    pub asked_bytes: u64,
    /// The part of these that a probe found afterwards; for a [`AdviceForm::SingleCall`], which
    /// returns while the device reads, that the page cache has begun to read (where `cachestat`
    /// tells it).
    pub brought_bytes: u64,
}

/// Brings experts into the page cache ahead of demand, and keeps out of its way.
///
/// Made by [`Tier::advisor`]; clones are cheap and share their notices. It holds the mapping
/// alive. A hint changes no byte that an adoption sees, and demand never waits for it longer than
/// for the one piece that is being read: the page cache gives that piece to both, and the rest of
/// the expert is demand's. Calls take as long as the device does: they belong on a thread of
/// their own ([`Advisor::lower_reads`]), never on a decode thread.
#[derive(Clone, Debug)]
pub struct Advisor {
    shared: Arc<Shared>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    hinter: Hinter,
    notices: Mutex<Vec<Notice>>,
}

impl Tier {
    /// Who gives hints for this tier.
    #[must_use]
    pub fn advisor(&self) -> Advisor {
        let notices = if self.shared.reader.is_some() {
            let arm = self.shared.config.admission;
            let text = format!("no advice is given: {arm} reads past the page cache");
            vec![Notice::warning(text)]
        } else {
            Vec::new()
        };
        let state = State { hinter: Hinter::default(), notices: Mutex::new(notices) };
        Advisor { shared: Arc::clone(&self.shared), state: Arc::new(state) }
    }
}

impl Advisor {
    /// Ask for what is missing of the expert `id`, and return once it is there (for
    /// [`AdviceForm::SingleCall`]: once it was asked for). `stale` is asked between pieces;
    /// after `true` nothing more is begun.
    ///
    /// # Errors
    /// [`TierError::UnknownExpert`]; a read that failed, which concerns nobody until the expert
    /// is demanded; a system that refuses the probe.
    pub fn advise(
        &self,
        id: ExpertId,
        form: AdviceForm,
        stale: &mut dyn FnMut() -> bool,
    ) -> Result<Advised, TierError> {
        let shared = &*self.shared;
        let in_layer = shared.pool.layout().layer(id.layer).len();
        let layout =
            shared.pool.layout().expert(id).ok_or(TierError::UnknownExpert { id, in_layer })?;
        let expert_bytes = layout.extents.iter().map(|&extent| shared.pages(extent).1).sum();
        let nothing = Advised {
            end: AdviceEnd::Warm,
            expert_bytes,
            already_bytes: 0,
            asked_bytes: 0,
            brought_bytes: 0,
        };
        if shared.reader.is_some() {
            return Ok(Advised { end: AdviceEnd::Bypassed, ..nothing });
        }
        if stale() {
            return Ok(Advised { end: AdviceEnd::Stale, ..nothing });
        }
        let missing = shared.missing_of(layout)?;
        let told = Advised { already_bytes: expert_bytes.saturating_sub(missing), ..nothing };
        if missing == 0 {
            return Ok(told);
        }
        let Some(claim) = shared.in_flight.advise(id) else {
            return Ok(Advised { end: AdviceEnd::InFlight, ..told });
        };
        match form {
            AdviceForm::Pieces => self.pieces(&claim, id, told, stale),
            AdviceForm::BlockingRead => self.blocking(layout, missing, told),
            AdviceForm::SingleCall => self.single_call(layout, missing, told),
        }
    }

    /// Have the device serve the calling thread's reads after everybody else's, from now on;
    /// where the system refuses that, a notice says so.
    pub fn lower_reads(&self) {
        if let Err(error) = priority::idle_reads() {
            let text = format!("advice reads at the priority of demand: ioprio_set: {error}");
            self.notice(Notice::warning(text));
        }
    }

    /// What a person should know of how advice works here, each thing once.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        self.state.notices.lock().clone()
    }

    /// Mean bytes of an expert's pages in layer `layer`; 0 for a layer without experts.
    #[must_use]
    pub fn expert_bytes(&self, layer: u16) -> u64 {
        let experts = self.shared.pool.layout().layer(layer);
        let bytes: u64 = experts.iter().map(ExpertLayout::nominal_bytes).sum();
        bytes.checked_div(experts.len() as u64).unwrap_or(0)
    }

    /// Probe what a demand would find missing of `id`.
    ///
    /// # Errors
    /// [`TierError::UnknownExpert`], or a system that refuses the probe.
    pub fn missing_bytes(&self, id: ExpertId) -> Result<u64, TierError> {
        let in_layer = self.shared.pool.layout().layer(id.layer).len();
        let layout = self.shared.pool.layout().expert(id);
        self.shared.missing_of(layout.ok_or(TierError::UnknownExpert { id, in_layer })?)
    }

    fn pieces(
        &self,
        claim: &AdviceClaim<'_>,
        id: ExpertId,
        told: Advised,
        stale: &mut dyn FnMut() -> bool,
    ) -> Result<Advised, TierError> {
        let shared = &*self.shared;
        let mut told = Advised { end: AdviceEnd::Done, ..told };
        for step in shared.plan(id).in_order() {
            let missing = shared.missing_in(step.piece())?;
            if missing == 0 {
                continue;
            }
            if claim.overtaken() {
                told.end = AdviceEnd::Overtaken;
                break;
            }
            if stale() {
                told.end = AdviceEnd::Stale;
                break;
            }
            told.asked_bytes += missing;
            let noticed = bring(&shared.mapping, &shared.filler, &self.state.hinter, step)?;
            if let Some(notice) = noticed {
                self.notice(notice);
            }
            told.brought_bytes += missing.saturating_sub(shared.missing_in(step.piece())?);
        }
        // A tail's window reaches past the expert's last page.
        let most = told.expert_bytes - told.already_bytes;
        told.asked_bytes = told.asked_bytes.min(most);
        told.brought_bytes = told.brought_bytes.min(most);
        Ok(told)
    }

    fn blocking(
        &self,
        layout: &ExpertLayout,
        missing: u64,
        told: Advised,
    ) -> Result<Advised, TierError> {
        for &extent in &layout.extents {
            read_whole(&self.shared.mapping, extent)?;
        }
        let left = self.shared.missing_of(layout)?;
        let brought_bytes = missing.saturating_sub(left);
        Ok(Advised { end: AdviceEnd::Done, asked_bytes: missing, brought_bytes, ..told })
    }

    fn single_call(
        &self,
        layout: &ExpertLayout,
        missing: u64,
        told: Advised,
    ) -> Result<Advised, TierError> {
        let shared = &*self.shared;
        let before = self.unbegun(layout)?;
        for &extent in &layout.extents {
            if let Some(notice) = self.state.hinter.whole(&shared.mapping, extent)? {
                self.notice(notice);
            }
        }
        let brought_bytes = before.saturating_sub(self.unbegun(layout)?);
        Ok(Advised { end: AdviceEnd::Done, asked_bytes: missing, brought_bytes, ..told })
    }

    /// Bytes whose read has not even begun, where the kernel tells that.
    fn unbegun(&self, layout: &ExpertLayout) -> Result<u64, TierError> {
        let shared = &*self.shared;
        let mut sum = 0;
        for &extent in &layout.extents {
            let file = shared.mapping.handle(extent.file)?;
            let (offset, len) = shared.pages(extent);
            sum += match ResidencyProbe::choose(&file, Some(ProbeKind::Cachestat)) {
                Ok(probe) => {
                    let map = shared.mapping.file(extent.file).map();
                    probe.missing_bytes(&file, map, offset, len).map_err(|source| {
                        let path = shared.mapping.file(extent.file).path.clone();
                        TierError::Io { path, operation: "probe", source }
                    })?
                }
                Err(_) => shared.missing_bytes(extent)?,
            };
        }
        Ok(sum)
    }

    fn notice(&self, notice: Notice) {
        let mut notices = self.state.notices.lock();
        if !notices.contains(&notice) {
            notices.push(notice);
        }
    }
}

impl AdviceForm {
    /// Every form.
    pub const ALL: [Self; 3] = [Self::Pieces, Self::BlockingRead, Self::SingleCall];

    /// The name used on command lines and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pieces => "pieces",
            Self::BlockingRead => "blocking-read",
            Self::SingleCall => "single-call",
        }
    }
}

impl fmt::Display for AdviceForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AdviceForm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|form| form.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown form of advice {name:?}, expected one of: {names}")
        })
    }
}
