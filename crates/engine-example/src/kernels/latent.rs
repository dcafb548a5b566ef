//! Latent attention over a compressed cache, without ever expanding it (DeepSeek-V2, 2024,
//! section 2.1.3: the up-projections of keys and values are absorbed).
//!
//! A cached row is `[latent | rope]`. Of the up-projection `kv_b`, head `h` owns the rows
//! `h·(nope + value)..`: first `nope` for keys (`K_h`), then `value` for values (`V_h`). With a
//! query `[q | p]` of a head, `p` already rotated:
//!
//! ```text
//! score_t = scale · ([K_hᵀ q | p] · row_t)        out = V_h · Σ_t softmax(score)_t · latent_t
//! ```
//!
//! The order of arithmetic is fixed as that of the other kernels is: the bits are the same on
//! every [`Isa`], for every thread count and every split of a prompt into passes.
//!
//! - `K_hᵀ q`: per column, `acc = fma(W[i], q[i], acc)` with `i` ascending, `W` as by
//!   [`Matrix::row_to_f32`].
//! - A score: sixteen lanes over whole steps of the row, added as the contract's tree, then the
//!   columns left over one by one; the scale is on the query.
//! - Softmax: our own exponential; the sum runs over sixteen lanes by position.
//! - The weighted sum: per column, `fma` with positions ascending.

use rayon::prelude::*;

use super::activation::exp;
use super::isa::Work;
use super::lanes::Lanes;
use super::layout::{LANES, Layout, Prepared};
use super::matmul::rows_per_job;
use super::tile::{Brains, Halves, Singles};
use super::tile::{DotRows, Element, padded};
use super::tokens::Tokens;
use super::{Isa, Matrix, MatrixData, ScaleType};

/// Sizes of the heads of a latent attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatentHeads {
    /// Query heads.
    pub heads: usize,
    /// Width of a query's part without rotation.
    pub nope: usize,
    /// Width of the part with rotation, whose key all heads share.
    pub rope: usize,
    /// Width of a value.
    pub value: usize,
    /// Width of the compressed keys and values.
    pub latent: usize,
}

impl LatentHeads {
    /// Width of a query.
    #[must_use]
    pub fn query(&self) -> usize {
        self.nope + self.rope
    }

    /// Width of a cached row.
    #[must_use]
    pub fn row(&self) -> usize {
        self.latent + self.rope
    }
}

/// One pass of a latent attention.
#[derive(Clone, Copy, Debug)]
pub struct LatentPass<'a> {
    /// Sizes.
    pub heads: LatentHeads,
    /// `[heads · (nope + value), latent]`.
    pub kv_b: &'a Matrix<'a>,
    /// The cached rows of positions `0..start + n` in order, whole rows a piece.
    pub rows: &'a [&'a [f32]],
    /// Position of the pass's first token; token `t` sees positions `0..=start + t`.
    pub start: usize,
    /// Factor on scores.
    pub scale: f32,
}

/// Heads of one job: they share each cached row while it is in a core's cache.
const GROUP: usize = 8;

/// `q` `[n, heads, nope + rope]` to `out` `[n, heads, value]`. Heads are split over the current
/// rayon pool. Panics when a slice does not fit the shapes.
pub fn latent_attention(isa: Isa, pass: &LatentPass<'_>, q: &[f32], out: &mut [f32]) {
    let LatentHeads { heads, nope, value, latent, .. } = pass.heads;
    let n = q.len() / (heads * pass.heads.query());
    assert_eq!(q.len(), n * heads * pass.heads.query(), "queries");
    assert_eq!(out.len(), n * heads * value, "outputs");
    assert_eq!(pass.kv_b.rows(), heads * (nope + value), "rows of kv_b");
    assert_eq!(pass.kv_b.cols(), latent, "columns of kv_b");
    let cached: usize = pass.rows.iter().map(|piece| piece.len()).sum();
    assert_eq!(cached, (pass.start + n) * pass.heads.row(), "cached rows");
    if out.is_empty() {
        return;
    }
    // Weights and cached rows that are read, in bytes.
    let work = pass.kv_b.size_bytes() + heads * n * cached * 4;
    let group = if rows_per_job(heads, work) >= heads { heads } else { GROUP };
    let job = |room: &mut Room, (index, out): (usize, &mut [f32])| {
        let first = index * group;
        for (part, h) in (first..heads.min(first + group)).enumerate() {
            let width = n * pass.heads.row();
            room.queries.resize((part + 1) * width, 0.0);
            absorb(isa, pass, q, h, &mut room.queries[part * width..]);
        }
        let Room { queries, scores, mixed, .. } = room;
        mixed.clear();
        mixed.resize(queries.len() / pass.heads.row() * latent, 0.0);
        isa.run(Mix { pass, queries, n, scores, out: mixed });
        for (part, out) in out.chunks_exact_mut(n * value).enumerate() {
            room.prepared.set(
                Layout::of(pass.kv_b),
                &room.mixed[part * n * latent..][..n * latent],
                n,
            );
            let row = (first + part) * (nope + value) + nope;
            room.products.resize(n * value, 0.0);
            let (matrix, x, tokens) = (pass.kv_b, &room.prepared, Tokens::Range { start: 0, n });
            isa.run(DotRows { matrix, rows: row..row + value, x, tokens, out: &mut room.products });
            for (r, products) in room.products.chunks_exact(n).enumerate() {
                products.iter().enumerate().for_each(|(t, y)| out[t * value + r] = *y);
            }
        }
        room.queries.clear();
    };
    if n == 1 {
        // A head's outputs lie together.
        split(out, group * value, job);
        return;
    }
    let mut by_head = vec![0.0; out.len()];
    split(&mut by_head, group * n * value, job);
    for (h, head) in by_head.chunks_exact(n * value).enumerate() {
        for (t, y) in head.chunks_exact(value).enumerate() {
            out[(t * heads + h) * value..][..value].copy_from_slice(y);
        }
    }
}

/// Buffers of one thread.
#[derive(Default)]
struct Room {
    /// Absorbed queries `[heads of the job, n, latent + rope]`.
    queries: Vec<f32>,
    scores: Vec<f32>,
    /// Weighted sums `[heads of the job, n, latent]`.
    mixed: Vec<f32>,
    prepared: Prepared,
    products: Vec<f32>,
}

fn split(
    out: &mut [f32],
    chunk: usize,
    job: impl Fn(&mut Room, (usize, &mut [f32])) + Send + Sync,
) {
    if chunk >= out.len() {
        job(&mut Room::default(), (0, out));
    } else {
        out.par_chunks_mut(chunk).enumerate().with_max_len(1).for_each_init(Room::default, job);
    }
}

/// The absorbed and scaled queries of head `h`, `[n, latent + rope]`.
fn absorb(isa: Isa, pass: &LatentPass<'_>, q: &[f32], h: usize, out: &mut [f32]) {
    let LatentHeads { heads, nope, value, latent, .. } = pass.heads;
    let (width, row) = (pass.heads.query(), pass.heads.row());
    let rows = h * (nope + value)..h * (nope + value) + nope;
    for (t, out) in out.chunks_exact_mut(row).enumerate() {
        let q = &q[(t * heads + h) * width..][..width];
        let (absorbed, rope) = out.split_at_mut(latent);
        isa.run(Columns { matrix: pass.kv_b, first: rows.start, x: &q[..nope], out: absorbed });
        rope.copy_from_slice(&q[nope..]);
        out.iter_mut().for_each(|x| *x *= pass.scale);
    }
}

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

/// Steps of a tile: their sums stay in registers while all rows pass.
const TILE: usize = 4;

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

/// Scores, softmax and weighted sums of some heads.
struct Mix<'a> {
    pass: &'a LatentPass<'a>,
    /// `[heads, n, latent + rope]`.
    queries: &'a [f32],
    n: usize,
    scores: &'a mut Vec<f32>,
    /// `[heads, n, latent]`, zero.
    out: &'a mut [f32],
}

impl Work for Mix<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (width, latent) = (self.pass.heads.row(), self.pass.heads.latent);
        let heads = self.queries.len() / (self.n * width);
        for t in 0..self.n {
            let seen = self.pass.start + t + 1;
            self.scores.resize(heads * seen, 0.0);
            let query = |h: usize| &self.queries[(h * self.n + t) * width..][..width];
            let mut position = 0;
            for piece in self.pass.rows {
                let rows = (piece.len() / width).min(seen - position);
                for h in 0..heads {
                    let scores = &mut self.scores[h * seen + position..][..rows];
                    score_rows(lanes, query(h), piece, scores);
                }
                position += rows;
            }
            for scores in self.scores.chunks_exact_mut(seen) {
                softmax(scores);
            }
            let mut position = 0;
            for piece in self.pass.rows {
                let rows = (piece.len() / width).min(seen - position);
                for h in 0..heads {
                    let weights = &self.scores[h * seen + position..][..rows];
                    let out = &mut self.out[(h * self.n + t) * latent..][..latent];
                    add_rows(lanes, weights, piece, width, out);
                }
                position += rows;
            }
        }
    }
}

/// `scores[t] = query · row t`.
#[inline(always)]
fn score_rows<L: Lanes>(lanes: L, query: &[f32], rows: &[f32], scores: &mut [f32]) {
    let width = query.len();
    let mut position = 0;
    // Four rows at a time: a sum alone would wait for each of its own additions.
    while position + 4 <= scores.len() {
        let rows: [&[f32]; 4] = std::array::from_fn(|r| &rows[(position + r) * width..][..width]);
        scores[position..][..4].copy_from_slice(&dots(lanes, query, rows));
        position += 4;
    }
    for (position, score) in scores.iter_mut().enumerate().skip(position) {
        [*score] = dots(lanes, query, [&rows[position * width..][..width]]);
    }
}

#[inline(always)]
fn dots<L: Lanes, const R: usize>(lanes: L, query: &[f32], rows: [&[f32]; R]) -> [f32; R] {
    let (query, query_rest) = query.as_chunks::<LANES>();
    let chunks = rows.map(|row| &row.as_chunks::<LANES>().0[..query.len()]);
    let mut sums = [lanes.splat(0.0); R];
    for (step, x) in query.iter().enumerate() {
        let x = lanes.load(x);
        for r in 0..R {
            sums[r] = lanes.fma(lanes.load(&chunks[r][step]), x, sums[r]);
        }
    }
    let mut out = [0.0; R];
    for r in 0..R {
        let rest = &rows[r][query.len() * LANES..];
        out[r] = query_rest.iter().zip(rest).fold(lanes.sum(sums[r]), |y, (x, w)| w.mul_add(*x, y));
    }
    out
}

/// `out += Σ_t weights[t] · rows[t][..out.len()]`.
#[inline(always)]
fn add_rows<L: Lanes>(lanes: L, weights: &[f32], rows: &[f32], width: usize, out: &mut [f32]) {
    let mut column = 0;
    while column + TILE * LANES <= out.len() {
        add_tile::<L, TILE>(lanes, weights, rows, width, column, out);
        column += TILE * LANES;
    }
    while column + LANES <= out.len() {
        add_tile::<L, 1>(lanes, weights, rows, width, column, out);
        column += LANES;
    }
    for column in column..out.len() {
        out[column] = weights
            .iter()
            .enumerate()
            .fold(out[column], |y, (t, weight)| rows[t * width + column].mul_add(*weight, y));
    }
}

#[inline(always)]
fn add_tile<L: Lanes, const C: usize>(
    lanes: L,
    weights: &[f32],
    rows: &[f32],
    width: usize,
    column: usize,
    out: &mut [f32],
) {
    let out = &mut out[column..].as_chunks_mut::<LANES>().0[..C];
    let mut sums: [L::V; C] = std::array::from_fn(|c| lanes.load(&out[c]));
    for (weight, row) in weights.iter().zip(rows.chunks_exact(width)) {
        let weight = lanes.splat(*weight);
        let row = &row[column..].as_chunks::<LANES>().0[..C];
        for c in 0..C {
            sums[c] = lanes.fma(lanes.load(&row[c]), weight, sums[c]);
        }
    }
    for c in 0..C {
        lanes.store(sums[c], &mut out[c]);
    }
}

/// Softmax in place. At least one score.
#[inline(always)]
fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0_f32; LANES];
    for scores in scores.chunks_mut(LANES) {
        for (score, sum) in scores.iter_mut().zip(&mut sums) {
            *score = exp(*score - max);
            *sum += *score;
        }
    }
    let inverse = 1.0 / sums.iter().sum::<f32>();
    scores.iter_mut().for_each(|score| *score *= inverse);
}
