use super::arm::ReplayArm;
use super::balloon::Balloon;
use super::cell::{CellRun, UsagePoint, run_cell};
use super::measure::Measurement;
use super::plan::ReplayPlan;
use super::task::{Answer, Task};
use super::wall::Wall;
use crate::error::EngineError;
use expert_tier::observe::{CgroupVersion, MemoryScope, SystemRoot};
use expert_tier::{FillMethod, Pool, Tier, TierConfig};
use router_trace::ExpertId;
use router_trace::simulate::Budget;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// The argument with which the program of a session is started to run one arm: it must call
/// [`serve_task`](super::serve_task) then.
pub const CHILD_COMMAND: &str = "replay-child";
/// The argument, followed by a number of bytes, with which it is started to call
/// [`hold_balloon`](super::hold_balloon).
pub const BALLOON_COMMAND: &str = "replay-balloon";

/// For a process without its reads: code, threads, the pool's layout.
const PROCESS_BYTES: u64 = 48 << 20;
/// For each access of the plan that a process holds.
const ACCESS_BYTES: u64 = 16;

/// How a session runs its arms. Plain data.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReplaySetup {
    /// What limits memory.
    pub wall: Wall,
    /// What arenas and locked sets keep; what the wall leaves if not given.
    pub budget: Option<Budget>,
    /// What the wall keeps free of that for the process itself and for reads under way; 48 MiB
    /// and the widest pass once for each thread if not given.
    pub slack_bytes: Option<u64>,
    /// Demand threads.
    pub threads: usize,
    /// Threads that wait for storage.
    pub fill_threads: usize,
    /// How missing pages are read, for the arms that use the mapping.
    pub fill: Option<FillMethod>,
}

/// A wall, and whether it stands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WallFacts {
    /// What was asked for.
    #[serde(flatten)]
    pub wall: Wall,
    /// Whether it stood; if not, `reason` says why, and every number is without it.
    pub enforced: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Of a control group.
    pub version: Option<CgroupVersion>,
    /// `MemTotal` where the boot is the wall.
    pub mem_total_bytes: Option<u64>,
}

/// One process's run of one arm.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReplayRun {
    /// What served.
    pub arm: ReplayArm,
    /// In which round, from 1.
    pub round: usize,
    /// Place in the round's order, from 1.
    pub place: usize,
    /// Why it does not count; `None` for a run that is kept.
    pub discarded: Option<String>,
    /// What its control group saw, where there was one.
    pub scope: Option<ScopeFacts>,
    /// What it measured, as far as it came.
    pub measurement: Option<Measurement>,
}

/// What a control group saw of one run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScopeFacts {
    /// The most that it held.
    pub peak_bytes: Option<u64>,
    /// Processes killed for want of memory.
    pub oom_kills: Option<u64>,
    /// What it held when.
    pub timeline: Vec<UsagePoint>,
}

/// Runs arms over one plan behind one wall, each run a process of its own, from a state that a
/// probe found cold.
#[derive(Debug)]
pub struct ReplaySession<'p> {
    program: PathBuf,
    pool: Pool,
    plan: &'p ReplayPlan,
    setup: ReplaySetup,
    wall: WallFacts,
    balloon: Option<Balloon>,
    places: usize,
    slack_bytes: u64,
    checksum: Option<u64>,
    /// Experts that the last run of `mapped` read.
    mapped_misses: Option<u64>,
    root: SystemRoot,
}

impl<'p> ReplaySession<'p> {
    /// Sets the wall up. One that cannot stand is no error: [`ReplaySession::wall`] says so, and
    /// runs go on without it. `program` is this program, see [`CHILD_COMMAND`].
    ///
    /// # Errors
    /// [`EngineError::Wall`] for one that would leave no room for a single expert; a budget in
    /// bytes where the size of an expert is unknown.
    pub fn open(
        program: PathBuf,
        pool: Pool,
        plan: &'p ReplayPlan,
        setup: ReplaySetup,
        root: &SystemRoot,
    ) -> Result<Self, EngineError> {
        let wall = WallFacts {
            wall: setup.wall,
            enforced: true,
            reason: None,
            version: None,
            mem_total_bytes: None,
        };
        let slack_bytes = setup.slack_bytes.unwrap_or_else(|| usual_slack(plan, setup.threads));
        let mut session = Self {
            program,
            pool,
            plan,
            setup,
            wall,
            balloon: None,
            places: 0,
            slack_bytes,
            checksum: None,
            mapped_misses: None,
            root: root.clone(),
        };
        // Before anything is made: a wall without room is refused as it was asked for.
        if let Wall::Cgroup { target_bytes } = setup.wall {
            session.places = session.choose_places(Some(target_bytes))?;
        }
        if let Err(reason) = session.raise() {
            session.wall.enforced = false;
            session.wall.reason = Some(reason);
        }
        if !matches!(setup.wall, Wall::Cgroup { .. }) {
            let left = super::SystemSample::now(root).mem_available_bytes;
            let walled = setup.wall != Wall::None && session.wall.enforced;
            session.places = session.choose_places(left.filter(|_| walled))?;
        }
        Ok(session)
    }

    /// Makes the wall stand, or says why it cannot.
    fn raise(&mut self) -> Result<(), String> {
        match self.setup.wall {
            Wall::None => Ok(()),
            Wall::Cgroup { .. } => {
                let scope = self.scope().map_err(|error| error.to_string())?;
                self.wall.version = scope.map(|scope| scope.version());
                Ok(())
            }
            Wall::Balloon { target_bytes } => {
                let mut command = Command::new(&self.program);
                command.arg(BALLOON_COMMAND).arg(target_bytes.to_string());
                let balloon = Balloon::inflate(command, target_bytes, &self.root);
                self.balloon = Some(balloon.map_err(|error| error.to_string())?);
                Ok(())
            }
            Wall::Mem => {
                let boot = super::wall::BootMemory::read(&self.root);
                self.wall.mem_total_bytes = boot.total_bytes;
                boot.limit().map(drop)
            }
        }
    }

    /// Experts that arenas and locked sets keep, where `bytes` are for files and arenas together.
    fn choose_places(&self, bytes: Option<u64>) -> Result<usize, EngineError> {
        let plan = self.plan;
        let total = plan.accesses().key_space().n_keys();
        let budget = match (self.setup.budget, bytes) {
            (Some(budget), _) => budget,
            (None, None) => Budget::Percent(25.0),
            (None, Some(bytes)) => {
                let left = bytes.saturating_sub(self.slack_bytes) / plan.expert_bytes().max(1);
                if left == 0 {
                    return Err(EngineError::Wall {
                        wall: self.setup.wall.to_string(),
                        reason: format!(
                            "{bytes} bytes leave no room for an expert of {}: {} are for the \
                             process and for reads under way (--slack, --threads)",
                            plan.expert_bytes(),
                            self.slack_bytes
                        ),
                    });
                }
                Budget::Experts(left)
            }
        };
        Ok(budget.experts(plan.accesses())?.min(total))
    }

    /// What limits memory, and whether it does.
    #[must_use]
    pub fn wall(&self) -> &WallFacts {
        &self.wall
    }

    /// Experts that arenas and locked sets keep.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places
    }

    /// What is left free of the wall's memory beside them.
    #[must_use]
    pub fn slack_bytes(&self) -> u64 {
        self.slack_bytes
    }

    /// The sum of all words that a run reads, once one was kept: the same for every arm.
    #[must_use]
    pub fn checksum(&self) -> Option<u64> {
        self.checksum
    }

    /// Holds runs to a checksum of earlier ones.
    pub fn expect_checksum(&mut self, checksum: u64) {
        self.checksum = Some(checksum);
    }

    /// A fresh control group, where the wall is one and stands.
    fn scope(&self) -> Result<Option<MemoryScope>, EngineError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let Wall::Cgroup { target_bytes } = self.setup.wall else { return Ok(None) };
        if !self.wall.enforced {
            return Ok(None);
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tier-replay-{}-{number}", std::process::id());
        let scope = MemoryScope::create(&name, target_bytes, &self.root);
        scope.map(Some).map_err(|error| EngineError::Wall {
            wall: self.setup.wall.to_string(),
            reason: error.to_string(),
        })
    }

    /// One run of one arm: one replay to warm up, one measured, kept or thrown away with the
    /// reason.
    ///
    /// # Errors
    /// A process that cannot be started, a wall that no longer stands, and
    /// [`EngineError::Checksum`] for a run that read other bytes than those before.
    pub fn run(
        &mut self,
        arm: ReplayArm,
        round: usize,
        place: usize,
    ) -> Result<ReplayRun, EngineError> {
        // Pages that another process left would be charged to it, not to the run.
        let tier = Tier::open(self.pool.clone(), TierConfig::default())?;
        let resident_before_bytes = tier.evict(None)?.resident_bytes;
        drop(tier);
        let task = Task {
            pool: self.pool.root().to_owned(),
            arm,
            places: self.places,
            hot: self.hot_set(arm),
            threads: self.setup.threads,
            fill_threads: self.setup.fill_threads,
            fill: self.setup.fill,
            resident_before_bytes,
            iterations: self.plan.iterations(),
        };
        let io = |source| EngineError::Io { path: self.program.clone(), source };
        let mut input = serde_json::to_vec(&task).map_err(|error| io(error.into()))?;
        input.push(b'\n');
        let scope = self.scope()?;
        let mut command = Command::new(&self.program);
        let cell = run_cell(command.arg(CHILD_COMMAND), scope.as_ref(), &input).map_err(io)?;
        drop(scope);
        let (measurement, discarded) = self.judge(arm, &cell)?;
        if let (ReplayArm::Mapped, Some(measured), None) = (arm, &measurement, &discarded) {
            let read = measured.process_read_bytes.or(measured.block_layer_bytes);
            self.mapped_misses = read.map(|bytes| bytes / self.plan.expert_bytes().max(1));
        }
        let scope = cell.peak_bytes.map(|peak| ScopeFacts {
            peak_bytes: peak.ok(),
            oom_kills: cell.oom_kills.and_then(Result::ok),
            timeline: cell.timeline,
        });
        Ok(ReplayRun { arm, round, place, discarded, scope, measurement })
    }

    /// The experts that an arm keeps which knows the trace.
    fn hot_set(&self, arm: ReplayArm) -> Vec<ExpertId> {
        let count = match arm {
            ReplayArm::PinnedEqual => self.equal_places(),
            ReplayArm::Hybrid => self.places / 2,
            arm if arm.is_oracle() => self.places,
            _ => 0,
        };
        self.plan.hottest(count)
    }

    /// Experts of a fixed set that misses as many as the page cache did in the last run of
    /// `mapped`; before there was one, as exact LRU of all that the wall leaves to the page cache.
    fn equal_places(&self) -> usize {
        let nominal = || {
            let bytes = match self.setup.wall {
                Wall::Cgroup { target_bytes } => target_bytes.saturating_sub(PROCESS_BYTES),
                _ => self.places as u64 * self.plan.expert_bytes(),
            };
            let cached = bytes / self.plan.expert_bytes().max(1);
            let lru = self.plan.lru();
            lru.accesses() - lru.hits(usize::try_from(cached).unwrap_or(usize::MAX))
        };
        let misses = self.mapped_misses.unwrap_or_else(nominal);
        self.plan.fixed_set_for(misses).min(self.places)
    }

    /// What the run measured, and why it must be thrown away.
    fn judge(
        &mut self,
        arm: ReplayArm,
        cell: &CellRun,
    ) -> Result<(Option<Measurement>, Option<String>), EngineError> {
        if let Some(fault) = cell.fault() {
            return Ok((None, Some(fault)));
        }
        let measurement = match serde_json::from_slice(&cell.output) {
            Ok(Answer::Measured(measurement)) => *measurement,
            Ok(Answer::Failed { kind, reason }) => {
                return Ok((None, Some(format!("{reason} ({kind})"))));
            }
            Err(error) => {
                let reason = format!("what the process said is not understood: {error}");
                return Ok((None, Some(reason)));
            }
        };
        let found = measurement.checksum();
        let expected = *self.checksum.get_or_insert(found);
        if found != expected {
            return Err(EngineError::Checksum { arm: arm.to_string(), found, expected });
        }
        let limit = match self.setup.wall {
            Wall::Cgroup { target_bytes } if self.wall.enforced => Some(target_bytes),
            _ => None,
        };
        let balloon = self.balloon.as_ref().filter(|balloon| !balloon.holds(&self.root));
        let deflated =
            balloon.map(|balloon| format!("the balloon lost its {} bytes", balloon.locked_bytes()));
        let fault = measurement.fault(limit).or(deflated);
        Ok((Some(measurement), fault))
    }
}

impl ReplayRun {
    /// Time of the measured replay.
    #[must_use]
    pub fn wall_ns(&self) -> Option<u64> {
        Some(self.measurement.as_ref()?.iterations.iter().map(|one| one.wall_ns).sum())
    }

    /// Whether it counts.
    #[must_use]
    pub fn kept(&self) -> bool {
        self.discarded.is_none()
    }
}

/// Room for a process, what it holds of the plan, and the widest pass on every thread.
#[must_use]
pub fn usual_slack(plan: &ReplayPlan, threads: usize) -> u64 {
    let staged = (threads * plan.widest_pass()) as u64 * plan.expert_bytes().max(1);
    PROCESS_BYTES + plan.accesses().keys().len() as u64 * ACCESS_BYTES + staged
}
