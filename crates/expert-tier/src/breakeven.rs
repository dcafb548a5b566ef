//! When a copy of an expert to accelerator memory has repaid itself: pure arithmetic of rates.
//!
//! Source: "Who Should Own the Expert Cache?", section 8, rule 2, in the spirit of the five-minute
//! rule (Gray and Putzolu, 1987). All rates are bytes a second.

use serde::Serialize;

/// The three rates that decide about promotion, in bytes a second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct PromotionRates {
    /// Overlapped copy from host memory to accelerator memory, compute included.
    pub stream_bytes_per_s: f64,
    /// The accelerator reading host memory in place.
    pub host_bytes_per_s: f64,
    /// The accelerator reading its own memory.
    pub hbm_bytes_per_s: f64,
}

impl PromotionRates {
    /// As measured on a GH200 node (the paper, section 2): 346, 327 and 2938 GB/s.
    pub const GH200: Self =
        Self { stream_bytes_per_s: 346e9, host_bytes_per_s: 327e9, hbm_bytes_per_s: 2938e9 };

    /// Rates that can be computed with: each above zero and finite.
    ///
    /// # Errors
    /// The name and the value of the first one that is not.
    pub fn check(&self) -> Result<(), RateFault> {
        let rates = [
            ("stream rate", self.stream_bytes_per_s),
            ("host rate", self.host_bytes_per_s),
            ("HBM rate", self.hbm_bytes_per_s),
        ];
        match rates.into_iter().find(|(_, rate)| !(rate.is_finite() && *rate > 0.0)) {
            Some((what, value)) => Err(RateFault { what, value }),
            None => Ok(()),
        }
    }

    /// Seconds a byte that one use from accelerator memory saves; not above zero where that
    /// memory is no faster than the host's.
    #[must_use]
    pub fn saved_s_per_byte(&self) -> f64 {
        1.0 / self.host_bytes_per_s - 1.0 / self.hbm_bytes_per_s
    }

    /// `r* = (1/stream) / (1/host − 1/hbm)`: the uses after which a promotion has repaid its
    /// transfer, whatever the size of the expert. `None` where no number of uses does.
    ///
    /// ```
    /// use expert_tier::breakeven::PromotionRates;
    ///
    /// let uses = PromotionRates::GH200.breakeven_uses().unwrap();
    /// assert_eq!(format!("{uses:.2}"), "1.06");
    /// ```
    #[must_use]
    pub fn breakeven_uses(&self) -> Option<f64> {
        let saved = self.saved_s_per_byte();
        (saved > 0.0).then(|| 1.0 / self.stream_bytes_per_s / saved)
    }

    /// Seconds that promoting `bytes` and using them `uses` times from accelerator memory saves
    /// against reading them from the host each time; below zero before the breakeven.
    #[must_use]
    pub fn saved_s(&self, bytes: u64, uses: f64) -> f64 {
        bytes as f64 * (uses * self.saved_s_per_byte() - 1.0 / self.stream_bytes_per_s)
    }

    /// Uses that one promotion sees in a cache that promotes every miss and hits `hit_rate` of
    /// its accesses: `h / (1 − h)`; infinite where all hit.
    #[must_use]
    pub fn uses_per_promotion(hit_rate: f64) -> f64 {
        let hit_rate = hit_rate.clamp(0.0, 1.0);
        hit_rate / (1.0 - hit_rate)
    }
}

/// A rate that cannot be computed with.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[error("the {what} is {value} bytes a second, must be above 0")]
pub struct RateFault {
    /// Which rate.
    pub what: &'static str,
    /// Its value in bytes a second.
    pub value: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_numbers() {
        let gh200 = PromotionRates::GH200;
        let exact = (1.0 / 346.0) / (1.0 / 327.0 - 1.0 / 2938.0);
        let uses = gh200.breakeven_uses().unwrap();
        assert!((uses - exact).abs() < 1e-9, "{uses}");
        assert_eq!(format!("{uses:.2}"), "1.06");
        // One expert of the trillion-parameter model: 17,547,264 bytes.
        let bytes = 17_547_264;
        let saved_a_use = bytes as f64 * gh200.saved_s_per_byte();
        assert!((saved_a_use * 1e6 - 47.69).abs() < 0.01, "{saved_a_use}");
        assert!(gh200.saved_s(bytes, uses).abs() < 1e-12, "nothing is won at the breakeven");
        assert!(gh200.saved_s(bytes, 1.0) < 0.0 && gh200.saved_s(bytes, 2.0) > 0.0);
    }

    #[test]
    fn memory_that_is_no_faster_never_repays() {
        for hbm in [327e9, 100e9] {
            let rates = PromotionRates { hbm_bytes_per_s: hbm, ..PromotionRates::GH200 };
            assert_eq!(rates.breakeven_uses(), None);
            assert!(rates.saved_s(1 << 20, 1e6) < 0.0);
        }
        // Discrete PCIe, unregistered host memory: 23 GB/s by either way.
        let pcie = PromotionRates {
            stream_bytes_per_s: 23e9,
            host_bytes_per_s: 23e9,
            ..PromotionRates::GH200
        };
        let uses = pcie.breakeven_uses().unwrap();
        assert!((uses - 2938.0 / (2938.0 - 23.0)).abs() < 1e-12, "{uses}");
    }

    #[test]
    fn rates_that_are_none_are_named() {
        for (rates, what) in [
            (PromotionRates { stream_bytes_per_s: 0.0, ..PromotionRates::GH200 }, "stream"),
            (PromotionRates { host_bytes_per_s: f64::NAN, ..PromotionRates::GH200 }, "host"),
            (PromotionRates { hbm_bytes_per_s: -1.0, ..PromotionRates::GH200 }, "HBM"),
        ] {
            let fault = rates.check().unwrap_err();
            assert!(fault.to_string().contains(what), "{fault}");
        }
        assert_eq!(PromotionRates::GH200.check(), Ok(()));
    }

    #[test]
    fn reuse_of_a_promotion_follows_from_the_hit_rate() {
        assert_eq!(PromotionRates::uses_per_promotion(0.5), 1.0);
        assert_eq!(PromotionRates::uses_per_promotion(0.75), 3.0);
        assert_eq!(PromotionRates::uses_per_promotion(0.0), 0.0);
        assert_eq!(PromotionRates::uses_per_promotion(1.0), f64::INFINITY);
    }
}
