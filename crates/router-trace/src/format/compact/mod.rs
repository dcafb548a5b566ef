//! The compact form of a trace: the same records as JSONL in about a seventh of the bytes.
//!
//! `FORMAT-COMPACT.md` beside this crate is the specification. Records lie in blocks of
//! about 64 KiB. Each block can be decoded by itself and is checksummed (XXH3), so a torn or
//! flipped file is told with the byte where it breaks, and a reader finds a token by hopping
//! from block to block without decoding what lies between.
//!
//! There is no index: writer and reader need memory for one block, however long the trace.

mod codec;
mod frame;
mod read;
mod seek;
mod write;

pub use read::CompactReader;
pub use write::CompactWriter;

/// The version of the compact form that this reader and writer know.
pub const COMPACT_VERSION: u32 = 1;
/// The first bytes of a file; like PNG's they show a transfer that changed line ends.
pub const MAGIC: [u8; 8] = *b"\x89ETC\r\n\x1a\n";
/// A block is closed before the record that would begin beyond this many bytes.
pub const BLOCK_BYTES: usize = 64 << 10;
/// The largest payload of a block: a full block and the largest record.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// The largest header text: room for 65,536 layer numbers.
const MAX_HEADER_BYTES: usize = 1 << 20;
