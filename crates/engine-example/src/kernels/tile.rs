//! The kernels: rows of a matrix times prepared activations, by the contract in the module docs.
#![expect(
    clippy::needless_range_loop,
    reason = "one index runs over several arrays of a tile; plain loops unroll and stay in registers"
)]

mod blocks;

use std::ops::Range;

use super::isa::Work;
use super::lanes::Lanes;
use super::layout::{LANES, Layout, Prepared, Step};
use super::matrix::MXFP4_GROUP;
use super::nibbles::{Minifloat, Nibbles, Offset};
use super::tokens::Tokens;
use super::{Matrix, MatrixData, ScaleType};

/// `out[r, i] = row (rows.start + r) . token i`, for `out` `[rows.len(), tokens.len()]`.
pub(super) struct DotRows<'a> {
    pub(super) matrix: &'a Matrix<'a>,
    pub(super) rows: Range<usize>,
    pub(super) x: &'a Prepared,
    pub(super) tokens: Tokens<'a>,
    pub(super) out: &'a mut [f32],
}

impl Work for DotRows<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let cols = self.matrix.cols();
        match self.matrix.data() {
            MatrixData::F32(bytes) => self.all(lanes, &Float { bytes, cols, element: Singles }),
            MatrixData::F16(bytes) => self.all(lanes, &Float { bytes, cols, element: Halves }),
            MatrixData::Bf16(bytes) => self.all(lanes, &Float { bytes, cols, element: Brains }),
            MatrixData::Fp8 { codes, scales, scale_type, block } => {
                self.all(lanes, &Fp8 { codes, scales, scale_type, block, cols });
            }
            MatrixData::Blocks { kind, bytes } => blocks::run(self, lanes, kind, bytes),
            MatrixData::Int4 { packed, scales, scale_type, group } => match scale_type {
                ScaleType::F32 => {
                    self.all(lanes, &Nibbles::new(packed, scales, group, cols, Singles, Offset));
                }
                ScaleType::F16 => {
                    self.all(lanes, &Nibbles::new(packed, scales, group, cols, Halves, Offset));
                }
                ScaleType::Bf16 => {
                    self.all(lanes, &Nibbles::new(packed, scales, group, cols, Brains, Offset));
                }
            },
            MatrixData::Mxfp4 { packed, scales } => {
                let group = MXFP4_GROUP;
                self.all(lanes, &Nibbles::new(packed, scales, group, cols, Powers, Minifloat));
            }
        }
    }
}

/// Tokens that are worked on together, so that their activations stay in a core's cache while
/// all rows pass.
const TOKEN_BLOCK: usize = 32;

impl DotRows<'_> {
    #[inline(always)]
    fn all<L: Lanes, F: Format>(self, lanes: L, format: &F) {
        debug_assert_eq!(self.x.layout(), Some(Layout::of(self.matrix)));
        let n = self.tokens.len();
        assert_eq!(self.out.len(), self.rows.len() * n, "one output a row and token");
        assert!(self.rows.end <= self.matrix.rows(), "rows of the matrix");
        let width = Layout::of(self.matrix).steps();
        let cursor = Cursor { x: self.x, tokens: self.tokens, width, first_row: self.rows.start };
        for block in (0..n).step_by(TOKEN_BLOCK) {
            let block_end = n.min(block + TOKEN_BLOCK);
            let mut row = self.rows.start;
            while row < self.rows.end {
                if row + 4 <= self.rows.end {
                    cursor.rows::<L, F, 4>(lanes, format, row, block..block_end, self.out);
                    row += 4;
                } else {
                    cursor.rows::<L, F, 1>(lanes, format, row, block..block_end, self.out);
                    row += 1;
                }
            }
        }
    }
}

/// What stays the same while a product walks its tiles.
struct Cursor<'a> {
    x: &'a Prepared,
    tokens: Tokens<'a>,
    width: usize,
    first_row: usize,
}

impl Cursor<'_> {
    /// `R` rows times all tokens of a block: the rows come from memory once.
    #[inline(always)]
    fn rows<L: Lanes, F: Format, const R: usize>(
        &self,
        lanes: L,
        format: &F,
        row: usize,
        block: Range<usize>,
        out: &mut [f32],
    ) {
        let mut i = block.start;
        while i < block.end {
            // The more tokens a tile has, the fewer times a weight is decoded.
            if L::WIDE && F::EIGHT && R == 4 && i + 8 <= block.end {
                self.tile::<L, F, 2, 8>(lanes, format, row, i, out);
                self.tile::<L, F, 2, 8>(lanes, format, row + 2, i, out);
                i += 8;
            } else if L::WIDE && i + 4 <= block.end {
                self.tile::<L, F, R, 4>(lanes, format, row, i, out);
                i += 4;
            } else if L::WIDE && i + 2 <= block.end {
                self.tile::<L, F, R, 2>(lanes, format, row, i, out);
                i += 2;
            } else {
                self.tile::<L, F, R, 1>(lanes, format, row, i, out);
                i += 1;
            }
        }
    }

    #[inline(always)]
    fn tile<L: Lanes, F: Format, const R: usize, const N: usize>(
        &self,
        lanes: L,
        format: &F,
        row: usize,
        i: usize,
        out: &mut [f32],
    ) {
        let mut x: [&[Step]; N] = [&[]; N];
        for (n, x) in x.iter_mut().enumerate() {
            *x = self.x.row(self.tokens.get(i + n), self.width);
        }
        let sums = format.tile::<L, R, N>(lanes, row, x);
        let first = (row - self.first_row) * self.tokens.len() + i;
        for (r, sums) in sums.iter().enumerate() {
            for (n, sum) in sums.iter().enumerate() {
                out[first + r * self.tokens.len() + n] = lanes.sum(*sum);
            }
        }
    }
}

/// A weight format: `R` rows from `row` on times `N` tokens, lanes not yet added.
///
/// Every load asks for the bytes `R` rows further on, which the next tile reads: hardware follows
/// each row but starts anew with each, and four rows are in the air at once.
pub(super) trait Format {
    /// Two rows times eight tokens are faster than four times four, twice.
    const EIGHT: bool = true;

    fn tile<L: Lanes, const R: usize, const N: usize>(
        &self,
        lanes: L,
        row: usize,
        x: [&[Step]; N],
    ) -> [[L::V; N]; R];
}

/// How one step of a float format is stored.
pub(super) trait Element: Copy {
    /// Bytes of sixteen weights.
    type Chunk: Copy;
    const BYTES: usize;

    fn chunks(bytes: &[u8]) -> (&[Self::Chunk], &[u8]);
    fn chunk(bytes: &[u8]) -> Option<&Self::Chunk>;
    /// A last, ragged step, padded with zeros.
    fn pad(tail: &[u8]) -> Self::Chunk;
    fn decode<L: Lanes>(lanes: L, chunk: &Self::Chunk) -> L::V;
}

/// Defines an [`Element`] by its size and its decoding.
macro_rules! element {
    ($name:ident, $bytes:literal, $decode:ident) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Element for $name {
            type Chunk = [u8; $bytes * LANES];
            const BYTES: usize = $bytes;

            #[inline(always)]
            fn chunks(bytes: &[u8]) -> (&[Self::Chunk], &[u8]) {
                bytes.as_chunks()
            }

            #[inline(always)]
            fn chunk(bytes: &[u8]) -> Option<&Self::Chunk> {
                bytes.first_chunk()
            }

            #[inline(always)]
            fn pad(tail: &[u8]) -> Self::Chunk {
                padded(tail)
            }

            #[inline(always)]
            fn decode<L: Lanes>(lanes: L, chunk: &Self::Chunk) -> L::V {
                lanes.$decode(chunk)
            }
        }
    };
}

element!(Singles, 4, f32s);
element!(Halves, 2, f16s);
element!(Brains, 2, bf16s);
element!(Powers, 1, e8m0s);

/// The first bytes of a zeroed array. Panics when there are more than `N`.
///
/// Kept out of the loops: a call would make them keep their registers in memory.
#[cold]
#[inline(never)]
pub(super) fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut all = [0; N];
    all[..bytes.len()].copy_from_slice(bytes);
    all
}

/// Adds one step of `R` rows to the sums of `N` tokens.
#[inline(always)]
pub(super) fn add_step<L: Lanes, const R: usize, const N: usize>(
    lanes: L,
    sums: &mut [[L::V; N]; R],
    weights: [L::V; R],
    x: [&[Step]; N],
    step: usize,
) {
    for n in 0..N {
        let x = lanes.load(&x[n][step].0);
        for r in 0..R {
            sums[r][n] = lanes.fma(weights[r], x, sums[r][n]);
        }
    }
}

/// Ends a span: scales its sums and adds them to the row's.
#[inline(always)]
pub(super) fn add_span<L: Lanes, const R: usize, const N: usize>(
    lanes: L,
    sums: &mut [[L::V; N]; R],
    span: &[[L::V; N]; R],
    scales: [L::V; R],
) {
    for r in 0..R {
        for n in 0..N {
            sums[r][n] = lanes.fma(span[r][n], scales[r], sums[r][n]);
        }
    }
}

struct Float<'a, E> {
    bytes: &'a [u8],
    cols: usize,
    /// Only its type matters.
    #[expect(dead_code, reason = "names the type")]
    element: E,
}

impl<E: Element> Format for Float<'_, E> {
    #[inline(always)]
    fn tile<L: Lanes, const R: usize, const N: usize>(
        &self,
        lanes: L,
        row: usize,
        mut x: [&[Step]; N],
    ) -> [[L::V; N]; R] {
        let full = self.cols / LANES;
        let mut chunks: [&[E::Chunk]; R] = [&[]; R];
        let mut tails: [&[u8]; R] = [&[]; R];
        for r in 0..R {
            let bytes = &self.bytes[(row + r) * self.cols * E::BYTES..][..self.cols * E::BYTES];
            (chunks[r], tails[r]) = E::chunks(bytes);
            chunks[r] = &chunks[r][..full];
        }
        for x in &mut x {
            *x = &x[..self.cols.div_ceil(LANES)];
        }
        let mut sums = [[lanes.splat(0.0); N]; R];
        let mut weights = [lanes.splat(0.0); R];
        let ahead = R * self.cols * E::BYTES;
        for step in 0..full {
            for r in 0..R {
                weights[r] = E::decode(lanes, &chunks[r][step]);
                lanes.prefetch(&chunks[r][step], ahead);
            }
            add_step(lanes, &mut sums, weights, x, step);
        }
        if !self.cols.is_multiple_of(LANES) {
            for r in 0..R {
                weights[r] = E::decode(lanes, &E::pad(tails[r]));
            }
            add_step(lanes, &mut sums, weights, x, full);
        }
        sums
    }
}

struct Fp8<'a> {
    codes: &'a [u8],
    scales: &'a [u8],
    scale_type: ScaleType,
    block: [usize; 2],
    cols: usize,
}

impl Fp8<'_> {
    /// Scale of a row in a block of columns.
    #[inline(always)]
    fn scale(&self, row: usize, across: usize) -> f32 {
        let index = row / self.block[0] * self.cols.div_ceil(self.block[1]) + across;
        self.scale_type.read(self.scales, index)
    }
}

impl Format for Fp8<'_> {
    #[inline(always)]
    fn tile<L: Lanes, const R: usize, const N: usize>(
        &self,
        lanes: L,
        row: usize,
        x: [&[Step]; N],
    ) -> [[L::V; N]; R] {
        let mut sums = [[lanes.splat(0.0); N]; R];
        let mut first_step = 0;
        let ahead = R * self.cols;
        for (across, column) in (0..self.cols).step_by(self.block[1]).enumerate() {
            let width = self.block[1].min(self.cols - column);
            let mut pairs: [&[[u8; 32]]; R] = [&[]; R];
            let mut tails: [&[u8]; R] = [&[]; R];
            for r in 0..R {
                (pairs[r], tails[r]) =
                    self.codes[(row + r) * self.cols + column..][..width].as_chunks();
                pairs[r] = &pairs[r][..width / 32];
            }
            let mut x = x;
            for x in &mut x {
                *x = &x[first_step..][..width.div_ceil(LANES)];
            }
            let mut span = [[lanes.splat(0.0); N]; R];
            let (mut even, mut odd) = ([lanes.splat(0.0); R], [lanes.splat(0.0); R]);
            for pair in 0..width / 32 {
                for r in 0..R {
                    [even[r], odd[r]] = lanes.fp8s(&pairs[r][pair]);
                    lanes.prefetch(&pairs[r][pair], ahead);
                }
                add_step(lanes, &mut span, even, x, 2 * pair);
                add_step(lanes, &mut span, odd, x, 2 * pair + 1);
            }
            if !width.is_multiple_of(32) {
                for r in 0..R {
                    [even[r], odd[r]] = lanes.fp8s(&padded(tails[r]));
                }
                add_step(lanes, &mut span, even, x, width / 32 * 2);
                if width % 32 > LANES {
                    add_step(lanes, &mut span, odd, x, width / 32 * 2 + 1);
                }
            }
            let mut scales = [lanes.splat(0.0); R];
            for r in 0..R {
                scales[r] = lanes.splat(self.scale(row + r, across));
            }
            add_span(lanes, &mut sums, &span, scales);
            first_step += width.div_ceil(LANES);
        }
        sums
    }
}
