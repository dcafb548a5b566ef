//! How weights are quantised, and which scales a weight needs.

use super::config::Reader;
use crate::error::TierError;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;

/// How the config says that (some) weights are stored.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantization {
    /// No `quantization_config`: weights are what their element type says.
    #[default]
    None,
    /// FP8 E4M3 weights times scales.
    Fp8 {
        /// Rows and columns that share a scale; `None`: the config gives no block, so only
        /// one scale for a whole tensor has a meaning.
        block: Option<[usize; 2]>,
    },
    /// Integers packed into 32-bit words along the row (compressed-tensors `pack-quantized`).
    PackQuantized {
        /// Bits of one value.
        bits: u32,
        /// Columns that share a scale; `None`: one scale a row.
        group: Option<usize>,
        /// Whether there are no zero points.
        symmetric: bool,
        /// Whether columns are reordered (`actorder`).
        act_order: bool,
    },
    /// Two E2M1 floats a byte along the row, scales of eight bits of exponent (compressed-tensors
    /// `mxfp4-pack-quantized`).
    Mxfp4 {
        /// Columns that share a scale.
        group: usize,
    },
    /// Something else, by its name.
    Other(String),
}

/// What a weight's scales mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScaleGrid {
    /// One scale for the whole tensor.
    Whole,
    /// A grid of `rows` x `cols` scales, each for a block of weights.
    Blocks {
        /// Weight rows a scale covers.
        block_rows: u64,
        /// Weight columns a scale covers.
        block_cols: u64,
    },
}

/// Why scales do not fit their weight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScaleMismatch {
    /// What is needed and why.
    pub needed: String,
    /// The shape of the scales.
    pub present: String,
}

impl Quantization {
    /// The meaning of scales of shape `scale` for a weight of `rows` x `cols` values (not
    /// stored words). The block size comes from the config and is never guessed from shapes:
    /// 1000 rows with 8 scales are blocks of 128, not of 125.
    ///
    /// # Errors
    ///
    /// The shape needed and the shape present if they differ or no size is known.
    pub fn scale_grid(
        &self,
        rows: u64,
        cols: u64,
        scale: &[u64],
    ) -> Result<ScaleGrid, ScaleMismatch> {
        let present = || dims(scale);
        let (block_rows, block_cols) = match self {
            Self::PackQuantized { group: Some(group), .. } => (1, *group as u64),
            Self::PackQuantized { group: None, .. } => (1, cols.max(1)),
            Self::Mxfp4 { group } => (1, *group as u64),
            // One element scales everything, whatever its rank.
            _ if scale.iter().try_fold(1_u64, |n, &dim| n.checked_mul(dim)) == Some(1) => {
                return Ok(ScaleGrid::Whole);
            }
            Self::Fp8 { block: Some([block_rows, block_cols]) } => {
                (*block_rows as u64, *block_cols as u64)
            }
            Self::None | Self::Fp8 { block: None } | Self::Other(_) => {
                return Err(ScaleMismatch {
                    needed: format!(
                        "one scale for {rows}x{cols}, as the config has no weight_block_size"
                    ),
                    present: present(),
                });
            }
        };
        let needed = [rows.div_ceil(block_rows.max(1)), cols.div_ceil(block_cols.max(1))];
        // One scale a row is also written as a vector.
        let vector = needed[1] == 1 && *scale == [needed[0]] && block_rows == 1;
        if *scale == needed || vector {
            return Ok(ScaleGrid::Blocks { block_rows, block_cols });
        }
        Err(ScaleMismatch {
            needed: format!(
                "{} scales for {rows}x{cols} in blocks of {block_rows}x{block_cols}",
                dims(&needed)
            ),
            present: present(),
        })
    }
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Fp8 { block: Some([rows, cols]) } => write!(f, "FP8 in {rows}x{cols} blocks"),
            Self::Fp8 { block: None } => f.write_str("FP8 with one scale a tensor"),
            Self::PackQuantized { bits, group, symmetric, act_order } => {
                write!(f, "packed {bits}-bit integers, ")?;
                match group {
                    Some(group) => write!(f, "group {group}")?,
                    None => f.write_str("one scale a row")?,
                }
                f.write_str(if *symmetric { ", symmetric" } else { ", asymmetric" })?;
                f.write_str(if *act_order { ", reordered columns" } else { "" })
            }
            Self::Mxfp4 { group } => write!(f, "MXFP4, group {group}"),
            Self::Other(name) => f.write_str(name),
        }
    }
}

/// `2x3`, or `scalar`.
pub(super) fn dims(shape: &[u64]) -> String {
    if shape.is_empty() {
        return "scalar".to_owned();
    }
    shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x")
}

/// Reads a `quantization_config`.
pub(super) fn parse(reader: &Reader<'_>) -> Result<Quantization, TierError> {
    let Some(quant) = reader.object("quantization_config")? else {
        return Ok(Quantization::None);
    };
    let method = quant.string("quant_method")?.unwrap_or_default();
    match method {
        "fp8" => Ok(Quantization::Fp8 { block: block(&quant, "weight_block_size")? }),
        "compressed-tensors" => compressed(&quant),
        "" => Ok(Quantization::Other("unnamed quantization".to_owned())),
        other => Ok(Quantization::Other(other.to_owned())),
    }
}

fn block(reader: &Reader<'_>, key: &str) -> Result<Option<[usize; 2]>, TierError> {
    let Some(value) = reader.value(key) else { return Ok(None) };
    let sides: Option<Vec<usize>> = value.as_array().and_then(|sides| {
        sides.iter().map(|side| usize::try_from(side.as_u64()?).ok().filter(|&n| n > 0)).collect()
    });
    match sides.as_deref() {
        Some(&[rows, cols]) => Ok(Some([rows, cols])),
        _ => Err(reader.wrong(key, "two whole numbers above 0")),
    }
}

fn compressed(quant: &Reader<'_>) -> Result<Quantization, TierError> {
    let format = quant.string("format")?.unwrap_or("unnamed format").to_owned();
    let other = |what: &str| Ok(Quantization::Other(format!("compressed-tensors {format}{what}")));
    let empty = Map::new();
    let groups = quant.value("config_groups").map_or(Ok(&empty), |groups| {
        groups.as_object().ok_or_else(|| quant.wrong("config_groups", "an object"))
    })?;
    let mut schemes = groups.iter().map(|(name, group)| {
        let wrong = || quant.wrong(&format!("config_groups.{name}"), "an object");
        Ok((name, group.as_object().ok_or_else(wrong)?.get("weights")))
    });
    let Some((name, weights)) = schemes.next().transpose()? else { return other("") };
    for scheme in schemes {
        if scheme?.1 != weights {
            return other(" with different schemes");
        }
    }
    let Some(weights) = weights.filter(|weights| !weights.is_null()) else {
        return other(" without a weight scheme");
    };
    let key = format!("config_groups.{name}.weights");
    let Value::Object(weights) = weights else { return Err(quant.wrong(&key, "an object")) };
    let weights = quant.nested(&key, weights);
    let kind = weights.string("type")?.unwrap_or("int");
    let strategy = weights.string("strategy")?.unwrap_or("unnamed strategy");
    match (format.as_str(), kind, strategy) {
        ("pack-quantized", "int", "group" | "channel") => packed(&weights, strategy),
        ("mxfp4-pack-quantized", "float", "group") => {
            // The standard's own group where the config names none.
            let group = weights.number("group_size", u64::from(u32::MAX))?.unwrap_or(32);
            let wrong = || weights.wrong("group_size", "a whole number above 0");
            let group = Some(group).filter(|&group| group > 0).ok_or_else(wrong)?;
            Ok(Quantization::Mxfp4 { group: group as usize })
        }
        ("float-quantized", "float", "tensor") => Ok(Quantization::Fp8 { block: None }),
        ("float-quantized", "float", "block") => {
            Ok(Quantization::Fp8 { block: block(&weights, "block_structure")? })
        }
        _ => other(&format!(" ({kind}, {strategy})")),
    }
}

fn packed(weights: &Reader<'_>, strategy: &str) -> Result<Quantization, TierError> {
    let bits = weights.number("num_bits", 32)?;
    let bits = bits.filter(|&bits| bits > 0).ok_or_else(|| weights.wrong("num_bits", "1 to 32"))?;
    let group = match strategy {
        "group" => {
            let group = weights.number("group_size", u64::from(u32::MAX))?;
            let wrong = || weights.wrong("group_size", "a whole number above 0");
            Some(group.filter(|&group| group > 0).ok_or_else(wrong)? as usize)
        }
        _ => None,
    };
    let act_order = !matches!(weights.value("actorder"), None | Some(Value::Bool(false)));
    Ok(Quantization::PackQuantized {
        bits: bits as u32,
        group,
        symmetric: weights.bool("symmetric")?.unwrap_or(true),
        act_order,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_from_the_config_only() {
        let fp8 = Quantization::Fp8 { block: Some([128, 128]) };
        let blocks = ScaleGrid::Blocks { block_rows: 128, block_cols: 128 };
        assert_eq!(fp8.scale_grid(1000, 16, &[8, 1]), Ok(blocks));
        assert_eq!(fp8.scale_grid(130, 200, &[2, 2]), Ok(blocks));
        assert_eq!(fp8.scale_grid(300, 40, &[]), Ok(ScaleGrid::Whole));
        assert_eq!(fp8.scale_grid(300, 40, &[1, 1]), Ok(ScaleGrid::Whole));
        for (rows, cols, scale, needed) in
            [(130, 200, [1, 2], "2x2"), (300, 100, [1, 3], "3x1"), (1000, 16, [0, 8], "8x1")]
        {
            let error = fp8.scale_grid(rows, cols, &scale).unwrap_err();
            assert!(error.needed.starts_with(needed), "{error:?}");
            assert_eq!(error.present, dims(&scale));
        }
        for quant in [Quantization::None, Quantization::Fp8 { block: None }] {
            assert!(quant.scale_grid(130, 200, &[2, 2]).is_err());
            assert_eq!(quant.scale_grid(130, 200, &[1]), Ok(ScaleGrid::Whole));
        }
        assert!(fp8.scale_grid(u64::MAX, u64::MAX, &[u64::MAX, u64::MAX, 2]).is_err());
    }

    #[test]
    fn mxfp4_weights_have_scales_along_the_row() {
        let quant = Quantization::Mxfp4 { group: 32 };
        assert!(quant.scale_grid(3, 64, &[3, 2]).is_ok());
        assert!(quant.scale_grid(3, 64, &[3, 4]).is_err());
        assert_eq!(quant.to_string(), "MXFP4, group 32");
    }

    #[test]
    fn packed_weights_have_scales_along_the_row() {
        let quant = |group| Quantization::PackQuantized {
            bits: 4,
            group,
            symmetric: true,
            act_order: false,
        };
        assert!(quant(Some(32)).scale_grid(64, 33, &[64, 2]).is_ok());
        assert!(quant(Some(32)).scale_grid(64, 32, &[64, 2]).is_err());
        assert!(quant(None).scale_grid(64, 33, &[64, 1]).is_ok());
        assert!(quant(None).scale_grid(64, 33, &[64]).is_ok());
        assert!(quant(Some(32)).scale_grid(1, 32, &[1]).is_ok());
        assert!(quant(Some(32)).scale_grid(2, 32, &[1]).is_err());
    }
}
