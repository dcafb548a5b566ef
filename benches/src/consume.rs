//! What every arm does with its bytes, and the memory that arms without a page cache use.

use anyhow::{Context, Result};
use expert_tier::ExpertView;
use memmap2::{Advice, MmapMut};
use nix::time::{ClockId, clock_gettime};

/// A sum over all bytes, as wide as the compiler makes it: bound by memory, not by arithmetic.
/// The sum of a whole is the sum of its parts where these are whole words.
pub(crate) use engine_example::replay::sum_bytes as sum;

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
    fn a_sum_is_that_of_its_parts() {
        let bytes: Vec<u8> = (0..512_u32).map(|i| (i * 7 + 3) as u8).collect();
        assert_eq!(sum(&bytes), sum(&bytes[..104]).wrapping_add(sum(&bytes[104..])));
    }
}
