use super::Routers;
use crate::error::EngineError;
use pilot_prefetch::predict::{Moment, Needs, PilotConfig, Predict};
use pilot_prefetch::{Plan, Scorecard};
use router_trace::Route;

/// One predictor with the plans it has made and what they scored.
pub struct Lane {
    config: PilotConfig,
    predictor: Box<dyn Predict>,
    width: usize,
    /// By place: the plan of the layer there that was made last.
    plans: Vec<Plan>,
    /// Whether that layer has not routed since.
    pending: Vec<bool>,
    card: Scorecard,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Lane {
    /// A predictor for these routers.
    ///
    /// # Errors
    /// `fit-missing` where it needs a fit of its depth that `routers` do not have.
    pub fn new(config: PilotConfig, routers: &mut Routers) -> Result<Self, EngineError> {
        let fit = routers.fit_of_depth(config.depth)?;
        let places = routers.places();
        let parts = fit.map(|fit| (fit, routers.rules()));
        let predictor = config.build(places, parts).ok_or_else(|| EngineError::FitMissing {
            predictor: config.to_string(),
            depth: config.depth,
        })?;
        Ok(Self {
            width: config.width_for(places),
            plans: (0..places.len()).map(|place| Plan::new(0, places.layer(place))).collect(),
            pending: vec![false; places.len()],
            card: Scorecard::new(predictor.name(), config.depth, places),
            predictor,
            config,
        })
    }

    /// How it was set.
    #[must_use]
    pub fn config(&self) -> &PilotConfig {
        &self.config
    }

    /// What its plans scored.
    #[must_use]
    pub fn card(&self) -> &Scorecard {
        &self.card
    }

    /// Forgets what its plans scored, not what it learnt.
    pub fn clear_card(&mut self, routers: &Routers) {
        self.card = Scorecard::new(self.predictor.name(), self.config.depth, routers.places());
        self.pending.fill(false);
    }

    /// Learns from a route that it is not asked about.
    pub fn observe(&mut self, route: &Route) {
        self.pending.fill(false);
        self.predictor.observe(route);
    }

    /// The layer at `place` chose `route`: scores the plan of it and learns, but guesses nothing.
    pub fn skipped(&mut self, place: usize, route: &Route) {
        if std::mem::take(&mut self.pending[place]) {
            self.card.score(&self.plans[place], route);
        } else {
            self.card.unscored(route.layer());
        }
        self.predictor.observe(route);
    }

    /// The layer at `place` chose `route` for the token of pass `step`, whose stream there is
    /// `hidden`: scores the plan of it and makes one of a later layer, `None` where nothing is
    /// predicted.
    pub fn routed(
        &mut self,
        step: u64,
        place: usize,
        route: &Route,
        hidden: &[f32],
        routers: &mut Routers,
    ) -> Option<&Plan> {
        self.skipped(place, route);
        let (target, tokens) = routers.places().ahead(place, self.config.depth);
        let layer = routers.places().layer(target);
        // A later token's stream is not known: nothing to look at.
        let needs = if tokens == 0 { self.predictor.needs() } else { Needs::Nothing };
        let logits = routers.logits(needs, place, target, hidden);
        let moment = Moment { step: step + tokens, target: layer, route, logits };
        let plan = &mut self.plans[target];
        self.predictor.predict(&moment, self.width, plan);
        self.pending[target] = true;
        (!plan.hints().is_empty()).then_some(&*plan)
    }
}
