//! A second look at the few scales that are not above zero: does a weight depend on them?

use super::read::read_extent;
use super::report::{Draft, counted, more, scale_role};
use super::scan;
use super::units::Plan;
use crate::pool::{Dtype, Extent, PartRole, Pool, Quantization, ScaleGrid};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// A weight and its scales.
struct Pair {
    weight: Extent,
    weight_dtype: Dtype,
    rows: u64,
    /// Stored elements of a row.
    stored_cols: u64,
    /// Values in one stored element.
    per_element: u64,
    scale: Extent,
    scale_dtype: Dtype,
    grid: ScaleGrid,
}

/// Warns of scales among the units `suspects` that are zero although their weights are not: one
/// sentence a file. Negative ones are odd but legal: a quantiser may give the code that exists
/// on one side only to the largest weight of either sign.
pub(super) fn check(pool: &Pool, plan: &Plan, suspects: &[usize], draft: &mut Draft<'_>) {
    let quantization = pool.config().map(|config| &config.quantization);
    // With columns in an order of their own, a scale's weights lie elsewhere.
    let reordered =
        matches!(quantization, Some(Quantization::PackQuantized { act_order: true, .. }));
    if suspects.is_empty() || reordered {
        return;
    }
    let extents: BTreeMap<Extent, usize> =
        suspects.iter().map(|&unit| (plan.units[unit].extent, unit)).collect();
    let mut found: BTreeMap<u32, (BTreeSet<usize>, u64, usize)> = BTreeMap::new();
    for pair in pairs(pool).filter(|pair| extents.contains_key(&pair.scale)) {
        let unit = extents[&pair.scale];
        // What cannot be read is a problem already.
        let Ok((count, first)) = bad_scales(pool, &pair) else { continue };
        if let Some(first) = first {
            let file = found.entry(pair.scale.file).or_insert_with(|| (BTreeSet::new(), 0, first));
            if file.0.first().is_none_or(|&earliest| unit < earliest) {
                file.2 = first;
            }
            file.0.insert(unit);
            file.1 += count;
        }
    }
    for (file, (units, count, first)) in found {
        let Some(name) = units.first().map(|&unit| &plan.units[unit].name) else { continue };
        draft.warning(format!(
            "{}: {} zero although the weights are not, the first: tensor {name}, \
             element {first}{}",
            pool.path_of(file).display(),
            counted(count, "scale"),
            more(units.len())
        ));
    }
}

/// Every weight of the pool whose scales have a known meaning.
fn pairs(pool: &Pool) -> impl Iterator<Item = Pair> + '_ {
    let none = &Quantization::None;
    let quantization = pool.config().map_or(none, |config| &config.quantization);
    let per_element = move |dtype| match quantization {
        Quantization::PackQuantized { bits: 4, symmetric: true, .. } if dtype == Dtype::I32 => 8,
        Quantization::Mxfp4 { .. } if dtype == Dtype::U8 => 2,
        _ => 1,
    };
    let experts = pool.layout().iter().flat_map(move |(_, expert)| {
        [PartRole::Gate, PartRole::Up, PartRole::Down].into_iter().filter_map(move |role| {
            let weight = expert.part(role)?;
            let scale = expert.part(scale_role(role))?;
            let per_element = per_element(weight.dtype);
            let (rows, stored_cols) = (u64::from(weight.rows), u64::from(weight.cols));
            let shape = [u64::from(scale.rows), u64::from(scale.cols)];
            let grid = quantization.scale_grid(rows, stored_cols * per_element, &shape);
            Some(Pair {
                weight: weight.extent,
                weight_dtype: weight.dtype,
                rows,
                stored_cols,
                per_element,
                scale: scale.extent,
                scale_dtype: scale.dtype,
                grid: grid.ok()?,
            })
        })
    });
    let spine = pool.spine().iter().filter_map(move |(name, weight)| {
        let (scale, grid) = pool.spine_scale(name).ok()??;
        let (rows, stored_cols) = match weight.shape[..] {
            [] => (1, 1),
            [cols] => (1, cols),
            [rows, cols] => (rows, cols),
            _ => return None,
        };
        Some(Pair {
            weight: weight.extent,
            weight_dtype: weight.dtype,
            rows,
            stored_cols,
            per_element: per_element(weight.dtype),
            scale: scale.extent,
            scale_dtype: scale.dtype,
            grid,
        })
    });
    experts.chain(spine)
}

/// How many scales of `pair` are not above zero although a weight depends on them, and the
/// first of them.
fn bad_scales(pool: &Pool, pair: &Pair) -> io::Result<(u64, Option<usize>)> {
    let scales = read_extent(pool, pair.scale)?;
    let weights = read_extent(pool, pair.weight)?;
    let cols = pair.stored_cols * pair.per_element;
    let (block_rows, block_cols) = match pair.grid {
        ScaleGrid::Whole => (pair.rows.max(1), cols.max(1)),
        ScaleGrid::Blocks { block_rows, block_cols } => (block_rows, block_cols),
    };
    let across = cols.div_ceil(block_cols).max(1);
    let (mut count, mut first) = (0, None);
    for index in 0..scales.len() / pair.scale_dtype.size_bytes() as usize {
        if !scan::is_zero(pair.scale_dtype, &scales, index) {
            continue;
        }
        let (down, right) = (index as u64 / across, index as u64 % across);
        let rows = down * block_rows..((down + 1) * block_rows).min(pair.rows);
        let columns = right * block_cols..((right + 1) * block_cols).min(cols);
        let used = |row: u64| columns.clone().any(|col| !is_zero(pair, &weights, row, col));
        if rows.clone().any(used) {
            count += 1;
            first.get_or_insert(index);
        }
    }
    Ok((count, first))
}

/// Whether a weight is zero; so is what lies outside.
fn is_zero(pair: &Pair, weights: &[u8], row: u64, col: u64) -> bool {
    let size = pair.weight_dtype.size_bytes() as usize;
    let element = (row * pair.stored_cols + col / pair.per_element) as usize;
    let Some(bytes) = weights.get(element * size..(element + 1) * size) else { return true };
    match pair.weight_dtype {
        Dtype::F8E4m3 | Dtype::F8E5m2 => bytes[0] & 0x7f == 0,
        // Columns lie from the lowest bits up, shifted by 8.
        Dtype::I32 if pair.per_element == 8 => {
            let place = (col % 8) as usize;
            (bytes[place / 2] >> (4 * (place % 2))) & 15 == 8
        }
        _ => bytes.iter().all(|&byte| byte == 0),
    }
}
