//! Charts as SVG, through plotters.

use super::chart::{Axis, Chart, Mark, Scale, Series};
use super::dot::{Dot, Look};
use super::palette::{self, Colour, NEUTRAL, clean};
use crate::error::TraceError;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

const WIDTH: u32 = 820;
const HEIGHT: u32 = 420;
const LEGEND_WIDTH: i32 = 190;
const LEGEND_ROW: i32 = 18;
const TITLE_HEIGHT: u32 = 34;
/// Legend entries that fit; the rest is counted.
const LEGEND_ROWS: usize = 20;
const LABEL_CHARS: usize = 24;

pub(super) fn draw(chart: &Chart) -> Result<String, TraceError> {
    let mut svg = String::new();
    paint(chart, &mut svg).map_err(|error| failed(&chart.title, &error))?;
    Ok(svg)
}

pub(super) fn failed(title: &str, error: &impl std::fmt::Display) -> TraceError {
    TraceError::Plot { title: title.to_owned(), message: error.to_string() }
}

/// `size` high, in the neutral colour, standing at `side`.
pub(super) fn text_style<'a>(size: i32, side: HPos) -> TextStyle<'a> {
    let mut style = TextStyle::from(("sans-serif", size).into_font());
    style.color = colour(NEUTRAL).to_backend_color();
    style.pos = Pos::new(side, VPos::Center);
    style
}

pub(super) fn colour((red, green, blue): Colour) -> RGBColor {
    RGBColor(red, green, blue)
}

fn paint<'a>(chart: &Chart, svg: &'a mut String) -> Drawn<'a> {
    let root = SVGBackend::with_string(svg, (WIDTH, HEIGHT)).into_drawing_area();
    root.draw_text(&clean(&chart.title, 90), &text_style(20, HPos::Left), (16, 18))?;
    let (_, below) = root.split_vertically(TITLE_HEIGHT);
    let (plot, legend) = below.split_horizontally(WIDTH as i32 - LEGEND_WIDTH);
    match chart.ends() {
        None => root.draw_text("no data", &text_style(17, HPos::Center), (310, 210))?,
        Some((x, y)) => {
            let (x, y) = ((x.0..x.1), (y.0..y.1));
            let log = |range: std::ops::Range<f64>, scale| {
                range.log_scale().base(if scale == Scale::Log2 { 2.0 } else { 10.0 })
            };
            match (chart.x.scale, chart.y.scale) {
                (Scale::Linear, Scale::Linear) => plane(&plot, chart, x, y)?,
                (Scale::Linear, scale) => plane(&plot, chart, x, log(y, scale))?,
                (scale, Scale::Linear) => plane(&plot, chart, log(x, scale), y)?,
                (one, other) => plane(&plot, chart, log(x, one), log(y, other))?,
            }
            draw_legend(&legend, chart)?;
        }
    }
    root.present()
}

/// The axes and everything between them.
fn plane<'a, X, Y>(area: &Area<'a>, chart: &Chart, x: X, y: Y) -> Drawn<'a>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut context = ChartBuilder::on(area)
        .margin(8)
        .margin_right(16)
        .x_label_area_size(44)
        .y_label_area_size(62)
        .build_cartesian_2d(x, y)?;
    context
        .configure_mesh()
        .x_desc(clean(&chart.x.label, 70))
        .y_desc(clean(&chart.y.label, 50))
        .axis_desc_style(text_style(16, HPos::Center))
        .label_style(text_style(15, HPos::Center))
        .axis_style(colour(NEUTRAL))
        .bold_line_style(colour(NEUTRAL).mix(0.25))
        .light_line_style(TRANSPARENT)
        .x_labels(ticks(&chart.x))
        .y_labels(ticks(&chart.y))
        .x_label_formatter(&|value| tick(*value))
        .y_label_formatter(&|value| tick(*value))
        .draw()?;
    for (series, look) in coloured(chart) {
        let points: Vec<_> = chart.shown(series).collect();
        let line = |width| ShapeStyle::from(look.colour).stroke_width(width);
        match series.mark {
            Mark::Faint => {
                let pale = ShapeStyle::from(look.colour.mix(0.45)).stroke_width(1);
                context.draw_series(LineSeries::new(points, pale))?;
            }
            Mark::Dashed => {
                context.draw_series(DashedLineSeries::new(points, 6, 4, line(2)))?;
            }
            Mark::Line | Mark::Dotted => {
                // A line of one point is nothing.
                if series.mark == Mark::Dotted || points.len() == 1 {
                    context.draw_series(points.iter().map(|&at| Dot { at, look }))?;
                }
                context.draw_series(LineSeries::new(points, line(2)))?;
            }
        }
    }
    Ok(())
}

/// Each series with its look. A comparison has that of the series before it.
fn coloured(chart: &Chart) -> impl Iterator<Item = (&Series, Look)> {
    let mut next = 0;
    chart.series.iter().map(move |series| {
        let at = match series.mark {
            Mark::Faint => return (series, Look { colour: colour(NEUTRAL), round: 0 }),
            Mark::Dashed => usize::saturating_sub(next, 1),
            Mark::Line | Mark::Dotted => {
                next += 1;
                next - 1
            }
        };
        (series, Look { colour: colour(palette::series(at)), round: palette::round(at) })
    })
}

fn draw_legend<'a>(area: &Area<'a>, chart: &Chart) -> Drawn<'a> {
    let named: Vec<_> = coloured(chart).filter(|(series, _)| !series.name.is_empty()).collect();
    for (row, (series, look)) in (0..).zip(named.iter().take(LEGEND_ROWS)) {
        let y = 16 + row * LEGEND_ROW;
        let dashes: &[(i32, i32)] = match series.mark {
            Mark::Dashed => &[(0, 6), (10, 16), (20, 24)],
            _ => &[(0, 24)],
        };
        let style = match series.mark {
            Mark::Faint => ShapeStyle::from(look.colour.mix(0.45)).stroke_width(1),
            _ => ShapeStyle::from(look.colour).stroke_width(2),
        };
        for &(from, to) in dashes {
            area.draw(&PathElement::new(vec![(from, y), (to, y)], style))?;
        }
        if series.mark == Mark::Dotted {
            area.draw(&Dot { at: (12, y), look: *look })?;
        }
        let name = clean(&series.name, LABEL_CHARS);
        area.draw_text(&name, &text_style(15, HPos::Left), (30, y))?;
    }
    let more = named.len().saturating_sub(LEGEND_ROWS);
    if more > 0 {
        let y = 16 + LEGEND_ROWS as i32 * LEGEND_ROW;
        area.draw_text(&format!("and {more} more"), &text_style(15, HPos::Left), (30, y))?;
    }
    Ok(())
}

fn ticks(axis: &Axis) -> usize {
    match axis.scale {
        Scale::Linear => 8,
        Scale::Log2 => 12,
        Scale::Log10 => 10,
    }
}

/// A tick's number: short, and the same for every machine.
pub(super) fn tick(value: f64) -> String {
    let magnitude = value.abs();
    let (scaled, unit) = match magnitude {
        m if m >= 1e9 => (value / 1e9, "G"),
        m if m >= 1e6 => (value / 1e6, "M"),
        m if m >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    if magnitude > 0.0 && magnitude < 1e-3 {
        return format!("{value:e}");
    }
    let text = format!("{scaled:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{}{unit}", if text == "-0" { "0" } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_short() {
        let cases = [
            (0.0, "0"),
            (-0.000_1, "-1e-4"),
            (0.25, "0.25"),
            (100.0, "100"),
            (8192.0, "8192"),
            (65_536.0, "65.536k"),
            (2e6, "2M"),
        ];
        for (value, want) in cases {
            assert_eq!(tick(value), want);
        }
    }
}
