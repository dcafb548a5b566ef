//! Linear layers whose weights stay in the type they are stored in.

use crate::error::EngineError;
use crate::kernels::{BlockType, Isa, Matrix, MatrixData, MatrixError, ScaleType, Scratch, matmul};
use crate::spine::f32_slice;
use crate::weights::SharedBytes;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use parking_lot::Mutex;
use std::sync::Arc;

/// Bytes of a [`StoredMatrix`]; the layouts are those of [`MatrixData`].
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "MatrixData documents the same fields")]
pub enum StoredData {
    F32(SharedBytes),
    F16(SharedBytes),
    Bf16(SharedBytes),
    Fp8 { codes: SharedBytes, scales: SharedBytes, scale_type: ScaleType, block: [usize; 2] },
    Int4 { packed: SharedBytes, scales: SharedBytes, scale_type: ScaleType, group: usize },
    Mxfp4 { packed: SharedBytes, scales: SharedBytes },
    Blocks { kind: BlockType, bytes: SharedBytes },
}

/// A weight matrix `[rows, cols]` that owns a share of its stored bytes.
#[derive(Clone, Debug)]
pub struct StoredMatrix {
    rows: usize,
    cols: usize,
    data: StoredData,
}

impl StoredMatrix {
    /// Checks `data` against the shape; `name` is for the error.
    ///
    /// # Errors
    /// `config-inconsistent` if lengths or groups do not fit.
    pub fn new(
        name: &str,
        rows: usize,
        cols: usize,
        data: StoredData,
    ) -> std::result::Result<Self, EngineError> {
        let matrix = Self { rows, cols, data };
        matrix
            .try_view()
            .map_err(|source| EngineError::Matrix { name: name.to_owned(), source })?;
        Ok(matrix)
    }

    /// Rows: outputs of a linear layer, tokens of an embedding.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: inputs of a linear layer.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes that one use of the whole matrix reads.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.data {
            StoredData::F32(bytes)
            | StoredData::F16(bytes)
            | StoredData::Bf16(bytes)
            | StoredData::Blocks { bytes, .. } => bytes.as_slice().len(),
            StoredData::Fp8 { codes: weights, scales, .. }
            | StoredData::Int4 { packed: weights, scales, .. }
            | StoredData::Mxfp4 { packed: weights, scales } => {
                weights.as_slice().len() + scales.as_slice().len()
            }
        }
    }

    /// The matrix as kernels see it.
    #[must_use]
    pub fn view(&self) -> Matrix<'_> {
        self.try_view().expect("checked when the matrix was made")
    }

    fn try_view(&self) -> std::result::Result<Matrix<'_>, MatrixError> {
        let data = match &self.data {
            StoredData::F32(bytes) => MatrixData::F32(bytes.as_slice()),
            StoredData::F16(bytes) => MatrixData::F16(bytes.as_slice()),
            StoredData::Bf16(bytes) => MatrixData::Bf16(bytes.as_slice()),
            StoredData::Fp8 { codes, scales, scale_type, block } => MatrixData::Fp8 {
                codes: codes.as_slice(),
                scales: scales.as_slice(),
                scale_type: *scale_type,
                block: *block,
            },
            StoredData::Int4 { packed, scales, scale_type, group } => MatrixData::Int4 {
                packed: packed.as_slice(),
                scales: scales.as_slice(),
                scale_type: *scale_type,
                group: *group,
            },
            StoredData::Mxfp4 { packed, scales } => {
                MatrixData::Mxfp4 { packed: packed.as_slice(), scales: scales.as_slice() }
            }
            StoredData::Blocks { kind, bytes } => {
                MatrixData::Blocks { kind: *kind, bytes: bytes.as_slice() }
            }
        };
        Matrix::new(self.rows, self.cols, data)
    }
}

/// What the layers of a decoder multiply with: one instruction set and, since they run one after
/// the other, one set of buffers.
#[derive(Clone, Debug)]
pub struct Workspace {
    isa: Isa,
    scratch: Arc<Mutex<Scratch>>,
}

impl Workspace {
    /// Buffers of a decoder that computes with `isa`.
    #[must_use]
    pub fn new(isa: Isa) -> Self {
        Self { isa, scratch: Arc::default() }
    }

    /// What it computes with.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

/// `y = W x (+ bias)` in f32.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: StoredMatrix,
    bias: Option<Vec<f32>>,
    workspace: Workspace,
}

impl Linear {
    /// Without bias.
    #[must_use]
    pub fn new(weight: StoredMatrix, workspace: &Workspace) -> Self {
        Self { weight, bias: None, workspace: workspace.clone() }
    }

    /// With `bias`, one value an output.
    ///
    /// # Errors
    /// `config-inconsistent` if its length is not the number of outputs.
    pub fn with_bias(self, bias: Vec<f32>) -> std::result::Result<Self, EngineError> {
        if bias.len() == self.weight.rows {
            Ok(Self { bias: Some(bias), ..self })
        } else {
            let problem = format!("the layer has {} outputs", self.weight.rows);
            Err(EngineError::config("length of a bias", &bias.len(), problem))
        }
    }

    /// The weights.
    #[must_use]
    pub fn weight(&self) -> &StoredMatrix {
        &self.weight
    }

    /// `x [n, cols]` to `[n, rows]`.
    ///
    /// # Errors
    /// If `x` is not a contiguous f32 CPU tensor with `cols` columns.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.apply_op1_no_bwd(self)
    }

    /// The same on slices: `x [n, cols]` to `[n, rows]`.
    ///
    /// # Panics
    /// If `x` is not whole rows.
    #[must_use]
    pub fn product(&self, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len() / self.weight.cols * self.weight.rows];
        self.apply(x, &mut out);
        out
    }

    /// The same on slices: `x [n, cols]` overwrites `out [n, rows]`.
    ///
    /// # Panics
    /// If a slice has another length.
    pub fn apply(&self, x: &[f32], out: &mut [f32]) {
        let n = x.len() / self.weight.cols;
        assert_eq!((x.len(), out.len()), (n * self.weight.cols, n * self.weight.rows));
        let Workspace { isa, scratch } = &self.workspace;
        matmul(*isa, &self.weight.view(), x, n, out, &mut scratch.lock());
        if let Some(bias) = &self.bias {
            for row in out.chunks_exact_mut(self.weight.rows) {
                for (y, b) in row.iter_mut().zip(bias) {
                    *y += b;
                }
            }
        }
    }
}

impl CustomOp1 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = f32_slice(storage, layout)?;
        let (n, cols) = layout.shape().dims2()?;
        if cols != self.weight.cols {
            candle_core::bail!("a layer with {} inputs got {cols}", self.weight.cols);
        }
        let mut out = vec![0.0; n * self.weight.rows];
        self.apply(x, &mut out);
        Ok((CpuStorage::F32(out), Shape::from((n, self.weight.rows))))
    }
}
