use crate::canonical::{Records, Rows};
use crate::error::TraceError;
use crate::ids::ModelShape;
use std::collections::{BTreeMap, BTreeSet};

/// Widths told apart; a file with more has no shape anyway.
const MAX_WIDTHS: usize = 64;
/// One row in so many has the width of one token: fewer are damaged ones.
const RARE: u64 = 20;

/// What is known of a model's shape before the rows are read.
#[derive(Clone, Default)]
pub(super) struct Known {
    pub(super) moe_layers: Option<Vec<u16>>,
    pub(super) n_experts: Option<u16>,
    pub(super) top_k: Option<u16>,
}

impl Known {
    pub(super) fn whole(&self) -> Option<ModelShape> {
        Some(ModelShape {
            moe_layers: self.moe_layers.clone()?,
            n_experts: self.n_experts?,
            top_k: self.top_k?,
        })
    }

    /// The first field that is not known.
    pub(super) fn missing(&self) -> &'static str {
        match self {
            Self { moe_layers: None, .. } => "layers",
            Self { n_experts: None, .. } => "experts",
            _ => "experts a token",
        }
    }
}

/// Reads all of `source` and takes from its rows what is not known: the layers are those
/// seen, the experts one more than the highest id, and a token's experts the smallest width
/// that is not rare (a record of several tokens is a multiple as wide). Memory for one row.
pub(super) fn infer(
    source: &mut dyn Records,
    known: Known,
    skip_layers: &[u16],
) -> Result<ModelShape, TraceError> {
    let mut layers = BTreeSet::new();
    let mut highest = 0;
    let mut widths = BTreeMap::<usize, u64>::new();
    let mut rows = 0;
    while let Some(record) = source.next_record()? {
        let Ok(layer) = u16::try_from(record.layer) else {
            let (line, layer) = (record.line, record.layer);
            return Err(TraceError::UnknownLayer { line, layer, known: 1 << 16 });
        };
        if skip_layers.contains(&layer) {
            continue;
        }
        layers.insert(layer);
        highest = record.ids.iter().copied().fold(highest, i64::max);
        let mut count = |width: usize| {
            rows += 1;
            if widths.len() < MAX_WIDTHS || widths.contains_key(&width) {
                *widths.entry(width).or_default() += 1;
            }
        };
        match &record.rows {
            Rows::Flat => count(record.ids.len()),
            Rows::Each(each) => each.iter().copied().for_each(count),
        }
    }
    if layers.is_empty() && known.whole().is_none() {
        let reason = "no row to take the model's shape from".to_owned();
        return Err(TraceError::NotATrace { line: 1, reason });
    }
    let common = widths.iter().find(|&(&width, &count)| width > 0 && count * RARE >= rows);
    let width = common.map_or(0, |(&width, _)| width);
    Ok(ModelShape {
        moe_layers: known.moe_layers.unwrap_or_else(|| layers.into_iter().collect()),
        // An id that no model can have is refused where its row is read.
        n_experts: known
            .n_experts
            .unwrap_or_else(|| u16::try_from(highest.saturating_add(1)).unwrap_or(u16::MAX)),
        top_k: known.top_k.unwrap_or_else(|| u16::try_from(width).unwrap_or(u16::MAX)),
    })
}
