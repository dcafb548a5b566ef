use super::Routers;
use crate::error::EngineError;
use crate::models::MoeCall;
use pilot_prefetch::fit::{Correction, Fit, NormalEquations, solve};
use rayon::prelude::*;
use router_trace::Route;

/// Sums up what a fit needs while a model reads texts.
#[derive(Debug)]
pub struct Fitter {
    routers: Routers,
    /// Source and target places.
    pairs: Vec<(usize, usize)>,
    /// `[groups][pairs]`.
    groups: Vec<Vec<NormalEquations>>,
    /// By place: the pass's streams and routes, and the last token's route of the pass before.
    rows: Vec<Rows>,
    normed: Vec<f32>,
    truth: Vec<f32>,
}

#[derive(Clone, Debug, Default)]
struct Rows {
    hidden: Vec<f32>,
    routes: Vec<Route>,
    before: Option<Route>,
}

impl Fitter {
    /// Fits `pairs` of places (source, target) from tokens that come in `groups` groups.
    #[must_use]
    pub fn new(routers: Routers, pairs: &[(usize, usize)], groups: usize) -> Self {
        let (hidden, experts) = (routers.hidden(), routers.places().n_experts());
        let one =
            |pair: &(usize, usize)| NormalEquations::new(hidden, experts, routers.level(pair.1));
        let equations: Vec<_> = pairs.iter().map(one).collect();
        Self {
            rows: vec![Rows::default(); routers.places().len()],
            pairs: pairs.to_vec(),
            groups: vec![equations; groups],
            normed: vec![0.0; hidden],
            truth: Vec::new(),
            routers,
        }
    }

    /// Bytes that a pair of layers takes, with `groups` groups.
    #[must_use]
    pub fn bytes_a_pair(routers: &Routers, groups: usize) -> usize {
        NormalEquations::bytes(routers.hidden(), routers.places().n_experts()) * groups
    }

    /// Begins another text: its first token has none before it.
    pub fn begin_text(&mut self) {
        self.rows.iter_mut().for_each(|rows| *rows = Rows::default());
    }

    /// Takes in one layer of a pass over a text of `group`.
    pub fn watch(&mut self, group: usize, call: &MoeCall<'_>) {
        let Some(target) = self.routers.places().of(call.layer) else { return };
        let mut rows = std::mem::take(&mut self.rows[target]);
        rows.before = rows.routes.last().copied().or(rows.before);
        rows.hidden.clear();
        rows.hidden.extend_from_slice(call.hidden);
        rows.routes.clear();
        rows.routes.extend(call.routes.iter().map(|routed| routed.route));
        let pairs = self.pairs.iter().enumerate();
        let here: Vec<_> =
            pairs.filter(|(_, pair)| pair.1 == target).map(|(at, p)| (at, p.0)).collect();
        for (pair, source) in here {
            self.push(group, pair, source, target, &rows);
        }
        self.rows[target] = rows;
    }

    fn push(&mut self, group: usize, pair: usize, source: usize, target: usize, rows: &Rows) {
        let Self { routers, groups, normed, truth, .. } = self;
        let width = routers.hidden();
        let from = &self.rows[source];
        let streams = from.hidden.chunks_exact(width).zip(rows.hidden.chunks_exact(width));
        for (token, (hidden, own)) in streams.enumerate() {
            let again = if token == 0 { rows.before.as_ref() } else { rows.routes.get(token - 1) };
            truth.clear();
            truth.extend_from_slice(routers.gate_logits(target, own));
            routers.plain_normed(hidden, normed);
            let lookahead = routers.gate_logits(target, hidden);
            let after = from.routes[token].experts();
            let again = again.map_or(&[][..], Route::experts);
            groups[group][pair].push(normed, after, again, truth, lookahead);
        }
    }

    /// The corrections that all groups but `left_out` give.
    ///
    /// # Errors
    /// `fit-singular`.
    pub fn corrections(&self, left_out: Option<usize>) -> Result<Vec<Correction>, EngineError> {
        let places = self.routers.places();
        let solve_one = |(at, &(source, target)): (usize, &(usize, usize))| {
            let groups = self.groups.iter().enumerate();
            let groups = groups.filter(|(group, _)| Some(*group) != left_out);
            let mut groups: Vec<_> = groups.map(|(_, pairs)| pairs[at].clone()).collect();
            let layers = [places.layer(source), places.layer(target)];
            Ok(solve(layers, &self.routers.plain_gate(target), &mut groups)?)
        };
        self.pairs.par_iter().enumerate().map(solve_one).collect()
    }

    /// A fit of these corrections, in the order that a fit has them.
    #[must_use]
    pub fn fit(routers: &Routers, mut corrections: Vec<Correction>) -> Fit {
        corrections.sort_by_key(|one| (one.source, one.target));
        Fit {
            model: routers.model(),
            hidden: routers.hidden(),
            n_experts: routers.places().n_experts(),
            top_k: routers.places().top_k(),
            corrections,
        }
    }
}
