//! What can be said about traces on the command line.

use clap::{Args, Subcommand};
use router_trace::format::Format;
use router_trace::policy::PolicyKind;
use router_trace::simulate::{Budget, Window};
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Clone, Debug, Args)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    pub(crate) command: TraceCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Locality: Zipf slopes, reuse against chance, coverage, overlap of domains
    Stats(TraceStatsArgs),
    /// Read all of a trace, type its passes, and say what is wrong with it
    Check(TraceCheckArgs),
    /// Merge traces iteration by iteration into the batch that N sequences at once would be
    Union(TraceUnionArgs),
    /// Write a trace of any format as JSON lines (.jsonl) or in the compact form (.rtc)
    Convert(TraceConvertArgs),
}

/// What a foreign trace does not say.
#[derive(Clone, Debug, Args)]
pub(crate) struct TraceInput {
    /// Format of the traces: jsonl, compact, colibri, waste or plain [default: by their content]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
    /// Layers with experts, for formats that do not say: 1-26 or 0,2,4 [default: by the rows]
    #[arg(long, value_name = "LAYERS")]
    pub(crate) layers: Option<Layers>,
    /// Experts of a layer, likewise
    #[arg(long, value_name = "N")]
    pub(crate) experts: Option<u16>,
    /// Experts of a token, likewise
    #[arg(long = "top-k", value_name = "K")]
    pub(crate) top_k: Option<u16>,
    /// The model's name, likewise
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Bytes of an expert: misses are then told in bytes as well
    #[arg(long, value_name = "BYTES")]
    pub(crate) expert_bytes: Option<u64>,
    /// A torn trace is an error, not a notice
    #[arg(long)]
    pub(crate) strict: bool,
}

/// Layer numbers, as ranges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layers(pub(crate) Vec<u16>);

impl FromStr for Layers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?}: expected layers such as 1-26 or 0,2,4");
        let number = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
        let mut layers = Vec::new();
        for part in text.split(',') {
            match part.split_once('-') {
                Some((first, last)) => layers.extend(number(first)?..=number(last)?),
                None => layers.push(number(part)?),
            }
        }
        if layers.is_empty() || !layers.is_sorted_by(|left, right| left < right) {
            return Err(format!("{text:?}: layers must ascend"));
        }
        Ok(Self(layers))
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct TraceStatsArgs {
    /// Traces; each is a column of the report
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) traces: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) input: TraceInput,
    /// Reuse within so many tokens
    #[arg(long, value_name = "1,8,64", value_delimiter = ',')]
    pub(crate) windows: Option<Vec<u32>>,
    /// Share of the so many most used experts
    #[arg(long, value_name = "8", value_delimiter = ',')]
    pub(crate) top: Option<Vec<u16>>,
    /// Write one self-contained page with plots
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write each table as a CSV file
    #[arg(long, value_name = "DIR")]
    pub(crate) csv: Option<PathBuf>,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct TraceCheckArgs {
    /// The trace
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    #[command(flatten)]
    pub(crate) input: TraceInput,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct TraceUnionArgs {
    /// Traces of one model; the batch ends with the shortest
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) traces: Vec<PathBuf>,
    /// Where to write the batch: .jsonl or .rtc
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) input: TraceInput,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct TraceConvertArgs {
    /// The trace to read
    #[arg(value_name = "FROM")]
    pub(crate) from: PathBuf,
    /// The trace to write: .jsonl or .rtc
    #[arg(value_name = "TO")]
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) input: TraceInput,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SimulateArgs {
    /// Traces, each simulated by itself
    #[arg(long = "trace", value_name = "TRACE", required = true, num_args = 1..)]
    pub(crate) traces: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) input: TraceInput,
    /// What is kept: 61,128 (experts), 8/layer, 25%, 8GB, 8GiB [default: 2 to 75 % of the pool]
    #[arg(long, value_name = "BUDGETS", value_delimiter = ',')]
    pub(crate) budgets: Option<Vec<Budget>>,
    /// never, static, oracle-static, lru, two-list, lfu, ghost-lfu, lrfu (lrfu:4c), arc, s3-fifo,
    /// cast (cast:LE/W), belady, belady-bypass [default: all of them]
    #[arg(long, value_name = "POLICIES", value_delimiter = ',')]
    pub(crate) policies: Option<Vec<PolicyKind>>,
    /// Per cent of the iterations that warm every policy, and that are scored
    #[arg(long, value_name = "WARM/SCORED", default_value = "60/40")]
    pub(crate) window: Window,
    /// A cache for each layer as well, with an equal part of the budget
    #[arg(long)]
    pub(crate) per_layer: bool,
    /// Merge the traces into a batch, and simulate that
    #[arg(long, conflicts_with_all = ["train", "table"])]
    pub(crate) union: bool,
    /// Domain shift: train and warm on this trace's warm window instead
    #[arg(long, value_name = "TRACE", conflicts_with = "table")]
    pub(crate) train: Option<PathBuf>,
    /// Train static tables on this trace's warm window instead
    #[arg(long, value_name = "TRACE")]
    pub(crate) table: Option<PathBuf>,
    /// Prompts too, not only decoding
    #[arg(long)]
    pub(crate) prefill: bool,
    /// A pass of several tokens asks for each expert once
    #[arg(long)]
    pub(crate) once_per_pass: bool,
    /// Experts of a pass cannot be evicted while it is served
    #[arg(long)]
    pub(crate) pinned: bool,
    /// Scenario: a made-up prompt before every N iterations
    #[arg(long, value_name = "N")]
    pub(crate) prefill_every: Option<usize>,
    /// The share of the pool that such a prompt reads
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, requires = "prefill_every")]
    pub(crate) prefill_share: f64,
    /// Scenario: this share of all accesses goes to objects that are read once
    #[arg(long, value_name = "SHARE")]
    pub(crate) one_off: Option<f64>,
    /// Seed of the scenarios
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write one self-contained page with plots
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write the rows as CSV files
    #[arg(long, value_name = "DIR")]
    pub(crate) csv: Option<PathBuf>,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_ranges_and_ascend() {
        assert_eq!("1-3,7".parse(), Ok(Layers(vec![1, 2, 3, 7])));
        for wrong in ["", "3-1", "1,1", "2,1", "a", "1-", "65536"] {
            assert!(wrong.parse::<Layers>().is_err(), "{wrong}");
        }
    }
}
