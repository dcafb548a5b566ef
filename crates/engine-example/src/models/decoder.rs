use super::LayerGate;
use super::layer::{Layer, LayerCache, Mlp};
use super::residual::{ResidualMix, Stream};
use crate::config::{AttentionConfig, ModelConfig};
use crate::error::EngineError;
use crate::linear::{Linear, StoredMatrix};
use crate::router::{GroupScratch, Routed};
use crate::spine::{RmsNorm, Rotary, with_f32};
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

/// Adds to its second argument, of the shape of [`MoeCall::x`] and zero at first, the weighted sum of the
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
    /// `[tokens, width of what an expert reads]`: the experts' input.
    pub x: &'a [f32],
    /// `[tokens, hidden]`: what the layer's router read of the residual stream, before its norm.
    pub hidden: &'a [f32],
}

/// A decoder of any family: the dense part and the cache of one sequence.
///
/// The experts are not in here. [`Decoder::forward`] hands each layer's routes to its
/// caller, who adds the experts' outputs.
#[derive(Debug)]
pub struct Decoder {
    config: ModelConfig,
    embedding: StoredMatrix,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    /// How the head reads the stream, where there are several.
    head_mix: Option<ResidualMix>,
    rotary: Option<Rotary>,
    caches: Vec<LayerCache>,
    scratch: GroupScratch,
    position: usize,
    prefill_chunk: usize,
}

impl Decoder {
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
        let layers: Vec<Layer> = (0..config.num_hidden_layers)
            .map(|layer| Layer::new(&config, weights, layer))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            norm: norm("norm.weight")?,
            rotary: rotary(&config.attention),
            head_mix: match config.residual_block {
                Some(_) => {
                    let (width, eps) = (config.hidden_size, config.rms_norm_eps);
                    Some(ResidualMix::new(weights, "output_attn_res", width, eps)?)
                }
                None => None,
            },
            caches: layers.iter().map(Layer::new_cache).collect(),
            scratch: GroupScratch::default(),
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

    /// Bytes of the cache.
    #[must_use]
    pub fn cache_bytes(&self) -> usize {
        self.caches.iter().map(LayerCache::bytes).sum()
    }

    /// Bytes that one more token needs in the cache, which grows by whole blocks of
    /// [`BLOCK_POSITIONS`](crate::spine::BLOCK_POSITIONS) tokens.
    #[must_use]
    pub fn cache_bytes_per_token(&self) -> usize {
        self.caches.iter().map(LayerCache::bytes_per_token).sum()
    }

    /// The router of every layer that has one, ascending; they share the decoder's weights.
    #[must_use]
    pub fn gates(&self) -> Vec<LayerGate> {
        let layers = (0..).zip(&self.layers);
        layers.filter_map(|(number, layer)| layer.gate(number)).collect()
    }

    /// How many tokens of a long input go through the layers together; at least 1.
    pub fn set_prefill_chunk(&mut self, tokens: usize) {
        self.prefill_chunk = tokens.max(1);
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        self.position = 0;
        self.caches.iter_mut().for_each(LayerCache::reset);
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
        // Nothing, unless the call before was left by a panic.
        self.caches.iter_mut().for_each(|cache| cache.settle(false));
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
        self.caches.iter_mut().for_each(|cache| cache.settle(result.is_ok()));
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
        let rotation = self.rotary.as_ref().map(|rotary| rotary.at(start, tokens.len()));
        let mut stream = Stream::new(self.embed(tokens)?, self.config.residual_block);
        let Self { layers, caches, scratch, head_mix, .. } = self;
        for ((number, layer), cache) in (0..).zip(&*layers).zip(caches) {
            let h = stream.read(layer.attention_mix())?;
            stream.begin_layer(number);
            stream.add(layer.attend(&h, rotation.as_ref(), start, cache)?)?;
            let h = stream.read(layer.mlp_mix())?;
            let x = layer.mlp_input(&h)?;
            stream.add(match layer.mlp() {
                Mlp::Dense(mlp) => mlp.forward(&x)?,
                Mlp::Routed(block) => {
                    let routes = block.route(number, &x, scratch)?;
                    let input = block.expert_input(&x)?;
                    let mut out = vec![0.0; input.elem_count()];
                    with_f32(&input, |x| {
                        with_f32(&h, |hidden| {
                            let (layer, position, routes) = (number, start, &routes);
                            experts(&MoeCall { layer, position, routes, x, hidden }, &mut out)
                        })
                    })???;
                    block.output(&x, out)?
                }
            })?;
        }
        let h = stream.read(head_mix.as_ref())?;
        self.position += tokens.len();
        Ok(h)
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

fn rotary(attention: &AttentionConfig) -> Option<Rotary> {
    match attention {
        AttentionConfig::Grouped { shape, rope, .. } => Some(Rotary::new(rope, shape.head_dim)),
        AttentionConfig::Latent(latent) | AttentionConfig::Hybrid { latent, .. } => {
            latent.rope.as_ref().map(|rope| Rotary::new(rope, latent.shape.rope))
        }
    }
}
