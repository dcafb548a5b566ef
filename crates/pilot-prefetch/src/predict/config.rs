use super::{
    Blend, Fitted, FittedParts, Lookahead, NoPrediction, Places, Predict, Repeat, Transition,
};
use crate::plan::MAX_WIDTH;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The most layers that a guess reaches ahead: beyond, the stream has little left in common.
pub const MAX_DEPTH: usize = 8;

/// Which predictor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PredictorKind {
    /// [`NoPrediction`].
    None,
    /// [`Repeat`].
    Repeat,
    /// [`Lookahead`].
    Lookahead,
    /// [`Transition`].
    Transition,
    /// [`Fitted`].
    Fitted,
    /// [`Blend`].
    Blend,
}

impl PredictorKind {
    /// All, the plainest first.
    pub const ALL: [Self; 6] =
        [Self::None, Self::Repeat, Self::Transition, Self::Lookahead, Self::Fitted, Self::Blend];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Repeat => "repeat",
            Self::Transition => "transition",
            Self::Lookahead => "lookahead",
            Self::Fitted => "fitted",
            Self::Blend => "blend",
        }
    }
}

impl fmt::Display for PredictorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A predictor and how far and wide it guesses: `PREDICTOR[,depth=N][,width=N]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PilotConfig {
    /// Which predictor.
    pub predictor: PredictorKind,
    /// How many layers with experts ahead, 1 for the next one; at most [`MAX_DEPTH`].
    pub depth: usize,
    /// Experts of a plan; `None` for four times what a token chooses.
    pub width: Option<usize>,
}

impl PilotConfig {
    /// Guesses of the next layer, of the usual width.
    #[must_use]
    pub fn new(predictor: PredictorKind) -> Self {
        Self { predictor, depth: 1, width: None }
    }

    /// Experts of a plan for a model: not more than it has, nor than [`MAX_WIDTH`].
    #[must_use]
    pub fn width_for(&self, places: &Places) -> usize {
        let width = self.width.unwrap_or(4 * places.top_k());
        width.min(places.n_experts()).min(MAX_WIDTH)
    }

    /// The predictor for a model. [`PredictorKind::Blend`] does without a `fit`, and
    /// [`PredictorKind::Fitted`] does not: then there is none.
    ///
    /// # Panics
    /// If a fit comes without a rule for each place.
    #[must_use]
    pub fn build(&self, places: &Places, fit: Option<FittedParts>) -> Option<Box<dyn Predict>> {
        let depth = self.depth;
        Some(match self.predictor {
            PredictorKind::None => Box::new(NoPrediction),
            PredictorKind::Repeat => Box::new(Repeat::predictor(places)),
            PredictorKind::Transition => Box::new(Transition::predictor(places, depth)),
            PredictorKind::Lookahead => Box::new(Lookahead::predictor(places)),
            PredictorKind::Fitted => Box::new(Fitted::predictor(places, depth, fit?)),
            PredictorKind::Blend => Box::new(Blend::predictor(places, depth, fit)),
        })
    }
}

impl fmt::Display for PilotConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},depth={}", self.predictor, self.depth)?;
        self.width.map_or(Ok(()), |width| write!(f, ",width={width}"))
    }
}

impl FromStr for PilotConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, settings) = text.split_once(',').unwrap_or((text, ""));
        let names = || PredictorKind::ALL.map(PredictorKind::name).join(", ");
        let predictor = PredictorKind::ALL.into_iter().find(|kind| kind.name() == name);
        let predictor =
            predictor.ok_or_else(|| format!("{name} is no predictor: one of {}", names()))?;
        let mut config = Self::new(predictor);
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            let number = |value: &str, max: usize| {
                let number = value.parse().ok().filter(|number| (1..=max).contains(number));
                number.ok_or_else(|| format!("{setting}: must be 1 to {max}"))
            };
            match setting.split_once('=') {
                Some(("depth", value)) => config.depth = number(value, MAX_DEPTH)?,
                Some(("width", value)) => config.width = Some(number(value, MAX_WIDTH)?),
                _ => return Err(format!("{setting}: expected depth=N or width=N")),
            }
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use router_trace::ModelShape;

    #[test]
    fn a_config_is_read_as_it_is_shown() {
        for text in ["none,depth=1", "blend,depth=2,width=16", "fitted,depth=8,width=128"] {
            assert_eq!(text.parse::<PilotConfig>().unwrap().to_string(), text);
        }
        assert_eq!("repeat".parse(), Ok(PilotConfig::new(PredictorKind::Repeat)));
        for (text, says) in [
            ("oracle", "oracle is no predictor: one of none, repeat, transition, lookahead"),
            ("blend,depth=0", "depth=0: must be 1 to 8"),
            ("blend,depth=9", "depth=9: must be 1 to 8"),
            ("blend,width=129", "width=129: must be 1 to 128"),
            ("blend,deep", "deep: expected depth=N or width=N"),
        ] {
            let error = text.parse::<PilotConfig>().unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
    }

    #[test]
    fn widths_fit_the_model_and_only_the_fitted_one_needs_a_fit() {
        let shape = ModelShape { moe_layers: vec![0, 1], n_experts: 12, top_k: 4 };
        let places = Places::new(&shape);
        assert_eq!(PilotConfig::new(PredictorKind::None).width_for(&places), 12);
        let narrow = PilotConfig { width: Some(3), ..PilotConfig::new(PredictorKind::None) };
        assert_eq!(narrow.width_for(&places), 3);
        for kind in PredictorKind::ALL {
            let predictor = PilotConfig::new(kind).build(&places, None);
            let name = predictor.map(|predictor| predictor.name());
            assert_eq!(name, (kind != PredictorKind::Fitted).then(|| kind.name()));
        }
    }
}
