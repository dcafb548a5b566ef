use crate::error::TraceError;
use crate::format::TraceSink;
use crate::format::jsonl::{Dropped, TraceSummary};
use crate::pass::{LayerPass, PassInfo};
use crossbeam::queue::ArrayQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::thread::{JoinHandle, park_timeout};
use std::time::Duration;

/// Memory of a [`Recorder`] unless told otherwise: 16 MiB, which holds the routes of
/// hundreds of tokens of the largest models while the disk is busy.
pub const DEFAULT_CAPACITY_BYTES: usize = 16 << 20;
/// The least memory of a [`Recorder`].
pub const MIN_CAPACITY_BYTES: usize = 64 << 10;
/// The most memory of a [`Recorder`].
pub const MAX_CAPACITY_BYTES: usize = 1 << 30;

/// Tokens that fit a slot without an allocation: decode, speculation included.
const SLOT_TOKENS: usize = 16;
/// How long the writer sleeps when there is nothing to write. It is not woken for each
/// record: that would be a system call on the decode thread.
const IDLE: Duration = Duration::from_millis(10);

const RUNNING: u8 = 0;
const FINISHING: u8 = 1;
const ABANDONED: u8 = 2;

/// Captures layer passes on the decode thread; a thread of its own writes them.
///
/// [`record`](Recorder::record) never waits: when the writer is behind and the buffer is
/// full, the pass is dropped and counted, and the trace's end record says so.
/// Decode passes allocate nothing. A prefill chunk larger than a slot allocates once,
/// within the same capacity.
///
/// One recorder belongs to one decode thread (`&mut self`), because the steps of a trace
/// never go back.
pub struct Recorder {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<Outcome>>,
    dropped: Dropped,
    top_k: u16,
}

/// What the writer's thread ends with.
type Outcome = Result<TraceSummary, TraceError>;

/// Slots travel `free` → decode thread → `full` → writer → `free`; each queue has room
/// for all of them, so handing one on never fails.
struct Shared {
    free: ArrayQueue<LayerPass>,
    full: ArrayQueue<LayerPass>,
    /// Bytes that slots may still grow by, for prefill chunks.
    spare_bytes: AtomicUsize,
    slot_ids: usize,
    state: AtomicU8,
    dropped_records: AtomicU64,
    dropped_tokens: AtomicU64,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slots = self.capacity_records();
        f.debug_struct("Recorder").field("slots", &slots).field("dropped", &self.dropped).finish()
    }
}

impl Recorder {
    /// Starts the thread that feeds `writer`, with `capacity_bytes` of buffer
    /// ([`DEFAULT_CAPACITY_BYTES`] is a good choice).
    ///
    /// # Errors
    ///
    /// [`TraceError::Capacity`] outside [`MIN_CAPACITY_BYTES`] to [`MAX_CAPACITY_BYTES`],
    /// [`TraceError::Io`] if no thread can be started.
    pub fn spawn(writer: impl TraceSink, capacity_bytes: usize) -> Result<Self, TraceError> {
        let (min, max) = (MIN_CAPACITY_BYTES, MAX_CAPACITY_BYTES);
        if !(min..=max).contains(&capacity_bytes) {
            return Err(TraceError::Capacity { value: capacity_bytes, min, max });
        }
        let top_k = writer.top_k();
        let shared = Arc::new(Shared::new(top_k, capacity_bytes));
        let theirs = Arc::clone(&shared);
        let writer = std::thread::Builder::new()
            .name("trace-writer".to_owned())
            .spawn(move || theirs.drain_into(writer))
            .map_err(|source| TraceError::Io {
                operation: "start the trace writer",
                records: 0,
                bytes: 0,
                source,
            })?;
        Ok(Self { shared, writer: Some(writer), dropped: Dropped::default(), top_k })
    }

    /// Layer passes that fit the buffer.
    #[must_use]
    pub fn capacity_records(&self) -> usize {
        self.shared.free.capacity()
    }

    /// What was dropped so far.
    #[must_use]
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// Hands one layer pass to the writer; `experts` are its routes, one after the other.
    ///
    /// Returns whether it was taken; if not, it was counted as dropped. A pass that breaks
    /// the format's rules is taken here and reported by [`finish`](Recorder::finish).
    pub fn record(&mut self, info: PassInfo, experts: &[u16]) -> bool {
        let taken = self.shared.offer(info, experts);
        if !taken {
            let tokens = experts.len() / usize::from(self.top_k);
            self.dropped.records += 1;
            self.dropped.tokens += tokens as u64;
        }
        // Woken early only when it falls behind; see IDLE.
        if self.shared.full.len() > self.shared.full.capacity() / 2
            && let Some(writer) = &self.writer
        {
            writer.thread().unpark();
        }
        taken
    }

    /// Writes what is buffered and the end record, and waits for it.
    ///
    /// # Errors
    ///
    /// The first error of the writer, with the file and how many records are whole in it.
    ///
    /// # Panics
    ///
    /// If the writer's output panicked.
    pub fn finish(mut self) -> Result<TraceSummary, TraceError> {
        let joined = self.stop(FINISHING).expect("the writer is there until `finish` or `drop`");
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn stop(&mut self, state: u8) -> Option<std::thread::Result<Outcome>> {
        let writer = self.writer.take()?;
        self.shared.dropped_records.store(self.dropped.records, Ordering::Relaxed);
        self.shared.dropped_tokens.store(self.dropped.tokens, Ordering::Relaxed);
        // Release: whoever sees the state sees the counts and every slot pushed before.
        self.shared.state.store(state, Ordering::Release);
        writer.thread().unpark();
        Some(writer.join())
    }
}

impl Drop for Recorder {
    /// Without [`finish`](Recorder::finish) the file has no end record: it is torn.
    fn drop(&mut self) {
        // Nobody is left to hear how it ended; the torn file says it.
        drop(self.stop(ABANDONED));
    }
}

impl Shared {
    fn new(top_k: u16, capacity_bytes: usize) -> Self {
        let slot_ids = SLOT_TOKENS * usize::from(top_k);
        // A slot has a place in both queues (with their stamps) and its ids.
        let slot_bytes = 2 * (size_of::<LayerPass>() + size_of::<usize>()) + 2 * slot_ids;
        let slots = (capacity_bytes / 2 / slot_bytes).max(1);
        let free = ArrayQueue::new(slots);
        for _ in 0..slots {
            let pushed = free.push(LayerPass::with_capacity(top_k, slot_ids));
            debug_assert!(pushed.is_ok());
        }
        Self {
            free,
            full: ArrayQueue::new(slots),
            spare_bytes: AtomicUsize::new(capacity_bytes / 2),
            slot_ids,
            state: AtomicU8::new(RUNNING),
            dropped_records: AtomicU64::new(0),
            dropped_tokens: AtomicU64::new(0),
        }
    }

    /// The decode thread's side.
    fn offer(&self, info: PassInfo, experts: &[u16]) -> bool {
        let Some(mut slot) = self.free.pop() else { return false };
        // Only the decode thread takes from the spare bytes, the writer only gives back,
        // so what is seen here cannot shrink before it is taken.
        let growth_bytes = 2 * experts.len().saturating_sub(slot.capacity());
        let fits = growth_bytes <= self.spare_bytes.load(Ordering::Relaxed);
        if fits {
            if growth_bytes > 0 {
                slot.reset(experts.len());
                let grown_bytes = 2 * (slot.capacity() - self.slot_ids);
                self.spare_bytes.fetch_sub(grown_bytes, Ordering::Relaxed);
            }
            slot.set(info, experts);
        }
        let onward = if fits { &self.full } else { &self.free };
        let pushed = onward.push(slot);
        debug_assert!(pushed.is_ok(), "each queue has room for every slot");
        fits
    }

    /// The writer's side, until the recorder stops or the output fails.
    fn drain_into(&self, mut writer: impl TraceSink) -> Result<TraceSummary, TraceError> {
        loop {
            // Before the queue is seen empty: a slot pushed before the state changed is
            // then seen as well.
            let state = self.state.load(Ordering::Acquire);
            while let Some(mut slot) = self.full.pop() {
                writer.write_pass(&slot)?;
                if slot.capacity() > self.slot_ids {
                    let grown_bytes = 2 * (slot.capacity() - self.slot_ids);
                    slot.reset(self.slot_ids);
                    self.spare_bytes.fetch_add(grown_bytes, Ordering::Relaxed);
                }
                let pushed = self.free.push(slot);
                debug_assert!(pushed.is_ok(), "each queue has room for every slot");
            }
            match state {
                RUNNING => park_timeout(IDLE),
                FINISHING => {
                    let records = self.dropped_records.load(Ordering::Relaxed);
                    let tokens = self.dropped_tokens.load(Ordering::Relaxed);
                    return writer.finish(Dropped { records, tokens });
                }
                _ => {
                    writer.flush()?;
                    let records = writer.records();
                    return Err(TraceError::Torn { line: records + 2, records });
                }
            }
        }
    }
}
