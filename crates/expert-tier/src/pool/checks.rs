//! Shapes against the config, scales against their weights, and the head.

use super::assemble::{part_path, tensor_name};
use super::collect::{Collected, RawPart};
use super::config::{CheckpointConfig, Family};
use super::dtype::Dtype;
use super::expert::{Part, PartRole};
use super::quant::{Quantization, ScaleGrid, dims};
use super::{HeadKind, Pool, SpineTensor};
use crate::error::TierError;

const HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "embed_tokens.weight";

/// Checks the parts of one complete expert.
pub(super) fn check_expert(
    config: Option<&CheckpointConfig>,
    parts: &[RawPart],
    collected: &Collected,
) -> Result<(), TierError> {
    let quantization = config.map_or(&Quantization::None, |config| &config.quantization);
    let of = |role| parts.iter().find(|part| part.part.role == role);
    for (weight_role, scale_role) in [
        (PartRole::Gate, PartRole::GateScale),
        (PartRole::Up, PartRole::UpScale),
        (PartRole::Down, PartRole::DownScale),
    ] {
        let Some(weight) = of(weight_role) else { continue };
        let logical = logical(config, weight_role);
        if let Some(logical) = logical {
            check_weight(weight, logical, quantization, collected)?;
        }
        let values = logical.unwrap_or_else(|| stored_values(&weight.part, quantization));
        check_scale(weight, of(scale_role), values, quantization, collected)?;
    }
    Ok(())
}

/// Rows and columns of a projection in values, where the config's keys have a known meaning.
fn logical(config: Option<&CheckpointConfig>, role: PartRole) -> Option<(u64, u64)> {
    let config = config.filter(|config| config.family != Family::Other)?;
    let hidden = u64::from(config.expert_width()?);
    let inner = u64::from(config.moe_intermediate_size?);
    Some(if role == PartRole::Down { (hidden, inner) } else { (inner, hidden) })
}

/// Rows and columns as far as the stored shape tells: the padding of a packed row counts.
fn stored_values(part: &Part, quantization: &Quantization) -> (u64, u64) {
    let per_word = match quantization {
        Quantization::PackQuantized { bits, .. } if part.dtype == Dtype::I32 => {
            32 / u64::from(*bits)
        }
        Quantization::Mxfp4 { .. } if part.dtype == Dtype::U8 => 2,
        _ => 1,
    };
    (u64::from(part.rows), u64::from(part.cols) * per_word)
}

fn is_fp8(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F8E4m3 | Dtype::F8E5m2)
}

fn check_weight(
    weight: &RawPart,
    (rows, cols): (u64, u64),
    quantization: &Quantization,
    collected: &Collected,
) -> Result<(), TierError> {
    let part = &weight.part;
    let plain = is_fp8(part.dtype)
        || part.dtype.is_block()
        || matches!(part.dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16);
    let stored_cols = match quantization {
        _ if plain => Some(cols),
        Quantization::PackQuantized { bits, .. } if part.dtype == Dtype::I32 => {
            Some(cols.div_ceil(32 / u64::from(*bits)))
        }
        Quantization::Mxfp4 { .. } if part.dtype == Dtype::U8 => Some(cols.div_ceil(2)),
        // Another packing: only the rows have a known meaning.
        _ => None,
    };
    let cols_fit = stored_cols.is_none_or(|cols| cols == u64::from(part.cols));
    if u64::from(part.rows) == rows && cols_fit {
        return Ok(());
    }
    let needed = match stored_cols {
        Some(stored) if stored != cols => format!("[{rows}, {stored}] ({rows}x{cols} packed)"),
        Some(cols) => format!("[{rows}, {cols}]"),
        None => format!("[{rows}, any]"),
    };
    Err(mismatch(weight, needed, format!("[{}, {}]", part.rows, part.cols), collected))
}

fn mismatch(part: &RawPart, needed: String, present: String, collected: &Collected) -> TierError {
    TierError::ShapeMismatch {
        path: part_path(&part.part, collected),
        tensor: tensor_name(part, collected),
        needed,
        present,
    }
}

fn check_scale(
    weight: &RawPart,
    scale: Option<&RawPart>,
    (rows, cols): (u64, u64),
    quantization: &Quantization,
    collected: &Collected,
) -> Result<(), TierError> {
    if !needs_scales(weight.part.dtype, quantization, scale.is_some()) {
        return Ok(());
    }
    let Some(scale) = scale else {
        let needed = format!("scales ({quantization})");
        return Err(mismatch(weight, needed, "without any".to_owned(), collected));
    };
    let (scale_rows, scale_cols) = (u64::from(scale.part.rows), u64::from(scale.part.cols));
    let grid = quantization.scale_grid(rows, cols, &[scale_rows, scale_cols]);
    // A vector was stored as one row.
    let grid = grid.or_else(|mismatch| match scale_rows {
        1 => quantization.scale_grid(rows, cols, &[scale_cols]).map_err(|_| mismatch),
        _ => Err(mismatch),
    });
    match grid {
        Ok(_) => Ok(()),
        Err(wrong) => Err(mismatch(scale, wrong.needed, wrong.present, collected)),
    }
}

/// Whether scales of this kind have a known form, so that they must be there and fit.
fn needs_scales(dtype: Dtype, quantization: &Quantization, present: bool) -> bool {
    match quantization {
        Quantization::Fp8 { .. } => is_fp8(dtype),
        Quantization::PackQuantized { .. } => dtype == Dtype::I32,
        Quantization::Mxfp4 { .. } => dtype == Dtype::U8,
        Quantization::None => is_fp8(dtype) && present,
        Quantization::Other(_) => false,
    }
}

impl Pool {
    /// Where the head's weights are: the setting decides, not what happens to be stored.
    ///
    /// # Errors
    ///
    /// `config-inconsistent` if the tensor that the setting asks for is not there.
    pub fn check_head(&self) -> Result<HeadKind, TierError> {
        let has = |name| self.spine().contains_key(name);
        let setting = self.config().and_then(|config| config.tie_word_embeddings);
        let missing = |tensor| TierError::HeadMissing {
            path: self.root().to_owned(),
            tensor,
            setting: setting.map_or_else(|| "absent".to_owned(), |setting| setting.to_string()),
        };
        match setting.map(|setting| setting.value) {
            Some(true) if has(EMBEDDING) => Ok(HeadKind::Tied),
            Some(true) => Err(missing(EMBEDDING)),
            _ if has(HEAD) => Ok(HeadKind::Separate),
            _ => Err(missing(HEAD)),
        }
    }

    /// The scales of a spine weight and what they mean; `None` if it has none. `weight` is a
    /// canonical name, for example `layers.0.self_attn.q_proj.weight`.
    ///
    /// # Errors
    ///
    /// `config-inconsistent` with the shape needed and the shape present, also where the
    /// config has no block size and there is more than one scale.
    pub fn spine_scale(
        &self,
        weight: &str,
    ) -> Result<Option<(&SpineTensor, ScaleGrid)>, TierError> {
        let Some(tensor) = self.spine().get(weight) else { return Ok(None) };
        let base = weight.strip_suffix("_packed").unwrap_or(weight);
        let scale = ["_scale_inv", "_scale"]
            .iter()
            .find_map(|ending| self.spine().get(&format!("{base}{ending}")));
        let Some(scale) = scale else { return Ok(None) };
        let quantization = self.config().map_or(&Quantization::None, |config| &config.quantization);
        let (rows, stored) = match tensor.shape[..] {
            [] => (1, 1),
            [cols] => (1, cols),
            [rows, cols, ..] => (rows, cols),
        };
        let cols = match quantization {
            Quantization::PackQuantized { bits, .. } if tensor.dtype == Dtype::I32 => {
                stored.saturating_mul(32 / u64::from(*bits))
            }
            Quantization::Mxfp4 { .. } if tensor.dtype == Dtype::U8 => stored.saturating_mul(2),
            _ => stored,
        };
        match quantization.scale_grid(rows, cols, &scale.shape) {
            Ok(grid) => Ok(Some((scale, grid))),
            Err(wrong) => Err(TierError::ShapeMismatch {
                path: self.path_of(scale.extent.file).to_owned(),
                tensor: scale.stored_name.clone(),
                needed: format!("{} ({})", wrong.needed, dims(&tensor.shape)),
                present: wrong.present,
            }),
        }
    }

    /// Checks the scales of every FP8 or packed weight of the spine.
    ///
    /// # Errors
    ///
    /// The first of [`Pool::spine_scale`].
    pub fn check_spine_scales(&self) -> Result<(), TierError> {
        let quantization = self.config().map_or(&Quantization::None, |config| &config.quantization);
        for (name, tensor) in self.spine() {
            if needs_scales(tensor.dtype, quantization, true) {
                self.spine_scale(name)?;
            }
        }
        Ok(())
    }
}
