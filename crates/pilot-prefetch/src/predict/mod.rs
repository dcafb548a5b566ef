//! Guesses of the experts that a later layer will choose.
//!
//! All predictors rank every expert of the layer by a score of their own, and turn scores into
//! probabilities with what they saw of their earlier guesses ([`Calibrator`]): a probability of
//! 0.8 of any of them means that about 8 of 10 such experts were chosen.

mod blend;
mod calibrate;
mod config;
mod fitted;
mod lookahead;
mod margin;
mod none;
mod places;
mod ranked;
mod ranking;
mod repeat;
mod rule;
mod transition;

pub use blend::Blend;
pub use calibrate::Calibrator;
pub use config::{MAX_DEPTH, PilotConfig, PredictorKind};
pub use fitted::{Fitted, FittedParts};
pub use lookahead::Lookahead;
pub use margin::margins;
pub use none::NoPrediction;
pub use places::Places;
pub use ranked::Ranked;
pub use repeat::Repeat;
pub use rule::{ByLogits, SelectionRule};
pub use transition::Transition;

use crate::plan::Plan;
use router_trace::Route;

/// What is known when a layer has routed, about a later layer.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// Forward pass that the guess is for.
    pub step: u64,
    /// Layer that the guess is for, numbered as in the checkpoint.
    pub target: u16,
    /// What the layer that has just routed chose.
    pub route: &'a Route,
    /// What [`Predict::needs`] asks for, one value an expert of the target layer; empty where it
    /// cannot be had (the next token's first layers: that token is not known yet).
    pub logits: &'a [f32],
}

/// The arithmetic that a predictor wants done by whoever holds the weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// None.
    Nothing,
    /// What the target layer's router ranks by, on today's hidden state: `gate · norm(h)`, or what
    /// its [`SelectionRule`] makes of it.
    Gate,
    /// The logits of a fitted gate, [`Correction::gate`](crate::fit::Correction) with its bias.
    Fitted,
}

/// A predictor: told of every route as it is decided, asked for one of a later layer.
///
/// Routes of a token come in the order of the layers, `observe` before the `predict` that starts
/// from the same route. Neither touches the heap once every layer was seen.
pub trait Predict: Send {
    /// Its name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// What [`Moment::logits`] must hold.
    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    /// Makes `plan` the guess, the `width` most likely experts; empty where it knows nothing.
    fn predict(&mut self, moment: &Moment<'_>, width: usize, plan: &mut Plan);

    /// Learns what a layer really chose.
    fn observe(&mut self, truth: &Route);
}
