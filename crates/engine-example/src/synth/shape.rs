use super::{SynthDtype, SynthOptions};
use crate::error::EngineError;

/// Sizes of a model.
#[derive(Clone, PartialEq, Debug)]
pub struct SynthShape {
    /// What it is called.
    pub name: String,
    /// How its layers are built.
    pub family: SynthFamily,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Layers.
    pub layers: u16,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads of a grouped attention.
    pub kv_heads: u32,
    /// Width of one head of a grouped attention.
    pub head_dim: u32,
    /// Width of a dense MLP.
    pub intermediate: u32,
    /// Width of one expert.
    pub moe_intermediate: u32,
    /// Routed experts a layer.
    pub experts: u16,
    /// Experts one token chooses in one layer.
    pub top_k: u16,
    /// Tokens.
    pub vocab: u32,
    /// Positions.
    pub positions: u32,
}

/// How the layers of a model are built, and the sizes that only this family has.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SynthFamily {
    /// Grouped-query attention, experts in every layer.
    Qwen3Moe,
    /// Latent attention, sigmoid router, shared experts: DeepSeek-V3 and Kimi K2.
    DeepseekV3(LatentSizes),
    /// Delta attention beside the latent one, experts on a narrower stream, attention residuals.
    KimiK3(LatentSizes, K3Sizes),
}

/// Sizes of a model with latent attention.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LatentSizes {
    /// Width of the compressed queries.
    pub q_rank: u32,
    /// Width of the compressed keys and values.
    pub kv_rank: u32,
    /// Width of a head's part without rotation.
    pub nope: u32,
    /// Width of the part with rotation.
    pub rope: u32,
    /// Width of a head's value.
    pub value: u32,
    /// Layers without experts, at the beginning.
    pub dense_layers: u16,
    /// Experts that every token uses.
    pub shared: u32,
    /// Groups of experts, and those that take part.
    pub groups: [u16; 2],
    /// Factor on the experts' weights.
    pub scale: f32,
    /// `model_type`.
    pub model_type: &'static str,
    /// Rotary base, and YaRN's factor and fast rotations.
    pub yarn: [f32; 3],
    /// Epsilon of the norms.
    pub eps: f32,
}

/// Sizes that only Kimi K3 has.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct K3Sizes {
    /// Width of what a routed expert reads and writes.
    pub expert_hidden: u32,
    /// Width of a head of the delta attention, which has as many heads as the latent one.
    pub delta_dim: u32,
    /// Layers after which the residual stream begins anew.
    pub residual_block: u16,
}

impl SynthShape {
    /// The names that [`SynthShape::named`] knows.
    pub const NAMES: [&'static str; 8] = [
        "qwen3-30b-a3b",
        "qwen3-235b-a22b",
        "deepseek-v3",
        "kimi-k2",
        "kimi-k3",
        "tiny",
        "tiny-deepseek-v3",
        "tiny-kimi-k3",
    ];

    /// The shape of a model.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        latent_shape(name).or_else(|| Self::grouped(name))
    }

    fn grouped(name: &str) -> Option<Self> {
        let qwen3 = |hidden, layers, heads, intermediate, moe_intermediate| Self {
            name: name.to_owned(),
            family: SynthFamily::Qwen3Moe,
            hidden,
            layers,
            heads,
            kv_heads: 4,
            head_dim: 128,
            intermediate,
            moe_intermediate,
            experts: 128,
            top_k: 8,
            vocab: 151_936,
            positions: 40_960,
        };
        Some(match name {
            "qwen3-30b-a3b" => qwen3(2048, 48, 32, 6144, 768),
            "qwen3-235b-a22b" => qwen3(4096, 94, 64, 12_288, 1536),
            "tiny" => Self {
                kv_heads: 2,
                head_dim: 32,
                experts: 16,
                top_k: 4,
                vocab: 512,
                positions: 2048,
                ..qwen3(128, 4, 4, 256, 64)
            },
            _ => return None,
        })
    }

    /// The form of the experts that is written where none is asked for.
    #[must_use]
    pub fn default_dtype(&self) -> SynthDtype {
        match self.family {
            SynthFamily::KimiK3(..) => SynthDtype::Mxfp4,
            _ => SynthDtype::Int4,
        }
    }

    /// The same model with fewer layers, experts and tokens.
    pub(super) fn cut(&self, options: &SynthOptions) -> Result<Self, EngineError> {
        let limit = |what: &str, value: usize, max: usize| {
            if (1..=max).contains(&value) {
                return Ok(());
            }
            let problem = format!("must be 1 to {max} for {}", self.name);
            Err(EngineError::Limit { what: what.to_owned(), value, problem })
        };
        let mut cut = Self {
            layers: options.layers.unwrap_or(self.layers),
            experts: options.experts.unwrap_or(self.experts),
            vocab: options.vocab.unwrap_or(self.vocab),
            ..self.clone()
        };
        limit("layers", cut.layers.into(), self.layers.into())?;
        limit("experts", cut.experts.into(), self.experts.into())?;
        limit("vocab", cut.vocab as usize, self.vocab as usize)?;
        cut.top_k = cut.top_k.min(cut.experts);
        if let SynthFamily::DeepseekV3(latent) | SynthFamily::KimiK3(latent, _) = &mut cut.family {
            // One layer at least has experts, and the groups that take part have enough of them.
            latent.dense_layers = latent.dense_layers.min(cut.layers - 1);
            let [groups, kept] = latent.groups;
            if !cut.experts.is_multiple_of(groups) {
                let problem = format!("must be a multiple of the {groups} groups of {}", cut.name);
                return Err(EngineError::config("experts", &cut.experts, problem));
            }
            cut.top_k = cut.top_k.min(cut.experts / groups * kept);
        }
        cut.check()?;
        Ok(cut)
    }

    /// Whether `layer` has routed experts.
    pub(super) fn is_moe(&self, layer: u16) -> bool {
        match self.family {
            SynthFamily::Qwen3Moe => true,
            SynthFamily::DeepseekV3(latent) | SynthFamily::KimiK3(latent, _) => {
                layer >= latent.dense_layers
            }
        }
    }

    /// Width of what a routed expert reads and writes.
    pub(super) fn expert_hidden(&self) -> u32 {
        match self.family {
            SynthFamily::KimiK3(_, k3) => k3.expert_hidden,
            _ => self.hidden,
        }
    }

    /// What stands before the language model's tensors, and before those under `model.`.
    pub(super) fn prefix(&self) -> &'static str {
        match self.family {
            SynthFamily::KimiK3(..) => "language_model.",
            _ => "",
        }
    }

    /// The block of experts, and the names of gate, up and down.
    pub(super) fn expert_names(&self) -> (&'static str, [&'static str; 3]) {
        match self.family {
            SynthFamily::KimiK3(..) => ("block_sparse_moe", ["w1", "w3", "w2"]),
            _ => ("mlp", ["gate_proj", "up_proj", "down_proj"]),
        }
    }

    /// Whether `layer` has latent attention among delta layers: every fourth, and the last.
    pub(super) fn is_latent(&self, layer: u16) -> bool {
        (layer + 1).is_multiple_of(4) || layer + 1 == self.layers
    }

    fn check(&self) -> Result<(), EngineError> {
        let sizes = [
            ("hidden", self.hidden),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("moe_intermediate", self.moe_intermediate),
            ("experts", self.experts.into()),
            ("top_k", self.top_k.into()),
            ("positions", self.positions),
        ];
        for (key, size) in sizes {
            if size == 0 || size > 1 << 24 {
                return Err(EngineError::config(key, &size, "must be 1 to 2^24"));
            }
        }
        if self.top_k > self.experts {
            return Err(EngineError::config("top_k", &self.top_k, "is more than the experts"));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(EngineError::config(
                "kv_heads",
                &self.kv_heads,
                "does not divide the heads",
            ));
        }
        Ok(())
    }
}

// From the published configs.
const DEEPSEEK_V3: LatentSizes = LatentSizes {
    q_rank: 1536,
    kv_rank: 512,
    nope: 128,
    rope: 64,
    value: 128,
    dense_layers: 3,
    shared: 1,
    groups: [8, 4],
    scale: 2.5,
    model_type: "deepseek_v3",
    yarn: [10_000.0, 40.0, 32.0],
    eps: 1e-6,
};
const KIMI_K2: LatentSizes = LatentSizes {
    dense_layers: 1,
    groups: [1, 1],
    scale: 2.827,
    model_type: "kimi_k2",
    yarn: [50_000.0, 64.0, 1.0],
    ..DEEPSEEK_V3
};
const KIMI_K3: LatentSizes =
    LatentSizes { shared: 2, scale: 1.0, model_type: "kimi_linear", eps: 1e-5, ..KIMI_K2 };

/// The shapes with latent attention.
fn latent_shape(name: &str) -> Option<SynthShape> {
    let small = |latent: LatentSizes| LatentSizes {
        q_rank: 48,
        kv_rank: 32,
        nope: 16,
        rope: 8,
        value: 24,
        ..latent
    };
    let k3 = K3Sizes { expert_hidden: 3584, delta_dim: 128, residual_block: 12 };
    let small_k3 = K3Sizes { expert_hidden: 64, delta_dim: 16, residual_block: 3 };
    let shape = |family, hidden, layers, heads, intermediate, moe_intermediate| SynthShape {
        name: name.to_owned(),
        family,
        hidden,
        layers,
        heads,
        kv_heads: heads,
        head_dim: 1,
        intermediate,
        moe_intermediate,
        experts: 256,
        top_k: 8,
        vocab: 163_840,
        positions: 163_840,
    };
    let small_of = |shape: SynthShape| SynthShape {
        experts: 16,
        top_k: 4,
        vocab: 512,
        positions: 2048,
        ..shape
    };
    let family = SynthFamily::DeepseekV3;
    Some(match name {
        "deepseek-v3" => {
            let shape = shape(family(DEEPSEEK_V3), 7168, 61, 128, 18_432, 2048);
            SynthShape { vocab: 129_280, ..shape }
        }
        "kimi-k2" => {
            let shape = shape(family(KIMI_K2), 7168, 61, 64, 18_432, 2048);
            SynthShape { experts: 384, positions: 262_144, ..shape }
        }
        "kimi-k3" => {
            let shape = shape(SynthFamily::KimiK3(KIMI_K3, k3), 7168, 93, 96, 33_792, 3072);
            SynthShape { experts: 896, top_k: 16, positions: 1 << 20, ..shape }
        }
        "tiny-deepseek-v3" => {
            let latent = LatentSizes { dense_layers: 1, groups: [4, 2], ..small(DEEPSEEK_V3) };
            small_of(shape(family(latent), 128, 4, 4, 256, 64))
        }
        "tiny-kimi-k3" => {
            let family = SynthFamily::KimiK3(small(KIMI_K3), small_k3);
            small_of(shape(family, 96, 10, 4, 160, 32))
        }
        _ => return None,
    })
}
