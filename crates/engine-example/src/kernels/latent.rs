//! Latent attention over a compressed cache, without ever expanding it (DeepSeek-V2, 2024,
//! section 2.1.3: the up-projections of keys and values are absorbed).
//!
//! A cached row is `[latent | rope]`. Head `h` has an up-projection for keys `K_h [nope, latent]`
//! and one for values `V_h [value, latent]`. With a query `[q | p]` of a head, `p` already rotated:
//!
//! ```text
//! score_t = scale · ([K_hᵀ q | p] · row_t)        out = V_h · Σ_t softmax(score)_t · latent_t
//! ```
//!
//! The order of arithmetic is fixed as that of the other kernels is: the bits are the same on
//! every [`Isa`], for every thread count and every split of a prompt into passes.
//!
//! - `K_hᵀ q`: per column, `acc = fma(W[i], q[i], acc)` with `i` ascending, `W` as by
//!   [`Matrix::row_to_f32`]; where the transpose is what is stored, its rows' products.
//! - A score: sixteen lanes over whole steps of the row, added as the contract's tree, then the
//!   columns left over one by one; the scale is on the query.
//! - Softmax: our own exponential; the sum runs over sixteen lanes by position.
//! - The weighted sum: per column, `fma` with positions ascending.

mod columns;

use rayon::prelude::*;
use std::ops::Range;

use self::columns::Columns;
use super::activation::exp;
use super::isa::Work;
use super::lanes::Lanes;
use super::layout::{LANES, Layout, Prepared};
use super::matmul::rows_per_job;
use super::tile::DotRows;
use super::tokens::Tokens;
use super::{Isa, Matrix};

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

/// The up-projections of keys and values, as files have them.
#[derive(Clone, Copy, Debug)]
pub enum LatentWeights<'a> {
    /// `[heads · (nope + value), latent]`: of each head first the rows for keys, then for values.
    Joint(&'a Matrix<'a>),
    /// Apart, and absorbed into queries already.
    Split {
        /// Of each head the transpose: `[heads · latent, nope]`.
        keys: &'a Matrix<'a>,
        /// `[heads · value, latent]`.
        values: &'a Matrix<'a>,
    },
}

impl<'a> LatentWeights<'a> {
    /// The matrix with the values' rows, and the first of head `h`.
    fn values(self, heads: LatentHeads, h: usize) -> (&'a Matrix<'a>, usize) {
        match self {
            Self::Joint(matrix) => (matrix, h * (heads.nope + heads.value) + heads.nope),
            Self::Split { values, .. } => (values, h * heads.value),
        }
    }

    fn size_bytes(self) -> usize {
        match self {
            Self::Joint(matrix) => matrix.size_bytes(),
            Self::Split { keys, values } => keys.size_bytes() + values.size_bytes(),
        }
    }

    fn check(self, heads: LatentHeads) {
        let LatentHeads { heads, nope, value, latent, .. } = heads;
        let shape = |matrix: &Matrix<'_>| [matrix.rows(), matrix.cols()];
        match self {
            Self::Joint(matrix) => {
                assert_eq!(shape(matrix), [heads * (nope + value), latent], "keys and values");
            }
            Self::Split { keys, values } => {
                assert_eq!(shape(keys), [heads * latent, nope], "keys");
                assert_eq!(shape(values), [heads * value, latent], "values");
            }
        }
    }
}

/// One pass of a latent attention.
#[derive(Clone, Copy, Debug)]
pub struct LatentPass<'a> {
    /// Sizes.
    pub heads: LatentHeads,
    /// The up-projections.
    pub weights: LatentWeights<'a>,
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
    let LatentHeads { heads, value, latent, .. } = pass.heads;
    let n = q.len() / (heads * pass.heads.query());
    assert_eq!(q.len(), n * heads * pass.heads.query(), "queries");
    assert_eq!(out.len(), n * heads * value, "outputs");
    pass.weights.check(pass.heads);
    let cached: usize = pass.rows.iter().map(|piece| piece.len()).sum();
    assert_eq!(cached, (pass.start + n) * pass.heads.row(), "cached rows");
    if out.is_empty() {
        return;
    }
    // Weights and cached rows that are read, in bytes.
    let work = pass.weights.size_bytes() + heads * n * cached * 4;
    let group = if rows_per_job(heads, work) >= heads { heads } else { GROUP };
    let job = |room: &mut Room, (index, out): (usize, &mut [f32])| {
        let first = index * group;
        for (part, h) in (first..heads.min(first + group)).enumerate() {
            let width = n * pass.heads.row();
            room.queries.resize((part + 1) * width, 0.0);
            absorb(isa, pass, q, h, part * width, room);
        }
        let Room { queries, scores, mixed, .. } = room;
        mixed.clear();
        mixed.resize(queries.len() / pass.heads.row() * latent, 0.0);
        isa.run(Mix { pass, queries, n, scores, out: mixed });
        for (part, out) in out.chunks_exact_mut(n * value).enumerate() {
            let (matrix, row) = pass.weights.values(pass.heads, first + part);
            let Room { mixed, prepared, products, .. } = room;
            let mixed = &mixed[part * n * latent..][..n * latent];
            multiply(isa, matrix, row..row + value, mixed, n, prepared, products);
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
    /// A head's queries without their rotated part `[n, nope]`.
    plain: Vec<f32>,
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

/// The products of `rows` of `matrix` with `x [n, cols]`: `products [rows, n]`.
fn multiply(
    isa: Isa,
    matrix: &Matrix<'_>,
    rows: Range<usize>,
    x: &[f32],
    n: usize,
    prepared: &mut Prepared,
    products: &mut Vec<f32>,
) {
    prepared.set(Layout::of(matrix), x, n);
    products.resize(rows.len() * n, 0.0);
    let tokens = Tokens::Range { start: 0, n };
    isa.run(DotRows { matrix, rows, x: prepared, tokens, out: products });
}

/// The absorbed and scaled queries of head `h`, `[n, latent + rope]`, in `room` from `at` on.
fn absorb(isa: Isa, pass: &LatentPass<'_>, q: &[f32], h: usize, at: usize, room: &mut Room) {
    let LatentHeads { heads, nope, value, latent, .. } = pass.heads;
    let (width, row) = (pass.heads.query(), pass.heads.row());
    let Room { queries, plain, prepared, products, .. } = room;
    let query = |t: usize| &q[(t * heads + h) * width..][..width];
    let out = &mut queries[at..];
    match pass.weights {
        LatentWeights::Joint(matrix) => {
            let first = h * (nope + value);
            for (t, out) in out.chunks_exact_mut(row).enumerate() {
                let (x, out) = (&query(t)[..nope], &mut out[..latent]);
                isa.run(Columns { matrix, first, x, out });
            }
        }
        LatentWeights::Split { keys, .. } => {
            let n = out.len() / row;
            plain.clear();
            (0..n).for_each(|t| plain.extend_from_slice(&query(t)[..nope]));
            let rows = h * latent..(h + 1) * latent;
            multiply(isa, keys, rows, plain, n, prepared, products);
            for (c, products) in products.chunks_exact(n).enumerate() {
                products.iter().enumerate().for_each(|(t, y)| out[t * row + c] = *y);
            }
        }
    }
    for (t, out) in out.chunks_exact_mut(row).enumerate() {
        out[latent..].copy_from_slice(&query(t)[nope..]);
        out.iter_mut().for_each(|x| *x *= pass.scale);
    }
}

/// Steps of a tile: their sums stay in registers while all rows pass.
const TILE: usize = 4;

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
