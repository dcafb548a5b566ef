use crate::cli::args_trace::TraceInput;
use clap::Args;
use engine_example::replay::{ReplayArm, Wall, parse_bytes};
use expert_tier::FillMethod;
use router_trace::simulate::Budget;
use std::path::PathBuf;

#[derive(Clone, Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Checkpoint folder or packed pool that is read
    #[arg(long, value_name = "POOL")]
    pub(crate) pool: PathBuf,
    /// The trace that is replayed; a smaller pool takes the layers that it has
    #[arg(long, value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    #[command(flatten)]
    pub(crate) input: TraceInput,
    /// What limits memory: none, cgroup=BYTES (page cache and all, as 1G), balloon=BYTES (locked
    /// by another process) or mem (what a boot with mem= left)
    #[arg(long, value_name = "WALL", default_value_t)]
    pub(crate) wall: Wall,
    /// Of mapped, willneed and faults (read-ahead advice, plain faults), pread and pread-random
    /// (copies with and without read-ahead), pinned-arena, pinned-equal (as many experts as miss
    /// what the page cache would), hybrid, locked-set, locked-live (chosen anew from live counts),
    /// lru-arena, drop-behind, direct
    #[arg(
        long, value_name = "ARM,ARM", value_delimiter = ',', default_values_t = ReplayArm::USUAL
    )]
    pub(crate) arms: Vec<ReplayArm>,
    /// What arenas and locked sets keep: 256 (experts), 25%, 1GiB [default: what the wall leaves,
    /// without one 25 % of the pool]
    #[arg(long, value_name = "BUDGET")]
    pub(crate) budget: Option<Budget>,
    /// What the wall keeps free of that for the process itself and for reads under way
    /// [default: 48 MiB and the widest pass once for each thread]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) slack: Option<u64>,
    /// Rounds; each runs every arm once, in an order that alternates
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Threads that adopt: so many consecutive layers are on their way at once
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) threads: usize,
    /// Threads that wait for storage
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) fill_threads: usize,
    /// How missing pages are read: populate, read, willneed, uring, or fault (by page faults alone,
    /// which loses) [default: the best here]
    #[arg(long, value_name = "METHOD")]
    pub(crate) fill: Option<FillMethod>,
    /// Only the first N iterations of the trace
    #[arg(long, value_name = "N")]
    pub(crate) iterations: Option<usize>,
    /// Prompts too, not only decoding
    #[arg(long)]
    pub(crate) prefill: bool,
    /// One JSON object on standard output instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}
