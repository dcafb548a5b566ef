//! From the parts of an expert to the ranges that are read in one go.

use super::expert::Extent;

/// Ranges of one expert that lie at most this far apart are read as one. A second request
/// costs more than four pages of sequential transfer on any device that serves experts, and
/// the gaps that checkpoints have between an expert's tensors (alignment, scales, the 8 to 16
/// bytes of a packed weight's shape) are far smaller.
pub(super) const MAX_GAP_BYTES: u64 = 16 << 10;

/// The ranges that cover `parts`, ascending by file and offset, joined across gaps of at most
/// [`MAX_GAP_BYTES`]. Empty parts cover nothing.
pub(super) fn coalesce(parts: impl IntoIterator<Item = Extent>) -> Box<[Extent]> {
    let mut parts: Vec<Extent> = parts.into_iter().filter(|extent| extent.len > 0).collect();
    parts.sort_unstable();
    let mut joined: Vec<Extent> = Vec::with_capacity(1);
    for part in parts {
        match joined.last_mut() {
            Some(last)
                if last.file == part.file
                    && part.offset <= last.end().saturating_add(MAX_GAP_BYTES) =>
            {
                last.len = last.len.max(part.end() - last.offset);
            }
            _ => joined.push(part),
        }
    }
    joined.into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The naive twin: merges any two ranges that may be merged until none may.
    fn naive(parts: &[Extent]) -> Vec<Extent> {
        let mut ranges: Vec<Extent> = parts.iter().copied().filter(|part| part.len > 0).collect();
        'again: loop {
            for i in 0..ranges.len() {
                for j in 0..ranges.len() {
                    let (a, b) = (ranges[i], ranges[j]);
                    let near = b.offset <= a.end() + MAX_GAP_BYTES && a.offset <= b.offset;
                    if i != j && a.file == b.file && near {
                        ranges[i].len = a.end().max(b.end()) - a.offset;
                        ranges.swap_remove(j);
                        continue 'again;
                    }
                }
            }
            ranges.sort();
            return ranges;
        }
    }

    fn extent() -> impl Strategy<Value = Extent> {
        (0..3_u32, 0..300_000_u64, prop_oneof![Just(0_u64), 1..50_000_u64])
            .prop_map(|(file, offset, len)| Extent { file, offset, len })
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_twin(parts in prop::collection::vec(extent(), 0..12)) {
            let joined = coalesce(parts.clone());
            prop_assert_eq!(&*joined, naive(&parts));
            for part in parts.iter().filter(|part| part.len > 0) {
                let covered = joined.iter().any(|range| {
                    range.file == part.file && range.offset <= part.offset && part.end() <= range.end()
                });
                prop_assert!(covered);
            }
        }
    }

    #[test]
    fn the_gap_is_inclusive() {
        let at = |offset| Extent { file: 0, offset, len: 8 };
        assert_eq!(coalesce([at(0), at(8 + MAX_GAP_BYTES)]).len(), 1);
        assert_eq!(coalesce([at(0), at(9 + MAX_GAP_BYTES)]).len(), 2);
        assert_eq!(coalesce([at(0), Extent { file: 1, ..at(8) }]).len(), 2);
        assert!(coalesce([]).is_empty());
    }
}
