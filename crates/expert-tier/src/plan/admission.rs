use super::forecast::ForecastRow;
use super::rates::Rates;
use crate::pool::ModelSizes;
use serde::Serialize;

/// Whether demand-read pages should stay in the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdmissionChoice {
    /// The whole pool fits: after the first use everything is warm.
    Fits,
    /// It does not fit, and what is reused saves more than keeping it costs.
    Recency,
    /// Unbuffered reads are faster: too little is reused.
    Unbuffered,
    /// A rate that decides is not known.
    Unknown,
}

/// A choice and the two times it rests on.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct AdmissionAdvice {
    /// The choice.
    pub choice: AdmissionChoice,
    /// Seconds of a token's experts with admission.
    pub admit_s: Option<f64>,
    /// Seconds of a token's experts when all are read past the page cache, each time.
    pub unbuffered_s: Option<f64>,
    /// What a filled byte costs through the page cache, over one read past it.
    pub fill_cost: f64,
}

impl AdmissionAdvice {
    /// For one size of memory. A miss through the page cache costs `fill_cost` times one past it
    /// (1.04 on an idle machine with 2 MiB folios; up to 1.5 with 4 KiB ones); a hit costs a read
    /// of memory, which an unbuffered read has on top as well, when its buffer is used.
    #[must_use]
    pub fn of(sizes: &ModelSizes, row: &ForecastRow, rates: &Rates, fill_cost: f64) -> Self {
        let token = sizes.token_bytes as f64;
        let known = rates.device_bytes_per_s.zip(rates.memory_bytes_per_s);
        let times = known.map(|(device, memory)| {
            let unbuffered = token / device + token / memory;
            let admit = token * row.miss_rate * fill_cost / device + token / memory;
            (admit, unbuffered)
        });
        let choice = match times {
            _ if row.runs && row.cache_bytes >= sizes.pool_bytes => AdmissionChoice::Fits,
            None => AdmissionChoice::Unknown,
            Some((admit, unbuffered)) if admit <= unbuffered => AdmissionChoice::Recency,
            Some(_) => AdmissionChoice::Unbuffered,
        };
        let (admit_s, unbuffered_s) = times.unzip();
        Self { choice, admit_s, unbuffered_s, fill_cost }
    }
}

#[cfg(test)]
mod tests {
    use super::super::MissCurve;
    use super::super::forecast::{Forecast, tests::production};
    use super::*;

    fn choice(share: f64, fill_cost: f64, rates: Rates) -> AdmissionChoice {
        let (sizes, curve) = (production(), MissCurve::uniform());
        let forecast = Forecast {
            sizes: &sizes,
            curve: &curve,
            rates,
            kv_bytes: 0,
            spine_in_hbm: true,
            reserve_bytes: 0,
        };
        let row = forecast.row((sizes.pool_bytes as f64 * share) as u64);
        AdmissionAdvice::of(&sizes, &row, &rates, fill_cost).choice
    }

    #[test]
    fn what_fits_what_is_reused_and_what_is_not() {
        let rates = Rates {
            device_bytes_per_s: Some(3e9),
            memory_bytes_per_s: Some(20e9),
            ..Rates::default()
        };
        assert_eq!(choice(1.0, 1.04, rates), AdmissionChoice::Fits);
        assert_eq!(choice(1.0, 1.04, Rates::default()), AdmissionChoice::Fits);
        assert_eq!(choice(0.5, 1.04, rates), AdmissionChoice::Recency);
        assert_eq!(choice(0.5, 1.04, Rates::default()), AdmissionChoice::Unknown);
        // With 2 % of the pool a fill that costs 4 % more does not pay; at 5 % it does.
        assert_eq!(choice(0.02, 1.04, rates), AdmissionChoice::Unbuffered);
        assert_eq!(choice(0.05, 1.04, rates), AdmissionChoice::Recency);
        assert_eq!(choice(0.25, 1.45, rates), AdmissionChoice::Unbuffered);
    }
}
