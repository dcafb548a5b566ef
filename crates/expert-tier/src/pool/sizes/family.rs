use super::super::config::{CheckpointConfig, Family, Reader};
use super::attention::{Attention, Delta, Latent, dim, opt_dim};
use super::stored::{Stored, Tally};
use super::{KvSizes, ModelSizes, SizeSource};
use crate::error::TierError;
use router_trace::ModelShape;

/// Every tensor of a checkpoint, as its family lays it out.
///
/// Layouts: `qwen3_moe` (transformers), DeepSeek-V3 and Kimi K2 (README_WEIGHTS.md of the
/// DeepSeek-V3 repository), Kimi Linear and Kimi K3 (their published indexes).
pub(super) struct Inventory<'a> {
    config: &'a CheckpointConfig,
    stored: Stored,
    hidden: u64,
    layers: u16,
    expert_layers: &'a [u16],
    n_experts: u64,
    vocab: u64,
}

impl<'a> Inventory<'a> {
    pub(super) fn new(config: &'a CheckpointConfig) -> Result<Self, TierError> {
        let text = config.reader();
        match config.family {
            Family::Qwen3Moe
            | Family::DeepseekV3
            | Family::KimiK2
            | Family::KimiLinear
            | Family::KimiK3 => {}
            _ => {
                return Err(TierError::Unsupported {
                    path: config.path.clone(),
                    thing: format!("model_type {:?}", config.model_type),
                    reason: "sizes without the weights are known for qwen3_moe, deepseek_v3, \
                             kimi_k2, kimi_linear and kimi_k3"
                        .to_owned(),
                });
            }
        }
        let needed = |key: &str| text.wrong(key, "a number (it is needed)");
        let expert_layers = config.expert_layers.as_deref();
        let expert_layers = expert_layers.ok_or_else(|| needed("first_k_dense_replace"))?;
        let inventory = Self {
            stored: Stored::of(config)?,
            hidden: dim(&text, "hidden_size")?,
            layers: config.num_hidden_layers.ok_or_else(|| needed("num_hidden_layers"))?,
            expert_layers,
            n_experts: config.n_experts.ok_or_else(|| needed("num_experts"))?.into(),
            vocab: dim(&text, "vocab_size")?,
            config,
        };
        if expert_layers.is_empty() || inventory.n_experts == 0 {
            let reason = "no layer has routed experts: there is nothing to plan".to_owned();
            return Err(TierError::NotAModel { path: config.path.clone(), reason });
        }
        Ok(inventory)
    }

    /// What the attention of all layers keeps of one sequence.
    pub(super) fn kv(&self) -> Result<KvSizes, TierError> {
        let mut sum = KvSizes::default();
        for layer in 0..self.layers {
            let kept = self.attention(layer)?.kv();
            sum.elements_per_token += kept.elements_per_token;
            sum.fixed_bytes += kept.fixed_bytes;
        }
        Ok(sum)
    }

    pub(super) fn sizes(&self) -> Result<ModelSizes, TierError> {
        let tied = self.config.tie_word_embeddings.is_some_and(|setting| setting.value);
        let embedding = self.stored.plain(self.vocab * self.hidden);
        let mut spine = embedding;
        spine += self.stored.plain(self.hidden); // the last norm
        if !tied {
            spine += self.stored.linear("lm_head", self.vocab, self.hidden);
        }
        if self.is_k3() {
            spine += self.stored.plain(2 * self.hidden); // residual mix of the output
        }
        for layer in 0..self.layers {
            spine += self.dense_part(layer)?;
        }
        let experts: Vec<Tally> =
            self.expert_layers.iter().map(|&layer| self.expert(layer)).collect::<Result<_, _>>()?;
        let all: Tally = experts.iter().copied().sum();
        let (n_experts, top_k) = (u128::from(self.n_experts), self.config.require_top_k()?);
        let largest = experts.iter().map(|expert| expert.data).max().unwrap_or(0);
        let beyond = self.beyond()?;
        let whole = |what: &str, bytes: u128| {
            u64::try_from(bytes).map_err(|_| TierError::Limit {
                path: self.config.path.clone(),
                what: what.to_owned(),
                value: u64::MAX,
                most: u64::MAX,
            })
        };
        Ok(ModelSizes {
            source: SizeSource::Config,
            model_type: self.config.model_type.clone(),
            shape: ModelShape {
                moe_layers: self.expert_layers.to_vec(),
                n_experts: self.config.n_experts.unwrap_or(0),
                top_k,
            },
            expert_bytes: whole("expert bytes", largest)?,
            pool_bytes: whole("pool bytes", all.data * n_experts)?,
            token_bytes: whole("bytes of a token's experts", all.data * u128::from(top_k))?,
            spine_bytes: whole("spine bytes", spine.data + spine.shapes)?,
            spine_token_bytes: whole(
                "spine bytes a token",
                spine.data + spine.shapes - if tied { 0 } else { embedding.data },
            )?,
            beyond_bytes: whole("bytes of further layers", beyond.data + beyond.shapes)?,
            shape_tensor_bytes: whole("bytes of stored shapes", all.shapes * n_experts)?,
            kv: Some(self.kv()?),
        })
    }

    fn is_k3(&self) -> bool {
        self.config.family == Family::KimiK3
    }

    /// What the module of the experts is called.
    fn moe_name(&self) -> &'static str {
        match self.config.family {
            Family::KimiLinear | Family::KimiK3 => "block_sparse_moe",
            _ => "mlp",
        }
    }

    fn attention(&self, layer: u16) -> Result<Attention, TierError> {
        let text = self.config.reader();
        match self.config.family {
            Family::KimiLinear | Family::KimiK3 => {
                let linear = text.object("linear_attn_config")?;
                let linear = linear.ok_or_else(|| text.wrong("linear_attn_config", "an object"))?;
                // Layers are numbered from 1 there.
                if linear.layer_list("full_attn_layers")?.contains(&(layer + 1)) {
                    return Latent::read(&text).map(Attention::Latent);
                }
                Delta::read(&linear, self.is_k3()).map(Attention::Delta)
            }
            Family::DeepseekV3 | Family::KimiK2 => Latent::read(&text).map(Attention::Latent),
            _ => {
                let heads = dim(&text, "num_attention_heads")?;
                let head_dim = match opt_dim(&text, "head_dim")? {
                    Some(head_dim) => head_dim,
                    None => self.hidden / heads,
                };
                let kv_heads = opt_dim(&text, "num_key_value_heads")?.unwrap_or(heads);
                let bias = text.bool("attention_bias")?.unwrap_or(false);
                Ok(Attention::Grouped { heads, kv_heads, head_dim, bias })
            }
        }
    }

    /// A layer without its routed experts.
    fn dense_part(&self, layer: u16) -> Result<Tally, TierError> {
        let name = format!("model.layers.{layer}");
        let attention = self.attention(layer)?;
        let mut sum = attention.tally(&self.stored, &format!("{name}.self_attn"), self.hidden);
        sum += self.stored.plain(2 * self.hidden); // norms before attention and after
        if self.is_k3() {
            sum += self.stored.plain(4 * self.hidden); // residual mixes: norm and projection
        }
        if self.expert_layers.contains(&layer) || layer >= self.layers {
            sum += self.router_and_shared(&name)?;
        } else {
            let wide = dim(&self.config.reader(), "intermediate_size")?;
            sum += self.mlp(&format!("{name}.mlp"), wide);
        }
        Ok(sum)
    }

    fn mlp(&self, name: &str, wide: u64) -> Tally {
        let mut sum = self.stored.linear(&format!("{name}.gate_proj"), wide, self.hidden);
        sum += self.stored.linear(&format!("{name}.up_proj"), wide, self.hidden);
        sum += self.stored.linear(&format!("{name}.down_proj"), self.hidden, wide);
        sum
    }

    fn router_and_shared(&self, name: &str) -> Result<Tally, TierError> {
        let text = self.config.reader();
        let moe = format!("{name}.{}", self.moe_name());
        let mut sum = self.stored.plain(self.n_experts * self.hidden);
        if self.config.family == Family::Qwen3Moe {
            return Ok(sum);
        }
        sum += self.stored.f32(self.n_experts); // correction of the choice
        let shared = match opt_shared(&text, "n_shared_experts")? {
            Some(shared) => shared,
            None => opt_shared(&text, "num_shared_experts")?.unwrap_or(0),
        };
        if shared > 0 {
            let wide = shared * dim(&text, "moe_intermediate_size")?;
            sum += self.mlp(&format!("{moe}.shared_experts"), wide);
        }
        if let Some(latent) = opt_dim(&text, "routed_expert_hidden_size")? {
            let linear =
                |part: &str, rows, cols| self.stored.linear(&format!("{moe}.{part}"), rows, cols);
            sum += linear("routed_expert_down_proj", latent, self.hidden);
            sum += linear("routed_expert_up_proj", self.hidden, latent);
            sum += self.stored.plain(latent); // its norm
        }
        Ok(sum)
    }

    /// One routed expert of `layer`; all of a layer are alike.
    fn expert(&self, layer: u16) -> Result<Tally, TierError> {
        let text = self.config.reader();
        let wide = dim(&text, "moe_intermediate_size")?;
        let narrow = opt_dim(&text, "routed_expert_hidden_size")?.unwrap_or(self.hidden);
        let name = format!("model.layers.{layer}.{}.experts.0", self.moe_name());
        let parts = match self.moe_name() {
            "mlp" => ["gate_proj", "up_proj", "down_proj"],
            _ => ["w1", "w3", "w2"],
        };
        let mut sum = self.stored.linear(&format!("{name}.{}", parts[0]), wide, narrow);
        sum += self.stored.linear(&format!("{name}.{}", parts[1]), wide, narrow);
        sum += self.stored.linear(&format!("{name}.{}", parts[2]), narrow, wide);
        Ok(sum)
    }

    /// Layers behind the last one: a whole layer with experts, its own embedding and head, two
    /// norms of its inputs and the projection that joins them.
    fn beyond(&self) -> Result<Tally, TierError> {
        let mut sum = Tally::default();
        for layer in (self.layers..).take(self.config.num_nextn_predict_layers.into()) {
            let expert = self.expert(layer)?;
            let n_experts = u128::from(self.n_experts);
            sum += self.dense_part(layer)?;
            sum += Tally { data: expert.data * n_experts, shapes: expert.shapes * n_experts };
            sum += self.stored.plain(2 * self.vocab * self.hidden);
            sum += self.stored.plain(2 * self.hidden * self.hidden);
            sum += self.stored.plain(3 * self.hidden);
        }
        Ok(sum)
    }
}

/// A count of shared experts, which may be none.
fn opt_shared(reader: &Reader<'_>, key: &str) -> Result<Option<u64>, TierError> {
    reader.number(key, 1024)
}
