use thiserror::Error;

/// How the scales of a quantised matrix are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScaleType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
}

impl ScaleType {
    /// Bytes of one scale.
    #[must_use]
    pub fn size_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// Stored bytes of a weight matrix, little-endian, row-major, at any alignment.
#[derive(Clone, Copy, Debug)]
pub enum MatrixData<'a> {
    /// 4 bytes a weight.
    F32(&'a [u8]),
    /// 2 bytes a weight.
    F16(&'a [u8]),
    /// 2 bytes a weight.
    Bf16(&'a [u8]),
    /// FP8 E4M3, one byte a weight. `W[r,c] = code × scales[r / block_rows, c / block_cols]`
    /// (checkpoints call the scale `weight_scale_inv`; the use is a product).
    Fp8 {
        /// `[rows, cols]` codes.
        codes: &'a [u8],
        /// `[ceil(rows / block_rows), ceil(cols / block_cols)]` scales.
        scales: &'a [u8],
        /// Their type.
        scale_type: ScaleType,
        /// Rows and columns that share one scale.
        block: [usize; 2],
    },
    /// compressed-tensors `pack-quantized`, 4 bit, symmetric: nibble `j` (lowest first) of
    /// little-endian 32-bit word `n` of a row holds `q[8 n + j] + 8`, and
    /// `W[r,c] = q × scales[r, c / group]`. A row has `ceil(cols / 8)` words.
    Int4 {
        /// `[rows, ceil(cols / 8)]` 32-bit words.
        packed: &'a [u8],
        /// `[rows, ceil(cols / group)]` scales.
        scales: &'a [u8],
        /// Their type.
        scale_type: ScaleType,
        /// Columns that share one scale: a multiple of 8, or all columns.
        group: usize,
    },
}

/// A weight matrix `[rows, cols]` whose bytes are used where they lie.
///
/// A `Matrix` that exists is consistent: its slices have exactly the lengths that shape and
/// type ask for, so kernels index without further checks.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    rows: usize,
    cols: usize,
    data: MatrixData<'a>,
}

/// A matrix whose bytes do not fit its shape.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MatrixError {
    /// A slice has the wrong length.
    #[error("{what} of a {rows}x{cols} matrix needs {needed} bytes, has {found}")]
    Length {
        /// Which slice.
        what: &'static str,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Bytes that the shape asks for.
        needed: usize,
        /// Bytes given.
        found: usize,
    },
    /// A group or block that kernels cannot use.
    #[error("{what} {value} of a {rows}x{cols} matrix must be {rule}")]
    Grouping {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: usize,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// What it must be.
        rule: &'static str,
    },
    /// A shape whose byte count does not fit the address space.
    #[error("a {rows}x{cols} matrix does not fit the address space")]
    TooLarge {
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
    },
}
