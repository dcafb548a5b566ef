//! Arms that take turns, and the rows that come of it.

use crate::machine::process_read_bytes;
use crate::report::Row;
use crate::stats::{Spread, order};
use anyhow::{Context, Result, ensure};
use expert_tier::Tier;
use expert_tier::observe::{BlockCounters, SystemRoot};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use router_trace::ExpertId;
use std::fs::File;

/// What one turn of an arm took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// In the unit of the arm's rows.
    pub(crate) value: f64,
    pub(crate) asked_bytes: u64,
    /// Read by the block layer meanwhile.
    pub(crate) device_bytes: Option<u64>,
    /// The part of it that this process caused.
    pub(crate) process_bytes: Option<u64>,
    /// What came out: the same for all arms of a workload.
    pub(crate) checksum: u64,
    pub(crate) flag: Option<String>,
}

/// One way of doing the work.
pub(crate) struct Arm<'a> {
    pub(crate) name: &'static str,
    pub(crate) channel: &'static str,
    pub(crate) run: Box<dyn FnMut() -> Result<Sample> + 'a>,
    /// The most turns that it has: the first rounds are its own.
    pub(crate) most: usize,
}

impl<'a> Arm<'a> {
    pub(crate) fn new(
        name: &'static str,
        channel: &'static str,
        run: impl FnMut() -> Result<Sample> + 'a,
    ) -> Self {
        Self { name, channel, run: Box::new(run), most: usize::MAX }
    }
}

/// Samples of all arms, by arm and round.
pub(crate) struct Turns {
    pub(crate) workload: String,
    pub(crate) unit: &'static str,
    arms: Vec<(&'static str, &'static str)>,
    pub(crate) samples: Vec<Vec<Sample>>,
}

impl Turns {
    /// One round that is thrown away, then `rounds` in balanced order.
    pub(crate) fn take(
        workload: &str,
        unit: &'static str,
        arms: Vec<Arm<'_>>,
        rounds: usize,
    ) -> Result<Self> {
        Self::all(workload, unit, arms, 0..=rounds)
    }

    /// The same without the extra round: for turns that bring their own warm-up.
    pub(crate) fn take_cold(
        workload: &str,
        unit: &'static str,
        arms: Vec<Arm<'_>>,
        rounds: usize,
    ) -> Result<Self> {
        Self::all(workload, unit, arms, 1..=rounds)
    }

    fn all(
        workload: &str,
        unit: &'static str,
        mut arms: Vec<Arm<'_>>,
        rounds: std::ops::RangeInclusive<usize>,
    ) -> Result<Self> {
        let mut turns = Self {
            workload: workload.to_owned(),
            unit,
            arms: arms.iter().map(|arm| (arm.name, arm.channel)).collect(),
            samples: arms.iter().map(|_| Vec::new()).collect(),
        };
        let mut checksum = None;
        for round in rounds {
            for index in order(arms.len(), round, 0x5eed) {
                let arm = &mut arms[index];
                if turns.samples[index].len() >= arm.most {
                    continue;
                }
                let sample = (arm.run)().with_context(|| format!("{workload}: {}", arm.name))?;
                let expected = *checksum.get_or_insert(sample.checksum);
                ensure!(sample.checksum == expected, "{workload}: {} read other bytes", arm.name);
                if round > 0 {
                    turns.samples[index].push(sample);
                }
            }
        }
        Ok(turns)
    }

    /// The rounds of `more`, which has the same arms, after ours.
    pub(crate) fn append(&mut self, more: Self) -> Result<()> {
        ensure!(self.arms == more.arms, "{}: other arms", self.workload);
        for (samples, more) in self.samples.iter_mut().zip(more.samples) {
            samples.extend(more);
        }
        Ok(())
    }

    fn index(&self, arm: &str) -> Option<usize> {
        self.arms.iter().position(|(name, _)| *name == arm)
    }

    pub(crate) fn values(&self, arm: &str) -> Vec<f64> {
        let samples = self.index(arm).map(|index| &self.samples[index]);
        samples.map_or(Vec::new(), |samples| samples.iter().map(|sample| sample.value).collect())
    }

    /// Median of the per-round ratios of two arms.
    pub(crate) fn ratio(&self, over: &str, under: &str) -> Option<f64> {
        Spread::of_ratios(&self.values(over), &self.values(under)).map(|spread| spread.median)
    }

    /// Median bytes of the block layer a byte asked for, and how they were counted.
    ///
    /// The device counts for everyone. Where others read more than 1 % meanwhile, what counts is
    /// what the block layer charged to this process, and the text says so.
    pub(crate) fn read_share(&self, arm: &str) -> (Option<f64>, String) {
        let samples = self.index(arm).map_or(&[][..], |index| &self.samples[index]);
        let median = |spread: Option<Spread>| spread.map(|spread| spread.median);
        let device = median(share(samples, |sample| sample.device_bytes));
        let process = median(share(samples, |sample| sample.process_bytes));
        match (device, process) {
            (Some(device), Some(process)) if device > process + 0.01 => {
                let text = format!("own reads; the device read {device:.3} for everyone");
                (Some(process), text)
            }
            (device, _) => (device, "all of the device's reads".to_owned()),
        }
    }

    /// A row an arm; ratios to `base`.
    pub(crate) fn rows(&self, base: &str) -> Vec<Row> {
        let under = self.values(base);
        let arms = self.arms.iter().zip(&self.samples);
        let row = |((name, channel), samples): (&(&'static str, &'static str), &Vec<Sample>)| {
            let values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
            let is_base = *name == base;
            let flagged: Vec<&String> = samples.iter().filter_map(|s| s.flag.as_ref()).collect();
            let flags = flagged
                .first()
                .map(|first| format!("{} of {} turns: {first}", flagged.len(), samples.len()));
            let mut flags: Vec<String> = flags.into_iter().collect();
            if samples.len() < 5 {
                flags.push(format!("only {} rounds, 5 are the rule", samples.len()));
            }
            Row {
                workload: self.workload.clone(),
                arm: (*name).to_owned(),
                channel: (*channel).to_owned(),
                unit: self.unit,
                result: Spread::of(values.iter().copied()),
                base: (!is_base).then(|| base.to_owned()),
                ratio: if is_base { None } else { Spread::of_ratios(&values, &under) },
                device_bytes_per_asked: share(samples, |sample| sample.device_bytes),
                process_bytes_per_asked: share(samples, |sample| sample.process_bytes),
                flags,
                notes: Vec::new(),
            }
        };
        arms.map(row).collect()
    }
}

fn share(samples: &[Sample], bytes: impl Fn(&Sample) -> Option<u64>) -> Option<Spread> {
    Spread::of(samples.iter().filter_map(|sample| {
        let asked = sample.asked_bytes.max(1) as f64;
        bytes(sample).map(|bytes| bytes as f64 / asked)
    }))
}

/// Device bytes from now on.
pub(crate) struct Meter {
    device: Option<BlockCounters>,
    process: Option<u64>,
}

impl Meter {
    pub(crate) fn start(tier: &Tier) -> Self {
        let device = tier.device_counters(&SystemRoot::default()).ok();
        Self { device, process: process_read_bytes() }
    }

    pub(crate) fn stop(&self) -> (Option<u64>, Option<u64>) {
        let device = self.device.as_ref().and_then(|counters| counters.read_bytes().ok());
        let now = process_read_bytes();
        (device, now.zip(self.process).and_then(|(now, then)| now.checked_sub(then)))
    }
}

/// Evicts all that `tiers`, which share their files, may map, and says what a probe still finds
/// of `ids`.
///
/// The files are then forgotten whole: a folio that reaches past an expert's end stays when only
/// the expert's own bytes are named.
pub(crate) fn make_cold(tiers: &[&Tier], ids: &[ExpertId]) -> Result<Option<String>> {
    for tier in tiers {
        tier.evict(None)?;
    }
    for tier in tiers {
        for file in tier.pool().files() {
            let file = File::open(&file.path)?;
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        }
    }
    let mut left = 0;
    for tier in tiers {
        left = left.max(tier.residency(Some(ids))?.resident_bytes);
    }
    Ok((left > 0).then(|| format!("not cold: {left} bytes were in the page cache")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_pair_rounds_and_bytes_are_shares() {
        let sample = |value| Sample {
            value,
            asked_bytes: 100,
            device_bytes: Some(150),
            ..Sample::default()
        };
        let mut slow = 0.0;
        let mut fast = 0.0;
        let arms = vec![
            Arm::new("slow", "", || {
                slow += 2.0;
                Ok(sample(slow))
            }),
            Arm::new("fast", "", || {
                fast += 1.0;
                Ok(sample(fast))
            }),
        ];
        let turns = Turns::take("w", "s", arms, 5).unwrap();
        assert_eq!(turns.ratio("slow", "fast"), Some(2.0));
        assert_eq!(turns.read_share("slow").0, Some(1.5));
        let rows = turns.rows("fast");
        assert_eq!(rows[0].ratio.unwrap().n, 5);
        assert!(rows[1].ratio.is_none() && rows[1].flags.is_empty());
    }

    #[test]
    fn what_others_read_is_told_and_not_counted() {
        let sample = |device| Sample {
            asked_bytes: 100,
            device_bytes: Some(device),
            process_bytes: Some(100),
            ..Sample::default()
        };
        let arms = vec![
            Arm::new("noisy", "", move || Ok(sample(150))),
            Arm::new("quiet", "", move || Ok(sample(100))),
        ];
        let turns = Turns::take("w", "s", arms, 1).unwrap();
        let (value, text) = turns.read_share("noisy");
        assert_eq!((value, text.contains("1.500")), (Some(1.0), true));
        assert!(turns.read_share("quiet").1.starts_with("all"));
    }

    #[test]
    fn arms_that_disagree_are_an_error() {
        let arm = |name, checksum| {
            Arm::new(name, "", move || Ok(Sample { checksum, ..Sample::default() }))
        };
        assert!(Turns::take("w", "s", vec![arm("a", 1), arm("b", 2)], 1).is_err());
    }
}
