use super::palette::{self, clean};
use super::svg::{colour, failed, text_style};
use crate::error::TraceError;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// The most rows and columns that are drawn.
const MOST: usize = 16;
const CELL: (i32, i32) = (74, 34);
const LEFT: i32 = 170;
const TOP: i32 = 64;

/// A figure from 0 to 1 for each pair of names, as a table of shaded cells.
#[derive(Clone, PartialEq, Debug)]
pub struct Matrix {
    /// What it shows.
    pub title: String,
    /// Names of rows and columns.
    pub names: Vec<String>,
    /// `names.len()` rows of as many figures; none where there is no figure.
    pub cells: Vec<Vec<Option<f64>>>,
    /// What to see in it, for the text below.
    pub note: String,
}

impl Matrix {
    /// The matrix as an SVG document; of more than 16 names the first 16.
    ///
    /// # Errors
    ///
    /// [`TraceError::Plot`] if the plotting library refuses.
    pub fn to_svg(&self) -> Result<String, TraceError> {
        let shown = self.names.len().min(MOST);
        let size = (
            (LEFT + CELL.0 * shown as i32 + 16).max(420) as u32,
            (TOP + CELL.1 * shown as i32 + 16) as u32,
        );
        let mut svg = String::new();
        self.paint(SVGBackend::with_string(&mut svg, size), shown)
            .map_err(|error| failed(&self.title, &error))?;
        Ok(svg)
    }

    fn paint<'a>(
        &self,
        backend: SVGBackend<'a>,
        shown: usize,
    ) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>> {
        let root = backend.into_drawing_area();
        root.draw_text(&clean(&self.title, 60), &text_style(20, HPos::Left), (16, 18))?;
        let shade = colour(palette::series(0));
        for (row, (name, cells)) in (0..).zip(self.names.iter().zip(&self.cells).take(shown)) {
            let y = TOP + row * CELL.1;
            let middle = y + CELL.1 / 2;
            root.draw_text(&clean(name, 20), &text_style(15, HPos::Right), (LEFT - 8, middle))?;
            let x = LEFT + row * CELL.0 + CELL.0 / 2;
            root.draw_text(&clean(name, 10), &text_style(15, HPos::Center), (x, TOP - 12))?;
            for (column, cell) in (0..).zip(cells.iter().take(shown)) {
                let x = LEFT + column * CELL.0;
                let corners = [(x + 1, y + 1), (x + CELL.0 - 1, y + CELL.1 - 1)];
                let value = cell.filter(|value| value.is_finite());
                let depth = value.map_or(0.0, |value| value.clamp(0.0, 1.0) * 0.6);
                root.draw(&Rectangle::new(corners, shade.mix(depth).filled()))?;
                let text = value.map_or_else(|| "n/a".to_owned(), |value| format!("{value:.3}"));
                root.draw_text(&text, &text_style(15, HPos::Center), (x + CELL.0 / 2, middle))?;
            }
        }
        root.present()
    }
}
