use super::machine::{AutoAdmission, TURNOVER};

/// What a choice rests on.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Why {
    /// Nothing was tried yet.
    Young,
    /// Nothing can be tried.
    Unable {
        reason: String,
    },
    /// All is warm after the first use.
    Fits,
    AdmitCheaper,
    /// Unbuffered reads were cheaper, not yet often enough.
    Wavering {
        won: u32,
        of: u32,
    },
    DirectCheaper,
    /// Admitting to see what that costs now.
    Rechecking {
        cause: String,
    },
}

impl Why {
    /// One sentence, with the numbers that `choice` has measured.
    pub(super) fn sentence(&self, choice: &AutoAdmission) -> String {
        let mib = |bytes: u64| bytes >> 20;
        let room = choice.memory().room_bytes;
        let costs = || {
            let part = |cost: Option<f64>| {
                cost.map_or_else(|| "an unknown time".to_owned(), |ns| format!("{ns:.3} ns"))
            };
            let admit = part(choice.admit_ns_per_byte());
            let direct = part(choice.direct_ns_per_byte());
            let missed = choice.miss_share().unwrap_or(0.0);
            format!(
                "waiting a byte used is {admit} admitted and {direct} read past the page cache, \
                 {:.0} % of the bytes used were read",
                100.0 * missed
            )
        };
        match self {
            Self::Young => format!(
                "admits: nothing was tried yet, {:.2} s waited for reads, {} windows seen",
                choice.counts().demand_ns as f64 / 1e9,
                choice.counts().windows
            ),
            Self::Unable { reason } => format!("admits: nothing else can be had here: {reason}"),
            Self::Fits => format!(
                "admits: the pool's {} MiB fit into the {} MiB that files can have",
                mib(choice.pool_bytes()),
                room.map_or(0, mib)
            ),
            Self::AdmitCheaper => format!("admits: {}", costs()),
            Self::Wavering { won, of } => {
                format!("admits: in {won} trials of the {of} that decide, {}", costs())
            }
            Self::DirectCheaper => format!("reads past the page cache: {}", costs()),
            Self::Rechecking { cause } => {
                format!("admits for {TURNOVER} windows to see what that costs now: {cause}")
            }
        }
    }
}
