//! One run of a pack: spine, experts, small files, index.

use super::disk::{Disk, forget, io_error, write_error};
use super::journal::{Entry, Found, Journal};
use super::plan::{Plan, ShardTensor, SpineShard};
use super::source::PackSource;
use super::target::{self, NEW_INDEX, State};
use super::{PackOptions, PackProgress, PackReport, PackStage};
use crate::error::{OutputError, TierError};
use crate::notice::Notice;
use crate::pool::Pool;
use crate::pool::packed::{self, EXPERTS, INDEX, JOURNAL, PlacedExpert, SpineFile};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes of experts between two syncs: what a kill can cost.
const BATCH_BYTES: u64 = if cfg!(test) { 8 << 10 } else { 256 << 20 };
/// Bytes of the spine that are copied at once.
const CHUNK_BYTES: usize = 8 << 20;

/// What is finished, by place in the plan.
struct Done {
    experts: Vec<Option<u64>>,
    spine: Vec<Option<u64>>,
}

struct Run<'a> {
    source: &'a dyn PackSource,
    out: &'a Path,
    options: &'a PackOptions,
    disk: &'a Disk<'a>,
    plan: Plan,
    experts_path: PathBuf,
    progress: &'a mut dyn FnMut(&PackProgress),
    told: PackProgress,
    /// Bytes of experts and spine that are still to be written, for messages.
    missing: AtomicU64,
}

pub(super) fn run(
    source: &dyn PackSource,
    out: &Path,
    options: &PackOptions,
    disk: &Disk<'_>,
    progress: &mut dyn FnMut(&PackProgress),
) -> Result<PackReport, TierError> {
    let begun = Instant::now();
    let state = target::inspect(out)?;
    let plan = Plan::new(source, options.spine_shard_bytes, out)?;
    let told = PackProgress {
        stage: PackStage::Spine,
        done_bytes: 0,
        total_bytes: plan.expert_bytes() + plan.spine_bytes(),
        done_experts: 0,
        total_experts: plan.experts.len(),
    };
    let experts_path = out.join(EXPERTS);
    let missing = AtomicU64::new(told.total_bytes);
    let mut run = Run { source, out, options, disk, plan, experts_path, progress, told, missing };
    let mut report = run.all(state)?;
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

impl Run<'_> {
    fn all(&mut self, state: State) -> Result<PackReport, TierError> {
        let mut notices = Vec::new();
        if state == State::Absent {
            // Before anything is made, so that a refusal leaves nothing.
            target::check_room(self.out, self.needed())?;
            self.disk.make_dirs(self.out)?;
        }
        let (mut journal, entries) = self.journal(state, &mut notices)?;
        let experts = self.disk.open(&self.experts_path, false)?;
        let mut done = self.trusted(&entries, &experts)?;
        if self.options.recheck {
            self.recheck(&mut done, &experts)?;
        }
        self.count(&done);
        target::check_room(self.out, self.needed())?;
        self.disk
            .set_len(&experts, &self.experts_path, self.plan.experts_len)
            .map_err(write_error(&self.experts_path, self.needed()))?;
        let resumed_experts = self.told.done_experts;
        let resumed_bytes = self.told.done_bytes;
        self.spine(&mut done, &mut journal)?;
        self.experts(&mut done, &mut journal, &experts)?;
        self.tell(PackStage::Finish);
        self.files()?;
        self.source.check_unchanged()?;
        self.index(&done, &experts)?;
        drop(journal);
        Ok(PackReport {
            experts: self.plan.experts.len(),
            expert_bytes: self.plan.expert_bytes(),
            spine_tensors: self.plan.spine.iter().map(|shard| shard.tensors.len()).sum(),
            spine_bytes: self.plan.spine_bytes(),
            experts_file_len: self.plan.experts_len,
            resumed_experts,
            written_bytes: self.told.total_bytes - resumed_bytes,
            seconds: 0.0,
            notices,
        })
    }

    /// Bytes that are still to be written; whole blocks and the index are allowed for.
    fn needed(&self) -> u64 {
        let experts = self.plan.experts.len() as u64;
        self.missing.load(Ordering::Relaxed) + experts * (4096 + 128)
    }

    fn tell(&mut self, stage: PackStage) {
        self.told.stage = stage;
        (self.progress)(&self.told);
    }

    fn journal(
        &self,
        state: State,
        notices: &mut Vec<Notice>,
    ) -> Result<(Journal, Vec<Entry>), TierError> {
        let (out, fingerprint) = (self.out, self.plan.fingerprint);
        let create = || Journal::create(out, fingerprint, self.source.identity(), self.disk);
        if state != State::Unfinished {
            return Ok((create()?, Vec::new()));
        }
        match Journal::open(out, fingerprint, self.source.identity(), self.disk)? {
            Found::Same(journal, entries) => Ok((journal, entries)),
            Found::Foreign => Err(TierError::Output(OutputError::Refused {
                path: out.to_owned(),
                reason: format!("{JOURNAL} is not a journal of an unfinished pack"),
            })),
            Found::Other { was, is } if !self.options.restart => {
                Err(TierError::Output(OutputError::SourceChanged { path: out.to_owned(), was, is }))
            }
            Found::Other { was, is } => {
                let journal = create()?;
                for name in target::leftovers(out)? {
                    self.disk.remove(&out.join(name))?;
                }
                notices.push(Notice::warning(format!(
                    "{}: an unfinished pack was thrown away: its source was {was}, it is {is}",
                    out.display()
                )));
                Ok((journal, Vec::new()))
            }
        }
    }

    /// The journal's entries whose bytes are still there.
    fn trusted(&self, entries: &[Entry], experts: &File) -> Result<Done, TierError> {
        let mut done = Done {
            experts: vec![None; self.plan.experts.len()],
            spine: vec![None; self.plan.spine.len()],
        };
        let metadata = experts.metadata().map_err(io_error(&self.experts_path, "stat"))?;
        let whole = |expert: &PlacedExpert| {
            let end = expert.offset + expert.len;
            end <= metadata.len()
                && packed::next_hole(experts, expert.offset).is_none_or(|hole| hole >= end)
        };
        for &entry in entries {
            match entry {
                Entry::Expert { number, checksum } => {
                    if self.plan.experts.get(number).is_some_and(whole) {
                        done.experts[number] = Some(checksum);
                    }
                }
                Entry::Spine { number, checksum } => {
                    let Some(shard) = self.plan.spine.get(number) else { continue };
                    let there = std::fs::metadata(self.out.join(&shard.name));
                    if there.is_ok_and(|there| there.is_file() && there.len() == shard.len) {
                        done.spine[number] = Some(checksum);
                    }
                }
            }
        }
        Ok(done)
    }

    /// Forgets what does not read back as its checksum says.
    fn recheck(&mut self, done: &mut Done, experts: &File) -> Result<(), TierError> {
        let mut buffer = Vec::new();
        for (number, known) in done.experts.iter_mut().enumerate() {
            let Some(checksum) = *known else { continue };
            let PlacedExpert { offset, len, .. } = self.plan.experts[number];
            let found = super::verify::hash_range(experts, offset, len, &mut buffer);
            if found.map_err(io_error(&self.experts_path, "read"))? != checksum {
                *known = None;
            }
            self.told.done_bytes += len;
            self.told.done_experts += 1;
            self.told.stage = PackStage::Recheck;
            (self.progress)(&self.told);
        }
        for (shard, known) in self.plan.spine.iter().zip(&mut done.spine) {
            let Some(checksum) = *known else { continue };
            let path = self.out.join(&shard.name);
            let found = File::open(&path)
                .and_then(|file| super::verify::hash_range(&file, 0, shard.len, &mut buffer));
            if found.map_err(io_error(&path, "read"))? != checksum {
                *known = None;
            }
        }
        Ok(())
    }

    fn count(&mut self, done: &Done) {
        let experts = self.plan.experts.iter().zip(&done.experts);
        let spine = self.plan.spine.iter().zip(&done.spine);
        let finished = experts.filter(|(_, done)| done.is_some()).map(|(expert, _)| expert.len);
        self.told.done_experts = done.experts.iter().flatten().count();
        self.told.done_bytes = finished.sum::<u64>()
            + spine.filter(|(_, done)| done.is_some()).map(|(shard, _)| shard.len).sum::<u64>();
        self.missing.store(self.told.total_bytes - self.told.done_bytes, Ordering::Relaxed);
    }

    fn spine(&mut self, done: &mut Done, journal: &mut Journal) -> Result<(), TierError> {
        self.tell(PackStage::Spine);
        for number in 0..self.plan.spine.len() {
            if done.spine[number].is_some() {
                continue;
            }
            let shard = std::mem::take(&mut self.plan.spine[number].tensors);
            let checksum = self.spine_shard(number, &shard);
            self.plan.spine[number].tensors = shard;
            let checksum = checksum?;
            journal.append(&[Entry::Spine { number, checksum }], self.disk)?;
            done.spine[number] = Some(checksum);
        }
        Ok(())
    }

    fn spine_shard(&mut self, number: usize, tensors: &[ShardTensor]) -> Result<u64, TierError> {
        let SpineShard { name, head, .. } = &self.plan.spine[number];
        let path = self.out.join(name);
        let file = self.disk.open(&path, true)?;
        let mut hash = Xxh3::new();
        hash.update(head);
        let failed = |missing: &AtomicU64| {
            let path = path.clone();
            let needed = missing.load(Ordering::Relaxed);
            move |error| write_error(&path, needed)(error)
        };
        self.disk.write(&file, &path, head, 0).map_err(failed(&self.missing))?;
        let mut at = head.len() as u64;
        self.advance(at);
        let mut buffer = vec![0; CHUNK_BYTES];
        for &ShardTensor { place, len, padding } in tensors {
            let (mut copied, all) = (0, len + padding);
            while copied < all {
                let left = if copied < len { len - copied } else { all - copied };
                let chunk = &mut buffer[..CHUNK_BYTES.min(left as usize)];
                if copied < len {
                    self.source.read_spine(place, copied, chunk)?;
                } else {
                    chunk.fill(0);
                }
                hash.update(chunk);
                self.disk.write(&file, &path, chunk, at).map_err(failed(&self.missing))?;
                copied += chunk.len() as u64;
                at += chunk.len() as u64;
                let step = chunk.len() as u64;
                self.advance(step);
                self.tell(PackStage::Spine);
            }
        }
        self.disk.sync(&file, &path).map_err(failed(&self.missing))?;
        self.disk.sync_dir(self.out)?;
        forget(&file, 0, at);
        Ok(hash.digest())
    }

    fn advance(&mut self, bytes: u64) {
        self.told.done_bytes += bytes;
        self.missing.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn experts(
        &mut self,
        done: &mut Done,
        journal: &mut Journal,
        file: &File,
    ) -> Result<(), TierError> {
        self.tell(PackStage::Experts);
        let todo: Vec<usize> =
            (0..done.experts.len()).filter(|&number| done.experts[number].is_none()).collect();
        let job = Job {
            source: self.source,
            disk: self.disk,
            plan: &self.plan,
            file,
            path: &self.experts_path,
            missing: &self.missing,
            todo: &todo,
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        };
        let threads = self.options.threads.min(todo.len());
        std::thread::scope(|scope| {
            let (sender, receiver) = mpsc::sync_channel(2 * self.options.threads);
            for _ in 0..threads {
                let (job, sender) = (&job, sender.clone());
                scope.spawn(move || job.work(&sender));
            }
            drop(sender);
            let mut failed = None;
            let mut batch = Batch::default();
            for outcome in receiver {
                let sound = match outcome {
                    Ok((number, checksum)) => {
                        let len = self.plan.experts[number].len;
                        batch.add(number, checksum, len);
                        done.experts[number] = Some(checksum);
                        self.told.done_bytes += len;
                        self.told.done_experts += 1;
                        self.told.stage = PackStage::Experts;
                        (self.progress)(&self.told);
                        if batch.bytes < BATCH_BYTES { Ok(()) } else { batch.flush(&job, journal) }
                    }
                    Err(error) => Err(error),
                };
                if let Err(error) = sound {
                    job.stop.store(true, Ordering::Relaxed);
                    failed.get_or_insert(error);
                }
            }
            // Also after a failure: what is finished is kept.
            let rest = batch.flush(&job, journal);
            failed.map_or(rest, Err)
        })
    }

    fn files(&self) -> Result<(), TierError> {
        for companion in self.source.files()? {
            let path = self.out.join(&companion.name);
            let needed = companion.bytes.len() as u64;
            let file = self.disk.open(&path, true)?;
            self.disk
                .write(&file, &path, &companion.bytes, 0)
                .and_then(|()| self.disk.sync(&file, &path))
                .map_err(write_error(&path, needed))?;
        }
        Ok(())
    }

    /// The last step: from here on the folder opens.
    fn index(&mut self, done: &Done, experts: &File) -> Result<(), TierError> {
        let spine = self.plan.spine.iter().zip(&done.spine).map(|(shard, &checksum)| SpineFile {
            file: shard.name.clone(),
            len: shard.len,
            checksum: checksum.expect("every spine file was written"),
        });
        let mut index = self.plan.index(&self.options.created_by, spine.collect());
        for (expert, &checksum) in index.experts.iter_mut().zip(&done.experts) {
            expert.checksum = checksum.expect("every expert was written");
        }
        let text = index.render();
        drop(index);
        let (new, path) = (self.out.join(NEW_INDEX), self.out.join(INDEX));
        let file = self.disk.open(&new, true)?;
        // The length of the experts file is its own change, which no expert's sync has covered.
        self.disk
            .sync(experts, &self.experts_path)
            .and_then(|()| self.disk.write(&file, &new, text.as_bytes(), 0))
            .and_then(|()| self.disk.sync(&file, &new))
            .map_err(write_error(&new, text.len() as u64))?;
        // What will be found is read once before it can be found.
        drop(Pool::open_packed(&new)?);
        self.disk.sync_dir(self.out)?;
        self.disk.rename(&new, &path)?;
        self.disk.sync_dir(self.out)?;
        self.disk.remove(&self.out.join(JOURNAL))?;
        self.disk.sync_dir(self.out)
    }
}

type Outcome = Result<(usize, u64), TierError>;

/// What the threads share.
struct Job<'a> {
    source: &'a dyn PackSource,
    disk: &'a Disk<'a>,
    plan: &'a Plan,
    file: &'a File,
    path: &'a Path,
    missing: &'a AtomicU64,
    todo: &'a [usize],
    next: AtomicUsize,
    stop: AtomicBool,
}

impl Job<'_> {
    fn work(&self, sender: &mpsc::SyncSender<Outcome>) {
        let mut buffer = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let place = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(&number) = self.todo.get(place) else { break };
            let outcome = self.one(number, &mut buffer).map(|checksum| (number, checksum));
            let failed = outcome.is_err();
            if sender.send(outcome).is_err() || failed {
                break;
            }
        }
    }

    fn one(&self, number: usize, buffer: &mut Vec<u8>) -> Result<u64, TierError> {
        let expert = &self.plan.experts[number];
        let schema = &self.plan.schemas[expert.schema as usize];
        buffer.resize(schema.len as usize, 0);
        let mut end = 0;
        for part in &schema.parts {
            let (from, to) = (part.offset as usize, (part.offset + part.len) as usize);
            buffer[end..from].fill(0);
            self.source.read_part(expert.id, part.role, &mut buffer[from..to])?;
            end = to;
        }
        let checksum = xxh3_64(buffer);
        self.disk
            .write(self.file, self.path, buffer, expert.offset)
            .map_err(|error| write_error(self.path, self.missing.load(Ordering::Relaxed))(error))?;
        self.missing.fetch_sub(expert.len, Ordering::Relaxed);
        Ok(checksum)
    }
}

/// Experts that are written and not yet synced.
#[derive(Default)]
struct Batch {
    entries: Vec<Entry>,
    bytes: u64,
}

impl Batch {
    fn add(&mut self, number: usize, checksum: u64, bytes: u64) {
        self.entries.push(Entry::Expert { number, checksum });
        self.bytes += bytes;
    }

    fn flush(&mut self, job: &Job<'_>, journal: &mut Journal) -> Result<(), TierError> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let needed = job.missing.load(Ordering::Relaxed);
        job.disk.sync(job.file, job.path).map_err(write_error(job.path, needed))?;
        journal.append(&self.entries, job.disk)?;
        for entry in self.entries.drain(..) {
            if let Entry::Expert { number, .. } = entry {
                let PlacedExpert { offset, len, .. } = job.plan.experts[number];
                forget(job.file, offset, len);
            }
        }
        self.bytes = 0;
        Ok(())
    }
}
