//! What was measured, for people and programs: text tables, CSV, SVG plots and one
//! self-contained HTML page.
//!
//! [`Table`], [`Chart`], [`Bars`], [`Matrix`] and [`Page`] know nothing of what they show;
//! [`locality_page`] and [`locality_tables`] fill them from a
//! [`LocalityReport`](crate::locality::LocalityReport), and a simulator fills them with its
//! own series. Equal input gives equal bytes. Text that comes from a trace is escaped for
//! the form it is written in.
//!
//! ```
//! use router_trace::report::{Axis, Chart, Mark, Page, Section, Series};
//!
//! # fn main() -> Result<(), router_trace::TraceError> {
//! let lru = Series::new("LRU", Mark::Line, vec![(61.0, 0.0), (128.0, 31.9), (256.0, 56.5)]);
//! let chart = Chart::new("Hit rate by budget", Axis::log2("experts held"), Axis::percent("hits"))
//!     .with(lru);
//! let svg = chart.to_svg()?; // a file of its own
//! assert!(svg.starts_with("<svg "));
//! let section = Section::new("Simulation").figure(chart);
//! let html = Page::new("Policies").section(section).to_html()?;
//! assert!(html.starts_with("<!DOCTYPE html>"));
//! # Ok(())
//! # }
//! ```

mod bars;
mod chart;
mod csv;
mod dot;
mod html;
mod locality_plots;
mod locality_tables;
mod matrix;
mod palette;
mod svg;
mod table;

pub use self::csv::write_csv;
pub use bars::{BarValue, Bars};
pub use chart::{Axis, Chart, Mark, Scale, Series};
pub use html::{Figure, Page, Section};
pub use locality_plots::locality_page;
pub use locality_tables::locality_tables;
pub use matrix::Matrix;
pub use table::{Cell, Column, Table};
