//! How fast traces are replayed through replacement policies.

use crate::Settings;
use crate::report::{Bar, Better, Row};
use crate::stats::Spread;
use anyhow::Result;
use router_trace::Synthetic;
use router_trace::policy::PolicyKind;
use router_trace::simulate::{SpeedReport, SpeedRow};

pub(crate) fn run(settings: &Settings) -> Result<(Vec<Row>, Vec<Bar>)> {
    let full = Synthetic::ten_million();
    let accesses = settings.pick(full.accesses, full.accesses / 20);
    let trace = Synthetic { accesses, ..full }.generate()?;
    let rounds = u32::try_from(settings.rounds)?;
    let report = SpeedReport::measure(&trace, trace.n_keys() / 4, rounds, |row| {
        eprintln!("{}: {:.1} M accesses/s", row.policy, row.accesses_per_s / 1e6);
    })?;
    let workload = format!(
        "{} made-up accesses to {} experts, room for {}, one thread, built and replayed from cold",
        report.accesses, report.distinct_experts, report.capacity_experts
    );
    let rows = report.rows.iter().map(|row| to_row(&workload, row, settings.rounds)).collect();
    let bars = report.targets().map(|(row, target, _)| {
        let name = format!("simulate, {}: accesses a second", row.policy);
        Bar::new(name, Some(row.accesses_per_s), target, Better::Higher)
    });
    Ok((rows, bars.collect()))
}

fn to_row(workload: &str, row: &SpeedRow, rounds: usize) -> Row {
    let (median, min, max) = (row.accesses_per_s, row.min_per_s, row.max_per_s);
    let millions = |rate: f64| rate / 1e6;
    let n =
        if row.policy == PolicyKind::Lru { rounds * (PolicyKind::ALL.len() - 1) } else { rounds };
    Row {
        workload: workload.to_owned(),
        arm: row.policy.to_string(),
        channel: "no I/O".to_owned(),
        unit: "M/s",
        result: Some(Spread {
            median: millions(median),
            min: millions(min),
            max: millions(max),
            n,
        }),
        base: None,
        ratio: None,
        device_bytes_per_asked: None,
        process_bytes_per_asked: None,
        flags: Vec::new(),
        notes: vec![format!(
            "{:.2} times LRU's time, median of {rounds} pairs; hits {:.4} of all accesses",
            row.time_over_lru, row.hit_rate
        )],
    }
}
