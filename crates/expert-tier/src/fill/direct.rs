//! The unbuffered comparator: `O_DIRECT` reads into buffers of ours, past the page cache.

use super::{Filler, Piece, piece_error};
use crate::error::TierError;
use crate::pool::map::{MappedFile, Mapping};
use crate::pool::{ExpertLayout, Extent, Part};
use memmap2::{Advice, MmapMut};
use parking_lot::Mutex;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;

/// Offsets, lengths and addresses of direct reads are multiples of this: at least the logical
/// block size of every device in use (512 or 4096 bytes).
const ALIGN_BYTES: u64 = 4096;

/// One read: large enough for a device's full rate, small enough to spread over the threads.
const READ_BYTES: usize = 1 << 20;

/// Buffers kept for the next route; more are given back to the system.
const SPARE_BUFFERS: usize = 64;

/// The pool's files, opened for direct reads, and the buffers these go to.
#[derive(Debug)]
pub(crate) struct DirectReader {
    files: Vec<File>,
    spare: Mutex<Vec<MmapMut>>,
}

/// One expert's bytes in a buffer of ours; the buffer goes back when this drops.
#[derive(Debug)]
pub(crate) struct DirectExpert {
    buffer: Option<MmapMut>,
    home: Arc<DirectReader>,
    /// Where each extent's aligned range starts in the buffer.
    starts: Box<[usize]>,
}

impl DirectReader {
    pub(crate) fn open(mapping: &Mapping) -> Result<Self, TierError> {
        let files = mapping.files().iter().map(|mapped| {
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&mapped.path).map_err(
                |source| TierError::DirectUnavailable { path: mapped.path.clone(), source },
            )
        });
        Ok(Self { files: files.collect::<Result<_, _>>()?, spare: Mutex::default() })
    }

    /// Read all of `experts`, together.
    pub(crate) fn read(
        self: &Arc<Self>,
        filler: &Filler,
        mapping: &Mapping,
        experts: &[&ExpertLayout],
    ) -> Result<Vec<DirectExpert>, TierError> {
        let mut read: Vec<DirectExpert> =
            experts.iter().map(|expert| self.reserve(expert)).collect::<Result<_, _>>()?;
        let jobs: Vec<(Piece, &mut [u8])> =
            read.iter_mut().zip(experts).flat_map(|(slot, expert)| slot.pieces(expert)).collect();
        filler.run(|| {
            jobs.into_par_iter().with_max_len(1).try_for_each(|(piece, target)| {
                let mapped = mapping.file(piece.file);
                read_piece(&self.files[piece.file as usize], mapped, piece, target)
            })
        })?;
        Ok(read)
    }

    fn reserve(self: &Arc<Self>, expert: &ExpertLayout) -> Result<DirectExpert, TierError> {
        let mut starts = Vec::with_capacity(expert.extents.len());
        let mut total = 0_usize;
        for extent in &expert.extents {
            starts.push(total);
            total += aligned(*extent).1 as usize;
        }
        let found = {
            let mut spare = self.spare.lock();
            let position = spare.iter().position(|buffer| buffer.len() >= total);
            position.map(|position| spare.swap_remove(position))
        };
        let buffer = match found {
            Some(buffer) => buffer,
            None => allocate(total)?,
        };
        Ok(DirectExpert { buffer: Some(buffer), home: Arc::clone(self), starts: starts.into() })
    }
}

impl DirectExpert {
    /// The bytes of one of the expert's parts.
    pub(crate) fn bytes(&self, layout: &ExpertLayout, part: &Part) -> &[u8] {
        let covering = layout.extents.iter().zip(&self.starts).find(|(extent, _)| {
            extent.file == part.extent.file
                && extent.offset <= part.extent.offset
                && part.extent.end() <= extent.end()
        });
        let buffer = self.buffer.as_deref().unwrap_or(&[]);
        covering.map_or(&[], |(extent, start)| {
            let at = start + (part.extent.offset - aligned(*extent).0) as usize;
            &buffer[at..at + part.extent.len as usize]
        })
    }

    fn pieces<'a>(&'a mut self, expert: &ExpertLayout) -> Vec<(Piece, &'a mut [u8])> {
        let mut pieces = Vec::new();
        let mut rest: &mut [u8] = self.buffer.as_deref_mut().unwrap_or(&mut []);
        for extent in &expert.extents {
            let (mut offset, len) = aligned(*extent);
            let (target, after) = rest.split_at_mut(len as usize);
            rest = after;
            for chunk in target.chunks_mut(READ_BYTES) {
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

impl Drop for DirectExpert {
    fn drop(&mut self) {
        let mut spare = self.home.spare.lock();
        if spare.len() < SPARE_BUFFERS {
            spare.extend(self.buffer.take());
        }
    }
}

/// Start and length of the aligned range around `extent`.
fn aligned(extent: Extent) -> (u64, u64) {
    let start = extent.offset / ALIGN_BYTES * ALIGN_BYTES;
    (start, extent.end().next_multiple_of(ALIGN_BYTES) - start)
}

fn allocate(bytes: usize) -> Result<MmapMut, TierError> {
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

fn read_piece(
    file: &File,
    mapped: &MappedFile,
    piece: Piece,
    target: &mut [u8],
) -> Result<(), TierError> {
    let mut done = 0_usize;
    while (done as u64) < piece.len {
        match file.read_at(&mut target[done..], piece.offset + done as u64) {
            Ok(0) => return Err(piece_error(mapped, piece, io::ErrorKind::UnexpectedEof.into())),
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(piece_error(mapped, piece, error)),
        }
    }
    Ok(())
}
