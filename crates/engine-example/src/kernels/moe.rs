//! The experts of one layer.

use rayon::prelude::*;

use super::layout::{Layout, Prepared, fill_transposed};
use super::matmul::{rows_per_job, work_bytes};
use super::tile::DotRows;
use super::tokens::Tokens;
use super::{Activation, Isa, Matrix, Scratch};

/// A gated block, as in SwiGLU (Shazeer 2020, "GLU variants improve transformer").
#[derive(Clone, Copy, Debug)]
pub struct ExpertWeights<'a> {
    /// `[intermediate, hidden]`.
    pub gate: Matrix<'a>,
    /// `[intermediate, hidden]`.
    pub up: Matrix<'a>,
    /// `[hidden, intermediate]`.
    pub down: Matrix<'a>,
}

/// One expert and the tokens that chose it.
#[derive(Clone, Copy, Debug)]
pub struct ExpertTask<'a> {
    /// The expert.
    pub weights: ExpertWeights<'a>,
    /// Index of the token in the batch, and the router's weight of this expert for it.
    pub tokens: &'a [(u32, f32)],
}

impl ExpertTask<'_> {
    fn intermediate(&self) -> usize {
        self.weights.gate.rows()
    }

    /// Inner activations: one a row of `gate` and token.
    fn inner_len(&self) -> usize {
        self.intermediate() * self.tokens.len()
    }

    fn check(&self, hidden: usize, n: usize) {
        let ExpertWeights { gate, up, down } = &self.weights;
        let shape = |matrix: &Matrix<'_>| [matrix.rows(), matrix.cols()];
        let intermediate = gate.rows();
        assert_eq!(shape(gate), [intermediate, hidden], "shape of gate");
        assert_eq!(shape(up), [intermediate, hidden], "shape of up");
        assert_eq!(shape(down), [hidden, intermediate], "shape of down");
        for (token, _) in self.tokens {
            assert!((*token as usize) < n, "token {token} of a batch of {n}");
        }
    }
}

/// Adds the experts' outputs: for each task and token,
/// `out[t] += weight * down(silu(gate x[t]) * (up x[t]))`, for `x` and `out` `[n, hidden]`.
///
/// A token's experts are summed in the order of the tasks and then added to `out`, so a caller
/// that sorts its tasks by expert gets the same bits from a token alone as from a token in a
/// batch. Work is split over the current rayon pool. Panics when shapes do not fit each other.
pub fn moe_ffn(
    isa: Isa,
    tasks: &[ExpertTask<'_>],
    x: &[f32],
    hidden: usize,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let mut sum = MoeSum::begin(x, hidden, scratch);
    sum.add(isa, tasks);
    sum.finish(out);
}

/// The same in steps, for experts that become usable one after the other: the sums, and so their
/// bits, do not depend on how the tasks are split over the calls of [`MoeSum::add`].
#[derive(Debug)]
pub struct MoeSum<'a> {
    /// `[n, hidden]`.
    x: &'a [f32],
    hidden: usize,
    n: usize,
    activation: Activation,
    scratch: &'a mut Scratch,
}

impl<'a> MoeSum<'a> {
    /// No expert yet, for inputs `x` `[n, hidden]`.
    pub fn begin(x: &'a [f32], hidden: usize, scratch: &'a mut Scratch) -> Self {
        let n = x.len().checked_div(hidden).unwrap_or(0);
        assert_eq!(x.len(), n * hidden, "whole tokens of {hidden} values");
        scratch.sum.clear();
        scratch.sum.resize(hidden * n, 0.0);
        Self { x, hidden, n, activation: Activation::Silu, scratch }
    }

    /// With another activation than SiLU.
    #[must_use]
    pub fn with_activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Adds the outputs of `tasks`.
    pub fn add(&mut self, isa: Isa, tasks: &[ExpertTask<'_>]) {
        let Self { x, hidden, n, activation, ref mut scratch } = *self;
        if n == 0 {
            return;
        }
        for task in tasks {
            task.check(hidden, n);
        }
        let inputs = tasks.iter().flat_map(|task| [&task.weights.gate, &task.weights.up]);
        scratch.prepare(inputs.map(Layout::of), x, n);
        inner_products(isa, activation, tasks, scratch);
        prepare_inner(tasks, scratch);
        outer_products(isa, tasks, n, hidden, scratch);
    }

    /// `out += sums`, for `out` `[n, hidden]`.
    pub fn finish(self, out: &mut [f32]) {
        assert_eq!(out.len(), self.x.len(), "outputs of {} tokens", self.n);
        if self.n == 0 {
            return;
        }
        for (t, out) in out.chunks_exact_mut(self.hidden).enumerate() {
            for (out, sums) in out.iter_mut().zip(self.scratch.sum.chunks_exact(self.n)) {
                *out += sums[t];
            }
        }
    }
}

/// Some rows of one task's `gate` and `up`.
struct InnerJob<'a> {
    activation: Activation,
    task: &'a ExpertTask<'a>,
    first_row: usize,
    /// `[rows, tokens]`.
    gate: &'a mut [f32],
    /// `[rows, tokens]`.
    up: &'a mut [f32],
}

impl InnerJob<'_> {
    fn run(self, isa: Isa, x: &[Prepared]) {
        let tokens = Tokens::Listed(self.task.tokens);
        let rows = self.first_row..self.first_row + self.gate.len() / tokens.len();
        let ExpertWeights { gate, up, .. } = &self.task.weights;
        for (matrix, out) in [(gate, &mut *self.gate), (up, &mut *self.up)] {
            let x = Scratch::find(x, Layout::of(matrix));
            isa.run(DotRows { matrix, rows: rows.clone(), x, tokens, out });
        }
        self.activation.apply(self.gate, self.up);
    }
}

/// `scratch.gate = act(gate x, up x)`, `[rows, tokens]` task after task.
fn inner_products(
    isa: Isa,
    activation: Activation,
    tasks: &[ExpertTask<'_>],
    scratch: &mut Scratch,
) {
    let len = tasks.iter().map(ExpertTask::inner_len).sum();
    scratch.gate.resize(len, 0.0);
    scratch.up.resize(len, 0.0);
    let rows: usize = tasks.iter().map(ExpertTask::intermediate).sum();
    let work = tasks.iter().map(|task| 2 * work_bytes(&task.weights.gate, task.tokens.len())).sum();
    let block = rows_per_job(rows, work);
    let forks = block < rows;

    let (mut gate, mut up) = (&mut scratch.gate[..], &mut scratch.up[..]);
    let mut jobs = Vec::new();
    for task in tasks.iter().filter(|task| !task.tokens.is_empty()) {
        let mut first_row = 0;
        while first_row < task.intermediate() {
            let rows = block.min(task.intermediate() - first_row);
            let len = rows * task.tokens.len();
            let job = InnerJob {
                activation,
                task,
                first_row,
                gate: gate.split_off_mut(..len).expect("counted above"),
                up: up.split_off_mut(..len).expect("counted above"),
            };
            if forks {
                jobs.push(job);
            } else {
                job.run(isa, &scratch.x);
            }
            first_row += rows;
        }
    }
    jobs.into_par_iter().with_max_len(1).for_each(|job| job.run(isa, &scratch.x));
}

/// Brings the inner activations of each task into the order that its `down` takes.
fn prepare_inner(tasks: &[ExpertTask<'_>], scratch: &mut Scratch) {
    if scratch.inner.len() < tasks.len() {
        scratch.inner.resize_with(tasks.len(), Prepared::default);
    }
    let mut inner = &scratch.gate[..];
    for (task, prepared) in tasks.iter().zip(&mut scratch.inner) {
        let (n, layout) = (task.tokens.len(), Layout::of(&task.weights.down));
        let own = inner.split_off(..task.inner_len()).expect("written by the step before");
        let steps = prepared.reshape(layout, n);
        let fill = |(token, steps)| fill_transposed(layout, steps, own, n, token);
        if n > 1 && layout.steps() > 0 {
            steps.par_chunks_exact_mut(layout.steps()).enumerate().for_each(fill);
        } else if n == 1 {
            fill((0, steps));
        }
    }
}

/// `scratch.sum[r, t]` += weight times row `r` of `down` times its token `t`, task after task.
fn outer_products(
    isa: Isa,
    tasks: &[ExpertTask<'_>],
    n: usize,
    hidden: usize,
    scratch: &mut Scratch,
) {
    // A job owns some rows of all experts, so nobody else adds to its sums.
    let most = tasks.iter().map(|task| task.tokens.len()).max().unwrap_or(0).max(1);
    scratch.product.resize(hidden * most, 0.0);
    let work = tasks.iter().map(|task| work_bytes(&task.weights.down, task.tokens.len())).sum();
    let block = rows_per_job(hidden, work);
    let inner = &scratch.inner;
    let job = |(index, (sum, product)): (usize, (&mut [f32], &mut [f32]))| {
        let rows = index * block..index * block + sum.len() / n;
        for (task, x) in tasks.iter().zip(inner).filter(|(task, _)| !task.tokens.is_empty()) {
            let tokens = Tokens::Range { start: 0, n: task.tokens.len() };
            let product = &mut product[..rows.len() * tokens.len()];
            let matrix = &task.weights.down;
            isa.run(DotRows { matrix, rows: rows.clone(), x, tokens, out: &mut *product });
            for (sum, product) in sum.chunks_exact_mut(n).zip(product.chunks_exact(tokens.len())) {
                for ((token, weight), product) in task.tokens.iter().zip(product) {
                    sum[*token as usize] += weight * product;
                }
            }
        }
    };
    if block >= hidden {
        job((0, (&mut scratch.sum, &mut scratch.product)));
    } else {
        let sums = scratch.sum.par_chunks_mut(block * n);
        let products = scratch.product.par_chunks_mut(block * most);
        sums.zip(products).enumerate().for_each(job);
    }
}
