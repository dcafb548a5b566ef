use crate::admission::Admission;
use crate::config::TierConfig;
use crate::error::TierError;
use crate::observe::{ProcessCounters, SystemRoot};
use crate::pool::Pool;
use crate::tier::Tier;
use router_trace::ExpertId;
use serde::Serialize;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Experts that are adopted at once, as a route's are.
const BATCH: usize = 8;

/// How much of what was asked for the device must have read, for a read to count as cold.
const PROOF: f64 = 0.98;

/// How fast bytes come, in bytes a second; `None` is unknown, never zero.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Rates {
    /// Experts from the device, in the requests that the tier makes.
    pub device_bytes_per_s: Option<f64>,
    /// Memory read by all compute threads together.
    pub memory_bytes_per_s: Option<f64>,
    /// The accelerator reading its own memory.
    pub hbm_bytes_per_s: Option<f64>,
}

/// How much a measurement may read, and how long it may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct MeasureLimits {
    /// Bytes of experts for each arm.
    pub bytes: u64,
    /// Time for each arm; a batch that has begun is finished.
    pub time: Duration,
    /// Threads that wait for the device.
    pub threads: usize,
}

impl Default for MeasureLimits {
    /// 1 GB or one second an arm, with eight threads.
    fn default() -> Self {
        Self { bytes: 1_000_000_000, time: Duration::from_secs(1), threads: 8 }
    }
}

/// What a pool's device gives, measured on the pool's own experts in the tier's own requests.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DeviceRate {
    /// Read past the page cache (`O_DIRECT`); `None` where that is refused.
    pub direct_bytes_per_s: Option<f64>,
    /// The same by one thread: what a single reader gets.
    pub direct_one_thread_bytes_per_s: Option<f64>,
    /// Filled into the page cache, as the tier serves misses.
    pub fill_bytes_per_s: f64,
    /// Experts that were read by each arm.
    pub experts: usize,
    /// Their mean size: the unit of a read.
    pub expert_bytes: u64,
    /// Threads that waited.
    pub threads: usize,
    /// Whether the bytes came from the device.
    pub cold: ColdProof,
    /// Why there is no direct rate.
    pub direct_refused: Option<String>,
}

/// What shows that a read was cold. A cache below this kernel (a hypervisor, a disk's own) cannot
/// be seen from here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ColdProof {
    /// Whether all of it holds.
    pub proved: bool,
    /// Bytes of the experts that a probe found in the page cache before the reads.
    pub resident_bytes: u64,
    /// Bytes that were asked for, in the page-cache arm.
    pub asked_bytes: u64,
    /// Bytes that the devices read meanwhile, for whomever; `None` where no device can be named.
    pub device_bytes: Option<u64>,
    /// Bytes that the kernel read for this process.
    pub process_bytes: Option<u64>,
    /// Where it is not proved, why.
    pub reason: Option<String>,
}

impl DeviceRate {
    /// The rate to plan with: past the page cache where that works, else as filled; `None` if the
    /// reads were not cold.
    #[must_use]
    pub fn proved_bytes_per_s(&self) -> Option<f64> {
        let rate = self.direct_bytes_per_s.unwrap_or(self.fill_bytes_per_s);
        self.cold.proved.then_some(rate)
    }

    /// What a filled byte costs over one read past the page cache; 1 where the latter is unknown.
    #[must_use]
    pub fn fill_cost(&self) -> f64 {
        self.direct_bytes_per_s.map_or(1.0, |direct| direct / self.fill_bytes_per_s)
    }
}

/// Measure the device behind `pool` with the pool's own experts.
///
/// Some experts, spread over the pool, are evicted from the page cache; a probe says what is left.
/// They are read past the page cache and then into it, timed. Where they were not in the page
/// cache before, they are evicted again.
///
/// # Errors
/// A pool without experts (`not-a-model`); a tier that cannot be opened, or a read that fails.
pub fn measure_device(
    pool: &Pool,
    limits: MeasureLimits,
    root: &SystemRoot,
) -> Result<DeviceRate, TierError> {
    let config =
        |admission, fill_threads| TierConfig { admission, fill_threads, ..TierConfig::default() };
    let batches = spread(pool, limits.bytes)?;
    let ids: Vec<ExpertId> = batches.iter().flatten().copied().collect();
    let tier = Tier::open(pool.clone(), config(Admission::Admit, limits.threads))?;
    let before = tier.residency(Some(&ids))?;
    let left = tier.evict(Some(&ids))?;
    let mut direct_refused = None;
    let mut direct = |threads| match Tier::open(pool.clone(), config(Admission::Direct, threads)) {
        Ok(direct) => read(&direct, &batches, limits.time).map(|timed| Some(timed.rate())),
        Err(error) if error.kind() == "device-unavailable" => {
            direct_refused = Some(error.to_string());
            Ok(None)
        }
        Err(error) => Err(error),
    };
    let direct_one_thread_bytes_per_s = direct(1)?;
    let direct_bytes_per_s = direct(limits.threads)?;
    let devices = tier.device_counters(root);
    let process = ProcessCounters::now(root).ok();
    let filled = read(&tier, &batches, limits.time)?;
    let process = ProcessCounters::now(root)
        .ok()
        .zip(process)
        .and_then(|(now, then)| now.since(&then).read_bytes.ok());
    let devices = devices.and_then(|devices| devices.read_bytes()).ok();
    if before.resident_bytes == 0 {
        tier.evict(Some(&ids))?;
    }
    Ok(DeviceRate {
        direct_bytes_per_s,
        direct_one_thread_bytes_per_s,
        fill_bytes_per_s: filled.rate(),
        experts: filled.experts,
        expert_bytes: filled.bytes / (filled.experts as u64).max(1),
        threads: limits.threads,
        cold: proof(left.resident_bytes, filled.bytes, devices, process),
        direct_refused,
    })
}

fn proof(
    resident_bytes: u64,
    asked_bytes: u64,
    device_bytes: Option<u64>,
    process_bytes: Option<u64>,
) -> ColdProof {
    // The device counts for everyone; what was read for this process is the narrower witness.
    let read = process_bytes.or(device_bytes);
    let reason = match read {
        _ if resident_bytes > 0 => {
            Some(format!("{resident_bytes} bytes of the experts stay in the page cache"))
        }
        None => Some("neither the device nor the kernel counts what is read here".to_owned()),
        Some(read) if (read as f64) < PROOF * asked_bytes as f64 => {
            Some(format!("only {read} of {asked_bytes} bytes came from the device"))
        }
        Some(_) => None,
    };
    let proved = reason.is_none();
    ColdProof { proved, resident_bytes, asked_bytes, device_bytes, process_bytes, reason }
}

/// Experts spread over the pool, of one layer a batch, at most `bytes` of them.
fn spread(pool: &Pool, bytes: u64) -> Result<Vec<Vec<ExpertId>>, TierError> {
    let layout = pool.layout();
    let layers: Vec<(u16, usize)> =
        layout.moe_layers().map(|layer| (layer, layout.layer(layer).len())).collect();
    let mut batches = Vec::new();
    let mut left = bytes;
    // One batch a layer and round; each round takes the next experts of each layer.
    for round in 0..layers.iter().map(|(_, experts)| experts.div_ceil(BATCH)).max().unwrap_or(0) {
        for &(layer, experts) in &layers {
            let rounds = experts.div_ceil(BATCH);
            // Every `rounds`-th expert from `round` on: far apart, and each once.
            let numbers = (round..experts).step_by(rounds.max(1)).take(BATCH);
            let batch: Vec<ExpertId> = numbers
                .filter_map(|number| Some(ExpertId::new(layer, u16::try_from(number).ok()?)))
                .collect();
            let size = batch.iter().filter_map(|&id| layout.expert(id));
            let size: u64 = size.map(crate::pool::ExpertLayout::nominal_bytes).sum();
            if batch.is_empty() || (size > left && !batches.is_empty()) {
                continue;
            }
            left = left.saturating_sub(size);
            batches.push(batch);
        }
    }
    if batches.is_empty() {
        return Err(TierError::NotAModel {
            path: pool.root().to_owned(),
            reason: "no routed experts: there is nothing to measure".to_owned(),
        });
    }
    Ok(batches)
}

struct Timed {
    bytes: u64,
    experts: usize,
    time: Duration,
}

impl Timed {
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Adopt the batches one after the other until they or the time are over.
fn read(tier: &Tier, batches: &[Vec<ExpertId>], most: Duration) -> Result<Timed, TierError> {
    let mut timed = Timed { bytes: 0, experts: 0, time: Duration::ZERO };
    for batch in batches {
        let (Some(first), true) = (batch.first(), timed.time < most) else { break };
        let numbers: Vec<u16> = batch.iter().map(|id| id.index).collect();
        let started = Instant::now();
        let adopted = tier.adopt_batch(first.layer, &numbers)?;
        timed.time += started.elapsed();
        timed.experts += adopted.len();
        timed.bytes += adopted
            .experts()
            .flat_map(|expert| expert.parts().to_vec())
            .filter_map(|part| part.bytes.host().map(|bytes| bytes.len() as u64))
            .sum::<u64>();
    }
    Ok(timed)
}

/// Bytes a second that `threads` read together from `bytes` of memory that no CPU cache holds:
/// the best of three passes after one that is thrown away.
#[must_use]
pub fn measure_memory(threads: usize, bytes: usize) -> f64 {
    let words = (bytes / 8).max(1);
    // Not zeros, which need no memory of their own.
    let memory: Vec<u64> = (0..words as u64).collect();
    let share = words.div_ceil(threads.max(1));
    let pass = || {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for part in memory.chunks(share) {
                scope.spawn(move || black_box(sum(part)));
            }
        });
        started.elapsed().as_secs_f64()
    };
    let _ = pass();
    let best = (0..3).map(|_| pass()).fold(f64::INFINITY, f64::min);
    (words * 8) as f64 / best.max(1e-9)
}

/// Eight sums at once, so that no addition waits for the one before.
fn sum(words: &[u64]) -> u64 {
    let (blocks, rest) = words.as_chunks::<8>();
    let mut sums = [0_u64; 8];
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().chain(rest).fold(0, |total, word| total.wrapping_add(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_called_cold_without_a_witness() {
        let reason = |proof: ColdProof| {
            assert_eq!(proof.proved, proof.reason.is_none());
            proof.reason.unwrap_or_default()
        };
        assert_eq!(reason(proof(0, 1000, Some(5000), Some(1000))), "");
        assert_eq!(reason(proof(0, 1000, Some(985), None)), "");
        assert!(reason(proof(4096, 1000, Some(1000), None)).contains("4096"));
        assert!(reason(proof(0, 1000, None, None)).contains("counts"));
        // Others read a lot, this process nothing: its bytes came from memory.
        assert!(reason(proof(0, 1000, Some(9000), Some(0))).contains("only 0 of 1000"));
    }

    #[test]
    fn sums_are_sums_and_memory_has_a_rate() {
        let words: Vec<u64> = (0..1003).collect();
        assert_eq!(sum(&words), 1003 * 1002 / 2);
        let rate = measure_memory(2, 8 << 20);
        assert!((1e7..1e14).contains(&rate), "{rate}");
    }
}
