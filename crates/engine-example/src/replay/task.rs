//! One arm's run, in a process of its own that a wall limits.

use super::arm::{ArmSettings, ReplayArm};
use super::measure::{Measurement, measure};
use super::plan::PlannedPass;
use crate::error::EngineError;
use expert_tier::observe::SystemRoot;
use expert_tier::{FillMethod, Pool};
use router_trace::ExpertId;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Write};
use std::path::PathBuf;

/// What the process is told, as one line of JSON: everything that it reads or allocates comes
/// after it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) pool: PathBuf,
    pub(super) arm: ReplayArm,
    pub(super) places: usize,
    pub(super) hot: Vec<ExpertId>,
    pub(super) threads: usize,
    pub(super) fill_threads: usize,
    pub(super) fill: Option<FillMethod>,
    pub(super) resident_before_bytes: u64,
    pub(super) iterations: Vec<Vec<PlannedPass>>,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    Measured(Box<Measurement>),
    Failed { kind: String, reason: String },
}

/// The process's side: waits on `input` for a task of a [`ReplaySession`](super::ReplaySession),
/// does it, and answers on `output`. A program that opens sessions calls this where it is started
/// as [`CHILD_COMMAND`](super::CHILD_COMMAND).
///
/// # Errors
/// A parent that cannot be understood or told; a run that fails is an answer.
pub fn serve_task(mut input: impl BufRead, output: impl Write) -> io::Result<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let task: Task = serde_json::from_str(&line)?;
    drop(line);
    let answer = match run(&task) {
        Ok(measurement) => Answer::Measured(Box::new(measurement)),
        Err(error) => Answer::Failed { kind: error.kind().to_owned(), reason: whole_chain(&error) },
    };
    serde_json::to_writer(output, &answer)?;
    Ok(())
}

fn run(task: &Task) -> Result<Measurement, EngineError> {
    let settings = ArmSettings {
        places: task.places,
        fill_threads: task.fill_threads,
        fill_method: task.fill,
    };
    let served = task.arm.open(Pool::open(&task.pool)?, &task.hot, &settings)?;
    let Task { resident_before_bytes, iterations, threads, .. } = task;
    measure(&served, *resident_before_bytes, iterations, *threads, &SystemRoot::default())
}

/// An error and its causes, without those that it spells out itself.
fn whole_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.ends_with(&part) {
            text = format!("{text}: {part}");
        }
        cause = error.source();
    }
    text
}
