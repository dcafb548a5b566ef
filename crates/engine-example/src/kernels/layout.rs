//! Activations in the order in which a format's steps take them.

use super::{Matrix, MatrixData};

/// Lanes of the contract.
pub(super) const LANES: usize = 16;
/// Columns of a span of four-bit weights: one 32-bit word a lane.
pub(super) const NIBBLE_SPAN: usize = LANES * 8;

/// One step's activations, aligned so that a load never crosses a cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Step(pub(super) [f32; LANES]);

/// Which column each lane of each step takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layout {
    /// Spans of consecutive columns, each padded to whole steps.
    Spans { cols: usize, span: usize },
    /// Spans of 128 columns; lane `l` of step `s` takes column `8 l + s`.
    Nibbles { cols: usize },
}

impl Layout {
    /// The order in which `matrix` takes activations.
    pub(super) fn of(matrix: &Matrix<'_>) -> Self {
        let cols = matrix.cols();
        match matrix.data() {
            MatrixData::F32(_)
            | MatrixData::F16(_)
            | MatrixData::Bf16(_)
            | MatrixData::Blocks { .. } => Self::Spans { cols, span: cols },
            // Spans of whole steps follow each other as one long span does.
            MatrixData::Fp8 { block: [_, span], .. } if span.is_multiple_of(LANES) => {
                Self::Spans { cols, span: cols }
            }
            MatrixData::Fp8 { block: [_, span], .. } => Self::Spans { cols, span: span.min(cols) },
            MatrixData::Int4 { .. } | MatrixData::Mxfp4 { .. } => Self::Nibbles { cols },
        }
    }

    pub(super) fn cols(self) -> usize {
        match self {
            Self::Spans { cols, .. } | Self::Nibbles { cols } => cols,
        }
    }

    /// Steps of one row.
    pub(super) fn steps(self) -> usize {
        match self {
            Self::Spans { cols: 0, .. } => 0,
            Self::Spans { cols, span } => {
                cols / span * span.div_ceil(LANES) + (cols % span).div_ceil(LANES)
            }
            Self::Nibbles { cols } => cols.div_ceil(NIBBLE_SPAN) * 8,
        }
    }

    /// Writes one token's activations; `value(c)` is column `c`.
    fn fill(self, steps: &mut [Step], value: impl Fn(usize) -> f32) {
        match self {
            Self::Spans { cols, span } => {
                let mut column = 0;
                for step in steps {
                    let span_end = (column / span * span + span).min(cols);
                    let width = LANES.min(span_end - column);
                    for (lane, x) in step.0.iter_mut().enumerate() {
                        *x = if lane < width { value(column + lane) } else { 0.0 };
                    }
                    column += width;
                }
            }
            Self::Nibbles { cols } => {
                for (span, steps) in steps.chunks_exact_mut(8).enumerate() {
                    for lane in 0..LANES {
                        for (s, step) in steps.iter_mut().enumerate() {
                            let column = span * NIBBLE_SPAN + lane * 8 + s;
                            step.0[lane] = if column < cols { value(column) } else { 0.0 };
                        }
                    }
                }
            }
        }
    }
}

/// Activations `[n, steps]` of several tokens in one layout.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    layout: Option<Layout>,
    steps: Vec<Step>,
}

impl Prepared {
    /// Makes room for `n` tokens and returns their rows, to be filled.
    pub(super) fn reshape(&mut self, layout: Layout, n: usize) -> &mut [Step] {
        self.layout = Some(layout);
        self.steps.resize(layout.steps() * n, Step::default());
        &mut self.steps
    }

    /// Takes `x` `[n, cols]`.
    pub(super) fn set(&mut self, layout: Layout, x: &[f32], n: usize) {
        let (cols, width) = (layout.cols(), layout.steps());
        assert_eq!(x.len(), n * cols, "activations of {n} tokens, {cols} columns");
        let steps = self.reshape(layout, n);
        if width > 0 {
            for (steps, x) in steps.chunks_exact_mut(width).zip(x.chunks_exact(cols)) {
                layout.fill(steps, |column| x[column]);
            }
        }
    }

    pub(super) fn layout(&self) -> Option<Layout> {
        self.layout
    }

    /// Keeps the memory only.
    pub(super) fn forget(&mut self) {
        self.layout = None;
    }

    /// Steps of token `token`.
    #[inline(always)]
    pub(super) fn row(&self, token: usize, width: usize) -> &[Step] {
        &self.steps[token * width..][..width]
    }
}

/// Fills one prepared row from column `token` of `transposed` `[cols, n]`.
pub(super) fn fill_transposed(
    layout: Layout,
    steps: &mut [Step],
    transposed: &[f32],
    n: usize,
    token: usize,
) {
    layout.fill(steps, |column| transposed[column * n + token]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns by step and lane, `-1` where there is none.
    fn columns(layout: Layout) -> Vec<[f32; LANES]> {
        let mut prepared = Prepared::default();
        let x: Vec<f32> = (0..layout.cols()).map(|c| c as f32 + 1.0).collect();
        prepared.set(layout, &x, 1);
        prepared.steps.iter().map(|step| step.0.map(|x| x - 1.0)).collect()
    }

    #[test]
    fn spans_are_padded_each_by_itself() {
        let got = columns(Layout::Spans { cols: 45, span: 20 });
        let first: Vec<f32> = got.iter().map(|step| step[0]).collect();
        assert_eq!(first, [0.0, 16.0, 20.0, 36.0, 40.0]);
        assert_eq!(got[1][..5], [16.0, 17.0, 18.0, 19.0, -1.0]);
        assert_eq!(got[4][..6], [40.0, 41.0, 42.0, 43.0, 44.0, -1.0]);
    }

    #[test]
    fn nibbles_stay_in_their_lane() {
        let got = columns(Layout::Nibbles { cols: 140 });
        assert_eq!(got.len(), 16);
        assert_eq!((got[0][1], got[7][15]), (8.0, 127.0));
        assert_eq!((got[8][1], got[11][1], got[12][1]), (136.0, 139.0, -1.0));
    }
}
