use crate::error::TraceError;
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Where the bytes of a trace are.
pub(super) enum Origin {
    File(PathBuf),
    Memory(Arc<[u8]>),
}

impl Origin {
    /// Reads from the start; what is gzip-compressed is read as what it holds.
    pub(super) fn open(&self) -> Result<Box<dyn BufRead + Send>, TraceError> {
        match self {
            Self::File(path) => open_input(path),
            Self::Memory(bytes) => unpacked(Cursor::new(Arc::clone(bytes))),
        }
    }

    /// Whether it can be read more than once: a pipe cannot.
    pub(super) fn can_open_again(&self) -> bool {
        match self {
            // One that is not there is told when it is opened.
            Self::File(path) => std::fs::metadata(path).map_or(true, |file| file.is_file()),
            Self::Memory(_) => true,
        }
    }

    /// The file to name in errors.
    pub(super) fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::File(path) => Some(path),
            Self::Memory(_) => None,
        }
    }
}

/// Opens the file at `path`; one that is gzip-compressed is read as what it holds.
pub(super) fn open_input(path: &Path) -> Result<Box<dyn BufRead + Send>, TraceError> {
    unpacked(open_file(path)?)
}

/// The file at `path`, buffered; the error does not name it yet.
pub(super) fn open_file(path: &Path) -> Result<BufReader<File>, TraceError> {
    File::open(path).map(BufReader::new).map_err(|source| failed("open", source))
}

fn unpacked(
    mut input: impl BufRead + Send + 'static,
) -> Result<Box<dyn BufRead + Send>, TraceError> {
    let head = input.fill_buf().map_err(|source| failed("read", source))?;
    if head.starts_with(&GZIP_MAGIC) {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(input))));
    }
    Ok(Box::new(input))
}

fn failed(operation: &'static str, source: io::Error) -> TraceError {
    TraceError::Io { operation, records: 0, bytes: 0, source }
}

/// Reads until `buffer` is full or `input` ends; how many bytes it holds.
pub(super) fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match input.read(&mut buffer[read..]) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
