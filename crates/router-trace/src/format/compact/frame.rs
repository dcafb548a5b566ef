use crate::error::TraceError;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a block header.
pub(super) const BLOCK_HEADER_BYTES: usize = 64;
/// Bytes of the end record.
pub(super) const END_BYTES: usize = 56;
pub(super) const BLOCK_TAG: [u8; 4] = *b"BLK\n";
pub(super) const END_TAG: [u8; 4] = *b"END\n";

/// What a block says about itself and its place: enough to seek without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct BlockHeader {
    pub(super) payload_bytes: u32,
    pub(super) records: u32,
    /// The first record belongs to the step of the block before.
    pub(super) continues: bool,
    pub(super) first_step: u64,
    /// Tokens of the trace (once a step) before the first record's step.
    pub(super) first_token: u64,
    pub(super) records_before: u64,
    /// Tokens (once a layer) before this block.
    pub(super) layer_tokens_before: u64,
    pub(super) payload_hash: u64,
}

impl BlockHeader {
    pub(super) fn to_bytes(self) -> [u8; BLOCK_HEADER_BYTES] {
        let mut out = Fields::default();
        out.put(&BLOCK_TAG);
        out.put(&self.payload_bytes.to_le_bytes());
        out.put(&self.records.to_le_bytes());
        out.put(&u32::from(self.continues).to_le_bytes());
        for value in [
            self.first_step,
            self.first_token,
            self.records_before,
            self.layer_tokens_before,
            self.payload_hash,
        ] {
            out.put(&value.to_le_bytes());
        }
        out.seal()
    }

    /// The header at byte `offset`, whose tag was seen to be a block's.
    pub(super) fn parse(bytes: &[u8; BLOCK_HEADER_BYTES], offset: u64) -> Result<Self, TraceError> {
        check_seal(bytes, offset, "block header")?;
        let flags = u32_at(bytes, 12);
        if flags > 1 {
            let reason = format!("block header has unknown flags {flags:#x}");
            return Err(TraceError::Corrupt { offset, reason });
        }
        let header = Self {
            payload_bytes: u32_at(bytes, 4),
            records: u32_at(bytes, 8),
            continues: flags == 1,
            first_step: u64_at(bytes, 16),
            first_token: u64_at(bytes, 24),
            records_before: u64_at(bytes, 32),
            layer_tokens_before: u64_at(bytes, 40),
            payload_hash: u64_at(bytes, 48),
        };
        let most = super::MAX_PAYLOAD_BYTES;
        if header.payload_bytes as usize > most || header.records == 0 {
            let reason = format!(
                "a block has 1 record or more in at most {most} bytes, this one says {} in {}",
                header.records, header.payload_bytes
            );
            return Err(TraceError::Corrupt { offset, reason });
        }
        Ok(header)
    }
}

/// The counts that close a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EndRecord {
    pub(super) records: u64,
    pub(super) layer_tokens: u64,
    pub(super) tokens: u64,
    pub(super) dropped_records: u64,
    pub(super) dropped_tokens: u64,
}

impl EndRecord {
    pub(super) fn to_bytes(self) -> [u8; END_BYTES] {
        let mut out = Fields::default();
        out.put(&END_TAG);
        out.put(&[0; 4]);
        for value in [
            self.records,
            self.layer_tokens,
            self.tokens,
            self.dropped_records,
            self.dropped_tokens,
        ] {
            out.put(&value.to_le_bytes());
        }
        out.seal()
    }

    pub(super) fn parse(bytes: &[u8; END_BYTES], offset: u64) -> Result<Self, TraceError> {
        check_seal(bytes, offset, "end record")?;
        Ok(Self {
            records: u64_at(bytes, 8),
            layer_tokens: u64_at(bytes, 16),
            tokens: u64_at(bytes, 24),
            dropped_records: u64_at(bytes, 32),
            dropped_tokens: u64_at(bytes, 40),
        })
    }
}

/// Fields one after the other, and the checksum of them all at the end.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn seal<const N: usize>(mut self) -> [u8; N] {
        let hash = xxh3_64(&self.0);
        self.put(&hash.to_le_bytes());
        self.0.try_into().expect("the fields of a frame have a fixed size")
    }
}

fn check_seal(bytes: &[u8], offset: u64, part: &'static str) -> Result<(), TraceError> {
    let fields = bytes.len() - 8;
    check_hash(&bytes[..fields], u64_at(bytes, fields), offset, part)
}

/// Whether `bytes`, which begin at byte `offset` of the file, have the hash `recorded`.
pub(super) fn check_hash(
    bytes: &[u8],
    recorded: u64,
    offset: u64,
    part: &'static str,
) -> Result<(), TraceError> {
    let computed = xxh3_64(bytes);
    if computed == recorded {
        return Ok(());
    }
    Err(TraceError::Checksum { offset, part, recorded, computed })
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_any_flipped_bit_is_told() {
        let header = BlockHeader {
            payload_bytes: 77,
            records: 3,
            continues: true,
            first_step: 1 << 40,
            first_token: 2,
            records_before: 3,
            layer_tokens_before: 4,
            payload_hash: u64::MAX,
        };
        let bytes = header.to_bytes();
        assert_eq!(BlockHeader::parse(&bytes, 0).unwrap(), header);
        let end = EndRecord {
            records: 1,
            layer_tokens: 2,
            tokens: 3,
            dropped_records: 4,
            dropped_tokens: u64::MAX,
        };
        let end_bytes = end.to_bytes();
        assert_eq!(EndRecord::parse(&end_bytes, 0).unwrap(), end);
        for bit in 0..8 * BLOCK_HEADER_BYTES {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = BlockHeader::parse(&flipped, 9).unwrap_err();
            assert!(matches!(error, TraceError::Checksum { offset: 9, .. }), "{error}");
        }
        for bit in 0..8 * END_BYTES {
            let mut flipped = end_bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(EndRecord::parse(&flipped, 9).is_err(), "bit {bit}");
        }
    }
}
