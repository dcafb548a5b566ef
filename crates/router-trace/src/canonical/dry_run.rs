use super::pass::Pass;
use crate::ids::ModelShape;
use xxhash_rust::xxh3::Xxh3;

/// One chance in 2^30 that real routers give the same list at every layer.
const SYNTHETIC_BITS: f64 = 30.0;

/// Which first pass of a trace is a scheduler's dry run: a forward pass over no input, to
/// find how much memory a graph needs, whose routes mean nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DryRun {
    /// One whose tokens have the same list at every layer, where real routers would give
    /// that less than once in 2^30 traces.
    #[default]
    Recognise,
    /// That, and one that is bit-identical to this: the first pass which traces of different
    /// prompts share (`format::shared_first_pass`).
    Known(FirstPass),
    /// None: every pass is kept.
    Keep,
}

/// What the first pass of a trace routed: equal exactly where every id is equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstPass(u128);

impl FirstPass {
    pub(super) fn of(pass: &Pass) -> Self {
        let mut hash = Xxh3::new();
        for entry in pass.entries() {
            hash.update(&entry.tokens.to_le_bytes());
            hash.update(&entry.hash.to_le_bytes());
        }
        Self(hash.digest128())
    }
}

impl DryRun {
    /// Whether the first pass of a trace is one.
    pub(super) fn is(self, pass: &Pass, shape: &ModelShape) -> bool {
        match self {
            Self::Keep => false,
            Self::Recognise => synthetic(pass, shape),
            Self::Known(known) => synthetic(pass, shape) || FirstPass::of(pass) == known,
        }
    }
}

/// The same list at every layer and for every token, where that is no chance.
fn synthetic(pass: &Pass, shape: &ModelShape) -> bool {
    let (n, k) = (f64::from(shape.n_experts), f64::from(shape.top_k));
    // At least (n/k)^k sets of k among n experts, in bits, for each layer after the first.
    let bits = (shape.moe_layers.len() as f64 - 1.0) * k * (n / k).log2();
    bits >= SYNTHETIC_BITS && pass.is_uniform()
}
