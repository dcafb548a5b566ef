//! A correction of the lookahead, learnt from what a model's layers did.
//!
//! The lookahead asks layer `t`'s router about the stream after layer `s`, and errs by what the
//! layers between add to it. A [`Correction`] adds a linear guess of that error:
//!
//! ```text
//! x      = h / rms(h)                                   the stream at layer s, without a norm's weights
//! logits = (gate_t · diag(norm_t) + D) x + bias         one product, as wide as the router's own
//!        + Σ after[e], e chosen at s                    what these experts are about to add
//!        + Σ again[e], e chosen at t for the token before
//! score  = (logit - threshold) / sd                     of each expert; Φ(score): how likely it is chosen
//! ```
//!
//! `D`, `bias`, `after` and `again` are the ridge regression (Hoerl and Kennard 1970) of the true
//! logits' difference from the lookahead's: without data, or with a strong ridge, what is left is
//! the plain lookahead. Where a router compares logits, both are taken less their mean over the
//! experts, which no choice depends on ([`Level`]).
//!
//! The threshold is the layer's own ([`SelectionRule`](crate::predict::SelectionRule)). Where the
//! logits are compared it is one for all, midway between the `k`-th and the next. A sigmoid router
//! compares `sigmoid(logit) + b[e]` within the groups it keeps: with `v` midway between the `k`-th
//! and the next of these, an expert's threshold is the logit that brings it there,
//! `ln(p / (1 - p))` of `p = v - b[e]`.
//!
//! `sd` is the standard deviation of what the regression leaves of each expert's logit. It does
//! not change which experts are above the threshold, but orders those below: one whose logit is
//! hard to guess is more likely to be chosen than a well known one just as far away.

mod error;
mod file;
mod ridge;

pub use error::FitError;
pub use ridge::{Level, NormalEquations, RIDGES, solve};

use crate::predict::Places;
use router_trace::Route;

/// Corrections of one model's lookahead, one for each pair of layers that was fitted.
#[derive(Clone, PartialEq, Debug)]
pub struct Fit {
    /// Which model's routers it belongs to: a hash that the engine makes.
    pub model: String,
    /// Values of the residual stream.
    pub hidden: usize,
    /// Experts of every layer.
    pub n_experts: usize,
    /// Experts a token chooses.
    pub top_k: usize,
    /// Ascending by source and target layer.
    pub corrections: Vec<Correction>,
}

/// The correction of one source and one target layer, `E` experts each.
#[derive(Clone, PartialEq, Debug)]
pub struct Correction {
    /// The layer whose stream is looked at, numbered as in the checkpoint.
    pub source: u16,
    /// The layer whose routes are guessed.
    pub target: u16,
    /// `[E, hidden]`: the target's router with its norm's weights, corrected; for `h / rms(h)`.
    pub gate: Vec<f32>,
    /// `[E]`.
    pub bias: Vec<f32>,
    /// `[E, E]`: a row for each expert that the source layer chose.
    pub after: Vec<f32>,
    /// `[E, E]`: a row for each expert that the target layer chose for the token before.
    pub again: Vec<f32>,
    /// `[E]`: standard deviation of the error that is left, in logits; above zero.
    pub sd: Vec<f32>,
    /// The ridge that was chosen, as a share of the inputs' mean square.
    pub ridge: f64,
}

impl Fit {
    /// The correction of a pair of layers, if there is one.
    #[must_use]
    pub fn correction(&self, source: u16, target: u16) -> Option<&Correction> {
        let key = |correction: &Correction| (correction.source, correction.target);
        let at = self.corrections.binary_search_by_key(&(source, target), key).ok()?;
        Some(&self.corrections[at])
    }

    /// Checks that it was made for this model.
    ///
    /// # Errors
    /// [`FitError::Model`] with what differs.
    pub fn check(&self, model: &str, hidden: usize, places: &Places) -> Result<(), FitError> {
        let differs = |what: &'static str, fit: String, model: String| {
            if fit == model { Ok(()) } else { Err(FitError::Model { what, fit, model }) }
        };
        let (experts, top_k) = (places.n_experts(), places.top_k());
        differs("values of the residual stream", self.hidden.to_string(), hidden.to_string())?;
        differs("experts a layer", self.n_experts.to_string(), experts.to_string())?;
        differs("experts a token", self.top_k.to_string(), top_k.to_string())?;
        differs("routers", self.model.clone(), model.to_owned())
    }
}

impl Correction {
    /// Adds to `logits`, one an expert, what the routes say: that of the source layer, and the
    /// target's own for the token before. Experts that do not exist are passed over.
    pub fn add_routes(&self, route: &Route, before: Option<&Route>, logits: &mut [f32]) {
        let rows = |table: &[f32], route: &Route, logits: &mut [f32]| {
            for &expert in route.experts() {
                let from = usize::from(expert) * self.sd.len();
                let Some(row) = table.get(from..from + self.sd.len()) else { continue };
                logits.iter_mut().zip(row).for_each(|(logit, value)| *logit += value);
            }
        };
        rows(&self.after, route, logits);
        if let Some(before) = before {
            rows(&self.again, before, logits);
        }
    }
}
