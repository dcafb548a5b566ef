//! Plans that are right: what advice could win at most.

use crate::plan::{Hint, MAX_WIDTH, Plan};
use router_trace::{LayerPass, TraceError};

/// When an oracle tells what a layer will choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OracleForm {
    /// One layer ahead: while a layer decodes, the whole route of the one behind it in the same
    /// pass. The first layer of a pass is told while the last of the pass before decodes.
    NextLayer,
    /// One pass ahead: while a layer decodes, its own route in the pass behind this one.
    NextPass,
}

impl OracleForm {
    /// The name that a plan file's header gives.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NextLayer => "oracle, next layer",
            Self::NextPass => "oracle, next pass",
        }
    }

    /// The plans of a trace: as many as passes, each for the pass of its own place, so that
    /// whoever replays posts plan `i + ahead` while it decodes pass `i`, with
    /// [`OracleForm::ahead`]. A prompt's pass wider than [`MAX_WIDTH`] is told as far as that.
    ///
    /// # Errors
    /// What reading the trace answers.
    pub fn plans(
        passes: impl IntoIterator<Item = Result<LayerPass, TraceError>>,
    ) -> Result<Vec<Plan>, TraceError> {
        passes.into_iter().map(|pass| pass.map(|pass| of_pass(&pass))).collect()
    }

    /// Passes from the one that decodes to the one that is told, of a model with so many layers
    /// that route.
    #[must_use]
    pub fn ahead(self, moe_layers: usize) -> usize {
        match self {
            Self::NextLayer => 1,
            Self::NextPass => moe_layers,
        }
    }
}

/// The truth of one layer of one pass, certain and in rank order.
fn of_pass(pass: &LayerPass) -> Plan {
    let mut plan = Plan::new(pass.info.step, pass.info.layer);
    let mut told: Vec<u16> = Vec::with_capacity(MAX_WIDTH);
    for &expert in pass.experts() {
        if told.len() < MAX_WIDTH && !told.contains(&expert) {
            told.push(expert);
        }
    }
    plan.set_ranked(told.into_iter().map(|expert| Hint { expert, probability: 1.0 }));
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use router_trace::{PassInfo, PassKind, Phase};

    fn pass(step: u64, layer: u16, experts: &[u16]) -> LayerPass {
        let info =
            PassInfo { step, position: step, layer, phase: Phase::Decode, kind: PassKind::Normal };
        LayerPass::new(info, 2, experts.to_vec()).unwrap()
    }

    #[test]
    fn it_names_what_is_chosen_once_in_order_and_for_the_right_pass() {
        let passes = [pass(0, 1, &[5, 3]), pass(0, 2, &[1, 0, 0, 7]), pass(1, 1, &[3, 4])];
        let plans = OracleForm::plans(passes.into_iter().map(Ok)).unwrap();
        let found: Vec<(u64, u16, Vec<u16>)> = plans
            .iter()
            .map(|plan| (plan.step(), plan.layer(), plan.ids().map(|id| id.index).collect()))
            .collect();
        assert_eq!(found, [(0, 1, vec![5, 3]), (0, 2, vec![1, 0, 7]), (1, 1, vec![3, 4])]);
        assert!(plans.iter().flat_map(Plan::hints).all(|hint| hint.probability == 1.0));
        assert_eq!(OracleForm::NextLayer.ahead(2), 1);
        assert_eq!(OracleForm::NextPass.ahead(2), 2);
    }

    #[test]
    fn a_broken_trace_is_an_error() {
        let broken = TraceError::RepeatedExpert { layer: 0, token: 0, expert: 1 };
        assert!(OracleForm::plans([Ok(pass(0, 1, &[1, 2])), Err(broken)]).is_err());
    }
}
