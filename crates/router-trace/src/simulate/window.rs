use crate::error::TraceError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Which iterations warm the policies, and which of those that follow are scored.
///
/// Text form `60/40`: the first 60 per cent warm, the next 40 are scored. `0/100` scores
/// everything from cold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Window {
    warm_percent: u8,
    scored_percent: u8,
}

impl Default for Window {
    /// 60/40.
    fn default() -> Self {
        Self { warm_percent: 60, scored_percent: 40 }
    }
}

impl Window {
    /// Everything is scored from cold.
    pub const COLD: Self = Self { warm_percent: 0, scored_percent: 100 };

    /// `None` if nothing is scored or both together are more than everything.
    #[must_use]
    pub fn new(warm_percent: u8, scored_percent: u8) -> Option<Self> {
        let valid =
            scored_percent > 0 && u16::from(warm_percent) + u16::from(scored_percent) <= 100;
        valid.then_some(Self { warm_percent, scored_percent })
    }

    /// The warm and the scored iterations among `n_iterations`; bounds are rounded down.
    #[must_use]
    pub fn split(self, n_iterations: usize) -> (Range<usize>, Range<usize>) {
        let bound = |percent: u8| {
            // The quotient is at most `n_iterations`.
            (n_iterations as u128 * u128::from(percent) / 100) as usize
        };
        let warm = bound(self.warm_percent);
        (0..warm, warm..bound(self.warm_percent + self.scored_percent))
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.warm_percent, self.scored_percent)
    }
}

impl FromStr for Window {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<Self, TraceError> {
        let parse = || {
            let (warm, scored) = text.split_once('/')?;
            Self::new(warm.parse().ok()?, scored.parse().ok()?)
        };
        parse().ok_or_else(|| TraceError::Setting {
            what: "window",
            value: text.to_owned(),
            expected: "WARM/SCORED in per cent of the iterations, such as 60/40 or 0/100, \
                       together at most 100"
                .to_owned(),
        })
    }
}

impl From<Window> for String {
    fn from(window: Window) -> Self {
        window.to_string()
    }
}

impl TryFrom<String> for Window {
    type Error = TraceError;

    fn try_from(text: String) -> Result<Self, TraceError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_split_iterations() {
        assert_eq!(Window::default().split(299), (0..179, 179..299));
        assert_eq!(Window::COLD.split(300), (0..0, 0..300));
        assert_eq!("50/25".parse::<Window>().unwrap().split(10), (0..5, 5..7));
        assert_eq!(Window::default().split(0), (0..0, 0..0));
    }

    #[test]
    fn wrong_text_is_refused() {
        for text in ["", "60", "60/41", "100/0", "60/", "/40", "a/b", "-1/40", "256/1", "60/40/0"] {
            assert_eq!(text.parse::<Window>().unwrap_err().kind(), "usage", "{text:?}");
        }
        let window: Window = serde_json::from_str("\"50/25\"").unwrap();
        assert_eq!(serde_json::to_string(&window).unwrap(), "\"50/25\"");
    }
}
