use super::facts::{Facts, PoolFacts, TierFacts};
use crate::cli::output::bytes;
use expert_tier::FillMethod;
use expert_tier::host::{FsKind, Reclaim};
use expert_tier::observe::{Pressure, ProcessLimits, Unavailable};
use serde::Serialize;

/// One line of judgement.
#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) topic: &'static str,
    pub(super) grade: Grade,
    pub(super) text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Grade {
    Good,
    /// Works, at a price that the text names.
    Fair,
    /// Does not work here.
    Bad,
    /// Cannot be known here.
    Unknown,
}

impl Grade {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Fair => "fair",
            Self::Bad => "bad",
            Self::Unknown => "unknown",
        }
    }
}

/// Every verdict, from the machine to the pool.
pub(super) fn all(facts: &Facts) -> Vec<Verdict> {
    let pool = &facts.pool;
    let mut verdicts = vec![
        say("kernel", kernel(facts)),
        say("memory", memory(facts)),
        say("pressure", pressure(&facts.memory_pressure)),
        say("idle memory", idle_memory(facts)),
        say("dense part", dense_part(facts)),
        say("files", files(facts)),
        say("storage", storage(pool)),
    ];
    match &pool.tier {
        Err(error) => verdicts.push(say("tier", (Grade::Bad, error.clone()))),
        Ok(tier) => {
            verdicts.push(say("fill", fill(tier)));
            verdicts.push(say("probe", probe(tier)));
            verdicts.push(say("huge pages", huge_pages(tier, facts)));
            verdicts.push(say("counters", counters(tier)));
            let notices = tier.notices.iter();
            verdicts.extend(notices.map(|text| say("notice", (Grade::Fair, text.clone()))));
        }
    }
    verdicts.push(say(
        "direct",
        match &pool.direct_refused {
            None => (Grade::Good, "direct reads work: every admission arm can run".to_owned()),
            Some(error) => (Grade::Fair, format!("the direct arm cannot run: {error}")),
        },
    ));
    verdicts.extend(facts.machine.verdicts());
    verdicts
}

pub(super) fn say(topic: &'static str, (grade, text): (Grade, String)) -> Verdict {
    Verdict { topic, grade, text }
}

fn kernel(facts: &Facts) -> (Grade, String) {
    let host = &facts.host;
    let release = host.kernel.as_deref().unwrap_or("of unknown release");
    let reclaim = match host.reclaim {
        Reclaim::Legacy => "active and inactive lists".to_owned(),
        Reclaim::Mglru { min_ttl_ms, .. } => format!("multi-gen LRU, min_ttl {min_ttl_ms} ms"),
    };
    let wsl = if host.wsl { "WSL2, " } else { "" };
    let grade = if host.wsl { Grade::Fair } else { Grade::Good };
    (grade, format!("{wsl}Linux {release}, {} CPUs, reclaim by {reclaim}", host.cpus))
}

fn idle_memory(facts: &Facts) -> (Grade, String) {
    let schemes = match &facts.host.damon {
        Err(error) => return (Grade::Unknown, error.reason.clone()),
        Ok(schemes) => schemes,
    };
    match schemes.iter().filter(|scheme| scheme.evicts()).min_by_key(|scheme| scheme.idle_ms) {
        None => (Grade::Good, "no DAMON scheme takes pages that rest".to_owned()),
        Some(scheme) => {
            let seconds = scheme.idle_ms as f64 / 1e3;
            let text = format!(
                "DAMON runs {} on memory unused for {seconds:.0} s: experts that rest turn cold \
                 although memory is free",
                scheme.action
            );
            (Grade::Fair, text)
        }
    }
}

fn memory(facts: &Facts) -> (Grade, String) {
    let limits = &facts.memory_limits;
    let limit = match (limits.limit_bytes, &limits.limit_path) {
        (Some(most), Some(path)) => {
            format!("limited to {} by {}", bytes(most), path.display())
        }
        _ => "no control group limit".to_owned(),
    };
    let Some(room) = facts.headroom_bytes else {
        return (Grade::Unknown, format!("how much is free is not available; {limit}"));
    };
    let wanted = facts.pool.expert_bytes.saturating_add(facts.pool.spine_bytes);
    let share =
        room.saturating_sub(facts.pool.spine_bytes) as f64 / facts.pool.expert_bytes.max(1) as f64;
    let model = bytes(wanted);
    let room_text = bytes(room);
    if room >= wanted {
        (Grade::Good, format!("{room_text} usable ({limit}): the whole model ({model}) fits"))
    } else if room > facts.pool.spine_bytes {
        let text = format!(
            "{room_text} usable ({limit}): {:.0} % of the experts of this model ({model}) fit, \
             the rest comes from storage",
            100.0 * share
        );
        (Grade::Fair, text)
    } else {
        (Grade::Bad, format!("{room_text} usable ({limit}): the dense part does not fit"))
    }
}

fn pressure(found: &Pressure) -> (Grade, String) {
    let value = |value: &Result<f64, Unavailable>| match value {
        Ok(percent) => format!("{percent:.2} %"),
        Err(_) => "not available".to_owned(),
    };
    let grade = match found.some_avg10 {
        Ok(percent) if percent < 10.0 => Grade::Good,
        Ok(_) => Grade::Fair,
        Err(_) => Grade::Unknown,
    };
    let (some, full) = (value(&found.some_avg10), value(&found.full_avg10));
    (grade, format!("time spent waiting for memory: some {some}, full {full}"))
}

fn dense_part(facts: &Facts) -> (Grade, String) {
    let spine = facts.pool.spine_bytes;
    let limit = facts.process_limits.locked_bytes;
    let text = match limit {
        _ if facts.headroom_bytes.is_some_and(|room| spine > room) => {
            return (Grade::Bad, format!("{} do not fit into memory", bytes(spine)));
        }
        Some(most) if most < spine => {
            let text = format!(
                "{} can be held but perhaps not locked: RLIMIT_MEMLOCK is {most} bytes (tier \
                 lock tries it)",
                bytes(spine)
            );
            return (Grade::Fair, text);
        }
        Some(most) => format!("RLIMIT_MEMLOCK is {}", bytes(most)),
        None => "RLIMIT_MEMLOCK is unlimited".to_owned(),
    };
    (Grade::Good, format!("{} fit and may be locked: {text}", bytes(spine)))
}

fn files(facts: &Facts) -> (Grade, String) {
    let files = facts.pool.files as u64;
    let open = facts.process_limits.open_files;
    // However many files there are: a tier opens them a few at a time.
    const NEEDED: u64 = 128;
    if let Some(most) = open.filter(|&most| most < NEEDED) {
        let text = format!("a tier may need {NEEDED} descriptors, RLIMIT_NOFILE is {most}");
        return (Grade::Bad, text);
    }
    mappings(files, &facts.process_limits)
}

fn mappings(files: u64, limits: &ProcessLimits) -> (Grade, String) {
    match (limits.mappings_short(files), &limits.mappings, &limits.mappings_used) {
        (Some(needed), Ok(most), _) => {
            let text = format!("{files} files to map need vm.max_map_count {needed}, it is {most}");
            (Grade::Bad, text)
        }
        (_, Ok(most), Ok(used)) => {
            (Grade::Good, format!("{files} to map, {used} are, of at most {most} mappings"))
        }
        (_, Err(why), _) | (_, _, Err(why)) => {
            let text = format!("{files} to map; how many may be is not available: {}", why.reason);
            (Grade::Unknown, text)
        }
    }
}

fn storage(pool: &PoolFacts) -> (Grade, String) {
    let storage = match &pool.storage {
        Ok(storage) => storage,
        Err(error) => return (Grade::Unknown, format!("not available: {error}")),
    };
    if let Some(warning) = storage.fs.mapping_warning() {
        return (Grade::Bad, warning);
    }
    let name = &storage.fs.name;
    if storage.fs.kind == FsKind::Memory {
        let text = format!("{name} is a memory file system: nothing is ever read from storage");
        return (Grade::Fair, text);
    }
    let window = match storage.read_ahead_kb {
        Ok(kib) => format!("read-ahead {kib} KiB (larger reads are made in pieces)"),
        Err(_) => "read-ahead not available".to_owned(),
    };
    (Grade::Good, format!("{name}, {window}"))
}

fn fill(tier: &TierFacts) -> (Grade, String) {
    match tier.fill_method {
        FillMethod::Populate => {
            (Grade::Good, "MADV_POPULATE_READ: bad sectors and cut files are errors".to_owned())
        }
        _ => (Grade::Fair, "plain reads, one copy more: no MADV_POPULATE_READ here".to_owned()),
    }
}

fn probe(tier: &TierFacts) -> (Grade, String) {
    let Some(kind) = tier.probe else {
        return (Grade::Unknown, "no file to ask about".to_owned());
    };
    match &tier.resident_bytes {
        Ok(resident) => {
            let text =
                format!("{kind:?} tells: {} of the experts are cached now", bytes(*resident));
            (Grade::Good, text)
        }
        Err(error) => (Grade::Bad, format!("{kind:?}: {error}")),
    }
}

fn huge_pages(tier: &TierFacts, facts: &Facts) -> (Grade, String) {
    let setting = facts.host.thp.as_deref().unwrap_or("not in this kernel");
    if tier.huge_folios {
        return (Grade::Good, format!("2 MiB folios are asked for (THP: {setting})"));
    }
    let text = format!(
        "none for this pool (THP: {setting}): experts under 4 MiB, a mapping off its 2 MiB \
         places, or a kernel without; hits cost 5-20 % more"
    );
    (Grade::Fair, text)
}

fn counters(tier: &TierFacts) -> (Grade, String) {
    match &tier.device_counters_unavailable {
        None => (Grade::Good, "device bytes can be counted".to_owned()),
        Some(reason) => (Grade::Unknown, format!("device bytes: not available: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(most: Result<u64, ()>, used: Result<u64, ()>) -> ProcessLimits {
        let told = |known: Result<u64, ()>, what: &str| {
            known.map_err(|()| Unavailable { reason: format!("{what}: refused") })
        };
        ProcessLimits {
            open_files: None,
            open_files_hard: None,
            locked_bytes: None,
            locked_bytes_hard: None,
            mappings: told(most, "/proc/sys/vm/max_map_count"),
            mappings_used: told(used, "/proc/self/maps"),
        }
    }

    #[test]
    fn room_for_mappings_is_never_guessed() {
        let judge = |most, used| mappings(1000, &limits(most, used));
        let (grade, text) = judge(Ok(65_530), Ok(40));
        assert!(grade == Grade::Good && text.contains("65530"), "{text}");
        let (grade, text) = judge(Ok(1200), Ok(40));
        assert!(grade == Grade::Bad && text.contains("1296") && text.contains("1200"), "{text}");
        // Too few whatever the process has already.
        assert_eq!(judge(Ok(1200), Err(())).0, Grade::Bad);
        let (grade, text) = judge(Ok(65_530), Err(()));
        assert!(grade == Grade::Unknown && text.contains("/proc/self/maps"), "{text}");
        let (grade, text) = judge(Err(()), Ok(40));
        assert!(grade == Grade::Unknown && text.contains("max_map_count"), "{text}");
    }
}
