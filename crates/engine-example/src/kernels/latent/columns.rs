//! Products with a transposed matrix: sums of its rows.

use super::TILE;
use crate::kernels::isa::Work;
use crate::kernels::lanes::Lanes;
use crate::kernels::layout::LANES;
use crate::kernels::tile::{Brains, Element, Halves, Singles, padded};
use crate::kernels::{Matrix, MatrixData, ScaleType};

/// `out[c] = Σ_i x[i] · W[first + i, c]`.
pub(super) struct Columns<'a> {
    pub(super) matrix: &'a Matrix<'a>,
    pub(super) first: usize,
    pub(super) x: &'a [f32],
    pub(super) out: &'a mut [f32],
}

impl Work for Columns<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let cols = self.matrix.cols();
        assert_eq!(self.out.len(), cols, "one output a column");
        let (first, len) = (self.first * cols, self.x.len() * cols);
        match self.matrix.data() {
            MatrixData::F32(bytes) => {
                self.walk(
                    lanes,
                    &Floats { bytes: &bytes[first * 4..][..len * 4], cols, element: Singles },
                );
            }
            MatrixData::F16(bytes) => {
                self.walk(
                    lanes,
                    &Floats { bytes: &bytes[first * 2..][..len * 2], cols, element: Halves },
                );
            }
            MatrixData::Bf16(bytes) => {
                self.walk(
                    lanes,
                    &Floats { bytes: &bytes[first * 2..][..len * 2], cols, element: Brains },
                );
            }
            MatrixData::Fp8 { codes, scales, scale_type, block }
                if block[1].is_multiple_of(LANES) || block[1] >= cols =>
            {
                let grid = cols.div_ceil(block[1]);
                let first = self.first;
                self.walk(lanes, &Codes { codes, scales, scale_type, block, grid, cols, first });
            }
            _ => {
                // Formats whose columns do not lie in order: one row at a time.
                let mut rows = vec![0.0; len];
                for (i, row) in rows.chunks_exact_mut(cols.max(1)).enumerate() {
                    self.matrix.row_to_f32(self.first + i, row);
                }
                self.walk(lanes, &Rows { rows: &rows, cols });
            }
        }
    }
}

impl Columns<'_> {
    #[inline(always)]
    fn walk<L: Lanes, W: Weights>(self, lanes: L, weights: &W) {
        let cols = self.matrix.cols();
        for tile in (0..cols).step_by(TILE * LANES) {
            let mut sums = [lanes.splat(0.0); TILE];
            let pairs = (cols - tile).div_ceil(2 * LANES).min(TILE / 2);
            for (i, x) in self.x.iter().enumerate() {
                let x = lanes.splat(*x);
                for pair in 0..pairs {
                    let [even, odd] = weights.pair(lanes, i, tile + pair * 2 * LANES);
                    sums[2 * pair] = lanes.fma(even, x, sums[2 * pair]);
                    sums[2 * pair + 1] = lanes.fma(odd, x, sums[2 * pair + 1]);
                }
            }
            for (step, sums) in sums.iter().enumerate() {
                let column = tile + step * LANES;
                if column < cols {
                    let mut all = [0.0; LANES];
                    lanes.store(*sums, &mut all);
                    let width = LANES.min(cols - column);
                    self.out[column..][..width].copy_from_slice(&all[..width]);
                }
            }
        }
    }
}

/// Weights of the rows of a head.
trait Weights {
    /// Columns `column..column + 32` of row `i`, those past the end as zero; `column` is a
    /// multiple of 32 below the row's length.
    fn pair<L: Lanes>(&self, lanes: L, i: usize, column: usize) -> [L::V; 2];
}

struct Floats<'a, E> {
    /// The head's rows.
    bytes: &'a [u8],
    cols: usize,
    #[expect(dead_code, reason = "names the type")]
    element: E,
}

impl<E: Element> Weights for Floats<'_, E> {
    #[inline(always)]
    fn pair<L: Lanes>(&self, lanes: L, i: usize, column: usize) -> [L::V; 2] {
        let row = &self.bytes[(i * self.cols + column) * E::BYTES..(i + 1) * self.cols * E::BYTES];
        let step = |bytes: &[u8]| match E::chunk(bytes) {
            Some(chunk) => E::decode(lanes, chunk),
            None => E::decode(lanes, &E::pad(bytes)),
        };
        [step(row), step(&row[row.len().min(LANES * E::BYTES)..])]
    }
}

/// FP8 whose blocks begin with a step.
struct Codes<'a> {
    codes: &'a [u8],
    scales: &'a [u8],
    scale_type: ScaleType,
    block: [usize; 2],
    /// Scales of a row of blocks.
    grid: usize,
    cols: usize,
    first: usize,
}

impl Weights for Codes<'_> {
    #[inline(always)]
    fn pair<L: Lanes>(&self, lanes: L, i: usize, column: usize) -> [L::V; 2] {
        let row = self.first + i;
        let codes = &self.codes[row * self.cols + column..(row + 1) * self.cols];
        let [even, odd] = match codes.first_chunk() {
            Some(chunk) => lanes.fp8s(chunk),
            None => lanes.fp8s(&padded(codes)),
        };
        let scale = |column: usize| {
            let across = column.min(self.cols - 1) / self.block[1];
            let index = row / self.block[0] * self.grid + across;
            lanes.splat(self.scale_type.read(self.scales, index))
        };
        // Adding -0 changes nothing, not even a zero's sign: the product rounded once.
        let nothing = lanes.splat(-0.0);
        [lanes.fma(even, scale(column), nothing), lanes.fma(odd, scale(column + LANES), nothing)]
    }
}

struct Rows<'a> {
    rows: &'a [f32],
    cols: usize,
}

impl Weights for Rows<'_> {
    #[inline(always)]
    fn pair<L: Lanes>(&self, lanes: L, i: usize, column: usize) -> [L::V; 2] {
        let row = &self.rows[i * self.cols + column..(i + 1) * self.cols];
        let step = |row: &[f32]| match row.first_chunk() {
            Some(chunk) => lanes.load(chunk),
            None => {
                let mut all = [0.0; LANES];
                all[..row.len()].copy_from_slice(row);
                lanes.load(&all)
            }
        };
        [step(row), step(&row[row.len().min(LANES)..])]
    }
}
