use serde::{Deserialize, Serialize};

/// The share of a layer's selections that its busiest experts took.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct TopShare {
    /// Size of the busiest set, in experts.
    pub top: u16,
    /// Their share of all selections of the layer, 0 to 1.
    pub share: f64,
    /// What a router without preference would give them: `top` / experts, at most 1.
    pub uniform: f64,
}

impl TopShare {
    /// The share of the `top` first of `counts`, in selections, descending, of a layer of
    /// `n_experts`. `None` without selections.
    #[must_use]
    pub fn new(counts: &[u64], n_experts: u16, top: u16) -> Option<Self> {
        let total: u64 = counts.iter().sum();
        let first: u64 = counts.iter().take(top.into()).sum();
        (total > 0).then(|| Self {
            top,
            share: first as f64 / total as f64,
            uniform: (f64::from(top) / f64::from(n_experts)).min(1.0),
        })
    }
}

/// How many equally busy experts would be as mixed as these: the exponential of the
/// Shannon entropy (in nats) of the shares. `None` without selections.
#[must_use]
pub fn effective_experts(counts: &[u64]) -> Option<f64> {
    let total = counts.iter().sum::<u64>() as f64;
    let used = counts.iter().filter(|&&count| count > 0);
    let share = used.map(|&count| count as f64 / total);
    (total > 0.0).then(|| share.map(|p| -p * p.ln()).sum::<f64>().exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_by_hand() {
        let counts = [6, 3, 1, 0];
        let top = |n| TopShare::new(&counts, 4, n).unwrap();
        assert_eq!((top(1).share, top(2).share, top(2).uniform), (0.6, 0.9, 0.5));
        assert_eq!((top(9).share, top(9).uniform), (1.0, 1.0));
        assert_eq!(TopShare::new(&[0, 0], 2, 1), None);
    }

    #[test]
    fn entropy_counts_experts() {
        assert!((effective_experts(&[5, 5, 5, 5, 0]).unwrap() - 4.0).abs() < 1e-12);
        assert!((effective_experts(&[7]).unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(effective_experts(&[]), None);
    }
}
