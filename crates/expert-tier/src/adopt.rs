use crate::adopting::Adopting;
use crate::arena::Arena;
use crate::error::TierError;
use crate::lease::Adopted;
use crate::pool::Pool;
use crate::stats::Snapshot;
use crate::tier::Tier;
use router_trace::Route;

/// What makes a route's experts usable: the [`Tier`], or the [`Arena`] that it is held against.
/// Both give the same leases, so that what computes with them need not know which it is.
pub trait Adopt: Send + Sync {
    /// As [`Tier::begin`].
    ///
    /// # Errors
    /// As there.
    fn begin(&self, layer: u16, experts: &[u16]) -> Result<Adopting, TierError>;

    /// As [`Tier::adopt_batch`].
    ///
    /// # Errors
    /// As there.
    fn adopt_batch(&self, layer: u16, experts: &[u16]) -> Result<Adopted, TierError> {
        self.begin(layer, experts)?.finish()
    }

    /// As [`Tier::adopt`].
    ///
    /// # Errors
    /// As there.
    fn adopt(&self, route: &Route) -> Result<Adopted, TierError> {
        self.adopt_batch(route.layer(), route.experts())
    }

    /// As [`Tier::snapshot`]; an arena's warm experts are those that it kept.
    fn snapshot(&self) -> Snapshot;

    /// The tier itself, or the one whose files and probes the arena uses.
    fn tier(&self) -> &Tier;

    /// The pool that is served.
    fn pool(&self) -> &Pool {
        self.tier().pool()
    }
}

impl Adopt for Tier {
    fn begin(&self, layer: u16, experts: &[u16]) -> Result<Adopting, TierError> {
        Self::begin(self, layer, experts)
    }

    fn snapshot(&self) -> Snapshot {
        Self::snapshot(self)
    }

    fn tier(&self) -> &Tier {
        self
    }
}

impl Adopt for Arena {
    fn begin(&self, layer: u16, experts: &[u16]) -> Result<Adopting, TierError> {
        Self::begin(self, layer, experts)
    }

    fn snapshot(&self) -> Snapshot {
        Self::snapshot(self)
    }

    fn tier(&self) -> &Tier {
        Self::tier(self)
    }
}
