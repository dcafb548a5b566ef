use crate::pool::{Dtype, PartRole};
use router_trace::ExpertId;

/// The bytes of a part: readable by the CPU, or at an address of the compute device.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Bytes<'a> {
    /// In memory that the CPU reads in place.
    Host(&'a [u8]),
    /// In memory of the compute device; valid while the lease lives.
    Device {
        /// Device address.
        ptr: u64,
        /// Length in bytes.
        len: usize,
    },
}

impl<'a> Bytes<'a> {
    /// The bytes if the CPU can read them.
    #[must_use]
    pub fn host(self) -> Option<&'a [u8]> {
        match self {
            Self::Host(bytes) => Some(bytes),
            Self::Device { .. } => None,
        }
    }
}

/// One tensor of an adopted expert.
#[derive(Clone, Copy, Debug)]
pub struct PartView<'a> {
    /// What it is for.
    pub role: PartRole,
    /// Stored element type.
    pub dtype: Dtype,
    /// Stored rows.
    pub rows: u32,
    /// Stored columns.
    pub cols: u32,
    /// Its bytes.
    pub bytes: Bytes<'a>,
}

/// One adopted expert; lives as long as the lease it came from.
#[derive(Clone, Debug)]
pub struct ExpertView<'a> {
    pub(crate) id: ExpertId,
    pub(crate) parts: Vec<PartView<'a>>,
}

impl<'a> ExpertView<'a> {
    /// Which expert.
    #[must_use]
    pub fn id(&self) -> ExpertId {
        self.id
    }

    /// Its tensors, sorted by role.
    #[must_use]
    pub fn parts(&self) -> &[PartView<'a>] {
        &self.parts
    }

    /// The tensor with this role.
    #[must_use]
    pub fn part(&self, role: PartRole) -> Option<&PartView<'a>> {
        self.parts.iter().find(|part| part.role == role)
    }
}
