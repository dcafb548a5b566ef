use super::norm::{RmsNorm, dot};
use crate::error::EngineError;
use crate::kernels::{DeltaStep, Isa, delta_step, exp, sigmoid, silu};
use crate::linear::Linear;
use crate::weights::SpineWeights;
use rayon::prelude::*;

/// Under the root that normalises queries and keys, as the reference implementation has it.
const L2_EPS: f32 = 1e-6;

/// Sizes and gates of a delta attention.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DeltaConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Heads, of queries, keys and values alike.
    pub heads: usize,
    /// Width of a head; the state of one is a square of it.
    pub head_dim: usize,
    /// Tokens that a short convolution sees.
    pub taps: usize,
    /// The least logarithm of a decay: decays are `exp(bound · sigmoid(rate · z))` (Kimi K3);
    /// `None`: `exp(-rate · softplus(z))` (Kimi Linear).
    pub decay_bound: Option<f32>,
    /// Whether the output gate is one full projection.
    pub full_rank_gate: bool,
    /// Epsilon of the norm of each head's output.
    pub eps: f32,
}

impl DeltaConfig {
    fn width(&self) -> usize {
        self.heads * self.head_dim
    }
}

/// Kimi Delta Attention: short convolutions, then a gated delta rule. What it keeps of the
/// sequence has one size, however long the sequence is.
#[derive(Debug)]
pub struct DeltaAttention {
    /// Projections of queries, keys and values.
    inputs: [Linear; 3],
    /// `[taps, width]` of each, the oldest token's first.
    taps: [Vec<f32>; 3],
    decay_down: Linear,
    decay_up: Linear,
    decay_bias: Vec<f32>,
    /// `exp(A_log)`, one a head.
    rates: Vec<f32>,
    beta: Linear,
    gate: Gate,
    norm: RmsNorm,
    output: Linear,
    config: DeltaConfig,
    isa: Isa,
}

#[derive(Debug)]
enum Gate {
    Full(Linear),
    LowRank(Linear, Linear),
}

/// What a delta attention keeps of the sequence: a state for each head, and the last inputs of the
/// convolutions.
///
/// Passes work on a copy, so that one that fails leaves no trace; [`DeltaState::commit`] makes the
/// copy the state.
#[derive(Clone, Debug)]
pub struct DeltaState {
    kept: Memory,
    working: Memory,
    /// Whether `working` is ahead of `kept`.
    begun: bool,
}

#[derive(Clone, Debug)]
struct Memory {
    /// `[heads, head_dim, head_dim]`: keys by values.
    heads: Vec<f32>,
    /// `[taps - 1, width]` of queries, keys and values, the oldest first.
    inputs: [Vec<f32>; 3],
}

impl DeltaState {
    fn new(config: &DeltaConfig) -> Self {
        let inputs = vec![0.0; (config.taps - 1) * config.width()];
        let kept = Memory {
            heads: vec![0.0; config.width() * config.head_dim],
            inputs: [inputs.clone(), inputs.clone(), inputs],
        };
        Self { working: kept.clone(), kept, begun: false }
    }

    /// Forgets what was not committed.
    pub fn roll_back(&mut self) {
        self.begun = false;
    }

    /// Keeps what the passes since the last commit made.
    pub fn commit(&mut self) {
        if std::mem::take(&mut self.begun) {
            std::mem::swap(&mut self.kept, &mut self.working);
        }
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        self.begun = false;
        self.kept.heads.fill(0.0);
        self.kept.inputs.iter_mut().for_each(|inputs| inputs.fill(0.0));
    }

    /// Bytes held, which no sequence changes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of = |memory: &Memory| {
            size_of_val(memory.heads.as_slice())
                + memory.inputs.iter().map(|one| size_of_val(one.as_slice())).sum::<usize>()
        };
        of(&self.kept) + of(&self.working)
    }
}

impl DeltaAttention {
    /// The weights `{prefix}.{q,k,v}_proj`, `{q,k,v}_conv1d`, `f_a_proj`, `f_b_proj`, `dt_bias`,
    /// `A_log`, `b_proj`, `g_proj` or `g_a_proj` and `g_b_proj`, `o_norm` and `o_proj`.
    ///
    /// # Errors
    /// A weight that is missing or has another shape.
    pub fn new(
        weights: &SpineWeights,
        prefix: &str,
        config: DeltaConfig,
    ) -> Result<Self, EngineError> {
        let (hidden, width, rank) = (config.hidden, config.width(), config.head_dim);
        let linear = |name: &str, rows: usize, cols: usize| {
            weights.linear(&format!("{prefix}.{name}"), rows, cols)
        };
        let vector = |name: &str, len: usize| weights.vector(&format!("{prefix}.{name}"), len);
        let input = |name: &str| linear(&format!("{name}_proj"), width, hidden);
        let taps = |name: &str| -> Result<Vec<f32>, EngineError> {
            let stored = vector(&format!("{name}_conv1d.weight"), width * config.taps)?;
            let tap = |tap| stored.iter().skip(tap).step_by(config.taps).copied();
            Ok((0..config.taps).flat_map(tap).collect())
        };
        // Longer than the heads where it is padded to a whole vector.
        let name = format!("{prefix}.A_log");
        let stored = weights.get(&name).map_or(0, |tensor| tensor.shape.iter().product());
        let mut rates = weights.vector(&name, stored.max(config.heads))?;
        rates.truncate(config.heads);
        rates.iter_mut().for_each(|rate| *rate = rate.exp());
        Ok(Self {
            inputs: [input("q")?, input("k")?, input("v")?],
            taps: [taps("q")?, taps("k")?, taps("v")?],
            decay_down: linear("f_a_proj", rank, hidden)?,
            decay_up: linear("f_b_proj", width, rank)?,
            decay_bias: vector("dt_bias", width)?,
            rates,
            beta: linear("b_proj", config.heads, hidden)?,
            gate: if config.full_rank_gate {
                Gate::Full(linear("g_proj", width, hidden)?)
            } else {
                Gate::LowRank(linear("g_a_proj", rank, hidden)?, linear("g_b_proj", width, rank)?)
            },
            norm: RmsNorm::new(vector("o_norm.weight", config.head_dim)?, config.eps),
            output: linear("o_proj", hidden, width)?,
            config,
            isa: weights.workspace().isa(),
        })
    }

    /// The state before the first token.
    #[must_use]
    pub fn new_state(&self) -> DeltaState {
        DeltaState::new(&self.config)
    }

    /// `x [n, hidden]`, the tokens after those that `state` has seen, to `[n, hidden]`.
    ///
    /// # Panics
    /// If `x` is not whole rows.
    pub fn forward(&self, x: &[f32], state: &mut DeltaState) -> Vec<f32> {
        let width = self.config.width();
        if !state.begun {
            state.working.inputs.clone_from(&state.kept.inputs);
        }
        let [q, k, v] = [0, 1, 2].map(|which| {
            let inputs = self.inputs[which].product(x);
            self.convolve(which, &inputs, &mut state.working.inputs[which])
        });
        let n = q.len() / width;
        let decay = self.decay_up.product(&self.decay_down.product(x));
        let mut beta = self.beta.product(x);
        beta.iter_mut().for_each(|beta| *beta = sigmoid(*beta));
        let tokens = Tokens { q: &q, k: &k, v: &v, decay: &decay, beta: &beta, n };
        let mut mixed = self.recur(&tokens, state);
        state.begun = true;
        let gate = match &self.gate {
            Gate::Full(projection) => projection.product(x),
            Gate::LowRank(down, up) => up.product(&down.product(x)),
        };
        for head in mixed.chunks_exact_mut(self.config.head_dim) {
            self.norm.apply(head);
        }
        mixed.iter_mut().zip(&gate).for_each(|(y, gate)| *y *= sigmoid(*gate));
        self.output.product(&mixed)
    }

    /// `silu(Σ_j taps[j] · input[t - taps + 1 + j])`, one filter a channel; `before` are the last
    /// inputs, and becomes those of the tokens after.
    fn convolve(&self, which: usize, inputs: &[f32], before: &mut [f32]) -> Vec<f32> {
        let width = self.config.width();
        let all = [&*before, inputs].concat();
        let mut out = vec![0.0; inputs.len()];
        for (t, out) in out.chunks_exact_mut(width).enumerate() {
            let rows = all[t * width..].chunks_exact(width);
            for (taps, row) in self.taps[which].chunks_exact(width).zip(rows) {
                for ((y, tap), x) in out.iter_mut().zip(taps).zip(row) {
                    *y += tap * x;
                }
            }
            out.iter_mut().for_each(|y| *y = silu(*y));
        }
        before.copy_from_slice(&all[all.len() - before.len()..]);
        out
    }

    /// The delta rule of all heads over all tokens, `[n, width]`; heads are split over the current
    /// rayon pool.
    fn recur(&self, tokens: &Tokens<'_>, state: &mut DeltaState) -> Vec<f32> {
        let DeltaConfig { heads, head_dim, .. } = self.config;
        let (width, n) = (self.config.width(), tokens.n);
        let begun = state.begun;
        let kept = &state.kept.heads;
        let mut by_head = vec![0.0; n * width];
        let square = head_dim * head_dim;
        let working = state.working.heads.par_chunks_exact_mut(square);
        working.zip(by_head.par_chunks_exact_mut(n * head_dim)).enumerate().for_each_init(
            || HeadInputs::new(head_dim),
            |room, (head, (state, out))| {
                if !begun {
                    state.copy_from_slice(&kept[head * square..][..square]);
                }
                for (t, out) in out.chunks_exact_mut(head_dim).enumerate() {
                    let at = t * width + head * head_dim;
                    room.fill(self, tokens, at, head);
                    let step = DeltaStep {
                        query: &room.query,
                        key: &room.key,
                        value: &tokens.v[at..][..head_dim],
                        decay: &room.decay,
                        beta: tokens.beta[t * heads + head],
                    };
                    delta_step(self.isa, state, &step, out);
                }
            },
        );
        if n == 1 {
            return by_head;
        }
        let mut mixed = vec![0.0; by_head.len()];
        for (head, rows) in by_head.chunks_exact(n * head_dim).enumerate() {
            for (t, row) in rows.chunks_exact(head_dim).enumerate() {
                mixed[t * width + head * head_dim..][..head_dim].copy_from_slice(row);
            }
        }
        mixed
    }

    /// What is left of a row of the state of `head`, from the gate's projection.
    fn decay(&self, projected: f32, channel: usize, head: usize) -> f32 {
        let (z, rate) = (projected + self.decay_bias[channel], self.rates[head]);
        match self.config.decay_bound {
            Some(bound) => exp(bound * sigmoid(rate * z)),
            // ln(1 + e^z) is z to the last bit there.
            None if z > 20.0 => exp(-rate * z),
            None => exp(-rate * exp(z).ln_1p()),
        }
    }
}

/// Projections of the tokens of a pass, `[n, width]`; `beta` is `[n, heads]`.
struct Tokens<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: &'a [f32],
    beta: &'a [f32],
    n: usize,
}

/// Inputs of one step.
struct HeadInputs {
    query: Vec<f32>,
    key: Vec<f32>,
    decay: Vec<f32>,
}

impl HeadInputs {
    fn new(head_dim: usize) -> Self {
        let room = vec![0.0; head_dim];
        Self { query: room.clone(), key: room.clone(), decay: room }
    }

    /// Those of the head whose channels begin at `at` in `[n, width]`.
    fn fill(&mut self, layer: &DeltaAttention, tokens: &Tokens<'_>, at: usize, head: usize) {
        let head_dim = self.query.len();
        let scale = 1.0 / (head_dim as f32).sqrt();
        normalise(&tokens.q[at..][..head_dim], scale, &mut self.query);
        normalise(&tokens.k[at..][..head_dim], 1.0, &mut self.key);
        let channels = head * head_dim..;
        let projected = tokens.decay[at..][..head_dim].iter().zip(channels);
        for (decay, (projected, channel)) in self.decay.iter_mut().zip(projected) {
            *decay = layer.decay(*projected, channel, head);
        }
    }
}

/// `x / sqrt(Σ x² + eps) · scale`.
fn normalise(x: &[f32], scale: f32, out: &mut [f32]) {
    let factor = scale / (dot(x, x) + L2_EPS).sqrt();
    out.iter_mut().zip(x).for_each(|(y, x)| *y = x * factor);
}
