use crate::admission::Admission;
use crate::fill::direct::DirectExpert;
use crate::tier::Shared;
use crate::view::{Bytes, ExpertView, PartView};
use router_trace::ExpertId;
use std::sync::Arc;

/// An owned lease on a route's experts: while it lives their bytes stay valid.
///
/// It holds the mapping (or the buffers), not a borrow of the tier, so it can be moved to
/// another thread and can outlive the call that made it. Dropping it is the only way by which
/// memory is unmapped, reused or forgotten.
#[derive(Debug)]
pub struct Adopted {
    pub(crate) shared: Arc<Shared>,
    pub(crate) experts: Vec<AdoptedExpert>,
}

#[derive(Debug)]
pub(crate) struct AdoptedExpert {
    pub(crate) id: ExpertId,
    /// `None`: the mapping itself holds the bytes.
    pub(crate) direct: Option<DirectExpert>,
}

impl Adopted {
    /// The adopted experts, in the order they were asked for.
    pub fn experts(&self) -> impl ExactSizeIterator<Item = ExpertView<'_>> {
        self.experts.iter().map(|expert| self.view(expert))
    }

    /// Number of experts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.experts.len()
    }

    /// Whether the lease holds no expert.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.experts.is_empty()
    }

    fn view<'a>(&'a self, expert: &'a AdoptedExpert) -> ExpertView<'a> {
        let layout = self.shared.layout(expert.id);
        let parts = layout.parts.iter().map(|part| PartView {
            role: part.role,
            dtype: part.dtype,
            rows: part.rows,
            cols: part.cols,
            bytes: Bytes::Host(match &expert.direct {
                Some(direct) => direct.bytes(layout, part),
                None => self.shared.mapping.bytes(part.extent),
            }),
        });
        ExpertView { id: expert.id, parts: parts.collect() }
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        if self.shared.config.admission == Admission::DropBehind {
            self.shared.release(self.experts.iter().map(|expert| expert.id));
        }
    }
}
