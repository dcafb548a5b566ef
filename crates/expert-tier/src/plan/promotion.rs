use super::curve::MissCurve;
use crate::breakeven::PromotionRates;
use crate::pool::ModelSizes;
use serde::Serialize;

/// What accelerator memory for experts would buy, by the breakeven of promotion.
///
/// The memory is taken as a cache of recency: every expert that is not there is promoted, so the
/// same curve that tells misses of a file cache tells how often a promotion is used again.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct PromotionAdvice {
    /// Bytes of accelerator memory for experts.
    pub hbm_bytes: u64,
    /// Uses after which a promotion has repaid itself; `None` where none does.
    pub breakeven_uses: Option<f64>,
    /// Share of a token's experts found there.
    pub hit_rate: f64,
    /// Uses that a promotion sees before it is evicted; `None` where it is never evicted.
    pub uses_per_promotion: Option<f64>,
    /// Whether that is more than the breakeven.
    pub pays: bool,
    /// Seconds of a token saved against reading every expert from the host in place, transfers
    /// paid for; below zero where promotion costs more than it saves.
    pub saved_s: f64,
}

impl PromotionAdvice {
    /// For `hbm_bytes` of accelerator memory beside what spine and key-value cache take.
    #[must_use]
    pub fn of(
        sizes: &ModelSizes,
        curve: &MissCurve,
        rates: &PromotionRates,
        hbm_bytes: u64,
    ) -> Self {
        let miss_rate = curve.miss_rate(hbm_bytes, sizes.pool_bytes).clamp(0.0, 1.0);
        let hit_rate = 1.0 - miss_rate;
        let uses = PromotionRates::uses_per_promotion(hit_rate);
        let breakeven_uses = rates.breakeven_uses();
        let token = sizes.token_bytes as f64;
        let transfers = token * miss_rate / rates.stream_bytes_per_s;
        Self {
            hbm_bytes,
            breakeven_uses,
            hit_rate,
            uses_per_promotion: uses.is_finite().then_some(uses),
            pays: breakeven_uses.is_some_and(|least| uses > least),
            saved_s: token * hit_rate * rates.saved_s_per_byte() - transfers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::forecast::tests::production;
    use super::*;

    #[test]
    fn promotion_pays_from_the_breakeven_on() {
        let (sizes, curve) = (production(), MissCurve::uniform());
        let of = |share: f64| {
            let hbm = (sizes.pool_bytes as f64 * share) as u64;
            PromotionAdvice::of(&sizes, &curve, &PromotionRates::GH200, hbm)
        };
        // h / (1 - h) = 1.0635… at h = 0.5154: just below it nothing is saved, just above it is.
        let least = PromotionRates::GH200.breakeven_uses().unwrap();
        let border = least / (1.0 + least);
        for (share, pays) in [(0.05, false), (border - 0.01, false), (border + 0.01, true)] {
            let advice = of(share);
            assert_eq!((advice.pays, advice.saved_s > 0.0), (pays, pays), "{advice:?}");
        }
        assert!(of(border).saved_s.abs() < 1e-6);
        let all = of(1.0);
        assert!(all.pays && all.uses_per_promotion.is_none());
        // Everything in HBM: 29.2 GB at the difference of 327 and 2938 GB/s.
        let saved = 29.18e9 * (1.0 / 327e9 - 1.0 / 2938e9);
        assert!((all.saved_s / saved - 1.0).abs() < 1e-3, "{}", all.saved_s);
    }

    #[test]
    fn memory_that_is_no_faster_buys_nothing() {
        let (sizes, curve) = (production(), MissCurve::uniform());
        let rates = PromotionRates { hbm_bytes_per_s: 300e9, ..PromotionRates::GH200 };
        let advice = PromotionAdvice::of(&sizes, &curve, &rates, sizes.pool_bytes);
        assert!(!advice.pays && advice.breakeven_uses.is_none() && advice.saved_s < 0.0);
    }
}
