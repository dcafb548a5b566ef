use super::cells::Cell;
use anyhow::{Context, Result, bail, ensure};
use engine_example::replay::{ReplayRun, WallFacts};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

const FILE: &str = "runs.jsonl";

/// First line of a journal: what its runs are runs of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Head {
    /// Of the definition, the pool and the trace.
    fingerprint: String,
}

/// A run as it was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) cell: Cell,
    pub(crate) capacity_bytes: u64,
    pub(crate) wall: WallFacts,
    /// What arenas and locked sets kept.
    pub(crate) places: usize,
    pub(crate) slack_bytes: u64,
    /// How the kernel reclaimed.
    pub(crate) reclaim: Option<String>,
    /// Why it was not tried.
    pub(crate) skipped: Option<String>,
    pub(crate) run: Option<ReplayRun>,
}

impl Entry {
    /// Whether the cell is done with: a run that counts, or one that cannot be made here.
    fn settles(&self) -> bool {
        self.skipped.is_some() || self.run.as_ref().is_some_and(ReplayRun::kept)
    }
}

/// The runs of a campaign on disk, each written as soon as it is made: a campaign that was
/// interrupted goes on where it stopped.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    pub(crate) entries: Vec<Entry>,
}

impl Journal {
    /// Opens the journal in `dir`, which is made if it is not there. `fresh` begins anew.
    pub(crate) fn open(dir: &Path, fingerprint: &str, fresh: bool) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        let path = dir.join(FILE);
        let head = Head { fingerprint: fingerprint.to_owned() };
        let (entries, whole_bytes) = match File::open(&path) {
            Ok(file) if !fresh => read(file, &head).with_context(|| path.display().to_string())?,
            _ => (Vec::new(), 0),
        };
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let mut journal =
            Self { file: file.with_context(|| path.display().to_string())?, path, entries };
        // A line that was cut short is made again.
        journal.file.set_len(whole_bytes)?;
        if whole_bytes == 0 {
            journal.write(&head)?;
        }
        Ok(journal)
    }

    pub(crate) fn push(&mut self, entry: Entry) -> Result<()> {
        self.write(&entry)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Whether the cell needs no run any more.
    pub(crate) fn settled(&self, cell: &Cell) -> bool {
        self.entries.iter().any(|entry| entry.cell == *cell && entry.settles())
    }

    fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let written = self.file.write_all(&text).and_then(|()| self.file.sync_data());
        written.with_context(|| format!("{}: a run is lost", self.path.display()))
    }
}

/// The whole lines of a journal, and their bytes.
fn read(file: File, head: &Head) -> Result<(Vec<Entry>, u64)> {
    let mut reader = BufReader::new(file);
    let (mut entries, mut bytes, mut line) = (Vec::new(), 0, String::new());
    for number in 1.. {
        line.clear();
        reader.read_line(&mut line)?;
        if !line.ends_with('\n') {
            break;
        }
        if number == 1 {
            let found: Head = serde_json::from_str(&line).context("line 1: not a journal")?;
            ensure!(
                found == *head,
                "these runs are of another definition, pool or trace: take another --out, or \
                 --fresh to throw them away"
            );
        } else {
            match serde_json::from_str(&line) {
                Ok(entry) => entries.push(entry),
                Err(error) => bail!("line {number}: {error}"),
            }
        }
        bytes += line.len() as u64;
    }
    Ok((entries, bytes))
}

#[cfg(test)]
mod tests {
    use super::super::cells::Place;
    use super::super::definition::{Reclaim, WallKind};
    use super::*;
    use engine_example::replay::{ReplayArm, Wall};

    fn entry(repetition: usize, discarded: Option<&str>) -> Entry {
        let place =
            Place { wall: WallKind::None, reclaim: Reclaim::AsIs, capacity: "25%".to_owned() };
        let arm = ReplayArm::Mapped;
        Entry {
            cell: Cell { place, arm, repetition },
            capacity_bytes: 1,
            wall: WallFacts {
                wall: Wall::None,
                enforced: true,
                reason: None,
                version: None,
                mem_total_bytes: None,
            },
            places: 2,
            slack_bytes: 3,
            reclaim: None,
            skipped: None,
            run: Some(ReplayRun {
                arm,
                round: repetition,
                place: 1,
                discarded: discarded.map(str::to_owned),
                scope: None,
                measurement: None,
            }),
        }
    }

    #[test]
    fn runs_survive_and_a_torn_line_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), "one", false).unwrap();
        journal.push(entry(1, None)).unwrap();
        journal.push(entry(2, Some("not cold"))).unwrap();
        drop(journal);
        let path = dir.path().join(FILE);
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"cell\":{\"pla");
        fs::write(&path, text).unwrap();
        let mut journal = Journal::open(dir.path(), "one", false).unwrap();
        assert!(journal.settled(&entry(1, None).cell));
        assert!(!journal.settled(&entry(2, None).cell), "discarded runs are made again");
        journal.push(entry(2, None)).unwrap();
        drop(journal);
        assert_eq!(Journal::open(dir.path(), "one", false).unwrap().entries.len(), 3);
    }

    #[test]
    fn runs_of_another_campaign_are_not_mixed_in() {
        let dir = tempfile::tempdir().unwrap();
        Journal::open(dir.path(), "one", false).unwrap().push(entry(1, None)).unwrap();
        let error = format!("{:#}", Journal::open(dir.path(), "two", false).unwrap_err());
        assert!(error.contains("--fresh"), "{error}");
        assert!(Journal::open(dir.path(), "two", true).unwrap().entries.is_empty());
        assert!(Journal::open(dir.path(), "one", false).is_err());
    }

    #[test]
    fn damage_is_told_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        Journal::open(dir.path(), "one", false).unwrap().push(entry(1, None)).unwrap();
        let path = dir.path().join(FILE);
        let text = fs::read_to_string(&path).unwrap().replace("\"cell\"", "\"sell\"");
        fs::write(&path, text).unwrap();
        let error = format!("{:#}", Journal::open(dir.path(), "one", false).unwrap_err());
        assert!(error.contains("line 2"), "{error}");
    }
}
