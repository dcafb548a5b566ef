use crate::pools::{Layout, Spec};
use anyhow::{Context, Result, bail, ensure};
use engine_example::replay::{ReplayArm, parse_bytes};
use expert_tier::{FillMethod, Pool};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// The most cells that a campaign may have.
const MOST_CELLS: usize = 10_000;

/// What is to be measured: the whole of it in one file, so that it can be done again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Definition {
    /// Names the results.
    pub(crate) name: String,
    /// What it is to show, in a sentence.
    pub(crate) about: String,
    pub(crate) pool: PoolChoice,
    /// A trace, relative to the definition.
    pub(crate) trace: PathBuf,
    /// Only the first so many iterations of it.
    pub(crate) iterations: Option<usize>,
    pub(crate) arms: Vec<ReplayArm>,
    /// What enforces the capacity.
    pub(crate) walls: Vec<WallKind>,
    /// What experts may have: `25%` of the pool, or bytes such as `512M`.
    pub(crate) capacities: Vec<String>,
    /// How the kernel reclaims.
    #[serde(default = "as_is")]
    pub(crate) reclaim: Vec<Reclaim>,
    /// Runs of each cell.
    pub(crate) repetitions: usize,
    /// Of the order in which cells run.
    pub(crate) seed: u64,
    #[serde(default)]
    pub(crate) order: Order,
    #[serde(default = "eight")]
    pub(crate) threads: usize,
    #[serde(default = "eight")]
    pub(crate) fill_threads: usize,
    pub(crate) fill: Option<FillMethod>,
    /// What a wall leaves free beside the capacity, such as `200M`; what the process and the reads
    /// under way need if not given.
    pub(crate) slack: Option<String>,
}

/// Which pool is read.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) enum PoolChoice {
    /// A checkpoint folder or packed pool, relative to the definition.
    Path(PathBuf),
    /// One made here, once.
    Synth(Synth),
}

/// A packed pool of experts of one size.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Synth {
    pub(crate) layers: u16,
    pub(crate) experts: u16,
    /// A multiple of 2 KiB, such as `2M`.
    pub(crate) expert_bytes: String,
}

/// How a capacity is enforced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WallKind {
    /// Nothing enforces it: arenas keep to it, the page cache does not.
    None,
    /// A memory control group.
    Cgroup,
    /// Locked memory elsewhere.
    Balloon,
    /// What a boot with `mem=` left: only arenas are sized.
    Mem,
}

/// How the kernel reclaims memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reclaim {
    /// As this machine is set.
    AsIs,
    /// The multi-generational LRU.
    Mglru,
    /// Active and inactive lists.
    Classic,
}

/// How repetitions follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    /// Every cell once a repetition; pairs of repetitions mirror each other.
    #[default]
    Interleaved,
    /// Every cell once a repetition, each repetition in an order of its own.
    Random,
}

fn as_is() -> Vec<Reclaim> {
    vec![Reclaim::AsIs]
}

fn eight() -> usize {
    8
}

impl Definition {
    /// Reads and checks a definition.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let definition: Self = toml::from_str(&text)
            .map_err(|error| anyhow::anyhow!("{}: {}", path.display(), error.to_string().trim()))?;
        definition.check().with_context(|| path.display().to_string())?;
        Ok(definition)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        ensure!(
            !self.name.is_empty() && self.name.chars().all(plain) && !self.name.starts_with('.'),
            "name = {:?}: letters, digits, - and _ are needed, it becomes a folder",
            self.name
        );
        once("arms", &self.arms)?;
        once("walls", &self.walls)?;
        once("capacities", &self.capacities)?;
        once("reclaim", &self.reclaim)?;
        ensure!(
            (1..=100).contains(&self.repetitions),
            "repetitions = {}: 1 to 100 are needed",
            self.repetitions
        );
        ensure!(self.iterations != Some(0), "iterations = 0: at least one is needed");
        for capacity in &self.capacities {
            capacity_of(capacity, 1 << 40)?;
        }
        self.slack_bytes()?;
        let cells = self.arms.len()
            * self.walls.len()
            * self.capacities.len()
            * self.reclaim.len()
            * self.repetitions;
        ensure!(cells <= MOST_CELLS, "{cells} runs, {MOST_CELLS} are the most");
        Ok(())
    }

    /// Opens the pool; one that is made lies below `dir`.
    pub(crate) fn open_pool(&self, home: &Path, dir: &Path) -> Result<Pool> {
        match &self.pool {
            PoolChoice::Path(path) => Ok(Pool::open(home.join(path))?),
            PoolChoice::Synth(synth) => synth.spec()?.open(dir),
        }
    }

    pub(crate) fn slack_bytes(&self) -> Result<Option<u64>> {
        let parse = |text: &String| parse_bytes(text).map_err(|e| anyhow::anyhow!("slack = {e}"));
        self.slack.as_ref().map(parse).transpose()
    }
}

impl Synth {
    fn spec(&self) -> Result<Spec> {
        let bytes = parse_bytes(&self.expert_bytes)
            .map_err(|error| anyhow::anyhow!("expert-bytes = {error}"))?;
        ensure!(
            bytes % 2048 == 0 && (3 * 2048..=1 << 30).contains(&bytes),
            "expert-bytes = {bytes}: a multiple of 2048 from 6144 to 1073741824 is needed"
        );
        ensure!(self.layers > 0 && self.experts > 0, "a pool needs layers and experts");
        let Self { layers, experts, .. } = *self;
        let name = format!("packed-{layers}x{experts}x{bytes}");
        Ok(Spec {
            // Once a process: definitions are read one at a time.
            name: name.leak(),
            layout: Layout::Packed,
            layers,
            experts,
            expert_bytes: bytes as usize,
        })
    }
}

fn once<T: PartialEq + std::fmt::Debug>(what: &str, values: &[T]) -> Result<()> {
    ensure!(!values.is_empty(), "{what} is empty");
    for (index, value) in values.iter().enumerate() {
        ensure!(!values[..index].contains(value), "{what} names {value:?} twice");
    }
    Ok(())
}

/// A capacity in bytes, of a pool of `pool_bytes`.
pub(crate) fn capacity_of(text: &str, pool_bytes: u64) -> Result<u64> {
    let Some(percent) = text.strip_suffix('%') else {
        return parse_bytes(text).map_err(|error| anyhow::anyhow!("capacities: {error}"));
    };
    match percent.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => {
            Ok((pool_bytes as f64 * percent / 100.0) as u64)
        }
        _ => bail!("capacities: {text:?} is not a share of the pool, such as 25%"),
    }
}

impl WallKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cgroup => "cgroup",
            Self::Balloon => "balloon",
            Self::Mem => "mem",
        }
    }
}

impl Reclaim {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AsIs => "as-is",
            Self::Mglru => "mglru",
            Self::Classic => "classic",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const SMALL: &str = r#"
        name = "small"
        about = "Two arms at two capacities."
        pool.synth = { layers = 2, experts = 4, expert-bytes = "8k" }
        trace = "trace.jsonl"
        arms = ["mapped", "lru-arena"]
        walls = ["none"]
        capacities = ["25%", "1M"]
        repetitions = 2
        seed = 7
    "#;

    fn refused(from: &str, to: &str) -> String {
        let text = SMALL.replace(from, to);
        assert_ne!(text, SMALL);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.toml");
        fs::write(&path, text).unwrap();
        let error = format!("{:#}", Definition::read(&path).unwrap_err());
        assert!(error.contains("d.toml"), "{error}");
        error
    }

    #[test]
    fn a_definition_round_trips_and_has_defaults() {
        let definition: Definition = toml::from_str(SMALL).unwrap();
        definition.check().unwrap();
        assert_eq!((definition.threads, definition.order), (8, Order::Interleaved));
        assert_eq!(definition.reclaim, [Reclaim::AsIs]);
        let text = toml::to_string(&definition).unwrap();
        assert_eq!(toml::from_str::<Definition>(&text).unwrap(), definition);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, said) in [
            ("seed = 7", "seed = 7\nspeed = 3", "speed"),
            ("\"small\"", "\"../small\"", "becomes a folder"),
            ("\"mapped\", ", "\"mapped\", \"mapped\", ", "twice"),
            ("\"lru-arena\"", "\"lru\"", "lru-arena"),
            ("repetitions = 2", "repetitions = 0", "1 to 100"),
            ("\"25%\"", "\"0%\"", "0%"),
            ("\"25%\"", "\"1.5X\"", "1.5X"),
            ("[\"none\"]", "[]", "walls is empty"),
            ("seed = 7", "seed = 7\nslack = \"much\"", "slack"),
        ] {
            let error = refused(from, to);
            assert!(error.contains(said), "{said}: {error}");
        }
    }

    #[test]
    fn capacities_are_shares_or_bytes() {
        assert_eq!(capacity_of("12.5%", 1 << 30).unwrap(), 1 << 27);
        assert_eq!(capacity_of("64M", 1 << 30).unwrap(), 64 << 20);
        for text in ["101%", "-1%", "NaN%", "%", "x"] {
            assert!(capacity_of(text, 1 << 30).is_err(), "{text}");
        }
    }

    #[test]
    fn the_definitions_that_come_along_are_sound() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("definitions");
        let mut found = 0;
        for entry in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
            let definition = Definition::read(&entry.path()).unwrap();
            assert!(dir.join(&definition.trace).exists(), "{}", definition.trace.display());
            found += 1;
        }
        assert!(found >= 3, "{found}");
    }
}
