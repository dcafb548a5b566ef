/// The sum of all 64-bit little-endian words, the last filled up with zeros: reads every byte, as
/// fast as memory gives them.
#[must_use]
pub fn sum_bytes(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<64>();
    // Eight sums, so that the additions need not wait for each other.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_sum_of_the_words_at_any_length() {
        let bytes: Vec<u8> = (0..517_u32).map(|i| (i * 7 + 3) as u8).collect();
        for len in [0, 1, 7, 8, 63, 64, 65, 512, 517] {
            let naive = bytes[..len].chunks(8).fold(0_u64, |sum, chunk| {
                let word = chunk.iter().rev().fold(0, |word, &b| (word << 8) | u64::from(b));
                sum.wrapping_add(word)
            });
            assert_eq!(sum_bytes(&bytes[..len]), naive, "{len}");
        }
    }
}
