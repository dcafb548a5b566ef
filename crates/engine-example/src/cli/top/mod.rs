//! `tier top`: a running tier and the machine below it, live.

mod sample;
mod view;

use super::args_trace::TopArgs;
use super::output;
use anyhow::{Result, ensure};
use expert_tier::observe::{BlockCounters, SystemRoot};
use expert_tier::{Pool, ProbeKind, Tier, TierConfig};
use sample::{Rates, Sample};
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

/// Below this the readings cost more than they show.
const LEAST_INTERVAL_S: f64 = 0.1;

/// What is looked at.
struct Watched {
    /// Where a tier exports its counters.
    address: Option<String>,
    /// A pool whose residency is probed; it is mapped here, and never read.
    pool: Option<Tier>,
    /// Of the devices behind it.
    device: Option<BlockCounters>,
    root: SystemRoot,
}

pub(crate) fn run(args: &TopArgs) -> Result<ExitCode> {
    ensure!(
        args.interval.is_finite() && args.interval >= LEAST_INTERVAL_S,
        "--interval {} must be at least {LEAST_INTERVAL_S} seconds",
        args.interval
    );
    let interval = Duration::from_secs_f64(args.interval);
    let pool = args.pool.as_ref().map(|path| open(path)).transpose()?;
    let root = SystemRoot::default();
    let device = pool.as_ref().and_then(|pool| pool.device_counters(&root).ok());
    let watched = Watched { address: args.from.clone(), pool, device, root };
    if args.json || !io::stdout().is_terminal() {
        let earlier = Sample::take(&watched)?;
        std::thread::sleep(interval);
        let rates = Rates::between(&earlier, &Sample::take(&watched)?);
        output::report(args.json, &rates, |out| out.write_all(view::plain(&rates).as_bytes()))?;
        return Ok(ExitCode::SUCCESS);
    }
    view::live(interval, || Sample::take(&watched))?;
    Ok(ExitCode::SUCCESS)
}

fn open(path: &std::path::Path) -> Result<Tier> {
    let pool = Pool::open(path)?;
    // Asking page tables says nothing of a pool that another process uses: the cache is asked.
    let config = |probe| TierConfig { fill_threads: 1, probe, ..TierConfig::default() };
    let by_cache = Tier::open(pool.clone(), config(Some(ProbeKind::Cachestat)));
    Ok(by_cache.or_else(|_| Tier::open(pool, config(None)))?)
}
