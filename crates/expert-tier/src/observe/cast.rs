use super::root::{SystemRoot, Unavailable};
use serde::Serialize;

const DIR: &str = "/sys/kernel/mm/lru_cast";

/// The CAST page replacement, as `/sys/kernel/mm/lru_cast` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CastState {
    /// Whether it decides what is evicted.
    pub enabled: bool,
    /// Its version.
    pub version: Result<String, Unavailable>,
    /// Whether its controllers set decay and share; else they are as set by hand.
    pub automatic: Result<bool, Unavailable>,
    /// How fast scores decay, 1 to 14: they halve while 2^(8 - decay) times memory is taken in.
    pub decay: Result<PerType, Unavailable>,
    /// The newcomers' share of a type's pages, permille.
    pub newcomers_permille: Result<PerType, Unavailable>,
    /// What it estimates.
    pub estimate: Result<CastEstimate, Unavailable>,
    /// What its controllers chose, and what each of the simulated caches missed, as it prints it.
    pub tune: Result<String, Unavailable>,
}

/// A number for each type of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct PerType {
    /// Anonymous memory.
    pub anon: u64,
    /// The page cache.
    pub file: u64,
}

/// What eviction of each type costs the tasks that wait, and what follows from it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CastEstimate {
    /// Anonymous memory's share of memory, permille.
    pub anon_permille: u64,
    /// The `vm.swappiness` that the costs amount to.
    pub swappiness: u64,
    /// Nanoseconds that a task waits for an evicted page.
    pub wait_ns: PerType,
    /// Waits that were measured.
    pub waits: PerType,
    /// Nanoseconds that it takes to write an anonymous page out.
    pub swap_out_ns: u64,
    /// Pages written out that were measured.
    pub swap_out_pages: u64,
    /// Waits that have not ended.
    pub in_flight: u64,
    /// The same for the processors (`cpu`) and each device (`bdi 9`), as it prints them.
    pub queues: Vec<String>,
}

impl CastState {
    /// Reads it; `None` for a kernel without it.
    #[must_use]
    pub fn read(root: &SystemRoot) -> Option<Self> {
        let text = |name: &str| root.read(format!("{DIR}/{name}"));
        let enabled = text("enabled").ok()?;
        let pair = |name: &str| {
            let text = text(name)?;
            PerType::parse(&text)
                .ok_or_else(|| Unavailable::new(format!("{DIR}/{name}: {text:?} is no pair")))
        };
        Some(Self {
            enabled: is_on(&enabled),
            version: text("version"),
            automatic: text("decay_auto").map(|text| is_on(&text)),
            decay: pair("decay"),
            newcomers_permille: pair("w_permille"),
            estimate: text("estimate").and_then(|text| CastEstimate::parse(&text)),
            tune: text("tune"),
        })
    }
}

fn is_on(text: &str) -> bool {
    matches!(text, "1" | "Y" | "y" | "on")
}

impl PerType {
    /// `anon file`, or one number for both.
    fn parse(text: &str) -> Option<Self> {
        let numbers: Result<Vec<u64>, _> = text.split_whitespace().map(str::parse).collect();
        match *numbers.ok()?.as_slice() {
            [both] => Some(Self { anon: both, file: both }),
            [anon, file] => Some(Self { anon, file }),
            _ => None,
        }
    }
}

impl CastEstimate {
    /// The lines of `estimate`; those of queues follow the five that are always there.
    fn parse(text: &str) -> Result<Self, Unavailable> {
        let mut lines = text.lines();
        let mut next = |form: &str| {
            let line = lines.next().unwrap_or("");
            numbers(line, form).ok_or_else(|| {
                Unavailable::new(format!("{DIR}/estimate: {line:?} is not of the form {form:?}"))
            })
        };
        let share = next("share #/1000")?;
        let swappiness = next("swappiness #")?;
        let cost = next("cost anon # ns (# waits) file # ns (# waits)")?;
        let out = next("swap-out # ns (# pages)")?;
        let in_flight = next("in flight #")?;
        Ok(Self {
            anon_permille: share[0],
            swappiness: swappiness[0],
            wait_ns: PerType { anon: cost[0], file: cost[2] },
            waits: PerType { anon: cost[1], file: cost[3] },
            swap_out_ns: out[0],
            swap_out_pages: out[1],
            in_flight: in_flight[0],
            queues: lines.map(|line| line.trim().to_owned()).collect(),
        })
    }
}

/// The numbers that stand in `line` where `form` has `#`; `None` if anything else differs.
fn numbers(line: &str, form: &str) -> Option<Vec<u64>> {
    let mut rest = line.trim_end();
    let mut found = Vec::new();
    let mut parts = form.split('#');
    rest = rest.strip_prefix(parts.next()?)?;
    for part in parts {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        found.push(rest[..digits].parse().ok()?);
        rest = rest[digits..].strip_prefix(part)?;
    }
    rest.is_empty().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::tree;
    use super::*;

    /// As the description of CAST prints it.
    const ESTIMATE: &str = "share 0/1000
swappiness 196
cost anon 5522 ns (1034286 waits) file 348935 ns (15237 waits)
swap-out 2432 ns (661733 pages)
in flight 0
cpu: anon 3667 ns (20692922) file 0 ns (0) swap-out 2696 ns (21034646)
bdi 9: anon 0 ns (0) file 350346 ns (15035) swap-out 0 ns (0)
";

    #[test]
    fn a_kernel_with_it() {
        let (_dir, root) = tree(&[
            ("sys/kernel/mm/lru_cast/enabled", "1\n"),
            ("sys/kernel/mm/lru_cast/version", "0.1.0\n"),
            ("sys/kernel/mm/lru_cast/decay_auto", "1\n"),
            ("sys/kernel/mm/lru_cast/decay", "8 9\n"),
            ("sys/kernel/mm/lru_cast/w_permille", "100\n"),
            ("sys/kernel/mm/lru_cast/estimate", ESTIMATE),
            ("sys/kernel/mm/lru_cast/tune", "anon: decay 8\nfile: decay 9\n"),
        ]);
        let cast = CastState::read(&root).unwrap();
        assert!(cast.enabled && cast.automatic.unwrap());
        assert_eq!(cast.version.unwrap(), "0.1.0");
        assert_eq!(cast.decay, Ok(PerType { anon: 8, file: 9 }));
        assert_eq!(cast.newcomers_permille, Ok(PerType { anon: 100, file: 100 }));
        assert_eq!(cast.tune.unwrap().lines().count(), 2);
        let estimate = cast.estimate.unwrap();
        assert_eq!((estimate.anon_permille, estimate.swappiness), (0, 196));
        assert_eq!(estimate.wait_ns, PerType { anon: 5522, file: 348_935 });
        assert_eq!(estimate.waits, PerType { anon: 1_034_286, file: 15_237 });
        assert_eq!((estimate.swap_out_ns, estimate.swap_out_pages), (2432, 661_733));
        assert_eq!((estimate.in_flight, estimate.queues.len()), (0, 2));
        assert!(estimate.queues[1].starts_with("bdi 9:"));
    }

    #[test]
    fn a_kernel_without_it_or_with_it_off() {
        let (_dir, root) = tree(&[]);
        assert_eq!(CastState::read(&root), None);
        let (_dir, root) = tree(&[("sys/kernel/mm/lru_cast/enabled", "0\n")]);
        let cast = CastState::read(&root).unwrap();
        assert!(!cast.enabled);
        assert!(cast.estimate.unwrap_err().reason.contains("estimate"));
        assert!(cast.decay.unwrap_err().reason.contains("decay"));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (wrong, named) in [
            ("", "share"),
            ("share 1000", "share"),
            ("share 5/1000\nswappiness x", "swappiness"),
            ("share 5/1000\nswappiness 60\ncost anon 1 ns", "cost anon"),
            (&ESTIMATE.replace("in flight 0", "in flight 0 more"), "in flight"),
            (&ESTIMATE.replace("196", "99999999999999999999"), "swappiness"),
        ] {
            let error = CastEstimate::parse(wrong).unwrap_err();
            assert!(error.reason.contains(named), "{wrong:?}: {error}");
        }
        for wrong in ["", "9 9 9", "x", "-1"] {
            assert_eq!(PerType::parse(wrong), None, "{wrong:?}");
        }
    }
}
