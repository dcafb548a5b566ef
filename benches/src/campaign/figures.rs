//! A campaign as figures: capacity response, amplification, bars at equal memory, reclaim matrix.

use super::results::{CampaignReport, Point};
use super::tables;
use anyhow::Result;
use engine_example::pairs::Spread;
use router_trace::report::{Axis, BarValue, Bars, Chart, Figure, Mark, Page, Section, Series};

const MIB: f64 = (1 << 20) as f64;
const MB: f64 = 1e6;

/// Every figure under the name of its file.
pub(crate) fn svgs(report: &CampaignReport) -> Result<Vec<(String, String)>> {
    let drawn = figures(report).into_iter().map(|(name, figure)| {
        let svg = match &figure {
            Figure::Chart(chart) => chart.to_svg(),
            Figure::Bars(bars) => bars.to_svg(),
            Figure::Matrix(matrix) => matrix.to_svg(),
        };
        Ok((name.to_owned(), svg?))
    });
    drawn.collect()
}

/// All of it on one page.
pub(crate) fn page(report: &CampaignReport) -> Page {
    let definition = &report.definition;
    let setting = format!(
        "{} iterations, {} expert accesses each replay, experts of {:.2} MiB, pool of {:.0} MiB; \
         {} demand threads, {} fill threads; {} repetitions, seed {}. Every run is a process of \
         its own that begins cold: one replay to warm up, one measured, behind one wall.",
        report.iterations,
        report.logical_accesses,
        report.expert_bytes as f64 / MIB,
        report.pool_bytes as f64 / MIB,
        definition.threads,
        definition.fill_threads,
        definition.repetitions,
        definition.seed,
    );
    let mut page = Page::new(&format!("{}: {}", report.bench, definition.name))
        .paragraph(&definition.about)
        .paragraph(&setting)
        .paragraph(&report.machine.to_string());
    for bar in &report.bars {
        page = page.paragraph(&bar.to_string());
    }
    let mut section = Section::new("Figures");
    for (_, figure) in figures(report) {
        section = section.figure(figure);
    }
    let tables = Section::new("Figures in numbers")
        .table(tables::points(report))
        .table(tables::runs(report));
    page.section(section).section(tables)
}

fn figures(report: &CampaignReport) -> Vec<(&'static str, Figure)> {
    let mut figures: Vec<(&str, Figure)> = Vec::new();
    let definition = &report.definition;
    if definition.capacities.len() > 1 {
        figures.push(("capacity-time", time_response(report).into()));
        figures.push(("capacity-bytes", byte_response(report).into()));
        figures.push(("amplification", amplification(report).into()));
    }
    if definition.arms.len() > 1 {
        let time = |row: &Point| value(row.summary.run_ms);
        let text = "Equal memory: time";
        figures.push((
            "equal-memory-time",
            by_arm(report, text, "ms an iteration", &time, false).into(),
        ));
        let bytes = |row: &Point| read(row);
        let text = "Equal memory: bytes read";
        figures.push((
            "equal-memory-bytes",
            by_arm(report, text, "MB an iteration", &bytes, true).into(),
        ));
    }
    if definition.walls.len() > 1 || definition.reclaim.len() > 1 {
        figures.push(("reclaim", reclaim(report).into()));
    }
    figures
}

fn value(spread: Option<Spread>) -> Option<BarValue> {
    let Spread { median, min, max } = spread?;
    Some(BarValue { middle: median, range: Some((min, max)) })
}

fn read(row: &Point) -> Option<BarValue> {
    let middle = row.read_bytes? / MB;
    let range = row.read_range.map(|(least, most)| (least / MB, most / MB));
    Some(BarValue { middle, range })
}

/// The lines of a figure over capacity: points of one arm behind one wall.
fn lines(report: &CampaignReport) -> Vec<(String, Vec<&Point>)> {
    let mut lines: Vec<(String, Vec<&Point>)> = Vec::new();
    for row in &report.rows {
        match lines.iter_mut().find(|(_, points)| points[0].same_line(row)) {
            Some((_, points)) => points.push(row),
            None => lines.push((line_name(report, row), vec![row])),
        }
    }
    for (_, points) in &mut lines {
        points.sort_by_key(|point| point.capacity_bytes);
    }
    lines
}

fn line_name(report: &CampaignReport, row: &Point) -> String {
    let mut words = Vec::new();
    let definition = &report.definition;
    if definition.arms.len() > 1 || (definition.walls.len() < 2 && definition.reclaim.len() < 2) {
        words.push(row.summary.arm.name());
    }
    if definition.walls.len() > 1 {
        words.push(row.place.wall.name());
    }
    if definition.reclaim.len() > 1 {
        words.push(row.place.reclaim.name());
    }
    words.join(", ")
}

fn over_capacity(points: &[&Point], of: impl Fn(&Point) -> Option<f64>) -> Vec<(f64, f64)> {
    let at = |point: &&Point| Some((point.capacity_bytes as f64 / MIB, of(point)?));
    points.iter().filter_map(at).collect()
}

fn time_response(report: &CampaignReport) -> Chart {
    let note = "Median over the runs; each run is one pale line.";
    let x = Axis::log2("capacity (MiB)");
    let mut chart =
        Chart::new("Capacity response: time", x, Axis::linear("ms an iteration")).noted(note);
    for (name, points) in lines(report) {
        let median = over_capacity(&points, |point| Some(point.summary.run_ms?.median));
        chart = chart.with(Series::new(&name, Mark::Dotted, median));
        for repetition in 1..=report.definition.repetitions {
            let of = |point: &Point| {
                let run = report.runs.iter().rfind(|run| {
                    run.discarded.is_none()
                        && run.cell.repetition == repetition
                        && run.cell.place == point.place
                        && run.cell.arm == point.summary.arm
                });
                run?.ms_per_iteration
            };
            chart = chart.with(Series::new("", Mark::Faint, over_capacity(&points, of)));
        }
    }
    chart
}

fn byte_response(report: &CampaignReport) -> Chart {
    let note = "Dots: bytes that the block layer read. Dashed: what exact LRU of the memory really \
                kept and cached would have read. Pale: a/C, the inverse of the capacity, through \
                the largest capacity up to half the pool.";
    let x = Axis::log2("capacity (MiB)");
    let mut chart =
        Chart::new("Capacity response: bytes", x, Axis::log2("MB an iteration")).noted(note);
    for (name, points) in lines(report) {
        let read = over_capacity(&points, |point| Some(point.read_bytes? / MB));
        let nominal = over_capacity(&points, |point| Some(point.nominal_bytes? / MB));
        let reference = over_capacity(&points, |point| Some(point.reference_bytes? / MB));
        chart = chart
            .with(Series::new(&name, Mark::Dotted, read))
            .with(Series::new(&format!("{name}: LRU"), Mark::Dashed, nominal))
            .with(Series::new(&format!("{name}: a/C"), Mark::Faint, reference));
    }
    chart
}

fn amplification(report: &CampaignReport) -> Chart {
    let note = "Bytes read over what exact LRU of as much memory would have read: above 1, pages \
                are evicted and read again.";
    let x = Axis::log2("capacity (MiB)");
    let y = Axis::linear("bytes read / nominal misses");
    let mut chart = Chart::new("Amplification", x, y).noted(note);
    for (name, points) in lines(report) {
        let points = over_capacity(&points, Point::amplification);
        chart = chart.with(Series::new(&name, Mark::Dotted, points));
    }
    chart
}

/// One bar an arm, grouped by place.
fn by_arm(
    report: &CampaignReport,
    title: &str,
    label: &str,
    of: &dyn Fn(&Point) -> Option<BarValue>,
    levels: bool,
) -> Bars {
    let mut places: Vec<&super::cells::Place> = report.rows.iter().map(|row| &row.place).collect();
    places.dedup();
    let many = report.definition.walls.len() > 1 || report.definition.reclaim.len() > 1;
    let group = |place: &&super::cells::Place| {
        let capacity = place.capacity.clone();
        if many {
            format!("{} {} {capacity}", place.wall.name(), place.reclaim.name())
        } else {
            capacity
        }
    };
    let at = |place: &super::cells::Place, arm| {
        report.rows.iter().find(|row| row.place == *place && row.summary.arm == arm)
    };
    let series = report.definition.arms.iter().map(|&arm| {
        let values = places.iter().map(|place| at(place, arm).and_then(of)).collect();
        (arm.name().to_owned(), values)
    });
    let first = report.definition.arms[0];
    let level = |place: &&super::cells::Place| Some(at(place, first)?.nominal_bytes? / MB);
    let note = if levels {
        format!(
            "Whiskers: all runs. Line: what exact LRU of the memory of {first} would have read."
        )
    } else {
        "Whiskers: all runs. Preloads of arenas and locked sets lie outside the measured \
         replay; VmLck was what was asked for in every run that counts."
            .to_owned()
    };
    Bars {
        title: title.to_owned(),
        label: label.to_owned(),
        groups: places.iter().map(group).collect(),
        series: series.collect(),
        levels: if levels { places.iter().map(level).collect() } else { Vec::new() },
        note,
    }
}

/// One group a wall and capacity, in it a bar for each kind of reclaim; the first arm.
fn reclaim(report: &CampaignReport) -> Bars {
    let definition = &report.definition;
    let arm = definition.arms[0];
    let mut groups = Vec::new();
    for &wall in &definition.walls {
        groups.extend(definition.capacities.iter().map(|capacity| (wall, capacity)));
    }
    let find = |(wall, capacity): &(super::definition::WallKind, &String), reclaim| {
        report.rows.iter().find(|row| {
            row.summary.arm == arm
                && row.place.wall == *wall
                && row.place.capacity == **capacity
                && row.place.reclaim == reclaim
        })
    };
    let series = definition.reclaim.iter().map(|&kind| {
        let values = groups.iter().map(|group| find(group, kind).and_then(read)).collect();
        (kind.name().to_owned(), values)
    });
    let level = |group: &_| {
        let mut rows = definition.reclaim.iter().filter_map(|&kind| find(group, kind));
        rows.find_map(|row| Some(row.nominal_bytes? / MB))
    };
    Bars {
        title: "Reclaim matrix: bytes read".to_owned(),
        label: format!("MB an iteration, {arm}"),
        series: series.collect(),
        levels: groups.iter().map(level).collect(),
        groups: groups
            .iter()
            .map(|(wall, capacity)| format!("{} {capacity}", wall.name()))
            .collect(),
        note:
            "Line: what exact LRU of as much memory would have read. A missing bar is a cell that \
               could not be run here; the table says why."
                .to_owned(),
    }
}
