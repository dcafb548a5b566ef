use super::palette::{self, clean};
use super::svg::{colour, failed, text_style, tick};
use crate::error::TraceError;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

const WIDTH: i32 = 820;
const HEIGHT: i32 = 380;
const LEFT: i32 = 64;
const TOP: i32 = 60;
const BOTTOM: i32 = 46;
const LEGEND_WIDTH: i32 = 200;
/// The most groups and series that are drawn.
const MOST: usize = 24;
/// Room between two groups, in bars.
const GAP: f64 = 0.8;

/// A figure with its range.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BarValue {
    /// The bar's height, 0 or more.
    pub middle: f64,
    /// Ends of the whisker.
    pub range: Option<(f64, f64)>,
}

/// Bars in groups: one group a category, in it one bar a series.
#[derive(Clone, PartialEq, Debug)]
pub struct Bars {
    /// What it shows.
    pub title: String,
    /// What the bars count, with the unit.
    pub label: String,
    /// Names of the groups.
    pub groups: Vec<String>,
    /// Names of the series, and for each group a figure; none where there is no figure.
    pub series: Vec<(String, Vec<Option<BarValue>>)>,
    /// For each group a level that the bars are held against, drawn as a line across the group.
    pub levels: Vec<Option<f64>>,
    /// What to see in it, for the text below.
    pub note: String,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

impl Bars {
    /// The bars as an SVG document; of more than 24 groups or series the first 24.
    ///
    /// # Errors
    ///
    /// [`TraceError::Plot`] if the plotting library refuses.
    pub fn to_svg(&self) -> Result<String, TraceError> {
        let mut svg = String::new();
        self.paint(SVGBackend::with_string(&mut svg, (WIDTH as u32, HEIGHT as u32)))
            .map_err(|error| failed(&self.title, &error))?;
        Ok(svg)
    }

    /// The top of the vertical axis: above every bar, whisker and level.
    fn top(&self) -> Option<f64> {
        let values = self.series.iter().flat_map(|(_, values)| values.iter().flatten());
        let ends = values.flat_map(|value| [Some(value.middle), value.range.map(|range| range.1)]);
        let all = ends.flatten().chain(self.levels.iter().copied().flatten());
        let top = all.filter(|value| value.is_finite()).fold(0.0, f64::max);
        (top > 0.0).then_some(top * 1.08)
    }

    fn paint<'a>(&self, backend: SVGBackend<'a>) -> Drawn<'a> {
        let root = backend.into_drawing_area();
        root.draw_text(&clean(&self.title, 90), &text_style(20, HPos::Left), (16, 18))?;
        root.draw_text(&clean(&self.label, 70), &text_style(15, HPos::Left), (16, 42))?;
        let Some(top) = self.top() else {
            root.draw_text("no data", &text_style(17, HPos::Center), (310, 210))?;
            return root.present();
        };
        let floor = HEIGHT - BOTTOM;
        let y = |value: f64| {
            let share = (value / top).clamp(0.0, 1.0);
            floor - (share * f64::from(floor - TOP)).round() as i32
        };
        self.draw_axis(&root, top, &y)?;
        let groups = self.groups.len().min(MOST);
        let shown: Vec<_> = self.series.iter().take(MOST).collect();
        let slots = groups as f64 * (shown.len() as f64 + GAP);
        let width = f64::from(WIDTH - LEFT - LEGEND_WIDTH) / slots.max(1.0);
        let x = |group: usize, bar: f64| {
            let slot = group as f64 * (shown.len() as f64 + GAP) + GAP / 2.0 + bar;
            LEFT + (slot * width).round() as i32
        };
        for (group, name) in self.groups.iter().take(groups).enumerate() {
            let (from, to) = (x(group, 0.0), x(group, shown.len() as f64));
            let middle = ((from + to) / 2, floor + 16);
            root.draw_text(&clean(name, 22), &text_style(15, HPos::Center), middle)?;
            for (bar, (_, values)) in shown.iter().enumerate() {
                let Some(value) = values.get(group).copied().flatten() else { continue };
                let side = (x(group, bar as f64) + 1, x(group, bar as f64 + 1.0) - 1);
                draw_bar(&root, value, side, colour(palette::series(bar)), &y)?;
            }
            if let Some(level) = self.levels.get(group).copied().flatten() {
                let line = ShapeStyle::from(colour(palette::NEUTRAL)).stroke_width(2);
                root.draw(&PathElement::new(vec![(from - 4, y(level)), (to + 4, y(level))], line))?;
            }
        }
        for (row, (name, _)) in (0..).zip(&shown) {
            let (left, y) = (WIDTH - LEGEND_WIDTH + 14, TOP + row * 18);
            let style = colour(palette::series(row as usize)).filled();
            root.draw(&Rectangle::new([(left, y - 6), (left + 14, y + 6)], style))?;
            root.draw_text(&clean(name, 22), &text_style(15, HPos::Left), (left + 22, y))?;
        }
        root.present()
    }

    fn draw_axis<'a>(&self, root: &Area<'a>, top: f64, y: &dyn Fn(f64) -> i32) -> Drawn<'a> {
        let step = step(top);
        let right = WIDTH - LEGEND_WIDTH;
        for number in 0..=(top / step) as usize {
            let value = number as f64 * step;
            let line = colour(palette::NEUTRAL).mix(if number == 0 { 1.0 } else { 0.25 });
            let ends = vec![(LEFT, y(value)), (right, y(value))];
            root.draw(&PathElement::new(ends, ShapeStyle::from(line).stroke_width(1)))?;
            root.draw_text(&tick(value), &text_style(14, HPos::Right), (LEFT - 8, y(value)))?;
        }
        Ok(())
    }
}

fn draw_bar<'a>(
    root: &Area<'a>,
    value: BarValue,
    (left, right): (i32, i32),
    fill: RGBColor,
    y: &dyn Fn(f64) -> i32,
) -> Drawn<'a> {
    root.draw(&Rectangle::new([(left, y(value.middle)), (right, y(0.0))], fill.filled()))?;
    let Some((low, high)) = value.range.filter(|(low, high)| high > low) else { return Ok(()) };
    let (middle, cap) = ((left + right) / 2, ((right - left) / 4).max(2));
    let line = ShapeStyle::from(colour(palette::NEUTRAL)).stroke_width(1);
    for ends in [
        [(middle, y(low)), (middle, y(high))],
        [(middle - cap, y(low)), (middle + cap, y(low))],
        [(middle - cap, y(high)), (middle + cap, y(high))],
    ] {
        root.draw(&PathElement::new(ends.to_vec(), line))?;
    }
    Ok(())
}

/// A round step of the axis: at most eight to the top.
fn step(top: f64) -> f64 {
    let least = top / 8.0;
    let power = 10_f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= least);
    factor.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars() -> Bars {
        let value = |middle, range| Some(BarValue { middle, range });
        Bars {
            title: "Equal memory".to_owned(),
            label: "ms an iteration".to_owned(),
            groups: vec!["512 MiB".to_owned(), "1 <GiB>".to_owned()],
            series: vec![
                ("mapped".to_owned(), vec![value(40.0, Some((38.0, 44.0))), value(20.0, None)]),
                ("arena".to_owned(), vec![None, value(18.0, None)]),
            ],
            levels: vec![Some(60.0), None],
            note: String::new(),
        }
    }

    #[test]
    fn bars_whiskers_and_levels_are_drawn() {
        let svg = bars().to_svg().unwrap();
        assert!(svg.starts_with("<svg ") && svg.contains("1 &lt;GiB&gt;"));
        // Three bars and two marks of the legend.
        assert_eq!(svg.matches("<rect ").count(), 5);
        // The axis to 60, one whisker of three lines, one level.
        assert_eq!(svg.matches("<polyline ").count(), 7 + 3 + 1);
        assert_eq!(svg, bars().to_svg().unwrap(), "the same every time");
    }

    #[test]
    fn without_figures_it_says_so() {
        let empty = Bars { series: Vec::new(), levels: Vec::new(), ..bars() };
        assert!(empty.to_svg().unwrap().contains("no data"));
    }

    #[test]
    fn steps_are_round_and_few() {
        for (top, expected) in [(8.0, 1.0), (64.8, 10.0), (0.9, 0.2), (100.0, 20.0), (37.0, 5.0)] {
            assert!((step(top) - expected).abs() < 1e-12, "{top}: {}", step(top));
        }
    }
}
