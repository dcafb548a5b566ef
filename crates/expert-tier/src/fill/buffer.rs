//! Buffers of ours that experts are read into.

use super::Piece;
use super::direct::{BufferReader, READ_BYTES};
use crate::error::TierError;
use crate::lock;
use crate::pool::{ExpertLayout, Part};
use memmap2::{Advice, MmapMut};
use std::sync::Arc;

/// Buffers kept for the next route; more are given back to the system.
const SPARE_BUFFERS: usize = 64;

/// One expert's bytes in a buffer of ours; the buffer goes back when this drops.
#[derive(Debug)]
pub(crate) struct BufferExpert {
    buffer: Option<MmapMut>,
    home: Arc<BufferReader>,
    /// Where each extent's aligned range starts in the buffer: at a page.
    starts: Box<[usize]>,
}

impl BufferExpert {
    pub(super) fn new(buffer: MmapMut, home: Arc<BufferReader>, starts: Box<[usize]>) -> Self {
        Self { buffer: Some(buffer), home, starts }
    }

    /// The bytes of one of the expert's parts.
    pub(crate) fn bytes(&self, layout: &ExpertLayout, part: &Part) -> &[u8] {
        let covering = layout.extents.iter().zip(&self.starts).find(|(extent, _)| {
            extent.file == part.extent.file
                && extent.offset <= part.extent.offset
                && part.extent.end() <= extent.end()
        });
        let buffer = self.buffer.as_deref().unwrap_or(&[]);
        covering.map_or(&[], |(extent, start)| {
            let at = start + (part.extent.offset - self.home.aligned(*extent).0) as usize;
            &buffer[at..at + part.extent.len as usize]
        })
    }

    /// Bytes of the buffer: whole pages, and never less than the expert's.
    pub(crate) fn len(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    /// Keep the buffer, one of several that are `all_bytes` together, in memory whatever happens;
    /// the caller has looked whether there is room.
    pub(crate) fn lock(&self, all_bytes: u64, what: &'static str) -> Result<(), TierError> {
        let Some(buffer) = &self.buffer else { return Ok(()) };
        buffer.lock().map_err(|source| lock::refused(all_bytes, what, source))
    }

    pub(super) fn pieces<'a>(&'a mut self, expert: &ExpertLayout) -> Vec<(Piece, &'a mut [u8])> {
        let mut pieces = Vec::new();
        let mut rest: &mut [u8] = self.buffer.as_deref_mut().unwrap_or(&mut []);
        for extent in &expert.extents {
            let (mut offset, len) = self.home.aligned(*extent);
            let slot = len.next_multiple_of(self.home.page_bytes);
            let (target, after) = rest.split_at_mut(slot as usize);
            rest = after;
            for chunk in target[..len as usize].chunks_mut(READ_BYTES) {
                // What must arrive: the rest of the last block lies past the extent, and
                // perhaps past the end of the file.
                let len = (chunk.len() as u64).min(extent.end() - offset);
                pieces.push((Piece { file: extent.file, offset, len }, &mut *chunk));
                offset += READ_BYTES as u64;
            }
        }
        pieces
    }
}

impl Drop for BufferExpert {
    fn drop(&mut self) {
        let mut spare = self.home.spare.lock();
        if spare.len() < SPARE_BUFFERS {
            spare.extend(self.buffer.take());
        }
    }
}

pub(super) fn allocate(bytes: usize) -> Result<MmapMut, TierError> {
    let buffer = MmapMut::map_anon(bytes.max(1)).map_err(|source| TierError::Memory {
        what: "a direct-read buffer",
        bytes,
        source,
    })?;
    // Direct reads into 4 KiB pages need many more segments a request; without huge pages the
    // read still works, only slower.
    drop(buffer.advise(Advice::HugePage));
    Ok(buffer)
}
