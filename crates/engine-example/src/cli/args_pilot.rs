//! The words of `tier pilot`.

use super::args::ModelArgs;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Clone, Debug, Args)]
pub(crate) struct PilotArgs {
    #[command(subcommand)]
    pub(crate) command: PilotCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PilotCommand {
    /// Fit a correction of the lookahead to what a model's layers do on texts, and store it beside
    /// the model, where `--pilot fitted` and `--pilot blend` find it
    Fit(FitArgs),
    /// Score every predictor on texts that its fit has not seen: recall, precision and calibration
    /// by layer, beside a control and previous-token recurrence
    Score(PilotScoreArgs),
}

/// What is read.
#[derive(Clone, Debug, Args)]
pub(crate) struct TextsArgs {
    /// Text files; those whose names agree up to the first `-` or `.` are one domain [default: the
    /// bundled model's own texts in four domains]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The files hold token ids instead of text, separated by commas or blanks, a line a text
    #[arg(long, requires = "files")]
    pub(crate) ids: bool,
    /// Tokens after which a long text starts afresh, at most what the model's context holds
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) window: usize,
    /// Most bytes of sums and tapes to hold; more passes over the texts are made instead
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 30)]
    pub(crate) memory: u64,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct FitArgs {
    #[command(flatten)]
    pub(crate) texts: TextsArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// How many layers ahead to fit, for example 1,2
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1")]
    pub(crate) depth: Vec<usize>,
    /// The file to write [default: pilot.safetensors in the model's folder]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PilotScoreArgs {
    #[command(flatten)]
    pub(crate) texts: TextsArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// How many layers ahead to guess
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) depth: usize,
    /// Score this fit, with predictors that have seen nothing [default: leave out each domain in
    /// turn, fit on the others, let the predictors live through them, score the one left out]
    #[arg(long, value_name = "FILE")]
    pub(crate) fit: Option<PathBuf>,
    /// One JSON object on standard output instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}
