//! `tier touch`: adopts experts in random order and reads all their bytes, for a while.

use super::args::TouchArgs;
use super::bundled;
use super::inspect::warn;
use super::output::{self, bytes, percent};
use anyhow::{Result, bail};
use expert_tier::host::{FsKind, Storage};
use expert_tier::observe::SystemRoot;
use expert_tier::{Pool, Residency, Snapshot, Tier, TierConfig};
use rand::seq::index;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Experts a route has, where the layer has so many.
const TOP_K: usize = 8;

#[derive(Debug, Serialize)]
struct Report {
    pool: PathBuf,
    seconds: f64,
    /// Bytes read in place.
    bytes: u64,
    bytes_per_s: f64,
    /// Sum of all 64-bit words read: so that nothing is optimised away, and the same for the
    /// same routes.
    checksum: u64,
    /// What a probe found before the first adoption; only after `--cold`.
    cold_start: Option<Residency>,
    counters: Snapshot,
    settings: TierConfig,
    seed: u64,
}

pub(crate) fn run(args: &TouchArgs) -> Result<ExitCode> {
    let pool = match &args.pool {
        Some(path) => Pool::open(path)?,
        None => Pool::open(bundled::model_dir()?)?,
    };
    let layers: Vec<(u16, usize)> =
        pool.layout().moe_layers().map(|layer| (layer, pool.layout().layer(layer).len())).collect();
    if layers.is_empty() {
        bail!("{}: no routed experts", pool.root().display());
    }
    let settings = TierConfig { admission: args.admission, ..TierConfig::default() };
    let tier = Tier::open(pool, settings)?;
    for notice in tier.notices() {
        warn(&notice.text);
    }
    let cold_start = if args.cold { Some(make_cold(&tier)?) } else { None };
    let mut random = ChaCha8Rng::seed_from_u64(args.seed);
    let (mut read, mut checksum) = (0_u64, 0_u64);
    let wanted = Duration::from_secs_f64(args.seconds);
    let started = Instant::now();
    while started.elapsed() < wanted {
        let (layer, experts) = layers[random.random_range(0..layers.len())];
        let route: Vec<u16> = index::sample(&mut random, experts, experts.min(TOP_K))
            .into_iter()
            .filter_map(|expert| u16::try_from(expert).ok())
            .collect();
        let adopted = tier.adopt_batch(layer, &route)?;
        let parts = adopted.experts().flat_map(|expert| expert.parts().to_vec());
        let sum = parts.filter_map(|part| part.bytes.host()).fold((0, 0_u64), |(n, sum), bytes| {
            (n + bytes.len() as u64, sum.wrapping_add(sum_of(bytes)))
        });
        adopted.check()?; // before what was read counts
        read += sum.0;
        checksum = checksum.wrapping_add(sum.1);
    }
    let seconds = started.elapsed().as_secs_f64();
    let report = Report {
        pool: tier.pool().root().to_owned(),
        seconds,
        bytes: read,
        bytes_per_s: read as f64 / seconds,
        checksum,
        cold_start,
        counters: tier.snapshot(),
        settings,
        seed: args.seed,
    };
    if args.json {
        output::json(&report)?;
    } else {
        let Snapshot { adopted_experts, cold_experts, .. } = report.counters;
        writeln!(
            io::stdout().lock(),
            "touch: {adopted_experts} experts ({cold_experts} cold, {}), {} read in place in \
             {seconds:.2} s",
            percent(cold_experts, adopted_experts),
            bytes(read),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Nothing is called cold unless a probe says that it is.
fn make_cold(tier: &Tier) -> Result<Residency> {
    if let Some(place) = memory_file_system(tier.pool()) {
        bail!("{place}: what it holds cannot be evicted, so nothing here is ever cold");
    }
    let left = tier.evict(None)?;
    if left.resident_bytes > 0 {
        bail!(
            "not cold: {} of {} bytes of the experts stay in the page cache",
            left.resident_bytes,
            left.total_bytes
        );
    }
    Ok(left)
}

/// Says so if the pool lies in memory anyway, where eviction has no effect.
pub(super) fn memory_file_system(pool: &Pool) -> Option<String> {
    let storage = Storage::probe(pool.root(), &SystemRoot::default()).ok()?;
    (storage.fs.kind == FsKind::Memory)
        .then(|| format!("{}: {} is a memory file system", pool.root().display(), storage.fs.name))
}

fn sum_of(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let rest = rest.iter().map(|&byte| u64::from(byte));
    words.chain(rest).fold(0, u64::wrapping_add)
}
