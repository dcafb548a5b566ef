use super::curve::MissCurve;
use super::rates::Rates;
use crate::pool::ModelSizes;
use serde::Serialize;

/// What a model will need and how fast it can be, by the memory of the machine.
///
/// The time is that of bytes alone: misses at the device's rate, then everything a token uses at
/// the memory's, one after the other. Compute that costs more than reading its operands, and
/// waiting that compute hides, are not in it.
#[derive(Clone, Debug)]
pub struct Forecast<'a> {
    /// The model.
    pub sizes: &'a ModelSizes,
    /// What is missing at which size.
    pub curve: &'a MissCurve,
    /// How fast bytes come.
    pub rates: Rates,
    /// Bytes of the key-value cache.
    pub kv_bytes: u64,
    /// Whether the spine and the key-value cache lie in accelerator memory.
    pub spine_in_hbm: bool,
    /// Memory that the system and the program need beside spine, cache and experts.
    pub reserve_bytes: u64,
}

/// One size of memory.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct ForecastRow {
    /// Memory of the machine.
    pub dram_bytes: u64,
    /// What of it is left for experts; 0 where the model's fixed part does not fit.
    pub cache_bytes: u64,
    /// Whether spine, key-value cache and reserve fit at all.
    pub runs: bool,
    /// Share of the pool that fits.
    pub pool_share: f64,
    /// Share of a token's expert bytes that is missing.
    pub miss_rate: f64,
    /// Bytes that a token reads from the device.
    pub miss_bytes: u64,
    /// Seconds a token spends on the device; `None` without a device rate.
    pub device_s: Option<f64>,
    /// Seconds a token spends reading memory; `None` without a memory rate.
    pub memory_s: Option<f64>,
    /// Both; `None` where either is unknown.
    pub token_s: Option<f64>,
}

impl Forecast<'_> {
    /// Memory that is there whatever the experts need.
    #[must_use]
    pub fn fixed_bytes(&self) -> u64 {
        let model = if self.spine_in_hbm {
            0
        } else {
            self.sizes.spine_bytes.saturating_add(self.kv_bytes)
        };
        model.saturating_add(self.reserve_bytes)
    }

    /// What `dram_bytes` of memory give.
    #[must_use]
    pub fn row(&self, dram_bytes: u64) -> ForecastRow {
        let fixed = self.fixed_bytes();
        let cache_bytes = dram_bytes.saturating_sub(fixed);
        let pool = self.sizes.pool_bytes;
        let miss_rate = self.curve.miss_rate(cache_bytes, pool);
        let miss_bytes = self.sizes.token_bytes as f64 * miss_rate;
        let device_s = self.rates.device_bytes_per_s.map(|rate| miss_bytes / rate);
        let memory_s = self.memory_s();
        ForecastRow {
            dram_bytes,
            cache_bytes,
            runs: dram_bytes >= fixed,
            pool_share: (cache_bytes as f64 / pool.max(1) as f64).min(1.0),
            miss_rate,
            miss_bytes: miss_bytes.round() as u64,
            device_s,
            memory_s,
            token_s: device_s.zip(memory_s).map(|(device, memory)| device + memory),
        }
    }

    /// Seconds that reading what a token uses takes: its experts, and the spine from where it is.
    fn memory_s(&self) -> Option<f64> {
        let experts = self.sizes.token_bytes as f64 / self.rates.memory_bytes_per_s?;
        let spine_rate = if self.spine_in_hbm {
            // Unknown, or so fast that it does not matter.
            self.rates.hbm_bytes_per_s
        } else {
            self.rates.memory_bytes_per_s
        };
        let spine = spine_rate.map_or(0.0, |rate| self.sizes.spine_token_bytes as f64 / rate);
        Some(experts + spine)
    }

    /// The least memory with which a token takes at most `target_s` seconds: whole bytes, found by
    /// bisection, since more memory never makes a token slower. `None` where no memory does, or
    /// a rate is unknown.
    #[must_use]
    pub fn smallest_dram(&self, target_s: f64) -> Option<ForecastRow> {
        let fixed = self.fixed_bytes();
        let holds = |dram| self.row(dram).token_s.is_some_and(|seconds| seconds <= target_s);
        let (mut low, mut high) = (fixed, fixed.saturating_add(self.sizes.pool_bytes));
        if !holds(high) {
            return None;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if holds(middle) { high = middle } else { low = middle + 1 }
        }
        Some(self.row(high))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::CurvePoint;
    use super::*;
    use crate::pool::SizeSource;
    use router_trace::ModelShape;

    const GB: u64 = 1_000_000_000;

    /// The paper's production model; an iteration is 1663 expert reads, 29.2 GB.
    pub(crate) fn production() -> ModelSizes {
        ModelSizes {
            source: SizeSource::Headers,
            model_type: "kimi_k3".to_owned(),
            shape: ModelShape { moe_layers: (1..93).collect(), n_experts: 896, top_k: 16 },
            expert_bytes: 17_547_264,
            pool_bytes: 82_432 * 17_547_264,
            token_bytes: 1663 * 17_547_264,
            spine_bytes: 114 * GB,
            spine_token_bytes: 113 * GB,
            beyond_bytes: 0,
            shape_tensor_bytes: 0,
            kv: None,
        }
    }

    /// Table 2 of the paper: capacity, seconds, device bytes of an iteration.
    const TABLE_2: [(u64, f64, f64); 4] =
        [(64, 2.76, 33.6e9), (128, 1.95, 17.4e9), (256, 1.37, 9.8e9), (448, 0.99, 5.3e9)];

    /// The worked sizing example (section 8): for two seconds an iteration, about 128 GB. Two
    /// rates are taken from the rows of 448 and 256 GB alone; the row of 128 GB is then predicted.
    #[test]
    fn the_worked_example_of_the_paper() {
        let [_, (_, seconds_128, _), (_, seconds_256, device_256), (_, seconds_448, device_448)] =
            TABLE_2;
        let device = (device_256 - device_448) / (seconds_256 - seconds_448);
        let sizes = production();
        let memory = sizes.token_bytes as f64 / (seconds_448 - device_448 / device);
        let points = TABLE_2.map(|(capacity, _, device)| CurvePoint {
            cache_bytes: capacity * GB,
            miss_bytes: device as u64,
        });
        let curve = MissCurve::of_points(&points, sizes.pool_bytes, sizes.token_bytes).unwrap();
        let rates = Rates {
            device_bytes_per_s: Some(device),
            memory_bytes_per_s: Some(memory),
            ..Rates::default()
        };
        let forecast = Forecast {
            sizes: &sizes,
            curve: &curve,
            rates,
            kv_bytes: 0,
            spine_in_hbm: true,
            reserve_bytes: 0,
        };
        let row = forecast.row(128 * GB);
        let seconds = row.token_s.unwrap();
        assert!((seconds / seconds_128 - 1.0).abs() < 0.04, "{seconds}");
        assert!((row.miss_bytes as f64 / 17.4e9 - 1.0).abs() < 1e-3);
        let least = forecast.smallest_dram(2.0).unwrap();
        let gb = least.dram_bytes as f64 / 1e9;
        assert!((gb / 128.0 - 1.0).abs() < 0.03, "{gb} GB");
        assert!(least.token_s.unwrap() <= 2.0);
        assert!(forecast.row(least.dram_bytes - 1).token_s.unwrap() > 2.0, "no byte less");
        // 256 GB give 1.37 s, as measured.
        assert!((forecast.row(256 * GB).token_s.unwrap() - 1.37).abs() < 1e-6);
        assert_eq!(forecast.smallest_dram(0.1), None, "memory alone takes longer");
    }

    #[test]
    fn the_fixed_part_comes_first() {
        let (sizes, curve) = (production(), MissCurve::uniform());
        let mut forecast = Forecast {
            sizes: &sizes,
            curve: &curve,
            rates: Rates { memory_bytes_per_s: Some(1e11), ..Rates::default() },
            kv_bytes: 6 * GB,
            spine_in_hbm: false,
            reserve_bytes: 2 * GB,
        };
        assert_eq!(forecast.fixed_bytes(), 122 * GB);
        let row = forecast.row(100 * GB);
        assert!(!row.runs && row.cache_bytes == 0 && row.miss_rate == 1.0);
        assert_eq!((row.device_s, row.token_s), (None, None), "an unknown rate is not zero");
        assert!(row.memory_s.unwrap() > 1.0);
        assert_eq!(forecast.smallest_dram(10.0), None);
        let whole = forecast.row(122 * GB + sizes.pool_bytes);
        assert!(whole.runs && whole.miss_rate == 0.0 && whole.pool_share == 1.0);
        forecast.spine_in_hbm = true;
        assert_eq!(forecast.fixed_bytes(), 2 * GB);
        let uniform = forecast.row(2 * GB + sizes.pool_bytes / 4);
        assert!((uniform.miss_rate - 0.75).abs() < 1e-9);
    }
}
