//! Rows of four-bit weights, eight to a 32-bit word.
#![expect(
    clippy::needless_range_loop,
    reason = "one index runs over several arrays of a tile; plain loops unroll and stay in registers"
)]

use std::array;

use super::lanes::Lanes;
use super::layout::{LANES, NIBBLE_SPAN, Step};
use super::tile::{Element, Format, add_span, add_step, padded};

/// What a nibble means.
pub(super) trait Code {
    /// Of each word's lowest nibble.
    fn decode<L: Lanes>(lanes: L, words: L::W) -> L::V;
}

/// An integer plus 8.
pub(super) struct Offset;

impl Code for Offset {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, words: L::W) -> L::V {
        lanes.low_nibbles(words)
    }
}

/// E2M1.
pub(super) struct Minifloat;

impl Code for Minifloat {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, words: L::W) -> L::V {
        lanes.low_e2m1s(words)
    }
}

/// Formats of four bits a weight, eight to a 32-bit word, with scales along the row.
pub(super) struct Nibbles<'a, S, C> {
    packed: &'a [u8],
    scales: &'a [u8],
    group: usize,
    cols: usize,
    /// Bytes of a row's words.
    row_bytes: usize,
    /// Scales of a row.
    groups: usize,
    /// For each lane of a full span, how far its scale lies after the span's first, where that is
    /// the same for all full spans.
    after: Option<[u32; LANES]>,
    /// The same for the last span.
    after_last: [u32; LANES],
    /// Only their types matter.
    #[expect(dead_code, reason = "names the types")]
    types: (S, C),
}

impl<'a, S: Element, C: Code> Nibbles<'a, S, C> {
    pub(super) fn new(
        packed: &'a [u8],
        scales: &'a [u8],
        group: usize,
        cols: usize,
        scale: S,
        code: C,
    ) -> Self {
        let (row_bytes, groups) = (cols.div_ceil(8) * 4, cols.div_ceil(group));
        let even = group.is_multiple_of(NIBBLE_SPAN) || NIBBLE_SPAN.is_multiple_of(group);
        let after = even.then(|| lane_groups(0, usize::MAX, group));
        let after_last =
            lane_groups(cols.saturating_sub(1) / NIBBLE_SPAN * NIBBLE_SPAN, cols, group);
        Self {
            packed,
            scales,
            group,
            cols,
            row_bytes,
            groups,
            after,
            after_last,
            types: (scale, code),
        }
    }

    #[inline(always)]
    fn after(&self, column: usize) -> [u32; LANES] {
        match self.after {
            _ if column + NIBBLE_SPAN >= self.cols => self.after_last,
            Some(after) => after,
            None => lane_groups(column, self.cols, self.group),
        }
    }

    /// Sixteen scales of `row` from `first` on. Those past the row's end are never picked.
    #[inline(always)]
    fn scales<L: Lanes>(&self, lanes: L, row: usize, first: usize) -> L::V {
        let bytes = &self.scales[(row * self.groups + first) * S::BYTES..];
        match S::chunk(bytes) {
            Some(chunk) => S::decode(lanes, chunk),
            None => S::decode(lanes, &S::pad(bytes)),
        }
    }
}

/// For the span at `column`: how far after its first scale that of each lane lies.
#[cold]
#[inline(never)]
fn lane_groups(column: usize, cols: usize, group: usize) -> [u32; LANES] {
    // Lanes without a column take the last scale: their sum is zero.
    let own = |l: usize| (column + 8 * l).min(cols.saturating_sub(1)) / group;
    array::from_fn(|l| (own(l) - column / group) as u32)
}

impl<S: Element, C: Code> Format for Nibbles<'_, S, C> {
    /// A tile has its sums twice, of the span and of all: more than registers.
    const EIGHT: bool = false;

    #[inline(always)]
    fn tile<L: Lanes, const R: usize, const N: usize>(
        &self,
        lanes: L,
        row: usize,
        x: [&[Step]; N],
    ) -> [[L::V; N]; R] {
        let mut rows: [&[u8]; R] = [&[]; R];
        for r in 0..R {
            rows[r] = &self.packed[(row + r) * self.row_bytes..][..self.row_bytes];
        }
        let mut sums = [[lanes.splat(0.0); N]; R];
        let ahead = R * self.row_bytes;
        for (index, column) in (0..self.cols).step_by(NIBBLE_SPAN).enumerate() {
            let mut x = x;
            for x in &mut x {
                *x = &x[index * 8..][..8];
            }
            let mut words = [lanes.words(&[0; 64]); R];
            for r in 0..R {
                let bytes = &rows[r][index * 64..];
                words[r] = match bytes.first_chunk() {
                    Some(chunk) => {
                        lanes.prefetch(chunk, ahead);
                        lanes.words(chunk)
                    }
                    None => lanes.words(&padded(bytes)),
                };
            }
            let mut span = [[lanes.splat(0.0); N]; R];
            for step in 0..8 {
                let mut weights = [lanes.splat(0.0); R];
                for r in 0..R {
                    weights[r] = C::decode(lanes, words[r]);
                    words[r] = lanes.drop_nibbles(words[r]);
                }
                add_step(lanes, &mut span, weights, x, step);
            }
            let (first, after) = (column / self.group, self.after(column));
            let mut scales = [lanes.splat(0.0); R];
            for r in 0..R {
                scales[r] = lanes.pick(self.scales(lanes, row + r, first), &after);
            }
            add_span(lanes, &mut sums, &span, scales);
        }
        sums
    }
}
