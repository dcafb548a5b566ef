use crate::error::TraceError;
use crate::ids::ModelShape;
use crate::pass::LayerPass;

/// The most experts (of all layers together) that are counted: 25 times the largest model
/// known. A counter needs about 170 bytes for each expert of a layer that has records, and
/// has one such set for decode and one for prefill.
pub const MAX_COUNTED_EXPERTS: usize = 1 << 21;

const NO_PLACE: u32 = u32::MAX;

/// Checks that a pass is of a model, and finds its layer's place in the model's list.
#[derive(Clone, Debug)]
pub(super) struct Places {
    shape: ModelShape,
    /// Place in `shape.moe_layers` by layer number.
    place: Vec<u32>,
}

impl Places {
    pub(super) fn new(shape: &ModelShape) -> Result<Self, TraceError> {
        let (experts, max) = (shape.total_experts(), MAX_COUNTED_EXPERTS as u64);
        if !(1..=MAX_COUNTED_EXPERTS).contains(&experts) {
            let name = "experts of the model";
            return Err(TraceError::SettingRange { name, value: experts as u64, min: 1, max });
        }
        let highest = shape.moe_layers.iter().max().copied().unwrap_or(0);
        let mut place = vec![NO_PLACE; usize::from(highest) + 1];
        for (at, &layer) in (0_u32..).zip(&shape.moe_layers) {
            place[usize::from(layer)] = at;
        }
        Ok(Self { shape: shape.clone(), place })
    }

    pub(super) fn shape(&self) -> &ModelShape {
        &self.shape
    }

    pub(super) fn of(&self, pass: &LayerPass) -> Result<usize, TraceError> {
        let (shape, info) = (&self.shape, pass.info);
        let foreign = |field, value: u16, known: u64| TraceError::ForeignPass {
            step: info.step,
            layer: info.layer,
            field,
            value: value.into(),
            known,
        };
        if pass.top_k() != shape.top_k {
            return Err(foreign("top_k", pass.top_k(), shape.top_k.into()));
        }
        let place = self.place.get(usize::from(info.layer)).filter(|&&place| place != NO_PLACE);
        let Some(&place) = place else {
            return Err(foreign("layer", info.layer, shape.moe_layers.len() as u64));
        };
        let highest = pass.experts().iter().max().copied().unwrap_or(0);
        if highest >= shape.n_experts {
            return Err(foreign("expert", highest, shape.n_experts.into()));
        }
        Ok(place as usize)
    }
}
