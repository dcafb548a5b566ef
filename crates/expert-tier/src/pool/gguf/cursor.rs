use crate::error::TierError;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// No header is near this: the largest known have vocabularies of some ten megabytes.
const HEADER_CAP: u64 = 256 << 20;
/// One read.
const WINDOW_BYTES: usize = 256 << 10;

/// Reads a header from the front, never more than the file has.
pub(super) struct Cursor<'f> {
    file: &'f File,
    pub(super) path: &'f Path,
    /// Length of the file.
    len: u64,
    at: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl<'f> Cursor<'f> {
    pub(super) fn new(file: &'f File, len: u64, path: &'f Path) -> Self {
        Self { file, path, len, at: 0, window: Vec::new(), window_at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    /// Fails unless `count` things of at least `each` bytes can follow.
    pub(super) fn expect(&self, count: u64, each: u64) -> Result<(), TierError> {
        let end = count.saturating_mul(each).saturating_add(self.at);
        if end > self.len {
            let path = self.path.to_owned();
            return Err(TierError::HeaderTruncated { path, needed: end, present: self.len });
        }
        if end > HEADER_CAP {
            let path = self.path.to_owned();
            return Err(TierError::HeaderTooLarge { path, claimed: end, cap: HEADER_CAP });
        }
        Ok(())
    }

    /// Goes on behind `count` things of `each` bytes.
    pub(super) fn skip(&mut self, count: u64, each: u64) -> Result<(), TierError> {
        self.expect(count, each)?;
        self.at += count * each;
        Ok(())
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<(), TierError> {
        self.expect(out.len() as u64, 1)?;
        let io = |source| TierError::Io { path: self.path.to_owned(), operation: "read", source };
        let inside = self.at >= self.window_at
            && self.at + out.len() as u64 <= self.window_at + self.window.len() as u64;
        if !inside && out.len() < WINDOW_BYTES {
            let rest = usize::try_from(self.len - self.at).unwrap_or(WINDOW_BYTES);
            self.window.resize(rest.min(WINDOW_BYTES), 0);
            self.file.read_exact_at(&mut self.window, self.at).map_err(io)?;
            self.window_at = self.at;
        }
        if inside || out.len() < WINDOW_BYTES {
            let start = (self.at - self.window_at) as usize;
            out.copy_from_slice(&self.window[start..start + out.len()]);
        } else {
            self.file.read_exact_at(out, self.at).map_err(io)?;
        }
        self.at += out.len() as u64;
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], TierError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, TierError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, TierError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string: its length, then its bytes. `what` says which in an error.
    pub(super) fn text(&mut self, what: &dyn Fn() -> String) -> Result<String, TierError> {
        let len = self.u64()?;
        self.expect(len, 1)?;
        let mut bytes = vec![0; len as usize];
        self.fill(&mut bytes)?;
        String::from_utf8(bytes).map_err(|error| {
            let shown: String =
                String::from_utf8_lossy(error.as_bytes()).chars().take(40).collect();
            self.invalid(None, format!("{} is not UTF-8: {shown:?}", what()))
        })
    }

    /// Goes on behind a string.
    pub(super) fn skip_text(&mut self) -> Result<(), TierError> {
        let len = self.u64()?;
        self.skip(len, 1)
    }

    pub(super) fn invalid(&self, tensor: Option<String>, reason: impl Into<String>) -> TierError {
        TierError::HeaderInvalid { path: self.path.to_owned(), tensor, reason: reason.into() }
    }

    pub(super) fn unsupported(&self, thing: String, reason: impl Into<String>) -> TierError {
        TierError::Unsupported { path: self.path.to_owned(), thing, reason: reason.into() }
    }
}
