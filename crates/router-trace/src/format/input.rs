use crate::error::TraceError;
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Opens the file at `path`; one that is gzip-compressed is read as what it holds.
pub(super) fn open_input(path: &Path) -> Result<Box<dyn BufRead + Send>, TraceError> {
    let io = |operation| move |source| TraceError::Io { operation, records: 0, bytes: 0, source };
    let mut file = BufReader::new(File::open(path).map_err(io("open"))?);
    let packed = file.fill_buf().map_err(io("read"))?.starts_with(&GZIP_MAGIC);
    if packed {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(file))));
    }
    Ok(Box::new(file))
}
