use crate::args::{Args, Source};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use router_trace::format::{self, OpenOptions};
use router_trace::union::BatchUnion;
use router_trace::{Accesses, Demand, LayerPass, ModelShape, Phase, TraceError, TraceHeader};
use std::path::Path;

/// Accesses, and from which iteration on they count.
pub(crate) struct Scenario {
    pub(crate) accesses: Accesses,
    pub(crate) first_scored: usize,
}

pub(crate) fn make(args: &Args) -> Result<Scenario, TraceError> {
    match &args.source {
        Source::Traces { paths, union, turns } => {
            let traces: Vec<&Path> = paths.iter().map(AsRef::as_ref).collect();
            let accesses = match (union, turns) {
                (true, _) => batch(&traces)?,
                (false, Some(turns)) => in_turns(&traces, (*turns).max(1))?,
                (false, None) => one_after_the_other(&traces)?,
            };
            let accesses = mixed(args, shortened(&accesses, args.iterations)?)?;
            let first_scored = args.window.split(accesses.n_iterations()).1.start;
            Ok(Scenario { accesses, first_scored })
        }
        &Source::Loop { keys, passes } => looped(keys, passes),
        &Source::Scan { set, reads, stream } => scan((set, reads, stream), args.seed),
    }
}

fn wanted(pass: &Result<LayerPass, TraceError>) -> bool {
    pass.as_ref().is_ok_and(|pass| pass.info.phase == Phase::Decode) || pass.is_err()
}

fn load(path: &Path) -> Result<(TraceHeader, Accesses), TraceError> {
    let reader = format::open(path, &OpenOptions::default())?;
    let header = reader.header().clone();
    let accesses = Accesses::from_passes(&header, reader.filter(wanted), Demand::OncePerPass)?;
    Ok((header, accesses))
}

/// An iteration: layer slots and what each pass asks for.
type Iteration = Vec<(u16, Vec<u32>)>;

fn iteration(accesses: &Accesses, index: usize) -> Iteration {
    accesses.passes_in(index..index + 1).map(|(slot, keys)| (slot, keys.to_vec())).collect()
}

fn gathered(shape: &ModelShape, iterations: &[Iteration]) -> Result<Accesses, TraceError> {
    Accesses::from_keys(shape, None, iterations.iter().map(Vec::as_slice))
}

fn shortened(accesses: &Accesses, limit: usize) -> Result<Accesses, TraceError> {
    let kept = 0..accesses.n_iterations().min(limit);
    let kept: Vec<_> = kept.map(|index| iteration(accesses, index)).collect();
    gathered(accesses.key_space().shape(), &kept)
}

fn loaded(paths: &[&Path]) -> Result<(ModelShape, Vec<Accesses>), TraceError> {
    let traces = paths.iter().map(|path| load(path)).collect::<Result<Vec<_>, _>>()?;
    let shape = traces[0].0.shape.clone();
    if let Some((other, _)) = traces.iter().find(|(header, _)| header.shape != shape) {
        let told = |shape: &ModelShape| {
            format!("{} layers of {} experts", shape.moe_layers.len(), shape.n_experts)
        };
        let (expected, found) = (told(&shape), told(&other.shape));
        return Err(TraceError::ShapesDiffer { expected, found });
    }
    Ok((shape, traces.into_iter().map(|(_, accesses)| accesses).collect()))
}

fn one_after_the_other(paths: &[&Path]) -> Result<Accesses, TraceError> {
    let (shape, traces) = loaded(paths)?;
    let all = traces.iter().flat_map(|of| (0..of.n_iterations()).map(|i| iteration(of, i)));
    gathered(&shape, &all.collect::<Vec<_>>())
}

/// The first `turns` iterations of each, then the next of each, until all are through.
fn in_turns(paths: &[&Path], turns: usize) -> Result<Accesses, TraceError> {
    let (shape, traces) = loaded(paths)?;
    let longest = traces.iter().map(Accesses::n_iterations).max().unwrap_or(0);
    let mut all = Vec::new();
    for start in (0..longest).step_by(turns) {
        for of in &traces {
            let end = of.n_iterations().min(start + turns);
            all.extend((start..end).map(|index| iteration(of, index)));
        }
    }
    gathered(&shape, &all)
}

fn batch(paths: &[&Path]) -> Result<Accesses, TraceError> {
    let mut inputs = Vec::new();
    for path in paths {
        let reader = format::open(path, &OpenOptions::default())?;
        inputs.push((reader.header().clone(), reader));
    }
    let mut batch = BatchUnion::new(inputs)?;
    let header = batch.header().clone();
    Accesses::from_passes(&header, &mut batch, Demand::OncePerPass)
}

fn mixed(args: &Args, mut accesses: Accesses) -> Result<Accesses, TraceError> {
    if let Some((every, share)) = args.prefill {
        accesses = accesses.with_prefills(every, share, args.seed)?;
    }
    if let Some(share) = args.one_off {
        accesses = accesses.with_one_off_reads(share)?;
    }
    Ok(accesses)
}

/// Keys of one layer; made-up accesses have no more of them than a layer can have experts.
fn one_layer(keys: u64) -> Result<ModelShape, TraceError> {
    let n_experts = u16::try_from(keys).map_err(|_| TraceError::TooMany {
        what: "made-up keys",
        value: keys,
        limit: u16::MAX.into(),
    })?;
    Ok(ModelShape { moe_layers: vec![0], n_experts, top_k: 1 })
}

fn looped(keys: u32, passes: usize) -> Result<Scenario, TraceError> {
    let pass: Iteration = vec![(0, (0..keys).collect())];
    let accesses = gathered(&one_layer(keys.into())?, &vec![pass; passes])?;
    Ok(Scenario { accesses, first_scored: passes / 2 })
}

fn scan((set, reads, stream): (u32, usize, u32), seed: u64) -> Result<Scenario, TraceError> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut shuffled = || {
        let mut keys: Vec<u32> = (0..set).collect();
        keys.shuffle(&mut random);
        vec![(0, keys)]
    };
    let mut iterations: Vec<Iteration> = (0..reads).map(|_| shuffled()).collect();
    iterations.push(vec![(0, (set..set + stream).collect())]);
    iterations.push(shuffled());
    let shape = one_layer(u64::from(set) + u64::from(stream))?;
    Ok(Scenario { accesses: gathered(&shape, &iterations)?, first_scored: reads + 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str) -> Scenario {
        let args = Args::parse(text.split_whitespace().map(str::to_owned)).unwrap().unwrap();
        make(&args).unwrap()
    }

    fn trace(name: &str) -> String {
        format!("--trace {}/traces/{name}", env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn a_scan_stands_between_two_readings_of_the_set() {
        let scan = made("--scan 4/3/9");
        let of = |index| scan.accesses.keys_in(index..index + 1).to_vec();
        let sorted = |mut keys: Vec<u32>| {
            keys.sort_unstable();
            keys
        };
        assert_eq!((scan.accesses.n_iterations(), scan.first_scored), (5, 4));
        for index in [0, 1, 2, 4] {
            assert_eq!(sorted(of(index)), [0, 1, 2, 3]);
        }
        assert_eq!(of(3), (4..13).collect::<Vec<u32>>());
    }

    #[test]
    fn a_loop_repeats_itself() {
        let looped = made("--loop 3/4");
        assert_eq!(looped.accesses.keys(), [0, 1, 2].repeat(4));
        assert_eq!(looped.first_scored, 2);
    }

    #[test]
    fn turns_lose_nothing() {
        let two = format!("{} {}", trace("tiny-moe-code.rtc"), trace("tiny-moe-math.rtc"));
        let turns = made(&format!("{two} --turns 100")).accesses;
        let plain = made(&two).accesses;
        assert_eq!(turns.n_iterations(), plain.n_iterations());
        assert_eq!(turns.keys_in(0..100), plain.keys_in(0..100));
        assert_ne!(turns.keys_in(100..200), plain.keys_in(100..200));
        let sorted = |accesses: &Accesses| {
            let mut keys = accesses.keys().to_vec();
            keys.sort_unstable();
            keys
        };
        assert_eq!(sorted(&turns), sorted(&plain));
    }

    /// The order of a real trace, against the passes as the reader gives them.
    #[test]
    fn a_trace_keeps_its_order() {
        let path = format!("{}/traces/olmoe_299.jsonl.gz", env!("CARGO_MANIFEST_DIR"));
        let ours = made(&format!("--trace {path} --iterations 20"));
        let passes = format::open(Path::new(&path), &OpenOptions::default()).unwrap();
        let mut expected = Vec::new();
        for pass in passes.map(Result::unwrap).filter(|pass| pass.info.step < 20) {
            let layer = u32::from(pass.info.layer);
            expected.extend(pass.experts().iter().map(|&e| layer * 64 + u32::from(e)));
        }
        assert_eq!(ours.accesses.keys(), expected);
        assert_eq!((ours.accesses.n_iterations(), ours.first_scored), (20, 12));
    }
}
