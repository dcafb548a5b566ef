use crate::arena::Places;
use crate::auto::Lane;
use crate::error::TierError;
use crate::fill::direct::BufferReader;
use crate::fill::{Arrival, FillMethod};
use crate::lease::{Adopted, AdoptedExpert};
use crate::stats::Snapshot;
use crate::tier::Shared;
use crate::view::ExpertView;
use router_trace::ExpertId;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// An adoption under way: its experts become usable one after the other, in the order in which
/// they were named.
///
/// ```no_run
/// # fn main() -> Result<(), expert_tier::TierError> {
/// # use expert_tier::{Pool, Tier, TierConfig};
/// # let tier = Tier::open(Pool::open("model")?, TierConfig::default())?;
/// let mut adopting = tier.begin(3, &[7, 12, 40])?;
/// loop {
///     let more = adopting.wait()?; // the only wait
///     if more.is_empty() {
///         break;
///     }
///     for expert in adopting.experts().skip(more.start) {
///         println!("{} is usable", expert.id()); // computed with while the rest is read
///     }
/// }
/// let adopted = adopting.finish()?; // from here on, results may be used
/// # drop(adopted);
/// # Ok(())
/// # }
/// ```
///
/// Like [`Adopted`] it is owned and holds what it needs; dropping it waits for its reads and lets
/// everything go.
#[derive(Debug)]
pub struct Adopting {
    /// Before the lease: fields are dropped in this order, and a lease that ends may forget pages
    /// that these reads would bring back.
    fill: Fill,
    adopted: Adopted,
    sources: Vec<Source>,
    /// Experts that are usable: the first so many.
    usable: usize,
    started: Instant,
    /// How what is missing is read; `None` as long as nothing is.
    lane: Option<Lane>,
    /// Whether what is missing only passes.
    passes: bool,
    delta: Snapshot,
}

/// Where an expert comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// It was there.
    Warm,
    /// Our fill, as its expert of this number.
    Ours(usize),
    /// The adoption has named it before, at this place.
    Again(usize),
    /// A fill that another adoption has begun.
    Theirs,
}

/// Our reads, if there are any; waits for them when dropped.
#[derive(Debug)]
struct Fill(Option<Arc<Arrival>>);

impl Drop for Fill {
    fn drop(&mut self) {
        if let Some(arrival) = &self.0 {
            arrival.wait_closed();
        }
    }
}

impl Adopting {
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        layer: u16,
        experts: &[u16],
    ) -> Result<Self, TierError> {
        let started = Instant::now();
        let mut adopting = Self::new(shared, layer, experts, started)?;
        let ids = adopting.ids();
        if let Some(reader) = &shared.reader {
            adopting.read_past_cache(reader, &ids)?;
        } else {
            adopting.fill_missing(&ids, None)?;
        }
        adopting.delta.adopt_ns = elapsed_ns(started);
        Ok(adopting)
    }

    /// The same where `reader` reads what is missing, past the page cache.
    pub(crate) fn begin_passing(
        shared: &Arc<Shared>,
        reader: &Arc<BufferReader>,
        layer: u16,
        experts: &[u16],
    ) -> Result<Self, TierError> {
        let started = Instant::now();
        let mut adopting = Self::new(shared, layer, experts, started)?;
        let ids = adopting.ids();
        adopting.passes = true;
        adopting.fill_missing(&ids, Some(reader))?;
        adopting.delta.passed_bytes = adopting.delta.missing_bytes;
        adopting.delta.adopt_ns = elapsed_ns(started);
        Ok(adopting)
    }

    /// The same where `places` keeps what it keeps and `reader` reads the rest.
    pub(crate) fn begin_in_arena(
        shared: &Arc<Shared>,
        reader: &Arc<BufferReader>,
        places: &Arc<Places>,
        layer: u16,
        experts: &[u16],
    ) -> Result<Self, TierError> {
        let started = Instant::now();
        let mut adopting = Self::new(shared, layer, experts, started)?;
        let ids = adopting.ids();
        let (found, pins) = places.hold(&ids);
        adopting.adopted.pins = Some(pins);
        let mut ours = Vec::new();
        for (place, buffer) in found.into_iter().enumerate() {
            let before = ids[..place].iter().position(|id| *id == ids[place]);
            adopting.sources.push(match (&buffer, before) {
                (Some(_), _) => Source::Warm,
                (None, Some(before)) => Source::Again(before),
                (None, None) => {
                    ours.push(ids[place]);
                    Source::Ours(ours.len() - 1)
                }
            });
            adopting.adopted.experts[place].buffer = buffer;
        }
        if !ours.is_empty() {
            adopting.read(reader, &ours)?;
        }
        adopting.delta.adopt_ns = elapsed_ns(started);
        Ok(adopting)
    }

    /// Nothing usable yet.
    fn new(
        shared: &Arc<Shared>,
        layer: u16,
        experts: &[u16],
        started: Instant,
    ) -> Result<Self, TierError> {
        let ids: Vec<ExpertId> = experts.iter().map(|&index| ExpertId::new(layer, index)).collect();
        for &id in &ids {
            if shared.pool.layout().expert(id).is_none() {
                let in_layer = shared.pool.layout().layer(layer).len();
                return Err(TierError::UnknownExpert { id, in_layer });
            }
        }
        // The lease exists before its bytes do: if the fill fails, its drop undoes the holds.
        shared.hold(&ids);
        let experts = ids.iter().map(|&id| AdoptedExpert { id, buffer: None }).collect();
        let adopted = Adopted { shared: Arc::clone(shared), experts, pins: None };
        let delta = Snapshot { adoptions: 1, ..Snapshot::default() };
        let (fill, sources) = (Fill(None), Vec::new());
        Ok(Self { fill, adopted, sources, usable: 0, started, lane: None, passes: false, delta })
    }

    fn ids(&self) -> Vec<ExpertId> {
        self.adopted.experts.iter().map(|expert| expert.id).collect()
    }

    /// Wait until at least one more expert is usable; the numbers of those that became usable,
    /// in the order in which they were named, none once all are.
    ///
    /// # Errors
    /// A demand read that failed: the adoption as a whole has then failed, and what was computed
    /// with its experts must be thrown away.
    pub fn wait(&mut self) -> Result<Range<usize>, TierError> {
        let first = self.usable;
        if first == self.sources.len() {
            return Ok(first..first);
        }
        // The wait itself, then what has come meanwhile.
        while self.usable < self.sources.len() && self.advance(self.usable == first)? {}
        Ok(first..self.usable)
    }

    /// The experts that are usable so far.
    pub fn experts(&self) -> impl ExactSizeIterator<Item = ExpertView<'_>> {
        self.adopted.experts().take(self.usable)
    }

    /// Numbers of the experts that were not there, or not wholly, when the adoption began, each
    /// once. None with [`FillMethod::Fault`], which leaves them to page faults.
    pub fn missing(&self) -> impl Iterator<Item = u16> {
        let all = self.adopted.experts.iter().zip(&self.sources);
        let missing = all.filter(|(_, source)| matches!(source, Source::Ours(_) | Source::Theirs));
        missing.map(|(expert, _)| expert.id.index)
    }

    /// Wait for the rest, and make sure that everything came from the files as they were opened:
    /// what was computed with the experts may be used now.
    ///
    /// # Errors
    /// A demand read that failed, or what [`Adopted::check`] finds. Counters then show nothing of
    /// the adoption.
    pub fn finish(mut self) -> Result<Adopted, TierError> {
        while self.usable < self.sources.len() {
            self.wait()?;
        }
        self.adopted.check()?;
        self.settle();
        let Self { fill, adopted, delta, started, lane, passes, .. } = self;
        drop(fill);
        adopted.shared.counters.add(&delta);
        if passes {
            adopted.shared.note_passed(&adopted, delta.passed_bytes, started);
            return Ok(adopted);
        }
        if let Some(lane) = lane {
            adopted.shared.note_admission(lane, &delta);
        }
        adopted.shared.note_demand(adopted.experts.iter().map(|expert| expert.id), started);
        Ok(adopted)
    }

    /// In an arena: its policy hears of the experts, and what it answers is counted.
    fn settle(&mut self) {
        let Adopted { shared, experts, pins } = &mut self.adopted;
        let Some(pins) = pins else { return };
        let hits = pins.settle(experts);
        for ((expert, source), hit) in experts.iter().zip(&self.sources).zip(hits) {
            // What we have read was not there, even if another thread has brought it meanwhile.
            let warm = hit && !matches!(source, Source::Ours(_));
            self.delta.count(shared.layout(expert.id).nominal_bytes(), warm);
        }
    }

    /// Whether the next expert is usable now, with `patience` after waiting for it.
    fn advance(&mut self, patience: bool) -> Result<bool, TierError> {
        let source = self.sources[self.usable];
        let here = match source {
            Source::Warm => true,
            Source::Again(before) => {
                let buffer = self.adopted.experts[before].buffer.clone();
                self.adopted.experts[self.usable].buffer = buffer;
                true
            }
            _ if !patience => self.came(source)?,
            _ => {
                let started = Instant::now();
                self.await_next(source)?;
                let waited = elapsed_ns(started);
                self.delta.adopt_ns += waited;
                self.delta.fill_ns += waited;
                true
            }
        };
        self.usable += usize::from(here);
        Ok(here)
    }

    /// Take the next expert if its reads are done.
    fn came(&mut self, source: Source) -> Result<bool, TierError> {
        let Source::Ours(number) = source else { return Ok(false) };
        let Some(found) = self.fill.0.as_ref().and_then(|fill| fill.try_take(number)) else {
            return Ok(false);
        };
        self.adopted.experts[self.usable].buffer = found?.map(Arc::new);
        Ok(true)
    }

    fn await_next(&mut self, source: Source) -> Result<(), TierError> {
        let expert = &mut self.adopted.experts[self.usable];
        match (source, &self.fill.0) {
            (Source::Ours(number), Some(fill)) => expert.buffer = fill.wait(number)?.map(Arc::new),
            _ => self.delta.shared_fills += await_theirs(&self.adopted.shared, expert.id)?,
        }
        Ok(())
    }

    /// Begin to read `ids`, which are all that is adopted, into buffers.
    fn read_past_cache(
        &mut self,
        reader: &Arc<BufferReader>,
        ids: &[ExpertId],
    ) -> Result<(), TierError> {
        self.read(reader, ids)?;
        self.sources = (0..ids.len()).map(Source::Ours).collect();
        for &id in ids {
            let bytes = self.adopted.shared.layout(id).nominal_bytes();
            self.delta.count(bytes, false);
        }
        Ok(())
    }

    /// Begin to read `ids` into buffers.
    fn read(&mut self, reader: &Arc<BufferReader>, ids: &[ExpertId]) -> Result<(), TierError> {
        let shared = &self.adopted.shared;
        let started = Instant::now();
        self.fill.0 = Some(reader.start(&shared.filler, &shared.mapping, &shared.pool, ids)?);
        let extents = ids.iter().flat_map(|&id| &shared.layout(id).extents);
        self.delta.missing_bytes += extents.map(|&extent| shared.pages(extent).1).sum::<u64>();
        self.delta.fill_ns = elapsed_ns(started);
        Ok(())
    }

    /// Probe `ids`, count what is found, and begin to read what is missing.
    fn fill_missing(
        &mut self,
        ids: &[ExpertId],
        passing: Option<&Arc<BufferReader>>,
    ) -> Result<(), TierError> {
        let shared = Arc::clone(&self.adopted.shared);
        let faults = shared.filler.method() == FillMethod::Fault;
        let mut ours = Vec::new();
        let mut reader = passing;
        for &id in ids {
            let layout = shared.layout(id);
            let missing = match shared.missing_of(layout) {
                Ok(missing) => missing,
                Err(error) => {
                    if reader.is_none() {
                        ours.iter().for_each(|&id| shared.in_flight.release(id));
                    }
                    return Err(error);
                }
            };
            if missing > 0 && self.lane.is_none() && passing.is_none() {
                let (lane, past) = shared.lane();
                (self.lane, reader) = (Some(lane), past);
            }
            self.delta.count(layout.nominal_bytes(), missing == 0);
            self.sources.push(if missing == 0 {
                Source::Warm
            } else if reader.is_some() {
                // Whoever else needs it reads it as well: it will not be in the page cache.
                ours.push(id);
                Source::Ours(ours.len() - 1)
            } else {
                self.delta.missing_bytes += missing;
                if faults {
                    Source::Warm
                } else if shared.in_flight.claim(id) {
                    ours.push(id);
                    Source::Ours(ours.len() - 1)
                } else {
                    Source::Theirs
                }
            });
        }
        match reader {
            _ if ours.is_empty() => {}
            Some(reader) => self.read(reader, &ours)?,
            None => {
                let started = Instant::now();
                self.fill.0 = Some(shared.start_fill(ours));
                self.delta.fill_ns = elapsed_ns(started);
            }
        }
        Ok(())
    }
}

/// Wait for the fill that another adoption has begun; 1 if it brought the expert. If it failed,
/// what is missing is ours to try.
fn await_theirs(shared: &Shared, id: ExpertId) -> Result<u64, TierError> {
    loop {
        shared.in_flight.wait_for(id);
        if !shared.is_missing(id)? {
            return Ok(1);
        }
        if shared.in_flight.claim(id) {
            let arrival = shared.start_fill(vec![id]);
            let filled = arrival.wait(0).map(|_| 0);
            arrival.wait_closed();
            return filled;
        }
    }
}

fn elapsed_ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
