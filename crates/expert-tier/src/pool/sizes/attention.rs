use super::super::config::Reader;
use super::KvSizes;
use super::stored::{Stored, Tally};
use crate::error::TierError;

/// One layer's attention, in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attention {
    /// Grouped queries (Qwen3).
    Grouped { heads: u64, kv_heads: u64, head_dim: u64, bias: bool },
    /// Multi-head latent attention (DeepSeek-V3, Kimi).
    Latent(Latent),
    /// Kimi's gated delta rule.
    Delta(Delta),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Latent {
    heads: u64,
    q_rank: Option<u64>,
    kv_rank: u64,
    nope: u64,
    rope: u64,
    value: u64,
    bias: bool,
    /// A gate of the output, as wide as that (Kimi K3).
    gate: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Delta {
    heads: u64,
    head_dim: u64,
    kernel: u64,
    /// Kimi K3: the gate is one full matrix; convolutions and the output norm are F32, and the
    /// decay has as many entries as a head is wide.
    k3: bool,
}

impl Latent {
    pub(super) fn read(text: &Reader<'_>) -> Result<Self, TierError> {
        Ok(Self {
            heads: dim(text, "num_attention_heads")?,
            q_rank: opt_dim(text, "q_lora_rank")?,
            kv_rank: dim(text, "kv_lora_rank")?,
            nope: dim(text, "qk_nope_head_dim")?,
            rope: dim(text, "qk_rope_head_dim")?,
            value: dim(text, "v_head_dim")?,
            bias: text.bool("attention_bias")?.unwrap_or(false),
            gate: text.bool("mla_use_output_gate")?.unwrap_or(false),
        })
    }

    fn tally(&self, stored: &Stored, name: &str, hidden: u64) -> Tally {
        let linear = |part: &str, rows, cols| stored.linear(&format!("{name}.{part}"), rows, cols);
        let (out, query) = (self.heads * self.value, self.heads * (self.nope + self.rope));
        let mut sum = match self.q_rank {
            Some(rank) => {
                let mut down = linear("q_a_proj", rank, hidden);
                down += stored.plain(rank);
                down += linear("q_b_proj", query, rank);
                down
            }
            None => linear("q_proj", query, hidden),
        };
        sum += linear("kv_a_proj_with_mqa", self.kv_rank + self.rope, hidden);
        sum += stored.plain(self.kv_rank);
        sum += linear("kv_b_proj", self.heads * (self.nope + self.value), self.kv_rank);
        sum += linear("o_proj", hidden, out);
        if self.gate {
            sum += linear("g_proj", out, hidden);
        }
        if self.bias {
            sum += stored.plain(self.q_rank.unwrap_or(0) + self.kv_rank + self.rope + hidden);
        }
        sum
    }
}

impl Delta {
    /// From `linear_attn_config`.
    pub(super) fn read(linear: &Reader<'_>, k3: bool) -> Result<Self, TierError> {
        Ok(Self {
            heads: dim(linear, "num_heads")?,
            head_dim: dim(linear, "head_dim")?,
            kernel: dim(linear, "short_conv_kernel_size")?,
            k3,
        })
    }

    fn tally(&self, stored: &Stored, name: &str, hidden: u64) -> Tally {
        let linear = |part: &str, rows, cols| stored.linear(&format!("{name}.{part}"), rows, cols);
        let Self { heads, head_dim, kernel, k3 } = *self;
        let wide = heads * head_dim;
        let mut sum: Tally =
            ["q_proj", "k_proj", "v_proj"].iter().map(|part| linear(part, wide, hidden)).sum();
        sum += linear("o_proj", hidden, wide);
        sum += linear("f_a_proj", head_dim, hidden);
        sum += linear("f_b_proj", wide, head_dim);
        if k3 {
            sum += linear("g_proj", wide, hidden);
        } else {
            sum += linear("g_a_proj", head_dim, hidden);
            sum += linear("g_b_proj", wide, head_dim);
        }
        sum += linear("b_proj", heads, hidden);
        let convolutions = 3 * wide * kernel;
        let as_f32 = |elements| if k3 { stored.f32(elements) } else { stored.plain(elements) };
        sum += as_f32(convolutions);
        sum += as_f32(head_dim); // the output's norm
        sum += stored.f32(wide); // dt_bias
        sum += stored.f32(if k3 { head_dim } else { heads }); // A_log
        sum
    }
}

impl Attention {
    /// All weights of the layer's attention; `name` is its module, `hidden` the model's width.
    pub(super) fn tally(&self, stored: &Stored, name: &str, hidden: u64) -> Tally {
        match self {
            Self::Latent(latent) => latent.tally(stored, name, hidden),
            Self::Delta(delta) => delta.tally(stored, name, hidden),
            &Self::Grouped { heads, kv_heads, head_dim, bias } => {
                let (query, key) = (heads * head_dim, kv_heads * head_dim);
                let parts = [("q_proj", query), ("k_proj", key), ("v_proj", key)]
                    .map(|(part, rows)| stored.linear(&format!("{name}.{part}"), rows, hidden));
                let mut sum: Tally = parts.into_iter().sum();
                sum += stored.linear(&format!("{name}.o_proj"), hidden, query);
                sum += stored.plain(2 * head_dim); // norms of queries and keys
                if bias {
                    sum += stored.plain(query + 2 * key + hidden);
                }
                sum
            }
        }
    }

    /// What it keeps of a sequence.
    pub(super) fn kv(&self) -> KvSizes {
        match *self {
            Self::Grouped { kv_heads, head_dim, .. } => {
                KvSizes { elements_per_token: 2 * kv_heads * head_dim, fixed_bytes: 0 }
            }
            Self::Latent(Latent { kv_rank, rope, .. }) => {
                KvSizes { elements_per_token: kv_rank + rope, fixed_bytes: 0 }
            }
            Self::Delta(Delta { heads, head_dim, kernel, .. }) => {
                let state = heads * head_dim * head_dim;
                let convolutions = 3 * heads * head_dim * (kernel - 1);
                KvSizes { elements_per_token: 0, fixed_bytes: 4 * (state + convolutions) }
            }
        }
    }
}

/// No dimension of a model is near this; it keeps products inside 64 bits.
const MOST: u64 = 1 << 20;

/// A dimension that must be there.
pub(super) fn dim(reader: &Reader<'_>, key: &str) -> Result<u64, TierError> {
    opt_dim(reader, key)?.ok_or_else(|| reader.wrong(key, "a number (it is needed)"))
}

pub(super) fn opt_dim(reader: &Reader<'_>, key: &str) -> Result<Option<u64>, TierError> {
    match reader.number(key, MOST)? {
        Some(0) => Err(reader.wrong(key, &format!("a whole number from 1 to {MOST}"))),
        found => Ok(found),
    }
}
