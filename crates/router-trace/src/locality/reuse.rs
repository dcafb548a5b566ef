use super::chance::none_drawn;
use serde::{Deserialize, Serialize};

/// Reuse within a window of tokens, measured and as popularity alone would give it.
///
/// The paper's W_n is "the fraction of selections repeated within the previous n tokens"
/// (section 3, table 1): a selection at token t counts if the same layer chose that expert
/// at one of the tokens t-n to t-1. Tokens with fewer than n before them are not scored,
/// so a short trace is not held against a wide window.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reuse {
    /// Width of the window in tokens.
    pub window_tokens: u32,
    /// Selections that had a whole window before them.
    pub scored: u64,
    /// Those that repeated an expert of their window.
    pub reused: u64,
    /// `reused` / `scored`.
    pub measured: f64,
    /// The exact mean of `measured` over all orders of the same tokens.
    pub shuffled: f64,
}

impl Reuse {
    /// What recency adds to popularity: `measured` - `shuffled`, as a fraction of 1.
    #[must_use]
    pub fn recency(&self) -> f64 {
        self.measured - self.shuffled
    }

    /// `None` if no token had a whole window before it.
    pub(super) fn new(window_tokens: u32, scored: u64, reused: u64, shuffled: f64) -> Option<Self> {
        let measured = reused as f64 / scored as f64;
        (scored > 0).then_some(Self { window_tokens, scored, reused, measured, shuffled })
    }
}

/// The reuse windows, with a table that finds in one step those a distance falls into.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    tokens: Vec<u32>,
    /// For each distance in tokens up to the widest window, the narrowest window that
    /// reaches it.
    first: Vec<u8>,
}

impl Windows {
    /// `tokens` ascend; see [`LocalityOptions`](super::LocalityOptions).
    pub(super) fn new(tokens: &[u32]) -> Self {
        let widest = tokens.last().copied().unwrap_or(0);
        let first = (0..=widest)
            .map(|distance| tokens.partition_point(|&window| window < distance) as u8)
            .collect();
        Self { tokens: tokens.to_vec(), first }
    }

    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many windows, narrowest first, are whole with `past` tokens before.
    pub(super) fn whole(&self, past: u64) -> usize {
        if past >= self.first.len() as u64 {
            return self.tokens.len();
        }
        self.tokens.partition_point(|&window| u64::from(window) <= past)
    }

    /// The narrowest window that reaches back `distance` tokens.
    pub(super) fn reaching(&self, distance: u64) -> Option<usize> {
        let at = usize::try_from(distance).ok()?;
        self.first.get(at).map(|&first| usize::from(first))
    }
}

/// The expected reuse over all orders of a layer's tokens.
///
/// `counts` are the tokens that chose each expert, of `tokens` in all. A token that chose
/// an expert of count c has tokens - 1 others around it, c - 1 of which chose it too; in a
/// random order the window before it is a random draw of those others. So the chance of
/// *no* reuse is hypergeometric, and the mean over selections weighs it by c.
pub(super) fn shuffled(counts: &[u64], tokens: u64, window: u32) -> f64 {
    let mut expected = 0.0;
    let mut selections = 0;
    // Descending counts repeat: one evaluation a distinct count.
    for same in counts.chunk_by(|a, b| a == b) {
        let count = same[0];
        if count == 0 {
            continue;
        }
        let mass = count * same.len() as u64;
        let missed = none_drawn(tokens - 1, count - 1, window.into());
        expected += mass as f64 * (1.0 - missed);
        selections += mass;
    }
    expected / selections as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_by_distance() {
        let windows = Windows::new(&[1, 8, 64]);
        let reach = |d| windows.reaching(d);
        assert_eq!([reach(1), reach(2), reach(8), reach(9)], [Some(0), Some(1), Some(1), Some(2)]);
        assert_eq!((reach(64), reach(65), reach(u64::MAX)), (Some(2), None, None));
        let whole = |past| windows.whole(past);
        assert_eq!([whole(0), whole(1), whole(7), whole(8)], [0, 1, 1, 2]);
        assert_eq!((whole(63), whole(64), whole(u64::MAX)), (2, 3, 3));
    }

    #[test]
    fn shuffled_by_hand() {
        // Tokens a a b in all orders, window 1: aab reuses 1 of 2 scored, aba 0, baa 1.
        // Mean of the fractions: (1/2 + 0 + 1/2) / 3 = 1/3.
        assert!((shuffled(&[2, 1], 3, 1) - 1.0 / 3.0).abs() < 1e-15);
        // An expert that every token chose is always reused.
        assert!((shuffled(&[5], 5, 2) - 1.0).abs() < 1e-15);
    }
}
