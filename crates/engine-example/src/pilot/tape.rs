use super::{Lane, Routers};
use crate::models::MoeCall;
use pilot_prefetch::{Plan, Scorecard};
use router_trace::Route;

/// What every layer saw of a text: the streams and routes of its tokens.
///
/// Tokens of a text go through a layer together, while predictors live from token to token; the
/// tape turns the one into the other. Memory: `tokens · layers · hidden` values of 4 bytes.
#[derive(Clone, Debug, Default)]
pub struct Tape {
    /// By place.
    layers: Vec<(Vec<f32>, Vec<Route>)>,
    hidden: usize,
}

impl Tape {
    /// An empty tape of a model.
    #[must_use]
    pub fn new(routers: &Routers) -> Self {
        Self { layers: vec![Default::default(); routers.places().len()], hidden: routers.hidden() }
    }

    /// Takes in one layer of a pass: to be called from [`Engine::watch`](crate::Engine::watch).
    pub fn record(&mut self, call: &MoeCall<'_>, routers: &Routers) {
        let Some(place) = routers.places().of(call.layer) else { return };
        let (hidden, routes) = &mut self.layers[place];
        hidden.extend_from_slice(call.hidden);
        routes.extend(call.routes.iter().map(|routed| routed.route));
    }

    /// Tokens on it.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.layers.first().map_or(0, |(_, routes)| routes.len())
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bytes = |(hidden, routes): &(Vec<f32>, Vec<Route>)| {
            size_of_val(hidden.as_slice()) + size_of_val(routes.as_slice())
        };
        self.layers.iter().map(bytes).sum::<usize>() as u64
    }

    /// Lets the lanes, and a control where there is one, live through it token by token.
    pub fn play(
        &self,
        lanes: &mut [Lane],
        mut control: Option<&mut Scorecard>,
        routers: &mut Routers,
    ) {
        let mut plan = Plan::new(0, 0);
        for token in 0..self.tokens() {
            let step = token as u64;
            for (place, (hidden, routes)) in self.layers.iter().enumerate() {
                let hidden = &hidden[token * self.hidden..][..self.hidden];
                if let Some(control) = &mut control {
                    routers.control(step, place, hidden, &mut plan);
                    control.score(&plan, &routes[token]);
                }
                for lane in &mut *lanes {
                    lane.routed(step, place, &routes[token], hidden, routers);
                }
            }
        }
    }
}
