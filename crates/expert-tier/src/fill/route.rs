//! The fill of one route: all its reads are under way together, and its experts become usable
//! one after the other.

use super::advice::window;
use super::{
    Arrival, FillMethod, FillPlan, Filler, Piece, advise, hint, piece_error, read_through,
};
use crate::error::TierError;
use crate::pool::map::Mapping;
use memmap2::Advice;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the threads of one fill share.
pub(super) struct RouteFill {
    mapping: Arc<Mapping>,
    method: FillMethod,
    experts: Vec<ExpertFill>,
    arrival: Arc<Arrival>,
    /// Hears of every expert once, just before it arrives or is given up.
    closed: Box<dyn Fn(usize) + Send + Sync>,
}

struct ExpertFill {
    plan: FillPlan,
    /// Calls of the present stage that have not come back.
    open: AtomicUsize,
}

/// One call on a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    /// Queue the reads and return.
    Hint,
    /// Read a whole 2 MiB folio and map it.
    Window,
    /// Map what a hint has queued, waiting for it.
    Edge,
    /// Read through a scratch buffer.
    Read,
}

impl fmt::Debug for RouteFill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteFill").field("experts", &self.experts.len()).finish_non_exhaustive()
    }
}

impl RouteFill {
    pub(super) fn new(
        filler: &Filler,
        mapping: &Arc<Mapping>,
        plans: Vec<FillPlan>,
        closed: Box<dyn Fn(usize) + Send + Sync>,
    ) -> Self {
        let arrival = Arc::new(Arrival::new(plans.len()));
        let expert = |plan| ExpertFill { plan, open: AtomicUsize::new(0) };
        let experts = plans.into_iter().map(expert).collect();
        Self { mapping: Arc::clone(mapping), method: filler.method(), experts, arrival, closed }
    }

    /// Begin all reads on the fill threads, expert by expert: all hints first would have the
    /// device bring the ends of the last expert before the middle of the first.
    pub(super) fn start(self, filler: &Filler) -> Arc<Arrival> {
        let arrival = Arc::clone(&self.arrival);
        let fill = Arc::new(self);
        let mut calls: Vec<(usize, Call, Piece)> = Vec::new();
        for (expert, slot) in fill.experts.iter().enumerate() {
            let first = fill.first_stage(&slot.plan);
            slot.open.store(first.len(), Ordering::Relaxed);
            if first.is_empty() {
                fill.close(expert);
            }
            calls.extend(first.into_iter().map(|(call, piece)| (expert, call, piece)));
        }
        if let Some(ring) = &filler.ring {
            let ring = Arc::clone(ring);
            filler.pool.spawn_fifo(move || fill.by_ring(&ring, &calls));
            return arrival;
        }
        for (expert, call, piece) in calls {
            let fill = Arc::clone(&fill);
            filler.pool.spawn_fifo(move || fill.call(expert, call, piece));
        }
        arrival
    }

    fn first_stage(&self, plan: &FillPlan) -> Vec<(Call, Piece)> {
        let edges = match self.method {
            FillMethod::Read => Call::Read,
            _ => Call::Hint,
        };
        let windows = match self.method {
            FillMethod::Read => Call::Read,
            _ => Call::Window,
        };
        let edges = plan.edges.iter().map(move |&piece| (edges, piece));
        edges.chain(plan.windows.iter().map(move |&piece| (windows, piece))).collect()
    }

    fn call(self: &Arc<Self>, expert: usize, call: Call, piece: Piece) {
        if !self.arrival.stopped()
            && let Err(error) = self.make(call, piece)
        {
            self.arrival.fail(error);
        }
        self.came_back(expert, call);
    }

    fn make(&self, call: Call, piece: Piece) -> Result<(), TierError> {
        let mapping = &*self.mapping;
        let done = match call {
            Call::Hint => {
                hint(mapping, &piece);
                return Ok(());
            }
            Call::Read => return read_through(mapping, piece),
            Call::Edge => advise(mapping, Advice::PopulateRead, &piece),
            Call::Window => window(mapping, &piece),
        };
        done.map_err(|source| piece_error(mapping.file(piece.file), piece, source))
    }

    /// One call of the expert's present stage is done; the last one begins the next stage.
    fn came_back(self: &Arc<Self>, expert: usize, call: Call) {
        let slot = &self.experts[expert];
        // What the calls did is told by `arrival`'s lock; the count orders nothing.
        if slot.open.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let edges = &slot.plan.edges;
        if matches!(call, Call::Edge | Call::Read) || edges.is_empty() {
            return self.close(expert);
        }
        let last = if Advice::PopulateRead.is_supported() { Call::Edge } else { Call::Read };
        slot.open.store(edges.len(), Ordering::Relaxed);
        for &edge in edges {
            let fill = Arc::clone(self);
            // On a fill thread, this queues behind what it has of its own and ahead of the rest.
            rayon::spawn_fifo(move || fill.call(expert, last, edge));
        }
    }

    fn close(&self, expert: usize) {
        (self.closed)(expert);
        self.arrival.close(expert, None);
    }

    /// The same calls, made by the workers of a ring.
    fn by_ring(self: &Arc<Self>, ring: &super::uring::Ring, calls: &[(usize, Call, Piece)]) {
        let windows = || calls.iter().filter(|(_, call, _)| *call == Call::Window);
        for (_, _, piece) in windows() {
            if let Err(source) = advise(&self.mapping, Advice::Random, piece) {
                let error = piece_error(self.mapping.file(piece.file), *piece, source);
                self.arrival.fail(error);
            }
        }
        // MADV_WILLNEED asks for the same as FADV_WILLNEED and needs no descriptor.
        let code = |call| match call {
            Call::Hint => libc::MADV_WILLNEED,
            Call::Window | Call::Edge | Call::Read => libc::MADV_POPULATE_READ,
        };
        let asked: Vec<(Piece, i32)> =
            calls.iter().map(|&(_, call, piece)| (piece, code(call))).collect();
        ring.advise_all(&self.mapping, &asked, &mut |index, answer| {
            let (expert, call, piece) = calls[index];
            if call == Call::Window {
                let done = answer.and(advise(&self.mapping, Advice::Normal, &piece));
                if let Err(source) = done {
                    self.arrival.fail(piece_error(self.mapping.file(piece.file), piece, source));
                }
            }
            // A refused hint costs only time: the edges are populated next.
            self.came_back(expert, call);
        });
    }
}
