use super::{
    AdaptiveCache, Admission, Belady, Cast, DEFAULT_LE, DEFAULT_W_PERMILLE, Ghosts, Key, Lfu, Lrfu,
    Lru, Never, Policy, S3Fifo, StaticSet, TwoList,
};
use crate::error::TraceError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How long an LRFU score takes to halve.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HalfLife {
    /// In accesses, whatever the capacity: then LRFU is a stack algorithm.
    Accesses(u32),
    /// In accesses, as a multiple of the capacity.
    Capacities(u32),
}

/// The policies, by name.
///
/// Text form, also in JSON: the names of [`PolicyKind::ALL`]; `lrfu:5000` halves scores in
/// 5,000 accesses, `lrfu:8c` in 8 capacities; `cast:7` has decay 7 and `cast:7/250` also 250
/// permille for newcomers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum PolicyKind {
    /// [`Never`]: keeps nothing.
    Never,
    /// [`StaticSet`] trained on the warm window.
    Static,
    /// [`StaticSet`] trained on the scored accesses themselves.
    OracleStatic,
    /// [`Lru`].
    Lru,
    /// [`TwoList`].
    TwoList,
    /// [`Lfu`] that forgets what it evicts.
    Lfu,
    /// [`Lfu`] with ghost counts.
    GhostLfu,
    /// [`Lrfu`].
    Lrfu {
        /// How long a score takes to halve.
        half_life: HalfLife,
    },
    /// [`AdaptiveCache`].
    Arc,
    /// [`S3Fifo`].
    S3Fifo,
    /// [`Cast`].
    Cast {
        /// The decay, 1 to 14.
        le: u8,
        /// The newcomers' share in permille of the capacity, 0 to 1000.
        w_permille: u16,
    },
    /// [`Belady`] that always admits.
    Belady,
    /// [`Belady`] that may pass a newcomer by.
    BeladyBypass,
}

/// What policies that know more than the past are told.
#[derive(Clone, Copy, Debug)]
pub struct Hindsight<'t> {
    /// Uses of each key in the warm window.
    pub warm_uses: &'t [u32],
    /// Uses of each key in the scored window.
    pub scored_uses: &'t [u32],
    /// All accesses to come, warm ones first.
    pub accesses: &'t [Key],
}

impl PolicyKind {
    /// Every policy with its usual parameters, control arms first and bounds last.
    pub const ALL: [Self; 13] = [
        Self::Never,
        Self::Static,
        Self::OracleStatic,
        Self::Lru,
        Self::TwoList,
        Self::Lfu,
        Self::GhostLfu,
        Self::Lrfu { half_life: HalfLife::Capacities(4) },
        Self::Arc,
        Self::S3Fifo,
        Self::Cast { le: DEFAULT_LE, w_permille: DEFAULT_W_PERMILLE },
        Self::Belady,
        Self::BeladyBypass,
    ];

    /// The name without parameters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Static => "static",
            Self::OracleStatic => "oracle-static",
            Self::Lru => "lru",
            Self::TwoList => "two-list",
            Self::Lfu => "lfu",
            Self::GhostLfu => "ghost-lfu",
            Self::Lrfu { .. } => "lrfu",
            Self::Arc => "arc",
            Self::S3Fifo => "s3-fifo",
            Self::Cast { .. } => "cast",
            Self::Belady => "belady",
            Self::BeladyBypass => "belady-bypass",
        }
    }

    /// Whether the policy uses only what it has seen, so that a live tier could run it.
    #[must_use]
    pub fn is_online(self) -> bool {
        !matches!(self, Self::Static | Self::OracleStatic | Self::Belady | Self::BeladyBypass)
    }

    /// The policy over the keys `0..n_keys` for a live tier; `None` if it needs hindsight.
    ///
    /// # Panics
    ///
    /// If `n_keys` is above [`MAX_KEYS`](super::MAX_KEYS).
    #[must_use]
    pub fn build_online(self, capacity: usize, n_keys: usize) -> Option<Box<dyn Policy + Send>> {
        let nothing = Hindsight { warm_uses: &[], scored_uses: &[], accesses: &[] };
        self.is_online().then(|| self.build(capacity, n_keys, &nothing))
    }

    /// The policy over the keys `0..n_keys`, with what it may know beforehand.
    ///
    /// # Panics
    ///
    /// If `n_keys` is above [`MAX_KEYS`](super::MAX_KEYS).
    #[must_use]
    pub fn build<'t>(
        self,
        capacity: usize,
        n_keys: usize,
        hindsight: &Hindsight<'t>,
    ) -> Box<dyn Policy + Send + 't> {
        let belady = |admission| Belady::new(capacity, n_keys, hindsight.accesses, admission);
        match self {
            Self::Never => Box::new(Never::new(capacity)),
            Self::Static => Box::new(StaticSet::trained(capacity, hindsight.warm_uses)),
            Self::OracleStatic => Box::new(StaticSet::oracle(capacity, hindsight.scored_uses)),
            Self::Lru => Box::new(Lru::new(capacity, n_keys)),
            Self::TwoList => Box::new(TwoList::new(capacity, n_keys)),
            Self::Lfu => Box::new(Lfu::new(capacity, n_keys, Ghosts::Forgotten)),
            Self::GhostLfu => Box::new(Lfu::new(capacity, n_keys, Ghosts::Kept)),
            Self::Lrfu { half_life } => {
                Box::new(Lrfu::new(capacity, n_keys, half_life.accesses(capacity)))
            }
            Self::Arc => Box::new(AdaptiveCache::new(capacity, n_keys)),
            Self::S3Fifo => Box::new(S3Fifo::new(capacity, n_keys)),
            Self::Cast { le, w_permille } => Box::new(Cast::new(capacity, n_keys, le, w_permille)),
            Self::Belady => Box::new(belady(Admission::Always)),
            Self::BeladyBypass => Box::new(belady(Admission::Optional)),
        }
    }

    fn from_parts(name: &str, parameters: Option<&str>) -> Option<Self> {
        let usual = Self::ALL.into_iter().find(|kind| kind.name() == name)?;
        let Some(text) = parameters else { return Some(usual) };
        match usual {
            Self::Lrfu { .. } => {
                let half_life = match text.strip_suffix('c') {
                    Some(count) => HalfLife::Capacities(count.parse().ok()?),
                    None => HalfLife::Accesses(text.parse().ok()?),
                };
                let (HalfLife::Accesses(n) | HalfLife::Capacities(n)) = half_life;
                (n > 0).then_some(Self::Lrfu { half_life })
            }
            Self::Cast { w_permille, .. } => {
                let (le, share) = match text.split_once('/') {
                    Some((le, share)) => (le, share.parse().ok()?),
                    None => (text, w_permille),
                };
                let le = le.parse().ok()?;
                let valid = (1..=14).contains(&le) && share <= 1000;
                valid.then_some(Self::Cast { le, w_permille: share })
            }
            _ => None,
        }
    }
}

impl HalfLife {
    fn accesses(self, capacity: usize) -> f64 {
        match self {
            Self::Accesses(accesses) => f64::from(accesses),
            Self::Capacities(times) => f64::from(times) * capacity.max(1) as f64,
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match *self {
            Self::Lrfu { half_life: HalfLife::Accesses(n) } => write!(f, ":{n}"),
            Self::Lrfu { half_life: HalfLife::Capacities(n) } => write!(f, ":{n}c"),
            Self::Cast { le, w_permille: DEFAULT_W_PERMILLE } => write!(f, ":{le}"),
            Self::Cast { le, w_permille } => write!(f, ":{le}/{w_permille}"),
            _ => Ok(()),
        }
    }
}

impl FromStr for PolicyKind {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<Self, TraceError> {
        let (name, parameters) = match text.split_once(':') {
            Some((name, parameters)) => (name, Some(parameters)),
            None => (text, None),
        };
        Self::from_parts(name, parameters).ok_or_else(|| TraceError::Setting {
            what: "policy",
            value: text.to_owned(),
            expected: format!(
                "one of {}; lrfu:N and lrfu:Nc (half-life in accesses or capacities), \
                 cast:LE and cast:LE/W (decay 1 to 14, newcomers' permille)",
                Self::ALL.map(Self::name).join(", "),
            ),
        })
    }
}

impl From<PolicyKind> for String {
    fn from(kind: PolicyKind) -> Self {
        kind.to_string()
    }
}

impl TryFrom<String> for PolicyKind {
    type Error = TraceError;

    fn try_from(text: String) -> Result<Self, TraceError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse::<PolicyKind>().unwrap(), kind);
            assert_eq!(kind.name().parse::<PolicyKind>().unwrap(), kind);
        }
        for text in ["lrfu:5000", "lrfu:3c", "cast:7", "cast:7/250"] {
            let kind: PolicyKind = text.parse().unwrap();
            assert_eq!(kind.to_string(), text);
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(serde_json::from_str::<PolicyKind>(&json).unwrap(), kind);
        }
    }

    #[test]
    fn wrong_text_is_refused_with_the_choices() {
        let wrong = [
            "",
            "LRU",
            "lru:3",
            "lrfu:",
            "lrfu:0",
            "lrfu:0c",
            "lrfu:-1",
            "lrfu:c",
            "cast:0",
            "cast:15",
            "cast:9/1001",
            "cast:9/",
            "cast:/9",
            "belady:",
            "lru ",
        ];
        for text in wrong {
            let error = text.parse::<PolicyKind>().unwrap_err();
            assert_eq!(error.kind(), "usage", "{text:?}");
            assert!(error.to_string().contains("two-list"), "{error}");
        }
    }
}
