use crate::error::TraceError;
use serde::{Deserialize, Serialize};

/// The widest reuse window in tokens.
pub const MAX_WINDOW_TOKENS: u32 = 1 << 16;
/// The most entries of each list in [`LocalityOptions`].
pub const MAX_LIST: usize = 64;
/// The most points of a growth curve.
pub const MAX_CURVE_POINTS: usize = 4096;

/// What to measure. Printed with every result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct LocalityOptions {
    /// Reuse windows in tokens. The paper's are 1, 8 and 64; the others draw the curve.
    pub windows: Vec<u32>,
    /// Sizes of the busiest set whose share is taken, in experts a layer. The paper's is 8.
    pub top: Vec<u16>,
    /// Sizes of the busiest sets that are compared between traces, in experts a layer.
    pub jaccard_top: Vec<u16>,
    /// Points of each growth curve.
    pub curve_points: usize,
}

impl Default for LocalityOptions {
    fn default() -> Self {
        Self {
            windows: vec![1, 2, 4, 8, 16, 32, 64, 128, 256],
            top: vec![1, 8, 16, 32],
            jaccard_top: vec![8, 16, 32],
            curve_points: 33,
        }
    }
}

impl LocalityOptions {
    /// The options with every list sorted and free of repetition.
    ///
    /// # Errors
    ///
    /// [`TraceError::SettingRange`] names the list that is empty or too long, or the entry that
    /// is outside its range.
    pub fn checked(mut self) -> Result<Self, TraceError> {
        let range = |name, value: u64, min, max| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(TraceError::SettingRange { name, value, min, max })
            }
        };
        for &window in &self.windows {
            range("windows (tokens)", window.into(), 1, MAX_WINDOW_TOKENS.into())?;
        }
        for (name, list) in [("top", &mut self.top), ("jaccard_top", &mut self.jaccard_top)] {
            for &experts in list.iter() {
                range(name, experts.into(), 1, u16::MAX.into())?;
            }
            range(name, list.len() as u64, 1, MAX_LIST as u64)?;
            list.sort_unstable();
            list.dedup();
        }
        range("windows (count)", self.windows.len() as u64, 1, MAX_LIST as u64)?;
        self.windows.sort_unstable();
        self.windows.dedup();
        range("curve_points", self.curve_points as u64, 2, MAX_CURVE_POINTS as u64)?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_and_bounded() {
        let options = LocalityOptions { windows: vec![8, 1, 8], ..LocalityOptions::default() };
        assert_eq!(options.checked().unwrap().windows, [1, 8]);
        for bad in [vec![], vec![0], vec![MAX_WINDOW_TOKENS + 1], vec![1; MAX_LIST + 1]] {
            let options = LocalityOptions { windows: bad, ..LocalityOptions::default() };
            assert!(matches!(options.checked(), Err(TraceError::SettingRange { .. })));
        }
        let options = LocalityOptions { curve_points: 1, ..LocalityOptions::default() };
        let text = options.checked().unwrap_err().to_string();
        assert_eq!(text, "setting `curve_points` is 1, must be 2 to 4096");
    }
}
