//! The plain read that kernels are held against.

use super::Isa;
use super::isa::Work;
use super::lanes::Lanes;

/// How far ahead of its use a line is asked for, in bytes.
const AHEAD: usize = 2048;

/// A sum over all bytes as little-endian words, by the vectors of `isa`: what reading them costs
/// when next to nothing is computed. The last `bytes.len() % 64` bytes are left out.
#[must_use]
pub fn read_sum(isa: Isa, bytes: &[u8]) -> u64 {
    let mut sum = 0;
    isa.run(ReadSum { bytes, sum: &mut sum });
    sum
}

struct ReadSum<'a> {
    bytes: &'a [u8],
    sum: &'a mut u64,
}

impl Work for ReadSum<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (blocks, _) = self.bytes.as_chunks::<64>();
        // Two sums, so that no addition waits for the one before.
        let mut sums = [[0_u64; 8]; 2];
        let (pairs, rest) = blocks.as_chunks::<2>();
        for pair in pairs {
            lanes.prefetch(&pair[0], AHEAD);
            lanes.prefetch(&pair[1], AHEAD);
            for (sums, block) in sums.iter_mut().zip(pair) {
                add(sums, block);
            }
        }
        rest.iter().for_each(|block| add(&mut sums[0], block));
        *self.sum = sums.iter().flatten().fold(0, |sum, lane| sum.wrapping_add(*lane));
    }
}

#[inline(always)]
fn add(sums: &mut [u64; 8], block: &[u8; 64]) {
    let (words, _) = block.as_chunks::<8>();
    for (sum, word) in sums.iter_mut().zip(words) {
        *sum = sum.wrapping_add(u64::from_le_bytes(*word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_reads_every_whole_block() {
        let bytes: Vec<u8> = (0..64 * 7 + 9).map(|i| (i * 37 % 251) as u8).collect();
        let words = bytes[..64 * 7].chunks(8);
        let expected = words
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .fold(0, u64::wrapping_add);
        for isa in Isa::available() {
            assert_eq!(read_sum(isa, &bytes), expected, "{isa}");
        }
    }
}
