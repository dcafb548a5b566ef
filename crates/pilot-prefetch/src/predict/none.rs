use super::{Moment, Predict};
use crate::plan::Plan;
use router_trace::Route;

/// Predicts nothing: the control arm.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPrediction;

impl Predict for NoPrediction {
    fn name(&self) -> &'static str {
        "none"
    }

    fn predict(&mut self, moment: &Moment<'_>, _width: usize, plan: &mut Plan) {
        plan.restart(moment.step, moment.target);
    }

    fn observe(&mut self, _truth: &Route) {}
}
