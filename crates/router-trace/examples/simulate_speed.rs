//! Accesses a second of every policy on a made-up trace of 10 million accesses, and the time
//! of each over LRU's in interleaved pairs.
//!
//! ```text
//! cargo run --release -p router-trace --example simulate_speed -- [--json] [CAPACITY [ROUNDS]]
//! ```
//!
//! Ends with status 1 if a policy misses its target.

use router_trace::Synthetic;
use router_trace::simulate::SpeedReport;
use std::process::ExitCode;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut json = false;
    let mut numbers = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--json" => json = true,
            number => numbers.push(number.parse::<u32>()?),
        }
    }
    let trace = Synthetic::ten_million().generate()?;
    let quarter = trace.n_keys() / 4;
    let capacity = numbers.first().map_or(quarter, |&capacity| capacity as usize);
    let rounds = numbers.get(1).copied().unwrap_or(3);
    let report = SpeedReport::measure(&trace, capacity, rounds, |row| {
        eprintln!("{} measured", row.policy);
    })?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!(
            "{} accesses to {} experts, room for {}, {} rounds",
            report.accesses, report.distinct_experts, report.capacity_experts, report.rounds
        );
        println!("policy          M accesses/s   (min to max)  time/LRU  hits  target");
        for (row, target, holds) in report.targets() {
            println!(
                "{:<15} {:>12.1} {:>6.1} {:>7.1} {:>9.2} {:>5.3} {:>7.0} {}",
                row.policy.name(),
                row.accesses_per_s / 1e6,
                row.min_per_s / 1e6,
                row.max_per_s / 1e6,
                row.time_over_lru,
                row.hit_rate,
                target / 1e6,
                if holds { "holds" } else { "MISSED" },
            );
        }
    }
    let all_hold = report.targets().all(|(_, _, holds)| holds);
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
