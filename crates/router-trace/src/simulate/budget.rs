use crate::accesses::Accesses;
use crate::error::TraceError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How much may be kept, over all layers together.
///
/// Text form: `128` (experts), `32/layer` (experts for each layer), `25%` (of the pool),
/// `8GB`, `8GiB` and the like, or `1000B` (bytes).
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Budget {
    /// This many experts.
    Experts(u64),
    /// This many experts times the number of layers, wherever they then lie.
    PerLayer(u64),
    /// As many whole experts as fit into this many bytes.
    Bytes(u64),
    /// This share of all experts, in per cent, rounded down to whole experts.
    Percent(f64),
}

const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

impl Budget {
    /// The budget in experts, for the model and the expert size of `trace`.
    ///
    /// # Errors
    ///
    /// [`TraceError::Setting`] for a budget in bytes where the size of an expert is unknown
    /// or zero.
    pub fn experts(self, trace: &Accesses) -> Result<usize, TraceError> {
        let shape = trace.key_space().shape();
        let experts = match self {
            Self::Experts(experts) => experts,
            Self::PerLayer(experts) => experts.saturating_mul(shape.moe_layers.len() as u64),
            Self::Percent(percent) => {
                // From a value between 0 and the number of experts.
                (shape.total_experts() as f64 * percent / 100.0) as u64
            }
            Self::Bytes(bytes) => {
                let experts = trace.expert_bytes().and_then(|size| bytes.checked_div(size));
                experts.ok_or_else(|| TraceError::Setting {
                    what: "budget",
                    value: self.to_string(),
                    expected: "experts or per cent, for the trace does not say how large an \
                               expert is"
                        .to_owned(),
                })?
            }
        };
        Ok(usize::try_from(experts).unwrap_or(usize::MAX))
    }

    fn parse(text: &str) -> Option<Self> {
        if let Some(experts) = text.strip_suffix("/layer") {
            return Some(Self::PerLayer(experts.parse().ok()?));
        }
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.parse().ok()?;
            return (0.0..=100.0).contains(&percent).then_some(Self::Percent(percent));
        }
        let with_unit =
            UNITS.iter().find_map(|&(unit, scale)| Some((text.strip_suffix(unit)?, scale)));
        let Some((number, scale)) = with_unit else {
            return Some(Self::Experts(text.parse().ok()?));
        };
        if let Ok(whole) = number.parse::<u64>() {
            return Some(Self::Bytes(whole.checked_mul(scale)?));
        }
        let bytes = number.parse::<f64>().ok()? * scale as f64;
        (0.0..u64::MAX as f64).contains(&bytes).then_some(Self::Bytes(bytes as u64))
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Experts(experts) => write!(f, "{experts}"),
            Self::PerLayer(experts) => write!(f, "{experts}/layer"),
            Self::Bytes(bytes) => write!(f, "{bytes}B"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for Budget {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<Self, TraceError> {
        Self::parse(text).ok_or_else(|| TraceError::Setting {
            what: "budget",
            value: text.to_owned(),
            expected: "experts (128), experts for each layer (32/layer), per cent of the pool \
                       (25%) or bytes (8GB, 8GiB)"
                .to_owned(),
        })
    }
}

impl From<Budget> for String {
    fn from(budget: Budget) -> Self {
        budget.to_string()
    }
}

impl TryFrom<String> for Budget {
    type Error = TraceError;

    fn try_from(text: String) -> Result<Self, TraceError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ModelShape;

    #[test]
    fn budgets_come_down_to_experts() {
        let shape = ModelShape { moe_layers: vec![0, 1, 2], n_experts: 100, top_k: 4 };
        let trace = Accesses::from_keys(&shape, Some(1_000_000), []).unwrap();
        for (text, experts) in [
            ("128", 128),
            ("32/layer", 96),
            ("25%", 75),
            ("0.5%", 1),
            ("100%", 300),
            ("8MB", 8),
            ("8MiB", 8),
            ("1.5GB", 1500),
            ("1GiB", 1073),
            ("999999B", 0),
            ("0", 0),
        ] {
            let budget: Budget = text.parse().unwrap();
            assert_eq!(budget.experts(&trace).unwrap(), experts, "{text}");
            let again: Budget = budget.to_string().parse().unwrap();
            assert_eq!(again, budget);
        }
    }

    #[test]
    fn bytes_need_the_size_of_an_expert() {
        let shape = ModelShape { moe_layers: vec![0], n_experts: 100, top_k: 4 };
        for size in [None, Some(0)] {
            let trace = Accesses::from_keys(&shape, size, []).unwrap();
            assert_eq!(Budget::Bytes(10).experts(&trace).unwrap_err().kind(), "usage");
        }
    }

    #[test]
    fn wrong_text_is_refused() {
        for text in [
            "",
            "-1",
            "101%",
            "NaN%",
            "-1%",
            "8 GB",
            "8gb",
            "GB",
            "1e30TB",
            "NaNGB",
            "/layer",
            "99999999999TB",
            "inf%",
            "1.5",
        ] {
            assert_eq!(text.parse::<Budget>().unwrap_err().kind(), "usage", "{text:?}");
        }
    }
}
