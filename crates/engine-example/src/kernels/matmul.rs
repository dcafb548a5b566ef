//! Products over the threads of the current rayon pool.

use rayon::prelude::*;

use super::layout::{Layout, Prepared};
use super::tile::DotRows;
use super::tokens::Tokens;
use super::{Isa, Matrix};

/// Buffers that calls reuse. Any call may use any `Scratch`; it carries no results.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Activations, one entry for each layout that the matrices of a call need.
    pub(super) x: Vec<Prepared>,
    /// Inner activations of each task.
    pub(super) inner: Vec<Prepared>,
    /// Gate products, then inner activations, `[rows, tokens]` of each task.
    pub(super) gate: Vec<f32>,
    /// Up products, likewise.
    pub(super) up: Vec<f32>,
    /// Products of one task at a time, `[rows, tokens]`.
    pub(super) product: Vec<f32>,
    /// Sums over tasks, `[rows, n]`.
    pub(super) sum: Vec<f32>,
}

/// Weight bytes times tokens below which waking another thread costs more than it saves.
const FORK_BYTES: usize = 128 << 10;
/// Jobs a thread: enough to even out a disturbed core, few enough to read in long runs.
const JOBS_PER_THREAD: usize = 4;

/// `out[t, r] = matrix[r, :] . x[t, :]`, for `x` `[n, cols]` and `out` `[n, rows]`.
///
/// Rows are split over the current rayon pool. Panics when a slice does not fit the shapes.
pub fn matmul(
    isa: Isa,
    matrix: &Matrix<'_>,
    x: &[f32],
    n: usize,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let rows = matrix.rows();
    assert_eq!(out.len(), n * rows, "outputs of {n} tokens, {rows} rows");
    let at = scratch.prepare(std::iter::once(Layout::of(matrix)), x, n);
    if out.is_empty() {
        return;
    }
    let x = &scratch.x[at];
    let block = rows_per_job(rows, work_bytes(matrix, n));
    let tokens = Tokens::Range { start: 0, n };
    let job = |(index, out): (usize, &mut [f32])| {
        let first = index * block;
        isa.run(DotRows { matrix, rows: first..first + out.len() / n, x, tokens, out });
    };
    if n == 1 {
        for_each_block(out, block, rows, job);
        return;
    }
    // Threads own rows, and a row's outputs lie far apart in `out`: compute them side by side.
    scratch.product.resize(rows * n, 0.0);
    for_each_block(&mut scratch.product, block * n, rows * n, job);
    for (t, out) in out.chunks_exact_mut(rows).enumerate() {
        for (out, products) in out.iter_mut().zip(scratch.product.chunks_exact(n)) {
            *out = products[t];
        }
    }
}

/// Calls `job` on the blocks of `all`, on several threads when there are several blocks.
fn for_each_block(
    all: &mut [f32],
    block: usize,
    len: usize,
    job: impl Fn((usize, &mut [f32])) + Send + Sync,
) {
    if block >= len {
        job((0, all));
    } else {
        all.par_chunks_mut(block).enumerate().for_each(job);
    }
}

/// What a product costs, in bytes of weights that one thread reads.
pub(super) fn work_bytes(matrix: &Matrix<'_>, n: usize) -> usize {
    matrix.size_bytes().saturating_mul(n)
}

/// Rows of one job: all of them when the work is not worth a second thread.
pub(super) fn rows_per_job(rows: usize, work_bytes: usize) -> usize {
    let threads = rayon::current_num_threads();
    if threads == 1 || work_bytes < FORK_BYTES {
        return rows.max(1);
    }
    let jobs = (threads * JOBS_PER_THREAD).min(work_bytes / (FORK_BYTES / 4));
    // Whole groups of four rows, as the kernels take them.
    rows.div_ceil(jobs).next_multiple_of(4)
}

impl Scratch {
    /// Prepares `x` in each layout; returns where the last one lies in `self.x`.
    pub(super) fn prepare(
        &mut self,
        layouts: impl Iterator<Item = Layout>,
        x: &[f32],
        n: usize,
    ) -> usize {
        let (mut used, mut last) = (0, 0);
        for layout in layouts {
            last = self.x[..used]
                .iter()
                .position(|prepared| prepared.layout() == Some(layout))
                .unwrap_or(used);
            if last == used {
                if self.x.len() == used {
                    self.x.push(Prepared::default());
                }
                self.x[used].set(layout, x, n);
                used += 1;
            }
        }
        // Entries of an earlier call must not be taken for this one's.
        for stale in &mut self.x[used..] {
            stale.forget();
        }
        last
    }

    /// The activations that `prepare` wrote for a layout.
    pub(super) fn find(all: &[Prepared], layout: Layout) -> &Prepared {
        let found = all.iter().find(|prepared| prepared.layout() == Some(layout));
        found.expect("every layout of the call was prepared")
    }
}
