use super::svg;
use crate::error::TraceError;

/// How an axis is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Equal steps.
    Linear,
    /// Equal factors, ticks at powers of two.
    Log2,
    /// Equal factors, ticks at powers of ten.
    Log10,
}

/// One axis of a [`Chart`].
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// What it shows, with its unit.
    pub label: String,
    /// How it is divided.
    pub scale: Scale,
    /// Ends; from the points if not given.
    pub ends: Option<(f64, f64)>,
}

/// How a series is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// A line.
    Line,
    /// A line with a dot at every point.
    Dotted,
    /// A dashed line in the colour of the series before it: its comparison.
    Dashed,
    /// A thin pale line: one of many.
    Faint,
}

/// Points under one name.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// The name in the legend; a series without one is not in it.
    pub name: String,
    /// (x, y), in the order they are joined. Points that are not finite, or not positive on
    /// a logarithmic axis, are left out.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub mark: Mark,
}

/// Series over two axes.
#[derive(Clone, PartialEq, Debug)]
pub struct Chart {
    /// What the chart shows.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The series, in the order of the legend and of the colours.
    pub series: Vec<Series>,
    /// What to see in it, for the text below.
    pub note: String,
}

impl Axis {
    /// Equal steps, ends from the points.
    #[must_use]
    pub fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Linear, ends: None }
    }

    /// Equal factors, ticks at powers of two.
    #[must_use]
    pub fn log2(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Log2, ends: None }
    }

    /// Equal factors, ticks at powers of ten.
    #[must_use]
    pub fn log10(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Log10, ends: None }
    }

    /// From 0 to 100; the label gets the unit.
    #[must_use]
    pub fn percent(label: &str) -> Self {
        Self { label: format!("{label} (%)"), scale: Scale::Linear, ends: Some((0.0, 100.0)) }
    }

    /// Whether the axis can show `value`.
    pub(super) fn shows(&self, value: f64) -> bool {
        value.is_finite() && (self.scale == Scale::Linear || value > 0.0)
    }
}

impl Series {
    /// Points under a name.
    #[must_use]
    pub fn new(name: &str, mark: Mark, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), points, mark }
    }
}

impl Chart {
    /// A chart without series.
    #[must_use]
    pub fn new(title: &str, x: Axis, y: Axis) -> Self {
        let (title, note) = (title.to_owned(), String::new());
        Self { title, x, y, series: Vec::new(), note }
    }

    /// The chart with another series.
    #[must_use]
    pub fn with(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// The chart with a note below.
    #[must_use]
    pub fn noted(mut self, note: &str) -> Self {
        note.clone_into(&mut self.note);
        self
    }

    /// The chart as an SVG document that needs no fonts, scripts or files. Without points
    /// it says so.
    ///
    /// # Errors
    ///
    /// [`TraceError::Plot`] if the plotting library refuses.
    pub fn to_svg(&self) -> Result<String, TraceError> {
        svg::draw(self)
    }

    /// The points of a series that both axes can show.
    pub(super) fn shown<'a>(&'a self, series: &'a Series) -> impl Iterator<Item = (f64, f64)> + 'a {
        let points = series.points.iter().copied();
        points.filter(|&(x, y)| self.x.shows(x) && self.y.shows(y))
    }

    /// Where both axes begin and end; `None` without points.
    pub(super) fn ends(&self) -> Option<((f64, f64), (f64, f64))> {
        let points = || self.series.iter().flat_map(|series| self.shown(series));
        let span = |axis: &Axis, of: fn((f64, f64)) -> f64| {
            let (mut low, mut high) = axis.ends.unwrap_or((f64::INFINITY, f64::NEG_INFINITY));
            if axis.ends.is_none() {
                for value in points().map(of) {
                    (low, high) = (low.min(value), high.max(value));
                }
            }
            widened(axis.scale, low, high)
        };
        points().next()?;
        Some((span(&self.x, |point| point.0), span(&self.y, |point| point.1)))
    }
}

/// A span with some width, however alike its ends are.
fn widened(scale: Scale, low: f64, high: f64) -> (f64, f64) {
    if scale != Scale::Linear {
        return if high / low < 2.0 { (low / 1.5, high * 1.5) } else { (low, high) };
    }
    let least = (low.abs().max(high.abs()) * 1e-6).max(1e-9);
    if high - low < least { (low - 0.5, high + 0.5) } else { (low, high) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_come_from_what_can_be_shown() {
        let chart = Chart::new("t", Axis::log10("x"), Axis::linear("y")).with(Series::new(
            "s",
            Mark::Line,
            vec![(0.0, 9.0), (1.0, 2.0), (100.0, 5.0), (10.0, f64::NAN), (-3.0, 1.0)],
        ));
        assert_eq!(chart.ends(), Some(((1.0, 100.0), (2.0, 5.0))));
        let flat = Chart::new("t", Axis::linear("x"), Axis::percent("y")).with(Series::new(
            "s",
            Mark::Line,
            vec![(4.0, 1.0)],
        ));
        assert_eq!(flat.ends(), Some(((3.5, 4.5), (0.0, 100.0))));
        let none = Chart::new("t", Axis::linear("x"), Axis::linear("y"));
        assert_eq!(none.ends(), None);
    }
}
