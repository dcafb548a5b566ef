//! A piece of an expert, brought in ahead of demand by the thread that asks: the calls of a
//! demand fill, one piece at a time, so that what is outstanding is one piece.

use super::plan::Step;
use super::{Filler, Piece, advise, piece_error, read_through};
use crate::error::TierError;
use crate::fill::FillMethod;
use crate::notice::Notice;
use crate::pool::Extent;
use crate::pool::handles::refused;
use crate::pool::map::Mapping;
use memmap2::Advice;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

/// Queues the reads of small pieces, by the first call that the kernel does not refuse.
#[derive(Debug, Default)]
pub(crate) struct Hinter {
    /// Which of [`CALLS`]; refusals are for good.
    call: AtomicU8,
}

/// What can queue reads, the preferred first.
const CALLS: [(&str, HintCall); 2] = [
    ("madvise(WILLNEED)", |mapping, piece| advise(mapping, Advice::WillNeed, piece)),
    ("posix_fadvise(WILLNEED)", fadvise),
];

type HintCall = fn(&Mapping, &Piece) -> io::Result<()>;

fn fadvise(mapping: &Mapping, piece: &Piece) -> io::Result<()> {
    let file = mapping.handle(piece.file).map_err(io::Error::other)?;
    let (offset, len) = (piece.offset.cast_signed(), piece.len.cast_signed());
    Ok(posix_fadvise(&file, offset, len, PosixFadviseAdvice::POSIX_FADV_WILLNEED)?)
}

impl Hinter {
    /// Queue the reads of `piece`; whether they were queued, and what a person should know once.
    fn queue(&self, mapping: &Mapping, piece: &Piece) -> (bool, Option<Notice>) {
        self.queue_by(&CALLS, mapping, piece)
    }

    fn queue_by(
        &self,
        calls: &[(&str, HintCall)],
        mapping: &Mapping,
        piece: &Piece,
    ) -> (bool, Option<Notice>) {
        let mut noticed = None;
        loop {
            // Two threads that meet a refusal both step on to the same call.
            let current = self.call.load(Ordering::Relaxed);
            let Some((name, call)) = calls.get(usize::from(current)) else {
                return (false, noticed);
            };
            match call(mapping, piece) {
                Ok(()) => return (true, noticed),
                Err(error) if refused(&error) => {
                    let next = calls.get(usize::from(current) + 1).map_or("plain reads", |n| n.0);
                    let text = format!("advice is given by {next}: {name} is refused: {error}");
                    let swapped = self.call.compare_exchange(
                        current,
                        current + 1,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    );
                    noticed = swapped.is_ok().then(|| Notice::warning(text)).or(noticed);
                }
                // A hint that fails this time costs only time: the read that follows tells.
                Err(_) => return (false, noticed),
            }
        }
    }

    /// One call for a whole extent, whatever the kernel makes of it.
    pub(crate) fn whole(
        &self,
        mapping: &Mapping,
        extent: Extent,
    ) -> Result<Option<Notice>, TierError> {
        let piece = Piece { file: extent.file, offset: extent.offset, len: extent.len };
        match fadvise(mapping, &piece) {
            Ok(()) => Ok(None),
            Err(error) if refused(&error) => {
                let (_, noticed) = self.queue(mapping, &piece);
                let text = format!("posix_fadvise(WILLNEED) is refused: {error}");
                Ok(noticed.or(Some(Notice::warning(text))))
            }
            Err(source) => Err(piece_error(mapping.file(piece.file), piece, source)),
        }
    }
}

/// Bring `step` in as `filler` would, and wait for it; what a person should know once.
pub(crate) fn bring(
    mapping: &Mapping,
    filler: &Filler,
    hinter: &Hinter,
    step: Step,
) -> Result<Option<Notice>, TierError> {
    let populates = Advice::PopulateRead.is_supported() && filler.method() != FillMethod::Read;
    let (piece, noticed) = match step {
        Step::Window(piece) if populates => {
            window(mapping, &piece)
                .map_err(|source| piece_error(mapping.file(piece.file), piece, source))?;
            return Ok(None);
        }
        // A populate without the hint before would read what nobody asked for, or page by page.
        Step::Edge(piece) if populates => match hinter.queue(mapping, &piece) {
            (true, noticed) => {
                let mapped = advise(mapping, Advice::PopulateRead, &piece);
                mapped.map_err(|source| piece_error(mapping.file(piece.file), piece, source))?;
                return Ok(noticed);
            }
            (false, noticed) => (piece, noticed),
        },
        Step::Window(piece) | Step::Edge(piece) => {
            let (_, noticed) = hinter.queue(mapping, &piece);
            (piece, noticed)
        }
    };
    read_through(mapping, piece)?;
    Ok(noticed)
}

/// Read a whole 2 MiB folio and map it: `MADV_RANDOM` around the read keeps the fault from reading
/// the next window too. Another thread may do the same to the same range at the same time: the
/// folio is then in the page cache, and whose `MADV_NORMAL` comes first makes no difference.
///
/// The folio stays mapped, for advice as well: unmapped again (so that what nobody demands would
/// be evicted first), its first fault reads the next window too, and a layer pipeline with an
/// oracle's hints took 1.14 of the time without hints instead of 0.68.
pub(super) fn window(mapping: &Mapping, piece: &Piece) -> io::Result<()> {
    let random = advise(mapping, Advice::Random, piece);
    let filled = random.and_then(|()| advise(mapping, Advice::PopulateRead, piece));
    let normal = advise(mapping, Advice::Normal, piece);
    filled.and(normal)
}

/// Read a whole extent through a scratch buffer.
pub(crate) fn read_whole(mapping: &Mapping, extent: Extent) -> Result<(), TierError> {
    read_through(mapping, Piece { file: extent.file, offset: extent.offset, len: extent.len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;

    fn refuse(_: &Mapping, _: &Piece) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    }

    fn fail(_: &Mapping, _: &Piece) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EIO))
    }

    fn take(_: &Mapping, _: &Piece) -> io::Result<()> {
        Ok(())
    }

    #[test]
    fn what_is_refused_is_tried_once_and_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let header = br#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}   "#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend([1; 8]);
        std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
        let mapping = Mapping::open(&Pool::open(dir.path()).unwrap(), false).unwrap();
        let piece = Piece { file: 0, offset: 0, len: 8 };

        let hinter = Hinter::default();
        let calls: [(&str, HintCall); 2] = [("one", refuse), ("two", take)];
        let (queued, noticed) = hinter.queue_by(&calls, &mapping, &piece);
        let text = noticed.unwrap().text;
        assert!(queued && text.contains("by two") && text.contains("one is refused"), "{text}");
        let calls: [(&str, HintCall); 2] =
            [("one", |_, _| panic!("refused before")), ("two", take)];
        assert_eq!(hinter.queue_by(&calls, &mapping, &piece), (true, None));

        let calls: [(&str, HintCall); 2] = [("one", refuse), ("two", refuse)];
        let (queued, noticed) = Hinter::default().queue_by(&calls, &mapping, &piece);
        assert!(!queued && noticed.unwrap().text.contains("plain reads"));

        // One that fails for another reason is tried again the next time.
        let hinter = Hinter::default();
        assert_eq!(hinter.queue_by(&[("one", fail)], &mapping, &piece), (false, None));
        assert_eq!(hinter.queue_by(&[("one", take)], &mapping, &piece), (true, None));
        assert_eq!(Hinter::default().queue(&mapping, &piece), (true, None), "the real ones");
    }
}
