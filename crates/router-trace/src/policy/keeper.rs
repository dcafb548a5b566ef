use super::{Key, Policy, PolicyKind, Verdict};
use crate::accesses::KeySpace;
use crate::error::TraceError;
use crate::ids::{ExpertId, ModelShape};

/// An on-line policy that is asked by expert instead of by key: what a live tier runs.
///
/// Driven with the routes of a trace, each route's experts in order and those already
/// adopted in it pinned, it decides exactly what [`simulate`](crate::simulate) counts with
/// [`Pins::Pass`](crate::simulate::Pins::Pass).
pub struct Keeper {
    space: KeySpace,
    policy: Box<dyn Policy + Send>,
    pinned: Vec<Key>,
}

/// A [`Verdict`] about an expert.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// The expert is kept already.
    Hit,
    /// The expert is kept from now on; `evicted` had to go for it.
    Admit {
        /// The expert that is no longer kept.
        evicted: Option<ExpertId>,
    },
    /// The expert is used once and not kept.
    Bypass,
}

impl Keeper {
    /// A policy with room for `capacity` experts of a model of this shape.
    ///
    /// # Errors
    ///
    /// [`TraceError::Setting`] for a policy that needs hindsight, [`TraceError::TooMany`] for
    /// a model above [`MAX_KEYS`](super::MAX_KEYS) experts.
    pub fn new(shape: &ModelShape, kind: PolicyKind, capacity: usize) -> Result<Self, TraceError> {
        let space = KeySpace::new(shape)?;
        let policy = kind.build_online(capacity, space.n_keys());
        let policy = policy.ok_or_else(|| TraceError::Setting {
            what: "policy",
            value: kind.to_string(),
            expected: "one that decides by what it has seen, not by what will come".to_owned(),
        })?;
        Ok(Self { space, policy, pinned: Vec::new() })
    }

    /// A policy that was built for the [`KeySpace`] of this shape, such as a
    /// [`StaticSet`](super::StaticSet) that was trained on another run.
    ///
    /// # Errors
    ///
    /// [`TraceError::TooMany`] for a model above [`MAX_KEYS`](super::MAX_KEYS) experts.
    pub fn of(shape: &ModelShape, policy: Box<dyn Policy + Send>) -> Result<Self, TraceError> {
        Ok(Self { space: KeySpace::new(shape)?, policy, pinned: Vec::new() })
    }

    /// One use of `expert`; those in `pinned` are in use and must stay.
    ///
    /// # Errors
    ///
    /// [`TraceError::ForeignExpert`] if the model does not have it (nothing is decided then).
    /// Pinned experts that the model does not have are ignored.
    pub fn access(
        &mut self,
        expert: ExpertId,
        pinned: &[ExpertId],
    ) -> Result<Decision, TraceError> {
        let key = self.space.key(expert).ok_or_else(|| self.space.foreign(0, expert))?;
        self.pinned.clear();
        self.pinned.extend(pinned.iter().filter_map(|&id| self.space.key(id)));
        Ok(match self.policy.access(key, &self.pinned) {
            Verdict::Hit => Decision::Hit,
            Verdict::Admit { evicted } => {
                Decision::Admit { evicted: evicted.and_then(|key| self.space.id(key)) }
            }
            Verdict::Bypass => Decision::Bypass,
        })
    }

    /// Whether `expert` is kept now.
    #[must_use]
    pub fn contains(&self, expert: ExpertId) -> bool {
        self.space.key(expert).is_some_and(|key| self.policy.contains(key))
    }

    /// The policy: its name, capacity and length.
    #[must_use]
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_speaks_of_experts() {
        let shape = ModelShape { moe_layers: vec![2, 5], n_experts: 4, top_k: 1 };
        let mut keeper = Keeper::new(&shape, PolicyKind::Lru, 2).unwrap();
        let [a, b, c] = [ExpertId::new(2, 3), ExpertId::new(5, 0), ExpertId::new(5, 1)];
        assert_eq!(keeper.access(a, &[]).unwrap(), Decision::Admit { evicted: None });
        assert_eq!(keeper.access(b, &[]).unwrap(), Decision::Admit { evicted: None });
        assert_eq!(keeper.access(c, &[a]).unwrap(), Decision::Admit { evicted: Some(b) });
        assert_eq!(keeper.access(a, &[]).unwrap(), Decision::Hit);
        assert_eq!(keeper.access(b, &[a, c]).unwrap(), Decision::Bypass);
        assert!(keeper.contains(c) && !keeper.contains(b));
        let foreign = keeper.access(ExpertId::new(3, 0), &[]).unwrap_err();
        assert_eq!(foreign.kind(), "trace-invalid");
        assert_eq!((keeper.policy().name(), keeper.policy().len()), ("lru", 2));
        assert!(Keeper::new(&shape, PolicyKind::Belady, 2).is_err());
    }
}
