use router_trace::simulate::HitCurve;
use serde::Serialize;

/// The share of a token's expert bytes that is missing, by the size of the file cache.
///
/// Sizes are shares of the pool: 0 is no cache, 1 holds every expert. That is how a curve of one
/// model is put on another ("scaled by shape"): exact where the shapes are equal, a stated
/// approximation where they are not.
#[derive(Clone, PartialEq, Debug)]
pub struct MissCurve {
    basis: CurveBasis,
    shape: Shape,
}

/// What a curve rests on; printed with every forecast.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum CurveBasis {
    /// Exact LRU of whole experts over a trace's scored window.
    Trace {
        /// The trace.
        name: String,
        /// Experts asked for in the scored window.
        accesses: u64,
        /// Experts of the traced model.
        trace_experts: usize,
    },
    /// Miss bytes measured or simulated at some cache sizes.
    Points {
        /// How many.
        points: usize,
    },
    /// Independent draws by a Zipf law over each layer's experts; recency beyond it is not in it.
    Zipf {
        /// The exponent.
        slope: f64,
    },
    /// Every expert equally likely, whatever came before: no router reuses less.
    Uniform,
}

/// One known place of a curve.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct CurvePoint {
    /// Bytes of the file cache.
    pub cache_bytes: u64,
    /// Bytes that a token (or iteration) then misses.
    pub miss_bytes: u64,
}

/// A curve that cannot be made.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum CurveFault {
    /// A table of points that is no falling curve.
    #[error(
        "point {index}: a cache of {cache_bytes} bytes misses {miss_bytes} bytes; sizes must \
         grow and misses must not (the point before: {before_cache_bytes} and \
         {before_miss_bytes})"
    )]
    Points {
        /// Which point, from 0.
        index: usize,
        /// Its size.
        cache_bytes: u64,
        /// Its misses.
        miss_bytes: u64,
        /// The size of the point before.
        before_cache_bytes: u64,
        /// The misses of the point before.
        before_miss_bytes: u64,
    },
    /// No point at all.
    #[error("a table of misses needs at least one point")]
    NoPoints,
    /// An exponent that is none.
    #[error("a Zipf slope is {slope}, must be 0 to 8")]
    Slope {
        /// Its value.
        slope: f64,
    },
    /// A trace without accesses in its scored window.
    #[error("the trace's scored window has no accesses")]
    EmptyTrace,
}

#[derive(Clone, PartialEq, Debug)]
enum Shape {
    /// Miss rate with room for so many experts of `experts`.
    Lru {
        curve: HitCurve,
        experts: usize,
    },
    /// Shares of the pool and miss rates, from (0, 1) on, sizes growing.
    Table(Vec<(f64, f64)>),
    Line,
}

impl MissCurve {
    /// Misses of exact LRU, from one pass over a trace of a model with `experts` experts.
    ///
    /// # Errors
    /// [`CurveFault::EmptyTrace`].
    pub fn of_trace(name: &str, curve: HitCurve, experts: usize) -> Result<Self, CurveFault> {
        if curve.accesses() == 0 || experts == 0 {
            return Err(CurveFault::EmptyTrace);
        }
        let (name, accesses) = (name.to_owned(), curve.accesses());
        let basis = CurveBasis::Trace { name, accesses, trace_experts: experts };
        Ok(Self { basis, shape: Shape::Lru { curve, experts } })
    }

    /// Misses known at some sizes, of a model with `pool_bytes` of which a token uses
    /// `token_bytes`; straight lines between them, from everything missing without a cache to
    /// nothing missing with all of the pool, unless the points reach there.
    ///
    /// # Errors
    /// [`CurveFault::NoPoints`], and [`CurveFault::Points`] where misses grow with the cache.
    pub fn of_points(
        points: &[CurvePoint],
        pool_bytes: u64,
        token_bytes: u64,
    ) -> Result<Self, CurveFault> {
        if points.is_empty() {
            return Err(CurveFault::NoPoints);
        }
        let mut before = CurvePoint { cache_bytes: 0, miss_bytes: u64::MAX };
        let mut table = vec![(0.0, 1.0)];
        for (index, point) in points.iter().enumerate() {
            let grows = point.cache_bytes > before.cache_bytes || index == 0;
            if !grows || point.miss_bytes > before.miss_bytes {
                return Err(CurveFault::Points {
                    index,
                    cache_bytes: point.cache_bytes,
                    miss_bytes: point.miss_bytes,
                    before_cache_bytes: before.cache_bytes,
                    before_miss_bytes: before.miss_bytes,
                });
            }
            before = *point;
            let share = point.cache_bytes as f64 / pool_bytes.max(1) as f64;
            // Above 1 where the device read more than was asked: amplification is data.
            let missing = point.miss_bytes as f64 / token_bytes.max(1) as f64;
            match table.last_mut().filter(|last| last.0 >= share) {
                Some(last) => last.1 = missing,
                None => table.push((share, missing)),
            }
        }
        if table[table.len() - 1].0 < 1.0 {
            table.push((1.0, 0.0));
        }
        // Without a cache a token misses at least as much as with the smallest one.
        table[0].1 = table[0].1.max(table[1].1);
        let basis = CurveBasis::Points { points: points.len() };
        Ok(Self { basis, shape: Shape::Table(table) })
    }

    /// LRU under independent draws by a Zipf law of exponent `slope` over `n_experts` experts a
    /// layer, all layers alike: Che's approximation (Che, Tung and Wang, 2002), which finds the
    /// time `t` an expert stays from `sum(1 - exp(-p t)) = cache` and hits
    /// `sum(p (1 - exp(-p t)))`.
    ///
    /// # Errors
    /// [`CurveFault::Slope`].
    pub fn of_zipf(slope: f64, n_experts: u16) -> Result<Self, CurveFault> {
        if !(0.0..=8.0).contains(&slope) {
            return Err(CurveFault::Slope { slope });
        }
        let n_experts = n_experts.max(1);
        let weights: Vec<f64> =
            (1..=u32::from(n_experts)).map(|rank| f64::from(rank).powf(-slope)).collect();
        let sum: f64 = weights.iter().sum();
        let shares: Vec<f64> = weights.iter().map(|weight| weight / sum).collect();
        let mut table = vec![(0.0, 1.0)];
        for percent in 1..100 {
            let cached = f64::from(n_experts) * f64::from(percent) / 100.0;
            let stay = characteristic_time(&shares, cached);
            let hits: f64 = shares.iter().map(|p| p * -(-p * stay).exp_m1()).sum();
            table.push((f64::from(percent) / 100.0, 1.0 - hits));
        }
        table.push((1.0, 0.0));
        Ok(Self { basis: CurveBasis::Zipf { slope }, shape: Shape::Table(table) })
    }

    /// The assumption where nothing is known: a cache of a share of the pool has that share of
    /// what is asked for. Real routers reuse more, so misses are told too high rather than too low.
    #[must_use]
    pub fn uniform() -> Self {
        Self { basis: CurveBasis::Uniform, shape: Shape::Line }
    }

    /// What it rests on.
    #[must_use]
    pub fn basis(&self) -> &CurveBasis {
        &self.basis
    }

    /// The share of a token's expert bytes that is read from the device with `cache_bytes` of
    /// file cache for a pool of `pool_bytes`. Above 1 only where a measured table says so.
    #[must_use]
    pub fn miss_rate(&self, cache_bytes: u64, pool_bytes: u64) -> f64 {
        let share = cache_bytes as f64 / pool_bytes.max(1) as f64;
        match &self.shape {
            Shape::Line => (1.0 - share).max(0.0),
            Shape::Table(table) => between(table, share),
            Shape::Lru { curve, experts } => {
                // Whole experts, exactly: their number must not suffer from a quotient.
                let fit =
                    u128::from(cache_bytes) * *experts as u128 / u128::from(pool_bytes.max(1));
                1.0 - curve.hit_rate(usize::try_from(fit).unwrap_or(usize::MAX))
            }
        }
    }
}

/// The value at `share` of a table whose first column grows.
fn between(table: &[(f64, f64)], share: f64) -> f64 {
    let after = table.partition_point(|point| point.0 < share);
    match (after.checked_sub(1).map(|before| table[before]), table.get(after)) {
        (Some((x0, y0)), Some(&(x1, y1))) => y0 + (y1 - y0) * (share - x0) / (x1 - x0),
        (Some((_, y)), None) | (None, Some(&(_, y))) => y,
        (None, None) => 1.0,
    }
}

/// The `t` with `sum(1 - exp(-p t)) = cached`, by bisection.
fn characteristic_time(shares: &[f64], cached: f64) -> f64 {
    let held = |t: f64| shares.iter().map(|p| -(-p * t).exp_m1()).sum::<f64>();
    let (mut low, mut high) = (0.0, 1.0);
    while held(high) < cached && high < 1e300 {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if held(middle) < cached { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;
    use router_trace::simulate::{Replay, Window};
    use router_trace::{Accesses, ModelShape};

    fn close(left: f64, right: f64, tolerance: f64) {
        assert!((left - right).abs() <= tolerance, "{left} is not {right}");
    }

    #[test]
    fn a_trace_is_exact_lru_of_whole_experts() {
        let shape = ModelShape { moe_layers: vec![0], n_experts: 4, top_k: 1 };
        // Each of three experts in turn: LRU hits all once three fit, and none before.
        let steps: Vec<Vec<(u16, Vec<u32>)>> = (0..30).map(|n| vec![(0, vec![n % 3])]).collect();
        let trace = Accesses::from_keys(&shape, None, steps.iter().map(Vec::as_slice)).unwrap();
        let window = Window::new(50, 50).unwrap();
        let curve = HitCurve::of_lru(&Replay::of(&trace, window).unwrap());
        let curve = MissCurve::of_trace("turns", curve, 4).unwrap();
        let rates = [0, 100, 299, 300, 400].map(|cache| curve.miss_rate(cache, 400));
        assert_eq!(rates, [1.0, 1.0, 1.0, 0.0, 0.0]);
        assert!(matches!(curve.basis(), CurveBasis::Trace { accesses: 15, .. }));
    }

    #[test]
    fn points_are_met_and_joined() {
        let points = [(64, 15), (128, 11), (256, 8)]
            .map(|(cache_bytes, miss_bytes)| CurvePoint { cache_bytes, miss_bytes });
        let curve = MissCurve::of_points(&points, 1450, 29).unwrap();
        for (cache, missed) in
            [(64, 15.0), (128, 11.0), (256, 8.0), (96, 13.0), (192, 9.5), (0, 29.0), (1450, 0.0)]
        {
            close(curve.miss_rate(cache, 1450) * 29.0, missed, 1e-9);
        }
        assert_eq!(curve.miss_rate(5000, 1450), 0.0);
        let rising = [points[0], CurvePoint { cache_bytes: 100, miss_bytes: 16 }];
        let error = MissCurve::of_points(&rising, 1450, 29).unwrap_err();
        assert!(error.to_string().contains("100") && error.to_string().contains("16"), "{error}");
        assert!(MissCurve::of_points(&[points[1], points[1]], 1450, 29).is_err());
        assert_eq!(MissCurve::of_points(&[], 1450, 29), Err(CurveFault::NoPoints));
        // A device that read more than was asked for is no error.
        let amplified = [CurvePoint { cache_bytes: 64, miss_bytes: 58 }];
        close(MissCurve::of_points(&amplified, 1450, 29).unwrap().miss_rate(0, 1450), 2.0, 1e-9);
    }

    #[test]
    fn zipf_without_slope_is_uniform_and_hits_more_with_it() {
        let flat = MissCurve::of_zipf(0.0, 128).unwrap();
        let steep = MissCurve::of_zipf(1.2, 128).unwrap();
        for percent in [1_u64, 10, 25, 50, 99] {
            let uniform = MissCurve::uniform().miss_rate(percent, 100);
            close(flat.miss_rate(percent, 100), uniform, 1e-9);
            assert!(steep.miss_rate(percent, 100) < uniform);
        }
        for slope in [-0.1, 9.0, f64::NAN] {
            assert!(MissCurve::of_zipf(slope, 8).is_err(), "{slope}");
        }
    }

    #[test]
    fn ches_approximation_is_near_a_simulated_lru() {
        use rand::{Rng, SeedableRng};
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        let (n, slope) = (64_u16, 1.0);
        let weights: Vec<f64> = (1..=n).map(|rank| f64::from(rank).powf(-slope)).collect();
        let sum: f64 = weights.iter().sum();
        let mut draw = || {
            let mut left = random.random::<f64>() * sum;
            let found = weights.iter().position(|weight| {
                left -= weight;
                left < 0.0
            });
            found.unwrap_or(weights.len() - 1) as u32
        };
        let shape = ModelShape { moe_layers: vec![0], n_experts: n, top_k: 1 };
        let steps: Vec<Vec<(u16, Vec<u32>)>> =
            (0..40_000).map(|_| vec![(0, vec![draw()])]).collect();
        let trace = Accesses::from_keys(&shape, None, steps.iter().map(Vec::as_slice)).unwrap();
        let lru = HitCurve::of_lru(&Replay::of(&trace, Window::default()).unwrap());
        let lru = MissCurve::of_trace("zipf", lru, 64).unwrap();
        let che = MissCurve::of_zipf(slope, n).unwrap();
        for fit in [4, 8, 16, 32, 48] {
            close(che.miss_rate(fit, 64), lru.miss_rate(fit, 64), 0.02);
        }
    }
}
