use super::cells::{Cell, Place, places};
use super::definition::{Definition, WallKind, capacity_of};
use super::figures;
use super::journal::Entry;
use super::tables;
use crate::machine::Machine;
use crate::report::{Bar, Better};
use anyhow::{Context, Result};
use engine_example::pairs::Spread;
use engine_example::replay::{ArmSummary, Nominal, ReplayArm, ReplayRun, Wall, WallFacts};
use router_trace::report::write_csv;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// One arm at one place.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Point {
    pub(crate) place: Place,
    /// The target: what experts may have.
    pub(crate) capacity_bytes: u64,
    pub(crate) slack_bytes: u64,
    /// What arenas and locked sets keep.
    pub(crate) places: usize,
    pub(crate) wall: WallFacts,
    /// How the kernel reclaimed.
    pub(crate) reclaim: Option<String>,
    /// Why there is nothing.
    pub(crate) skipped: Option<String>,
    pub(crate) summary: ArmSummary,
    /// Block-layer bytes an iteration: those of the run, where others read beside it.
    pub(crate) read_bytes: Option<f64>,
    /// The same of the run that read least, and of the one that read most.
    pub(crate) read_range: Option<(f64, f64)>,
    /// What exact LRU of as much memory would have read.
    pub(crate) nominal_bytes: Option<f64>,
    /// `a/C`, where a is what was read at the largest capacity up to half the pool.
    pub(crate) reference_bytes: Option<f64>,
}

/// One run, without its timeline: that is in the journal.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunRow {
    pub(crate) cell: Cell,
    pub(crate) discarded: Option<String>,
    pub(crate) ms_per_iteration: Option<f64>,
    pub(crate) block_layer_bytes: Option<u64>,
    pub(crate) process_read_bytes: Option<u64>,
    pub(crate) resident_file_bytes: Option<u64>,
    pub(crate) locked_bytes: Option<u64>,
    pub(crate) mem_available_bytes: Option<u64>,
    pub(crate) peak_bytes: Option<u64>,
    pub(crate) scan_per_steal: Option<f64>,
    pub(crate) refaulted_file_pages: Option<u64>,
    pub(crate) memory_stall_us: Option<u64>,
    pub(crate) io_stall_us: Option<u64>,
}

/// All that a campaign says.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CampaignReport {
    pub(crate) bench: &'static str,
    pub(crate) definition: Definition,
    pub(crate) machine: Machine,
    pub(crate) pool_bytes: u64,
    pub(crate) expert_bytes: u64,
    pub(crate) iterations: usize,
    pub(crate) logical_accesses: u64,
    pub(crate) rows: Vec<Point>,
    pub(crate) bars: Vec<Bar>,
    pub(crate) runs: Vec<RunRow>,
}

/// A place where no wall was set up.
pub(crate) fn no_wall() -> WallFacts {
    WallFacts {
        wall: Wall::None,
        enforced: false,
        reason: None,
        version: None,
        mem_total_bytes: None,
    }
}

impl CampaignReport {
    pub(crate) fn new(
        bench: &'static str,
        definition: Definition,
        machine: Machine,
        entries: &[Entry],
        nominal: &Nominal<'_>,
    ) -> Result<Self> {
        let plan = nominal.plan();
        let expert_bytes = plan.expert_bytes();
        let pool_bytes = plan.accesses().key_space().n_keys() as u64 * expert_bytes;
        let iterations = plan.accesses().n_iterations();
        let mut rows = Vec::new();
        for place in places(&definition) {
            let capacity_bytes = capacity_of(&place.capacity, pool_bytes)?;
            for &arm in &definition.arms {
                rows.push(Point::of(&place, arm, capacity_bytes, entries, nominal));
            }
        }
        refer(&mut rows, pool_bytes);
        let bars = bars(bench, &definition, &rows, pool_bytes);
        let runs = entries.iter().filter_map(RunRow::of).collect();
        let logical_accesses = plan.accesses().keys().len() as u64;
        Ok(Self {
            bench,
            definition,
            machine,
            pool_bytes,
            expert_bytes,
            iterations,
            logical_accesses,
            rows,
            bars,
            runs,
        })
    }

    /// Writes everything into `dir`: JSON, CSV, figures, and one page with all of them.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        let put = |name: &str, bytes: &[u8]| {
            let path = dir.join(name);
            fs::write(&path, bytes).with_context(|| path.display().to_string())
        };
        put("definition.toml", toml::to_string(&self.definition)?.as_bytes())?;
        put("campaign.json", &serde_json::to_vec_pretty(self)?)?;
        for table in [tables::points(self), tables::runs(self)] {
            let path = dir.join(&table.name).with_extension("csv");
            let file = File::create(&path).with_context(|| path.display().to_string())?;
            write_csv(&table, BufWriter::new(file))?;
        }
        for (name, svg) in figures::svgs(self)? {
            put(&format!("{name}.svg"), svg.as_bytes())?;
        }
        put("report.html", figures::page(self).to_html()?.as_bytes())
    }

    pub(crate) fn print(&self, json: bool, dir: &Path) -> Result<()> {
        let mut out = io::stdout().lock();
        if json {
            serde_json::to_writer_pretty(&mut out, self)?;
            writeln!(out)?;
            return Ok(());
        }
        writeln!(out, "{}: {}", self.bench, self.machine)?;
        writeln!(out, "{}\n", self.definition.about)?;
        writeln!(out, "{}", tables::points(self).to_text())?;
        crate::report::write_bars(&self.bars, &mut out)?;
        writeln!(out, "\n{} has the report, the figures and every run", dir.display())?;
        Ok(())
    }
}

impl Point {
    fn of(
        place: &Place,
        arm: ReplayArm,
        capacity_bytes: u64,
        entries: &[Entry],
        nominal: &Nominal<'_>,
    ) -> Self {
        let here: Vec<&Entry> = entries.iter().filter(|one| one.cell.place == *place).collect();
        let runs: Vec<ReplayRun> = here.iter().filter_map(|entry| entry.run.clone()).collect();
        let of_arm = || here.iter().filter(|entry| entry.cell.arm == arm);
        let first = of_arm().find(|entry| entry.run.is_some()).or_else(|| of_arm().next());
        let summary = ArmSummary::of(arm, &runs, nominal);
        let iterations = nominal.plan().accesses().n_iterations().max(1) as f64;
        let read = run_bytes(summary.block_layer_bytes, summary.process_read_bytes);
        let each = runs.iter().filter(|run| run.arm == arm && run.kept()).filter_map(|run| {
            let measured = run.measurement.as_ref()?;
            run_bytes(measured.block_layer_bytes, measured.process_read_bytes)
        });
        let each = each.map(|bytes| bytes as f64 / iterations).collect::<Vec<_>>();
        Self {
            place: place.clone(),
            capacity_bytes,
            slack_bytes: first.map_or(0, |entry| entry.slack_bytes),
            places: first.map_or(0, |entry| entry.places),
            wall: first.map_or_else(no_wall, |entry| entry.wall.clone()),
            reclaim: first.and_then(|entry| entry.reclaim.clone()),
            skipped: of_arm().find_map(|entry| entry.skipped.clone()),
            read_bytes: read.map(|bytes| bytes as f64 / iterations),
            read_range: Spread::of(&each).map(|Spread { min, max, .. }| (min, max)),
            nominal_bytes: summary.nominal_miss_bytes.map(|bytes| bytes as f64 / iterations),
            reference_bytes: None,
            summary,
        }
    }

    /// Bytes read a nominal miss byte.
    pub(crate) fn amplification(&self) -> Option<f64> {
        let nominal = self.nominal_bytes.filter(|&bytes| bytes > 0.0)?;
        Some(self.read_bytes? / nominal)
    }

    /// How far the bytes read lie from `a/C`.
    pub(crate) fn deviation(&self) -> Option<f64> {
        Some(self.read_bytes? / self.reference_bytes? - 1.0)
    }

    /// Whether both are runs of one line of a figure.
    pub(crate) fn same_line(&self, other: &Self) -> bool {
        self.place.wall == other.place.wall
            && self.place.reclaim == other.place.reclaim
            && self.summary.arm == other.summary.arm
    }
}

/// The device counts for everyone; where others read more than 1 % beside a run, what counts is
/// what the block layer charged to it.
fn run_bytes(device: Option<u64>, own: Option<u64>) -> Option<u64> {
    match (device, own) {
        (Some(device), Some(own)) if device as f64 > own as f64 * 1.01 + 1e6 => Some(own),
        (device, _) => device,
    }
}

/// Anchors `a/C` at the largest capacity of each line that is at most half the pool and at which
/// experts are read at all, more than one an iteration: near the whole pool, where misses end, no
/// inverse law can hold.
fn refer(rows: &mut [Point], pool_bytes: u64) {
    let all = rows.to_vec();
    for row in rows {
        let expert = row.summary.logical_bytes.unwrap_or(0) as f64
            / row.summary.logical_accesses.max(1) as f64;
        let line = all.iter().filter(|other| other.same_line(row));
        let anchor = line
            .filter(|point| point.capacity_bytes <= pool_bytes / 2 + pool_bytes / 100)
            .filter(|point| point.read_bytes.is_some_and(|bytes| bytes > expert))
            .max_by_key(|point| point.capacity_bytes);
        row.reference_bytes = anchor.and_then(|anchor| {
            let a = anchor.read_bytes? * anchor.capacity_bytes as f64;
            Some(a / row.capacity_bytes as f64)
        });
    }
}

/// The figures that are claimed, as far as the definition has what they need.
fn bars(kind: &str, definition: &Definition, rows: &[Point], pool_bytes: u64) -> Vec<Bar> {
    let worst = rows.iter().filter(|row| row.place.wall != WallKind::Balloon).filter_map(|row| {
        // Of next to nothing every spread is large.
        let floor = row.summary.logical_bytes? / 100;
        row.summary.block_layer_spread.filter(|_| row.summary.block_layer_bytes >= Some(floor))
    });
    let worst =
        worst.fold(None, |worst: Option<f64>, spread| Some(worst.unwrap_or(0.0).max(spread)));
    let name =
        format!("{kind}: device bytes over {} runs, spread, worst cell", definition.repetitions);
    let mut bars = vec![Bar::new(name, worst, 0.04, Better::Lower)];
    // Half the pool is what the targets are stated for.
    let half = |row: &&Point| {
        row.place.wall == WallKind::Cgroup
            && row.capacity_bytes.abs_diff(pool_bytes / 2) <= pool_bytes / 100
    };
    for row in rows.iter().filter(half) {
        let name = row.summary.arm.name();
        let at = format!("{}, {}", row.place.capacity, row.place.reclaim.name());
        match row.summary.arm {
            ReplayArm::Mapped => {
                let name = format!("{kind}: {name}, device bytes / exact LRU's ({at})");
                bars.push(Bar::new(name, row.amplification(), 1.05, Better::Lower));
            }
            ReplayArm::PinnedEqual => {
                let name = format!("{kind}: mapped, time / {name}'s ({at})");
                let ratio = row.summary.ratio.map(|ratio| 1.0 / ratio.median);
                bars.push(Bar::new(name, ratio, 1.02, Better::Lower));
            }
            _ => {}
        }
    }
    bars
}

impl RunRow {
    fn of(entry: &Entry) -> Option<Self> {
        let run = entry.run.as_ref()?;
        let measured = run.measurement.as_ref();
        let during = measured.map(|one| one.during);
        let iterations = measured.map_or(1, |one| one.iterations.len().max(1)) as f64;
        Some(Self {
            cell: entry.cell.clone(),
            discarded: run.discarded.clone(),
            ms_per_iteration: run.wall_ns().map(|ns| ns as f64 / 1e6 / iterations),
            block_layer_bytes: measured.and_then(|one| one.block_layer_bytes),
            process_read_bytes: measured.and_then(|one| one.process_read_bytes),
            resident_file_bytes: measured.map(|one| one.resident_file_bytes),
            locked_bytes: measured.and_then(|one| one.entry.locked_bytes),
            mem_available_bytes: measured.and_then(|one| one.entry.mem_available_bytes),
            peak_bytes: run.scope.as_ref().and_then(|scope| scope.peak_bytes),
            scan_per_steal: during.and_then(|during| during.scan_per_steal()),
            refaulted_file_pages: during.and_then(|during| during.refaulted_file_pages),
            memory_stall_us: during.and_then(|during| during.stalls.memory_some_us),
            io_stall_us: during.and_then(|during| during.stalls.io_some_us),
        })
    }
}
