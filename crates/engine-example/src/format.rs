//! From parts of an adopted expert, in whatever type they are stored, to matrices.

use crate::error::EngineError;
use crate::kernels::{BlockType, ExpertWeights, MXFP4_GROUP, Matrix, MatrixData, ScaleType};
use crate::weights::WeightFormat;
use expert_tier::pool::{CheckpointConfig, Dtype, PartRole, Quantization};
use expert_tier::{ExpertView, PartView};

impl WeightFormat {
    /// What the config says of quantised weights.
    ///
    /// # Errors
    /// `unsupported`, naming the key, for a quantisation that no kernel reads.
    pub fn from_config(config: &CheckpointConfig) -> Result<Self, EngineError> {
        let refuse = |key: &str, value: String, reason: &str| {
            Err(EngineError::unsupported(format!("quantization_config.{key}"), &value, reason))
        };
        match &config.quantization {
            Quantization::None => Ok(Self::default()),
            Quantization::Fp8 { block } => Ok(Self { fp8_block: *block, int4_group: None }),
            Quantization::PackQuantized { bits, .. } if *bits != 4 => {
                refuse("num_bits", bits.to_string(), "4 bits are")
            }
            Quantization::PackQuantized { symmetric: false, .. } => {
                refuse("symmetric", "false".to_owned(), "symmetric weights are")
            }
            Quantization::PackQuantized { act_order: true, .. } => {
                refuse("actorder", "set".to_owned(), "columns in their own order are")
            }
            // One scale a row is a group that no row is longer than.
            Quantization::PackQuantized { group, .. } => {
                Ok(Self { fp8_block: None, int4_group: Some(group.unwrap_or(usize::MAX)) })
            }
            Quantization::Mxfp4 { group } if *group != MXFP4_GROUP => {
                refuse("group_size", group.to_string(), "groups of 32 are")
            }
            Quantization::Mxfp4 { .. } => Ok(Self::default()),
            Quantization::Other(name) => {
                refuse("quant_method", name.clone(), "fp8 and compressed-tensors are")
            }
        }
    }
}

/// An expert's projections as matrices over the bytes where they lie. `widths` are
/// `[hidden, intermediate]`.
///
/// # Errors
/// `config-inconsistent` if a projection is missing or its bytes do not fit the config,
/// `unsupported` for a stored type that no kernel reads.
pub fn weights_in_place<'a>(
    expert: &ExpertView<'a>,
    widths: [usize; 2],
    format: WeightFormat,
) -> Result<ExpertWeights<'a>, EngineError> {
    let [hidden, intermediate] = widths;
    let matrix = |weight, scale, rows, cols| {
        let weight = expert.part(weight).ok_or_else(|| EngineError::MissingWeight {
            name: format!("{} {weight:?}", expert.id()),
            reason: "an expert has gate, up and down projections".to_owned(),
        })?;
        matrix_in_place(weight, expert.part(scale), [rows, cols], format).map_err(|problem| {
            match problem {
                Problem::Shape(source) => EngineError::Matrix {
                    name: format!("{} {:?}", expert.id(), weight.role),
                    source,
                },
                Problem::Stored(reason) => EngineError::unsupported(
                    format!("{} {:?}", expert.id(), weight.role),
                    &format!("{:?} [{}, {}]", weight.dtype, weight.rows, weight.cols),
                    reason,
                ),
            }
        })
    };
    Ok(ExpertWeights {
        gate: matrix(PartRole::Gate, PartRole::GateScale, intermediate, hidden)?,
        up: matrix(PartRole::Up, PartRole::UpScale, intermediate, hidden)?,
        down: matrix(PartRole::Down, PartRole::DownScale, hidden, intermediate)?,
    })
}

/// What kernels multiply by.
const READABLE: &str = "F32, F16, BF16, FP8 E4M3, packed int4, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K and \
                        MXFP4 are";

/// The kernels' name of a block type; `None` for those without a kernel.
pub(crate) fn block_type(dtype: Dtype) -> Option<BlockType> {
    Some(match dtype {
        Dtype::Q8_0 => BlockType::Q8_0,
        Dtype::Q4_0 => BlockType::Q4_0,
        Dtype::Q4K => BlockType::Q4K,
        Dtype::Q5K => BlockType::Q5K,
        Dtype::Q6K => BlockType::Q6K,
        Dtype::Mxfp4 => BlockType::Mxfp4,
        _ => return None,
    })
}

enum Problem {
    Shape(crate::kernels::MatrixError),
    Stored(&'static str),
}

fn matrix_in_place<'a>(
    weight: &PartView<'a>,
    scale: Option<&PartView<'a>>,
    [rows, cols]: [usize; 2],
    format: WeightFormat,
) -> Result<Matrix<'a>, Problem> {
    let host = |part: &PartView<'a>| {
        part.bytes.host().ok_or(Problem::Stored("bytes that the CPU can read are"))
    };
    let scales = || {
        let part = scale.ok_or(Problem::Stored("a weight of this type with scales is"))?;
        let scale_type = match part.dtype {
            Dtype::F32 => ScaleType::F32,
            Dtype::F16 => ScaleType::F16,
            Dtype::Bf16 => ScaleType::Bf16,
            _ => return Err(Problem::Stored("scales in F32, F16 or BF16 are")),
        };
        let single = u64::from(part.rows) * u64::from(part.cols) == 1;
        Ok((host(part)?, scale_type, single))
    };
    let data = match weight.dtype {
        Dtype::F32 => MatrixData::F32(host(weight)?),
        Dtype::F16 => MatrixData::F16(host(weight)?),
        Dtype::Bf16 => MatrixData::Bf16(host(weight)?),
        Dtype::F8E4m3 => {
            let (bytes, scale_type, single) = scales()?;
            let block = match format.fp8_block {
                // One element is a scale for the whole tensor, whatever the config says.
                _ if single => [rows.max(1), cols.max(1)],
                Some(block) => block,
                None => return Err(Problem::Stored("FP8 with weight_block_size set is")),
            };
            MatrixData::Fp8 { codes: host(weight)?, scales: bytes, scale_type, block }
        }
        Dtype::I32 | Dtype::U32 => {
            let (bytes, scale_type, _) = scales()?;
            let group =
                format.int4_group.ok_or(Problem::Stored("int4 with its group size set is"))?;
            let packed = host(weight)?;
            MatrixData::Int4 { packed, scales: bytes, scale_type, group: group.min(cols) }
        }
        Dtype::U8 => {
            let scales = scale.filter(|part| matches!(part.dtype, Dtype::U8 | Dtype::F8E8m0));
            let scales = scales.ok_or(Problem::Stored("packed bytes with E8M0 scales are"))?;
            MatrixData::Mxfp4 { packed: host(weight)?, scales: host(scales)? }
        }
        other => match block_type(other) {
            Some(kind) => MatrixData::Blocks { kind, bytes: host(weight)? },
            None => return Err(Problem::Stored(READABLE)),
        },
    };
    Matrix::new(rows, cols, data).map_err(Problem::Shape)
}
