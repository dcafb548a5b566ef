//! The spine's weights by name: bytes as stored, shared, checked against the shape that the
//! config asks for when a layer is built.

use crate::error::EngineError;
use crate::format::block_type;
use crate::kernels::{Isa, MXFP4_GROUP, ScaleType};
use crate::linear::{Linear, StoredData, StoredMatrix, Workspace};
use expert_tier::pool::Dtype;
use half::{bf16, f16};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Bytes of a tensor, owned by whoever read them and shared with the layers that use them.
#[derive(Clone)]
pub struct SharedBytes(Arc<dyn AsRef<[u8]> + Send + Sync>);

impl SharedBytes {
    /// Shares `bytes`: a `Vec<u8>`, a mapping, a range of an arena.
    pub fn new(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self(Arc::new(bytes))
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.as_slice().len())
    }
}

/// One tensor of the spine as stored.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Little-endian, row-major.
    pub bytes: SharedBytes,
}

/// How the checkpoint's config says its quantised weights are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WeightFormat {
    /// Rows and columns that share one scale of an FP8 weight (`weight_block_size`).
    pub fp8_block: Option<[usize; 2]>,
    /// Columns that share one scale of a packed 4-bit weight (`group_size`).
    pub int4_group: Option<usize>,
}

/// The spine's tensors by canonical name (`layers.0.self_attn.q_proj.weight`,
/// `embed_tokens.weight`, `norm.weight`, `lm_head.weight`).
#[derive(Clone, Debug)]
pub struct SpineWeights {
    tensors: BTreeMap<String, StoredTensor>,
    format: WeightFormat,
    workspace: Workspace,
}

impl SpineWeights {
    /// The weights of one checkpoint, for layers that compute with `isa`.
    #[must_use]
    pub fn new(tensors: BTreeMap<String, StoredTensor>, format: WeightFormat, isa: Isa) -> Self {
        Self { tensors, format, workspace: Workspace::new(isa) }
    }

    /// What the layers multiply with.
    #[must_use]
    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// The tensor called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name)
    }

    /// A vector of `len` values in f32 (norms, biases, correction biases).
    ///
    /// # Errors
    /// A tensor that is missing, has another length, or is not a float tensor.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, EngineError> {
        let tensor = self.need(name)?;
        let bytes = tensor.bytes.as_slice();
        let elements = tensor.shape.iter().try_fold(1_usize, |n, &dim| n.checked_mul(dim));
        if elements != Some(len) {
            return Err(mismatch(name, format!("{len} values"), tensor));
        }
        let values: Vec<f32> = match tensor.dtype {
            Dtype::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::F16 => {
                bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect()
            }
            Dtype::Bf16 => {
                bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
            }
            _ => return Err(mismatch(name, "F32, F16 or BF16".to_owned(), tensor)),
        };
        if values.len() == len {
            Ok(values)
        } else {
            Err(mismatch(name, format!("bytes of {len} values"), tensor))
        }
    }

    /// The linear layer `{name}`, `[rows, cols]`, in whatever type it is stored.
    ///
    /// # Errors
    /// As [`SpineWeights::matrix`].
    pub fn linear(&self, name: &str, rows: usize, cols: usize) -> Result<Linear, EngineError> {
        Ok(Linear::new(self.matrix(name, rows, cols)?, &self.workspace))
    }

    /// The weight matrix of the module `{name}`, `[rows, cols]`: a float `.weight`, an FP8
    /// `.weight` with `.weight_scale_inv`, or a `.weight_packed` (int4 in words, MXFP4 in bytes)
    /// with `.weight_scale`.
    ///
    /// # Errors
    /// A tensor that is missing, has another shape, or a type that no kernel reads.
    pub fn matrix(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<StoredMatrix, EngineError> {
        let packed_name = format!("{name}.weight_packed");
        let data = if let Some(packed) = self.get(&packed_name)
            && packed.dtype == Dtype::U8
        {
            let packed = expect_shape(&packed_name, packed, [rows, cols / 2])?;
            let scale_name = format!("{name}.weight_scale");
            let scales =
                expect_shape(&scale_name, self.need(&scale_name)?, [rows, cols / MXFP4_GROUP])?;
            StoredData::Mxfp4 { packed: packed.bytes.clone(), scales: scales.bytes.clone() }
        } else if let Some(packed) = self.get(&packed_name) {
            let packed = expect_shape(&packed_name, packed, [rows, cols.div_ceil(8)])?;
            self.int4(name, packed, rows, cols)?
        } else {
            let name = format!("{name}.weight");
            let weight = expect_shape(&name, self.need(&name)?, [rows, cols])?;
            self.unpacked(&name, weight, rows, cols)?
        };
        StoredMatrix::new(name, rows, cols, data)
    }

    /// The tensor `{name}.weight`, `[count, rows, cols]`, as one matrix `[count · rows, cols]`.
    ///
    /// # Errors
    /// As [`SpineWeights::matrix`].
    pub fn stack(
        &self,
        name: &str,
        [count, rows, cols]: [usize; 3],
    ) -> Result<StoredMatrix, EngineError> {
        let tensor_name = format!("{name}.weight");
        let weight = expect_shape(&tensor_name, self.need(&tensor_name)?, [count, rows, cols])?;
        let data = self.unpacked(&tensor_name, weight, count * rows, cols)?;
        StoredMatrix::new(name, count * rows, cols, data)
    }

    /// A weight whose rows are stored whole.
    fn unpacked(
        &self,
        name: &str,
        weight: &StoredTensor,
        rows: usize,
        cols: usize,
    ) -> Result<StoredData, EngineError> {
        let bytes = weight.bytes.clone();
        Ok(match weight.dtype {
            Dtype::F32 => StoredData::F32(bytes),
            Dtype::F16 => StoredData::F16(bytes),
            Dtype::Bf16 => StoredData::Bf16(bytes),
            Dtype::F8E4m3 => self.fp8(name, bytes, rows, cols)?,
            other => match block_type(other) {
                Some(kind) => StoredData::Blocks { kind, bytes },
                None => {
                    let wanted = "F32, F16, BF16, F8_E4M3, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K or MXFP4";
                    return Err(mismatch(name, wanted.to_owned(), weight));
                }
            },
        })
    }

    fn int4(
        &self,
        name: &str,
        packed: &StoredTensor,
        rows: usize,
        cols: usize,
    ) -> Result<StoredData, EngineError> {
        let problem = format!("{name}.weight_packed is there, but no group of 4-bit weights");
        let group = self
            .format
            .int4_group
            .ok_or_else(|| EngineError::config("quantization_config", &"absent", problem))?;
        let scale_name = format!("{name}.weight_scale");
        let group = group.min(cols);
        let grid = [rows, cols.div_ceil(group.max(1))];
        let scales = expect_shape(&scale_name, self.need(&scale_name)?, grid)?;
        Ok(StoredData::Int4 {
            packed: packed.bytes.clone(),
            scales: scales.bytes.clone(),
            scale_type: scale_type(&scale_name, scales)?,
            group,
        })
    }

    fn fp8(
        &self,
        name: &str,
        codes: SharedBytes,
        rows: usize,
        cols: usize,
    ) -> Result<StoredData, EngineError> {
        let scale_name = format!("{name}_scale_inv");
        let scales = self.need(&scale_name)?;
        // One element is a scale for the whole tensor, whatever its rank.
        let block = if scales.shape.iter().all(|&dim| dim == 1) {
            [rows, cols]
        } else {
            let problem = format!("{scale_name} has more than one scale");
            self.format
                .fp8_block
                .ok_or_else(|| EngineError::config("weight_block_size", &"absent", problem))?
        };
        let grid = [rows.div_ceil(block[0].max(1)), cols.div_ceil(block[1].max(1))];
        if grid != [1, 1] {
            expect_shape(&scale_name, scales, grid)?;
        }
        Ok(StoredData::Fp8 {
            codes,
            scales: scales.bytes.clone(),
            scale_type: scale_type(&scale_name, scales)?,
            block,
        })
    }

    fn need(&self, name: &str) -> Result<&StoredTensor, EngineError> {
        self.get(name).ok_or_else(|| EngineError::MissingWeight {
            name: name.to_owned(),
            reason: "the config asks for it".to_owned(),
        })
    }
}

fn expect_shape<'a, const N: usize>(
    name: &str,
    tensor: &'a StoredTensor,
    shape: [usize; N],
) -> Result<&'a StoredTensor, EngineError> {
    if tensor.shape == shape {
        Ok(tensor)
    } else {
        Err(mismatch(name, format!("shape {shape:?}"), tensor))
    }
}

fn scale_type(name: &str, tensor: &StoredTensor) -> Result<ScaleType, EngineError> {
    match tensor.dtype {
        Dtype::F32 => Ok(ScaleType::F32),
        Dtype::F16 => Ok(ScaleType::F16),
        Dtype::Bf16 => Ok(ScaleType::Bf16),
        _ => Err(mismatch(name, "F32, F16 or BF16 scales".to_owned(), tensor)),
    }
}

fn mismatch(name: &str, wanted: String, found: &StoredTensor) -> EngineError {
    EngineError::WeightMismatch {
        name: name.to_owned(),
        wanted,
        found: format!("{:?} {:?} in {:?}", found.dtype, found.shape, found.bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dtype: Dtype, shape: &[usize]) -> StoredTensor {
        let bytes = shape.iter().product::<usize>() * dtype.size_bytes() as usize;
        StoredTensor { dtype, shape: shape.to_vec(), bytes: SharedBytes::new(vec![0; bytes]) }
    }

    fn weights(tensors: &[(&str, StoredTensor)], format: WeightFormat) -> SpineWeights {
        let tensors = tensors.iter().map(|(name, t)| ((*name).to_owned(), t.clone())).collect();
        SpineWeights::new(tensors, format, Isa::detect())
    }

    /// `w`, 130x200 FP8, with a grid of scales of this shape.
    fn fp8(scales: &[usize], block: Option<[usize; 2]>) -> Result<StoredMatrix, EngineError> {
        let tensors = [
            ("w.weight", tensor(Dtype::F8E4m3, &[130, 200])),
            ("w.weight_scale_inv", tensor(Dtype::F32, scales)),
        ];
        let format = WeightFormat { fp8_block: block, int4_group: None };
        weights(&tensors, format).matrix("w", 130, 200)
    }

    #[test]
    fn fp8_scales_form_the_grid_of_the_config() {
        assert_eq!(fp8(&[2, 2], Some([128, 128])).unwrap().bytes(), 130 * 200 + 16);
        assert!(fp8(&[3, 4], Some([64, 64])).is_ok());
        let wrong = fp8(&[1, 2], Some([128, 128])).unwrap_err();
        assert_eq!(wrong.kind(), "config-inconsistent");
        for word in ["w.weight_scale_inv", "[2, 2]", "[1, 2]"] {
            assert!(wrong.to_string().contains(word), "{wrong}");
        }
        let guess = fp8(&[2, 2], None).unwrap_err();
        assert_eq!(guess.kind(), "config-inconsistent");
        assert!(guess.to_string().contains("weight_block_size"), "{guess}");
    }

    #[test]
    fn one_fp8_scale_is_for_the_whole_tensor() {
        for shape in [&[][..], &[1], &[1, 1]] {
            assert!(fp8(shape, None).is_ok(), "{shape:?}");
            assert!(fp8(shape, Some([128, 128])).is_ok(), "{shape:?}");
        }
    }

    #[test]
    fn packed_weights_need_group_and_scales() {
        let packed = ("w.weight_packed", tensor(Dtype::I32, &[4, 8]));
        let scales = ("w.weight_scale", tensor(Dtype::Bf16, &[4, 2]));
        let format = WeightFormat { fp8_block: None, int4_group: Some(32) };
        let both = [packed.clone(), scales];
        assert!(weights(&both, format).matrix("w", 4, 64).is_ok());
        let none = weights(&both, WeightFormat::default()).matrix("w", 4, 64).unwrap_err();
        assert!(none.to_string().contains("quantization_config"), "{none}");
        let missing = weights(&[packed], format).matrix("w", 4, 64).unwrap_err();
        assert!(missing.to_string().contains("w.weight_scale"), "{missing}");
        assert!(weights(&both, format).matrix("w", 4, 32).is_err());
    }

    #[test]
    fn vectors_are_decoded_and_checked() {
        let bytes = SharedBytes::new(vec![0x80, 0x3f, 0x00, 0xc0]);
        let stored = StoredTensor { dtype: Dtype::Bf16, shape: vec![2], bytes };
        let all =
            weights(&[("v", stored), ("codes", tensor(Dtype::U8, &[2]))], WeightFormat::default());
        assert_eq!(all.vector("v", 2).unwrap(), [1.0, -2.0]);
        for (name, len) in [("v", 3), ("codes", 2), ("absent", 2)] {
            let error = all.vector(name, len).unwrap_err();
            assert_eq!(error.kind(), "config-inconsistent");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
