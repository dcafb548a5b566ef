use crate::admission::Admission;
use crate::arena::Pins;
use crate::error::TierError;
use crate::fill::buffer::BufferExpert;
use crate::tier::Shared;
use crate::view::{Bytes, ExpertView, PartView};
use router_trace::ExpertId;
use std::sync::Arc;

/// An owned lease on a route's experts: while it lives their bytes stay valid.
///
/// It holds the mapping (or the buffers), not a borrow of the tier, so it can be moved to
/// another thread and can outlive the call that made it. Dropping it is the only way by which
/// memory is unmapped, reused or forgotten.
///
/// What nobody can promise is that the file stays as it was. Whoever computed with the bytes
/// calls [`Adopted::check`] before the result is used: a page that could not be read (a cut file,
/// a bad sector) reads as zeros instead of ending the process, and the check then fails.
#[derive(Debug)]
pub struct Adopted {
    pub(crate) shared: Arc<Shared>,
    pub(crate) experts: Vec<AdoptedExpert>,
    /// What keeps an arena from giving the experts up. After them: fields are dropped in this
    /// order.
    pub(crate) pins: Option<Pins>,
}

#[derive(Debug)]
pub(crate) struct AdoptedExpert {
    pub(crate) id: ExpertId,
    /// `None`: the mapping itself holds the bytes.
    pub(crate) buffer: Option<Arc<BufferExpert>>,
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

    /// Whether everything that was read through this lease so far came from the files as they
    /// were opened. To be called after the computation and before its result is used.
    ///
    /// # Errors
    /// [`TierError::Poisoned`] if pages of these experts could not be read while they were in
    /// use, [`TierError::FileChanged`] if a file was cut or rewritten in place. The result must
    /// then be thrown away. Leases on other files stay valid; later adoptions of the same bytes
    /// fail as well.
    pub fn check(&self) -> Result<(), TierError> {
        self.shared.check(self.experts.iter().map(|expert| expert.id))
    }

    /// The experts that are used in the mapping.
    pub(crate) fn in_place(&self) -> impl Iterator<Item = ExpertId> + '_ {
        self.experts.iter().filter(|expert| expert.buffer.is_none()).map(|expert| expert.id)
    }

    fn view<'a>(&'a self, expert: &'a AdoptedExpert) -> ExpertView<'a> {
        let layout = self.shared.layout(expert.id);
        let parts = layout.parts.iter().map(|part| PartView {
            role: part.role,
            dtype: part.dtype,
            rows: part.rows,
            cols: part.cols,
            bytes: Bytes::Host(match &expert.buffer {
                Some(buffer) => buffer.bytes(layout, part),
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
