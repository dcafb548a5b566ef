use super::bars::Bars;
use super::chart::Chart;
use super::matrix::Matrix;
use super::palette::clean;
use super::table::Table;
use crate::error::TraceError;
use minijinja::value::Value;
use minijinja::{Environment, context};
use serde::Serialize;

/// Escaped by the engine because of its ending; drawn figures alone are marked safe.
const TEMPLATE_NAME: &str = "page.html";
const TEMPLATE: &str = include_str!("page.html");

/// Rows of a folded table that a page shows; CSV has them all.
const MAX_ROWS: usize = 2000;

/// A drawing of a [`Section`].
#[derive(Clone, PartialEq, Debug)]
pub enum Figure {
    /// Series over two axes.
    Chart(Chart),
    /// Bars in groups.
    Bars(Bars),
    /// Shaded cells.
    Matrix(Matrix),
}

impl From<Bars> for Figure {
    fn from(bars: Bars) -> Self {
        Self::Bars(bars)
    }
}

impl From<Chart> for Figure {
    fn from(chart: Chart) -> Self {
        Self::Chart(chart)
    }
}

impl From<Matrix> for Figure {
    fn from(matrix: Matrix) -> Self {
        Self::Matrix(matrix)
    }
}

/// A heading with text, figures and tables.
#[derive(Clone, PartialEq, Debug)]
pub struct Section {
    /// The heading.
    pub heading: String,
    /// Paragraphs.
    pub text: Vec<String>,
    /// Figures, before the tables.
    pub figures: Vec<Figure>,
    /// Tables.
    pub tables: Vec<Table>,
}

/// A self-contained HTML page: no scripts, no fonts, nothing to load.
#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    /// The title.
    pub title: String,
    /// Paragraphs below it.
    pub text: Vec<String>,
    /// The sections.
    pub sections: Vec<Section>,
}

impl Section {
    /// A section without content.
    #[must_use]
    pub fn new(heading: &str) -> Self {
        let heading = heading.to_owned();
        Self { heading, text: Vec::new(), figures: Vec::new(), tables: Vec::new() }
    }

    /// The section with another paragraph.
    #[must_use]
    pub fn paragraph(mut self, text: &str) -> Self {
        self.text.push(text.to_owned());
        self
    }

    /// The section with another figure.
    #[must_use]
    pub fn figure(mut self, figure: impl Into<Figure>) -> Self {
        self.figures.push(figure.into());
        self
    }

    /// The section with another table.
    #[must_use]
    pub fn table(mut self, table: Table) -> Self {
        self.tables.push(table);
        self
    }
}

/// Text without the control characters that a page may not hold; the engine escapes the rest.
fn plain(text: &str) -> String {
    clean(text, usize::MAX)
}

#[derive(Serialize)]
struct RenderedFigure {
    svg: Value,
    title: String,
    note: String,
}

#[derive(Serialize)]
struct RenderedCell {
    text: String,
    is_text: bool,
}

#[derive(Serialize)]
struct RenderedTable {
    title: String,
    note: String,
    detail: bool,
    columns: Vec<String>,
    rows: Vec<Vec<RenderedCell>>,
    left_out: usize,
}

#[derive(Serialize)]
struct RenderedSection {
    heading: String,
    text: Vec<String>,
    figures: Vec<RenderedFigure>,
    tables: Vec<RenderedTable>,
}

impl Page {
    /// A page without content.
    #[must_use]
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), text: Vec::new(), sections: Vec::new() }
    }

    /// The page with another paragraph below its title.
    #[must_use]
    pub fn paragraph(mut self, text: &str) -> Self {
        self.text.push(text.to_owned());
        self
    }

    /// The page with another section.
    #[must_use]
    pub fn section(mut self, section: Section) -> Self {
        self.sections.push(section);
        self
    }

    /// The page as one HTML document.
    ///
    /// # Errors
    ///
    /// [`TraceError::Plot`] if a figure cannot be drawn or the page not rendered.
    pub fn to_html(&self) -> Result<String, TraceError> {
        let sections = self.sections.iter().map(RenderedSection::new);
        let sections = sections.collect::<Result<Vec<_>, _>>()?;
        let text: Vec<String> = self.text.iter().map(|text| plain(text)).collect();
        let mut environment = Environment::new();
        let rendered = environment
            .add_template(TEMPLATE_NAME, TEMPLATE)
            .and_then(|()| environment.get_template(TEMPLATE_NAME))
            .and_then(|page| page.render(context! { title => plain(&self.title), text, sections }));
        rendered.map_err(|error| super::svg::failed(&self.title, &error))
    }
}

impl RenderedSection {
    fn new(section: &Section) -> Result<Self, TraceError> {
        let figures = section.figures.iter().map(RenderedFigure::new);
        Ok(Self {
            heading: plain(&section.heading),
            text: section.text.iter().map(|text| plain(text)).collect(),
            figures: figures.collect::<Result<_, _>>()?,
            tables: section.tables.iter().map(RenderedTable::new).collect(),
        })
    }
}

impl RenderedFigure {
    fn new(figure: &Figure) -> Result<Self, TraceError> {
        let (svg, title, note) = match figure {
            Figure::Chart(chart) => (chart.to_svg()?, &chart.title, &chart.note),
            Figure::Bars(bars) => (bars.to_svg()?, &bars.title, &bars.note),
            Figure::Matrix(matrix) => (matrix.to_svg()?, &matrix.title, &matrix.note),
        };
        // The drawing library escapes the text it draws.
        let svg = Value::from_safe_string(svg);
        Ok(Self { svg, title: plain(title), note: plain(note) })
    }
}

impl RenderedTable {
    fn new(table: &Table) -> Self {
        let cell = |cell: &super::table::Cell| RenderedCell {
            text: cell.shown(),
            is_text: cell.is_text(),
        };
        Self {
            title: plain(&table.title),
            note: plain(&table.note),
            detail: table.detail,
            columns: table.columns.iter().map(|column| plain(&column.title)).collect(),
            rows: table.rows.iter().take(MAX_ROWS).map(|r| r.iter().map(cell).collect()).collect(),
            left_out: table.rows.len().saturating_sub(MAX_ROWS),
        }
    }
}
