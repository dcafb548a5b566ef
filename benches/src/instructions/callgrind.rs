//! Runs a program under valgrind's callgrind and reads what it counted.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Instructions of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    /// Of the thread that the program began with.
    pub(super) first_thread: u64,
    pub(super) all_threads: u64,
    /// Of the first thread, in the functions that were asked for, with what they call.
    pub(super) functions: [u64; 3],
}

/// Why nothing can be counted here.
pub(super) fn available() -> Result<(), String> {
    match Command::new("valgrind").arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("valgrind --version ended with {}", output.status)),
        Err(error) => Err(format!("valgrind cannot be started: {error}")),
    }
}

/// Run `program` to its end and count.
pub(super) fn count(program: &Command, functions: [&str; 3]) -> Result<Counts> {
    let dir = tempfile::tempdir()?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--separate-threads=yes", "--error-exitcode=0"]);
    command.arg(format!("--callgrind-out-file={}", dir.path().join("out").display()));
    command.arg(program.get_program()).args(program.get_args());
    let output = command.output().context("starting valgrind")?;
    ensure!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let mut counts = Counts::default();
    for path in thread_files(dir.path())? {
        let text = fs::read_to_string(&path)?;
        let (total, inside) = read(&text, functions)?;
        counts.all_threads += total;
        if path.to_string_lossy().ends_with("-01") {
            counts.first_thread = total;
            counts.functions = inside;
        }
    }
    ensure!(counts.first_thread > 0, "callgrind wrote nothing about the first thread");
    Ok(counts)
}

/// `out-01`, `out-02` and so on: one a thread. `out` itself holds nothing then.
fn thread_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        if name.is_some_and(|name| name.starts_with("out-")) {
            found.push(path);
        }
    }
    ensure!(!found.is_empty(), "callgrind wrote no file a thread");
    Ok(found)
}

/// Total of a file in callgrind's format, and what `functions` took with what they called; none of
/// them may call itself.
///
/// The format (valgrind's manual, "Callgrind Format Specification"): `fn=(ID) NAME` the first
/// time, `fn=(ID)` later; then lines of position and cost, those behind a `calls=` line with the
/// callee's cost.
fn read(text: &str, functions: [&str; 3]) -> Result<(u64, [u64; 3])> {
    let (mut total, mut costs) = (None, [0; 3]);
    let mut known: Vec<(&str, usize)> = Vec::new();
    let mut inside = None;
    for line in text.lines() {
        let callee = line.strip_prefix("cfn=");
        if let Some(rest) = line.strip_prefix("fn=").or(callee) {
            let (id, name) = rest.split_once(' ').unwrap_or((rest, ""));
            if let Some(number) = functions.iter().position(|wanted| name.contains(wanted)) {
                known.push((id, number));
            }
            if callee.is_none() {
                let found = known.iter().find(|(known, _)| *known == id);
                inside = found.map(|&(_, number)| number);
            }
        } else if let Some(rest) = line.strip_prefix("totals:") {
            total = Some(rest.trim().parse().context("callgrind's total")?);
        } else if let Some(number) = inside
            && line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first))
        {
            let cost = line.split_whitespace().nth(1).context("a line without a cost")?;
            costs[number] += cost.parse::<u64>().context("a cost")?;
        }
    }
    Ok((total.context("no total in callgrind's file")?, costs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_costs_what_it_takes_and_what_it_calls() {
        let text = "events: Ir\nsummary: 47\n\nfl=(1) a.rs\nfn=(1) main\n10 5\n\
                    cfn=(2) lib::Counters::add\ncalls=3 20\n11 27\n+2 1\n\nfn=(2)\n20 15\n\
                    cfn=(3) other\ncalls=1 5\n* 12\nfn=(3)\n5 12\nfn=(1)\n12 2\n\ntotals: 47\n";
        assert_eq!(read(text, ["Counters::add", "other", "x"]).unwrap(), (47, [27, 12, 0]));
        assert_eq!(read(text, ["nowhere", "at all", "x"]).unwrap(), (47, [0, 0, 0]));
        assert!(read("fn=(1) main\n1 2\n", ["a", "b", "c"]).is_err(), "a run that was cut off");
    }
}
