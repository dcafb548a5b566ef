//! One arm's run, in a process of its own that a wall limits.

use crate::cli::{kind, message};
use anyhow::{Context, Result};
use engine_example::replay::{ArmSettings, Measurement, PlannedPass, ReplayArm, measure};
use expert_tier::Pool;
use expert_tier::observe::SystemRoot;
use router_trace::ExpertId;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead};
use std::path::PathBuf;
use std::process::ExitCode;

/// What the parent tells, as one line: everything that is read or allocated comes after it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) pool: PathBuf,
    pub(crate) arm: ReplayArm,
    pub(crate) places: usize,
    pub(crate) hot: Vec<ExpertId>,
    pub(crate) threads: usize,
    pub(crate) fill_threads: usize,
    /// The name of a [`expert_tier::FillMethod`].
    pub(crate) fill: Option<String>,
    pub(crate) resident_before_bytes: u64,
    pub(crate) iterations: Vec<Vec<PlannedPass>>,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    Measured(Box<Measurement>),
    Failed { kind: String, reason: String },
}

pub(crate) fn run() -> Result<ExitCode> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).context("waiting for the parent")?;
    let task: Task = serde_json::from_str(&line).context("the parent's task")?;
    drop(line);
    let answer = match answer(&task) {
        Ok(measurement) => Answer::Measured(Box::new(measurement)),
        Err(error) => Answer::Failed { kind: kind(&error).to_owned(), reason: message(&error) },
    };
    serde_json::to_writer(io::stdout().lock(), &answer)?;
    Ok(ExitCode::SUCCESS)
}

fn answer(task: &Task) -> Result<Measurement> {
    let fill_method = task.fill.as_deref().map(str::parse).transpose();
    let settings = ArmSettings {
        places: task.places,
        fill_threads: task.fill_threads,
        fill_method: fill_method.map_err(anyhow::Error::msg)?,
    };
    let served = task.arm.open(Pool::open(&task.pool)?, &task.hot, &settings)?;
    let Task { resident_before_bytes, iterations, threads, .. } = task;
    let root = SystemRoot::default();
    Ok(measure(&served, *resident_before_bytes, iterations, *threads, &root)?)
}
