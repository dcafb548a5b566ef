//! The engine's side of PILOT: asks the predictor after each router, hands its plan to the worker,
//! and keeps the score.
//!
//! Nothing here writes to the decoder's state: the tokens are the same with any predictor.

mod fitter;
mod lane;
mod routers;
mod rule;
mod tape;

pub use fitter::Fitter;
pub use lane::Lane;
pub use routers::Routers;
pub use tape::Tape;

use crate::error::EngineError;
use crate::models::MoeCall;
use expert_tier::{Notice, Tier};
use pilot_prefetch::predict::{PilotConfig, Places};
use pilot_prefetch::{
    Delivery, DeliverySnapshot, GateConfig, Hint, Plan, Scorecard, Worker, WorkerConfig,
};
use router_trace::{Phase, Route};

/// Every so many tokens the control asks each layer's router about its own input.
const CONTROL_TOKENS: u64 = 32;
/// Tokens after the last missing expert in which plans are still handed over. Where all experts
/// are in memory a hint can bring nothing, and waking the worker once a layer would cost more than
/// the guess itself (12 to 19 % of the decode time of the bundled model).
const AWAKE_TOKENS: u64 = 16;
/// While nothing is missing, one token in so many is guessed, to keep scores and probabilities up
/// to date: a router asked a second time is 2 % of what the bundled model's decoding takes.
const RESTING_TOKENS: u64 = 8;

/// A predictor at work in a decoder.
pub struct Pilot {
    routers: Routers,
    lane: Lane,
    recurrence: Recurrence,
    control: Scorecard,
    control_plan: Plan,
    step: u64,
    guessed_tokens: u64,
    last_place: Option<usize>,
    delivery: Option<Delivery>,
    /// Experts that demand found missing, and hints that read something, when last looked at.
    missed: u64,
    advised: u64,
    awake_tokens: u64,
    rested_plans: u64,
    on_plan: Option<OnPlan>,
}

/// Told of every plan on the decode thread.
type OnPlan = Box<dyn FnMut(&Plan) + Send>;

impl std::fmt::Debug for Pilot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pilot").field("lane", &self.lane).field("step", &self.step).finish()
    }
}

/// What a [`Pilot`] measured.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PilotScores {
    /// How it was set.
    pub config: PilotConfig,
    /// The predictor.
    pub predictor: Scorecard,
    /// What the previous token's experts would have scored.
    pub recurrence: Scorecard,
    /// Each layer's router on its own input: anything but 100 % means that the rest is wrong.
    pub control: Scorecard,
}

impl Pilot {
    /// Predicts as `config` says with these routers.
    ///
    /// # Errors
    /// `fit-missing` for a fitted predictor where `routers` have no fit of that depth.
    pub fn new(mut routers: Routers, config: PilotConfig) -> Result<Self, EngineError> {
        let lane = Lane::new(config, &mut routers)?;
        let recurrence = Recurrence::new(config.depth, routers.places());
        let control = Scorecard::new("control", 0, routers.places());
        Ok(Self {
            routers,
            lane,
            recurrence,
            control,
            control_plan: Plan::new(0, 0),
            step: 0,
            guessed_tokens: 0,
            last_place: None,
            delivery: None,
            missed: 0,
            advised: 0,
            awake_tokens: AWAKE_TOKENS,
            rested_plans: 0,
            on_plan: None,
        })
    }

    /// The same with a worker that advises the kernel of the plans for `tier`, as far as a gate
    /// lets each layer's through.
    ///
    /// # Errors
    /// No thread to be had.
    pub fn advised_by(mut self, tier: &Tier) -> Result<Self, EngineError> {
        let worker = Worker::start(tier.advisor(), WorkerConfig::default())?;
        let places = self.routers.places();
        let layers = places.layer(places.len() - 1).saturating_add(1);
        self.delivery = Some(Delivery::gated(worker, layers, GateConfig::default()));
        Ok(self)
    }

    /// Calls `on_plan` with every plan as soon as it is made, on the decode thread.
    pub fn on_plan(&mut self, on_plan: impl FnMut(&Plan) + Send + 'static) {
        self.on_plan = Some(Box::new(on_plan));
    }

    /// What was measured so far.
    #[must_use]
    pub fn scores(&self) -> PilotScores {
        PilotScores {
            config: *self.lane.config(),
            predictor: self.lane.card().clone(),
            recurrence: self.recurrence.card.clone(),
            control: self.control.clone(),
        }
    }

    /// What became of the hints; `None` without a worker.
    #[must_use]
    pub fn delivery(&self) -> Option<DeliverySnapshot> {
        self.delivery.as_ref().map(Delivery::snapshot)
    }

    /// What a person should know of how advice goes here.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        self.delivery.as_ref().map_or_else(Vec::new, Delivery::notices)
    }

    /// Plans that were not made, or scored but not handed over, since no expert had been missing
    /// for a while.
    #[must_use]
    pub fn rested_plans(&self) -> u64 {
        self.rested_plans
    }

    /// Called when a layer has routed and before its experts run; `cold_experts` is how many
    /// demand has found missing so far.
    pub fn routed(&mut self, call: &MoeCall<'_>, phase: Phase, cold_experts: u64) {
        let Some(place) = self.routers.places().of(call.layer) else { return };
        let Some(routed) = call.routes.last() else { return };
        // Layers ascend within a pass, so a layer that does not is the first of the next one.
        let first = self.last_place.is_none_or(|last| place <= last);
        if first && self.last_place.is_some() {
            self.step += 1;
        }
        self.last_place = Some(place);
        if phase == Phase::Prefill || call.routes.len() > 1 {
            // Tokens of a prompt go through a layer together: there is no time to look ahead.
            self.lane.observe(&routed.route);
            self.recurrence.observe(place, &routed.route);
            return;
        }
        if first {
            self.guessed_tokens += 1;
            self.watch_need(cold_experts);
        }
        if self.guessed_tokens % CONTROL_TOKENS == 1 {
            let Self { routers, control, control_plan, step, .. } = self;
            routers.control(*step, place, call.hidden, control_plan);
            control.score(control_plan, &routed.route);
        }
        self.guess(place, &routed.route, call.hidden);
        self.recurrence.score(place, &routed.route);
    }

    fn guess(&mut self, place: usize, route: &Route, hidden: &[f32]) {
        let Self { lane, routers, step, on_plan, .. } = self;
        // Whoever listens wants them all.
        let resting = self.delivery.is_some() && self.awake_tokens == 0 && on_plan.is_none();
        if resting && !self.guessed_tokens.is_multiple_of(RESTING_TOKENS) {
            lane.skipped(place, route);
            self.rested_plans += 1;
            return;
        }
        let mut delivery = self.delivery.as_mut().filter(|_| self.awake_tokens > 0);
        if let Some(delivery) = &mut delivery {
            delivery.begin_demand(*step, route.layer(), route.experts());
        }
        let Some(plan) = lane.routed(*step, place, route, hidden, routers) else { return };
        match delivery {
            Some(delivery) => delivery.post(plan),
            None => self.rested_plans += 1,
        }
        if let Some(on_plan) = on_plan {
            on_plan(plan);
        }
    }

    /// Called when the layer that routed last is done: it found `missing` of its experts missing,
    /// and `waited_ns` of it went by in adopting.
    pub fn demanded(&mut self, waited_ns: u64, missing: &[u16]) {
        if let Some(delivery) = self.delivery.as_mut().filter(|_| self.awake_tokens > 0) {
            delivery.demanded(waited_ns, missing.iter().copied());
        }
    }

    /// Once a token: is anything missing that hints could bring, or did they just bring it?
    fn watch_need(&mut self, cold_experts: u64) {
        let Some(delivery) = &self.delivery else { return };
        if cold_experts > std::mem::replace(&mut self.missed, cold_experts) {
            self.awake_tokens = AWAKE_TOKENS;
        } else if self.awake_tokens == 1 {
            // Perfect hints leave nothing missing: asked once before going to sleep, not always.
            let advised = delivery.snapshot().worker.hints.advised_hints;
            let brought = advised > std::mem::replace(&mut self.advised, advised);
            self.awake_tokens = if brought { AWAKE_TOKENS } else { 0 };
        } else {
            self.awake_tokens = self.awake_tokens.saturating_sub(1);
        }
    }
}

/// Previous-token recurrence, which every score is compared with: the experts that the layer chose
/// for the token before.
#[derive(Debug)]
struct Recurrence {
    before: Vec<Option<Route>>,
    plan: Plan,
    card: Scorecard,
}

impl Recurrence {
    fn new(depth: usize, places: &Places) -> Self {
        let card = Scorecard::new("previous token", depth, places);
        Self { before: vec![None; places.len()], plan: Plan::new(0, 0), card }
    }

    fn observe(&mut self, place: usize, route: &Route) {
        self.before[place] = Some(*route);
    }

    fn score(&mut self, place: usize, route: &Route) {
        match self.before[place].replace(*route) {
            Some(before) => {
                self.plan.restart(0, route.layer());
                let experts = before.experts();
                let hints = (0_u8..).zip(experts).map(|(rank, &expert)| Hint {
                    expert,
                    probability: 1.0 - f32::from(rank) / 64.0,
                });
                self.plan.rank(hints, experts.len());
                self.card.score(&self.plan, route);
            }
            None => self.card.unscored(route.layer()),
        }
    }
}
