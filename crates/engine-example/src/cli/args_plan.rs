//! What can be said about a plan on the command line.

use super::args_trace::TraceInput;
use clap::Args;
use expert_tier::plan::CurvePoint;
use router_trace::simulate::{Budget, Window};
use std::path::PathBuf;

/// Will a model run here, how fast, with how much memory.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlanArgs {
    /// Checkpoint folder, its index, config.json alone, or a GGUF file (its header is enough, and of
    /// a split set every file's) [default: the bundled model]
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
    /// The same, by config.json alone whatever lies beside it
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    pub(crate) config: Option<PathBuf>,
    /// Memory sizes to plan for: 64G,128G,256GiB [default: this machine's, and parts of the model]
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', value_parser = parse_bytes)]
    pub(crate) dram: Option<Vec<u64>>,
    /// Find the least memory with which a token takes at most so long
    #[arg(long, value_name = "MS", value_parser = parse_positive)]
    pub(crate) target_ms: Option<f64>,
    /// Tokens of context that the key-value cache holds
    #[arg(long, value_name = "N", default_value_t = 8192)]
    pub(crate) context: u64,
    /// Type of the key-value cache: f32, bf16, f16 or fp8
    #[arg(long, value_name = "TYPE", default_value = "bf16", value_parser = parse_kv_type)]
    pub(crate) kv_type: u64,
    /// Memory for the system and the program beside the model
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = parse_bytes)]
    pub(crate) reserve: u64,
    /// Spine and key-value cache lie in accelerator memory, not in DRAM
    #[arg(long)]
    pub(crate) spine_in_hbm: bool,
    #[command(flatten)]
    pub(crate) rates: RateArgs,
    #[command(flatten)]
    pub(crate) demand: DemandArgs,
    /// Predict a finished run instead, and print it beside what was measured: the JSON of
    /// tier generate --json
    #[arg(long, value_name = "RUN.json")]
    pub(crate) verify: Option<PathBuf>,
    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// How fast bytes come.
#[derive(Clone, Debug, Args)]
pub(crate) struct RateArgs {
    /// Measure device and memory here, with the experts of this pool (a GB is read, cold)
    #[arg(long, value_name = "POOL")]
    pub(crate) measure: Option<PathBuf>,
    /// Bytes a second from the device: 3.2GB/s [default: measured, else unknown]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) device_rate: Option<f64>,
    /// Bytes a second from memory, all threads together [default: measured, else unknown]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) memory_rate: Option<f64>,
    /// What a miss through the page cache costs over one past it [default: measured, else 1.04]
    #[arg(long, value_name = "TIMES", value_parser = parse_positive)]
    pub(crate) fill_cost: Option<f64>,
    /// Accelerator memory for experts: what it would buy
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) hbm: Option<u64>,
    /// The accelerator reading its own memory [default: 2938GB/s, a GH200's]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) hbm_rate: Option<f64>,
    /// The accelerator reading host memory in place [default: 327GB/s, a GH200's]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) host_rate: Option<f64>,
    /// Copying to the accelerator while it computes [default: 346GB/s, a GH200's]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) stream_rate: Option<f64>,
}

/// What tokens ask for.
#[derive(Clone, Debug, Args)]
pub(crate) struct DemandArgs {
    /// A router trace: misses by exact LRU
    #[arg(long, value_name = "TRACE")]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) input: TraceInput,
    /// Per cent of the trace's iterations that warm the cache, and that are scored
    #[arg(long, value_name = "WARM/SCORED", default_value = "60/40")]
    pub(crate) window: Window,
    /// Known misses instead, bytes a token by cache size: 64GB:15.1GB,128GB:11.6GB
    #[arg(
        long, value_name = "SIZE:MISSES,…", value_delimiter = ',', value_parser = parse_point,
        conflicts_with = "trace"
    )]
    pub(crate) misses: Option<Vec<CurvePoint>>,
    /// A Zipf slope of each layer's experts instead, without recency
    #[arg(long, value_name = "SLOPE", conflicts_with_all = ["trace", "misses"])]
    pub(crate) zipf: Option<f64>,
}

/// `64G` and `64GB` are 64 * 10^9 bytes, `64GiB` 64 * 2^30.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?}: expected bytes such as 64G, 64GB, 64GiB or 1000000B");
    let text = text.trim();
    let unit = text.ends_with(['k', 'M', 'G', 'T', 'i']);
    let named = if unit { format!("{text}B") } else { text.to_owned() };
    match named.parse::<Budget>() {
        Ok(Budget::Bytes(bytes)) => Ok(bytes),
        _ => Err(wrong()),
    }
}

/// `3.2GB/s` or `3.2G`.
fn parse_rate(text: &str) -> Result<f64, String> {
    let bytes = parse_bytes(text.strip_suffix("/s").unwrap_or(text));
    let rate = bytes.ok().filter(|&rate| rate > 0).map(|rate| rate as f64);
    rate.ok_or_else(|| format!("{text:?}: expected a rate above 0, such as 3.2GB/s"))
}

fn parse_point(text: &str) -> Result<CurvePoint, String> {
    let (size, misses) = text
        .split_once(':')
        .ok_or_else(|| format!("{text:?}: expected SIZE:MISSES, such as 64GB:15.1GB"))?;
    Ok(CurvePoint { cache_bytes: parse_bytes(size)?, miss_bytes: parse_bytes(misses)? })
}

fn parse_positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && number.is_finite());
    number.ok_or_else(|| format!("{text:?}: expected a number above 0"))
}

/// Bytes of an element.
fn parse_kv_type(name: &str) -> Result<u64, String> {
    match name {
        "f32" => Ok(4),
        "bf16" | "f16" => Ok(2),
        "fp8" => Ok(1),
        _ => Err(format!("{name:?}: expected f32, bf16, f16 or fp8")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_rates() {
        for (text, bytes) in [
            ("64G", 64_000_000_000),
            ("64GB", 64_000_000_000),
            ("1.5T", 1_500_000_000_000),
            ("2GiB", 2 << 30),
            ("2Gi", 2 << 30),
            ("8k", 8000),
            ("17B", 17),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for wrong in ["64", "64g", "-1G", "", "G", "50%", "8/layer", "1e30TB"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_rate("3.2GB/s"), Ok(3.2e9));
        assert_eq!(parse_rate("500M"), Ok(5e8));
        assert!(parse_rate("0GB/s").is_err() && parse_rate("fast").is_err());
        let point = CurvePoint { cache_bytes: 64_000_000_000, miss_bytes: 15_100_000_000 };
        assert_eq!(parse_point("64GB:15.1GB"), Ok(point));
        assert!(parse_point("64GB").is_err());
    }
}
