//! `tier synth`: random weights in a real model's shape, for pools larger than memory.

use super::args::SynthArgs;
use super::output::{self, bytes};
use super::progress;
use anyhow::{Context, Result};
use engine_example::synth::{SynthOptions, SynthShape, synth};
use std::process::ExitCode;

pub(crate) fn run(args: &SynthArgs) -> Result<ExitCode> {
    let shape = SynthShape::named(&args.shape).with_context(|| {
        format!("unknown shape {:?}, there are {}", args.shape, SynthShape::NAMES.join(", "))
    })?;
    let options = SynthOptions {
        layers: args.layers,
        experts: args.experts,
        vocab: args.vocab,
        dtype: args.dtype.map_or_else(|| shape.default_dtype(), Into::into),
        seed: args.seed,
        packed: args.packed,
        ..SynthOptions::default()
    };
    let bar = progress::bytes_bar(0, "writing");
    let report = synth(&shape, &options, &args.out, |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    output::report(args.json, &report, |out| {
        writeln!(
            out,
            "{} experts of {}, {} in all, in {}",
            report.experts,
            bytes(report.expert_bytes),
            bytes(report.weight_bytes),
            args.out.display(),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
