//! `tier score`: how well a model predicts a text.

use super::args::ScoreArgs;
use super::output;
use super::progress;
use super::session::Session;
use anyhow::{Context, Result, bail};
use engine_example::EngineError;
use expert_tier::Admission;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Serialize)]
struct FileScore {
    file: PathBuf,
    tokens: usize,
    bytes: usize,
    /// Mean negative log-likelihood, nats a token.
    loss: f64,
    perplexity: f64,
    bits_per_byte: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    model: PathBuf,
    window: usize,
    files: Vec<FileScore>,
}

pub(crate) fn run(args: &ScoreArgs) -> Result<ExitCode> {
    if args.window < 2 {
        bail!("--window is {}: at least 2 tokens are needed", args.window);
    }
    let mut session = Session::open(&args.model, Admission::Admit)?;
    let files = args.files.iter().map(|file| score(&mut session, file, args.window));
    let files = files.collect::<Result<Vec<_>>>()?;
    let report = Report { model: session.dir.clone(), window: args.window, files };
    output::report(args.json, &report, |out| print(&report, out))?;
    Ok(ExitCode::SUCCESS)
}

fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{:>8} {:>8} {:>10} {:>9}  file", "tokens", "loss", "perplexity", "bits/byte")?;
    for file in &report.files {
        writeln!(
            out,
            "{:>8} {:>8.4} {:>10.2} {:>9.3}  {}",
            file.tokens,
            file.loss,
            file.perplexity,
            file.bits_per_byte,
            file.file.display()
        )?;
    }
    Ok(())
}

fn score(session: &mut Session, path: &PathBuf, window: usize) -> Result<FileScore> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| EngineError::Io { path: path.clone(), source })?;
    let tokenizer =
        session.engine.text().context("the model has no tokenizer.json or tiktoken.model")?;
    let tokens = tokenizer.encode(&text)?;
    if tokens.len() < 2 {
        bail!("{} has {} tokens: at least 2 are needed", path.display(), tokens.len());
    }
    // Windows share one token, so that each token after the first is predicted exactly once.
    let starts: Vec<usize> = (0..tokens.len() - 1).step_by(window - 1).collect();
    let bar = progress::count_bar(starts.len() as u64, "scoring");
    let mut nats = 0.0;
    for start in starts {
        let window = &tokens[start..(start + window).min(tokens.len())];
        let mean = session.engine.negative_log_likelihood(window)?;
        nats += mean * (window.len() - 1) as f64;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let predicted = tokens.len() - 1;
    let loss = nats / predicted as f64;
    Ok(FileScore {
        file: path.clone(),
        tokens: predicted,
        bytes: text.len(),
        loss,
        perplexity: loss.exp(),
        bits_per_byte: nats / std::f64::consts::LN_2 / text.len() as f64,
    })
}
