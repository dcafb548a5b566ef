//! What a bench says: the machine, a row an arm, and the bars they are held against.

use crate::machine::Machine;
use crate::stats::Spread;
use anyhow::Result;
use serde::Serialize;
use std::fmt;
use std::io::{self, Write};

/// Which way is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Lower,
    Higher,
}

/// A figure that is claimed, and whether this run bears it out.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Bar {
    pub(crate) name: String,
    /// `null`: this run could not say.
    pub(crate) value: Option<f64>,
    pub(crate) target: f64,
    pub(crate) better: Better,
    pub(crate) holds: bool,
}

impl Bar {
    pub(crate) fn new(
        name: impl Into<String>,
        value: Option<f64>,
        target: f64,
        better: Better,
    ) -> Self {
        let holds = value.is_some_and(|value| match better {
            Better::Lower => value <= target,
            Better::Higher => value >= target,
        });
        Self { name: name.into(), value, target, better, holds }
    }
}

/// One arm's results.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Row {
    /// What was done to what, for example `4.5 MiB x 8`.
    pub(crate) workload: String,
    pub(crate) arm: String,
    /// How the bytes come to the CPU.
    pub(crate) channel: String,
    /// What `result` counts.
    pub(crate) unit: &'static str,
    pub(crate) result: Option<Spread>,
    /// The arm that `ratio` is to; `None` for the base itself.
    pub(crate) base: Option<String>,
    /// Result divided by the base's of the same round.
    pub(crate) ratio: Option<Spread>,
    /// Bytes that the block layer read, for everyone on the machine, a byte asked for.
    pub(crate) device_bytes_per_asked: Option<Spread>,
    /// The same, only what this process caused.
    pub(crate) process_bytes_per_asked: Option<Spread>,
    /// Why this row should not be trusted, or why there is none.
    pub(crate) flags: Vec<String>,
    /// Anything else worth knowing.
    pub(crate) notes: Vec<String>,
}

impl Row {
    pub(crate) fn skipped(workload: &str, arm: &str, why: &str) -> Self {
        Self {
            workload: workload.to_owned(),
            arm: arm.to_owned(),
            channel: String::new(),
            unit: "",
            result: None,
            base: None,
            ratio: None,
            device_bytes_per_asked: None,
            process_bytes_per_asked: None,
            flags: vec![format!("SKIPPED: {why}")],
            notes: Vec::new(),
        }
    }
}

/// All that a bench says.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) bench: &'static str,
    pub(crate) machine: Machine,
    /// Settings and control figures, one line each.
    pub(crate) settings: Vec<String>,
    pub(crate) rows: Vec<Row>,
    pub(crate) bars: Vec<Bar>,
}

impl Report {
    pub(crate) fn print(&self, json: bool) -> Result<()> {
        let mut out = io::stdout().lock();
        if json {
            serde_json::to_writer_pretty(&mut out, self)?;
            writeln!(out)?;
        } else {
            self.write_text(&mut out)?;
        }
        Ok(())
    }

    fn write_text(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "{}: {}", self.bench, self.machine)?;
        for line in &self.settings {
            writeln!(out, "  {line}")?;
        }
        let mut workload = "";
        for row in &self.rows {
            if row.workload != workload {
                workload = &row.workload;
                writeln!(
                    out,
                    "\n{workload}\n  {:<38} {:>10} {:>22} {:>24} {:>9} {:>9}",
                    "arm", "median", "min - max (n)", "ratio (min - max)", "device/B", "own/B"
                )?;
            }
            row.write_text(out)?;
        }
        writeln!(out)?;
        write_bars(&self.bars, out)
    }
}

pub(crate) fn write_bars(bars: &[Bar], out: &mut impl Write) -> Result<()> {
    bars.iter().try_for_each(|bar| writeln!(out, "  {bar}"))?;
    Ok(())
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.better == Better::Lower { "<=" } else { ">=" };
        let value = self.value.map_or("-".to_owned(), |value| format!("{value:.4}"));
        let holds = if self.holds { "holds" } else { "FAILS" };
        write!(f, "{holds}  {:<58} {value} {sign} {:.4}", self.name, self.target)
    }
}

impl Row {
    fn write_text(&self, out: &mut impl Write) -> Result<()> {
        let share =
            |spread: Option<Spread>| spread.map_or("-".into(), |s| format!("{:.3}", s.median));
        let (median, range) = self.result.map_or(("-".into(), String::new()), |spread| {
            let Spread { median, min, max, n } = spread;
            (format!("{median:.3} {}", self.unit), format!("{min:.3} - {max:.3} ({n})"))
        });
        let ratio = match self.ratio {
            Some(Spread { median, min, max, .. }) => format!("{median:.3} ({min:.3} - {max:.3})"),
            None if self.result.is_some() => "base".into(),
            None => "-".into(),
        };
        writeln!(
            out,
            "  {:<38} {median:>10} {range:>22} {ratio:>24} {:>9} {:>9}",
            self.arm,
            share(self.device_bytes_per_asked),
            share(self.process_bytes_per_asked),
        )?;
        for line in self.flags.iter().map(|flag| format!("! {flag}")).chain(self.notes.clone()) {
            writeln!(out, "      {line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_holds_on_its_side_only_and_never_without_a_value() {
        assert!(Bar::new("a", Some(1.02), 1.02, Better::Lower).holds);
        assert!(!Bar::new("a", Some(1.03), 1.02, Better::Lower).holds);
        assert!(Bar::new("a", Some(0.96), 0.95, Better::Higher).holds);
        assert!(!Bar::new("a", Some(0.94), 0.95, Better::Higher).holds);
        assert!(!Bar::new("a", None, 1.0, Better::Lower).holds);
        assert!(!Bar::new("a", Some(f64::NAN), 1.0, Better::Lower).holds);
    }
}
