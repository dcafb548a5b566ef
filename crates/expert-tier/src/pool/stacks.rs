//! Experts that are stored as one tensor a layer: slices of it are the experts' parts.

use super::collect::{Collected, Origin, RawPart, Stack};
use super::config::{CheckpointConfig, Family};
use super::expert::{Extent, Part, PartRole};
use super::names::StackKind;
use crate::error::TierError;
use std::collections::BTreeMap;
use std::path::Path;

/// How a stack's matrices lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    /// `[out, in]`: an expert's gate rows and up rows are each one range.
    Rows,
    /// `[in, out]`: gate and up of one row lie side by side.
    Transposed,
}

/// Cuts all stacks into parts.
pub(super) fn expand(
    collected: &Collected,
    config: Option<&CheckpointConfig>,
) -> Result<Vec<RawPart>, TierError> {
    let mut layers: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
    for (index, stack) in (0_u32..).zip(&collected.stacks) {
        layers.entry(stack.layer).or_default().push(index);
    }
    let sizes = Sizes::of(collected, config);
    let mut parts = Vec::new();
    for indexes in layers.values() {
        let layer: Vec<&Stack> =
            indexes.iter().map(|&index| &collected.stacks[index as usize]).collect();
        for &index in indexes {
            let stack = &collected.stacks[index as usize];
            let path = collected.path_of(stack.extent.file, Path::new(""));
            let shape = three(stack, path)?;
            match sizes.order(stack, shape, &layer, path)? {
                Order::Rows => cut(stack, index, shape, path, &mut parts)?,
                Order::Transposed => {
                    let [experts, rows, cols] = shape;
                    return Err(TierError::Unsupported {
                        path: path.to_owned(),
                        thing: format!("tensor {}", stack.name),
                        reason: format!(
                            "it is stored transposed, shape [{experts}, {rows}, {cols}] where \
                             [{experts}, {cols}, {rows}] is wanted: experts cannot be cut out \
                             of it by rows"
                        ),
                    });
                }
            }
        }
    }
    Ok(parts)
}

fn three(stack: &Stack, path: &Path) -> Result<[u64; 3], TierError> {
    match stack.shape[..] {
        [experts, rows, cols] if experts > 0 && rows > 0 && cols > 0 => Ok([experts, rows, cols]),
        _ => Err(mismatch(stack, path, "[experts, rows, columns], none of them 0".to_owned())),
    }
}

fn mismatch(stack: &Stack, path: &Path, needed: String) -> TierError {
    TierError::ShapeMismatch {
        path: path.to_owned(),
        tensor: stack.name.clone(),
        needed,
        present: format!("{:?}", stack.shape),
    }
}

/// The sizes that tell rows from columns.
struct Sizes<'a> {
    config: Option<&'a CheckpointConfig>,
    hidden: Option<u64>,
    intermediate: Option<u64>,
}

impl<'a> Sizes<'a> {
    fn of(collected: &Collected, config: Option<&'a CheckpointConfig>) -> Self {
        let embedding = collected.spine.get("embed_tokens.weight");
        let width = embedding.and_then(|tensor| tensor.shape.get(1).copied());
        Self {
            config,
            hidden: config.and_then(CheckpointConfig::expert_width).map(u64::from).or(width),
            intermediate: config.and_then(|config| config.moe_intermediate_size).map(u64::from),
        }
    }

    fn order(
        &self,
        stack: &Stack,
        shape: [u64; 3],
        layer: &[&Stack],
        path: &Path,
    ) -> Result<Order, TierError> {
        if stack.row_major {
            return Ok(Order::Rows);
        }
        if let (Some(hidden), Some(inner)) = (self.hidden, self.intermediate) {
            let wanted = wanted(stack.kind, hidden, inner);
            let found = [shape[1], shape[2]];
            if found != wanted && found != [wanted[1], wanted[0]] {
                let [rows, cols] = wanted;
                return Err(mismatch(stack, path, format!("[{}, {rows}, {cols}]", shape[0])));
            }
        }
        // The tensor itself, then its neighbours (one of them is not square), then the family.
        self.vote(stack)
            .or_else(|| layer.iter().find_map(|other| self.vote(other)))
            .or_else(|| pair(layer))
            .or_else(|| self.family())
            .ok_or_else(|| TierError::Ambiguous {
                path: path.to_owned(),
                reason: format!(
                    "tensor {}: shape {:?} may be [experts, out, in] or [experts, in, out], and \
                     the config does not tell which",
                    stack.name, stack.shape
                ),
            })
    }

    fn vote(&self, stack: &Stack) -> Option<Order> {
        let &[_, rows, cols] = stack.shape.first_chunk::<3>()?;
        if rows == cols {
            return None;
        }
        // Hidden is the input of gate and up, and the output of down.
        let hidden = self.hidden?;
        let (row_side, col_side) = match stack.kind {
            StackKind::One(PartRole::Down) => (cols, rows),
            _ => (rows, cols),
        };
        match (row_side == hidden, col_side == hidden) {
            (false, true) => Some(Order::Rows),
            (true, false) => Some(Order::Transposed),
            _ => None,
        }
    }

    fn family(&self) -> Option<Order> {
        let config = self.config?;
        match config.family {
            Family::Other => match config.model_type.as_str() {
                "qwen3_vl_moe" | "qwen3_vl_moe_text" | "llama4" | "llama4_text" | "gpt_oss" => {
                    Some(Order::Transposed)
                }
                _ => None,
            },
            _ => Some(Order::Rows),
        }
    }
}

fn wanted(kind: StackKind, hidden: u64, intermediate: u64) -> [u64; 2] {
    match kind {
        StackKind::GateUp => [intermediate.saturating_mul(2), hidden],
        StackKind::One(PartRole::Down) => [hidden, intermediate],
        StackKind::One(_) => [intermediate, hidden],
    }
}

/// Gate-up and down of one layer fit together in only one order.
fn pair(layer: &[&Stack]) -> Option<Order> {
    let shape_of = |kind| layer.iter().find(|stack| stack.kind == kind).map(|stack| &stack.shape);
    let &[_, rows, cols] = shape_of(StackKind::GateUp)?.first_chunk::<3>()?;
    let &[_, down_rows, down_cols] =
        shape_of(StackKind::One(PartRole::Down))?.first_chunk::<3>()?;
    let as_rows = down_rows == cols && down_cols.checked_mul(2) == Some(rows);
    let transposed = down_cols == rows && down_rows.checked_mul(2) == Some(cols);
    match (as_rows, transposed) {
        (true, false) => Some(Order::Rows),
        (false, true) => Some(Order::Transposed),
        _ => None,
    }
}

/// One part (two for gate-up) an expert: expert `e` is the `e`-th slice, gate rows first.
fn cut(
    stack: &Stack,
    origin: u32,
    [experts, rows, cols]: [u64; 3],
    path: &Path,
    parts: &mut Vec<RawPart>,
) -> Result<(), TierError> {
    let (roles, pieces): (&[PartRole], u64) = match stack.kind {
        StackKind::GateUp => (&[PartRole::Gate, PartRole::Up], 2),
        StackKind::One(PartRole::Gate) => (&[PartRole::Gate], 1),
        StackKind::One(PartRole::Up) => (&[PartRole::Up], 1),
        StackKind::One(_) => (&[PartRole::Down], 1),
    };
    if !rows.is_multiple_of(pieces) {
        return Err(mismatch(
            stack,
            path,
            "an even number of rows, half gate and half up".to_owned(),
        ));
    }
    let limit = |what: &str, value, most| TierError::Limit {
        path: path.to_owned(),
        what: format!("tensor {}: the number of {what}", stack.name),
        value,
        most,
    };
    let most = u64::from(u16::MAX) - 1;
    let count = u16::try_from(experts).ok().filter(|&count| count < u16::MAX);
    let count = count.ok_or_else(|| limit("experts", experts, most))?;
    let most = u64::from(u32::MAX);
    let part_rows = u32::try_from(rows / pieces).map_err(|_| limit("rows", rows, most))?;
    let part_cols = u32::try_from(cols).map_err(|_| limit("columns", cols, most))?;
    // Exact: the header's check says that the range holds experts * rows * cols elements.
    let len = stack.extent.len / experts / pieces;
    let mut offset = stack.extent.offset;
    for index in 0..count {
        for &role in roles {
            let extent = Extent { file: stack.extent.file, offset, len };
            parts.push(RawPart {
                layer: stack.layer,
                index,
                origin: Origin::Stack(origin),
                part: Part { role, dtype: stack.dtype, rows: part_rows, cols: part_cols, extent },
            });
            offset += len;
        }
    }
    Ok(())
}
