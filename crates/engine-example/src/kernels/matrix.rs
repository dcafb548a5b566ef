use half::{bf16, f16};
use thiserror::Error;

use super::blocks::BlockType;
use super::number::{e2m1_to_f32, e8m0_to_f32, fp8_to_f32, pair};

/// Columns that share one scale of an MXFP4 matrix (OCP Microscaling Formats 1.0).
pub const MXFP4_GROUP: usize = 32;

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
    /// compressed-tensors `mxfp4-pack-quantized`: two E2M1 codes a byte, the lower nibble the even
    /// column, and `W[r,c] = code × 2^(scales[r, c / 32] - 127)`. Columns are a multiple of
    /// [`MXFP4_GROUP`].
    Mxfp4 {
        /// `[rows, cols / 2]` bytes.
        packed: &'a [u8],
        /// `[rows, cols / 32]` E8M0 codes.
        scales: &'a [u8],
    },
    /// Rows of whole blocks of a ggml format.
    Blocks {
        /// The format.
        kind: BlockType,
        /// `[rows, cols / kind.elements()]` blocks.
        bytes: &'a [u8],
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

impl<'a> Matrix<'a> {
    /// A `rows` x `cols` matrix over stored bytes.
    ///
    /// # Errors
    /// When a slice does not have exactly the length that shape and type ask for, when a group
    /// or block is one that the format does not have, or when the shape overflows.
    pub fn new(rows: usize, cols: usize, data: MatrixData<'a>) -> Result<Self, MatrixError> {
        let shape = Shape { rows, cols };
        match data {
            MatrixData::F32(bytes) => shape.expect("weights", bytes, rows, cols, 4)?,
            MatrixData::F16(bytes) | MatrixData::Bf16(bytes) => {
                shape.expect("weights", bytes, rows, cols, 2)?;
            }
            MatrixData::Fp8 { codes, scales, scale_type, block: [block_rows, block_cols] } => {
                for (what, value) in [("block rows", block_rows), ("block columns", block_cols)] {
                    if value == 0 {
                        return Err(shape.grouping(what, value, "at least 1"));
                    }
                }
                let [down, across] = [rows.div_ceil(block_rows), cols.div_ceil(block_cols)];
                shape.expect("codes", codes, rows, cols, 1)?;
                shape.expect("scales", scales, down, across, scale_type.size_bytes())?;
            }
            MatrixData::Int4 { packed, scales, scale_type, group } => {
                if group == 0 || (!group.is_multiple_of(8) && group != cols) {
                    let rule = "a multiple of 8, or all columns";
                    return Err(shape.grouping("group", group, rule));
                }
                shape.expect("words", packed, rows, cols.div_ceil(8), 4)?;
                let groups = cols.div_ceil(group);
                shape.expect("scales", scales, rows, groups, scale_type.size_bytes())?;
            }
            MatrixData::Mxfp4 { packed, scales } => {
                if !cols.is_multiple_of(MXFP4_GROUP) {
                    return Err(shape.grouping("columns", cols, "a multiple of 32 for MXFP4"));
                }
                shape.expect("codes", packed, rows, cols / 2, 1)?;
                shape.expect("scales", scales, rows, cols / MXFP4_GROUP, 1)?;
            }
            MatrixData::Blocks { kind, bytes } => {
                if !cols.is_multiple_of(kind.elements()) {
                    let rule = match kind.elements() {
                        32 => "a multiple of 32",
                        _ => "a multiple of 256",
                    };
                    return Err(shape.grouping("columns", cols, rule));
                }
                let blocks = cols / kind.elements();
                shape.expect("blocks", bytes, rows, blocks, kind.size_bytes())?;
            }
        }
        Ok(Self { rows, cols, data })
    }

    /// Output length: one dot product a row.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input length.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The stored bytes.
    #[must_use]
    pub fn data(&self) -> MatrixData<'a> {
        self.data
    }

    /// Bytes that one multiplication reads: weights and scales.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        match self.data {
            MatrixData::F32(bytes)
            | MatrixData::F16(bytes)
            | MatrixData::Bf16(bytes)
            | MatrixData::Blocks { bytes, .. } => bytes.len(),
            MatrixData::Fp8 { codes, scales, .. } => codes.len() + scales.len(),
            MatrixData::Int4 { packed, scales, .. } | MatrixData::Mxfp4 { packed, scales } => {
                packed.len() + scales.len()
            }
        }
    }

    /// Writes row `row` as `f32`: exact for float formats, `code * scale` rounded once for
    /// quantised ones. Panics when there is no such row or `out` is not `cols` long.
    pub fn row_to_f32(&self, row: usize, out: &mut [f32]) {
        let (rows, cols) = (self.rows, self.cols);
        assert!(row < rows, "row {row} of a {rows}x{cols} matrix");
        assert_eq!(out.len(), cols, "a row of a {rows}x{cols} matrix");
        let first = row * cols;
        for (c, out) in out.iter_mut().enumerate() {
            *out = match self.data {
                MatrixData::F32(bytes) => ScaleType::F32.read(bytes, first + c),
                MatrixData::F16(bytes) => f16::from_le_bytes(pair(bytes, first + c)).to_f32(),
                MatrixData::Bf16(bytes) => bf16::from_le_bytes(pair(bytes, first + c)).to_f32(),
                MatrixData::Fp8 { codes, scales, scale_type, block } => {
                    let index = row / block[0] * cols.div_ceil(block[1]) + c / block[1];
                    fp8_to_f32(codes[first + c]) * scale_type.read(scales, index)
                }
                MatrixData::Int4 { packed, scales, scale_type, group } => {
                    // Nibbles are stored lowest first, so column c is nibble c of the row.
                    let byte = packed[row * cols.div_ceil(8) * 4 + c / 2];
                    let nibble = byte >> (c % 2 * 4) & 0xF;
                    let index = row * cols.div_ceil(group) + c / group;
                    (f32::from(nibble) - 8.0) * scale_type.read(scales, index)
                }
                MatrixData::Mxfp4 { packed, scales } => {
                    let code = packed[(first + c) / 2] >> (c % 2 * 4) & 0xF;
                    e2m1_to_f32(code) * e8m0_to_f32(scales[(first + c) / MXFP4_GROUP])
                }
                MatrixData::Blocks { kind, bytes } => {
                    let (elements, size) = (kind.elements(), kind.size_bytes());
                    let block = &bytes[(first + c) / elements * size..][..size];
                    kind.read(block, c % elements)
                }
            };
        }
    }
}

/// The shape an error speaks of.
#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    cols: usize,
}

impl Shape {
    /// Checks that a slice has `down * across * size` bytes.
    fn expect(
        self,
        what: &'static str,
        bytes: &[u8],
        down: usize,
        across: usize,
        size: usize,
    ) -> Result<(), MatrixError> {
        let Self { rows, cols } = self;
        let needed = down.checked_mul(across).and_then(|count| count.checked_mul(size));
        match needed {
            None => Err(MatrixError::TooLarge { rows, cols }),
            Some(needed) if needed != bytes.len() => {
                Err(MatrixError::Length { what, rows, cols, needed, found: bytes.len() })
            }
            Some(_) => Ok(()),
        }
    }

    fn grouping(self, what: &'static str, value: usize, rule: &'static str) -> MatrixError {
        MatrixError::Grouping { what, value, rows: self.rows, cols: self.cols, rule }
    }
}
