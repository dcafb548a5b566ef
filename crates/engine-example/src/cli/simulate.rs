//! `tier simulate`: traces through replacement policies, in fair windows.

use super::args_trace::SimulateArgs;
use super::output;
use super::trace::{name, names, open, write_file, write_tables};
use anyhow::{Context, Result, bail};
use router_trace::policy::PolicyKind;
use router_trace::report::{Axis, Cell, Chart, Column, Mark, Page, Section, Series, Table};
use router_trace::simulate::{Allocation, Budget, Pins, Plan, Replay, Row, Simulation, simulate};
use router_trace::union::BatchUnion;
use router_trace::{Accesses, Demand, LayerPass, Phase, TraceError};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Budgets where none are asked for, in per cent of the pool.
const SWEEP: [f64; 7] = [2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0];

#[derive(Debug, Serialize)]
struct Report {
    window: String,
    /// Prompts were read as well.
    prefill: bool,
    demand: Demand,
    pins: Pins,
    runs: Vec<Run>,
}

/// One trace, and what it was trained on.
#[derive(Debug, Serialize)]
struct Run {
    trace: String,
    /// The trace on whose warm window everything was trained and warmed; the same by default.
    trained_on: Option<String>,
    /// The trace on which static tables were trained; the same by default.
    table_from: Option<String>,
    #[serde(flatten)]
    simulation: Simulation,
}

pub(crate) fn run(args: &SimulateArgs) -> Result<ExitCode> {
    let plan = plan(args);
    let traces = load_all(args)?;
    let other = |path: &Option<PathBuf>| -> Result<Option<(String, Accesses)>> {
        let Some(path) = path else { return Ok(None) };
        Ok(Some((name(path), scenario(args, load(path, args)?)?)))
    };
    let (before, table) = (other(&args.train)?, other(&args.table)?);
    let mut runs = Vec::new();
    for (trace, accesses) in &traces {
        let replay = match (&before, &table) {
            (Some((_, before)), _) => Replay::shift(before, accesses, args.window)?,
            (None, Some((_, table))) => Replay::foreign_table(table, accesses, args.window)?,
            (None, None) => Replay::of(accesses, args.window)?,
        };
        let simulation = simulate(&replay, &plan, |_| ()).context(trace.clone())?;
        runs.push(Run {
            trace: trace.clone(),
            trained_on: before.as_ref().map(|(name, _)| name.clone()),
            table_from: table.as_ref().map(|(name, _)| name.clone()),
            simulation,
        });
    }
    let report = Report {
        window: args.window.to_string(),
        prefill: args.prefill,
        demand: demand(args),
        pins: plan.pins,
        runs,
    };
    let tables: Vec<Table> = report.runs.iter().map(wide_table).collect();
    if let Some(dir) = &args.csv {
        write_tables(dir, &[long_table(&report), layer_table(&report)])?;
    }
    if let Some(path) = &args.html {
        write_file(path, &page(&report).to_html()?)?;
    }
    output::report(args.json, &report, |out| {
        tables.iter().try_for_each(|table| writeln!(out, "{}", table.to_text()))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn plan(args: &SimulateArgs) -> Plan {
    let sweep = || SWEEP.map(Budget::Percent).to_vec();
    Plan {
        policies: args.policies.clone().unwrap_or_else(|| PolicyKind::ALL.to_vec()),
        budgets: args.budgets.clone().unwrap_or_else(sweep),
        allocations: if args.per_layer {
            vec![Allocation::Global, Allocation::PerLayer]
        } else {
            vec![Allocation::Global]
        },
        pins: if args.pinned { Pins::Pass } else { Pins::None },
    }
}

fn demand(args: &SimulateArgs) -> Demand {
    if args.once_per_pass { Demand::OncePerPass } else { Demand::EachToken }
}

/// The traces, or their batch as one.
fn load_all(args: &SimulateArgs) -> Result<Vec<(String, Accesses)>> {
    if args.union {
        return Ok(vec![("batch of all".to_owned(), scenario(args, load_union(args)?)?)]);
    }
    let names = names(&args.traces).into_iter();
    let loaded = args.traces.iter().map(|path| scenario(args, load(path, args)?));
    names.zip(loaded).map(|(name, trace)| Ok((name, trace?))).collect()
}

fn load(path: &Path, args: &SimulateArgs) -> Result<Accesses> {
    let reader = open(path, &args.input)?;
    let header = reader.header().clone();
    let wanted = |pass: &Result<LayerPass, TraceError>| match pass {
        Ok(pass) => args.prefill || pass.info.phase == Phase::Decode,
        Err(_) => true,
    };
    let accesses = Accesses::from_passes(&header, reader.filter(wanted), demand(args))?;
    if accesses.keys().is_empty() {
        bail!("{}: a trace without rows has no hit rate", path.display());
    }
    Ok(accesses)
}

fn load_union(args: &SimulateArgs) -> Result<Accesses> {
    let mut inputs = Vec::new();
    for path in &args.traces {
        let reader = open(path, &args.input)?;
        inputs.push((reader.header().clone(), reader));
    }
    let mut batch = BatchUnion::new(inputs)?;
    let header = batch.header().clone();
    // A batch loads what its sequences share once.
    Ok(Accesses::from_passes(&header, &mut batch, Demand::OncePerPass)?)
}

fn scenario(args: &SimulateArgs, mut accesses: Accesses) -> Result<Accesses> {
    if let Some(bytes) = args.input.expert_bytes {
        accesses = accesses.with_expert_bytes(bytes);
    }
    if let Some(every) = args.prefill_every {
        accesses = accesses.with_prefills(every, args.prefill_share, args.seed)?;
    }
    if let Some(share) = args.one_off {
        accesses = accesses.with_one_off_reads(share)?;
    }
    Ok(accesses)
}

fn allocation(row: &Row) -> &'static str {
    match row.allocation {
        Allocation::Global => "global",
        Allocation::PerLayer => "per layer",
    }
}

/// Policies down, budgets across.
fn wide_table(run: &Run) -> Table {
    let simulation = &run.simulation;
    let mut budgets: Vec<(String, u64)> = Vec::new();
    let mut lines: Vec<(String, BTreeMap<u64, f64>)> = Vec::new();
    for row in &simulation.rows {
        let budget = (row.budget.to_string(), row.budget_experts);
        if !budgets.contains(&budget) {
            budgets.push(budget);
        }
        let name = match row.allocation {
            Allocation::Global => row.policy.to_string(),
            Allocation::PerLayer => format!("{}, {}", row.policy, allocation(row)),
        };
        let at = lines.iter().position(|(line, _)| *line == name).unwrap_or_else(|| {
            lines.push((name, BTreeMap::new()));
            lines.len() - 1
        });
        lines[at].1.insert(row.budget_experts, row.hit_rate);
    }
    let head = budgets.iter().map(|(text, experts)| {
        let title =
            if *text == experts.to_string() { text.clone() } else { format!("{text} = {experts}") };
        Column::new(&format!("hit_rate_{experts}"), &title)
    });
    let columns = std::iter::once(Column::new("policy", "policy \\ experts")).chain(head);
    let trained = run.trained_on.as_ref().or(run.table_from.as_ref());
    let title = match trained {
        Some(other) => format!("{}, trained on {other}: hit rate", run.trace),
        None => format!("{}: hit rate", run.trace),
    };
    let note = format!(
        "{} iterations warm, {} are scored: {} accesses to {} experts, {} of them not seen before.",
        simulation.warm_iterations,
        simulation.scored_iterations,
        simulation.accesses,
        simulation.distinct_experts,
        simulation.compulsory_misses
    );
    let mut table = Table::new("hit_rates", &title, &note, columns.collect());
    for (name, rates) in lines {
        let cells = budgets.iter().map(|(_, experts)| {
            Cell::of(rates.get(experts).copied(), |rate| Cell::Number(rate, 3))
        });
        table.push(std::iter::once(Cell::Text(name)).chain(cells).collect());
    }
    table
}

const ROW_COLUMNS: [&str; 12] = [
    "trace",
    "policy",
    "allocation",
    "budget",
    "budget_experts",
    "budget_percent",
    "accesses",
    "hits",
    "hit_rate",
    "misses_per_iteration",
    "miss_bytes",
    "miss_bytes_per_iteration",
];

fn columns(names: &[&str]) -> Vec<Column> {
    names.iter().map(|name| Column::new(name, name)).collect()
}

/// A line for each policy, budget and allocation.
fn long_table(report: &Report) -> Table {
    let mut table = Table::new("simulation", "simulation", "", columns(&ROW_COLUMNS));
    for (run, row) in
        report.runs.iter().flat_map(|run| run.simulation.rows.iter().map(move |row| (run, row)))
    {
        table.push(vec![
            Cell::Text(run.trace.clone()),
            Cell::Text(row.policy.to_string()),
            allocation(row).into(),
            Cell::Text(row.budget.to_string()),
            row.budget_experts.into(),
            Cell::Number(row.budget_percent, 2),
            row.count.accesses.into(),
            row.count.hits.into(),
            Cell::Number(row.hit_rate, 4),
            Cell::Number(row.misses_per_iteration, 2),
            row.miss_bytes.map_or(Cell::Missing, Cell::Count),
            Cell::of(row.miss_bytes_per_iteration, |bytes| Cell::Number(bytes, 0)),
        ]);
    }
    table
}

/// The same for each layer.
fn layer_table(report: &Report) -> Table {
    let names = [
        "trace",
        "policy",
        "allocation",
        "budget",
        "layer",
        "accesses",
        "hits",
        "distinct_experts",
    ];
    let mut table = Table::new("simulation_layers", "layers", "", columns(&names));
    for run in &report.runs {
        for row in &run.simulation.rows {
            for layer in &row.layers {
                table.push(vec![
                    Cell::Text(run.trace.clone()),
                    Cell::Text(row.policy.to_string()),
                    allocation(row).into(),
                    Cell::Text(row.budget.to_string()),
                    u64::from(layer.layer).into(),
                    layer.count.accesses.into(),
                    layer.count.hits.into(),
                    layer.distinct_experts.into(),
                ]);
            }
        }
    }
    table
}

/// Hit rate against budget, a chart a trace and allocation.
fn page(report: &Report) -> Page {
    let mut page = Page::new("Expert caches, simulated").paragraph(&format!(
        "Window {} (warm/scored): every policy warms on the same iterations and is scored on the \
         same ones. Belady knows the future: nobody can do better while admitting everything.",
        report.window
    ));
    for run in &report.runs {
        let mut section = Section::new(&run.trace).table(wide_table(run));
        for of in [Allocation::Global, Allocation::PerLayer] {
            if let Some(chart) = chart(run, of) {
                section = section.figure(chart);
            }
        }
        page = page.section(section);
    }
    page.section(Section::new("All rows").table(Table { detail: true, ..long_table(report) }))
}

fn chart(run: &Run, allocation: Allocation) -> Option<Chart> {
    let rows = run.simulation.rows.iter().filter(|row| row.allocation == allocation);
    let mut series: Vec<(PolicyKind, Vec<(f64, f64)>)> = Vec::new();
    for row in rows {
        let point = (row.budget_experts as f64, 100.0 * row.hit_rate);
        match series.iter_mut().find(|(policy, _)| *policy == row.policy) {
            Some((_, points)) => points.push(point),
            None => series.push((row.policy, vec![point])),
        }
    }
    if series.iter().all(|(_, points)| points.len() < 2) {
        return None;
    }
    let title = match allocation {
        Allocation::Global => format!("{}, one pool", run.trace),
        Allocation::PerLayer => format!("{}, a cache for each layer", run.trace),
    };
    let axis = Axis::log2("budget (experts)");
    let chart = Chart::new(&title, axis, Axis::percent("hit rate"));
    Some(series.into_iter().fold(chart, |chart, (policy, mut points)| {
        points.sort_by(|left, right| left.0.total_cmp(&right.0));
        chart.with(Series::new(&policy.to_string(), Mark::Dotted, points))
    }))
}
