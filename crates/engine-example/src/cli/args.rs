//! What can be said on the command line: plain data, resolved once by the commands.

use super::args_pilot::PilotArgs;
use super::args_plan::PlanArgs;
use super::args_trace::{SimulateArgs, TopArgs, TraceArgs};
use super::replay::ReplayArgs;
use clap::{Args, Parser, Subcommand};
use engine_example::PromptReads;
use expert_tier::{Admission, FillMethod, SpinePlacement};
use pilot_prefetch::predict::PilotConfig;
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
    /// Say what lies where in a pool; reads headers only. An index or config.json alone give sizes
    Inspect(PoolArgs),
    /// Read all data of a pool and check what can be checked
    Verify(PoolArgs),
    /// Write a checkpoint whose experts are int4 (compressed-tensors pack-quantized)
    Quantize(QuantizeArgs),
    /// Write a packed pool: every expert at a multiple of 2 MiB, with checksums; resumable
    Pack(PackArgs),
    /// Write a checkpoint of random weights in a real model's shape
    Synth(SynthArgs),
    /// Read experts into the page cache
    Warm(ExpertsArgs),
    /// Ask the page cache to forget experts, and say what is left
    Evict(ExpertsArgs),
    /// Say what this machine and its kernel can do for a pool
    Doctor(PoolArgs),
    /// Lock the dense part in memory as the engine would, say what came of it, let go
    Lock(LockArgs),
    /// Adopt and read experts in random order for a while
    Touch(TouchArgs),
    /// Write one tensor's stored bytes to standard output
    Cat(CatArgs),
    /// Score a text: mean negative log-likelihood a token
    Score(ScoreArgs),
    /// Look into router traces of any program, merge and convert them
    Trace(TraceArgs),
    /// Replay traces through replacement policies: hit rates and bytes, in fair windows
    Simulate(SimulateArgs),
    /// Watch a running tier, a pool's residency and the machine, live
    Top(TopArgs),
    /// Fit and score predictors of the next layers' experts
    Pilot(PilotArgs),
    /// Say whether a model will run, how fast, and with how much memory; before a download too
    Plan(Box<PlanArgs>),
    /// Replay a trace against a pool behind a memory limit: the tier, arenas and unbuffered reads
    Replay(ReplayArgs),
    /// One run of `replay`, started by it
    #[command(hide = true)]
    ReplayChild,
    /// The balloon of `replay`, started by it
    #[command(hide = true)]
    ReplayBalloon {
        /// What it locks
        bytes: u64,
    },
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
    /// How missing pages are read: populate, read, willneed, uring, or fault (by page faults alone,
    /// which loses) [default: the best here]
    #[arg(long, value_name = "METHOD")]
    pub(crate) fill: Option<FillMethod>,
    /// Where the dense part lives: anonymous or locked memory
    #[arg(long, value_name = "WHERE", default_value = "anonymous", value_parser = parse_spine)]
    pub(crate) spine: SpinePlacement,
    /// Prompt tokens a forward pass reads at once
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) prefill_chunk: usize,
    /// What becomes of the experts that a prompt reads: stay in the page cache, or pass it by
    #[arg(long, value_name = "stay|pass", default_value = "stay", value_parser = parse_prompt_reads)]
    pub(crate) prompt_reads: PromptReads,
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
    /// Whether demand-read pages stay in the page cache: admit, drop-behind, direct, dont-cache, or
    /// auto (admit or direct, whichever is measured to wait less here)
    #[arg(long, value_name = "ARM", default_value_t = Admission::Admit)]
    pub(crate) admission: Admission,
    /// Evict the experts from the page cache first, and prove it
    #[arg(long)]
    pub(crate) cold: bool,
    /// Guess the experts of layers to come, and score the guesses:
    /// none, repeat, transition, lookahead, fitted or blend; then ,depth=N and ,width=N if wanted
    #[arg(long, value_name = "PREDICTOR")]
    pub(crate) pilot: Option<PilotConfig>,
    /// Write the guesses as a plan file, gzip if it ends in .gz (writing costs decode time)
    #[arg(long, value_name = "FILE", requires = "pilot")]
    pub(crate) pilot_plan: Option<PathBuf>,
    /// Export the tier's counters as Prometheus text at this address meanwhile (HOST:PORT)
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
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
    /// Arms to hold against admission: drop-behind, direct, dont-cache, auto
    #[arg(
        long, value_name = "ARM,ARM", value_delimiter = ',',
        default_values_t = [Admission::DropBehind, Admission::Direct, Admission::DontCache]
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
    /// The trace to write: JSON lines, or the compact form if it ends in .rtc
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PoolArgs {
    /// Checkpoint folder, safetensors or GGUF file [default: the bundled model]
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

#[derive(Clone, Debug, Args)]
pub(crate) struct PackArgs {
    /// Checkpoint folder
    #[arg(value_name = "SRC")]
    pub(crate) source: PathBuf,
    /// Folder to write
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Threads that read and write; each holds one expert in memory
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) threads: usize,
    /// Throw away an unfinished pack of another source
    #[arg(long)]
    pub(crate) restart: bool,
    /// Read back what an earlier run has finished
    #[arg(long)]
    pub(crate) recheck: bool,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SynthArgs {
    /// Shape: qwen3-30b-a3b, qwen3-235b-a22b, deepseek-v3, kimi-k2, kimi-k3, tiny,
    /// tiny-deepseek-v3 or tiny-kimi-k3
    #[arg(long, value_name = "NAME")]
    pub(crate) shape: String,
    /// Layers [default: the shape's]
    #[arg(long, value_name = "N")]
    pub(crate) layers: Option<u16>,
    /// Experts a layer [default: the shape's]
    #[arg(long, value_name = "N")]
    pub(crate) experts: Option<u16>,
    /// Tokens the model knows [default: the shape's]
    #[arg(long, value_name = "N")]
    pub(crate) vocab: Option<u32>,
    /// Type of the experts, fp8 of the dense projections too [default: mxfp4 for Kimi K3, int4 for
    /// the others]
    #[arg(long, value_name = "TYPE")]
    pub(crate) dtype: Option<SynthType>,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write a packed pool instead of safetensors shards
    #[arg(long)]
    pub(crate) packed: bool,
    /// Folder to write
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum SynthType {
    Bf16,
    Int4,
    Mxfp4,
    Fp8,
}

impl From<SynthType> for engine_example::synth::SynthDtype {
    fn from(name: SynthType) -> Self {
        match name {
            SynthType::Bf16 => Self::Bf16,
            SynthType::Int4 => Self::Int4,
            SynthType::Mxfp4 => Self::Mxfp4,
            SynthType::Fp8 => Self::Fp8,
        }
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ExpertsArgs {
    /// Checkpoint folder or packed pool [default: the bundled model]
    #[arg(value_name = "POOL")]
    pub(crate) pool: Option<PathBuf>,
    /// Only this layer [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) layer: Option<u16>,
    /// Only these experts of a layer, for example 0,3,8-11 [default: all]
    #[arg(long, value_name = "LIST")]
    pub(crate) experts: Option<String>,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct LockArgs {
    /// Checkpoint folder or packed pool [default: the bundled model]
    #[arg(value_name = "POOL")]
    pub(crate) pool: Option<PathBuf>,
    /// Write the report as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Fail where it cannot be locked
    #[arg(long)]
    pub(crate) require: bool,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct TouchArgs {
    /// Checkpoint folder or packed pool [default: the bundled model]
    #[arg(value_name = "POOL")]
    pub(crate) pool: Option<PathBuf>,
    /// How long
    #[arg(long, value_name = "S", default_value = "5", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
    /// Evict the experts from the page cache first; fail unless a probe finds them gone
    #[arg(long)]
    pub(crate) cold: bool,
    /// Whether demand-read pages stay in the page cache: admit, drop-behind, direct, dont-cache or
    /// auto
    #[arg(long, value_name = "ARM", default_value_t = Admission::Admit)]
    pub(crate) admission: Admission,
    /// Seed of the order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CatArgs {
    /// Checkpoint folder or packed pool [default: the bundled model]
    #[arg(value_name = "POOL")]
    pub(crate) pool: Option<PathBuf>,
    /// Its name in the file, or without the dialect's prefix
    #[arg(long, value_name = "NAME")]
    pub(crate) tensor: String,
    /// Through the page cache or past it
    #[arg(long, value_name = "HOW", default_value = "buffered")]
    pub(crate) io: ReadMode,
    /// Write how it was read as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum ReadMode {
    Buffered,
    Direct,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0 && *seconds <= 86_400.0);
    seconds.ok_or_else(|| "expected more than 0 and at most 86400".to_owned())
}

fn parse_prompt_reads(name: &str) -> Result<PromptReads, String> {
    match name {
        "stay" => Ok(PromptReads::Stay),
        "pass" => Ok(PromptReads::Pass),
        _ => Err("expected stay or pass".to_owned()),
    }
}

fn parse_spine(name: &str) -> Result<SpinePlacement, String> {
    match name {
        "anonymous" => Ok(SpinePlacement::Anonymous),
        "locked" => Ok(SpinePlacement::Locked),
        _ => Err("expected anonymous or locked".to_owned()),
    }
}
