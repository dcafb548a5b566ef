//! How results reach a person or a program.

use anyhow::Result;
use serde::Serialize;
use std::io::{self, Write};

/// One JSON object on standard output.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    json_to(io::stdout().lock(), value)
}

/// One JSON object.
pub(crate) fn json_to(mut out: impl Write, value: &impl Serialize) -> Result<()> {
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

/// A report as one JSON object where `as_json` asks for it, as text otherwise.
pub(crate) fn report(
    as_json: bool,
    value: &impl Serialize,
    text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    if as_json {
        return json(value);
    }
    text(&mut io::stdout().lock())?;
    Ok(())
}

/// Bytes with three significant digits, in units of 1000.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.5 {
        0
    } else if value >= 9.95 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Nanoseconds as milliseconds or seconds.
pub(crate) fn duration(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    if ms < 1000.0 { format!("{ms:.1} ms") } else { format!("{:.2} s", ms / 1000.0) }
}

/// A share in per cent, or a dash for nothing of nothing.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_three_digits() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (41_472, "41.5 kB"),
            (999_600, "1.00 MB"),
            (1_446_000_000_000, "1.45 TB"),
        ];
        for (value, text) in cases {
            assert_eq!(bytes(value), text);
        }
    }
}
