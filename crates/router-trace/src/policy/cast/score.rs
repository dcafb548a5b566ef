//! The integer score of CAST: what a page's word of history is worth, in 1/16 half-lives.
//!
//! A word holds the count of reads, the classes of the last two gaps between reads, and the
//! time of the last read. The score is LRFU's, the sum over the reads of 2^(-age / half-life)
//! at the moment of the last one, with older reads taken to be spaced like the mean of the
//! two known gaps. All arithmetic is on integers, in the order that a kernel without
//! floating point uses, so that both give the same numbers.

/// The highest gap class: 512 ticks or more.
pub(super) const MAX_GAP_CLASS: u8 = 10;
/// Decay settings: `le` from 1 (a half-life of 128 times the capacity) to 14 (1/64 of it).
const LE: std::ops::RangeInclusive<u8> = 1..=14;

/// What a gap of each class stands for, in 1/16 tick: the geometric mean of its bounds.
const GAP16: [u64; 11] = [0, 16, 39, 85, 175, 356, 718, 1442, 2891, 5787, 12288];

/// The class of a gap of `ticks`: its number of binary digits, 10 at most.
pub(super) fn gap_class(ticks: u32) -> u8 {
    let digits = u32::BITS - ticks.leading_zeros();
    digits.min(MAX_GAP_CLASS.into()) as u8
}

/// Scores and keys at one decay.
///
/// The half-life is 2^(8 - `le`) times the capacity, in keys taken in; a tick is a quarter
/// of the capacity, so the half-life is 2^(10 - `le`) ticks.
pub struct CastScore {
    le: u8,
    /// `[g1][g2][count]`, flat.
    table: Vec<u8>,
    exp: ExpTables,
    thresholds: [u64; 16],
}

impl CastScore {
    /// Builds the table for the decay `le`.
    ///
    /// # Panics
    ///
    /// If `le` is not 1 to 14.
    #[must_use]
    pub fn new(le: u8) -> Self {
        assert!(LE.contains(&le), "decay {le}, must be 1 to 14");
        let step = |i: u32| (65536.0 * ((f64::from(i) + 0.5) / 16.0).exp2()).ceil() as u64;
        let thresholds = std::array::from_fn(|i| step(i as u32));
        let mut score = Self { le, table: Vec::new(), exp: ExpTables::new(), thresholds };
        let mut table = Vec::with_capacity(11 * 11 * 256);
        for g1 in 0..=MAX_GAP_CLASS {
            for g2 in 0..=MAX_GAP_CLASS {
                score.extend_by_counts(&mut table, g1, g2);
            }
        }
        score.table = table;
        score
    }

    /// 16 × log2 of the score just after the last of `count` reads, whose gaps were of the
    /// classes `g1` (between the last two) and `g2` (before that); 127 at most.
    ///
    /// # Panics
    ///
    /// If a class is above 10.
    #[must_use]
    #[inline]
    pub fn log_score(&self, g1: u8, g2: u8, count: u8) -> u8 {
        assert!(g1.max(g2) <= MAX_GAP_CLASS, "gap classes {g1} and {g2}, at most 10");
        self.table[(usize::from(g1) * 11 + usize::from(g2)) * 256 + usize::from(count)]
    }

    /// The rank of a word last read at `tick`, in 1/16 half-lives: the absolute time of the
    /// read plus the score's logarithm. The time is shifted, not the age, so that rounding
    /// never changes the order of two words that are not read.
    #[must_use]
    #[inline]
    pub fn key(&self, tick: u32, log_score: u8) -> i64 {
        let time = i64::from(tick) << 4 << self.le >> 10;
        time + i64::from(log_score)
    }

    /// Exponent of the decay over a gap, in 1/4096 half-lives.
    fn exponent(&self, class: u8) -> u64 {
        let scaled = GAP16[usize::from(class)] << 8;
        match u32::from(self.le) {
            le if le < 10 => (scaled + (1 << (10 - le) >> 1)) >> (10 - le),
            le => scaled << (le - 10),
        }
    }

    /// Adds the logarithms for the counts 0 to 255: each count has one read more to sum.
    fn extend_by_counts(&self, table: &mut Vec<u8>, g1: u8, g2: u8) {
        let (first, second) = (self.exponent(g1), self.exponent(g1) + self.exponent(g2));
        let mean_gap = second.div_ceil(2);
        let mut sum = 1 << 16;
        table.extend([0, 0]);
        for count in 2..=u64::from(u8::MAX) {
            let age = match count {
                2 => first,
                _ => second + (count - 3) * mean_gap,
            };
            sum += self.exp.decay(age);
            table.push(self.log16(sum));
        }
    }

    /// 16 × log2(sum / 65536), rounded.
    fn log16(&self, sum: u64) -> u8 {
        let octaves = sum.ilog2() - 16;
        let mantissa = sum >> octaves;
        let steps = self.thresholds.iter().filter(|&&threshold| threshold <= mantissa).count();
        (16 * octaves as usize + steps).min(127) as u8
    }
}

/// 2^(-i/16), 2^(-i/256) and 2^(-i/4096) in 1/65536.
struct ExpTables([[u64; 16]; 3]);

impl ExpTables {
    fn new() -> Self {
        Self([16.0, 256.0, 4096.0].map(|parts: f64| {
            std::array::from_fn(|i| (65536.0 * (-(i as f64) / parts).exp2()).round() as u64)
        }))
    }

    /// 2^(-exponent / 4096) in 1/65536; 0 from 17 halvings on.
    fn decay(&self, exponent: u64) -> u64 {
        let halvings = exponent >> 12;
        if halvings >= 17 {
            return 0;
        }
        let digit = |shift: u32| (exponent >> shift & 15) as usize;
        let [coarse, middle, fine] = &self.0;
        let product = (coarse[digit(8)] * middle[digit(4)] + 32768) >> 16;
        ((product * fine[digit(0)] + 32768) >> 16) >> halvings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (g1, g2, count, le) and the logarithm of the score, as published with the design.
    const VECTORS: [((u8, u8, u8, u8), u8); 10] = [
        ((1, 1, 1, 8), 0),
        ((1, 1, 2, 8), 14),
        ((2, 3, 3, 8), 15),
        ((3, 4, 10, 9), 3),
        ((5, 5, 255, 1), 81),
        ((1, 1, 255, 1), 124),
        ((10, 10, 255, 1), 10),
        ((1, 1, 3, 10), 13),
        ((1, 2, 6, 10), 11),
        ((1, 1, 20, 9), 28),
    ];

    #[test]
    fn published_vectors() {
        for ((g1, g2, count, le), expected) in VECTORS {
            let found = CastScore::new(le).log_score(g1, g2, count);
            assert_eq!(found, expected, "g1 {g1} g2 {g2} count {count} le {le}");
        }
    }

    /// Against the formula in floating point, over the combinations that the design checked.
    #[test]
    fn integers_follow_the_formula() {
        for le in LE {
            let score = CastScore::new(le);
            for (g1, g2) in (1..=10).flat_map(|g1| (1..=10).map(move |g2| (g1, g2))) {
                for count in [1, 2, 3, 4, 5, 6, 8, 12, 20, 50, 100, 200, 255] {
                    let half_lives =
                        |g: u8| GAP16[usize::from(g)] as f64 / 16.0 * f64::from(le).exp2() / 1024.0;
                    let (d1, d2) = (half_lives(g1), half_lives(g2));
                    let age = |read: u8| match read {
                        0 => 0.0,
                        1 => d1,
                        n => (d1 + d2) * f64::from(n) / 2.0,
                    };
                    let exact: f64 = (0..count).map(|read| (-age(read)).exp2()).sum();
                    let exact = (16.0 * exact.log2()).min(127.0);
                    let error = (f64::from(score.log_score(g1, g2, count)) - exact).abs();
                    assert!(error < 0.62, "g1 {g1} g2 {g2} count {count} le {le}: {error}");
                }
            }
        }
    }

    #[test]
    fn keys_shift_the_absolute_time() {
        // A half-life is 4 ticks at le 8, so a tick is 4 sixteenths; 8 half-lives a tick at 13.
        assert_eq!(CastScore::new(8).key(3, 5), 3 * 4 + 5);
        assert_eq!(CastScore::new(13).key(3, 5), 3 * 128 + 5);
        // 32 ticks make a sixteenth at le 1; rounding is down.
        assert_eq!(CastScore::new(1).key(63, 0), 1);
        assert_eq!(CastScore::new(1).key(64, 0), 2);
    }

    #[test]
    fn gap_classes_are_powers_of_two() {
        let classes: Vec<_> = [0, 1, 2, 3, 4, 255, 256, 511, 512, 1 << 20].map(gap_class).into();
        assert_eq!(classes, [0, 1, 2, 2, 3, 8, 9, 9, 10, 10]);
    }
}
