//! CPU kernels that multiply by weights where they lie.

mod matrix;

pub use matrix::{Matrix, MatrixData, MatrixError, ScaleType};
