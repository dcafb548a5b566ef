use super::window::Window;
use crate::accesses::Accesses;
use crate::error::TraceError;
use crate::ids::ModelShape;
use crate::policy::Key;
use std::ops::Range;

/// Some iterations of a trace.
#[derive(Clone, Debug)]
pub struct Span<'t> {
    /// The trace.
    pub trace: &'t Accesses,
    /// Which of its iterations.
    pub iterations: Range<usize>,
}

impl<'t> Span<'t> {
    /// The accesses in order.
    #[must_use]
    pub fn keys(&self) -> &'t [Key] {
        self.trace.keys_in(self.iterations.clone())
    }

    /// The passes in order, each as its layer's slot and its accesses.
    pub fn passes(&self) -> impl Iterator<Item = (u16, &'t [Key])> + use<'t> {
        self.trace.passes_in(self.iterations.clone())
    }
}

/// What tables are trained on, what every policy warms on, and what is scored.
#[derive(Clone, Debug)]
pub struct Replay<'t> {
    /// What the static table is trained on.
    pub trained: Span<'t>,
    /// What every policy sees first, unscored.
    pub warm: Span<'t>,
    /// What is counted.
    pub scored: Span<'t>,
}

impl<'t> Replay<'t> {
    /// One trace: tables are trained and policies warm on its warm window.
    ///
    /// # Errors
    ///
    /// [`TraceError::Setting`] if nothing would be scored.
    pub fn of(trace: &'t Accesses, window: Window) -> Result<Self, TraceError> {
        Self::new(trace, trace, trace, window)
    }

    /// Domain shift at once: everything is trained and warmed on the warm window of `before`
    /// and scored on the scored window of `after`.
    ///
    /// # Errors
    ///
    /// [`TraceError::ShapesDiffer`] if the traces are not of one shape,
    /// [`TraceError::Setting`] if nothing would be scored.
    pub fn shift(
        before: &'t Accesses,
        after: &'t Accesses,
        window: Window,
    ) -> Result<Self, TraceError> {
        Self::new(before, before, after, window)
    }

    /// A table from another domain: the table is trained on the warm window of `table`, while
    /// policies that have none warm and are scored on the windows of `trace`.
    ///
    /// # Errors
    ///
    /// As [`shift`](Replay::shift).
    pub fn foreign_table(
        table: &'t Accesses,
        trace: &'t Accesses,
        window: Window,
    ) -> Result<Self, TraceError> {
        Self::new(table, trace, trace, window)
    }

    fn new(
        table: &'t Accesses,
        before: &'t Accesses,
        after: &'t Accesses,
        window: Window,
    ) -> Result<Self, TraceError> {
        for other in [table, before] {
            let (expected, found) = (after.key_space(), other.key_space());
            // One-off keys are another object in every trace.
            let mixes_one_offs = !std::ptr::eq(other, after)
                && other.n_keys().max(after.n_keys()) > after.key_space().n_keys();
            if found != expected || mixes_one_offs {
                return Err(TraceError::ShapesDiffer {
                    expected: describe(expected.shape(), after.n_keys()),
                    found: describe(found.shape(), other.n_keys()),
                });
            }
        }
        let scored = window.split(after.n_iterations()).1;
        if after.keys_in(scored.clone()).is_empty() {
            return Err(TraceError::Setting {
                what: "window",
                value: window.to_string(),
                expected: format!(
                    "one that scores something of {} iterations",
                    after.n_iterations()
                ),
            });
        }
        let warm_span = |trace: &'t Accesses| {
            let iterations = window.split(trace.n_iterations()).0;
            Span { trace, iterations }
        };
        Ok(Self {
            trained: warm_span(table),
            warm: warm_span(before),
            scored: Span { trace: after, iterations: scored },
        })
    }

    /// Keys that occur or could.
    #[must_use]
    pub fn n_keys(&self) -> usize {
        self.scored.trace.n_keys()
    }

    /// All accesses that policies see, warm ones first.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        [self.warm.keys(), self.scored.keys()].concat()
    }
}

fn describe(shape: &ModelShape, n_keys: usize) -> String {
    let (layers, experts) = (shape.moe_layers.len(), shape.n_experts);
    let extra = n_keys - shape.total_experts();
    let first = shape.moe_layers.first().copied().unwrap_or(0);
    format!("{layers} layers from {first} of {experts} experts and {extra} one-off objects")
}
