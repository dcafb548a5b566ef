//! What every arm does with its bytes, and the memory that arms without a page cache use.

use anyhow::{Context, Result};
use expert_tier::ExpertView;
use memmap2::{Advice, MmapMut};
use nix::time::{ClockId, clock_gettime};

/// A sum over all bytes, as wide as the compiler makes it: bound by memory, not by arithmetic.
/// The sum of a whole is the sum of its parts where these are whole words.
#[inline(never)]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<64>();
    let mut lanes = [0_u64; 8];
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = lane.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    let tail = rest.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    lanes.into_iter().chain(tail).fold(0, u64::wrapping_add)
}

/// The sum over an adopted expert, where it lies.
pub(crate) fn expert(view: &ExpertView<'_>) -> u64 {
    let bytes = view.parts().iter().filter_map(|part| part.bytes.host());
    bytes.map(sum).fold(0, u64::wrapping_add)
}

/// CPU seconds of this thread.
pub(crate) fn thread_seconds() -> Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).context("thread CPU clock")?;
    Ok(time.tv_sec() as f64 + time.tv_nsec() as f64 * 1e-9)
}

/// Anonymous memory in pages of one size, written once, locked if `locked`.
pub(crate) fn anonymous(bytes: usize, huge: bool, locked: bool) -> Result<MmapMut> {
    let mut memory = MmapMut::map_anon(bytes.max(1)).context("anonymous memory")?;
    memory.advise(if huge { Advice::HugePage } else { Advice::NoHugePage })?;
    for page in memory.chunks_mut(4096) {
        page[0] = 1;
    }
    if locked {
        memory.lock().context("mlock of an arena")?;
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_is_that_of_the_words_at_any_length() {
        let bytes: Vec<u8> = (0..517_u32).map(|i| (i * 7 + 3) as u8).collect();
        for len in [0, 1, 7, 8, 63, 64, 65, 512, 517] {
            let naive = bytes[..len].chunks(8).fold(0_u64, |sum, chunk| {
                let word = chunk.iter().rev().fold(0, |word, &b| (word << 8) | u64::from(b));
                sum.wrapping_add(word)
            });
            assert_eq!(sum(&bytes[..len]), naive, "{len}");
        }
        assert_eq!(sum(&bytes[..512]), sum(&bytes[..104]).wrapping_add(sum(&bytes[104..512])));
    }
}
