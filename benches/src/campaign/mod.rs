//! Campaigns: what a definition file asks for, run cell by cell behind enforced capacities, kept on
//! disk as it goes, and reported as tables, figures and bars.

mod cells;
mod definition;
mod figures;
mod journal;
mod reclaim;
mod results;
mod tables;

use crate::machine::Machine;
use anyhow::{Context, Result, bail, ensure};
use cells::{Cell, Place};
use clap::Args;
use definition::{Definition, WallKind, capacity_of};
use engine_example::replay::{
    Nominal, ReplayPlan, ReplaySession, ReplaySetup, SystemSample, TimeLeft, Wall, usual_slack,
};
use expert_tier::Pool;
use expert_tier::host::Host;
use expert_tier::observe::SystemRoot;
use journal::{Entry, Journal};
use reclaim::ReclaimSwitch;
use results::CampaignReport;
use router_trace::format::{OpenOptions, open};
use router_trace::simulate::Budget;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// How often a cell is tried whose runs do not count.
const TRIES: usize = 3;

#[derive(Args, Debug)]
pub(crate) struct CampaignOptions {
    /// What to measure: pool, trace, arms, capacities, walls, repetitions, seed [default: the one
    /// of this name in benches/definitions]
    #[arg(long, value_name = "FILE")]
    pub(crate) definition: Option<PathBuf>,
    /// Where runs and reports go; a campaign that was interrupted goes on there [default:
    /// target/campaigns/NAME]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Throws earlier runs of this campaign away.
    #[arg(long)]
    pub(crate) fresh: bool,
}

/// What the command line adds to a definition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common<'a> {
    /// Where pools are made.
    pub(crate) dir: &'a Path,
    pub(crate) rounds: Option<usize>,
    pub(crate) quick: bool,
    pub(crate) json: bool,
}

/// Runs the campaign that `options` name, or the one that comes along under the name `kind`.
pub(crate) fn run(kind: &'static str, options: &CampaignOptions, common: Common<'_>) -> Result<()> {
    let path = options.definition.clone().unwrap_or_else(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("definitions");
        dir.join(kind).with_extension("toml")
    });
    let mut definition = Definition::read(&path)?;
    if let Some(rounds) = common.rounds {
        definition.repetitions = rounds;
    }
    if common.quick {
        definition.iterations = Some(definition.iterations.unwrap_or(usize::MAX).min(12));
        definition.repetitions = definition.repetitions.min(2);
        definition.name.push_str("-quick");
    }
    definition.check()?;
    suits(kind, &definition)?;
    let home = path.parent().unwrap_or(Path::new("."));
    let pool = definition.open_pool(home, common.dir)?;
    let trace = home.join(&definition.trace);
    let plan = open_plan(&trace, &definition, &pool)?;
    for notice in plan.notices() {
        eprintln!("{notice}");
    }
    let default_out = || PathBuf::from("target/campaigns").join(&definition.name);
    let out = options.out.clone().unwrap_or_else(default_out);
    let print = fingerprint(&definition, &pool, &trace)?;
    let mut journal = Journal::open(&out, &print, options.fresh)?;
    let machine = Machine::probe(common.dir)?;
    Campaign::new(&definition, &pool, &plan)?.run(&mut journal)?;
    let nominal = Nominal::of(&plan);
    let report =
        CampaignReport::new(kind, definition, machine.finish(), &journal.entries, &nominal)?;
    report.write(&out)?;
    report.print(common.json, &out)
}

/// Whether a definition has what a campaign of this kind compares.
fn suits(kind: &str, definition: &Definition) -> Result<()> {
    let has = |what: &str, count: usize, least: usize| {
        ensure!(count >= least, "{kind} compares {what}: at least {least} are needed, not {count}");
        Ok(())
    };
    match kind {
        "sweep" => has("capacities", definition.capacities.len(), 2),
        "reclaim" => {
            has("walls and kinds of reclaim", definition.walls.len() + definition.reclaim.len(), 3)
        }
        _ => has("arms", definition.arms.len(), 2),
    }
}

fn open_plan(trace: &Path, definition: &Definition, pool: &Pool) -> Result<ReplayPlan> {
    let reader =
        open(trace, &OpenOptions::default()).with_context(|| trace.display().to_string())?;
    let header = reader.header().clone();
    let iterations = definition.iterations.unwrap_or(usize::MAX);
    Ok(ReplayPlan::new(pool, &header, reader, false, iterations)?)
}

/// What makes runs comparable: the definition but for its words, the pool, the trace.
fn fingerprint(definition: &Definition, pool: &Pool, trace: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    let definition = Definition { about: String::new(), ..definition.clone() };
    hash.update(toml::to_string(&definition)?);
    hash.update(std::fs::read(trace)?);
    let layout = pool.layout();
    hash.update(layout.total_bytes().to_le_bytes());
    hash.update((layout.total_experts() as u64).to_le_bytes());
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A campaign under way.
struct Campaign<'a> {
    definition: &'a Definition,
    pool: &'a Pool,
    plan: &'a ReplayPlan,
    slack_bytes: u64,
    program: PathBuf,
    root: SystemRoot,
    checksum: Option<u64>,
}

/// Where runs are made now.
struct Stand<'p> {
    place: Place,
    session: ReplaySession<'p>,
    reclaim: Option<String>,
    _switch: ReclaimSwitch,
}

impl<'a> Campaign<'a> {
    fn new(definition: &'a Definition, pool: &'a Pool, plan: &'a ReplayPlan) -> Result<Self> {
        let usual = || usual_slack(plan, definition.threads);
        Ok(Self {
            definition,
            pool,
            plan,
            slack_bytes: definition.slack_bytes()?.unwrap_or_else(usual),
            program: std::env::current_exe()?,
            root: SystemRoot::default(),
            checksum: None,
        })
    }

    /// Makes all runs that the journal lacks.
    fn run(&mut self, journal: &mut Journal) -> Result<()> {
        let cells = cells::plan(self.definition);
        self.checksum = journal.entries.iter().find_map(|entry| {
            let run = entry.run.as_ref().filter(|run| run.kept())?;
            Some(run.measurement.as_ref()?.checksum())
        });
        let settled = cells.iter().filter(|cell| journal.settled(cell)).count();
        if settled > 0 {
            eprintln!("{settled} of {} runs are there already", cells.len());
        }
        let mut left = TimeLeft::resumed(cells.len(), settled);
        let mut stand: Option<Stand<'a>> = None;
        for (number, cell) in cells.iter().enumerate() {
            let mut tries = 0;
            while !journal.settled(cell) && tries < TRIES {
                tries += 1;
                if stand.as_ref().is_none_or(|stand| stand.place != cell.place) {
                    // The old one first: two balloons do not fit.
                    drop(stand.take());
                }
                let entry = self.cell(cell, number, &mut stand)?;
                let about = told(&entry);
                journal.push(entry)?;
                let last = journal.settled(cell) || tries == TRIES;
                let clock = if last { left.done() } else { "[once more]".to_owned() };
                let Place { wall, reclaim, capacity } = &cell.place;
                eprintln!(
                    "{clock} {} {} {capacity}, {}, repetition {}: {about}",
                    wall.name(),
                    reclaim.name(),
                    cell.arm,
                    cell.repetition
                );
            }
        }
        Ok(())
    }

    fn cell(&mut self, cell: &Cell, number: usize, stand: &mut Option<Stand<'a>>) -> Result<Entry> {
        let capacity_bytes = capacity_of(&cell.place.capacity, self.pool.layout().total_bytes())?;
        let mut entry = Entry {
            cell: cell.clone(),
            capacity_bytes,
            wall: results::no_wall(),
            places: 0,
            slack_bytes: self.slack_bytes,
            reclaim: None,
            skipped: None,
            run: None,
        };
        if stand.is_none() {
            match self.stand(&cell.place, capacity_bytes)? {
                Ok(made) => *stand = Some(made),
                Err(reason) => {
                    entry.skipped = Some(reason);
                    return Ok(entry);
                }
            }
        }
        let Some(stand) = stand else { bail!("no place to run at") };
        entry.wall = stand.session.wall().clone();
        entry.places = stand.session.places();
        entry.reclaim.clone_from(&stand.reclaim);
        if let Some(reason) = &entry.wall.reason {
            // A number without its wall would be taken for one behind it.
            entry.skipped = Some(reason.clone());
            return Ok(entry);
        }
        entry.run = Some(stand.session.run(cell.arm, cell.repetition, number + 1)?);
        self.checksum = stand.session.checksum();
        Ok(entry)
    }

    /// Sets up a wall, or says why it cannot stand.
    fn stand(&self, place: &Place, capacity_bytes: u64) -> Result<Result<Stand<'a>, String>> {
        let switch = match ReclaimSwitch::set(place.reclaim, &self.root) {
            Ok(switch) => switch,
            Err(reason) => return Ok(Err(reason)),
        };
        let wall = match self.wall(place.wall, capacity_bytes) {
            Ok(wall) => wall,
            Err(reason) => return Ok(Err(reason)),
        };
        let experts = capacity_bytes / self.plan.expert_bytes().max(1);
        if experts == 0 {
            bail!("capacity {} holds no expert of {}", place.capacity, self.plan.expert_bytes());
        }
        let Definition { threads, fill_threads, fill, .. } = *self.definition;
        let setup = ReplaySetup {
            wall,
            budget: Some(Budget::Experts(experts)),
            slack_bytes: Some(self.slack_bytes),
            threads,
            fill_threads,
            fill,
        };
        let (program, pool) = (self.program.clone(), self.pool.clone());
        let mut session = ReplaySession::open(program, pool, self.plan, setup, &self.root)?;
        if let Some(checksum) = self.checksum {
            session.expect_checksum(checksum);
        }
        let reclaim = Some(format!("{:?}", Host::probe(&self.root).reclaim));
        Ok(Ok(Stand { place: place.clone(), session, reclaim, _switch: switch }))
    }

    fn wall(&self, kind: WallKind, capacity_bytes: u64) -> Result<Wall, String> {
        let target_bytes = capacity_bytes + self.slack_bytes;
        match kind {
            WallKind::None => Ok(Wall::None),
            WallKind::Mem => Ok(Wall::Mem),
            WallKind::Cgroup => Ok(Wall::Cgroup { target_bytes }),
            WallKind::Balloon => {
                let left = SystemSample::now(&self.root).mem_available_bytes;
                let left = left.ok_or("MemAvailable cannot be read")?;
                let target = left.checked_sub(target_bytes).filter(|&bytes| bytes > 0);
                let target_bytes = target.ok_or_else(|| {
                    format!("{left} bytes are available, {target_bytes} are to be left")
                })?;
                Ok(Wall::Balloon { target_bytes })
            }
        }
    }
}

/// A run in a few words.
fn told(entry: &Entry) -> String {
    if let Some(reason) = &entry.skipped {
        return format!("SKIPPED: {reason}");
    }
    let Some(run) = &entry.run else { return String::new() };
    if let Some(reason) = &run.discarded {
        return format!("discarded: {reason}");
    }
    let Some(measured) = &run.measurement else { return String::new() };
    let iterations = measured.iterations.len().max(1) as f64;
    let read = measured
        .block_layer_bytes
        .map_or("unknown".to_owned(), |bytes| format!("{:.1} MB", bytes as f64 / 1e6 / iterations));
    let ms = run.wall_ns().unwrap_or(0) as f64 / 1e6 / iterations;
    format!("{ms:.2} ms and {read} read an iteration")
}
