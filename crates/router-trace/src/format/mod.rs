//! Trace files: one module a format, and one entry to all of them.
//!
//! [`open`] tells what a file is and gives its header and its passes, whoever wrote it;
//! [`TraceWriter`] writes this project's two forms and [`convert`] goes from one to the other.
//!
//! | format | a line (or what else) | carries | typed by |
//! |---|---|---|---|
//! | [`Jsonl`](Format::Jsonl) | `FORMAT.md` | everything | the file |
//! | [`Compact`](Format::Compact) | `FORMAT-COMPACT.md` | everything | the file |
//! | [`Colibri`](Format::Colibri) | `call row layer id:gate id:gate …` | calls and rows | [`canonical`](crate::canonical) |
//! | [`Waste`](Format::Waste) | `{"tok":0,"layers":[[5,0],[7,1]]}` | tokens; ids sorted, so no rank | [`canonical`](crate::canonical) |
//! | [`Plain`](Format::Plain) | `{"step":0,"layer":1,"experts":[5,0]}` | steps, perhaps a header line | [`canonical`](crate::canonical) |
//!
//! ```
//! use router_trace::format::{self, Format, OpenOptions};
//!
//! let text = "0 0 3 5:0.75 1:0.25\n1 0 4 2:0.50 7:0.50\n2 0 3 5:0.60 0:0.40\n3 0 4 7:0.90 1:0.10\n";
//! let mut reader = format::open_bytes(text.as_bytes(), &OpenOptions::default())?;
//! assert_eq!(reader.format(), Format::Colibri);
//! assert_eq!(reader.header().shape.moe_layers, [3, 4]);
//! let passes = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
//! assert_eq!(passes[3].experts(), [7, 1]);
//! let summary = reader.summary().expect("the trace is over");
//! assert_eq!(summary.canonical.unwrap().accepted_tokens, 2);
//! # Ok::<(), router_trace::TraceError>(())
//! ```
//!
//! Every reader is total: any bytes give passes and then an error with its place, never a
//! panic, in memory bounded by one line, block or iteration. Text may be gzip-compressed.
//! A usage file ([`ExpertUsage`]) is recognised and refused: it holds no routes.

mod colibri;
pub mod compact;
mod convert;
mod infer;
mod input;
pub mod jsonl;
mod line;
mod open;
mod plain;
mod sink;
mod sniff;
mod text;
mod usage;
mod waste;

pub use convert::{Converted, OutputFormat, TraceWriter, convert};
pub use open::{
    OpenOptions, ReadSummary, ShapeHints, TraceReader, open, open_bytes, shared_first_pass,
};
pub use sink::TraceSink;
pub use usage::{ExpertUsage, MAX_USAGE_EXPERTS};

use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// A trace format that can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Format {
    /// This project's JSON lines (`FORMAT.md`).
    Jsonl,
    /// This project's binary form (`FORMAT-COMPACT.md`).
    Compact,
    /// colibri's `ROUTE_TRACE` text.
    Colibri,
    /// WASTE's JSON lines, a token a line.
    Waste,
    /// Plain JSON lines, a step and layer a line.
    Plain,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 5] =
        [Self::Jsonl, Self::Compact, Self::Colibri, Self::Waste, Self::Plain];

    /// The name that a command line takes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Jsonl => "jsonl",
            Self::Compact => "compact",
            Self::Colibri => "colibri",
            Self::Waste => "waste",
            Self::Plain => "plain",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no format has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no format is called {0:?}: jsonl, compact, colibri, waste or plain")]
pub struct UnknownFormat(String);

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| UnknownFormat(name.to_owned()))
    }
}
