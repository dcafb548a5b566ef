use super::palette::clean;
use comfy_table::{CellAlignment, presets};
use std::fmt::Write as _;

/// The widest text cell that is printed, in characters; CSV has it whole.
const MAX_TEXT: usize = 60;

/// One entry of a [`Table`].
#[derive(Clone, PartialEq, Debug)]
pub enum Cell {
    /// There is no such figure. `n/a` for people, empty in CSV; never zero, never NaN.
    Missing,
    /// Words.
    Text(String),
    /// A count.
    Count(u64),
    /// A number and how many decimals people see; CSV has them all.
    Number(f64, u8),
    /// A fraction of 1; people see per cent, CSV the fraction.
    Share(f64),
}

impl Cell {
    /// The cell of a figure that may not exist. A figure that is not finite does not exist.
    #[must_use]
    pub fn of(figure: Option<f64>, cell: fn(f64) -> Self) -> Self {
        figure.filter(|figure| figure.is_finite()).map_or(Self::Missing, cell)
    }

    /// As people read it.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Missing => "n/a".to_owned(),
            Self::Text(text) => clean(text, MAX_TEXT),
            Self::Count(count) => count.to_string(),
            Self::Number(number, decimals) => format!("{number:.*}", usize::from(*decimals)),
            Self::Share(share) => format!("{:.2} %", share * 100.0),
        }
    }

    /// As programs read it.
    #[must_use]
    pub fn exact(&self) -> String {
        match self {
            Self::Missing => String::new(),
            Self::Text(text) => text.clone(),
            Self::Count(count) => count.to_string(),
            Self::Number(number, _) | Self::Share(number) => number.to_string(),
        }
    }

    /// Whether it stands to the left, as words do.
    #[must_use]
    pub fn is_text(&self) -> bool {
        matches!(self, Self::Text(_))
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

/// The head of a column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// For programs: the name in CSV, with the unit last.
    pub name: String,
    /// For people.
    pub title: String,
}

impl Column {
    /// A column that people see as `title` and programs as `name`.
    #[must_use]
    pub fn new(name: &str, title: &str) -> Self {
        Self { name: name.to_owned(), title: title.to_owned() }
    }
}

/// Rows of cells under named columns.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// For programs: the name of its CSV file, without the ending.
    pub name: String,
    /// For people.
    pub title: String,
    /// What the figures mean, in a sentence or two.
    pub note: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows, each as wide as `columns`.
    pub rows: Vec<Vec<Cell>>,
    /// Whether it is too long for a terminal: CSV has it, a page folds it away.
    pub detail: bool,
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(name: &str, title: &str, note: &str, columns: Vec<Column>) -> Self {
        let (name, title, note) = (name.to_owned(), title.to_owned(), note.to_owned());
        Self { name, title, note, columns, rows: Vec::new(), detail: false }
    }

    /// Adds a row.
    ///
    /// # Panics
    ///
    /// If it is not as wide as the table.
    pub fn push(&mut self, row: Vec<Cell>) {
        assert_eq!(row.len(), self.columns.len(), "row of table `{}`", self.name);
        self.rows.push(row);
    }

    /// The table for a terminal, with its title and note; rules of plain ASCII.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut drawn = comfy_table::Table::new();
        drawn.load_style(presets::ASCII_MARKDOWN);
        drawn.set_header(self.columns.iter().map(|column| clean(&column.title, MAX_TEXT)));
        for row in &self.rows {
            drawn.add_row(row.iter().map(|cell| {
                let side = if cell.is_text() { CellAlignment::Left } else { CellAlignment::Right };
                comfy_table::Cell::new(cell.shown()).set_alignment(side)
            }));
        }
        let mut text = String::new();
        let written = writeln!(text, "{}\n{}\n\n{drawn}", self.title, self.note);
        debug_assert!(written.is_ok(), "a string takes everything");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_for_people_and_programs() {
        let both = |cell: Cell| (cell.shown(), cell.exact());
        assert_eq!(both(Cell::Missing), ("n/a".into(), String::new()));
        assert_eq!(both(Cell::Share(0.435_19)), ("43.52 %".into(), "0.43519".into()));
        assert_eq!(both(Cell::Number(1.0 / 3.0, 2)), ("0.33".into(), "0.3333333333333333".into()));
        assert_eq!(Cell::of(Some(f64::NAN), Cell::Share), Cell::Missing);
        assert_eq!(Cell::of(Some(0.5), Cell::Share), Cell::Share(0.5));
    }

    #[test]
    fn text_is_aligned() {
        let columns = vec![Column::new("trace", "trace"), Column::new("w1", "W1")];
        let mut table = Table::new("t", "Reuse", "By window.", columns);
        table.push(vec!["a\u{1b}[31m".into(), Cell::Share(0.5)]);
        table.push(vec!["long name".into(), Cell::Missing]);
        let want = "Reuse\nBy window.\n\n\
            | trace     | W1      |\n|-----------|---------|\n\
            | a\u{fffd}[31m    | 50.00 % |\n| long name |     n/a |\n";
        assert_eq!(table.to_text(), want);
    }
}
