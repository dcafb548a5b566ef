//! A campaign as tables.

use super::results::{CampaignReport, Point, RunRow};
use router_trace::report::{Cell, Column, Table};

const MB: f64 = 1e6;

/// One row an arm and place.
pub(crate) fn points(report: &CampaignReport) -> Table {
    let columns = [
        ("wall", "Wall"),
        ("reclaim", "Reclaim"),
        ("capacity", "Capacity"),
        ("capacity_bytes", "MiB"),
        ("arm", "Arm"),
        ("kept_runs", "Runs kept"),
        ("iteration_ms", "ms/it"),
        ("iteration_ms_spread", "spread"),
        ("ratio", "time/mapped"),
        ("read_mb", "MB/it read"),
        ("read_spread", "spread"),
        ("reference_deviation", "a/C dev"),
        ("nominal_mb", "LRU miss MB/it"),
        ("amplification", "amp"),
        ("resident_mb", "in cache MB"),
        ("locked_mb", "VmLck MB"),
        ("available_mb", "available MB"),
        ("scan_per_steal", "scan/steal"),
        ("note", "Note"),
    ];
    let columns = columns.map(|(name, title)| Column::new(name, title)).to_vec();
    let note = "Medians over the runs that count. ms/it: mean time of an iteration in a run, compute \
                left out. Spread: largest over smallest run, less one. a/C dev: bytes read against \
                the inverse-capacity line through the largest one up to half the pool. LRU misses: \
                exact LRU of as many experts as were really kept and cached. amp: bytes read over \
                those.";
    let mut table = Table::new("points", "Every arm at every capacity", note, columns);
    for row in &report.rows {
        table.push(point(row));
    }
    table
}

fn point(row: &Point) -> Vec<Cell> {
    let summary = &row.summary;
    let number = |value: Option<f64>, cell: fn(f64) -> Cell| Cell::of(value, cell);
    let two = |value| Cell::Number(value, 2);
    let mb =
        |bytes: Option<u64>| number(bytes.map(|bytes| bytes as f64 / MB), |mb| Cell::Number(mb, 0));
    let spread = summary.run_ms.map(|run| run.max / run.min - 1.0);
    vec![
        row.place.wall.name().into(),
        row.place.reclaim.name().into(),
        row.place.capacity.as_str().into(),
        Cell::Count(row.capacity_bytes >> 20),
        summary.arm.name().into(),
        Cell::Text(format!("{}/{}", summary.kept_runs, summary.kept_runs + summary.discarded_runs)),
        number(summary.run_ms.map(|run| run.median), two),
        number(spread, Cell::Share),
        number(summary.ratio.map(|ratio| ratio.median), two),
        number(row.read_bytes.map(|bytes| bytes / MB), two),
        number(summary.block_layer_spread, Cell::Share),
        number(row.deviation(), Cell::Share),
        number(row.nominal_bytes.map(|bytes| bytes / MB), two),
        number(row.amplification(), |value| Cell::Number(value, 3)),
        mb(summary.resident_file_bytes),
        mb(summary.locked_bytes),
        mb(summary.mem_available_bytes),
        number(summary.scan_per_steal, two),
        Cell::Text(row.skipped.as_ref().map_or_else(String::new, |why| format!("SKIPPED: {why}"))),
    ]
}

/// One row a run.
pub(crate) fn runs(report: &CampaignReport) -> Table {
    let columns = [
        ("wall", "Wall"),
        ("reclaim", "Reclaim"),
        ("capacity", "Capacity"),
        ("arm", "Arm"),
        ("repetition", "Repetition"),
        ("ms_per_iteration", "ms/it"),
        ("block_layer_bytes", "Block-layer bytes"),
        ("process_read_bytes", "Own bytes"),
        ("resident_file_bytes", "In cache"),
        ("locked_bytes", "VmLck"),
        ("mem_available_bytes", "MemAvailable"),
        ("peak_bytes", "Group's peak"),
        ("scan_per_steal", "scan/steal"),
        ("refaulted_file_pages", "Refaults"),
        ("memory_stall_us", "Memory stall us"),
        ("io_stall_us", "Storage stall us"),
        ("discarded", "Discarded"),
    ];
    let columns = columns.map(|(name, title)| Column::new(name, title)).to_vec();
    let note = "Every run in the order in which it was made; those that do not count say why.";
    let mut table = Table::new("runs", "Every run", note, columns);
    table.detail = true;
    for row in &report.runs {
        table.push(run(row));
    }
    table
}

fn run(row: &RunRow) -> Vec<Cell> {
    let count = |value: Option<u64>| value.map_or(Cell::Missing, Cell::Count);
    vec![
        row.cell.place.wall.name().into(),
        row.cell.place.reclaim.name().into(),
        row.cell.place.capacity.as_str().into(),
        row.cell.arm.name().into(),
        Cell::Count(row.cell.repetition as u64),
        Cell::of(row.ms_per_iteration, |ms| Cell::Number(ms, 2)),
        count(row.block_layer_bytes),
        count(row.process_read_bytes),
        count(row.resident_file_bytes),
        count(row.locked_bytes),
        count(row.mem_available_bytes),
        count(row.peak_bytes),
        Cell::of(row.scan_per_steal, |value| Cell::Number(value, 2)),
        count(row.refaulted_file_pages),
        count(row.memory_stall_us),
        count(row.io_stall_us),
        Cell::Text(row.discarded.clone().unwrap_or_default()),
    ]
}
