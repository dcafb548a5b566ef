//! Qwen3-MoE: grouped-query attention with normed heads, softmax router, no shared expert.

use super::LayerGate;
use crate::config::ModelConfig;
use crate::error::EngineError;
use crate::linear::{Linear, StoredMatrix};
use crate::router::{Routed, SoftmaxTopK};
use crate::spine::{
    AttentionShape, DenseMlp, GroupedQueryAttention, KvCache, RmsNorm, Rotary, with_f32,
};
use crate::weights::SpineWeights;
use candle_core::{Device, Tensor};

/// Tokens of a prompt that go through the layers together.
const DEFAULT_PREFILL_CHUNK: usize = 256;

/// Which tokens of a pass get logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogitRows {
    /// The last one: what generation needs.
    Last,
    /// All of them: perplexity and tests.
    All,
}

/// Adds to its second argument, `[tokens, hidden]` and zero at first, the weighted sum of the
/// outputs of the experts that each token's route names. Called once a MoE layer and chunk.
pub type RunExperts<'a> = dyn FnMut(&MoeCall<'_>, &mut [f32]) -> Result<(), EngineError> + 'a;

/// What the experts of one layer are asked to do for the tokens of a pass.
#[derive(Debug)]
pub struct MoeCall<'a> {
    /// Layer, numbered as in the checkpoint.
    pub layer: u16,
    /// Position of the pass's first token in the sequence.
    pub position: usize,
    /// One route a token.
    pub routes: &'a [Routed],
    /// `[tokens, hidden]`: the experts' input.
    pub x: &'a [f32],
    /// `[tokens, hidden]`: the residual stream that the layer's router read, before its norm.
    pub hidden: &'a [f32],
}

/// A Qwen3-MoE decoder: the dense part and the key-value cache of one sequence.
///
/// The experts are not in here. [`Qwen3Moe::forward`] hands each layer's routes to its
/// caller, who adds the experts' outputs.
#[derive(Debug)]
pub struct Qwen3Moe {
    config: ModelConfig,
    embedding: StoredMatrix,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    rotary: Rotary,
    caches: Vec<KvCache>,
    position: usize,
    prefill_chunk: usize,
}

#[derive(Debug)]
struct Layer {
    input_norm: RmsNorm,
    attention: GroupedQueryAttention,
    post_attention_norm: RmsNorm,
    mlp: Mlp,
}

#[derive(Debug)]
enum Mlp {
    Dense(DenseMlp),
    Routed { gate: Linear, router: SoftmaxTopK },
}

impl Qwen3Moe {
    /// Builds the decoder from the spine's weights, which stay in their stored type.
    ///
    /// # Errors
    /// A weight that is missing, has another shape than the config asks for, or a type
    /// that no kernel reads.
    pub fn new(config: ModelConfig, weights: &SpineWeights) -> Result<Self, EngineError> {
        let norm = |name: &str| -> Result<RmsNorm, EngineError> {
            Ok(RmsNorm::new(weights.vector(name, config.hidden_size)?, config.rms_norm_eps))
        };
        let embedding = weights.matrix("embed_tokens", config.vocab_size, config.hidden_size)?;
        let head = if config.tie_word_embeddings {
            Linear::new(embedding.clone(), weights.workspace())
        } else if weights.get("lm_head.weight").is_none()
            && weights.get("lm_head.weight_packed").is_none()
        {
            return Err(EngineError::MissingWeight {
                name: "lm_head.weight".to_owned(),
                reason: "tie_word_embeddings = false".to_owned(),
            });
        } else {
            weights.linear("lm_head", config.vocab_size, config.hidden_size)?
        };
        let layers: Vec<Layer> = (0..usize::from(config.num_hidden_layers))
            .map(|layer| Layer::new(&config, weights, layer))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            norm: norm("norm.weight")?,
            rotary: Rotary::new(&config.rope, config.head_dim),
            caches: layers.iter().map(|layer| layer.attention.new_cache()).collect(),
            position: 0,
            prefill_chunk: DEFAULT_PREFILL_CHUNK,
            embedding,
            layers,
            head,
            config,
        })
    }

    /// The config it was built from.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Tokens seen since the last reset: the position of the next one.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Bytes of the key-value cache.
    #[must_use]
    pub fn cache_bytes(&self) -> usize {
        self.caches.iter().map(KvCache::bytes).sum()
    }

    /// The router of every layer that has one, ascending; they share the decoder's weights.
    #[must_use]
    pub fn gates(&self) -> Vec<LayerGate> {
        let gates = self.layers.iter().enumerate().filter_map(|(index, layer)| match &layer.mlp {
            Mlp::Dense(_) => None,
            Mlp::Routed { gate, .. } => {
                let norm = layer.post_attention_norm.clone();
                Some(LayerGate::new(layer_number(index), norm, gate.clone()))
            }
        });
        gates.collect()
    }

    /// How many tokens of a long input go through the layers together; at least 1.
    pub fn set_prefill_chunk(&mut self, tokens: usize) {
        self.prefill_chunk = tokens.max(1);
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        self.position = 0;
        self.caches.iter_mut().for_each(KvCache::reset);
    }

    /// Appends `tokens` to the sequence and returns logits `[1 or tokens, vocab_size]`.
    ///
    /// # Errors
    /// `token-out-of-range`, `limit`, `router-invalid`, and whatever `experts` returns.
    /// After an error the sequence is as it was before the call.
    pub fn forward(
        &mut self,
        tokens: &[u32],
        rows: LogitRows,
        experts: &mut RunExperts<'_>,
    ) -> Result<Tensor, EngineError> {
        let start = self.position;
        let result = self.check_tokens(tokens).and_then(|()| {
            let mut logits = Vec::new();
            let chunks = tokens.chunks(self.prefill_chunk).count();
            for (index, chunk) in tokens.chunks(self.prefill_chunk).enumerate() {
                let hidden = self.forward_chunk(chunk, experts)?;
                if rows == LogitRows::All {
                    logits.push(self.logits(&hidden)?);
                } else if index + 1 == chunks {
                    logits.push(self.logits(&hidden.narrow(0, chunk.len() - 1, 1)?)?);
                }
            }
            match logits.as_slice() {
                [one] => Ok(one.clone()),
                several => Ok(Tensor::cat(several, 0)?),
            }
        });
        if result.is_err() {
            self.position = start;
        }
        result
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), EngineError> {
        let (used, limit) = (self.position, self.config.max_position_embeddings);
        let wanted = used + tokens.len();
        if wanted > limit {
            return Err(EngineError::ContextLimit { wanted, used, limit });
        }
        let vocab_size = self.config.vocab_size;
        for (position, &id) in (used..).zip(tokens) {
            if id as usize >= vocab_size {
                return Err(EngineError::TokenOutOfRange { id, position, vocab_size });
            }
        }
        if tokens.is_empty() {
            return Err(EngineError::config("tokens of a pass", &0, "at least one is needed"));
        }
        Ok(())
    }

    /// Residual stream `[tokens, hidden]` after the last layer.
    fn forward_chunk(
        &mut self,
        tokens: &[u32],
        experts: &mut RunExperts<'_>,
    ) -> Result<Tensor, EngineError> {
        let start = self.position;
        let rotation = self.rotary.at(start, tokens.len());
        let mut h = self.embed(tokens)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let x = layer.input_norm.forward(&h)?;
            let cache = &mut self.caches[index];
            h = (h + layer.attention.forward(&x, &rotation, start, cache)?)?;
            let x = layer.post_attention_norm.forward(&h)?;
            let y = match &layer.mlp {
                Mlp::Dense(mlp) => mlp.forward(&x)?,
                Mlp::Routed { gate, router } => {
                    let routes = route(layer_number(index), &gate.forward(&x)?, router)?;
                    self.run_experts(index, &routes, &x, &h, experts)?
                }
            };
            h = (h + y)?;
        }
        self.position += tokens.len();
        Ok(h)
    }

    fn run_experts(
        &self,
        index: usize,
        routes: &[Routed],
        x: &Tensor,
        h: &Tensor,
        experts: &mut RunExperts<'_>,
    ) -> Result<Tensor, EngineError> {
        let mut out = vec![0.0; x.elem_count()];
        with_f32(x, |x| {
            with_f32(h, |hidden| {
                let (layer, position) = (layer_number(index), self.position);
                experts(&MoeCall { layer, position, routes, x, hidden }, &mut out)
            })
        })???;
        Ok(Tensor::from_vec(out, x.shape(), &Device::Cpu)?)
    }

    /// The stored rows of `tokens` in f32, `[tokens, hidden]`.
    fn embed(&self, tokens: &[u32]) -> Result<Tensor, EngineError> {
        let width = self.config.hidden_size;
        let mut rows = vec![0.0; tokens.len() * width];
        let table = self.embedding.view();
        for (&token, row) in tokens.iter().zip(rows.chunks_exact_mut(width)) {
            table.row_to_f32(token as usize, row);
        }
        Ok(Tensor::from_vec(rows, (tokens.len(), width), &Device::Cpu)?)
    }

    fn logits(&self, hidden: &Tensor) -> Result<Tensor, EngineError> {
        Ok(self.head.forward(&self.norm.forward(hidden)?)?)
    }
}

impl Layer {
    fn new(
        config: &ModelConfig,
        weights: &SpineWeights,
        layer: usize,
    ) -> Result<Self, EngineError> {
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        let norm = |name: &str| -> Result<RmsNorm, EngineError> {
            let name = format!("layers.{layer}.{name}.weight");
            Ok(RmsNorm::new(weights.vector(&name, hidden)?, eps))
        };
        let shape = AttentionShape {
            hidden,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
        };
        let attention = format!("layers.{layer}.self_attn");
        let mlp = format!("layers.{layer}.mlp");
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            attention: GroupedQueryAttention::new(
                weights,
                &attention,
                shape,
                config.attention_bias,
                eps,
            )?,
            post_attention_norm: norm("post_attention_layernorm")?,
            mlp: if config.is_moe_layer(layer) {
                let (experts, top_k) = (config.num_experts, config.num_experts_per_tok);
                Mlp::Routed {
                    gate: weights.linear(&format!("{mlp}.gate"), experts, hidden)?,
                    router: SoftmaxTopK::new(experts, top_k, config.norm_topk_prob)?,
                }
            } else {
                Mlp::Dense(DenseMlp::new(weights, &mlp, hidden, config.intermediate_size)?)
            },
        })
    }
}

/// The config limits layers to what `u16` holds.
fn layer_number(index: usize) -> u16 {
    u16::try_from(index).expect("layers are numbered by u16")
}

/// Routes of every token from router logits `[tokens, experts]`.
fn route(layer: u16, logits: &Tensor, router: &SoftmaxTopK) -> Result<Vec<Routed>, EngineError> {
    let (_, experts) = logits.dims2()?;
    with_f32(logits, |logits| {
        logits.chunks_exact(experts).map(|logits| router.route(layer, logits)).collect()
    })?
}
