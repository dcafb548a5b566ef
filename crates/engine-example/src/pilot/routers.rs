use super::rule::{level, selection_rule};
use crate::error::EngineError;
use crate::kernels::Isa;
use crate::linear::{Linear, StoredData, StoredMatrix, Workspace};
use crate::models::{Decoder, GateRoom, LayerGate};
use crate::spine::RmsNorm;
use crate::weights::SharedBytes;
use half::f16;
use pilot_prefetch::fit::{Fit, Level};
use pilot_prefetch::predict::{Needs, Places, SelectionRule};
use pilot_prefetch::{Hint, Plan};
use router_trace::ModelShape;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// The routers of a model as predictors use them: asked about any layer's stream, plain or fitted.
#[derive(Clone, Debug)]
pub struct Routers {
    places: Places,
    gates: Vec<LayerGate>,
    /// The norm without its weights, which fitted gates have in theirs.
    plain_norm: RmsNorm,
    workspace: Workspace,
    fit: Option<Arc<Fit>>,
    /// `[source place][target place]`: gates of the fit, for the depths that somebody asked for.
    fitted: Vec<Vec<Option<Linear>>>,
    room: GateRoom,
    normed: Vec<f32>,
    logits: Vec<f32>,
}

impl Routers {
    /// Those of a decoder, whose weights they share; a fit is used where it is given.
    ///
    /// # Errors
    /// `fit-of-another-model` with what differs.
    pub fn new(decoder: &Decoder, isa: Isa, fit: Option<Arc<Fit>>) -> Result<Self, EngineError> {
        let (gates, config) = (decoder.gates(), decoder.config());
        let places = Places::new(&ModelShape {
            moe_layers: gates.iter().map(LayerGate::layer).collect(),
            n_experts: u16::try_from(config.moe.num_experts).unwrap_or(u16::MAX),
            top_k: u16::try_from(config.moe.num_experts_per_tok).unwrap_or(u16::MAX),
        });
        let first = gates.first().ok_or_else(|| {
            EngineError::config("num_experts", &config.moe.num_experts, "no layer has a router")
        })?;
        let routers = Self {
            plain_norm: first.norm().without_weights(),
            workspace: Workspace::new(isa),
            fitted: vec![vec![None; places.len()]; places.len()],
            room: GateRoom::default(),
            normed: Vec::with_capacity(config.hidden_size),
            logits: Vec::with_capacity(config.moe.num_experts),
            places,
            gates,
            fit: None,
        };
        routers.with_fit(fit)
    }

    /// The same with another fit, or none.
    ///
    /// # Errors
    /// `fit-of-another-model` with what differs.
    pub fn with_fit(mut self, fit: Option<Arc<Fit>>) -> Result<Self, EngineError> {
        if let Some(fit) = &fit {
            fit.check(&self.model(), self.hidden(), &self.places)?;
        }
        self.fit = fit;
        self.fitted.iter_mut().for_each(|row| row.fill(None));
        Ok(self)
    }

    /// The layers that have a router.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Values of the residual stream.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.plain_norm.width()
    }

    /// How each place's router chooses, for what guesses its logits.
    #[must_use]
    pub fn rules(&self) -> Vec<Box<dyn SelectionRule>> {
        self.gates.iter().map(|gate| selection_rule(gate.router())).collect()
    }

    /// Whether the choice at `place` depends on what all its logits have in common.
    #[must_use]
    pub fn level(&self, place: usize) -> Level {
        level(self.gates[place].router())
    }

    /// Identity of the routers: SHA-256 over every layer's number, norm, gate and, where it has
    /// one, bias as f32. A model whose experts were packed or quantised keeps it, and with it its
    /// fit.
    #[must_use]
    pub fn model(&self) -> String {
        let mut hash = Sha256::new();
        let mut row = vec![0.0; self.hidden()];
        let mut add = |values: &[f32]| values.iter().for_each(|x| hash.update(x.to_le_bytes()));
        for gate in &self.gates {
            add(&[f32::from(gate.layer())]);
            add(gate.norm().weight());
            let weight = gate.gate().weight();
            for expert in 0..weight.rows() {
                weight.view().row_to_f32(expert, &mut row);
                add(&row);
            }
            add(gate.router().bias());
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// `[experts, hidden]`: the router at `place` times its norm's weights.
    #[must_use]
    pub fn plain_gate(&self, place: usize) -> Vec<f32> {
        let (gate, width) = (&self.gates[place], self.hidden());
        let mut all = vec![0.0; gate.gate().weight().rows() * width];
        for (expert, row) in all.chunks_exact_mut(width).enumerate() {
            gate.gate().weight().view().row_to_f32(expert, row);
            row.iter_mut().zip(gate.norm().weight()).for_each(|(w, norm)| *w *= norm);
        }
        all
    }

    /// `h / rms(h)` of one token.
    pub fn plain_normed(&self, hidden: &[f32], out: &mut [f32]) {
        self.plain_norm.apply_into(hidden, out);
    }

    /// The fit, if it reaches `depth` layers ahead from every layer but the last; makes its gates
    /// ready. `None` without a fit.
    ///
    /// # Errors
    /// Tables that do not fit the model.
    pub fn fit_of_depth(&mut self, depth: usize) -> Result<Option<Arc<Fit>>, EngineError> {
        let Some(fit) = self.fit.clone() else { return Ok(None) };
        for source in 0..self.places.len().saturating_sub(depth) {
            let target = source + depth;
            let layers = (self.places.layer(source), self.places.layer(target));
            let Some(correction) = fit.correction(layers.0, layers.1) else { return Ok(None) };
            if self.fitted[source][target].is_none() {
                let bytes: Vec<u8> =
                    correction.gate.iter().flat_map(|&w| f16::from_f32(w).to_le_bytes()).collect();
                let data = StoredData::F16(SharedBytes::new(bytes));
                let name = format!("fit of layer {} to {}", layers.0, layers.1);
                let matrix = StoredMatrix::new(&name, fit.n_experts, fit.hidden, data)?;
                let linear = Linear::new(matrix, &self.workspace);
                self.fitted[source][target] = Some(linear.with_bias(correction.bias.clone())?);
            }
        }
        Ok(Some(fit))
    }

    /// What a predictor needs to know of the layer at `target`, one value an expert, from the
    /// stream `hidden` of one token at `source`; empty where nothing is needed or there is no fit.
    pub fn logits(&mut self, needs: Needs, source: usize, target: usize, hidden: &[f32]) -> &[f32] {
        let Self { room, normed, logits, .. } = self;
        match needs {
            Needs::Nothing => logits.clear(),
            Needs::Gate => self.gates[target].rank_values(hidden, room, logits),
            Needs::Fitted => match &self.fitted[source][target] {
                Some(gate) => {
                    normed.resize(self.plain_norm.width(), 0.0);
                    self.plain_norm.apply_into(hidden, normed);
                    logits.resize(gate.weight().rows(), 0.0);
                    gate.apply(normed, logits);
                }
                None => logits.clear(),
            },
        }
        logits
    }

    /// The logits of the router at `place`, one an expert, for the stream `hidden` of one token.
    pub fn gate_logits(&mut self, place: usize, hidden: &[f32]) -> &[f32] {
        let Self { room, logits, .. } = self;
        self.gates[place].logits(hidden, room, logits);
        logits
    }

    /// The control: the plan that the router at `place` makes of its own input. It names what the
    /// layer chose, or something between the stream and the score is wrong.
    pub fn control(&mut self, step: u64, place: usize, hidden: &[f32], plan: &mut Plan) {
        let top_k = self.places.top_k();
        plan.restart(step, self.places.layer(place));
        let logits = self.logits(Needs::Gate, place, place, hidden);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // Ranked by the logits' order alone: `exp` would make ties of logits that differ.
        let rank = |logit: f32| logits.iter().filter(|other| **other > logit).count();
        let hints = (0_u16..).zip(logits).filter_map(|(expert, &logit)| {
            let rank = rank(logit);
            (rank < top_k && max.is_finite())
                .then(|| Hint { expert, probability: 1.0 - rank as f32 / 64.0 })
        });
        plan.rank(hints, top_k);
    }
}
