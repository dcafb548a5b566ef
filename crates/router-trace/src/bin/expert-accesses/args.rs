use router_trace::policy::PolicyKind;
use router_trace::simulate::Window;
use std::path::PathBuf;
use std::str::FromStr;

pub(crate) const USAGE: &str = "\
usage: expert-accesses SOURCE [MIX] [--out FILE] [--capacities N,… --policies NAME,…]

source
  --trace FILE              a router trace of any known format; repeat it for several
  --union                   several traces as the batch that they would be
  --turns N                 several traces in turns of N iterations: domains that change
  --loop KEYS/PASSES        KEYS in the same order, PASSES times; the second half is scored
  --scan SET/READS/STREAM   SET keys READS times in changing order, then STREAM keys once,
                            then SET once more, which alone is scored
mix (of traces)
  --iterations N            the first N iterations only
  --prefill-every N         a prompt that reads --prefill-share of all experts [0.5]
  --one-off SHARE           of all accesses, objects that are read once
  --window WARM/SCORED      in per cent of the iterations [60/40]
  --seed N                  of the mix, and of the layout in the list; 0 lays keys out in order [1]
output
  --out FILE                the list that Accesses::write_list documents
  --capacities N,…          in keys, fractions too; --policies lru,belady,two-list,cast:9/100,…
  one JSON object on standard output";

/// Where accesses come from.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Source {
    Traces { paths: Vec<PathBuf>, union: bool, turns: Option<usize> },
    Loop { keys: u32, passes: usize },
    Scan { set: u32, reads: usize, stream: u32 },
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Args {
    pub(crate) source: Source,
    pub(crate) iterations: usize,
    pub(crate) prefill: Option<(usize, f64)>,
    pub(crate) one_off: Option<f64>,
    pub(crate) window: Window,
    pub(crate) seed: u64,
    pub(crate) out: Option<PathBuf>,
    pub(crate) capacities: Vec<f64>,
    pub(crate) policies: Vec<PolicyKind>,
}

impl Args {
    /// `None` where help is asked for.
    pub(crate) fn parse(given: impl IntoIterator<Item = String>) -> Result<Option<Self>, String> {
        let (mut paths, mut union, mut turns, mut made) = (Vec::new(), false, None, None);
        let (mut prefill_every, mut prefill_share) = (None, 0.5);
        let mut args = Self {
            source: Source::Loop { keys: 0, passes: 0 },
            iterations: usize::MAX,
            prefill: None,
            one_off: None,
            window: Window::default(),
            seed: 1,
            out: None,
            capacities: Vec::new(),
            policies: Vec::new(),
        };
        let mut given = given.into_iter();
        while let Some(name) = given.next() {
            if name == "--help" || name == "-h" {
                return Ok(None);
            }
            if name == "--union" {
                union = true;
                continue;
            }
            let text = given.next().ok_or_else(|| format!("{name}: needs a value"))?;
            match name.as_str() {
                "--trace" => paths.push(PathBuf::from(text)),
                "--turns" => turns = Some(value(&name, &text)?),
                "--loop" | "--scan" => made = Some(source(&name, &text)?),
                "--iterations" => args.iterations = value(&name, &text)?,
                "--prefill-every" => prefill_every = Some(value(&name, &text)?),
                "--prefill-share" => prefill_share = value(&name, &text)?,
                "--one-off" => args.one_off = Some(value(&name, &text)?),
                "--window" => args.window = value(&name, &text)?,
                "--seed" => args.seed = value(&name, &text)?,
                "--out" => args.out = Some(PathBuf::from(text)),
                "--capacities" => args.capacities = capacities(&text)?,
                "--policies" => args.policies = list(&name, &text)?,
                _ => return Err(format!("{name}: not known")),
            }
        }
        args.prefill = prefill_every.map(|every| (every, prefill_share));
        args.source = match (made, paths.is_empty()) {
            (Some(made), true) => made,
            (None, false) => Source::Traces { paths, union, turns },
            _ => return Err("give --trace, or --loop, or --scan".to_owned()),
        };
        Ok(Some(args))
    }
}

fn value<T: FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name}: {text:?} is no such value"))
}

fn list<T: FromStr>(name: &str, text: &str) -> Result<Vec<T>, String> {
    text.split(',').map(|part| value(name, part)).collect()
}

fn capacities(text: &str) -> Result<Vec<f64>, String> {
    let given: Vec<f64> = list("--capacities", text)?;
    match given.iter().find(|&&capacity| !(1.0..=1e9).contains(&capacity)) {
        Some(wrong) => Err(format!("--capacities: {wrong}, must be 1 or more")),
        None => Ok(given),
    }
}

fn source(name: &str, text: &str) -> Result<Source, String> {
    let parts: Vec<u32> =
        text.split('/').map(|part| value(name, part)).collect::<Result<_, _>>()?;
    match (name, parts.as_slice()) {
        ("--loop", &[keys, passes]) if keys > 0 && passes > 1 => {
            Ok(Source::Loop { keys, passes: passes as usize })
        }
        ("--scan", &[set, reads, stream]) if set.min(reads).min(stream) > 0 => {
            Ok(Source::Scan { set, reads: reads as usize, stream })
        }
        _ => Err(format!("{name}: {text:?} is not of the form that --help shows")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<Args>, String> {
        Args::parse(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn what_is_said_is_understood() {
        let args = parse("--trace a --trace b --turns 250 --seed 3 --prefill-every 60 --out x");
        let args = args.unwrap().unwrap();
        let paths = vec![PathBuf::from("a"), PathBuf::from("b")];
        assert_eq!(args.source, Source::Traces { paths, union: false, turns: Some(250) });
        assert_eq!((args.seed, args.prefill), (3, Some((60, 0.5))));
        let made = parse("--scan 8/3/64 --capacities 4.5,8 --policies lru,cast:7/100");
        let made = made.unwrap().unwrap();
        assert_eq!(made.source, Source::Scan { set: 8, reads: 3, stream: 64 });
        assert_eq!((made.capacities, made.policies.len()), (vec![4.5, 8.0], 2));
        assert_eq!(parse("--help"), Ok(None));
    }

    #[test]
    fn what_is_not_is_refused() {
        for text in [
            "",
            "--trace",
            "--loop 8/1",
            "--loop 8",
            "--scan 0/1/1",
            "--loop 4/4 --trace a",
            "--loop 4/4 --capacities 0",
            "--loop 4/4 --policies none",
            "--loop 4/4 --bogus 1",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
