//! What the demand watch and the counters add to an adoption, in instructions.
//!
//! Times of some tens of nanoseconds drown in a shared machine's noise; instructions of user space
//! do not. Each number is the difference of two run lengths, so that set-up cancels, on the decode
//! thread alone and over all threads. What the kernel does for an adoption is not counted: every
//! share is one of the user-space part, which is the smaller one, and so the stricter.

mod callgrind;

use crate::Settings;
use crate::pools::Spec;
use crate::report::{Bar, Better, Row};
use crate::stats::Spread;
use anyhow::{Context, Result, ensure};
use callgrind::Counts;
use expert_tier::observe::SystemRoot;
use expert_tier::{Admission, DemandConfig, Pool, Tier, TierConfig};
use router_trace::Route;
use std::path::Path;
use std::process::{Command, Stdio};

/// Experts an adoption.
const EXPERTS: u16 = 8;
/// Share of an adoption that watching may cost.
const TARGET: f64 = 0.01;
/// How often a run is begun before it is an error.
const TRIES: usize = 3;
/// Where the counters are added to, and where the watch and the choice of admission are told: not
/// inlined, so that their cost can be told apart.
const FUNCTIONS: [&str; 3] = ["stats::Counters::add", "::note_demand", "::note_admission"];
const ARMS: [&str; 3] = ["without a watch", "with a watch", "admission auto"];

/// The pool of `pressure`: small experts, so that little user-space work is left to hide behind.
const POOL: Spec = crate::pressure::POOL;

/// Short and long run of one kind.
#[derive(Clone, Copy)]
struct Lengths {
    kind: &'static str,
    short: usize,
    long: usize,
}

/// Costs of one adoption.
#[derive(Clone, Copy)]
struct Cost {
    /// Instructions of the thread that adopts.
    decode: f64,
    /// Of all threads.
    all: f64,
    /// Of the thread that adopts, to add to the counters.
    counters: f64,
    /// Of the thread that adopts, to tell the watch.
    watch: f64,
    /// Of the thread that adopts, to tell the choice of admission.
    choice: f64,
}

pub(crate) fn run(settings: &Settings) -> Result<(Vec<Row>, Vec<Bar>)> {
    let cold_long = usize::from(POOL.layers) * usize::from(POOL.experts / EXPERTS);
    let kinds = [
        Lengths { kind: "warm", short: 2_000, long: settings.pick(22_000, 6_000) },
        Lengths { kind: "cold", short: cold_long / 4, long: cold_long },
    ];
    let workload = |kind: &str| {
        format!("{kind} adoptions of {EXPERTS} experts of 2 MiB, user-space instructions each")
    };
    if let Err(why) = callgrind::available() {
        let rows = kinds.iter().flat_map(|lengths| {
            let name = workload(lengths.kind);
            ARMS.map(|arm| Row::skipped(&name, arm, &why))
        });
        return Ok((
            rows.collect(),
            kinds.iter().flat_map(|k| bars(k.kind, &[const { Vec::new() }; 3])).collect(),
        ));
    }
    let pool = POOL.open(&settings.dir)?;
    let (mut rows, mut all_bars) = (Vec::new(), Vec::new());
    for lengths in kinds {
        let mut costs = [const { Vec::new() }; ARMS.len()];
        for _ in 0..settings.rounds {
            for (arm, costs) in costs.iter_mut().enumerate() {
                costs.push(cost(&pool, lengths, arm)?);
            }
        }
        let name = workload(lengths.kind);
        for (arm, own) in costs.iter().enumerate() {
            rows.push(row(&name, ARMS[arm], own, (arm > 0).then_some(&costs[0])));
        }
        all_bars.extend(bars(lengths.kind, &costs));
    }
    Ok((rows, all_bars))
}

fn bars(kind: &str, costs: &[Vec<Cost>; 3]) -> [Bar; 3] {
    // Of one function, not of two whole arms: how often a thread that waits for reads is woken is
    // chance, and worth more instructions than what is looked for.
    let share = |arm: usize, of: fn(&Cost) -> f64| {
        let pairs = costs[0].iter().zip(&costs[arm]);
        let without = |plain| if arm == 0 { 0.0 } else { of(plain) };
        let shares = pairs.map(|(plain, with)| (of(with) - without(plain)) / plain.decode);
        Spread::of(shares).map(|spread| spread.median)
    };
    let bar = |what: &str, value| {
        let name = format!("instructions, {kind}: {what} / adopt without, on the decode thread");
        Bar::new(name, value, TARGET, Better::Lower)
    };
    [
        bar("telling the demand watch", share(1, |cost| cost.watch)),
        bar("the counters alone", share(0, |cost| cost.counters)),
        bar("telling the choice of admission", share(2, |cost| cost.choice)),
    ]
}

fn row(workload: &str, arm: &str, costs: &[Cost], base: Option<&Vec<Cost>>) -> Row {
    let decode: Vec<f64> = costs.iter().map(|cost| cost.decode).collect();
    let median = |of: fn(&Cost) -> f64| {
        Spread::of(costs.iter().map(of)).map_or(f64::NAN, |spread| spread.median)
    };
    let notes = vec![
        format!("{:.0} over all threads", median(|cost| cost.all)),
        format!("{:.1} to add to the counters", median(|cost| cost.counters)),
        format!("{:.1} to tell the watch", median(|cost| cost.watch)),
        format!("{:.1} to tell the choice of admission", median(|cost| cost.choice)),
    ];
    let under = base.map(|base| base.iter().map(|cost| cost.decode).collect::<Vec<_>>());
    Row {
        workload: workload.to_owned(),
        arm: arm.to_owned(),
        channel: "mapping, in place".to_owned(),
        unit: "instr",
        result: Spread::of(decode.iter().copied()),
        base: under.is_some().then(|| ARMS[0].to_owned()),
        ratio: under.and_then(|under| Spread::of_ratios(&decode, &under)),
        device_bytes_per_asked: None,
        process_bytes_per_asked: None,
        flags: Vec::new(),
        notes,
    }
}

/// One adoption's instructions, from two run lengths.
fn cost(pool: &Pool, lengths: Lengths, arm: usize) -> Result<Cost> {
    let short = count(pool, lengths.kind, lengths.short, arm)?;
    let long = count(pool, lengths.kind, lengths.long, arm)?;
    let adoptions = (lengths.long - lengths.short) as f64;
    let each = |of: fn(&Counts) -> u64| (of(&long) as f64 - of(&short) as f64) / adoptions;
    let found = Cost {
        decode: each(|counts| counts.first_thread),
        all: each(|counts| counts.all_threads),
        counters: each(|counts| counts.functions[0]),
        watch: each(|counts| counts.functions[1]),
        choice: each(|counts| counts.functions[2]),
    };
    ensure!(found.decode > 0.0, "{}: the longer run took fewer instructions", lengths.kind);
    // A function that was inlined or renamed would cost nothing.
    let found_all = found.counters > 0.0 && (arm != 1 || found.watch > 0.0);
    ensure!(found_all, "{}: not all of {FUNCTIONS:?} are in the profile", lengths.kind);
    Ok(found)
}

fn count(pool: &Pool, kind: &str, adoptions: usize, arm: usize) -> Result<Counts> {
    let mut child = Command::new(std::env::current_exe()?);
    child.arg("instructions-child").arg(pool.root()).arg(kind);
    child.arg(adoptions.to_string()).arg(arm.to_string()).stdin(Stdio::null());
    let what = || format!("{adoptions} {kind} adoptions under callgrind");
    // Pages that reclaim takes meanwhile end a run: it has another try.
    for _ in 1..TRIES {
        if let Ok(counts) = callgrind::count(&child, FUNCTIONS) {
            return Ok(counts);
        }
    }
    callgrind::count(&child, FUNCTIONS).with_context(what)
}

/// The counted run. Single-threaded but for the tier's own threads.
pub(crate) fn child(pool: &Path, kind: &str, adoptions: usize, arm: usize) -> Result<()> {
    let admission = if arm == 2 { Admission::Auto } else { Admission::Admit };
    let config = TierConfig { admission, ..TierConfig::default() };
    let tier = Tier::open(Pool::open(pool)?, config)?;
    if arm == 1 {
        tier.watch_demand(DemandConfig::default(), &SystemRoot::default())?;
    }
    let route = |layer: u16, first: u16| {
        let experts: Vec<u16> = (first..first + EXPERTS).collect();
        Route::new(layer, &experts).context("more experts than a route holds")
    };
    // Also what is to be warm: pages that lie in the cache unused for long may go at any moment.
    tier.evict(None)?;
    if kind == "warm" {
        let routes = (0..4).map(|n| route(0, n * EXPERTS)).collect::<Result<Vec<_>>>()?;
        for route in &routes {
            drop(tier.adopt(route)?);
        }
        let before = tier.snapshot();
        for turn in 0..adoptions {
            drop(tier.adopt(&routes[turn % routes.len()])?);
        }
        let seen = tier.snapshot() - before;
        ensure!(seen.cold_experts == 0, "not warm: {} experts were cold", seen.cold_experts);
        return Ok(());
    }
    let a_layer = usize::from(POOL.experts / EXPERTS);
    for turn in 0..adoptions {
        let (layer, place) = (u16::try_from(turn / a_layer)?, u16::try_from(turn % a_layer)?);
        drop(tier.adopt(&route(layer, place * EXPERTS)?)?);
    }
    let seen = tier.snapshot();
    ensure!(seen.warm_experts == 0, "not cold: {} experts were warm", seen.warm_experts);
    Ok(())
}
