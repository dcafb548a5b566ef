use super::detail::Room;
use std::io;
use std::path::PathBuf;

/// What can go wrong where new files are written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// There is no room for it.
    #[error(
        "{}: no room: {needed} bytes are still to be written{}",
        path.display(), Room(*available, source.as_ref())
    )]
    DiskFull {
        /// The file or folder.
        path: PathBuf,
        /// Bytes still to be written in all.
        needed: u64,
        /// Bytes the file system says are free.
        available: Option<u64>,
        /// The system's answer; `None` if it was not asked.
        #[source]
        source: Option<io::Error>,
    },
    /// The place that was given for new files cannot be used.
    #[error("{}: cannot be written: {reason}", path.display())]
    Refused {
        /// The file or folder.
        path: PathBuf,
        /// What is there.
        reason: String,
    },
    /// A folder holds a pool whose packing has not come to its end.
    #[error("{}: an unfinished packed pool: pack it again to go on where it stopped", path.display())]
    Unfinished {
        /// The folder.
        path: PathBuf,
    },
    /// An unfinished pack was begun from something else.
    #[error(
        "{}: holds an unfinished pack of another source: it was {was}, it is {is}; remove the \
         folder or ask for a restart",
        path.display()
    )]
    SourceChanged {
        /// The folder.
        path: PathBuf,
        /// What the unfinished pack was begun from, where it differs.
        was: String,
        /// What it would be continued from.
        is: String,
    },
}

impl OutputError {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::DiskFull { .. } => "disk-full",
            Self::Refused { .. } => "output-refused",
            Self::Unfinished { .. } => "unfinished-pack",
            Self::SourceChanged { .. } => "pack-source-changed",
        }
    }
}
