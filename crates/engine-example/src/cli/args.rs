//! What can be said on the command line: plain data, resolved once by the commands.

use clap::{Args, Parser, Subcommand};
use expert_tier::{Admission, SpinePlacement};
use std::path::PathBuf;

/// Decode Mixture-of-Experts models whose experts stay in the operating system's page cache.
///
/// Without a command, `tier` generates text with the bundled model.
#[derive(Debug, Parser)]
#[command(name = "tier", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) generate: GenerateArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Generate text, then say where every expert came from (the default command)
    Generate(GenerateArgs),
    /// Run one prompt under admission and under each unbuffered arm, interleaved, from a proven
    /// cold state, and compare
    Compare(CompareArgs),
    /// Generate, and write every router decision to a trace
    Capture(CaptureArgs),
    /// Say what lies where in a pool; reads headers only
    Inspect(PoolArgs),
    /// Read all data of a pool and check what can be checked
    Verify(PoolArgs),
    /// Write a checkpoint whose experts are int4 (compressed-tensors pack-quantized)
    Quantize(QuantizeArgs),
    /// Score a text: mean negative log-likelihood a token
    Score(ScoreArgs),
}

/// Which model, and how it is served.
#[derive(Clone, Debug, Args)]
pub(crate) struct ModelArgs {
    /// Checkpoint folder [default: the bundled model]
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// Compute threads [default: one a CPU]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Threads that wait for storage
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) fill_threads: usize,
    /// Where the dense part lives: anonymous or locked memory
    #[arg(long, value_name = "WHERE", default_value = "anonymous", value_parser = parse_spine)]
    pub(crate) spine: SpinePlacement,
    /// Prompt tokens a forward pass reads at once
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) prefill_chunk: usize,
    /// Do not ask for 2 MiB folios
    #[arg(long)]
    pub(crate) no_huge_folios: bool,
    /// Instruction set of the expert kernels [default: the best this CPU has]
    #[arg(long, value_name = "NAME")]
    pub(crate) isa: Option<String>,
}

/// What to continue, how far, and how tokens are drawn.
#[derive(Clone, Debug, Args)]
pub(crate) struct PromptArgs {
    /// Text to continue [default: a line of systems prose]
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Option<String>,
    /// Token ids as prompt instead of text
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', conflicts_with = "prompt")]
    pub(crate) ids: Option<Vec<u32>>,
    /// Wrap the prompt in the model's chat template
    #[arg(long, conflicts_with = "ids")]
    pub(crate) chat: bool,
    /// Most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 96)]
    pub(crate) max_tokens: usize,
    /// Always take the most likely token
    #[arg(long)]
    pub(crate) greedy: bool,
    /// Softmax temperature [default: the model's generation_config.json]
    #[arg(long, value_name = "T", conflicts_with = "greedy")]
    pub(crate) temperature: Option<f32>,
    /// Draw from the K most likely tokens [default: the model's]
    #[arg(long, value_name = "K", conflicts_with = "greedy")]
    pub(crate) top_k: Option<usize>,
    /// Draw from the most likely tokens whose probabilities sum to P [default: the model's]
    #[arg(long, value_name = "P", conflicts_with = "greedy")]
    pub(crate) top_p: Option<f32>,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Go on past end-of-text tokens
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Whether demand-read pages stay in the page cache: admit, drop-behind or direct
    #[arg(long, value_name = "ARM", default_value_t = Admission::Admit)]
    pub(crate) admission: Admission,
    /// Evict the experts from the page cache first, and prove it
    #[arg(long)]
    pub(crate) cold: bool,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Unbuffered arms to hold against admission
    #[arg(
        long, value_name = "ARM,ARM", value_delimiter = ',',
        default_values_t = [Admission::DropBehind, Admission::Direct]
    )]
    pub(crate) arms: Vec<Admission>,
    /// Rounds; each runs every arm once, in an order that alternates
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub(crate) rounds: usize,
    /// One JSON object on standard output instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CaptureArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The trace to write
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PoolArgs {
    /// Checkpoint folder or safetensors file [default: the bundled model]
    #[arg(value_name = "POOL")]
    pub(crate) pool: Option<PathBuf>,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct QuantizeArgs {
    /// Checkpoint folder with BF16, F16 or F32 experts
    #[arg(value_name = "SRC")]
    pub(crate) source: PathBuf,
    /// Folder to write; must not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Weights that share one scale
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(crate) group: usize,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ScoreArgs {
    /// Text files to score
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens of context a window starts afresh with
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) window: usize,
    /// One JSON object on standard output instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_spine(name: &str) -> Result<SpinePlacement, String> {
    match name {
        "anonymous" => Ok(SpinePlacement::Anonymous),
        "locked" => Ok(SpinePlacement::Locked),
        _ => Err("expected anonymous or locked".to_owned()),
    }
}
