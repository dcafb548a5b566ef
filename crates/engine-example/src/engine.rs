//! A model that is open and ready: pool, tier, spine, decoder, tokenizer, threads.

use crate::config::ModelConfig;
use crate::error::EngineError;
use crate::experts::{Experts, PromptReads};
use crate::kernels::Isa;
use crate::meter::{Meter, Usage};
use crate::models::{Decoder, LogitRows, MoeCall};
use crate::pilot::{Pilot, Routers};
use crate::sampling::{Sampler, SamplingConfig};
use crate::spine::with_f32;
use crate::spinners::Spinners;
use crate::text::Text;
use crate::weights::{SharedBytes, SpineWeights, StoredTensor, WeightFormat};
use expert_tier::observe::SystemRoot;
use expert_tier::pool::CheckpointConfig;
use expert_tier::pool::gguf::Metadata;
use expert_tier::{Pool, Spine, SpinePlacement, Tier, TierConfig};
use pilot_prefetch::fit::Fit;
use rayon::{ThreadPool, ThreadPoolBuilder};
use router_trace::{Phase, Recorder, TraceHeader};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

/// How an [`Engine`] runs. Plain data, printed with every result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineOptions {
    /// How experts are served.
    pub tier: TierConfig,
    /// Where the dense part lives.
    pub spine: SpinePlacement,
    /// Compute threads; results do not depend on it.
    pub threads: usize,
    /// Prompt tokens a forward pass reads at once.
    pub prefill_chunk: usize,
    /// What becomes of the experts that a prompt reads; results do not depend on it.
    pub prompt_reads: PromptReads,
    /// Instruction set of the kernels; results do not depend on it.
    pub isa: Isa,
}

impl EngineOptions {
    /// The most compute threads.
    pub const MAX_THREADS: usize = 1024;

    fn check(&self) -> Result<(), EngineError> {
        let limit = |key: &str, value: usize, max: usize| {
            let problem = format!("must be 1 to {max}");
            if (1..=max).contains(&value) {
                Ok(())
            } else {
                Err(EngineError::Limit { what: key.to_owned(), value, problem })
            }
        };
        limit("threads", self.threads, Self::MAX_THREADS)?;
        limit("prefill chunk", self.prefill_chunk, 1 << 16)
    }
}

/// A model that is open.
#[derive(Debug)]
pub struct Engine {
    pool: Pool,
    spine: Spine,
    decoder: Decoder,
    experts: Experts,
    text: Option<Text>,
    threads: ThreadPool,
    root: SystemRoot,
    isa: Isa,
}

/// What to generate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GenerateOptions<'a> {
    /// Most tokens to produce.
    pub max_tokens: usize,
    /// How they are drawn.
    pub sampling: SamplingConfig,
    /// Ids that end the text; they are not part of it.
    pub stop_ids: &'a [u32],
}

/// Why generation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stop {
    /// A stop id was drawn.
    EndOfText,
    /// As many tokens as were asked for.
    MaxTokens,
    /// The model has no more positions.
    ContextFull,
}

/// A generated text and what it cost.
#[derive(Clone, Debug, Serialize)]
pub struct Generation {
    /// The tokens produced.
    pub token_ids: Vec<u32>,
    /// Why it ended.
    pub stop: Stop,
    /// Cost of reading the prompt, first token included.
    pub prefill: Usage,
    /// Cost of the tokens after the first.
    pub decode: Usage,
}

impl Engine {
    /// Open the checkpoint `dir`; `progress(done, total)` tells bytes of the spine read.
    ///
    /// # Errors
    /// A checkpoint that is broken, inconsistent or of a kind this engine does not decode.
    pub fn open(
        dir: &Path,
        options: &EngineOptions,
        progress: impl FnMut(u64, u64),
    ) -> Result<Self, EngineError> {
        options.check()?;
        let pool = Pool::open(dir)?;
        let checkpoint = decodable(&pool)?;
        let config = ModelConfig::of_family(checkpoint.family, &checkpoint.text)?;
        let format = WeightFormat::from_config(checkpoint)?;
        pool.check_head()?;
        let spine = Spine::load(&pool, options.spine, progress)?;
        let weights = SpineWeights::new(stored_tensors(&spine), format, options.isa);
        let (widths, activation) = (config.expert_widths(), config.activation);
        let mut decoder = Decoder::new(config, &weights)?;
        decoder.set_prefill_chunk(options.prefill_chunk);
        let tier = Tier::open(pool.clone(), options.tier)?;
        let text = text_of(&pool, dir)?;
        let threads = ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .thread_name(|index| format!("tier-compute-{index}"))
            .build()
            .map_err(|error| EngineError::Limit {
                what: "threads".to_owned(),
                value: options.threads,
                problem: error.to_string(),
            })?;
        let mut experts = Experts::new(tier, widths, format, options.isa);
        experts.set_activation(activation);
        experts.set_prompt_reads(options.prompt_reads);
        experts.set_spinners(Spinners::new(options.threads));
        let root = SystemRoot::default();
        Ok(Self { pool, spine, decoder, experts, text, threads, root, isa: options.isa })
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The tier that serves.
    #[must_use]
    pub fn tier(&self) -> &Tier {
        self.experts.tier()
    }

    /// The dense part.
    #[must_use]
    pub fn spine(&self) -> &Spine {
        &self.spine
    }

    /// The decoder.
    #[must_use]
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Tokenizer and chat template, if the checkpoint has them.
    #[must_use]
    pub fn text(&self) -> Option<&Text> {
        self.text.as_ref()
    }

    /// Serve with another tier from now on, opened afresh over the same pool.
    ///
    /// # Errors
    /// What [`Tier::open`] refuses.
    pub fn reopen_tier(&mut self, config: TierConfig) -> Result<(), EngineError> {
        self.experts.set_tier(Tier::open(self.pool.clone(), config)?);
        Ok(())
    }

    /// Record every route from now on.
    pub fn record_to(&mut self, recorder: Recorder) {
        self.experts.record_to(recorder);
    }

    /// Stop recording.
    pub fn take_recorder(&mut self) -> Option<Recorder> {
        self.experts.take_recorder()
    }

    /// The model's routers, for predictors and fits; with a fit where one is given.
    ///
    /// # Errors
    /// `fit-of-another-model` with what differs.
    pub fn routers(&self, fit: Option<Arc<Fit>>) -> Result<Routers, EngineError> {
        Routers::new(&self.decoder, self.isa, fit)
    }

    /// Let this predictor look ahead from now on, or none.
    pub fn set_pilot(&mut self, pilot: Option<Pilot>) {
        self.experts.set_pilot(pilot);
    }

    /// The predictor that looks ahead.
    #[must_use]
    pub fn pilot(&self) -> Option<&Pilot> {
        self.experts.pilot()
    }

    /// The header of a trace of this model.
    #[must_use]
    pub fn trace_header(&self, created_by: String) -> TraceHeader {
        let layout = self.pool.layout();
        let top_k = self.decoder.config().moe.num_experts_per_tok;
        let expert_bytes = layout.iter().next().map(|(_, expert)| expert.nominal_bytes());
        let name = self.pool.root().file_name().map(|name| name.to_string_lossy().into_owned());
        TraceHeader {
            model_name: name.unwrap_or_default(),
            shape: layout.shape(u16::try_from(top_k).unwrap_or(u16::MAX)),
            expert_bytes,
            created_by,
        }
    }

    /// Forget the sequence and continue `prompt`, calling `on_token` for each token as it comes.
    ///
    /// # Errors
    /// A prompt that does not fit the model, or a demand read that failed.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        options: GenerateOptions<'_>,
        on_token: &mut (dyn FnMut(u32) -> Result<(), EngineError> + Send),
    ) -> Result<Generation, EngineError> {
        let Self { decoder, experts, threads, root, .. } = self;
        // One entry for the whole text: entering the pool each step would wake it each step.
        threads.install(|| Run { decoder, experts, root }.generate(prompt, options, on_token))
    }

    /// Forget the sequence, read `tokens` and show each layer's call to `watch`, before its experts
    /// run: a layer after another for every chunk of the prompt.
    ///
    /// # Errors
    /// Tokens that do not fit the model, a demand read that failed, or what `watch` returns.
    pub fn watch(
        &mut self,
        tokens: &[u32],
        watch: &mut (dyn FnMut(&MoeCall<'_>) -> Result<(), EngineError> + Send),
    ) -> Result<(), EngineError> {
        let Self { decoder, experts, threads, .. } = self;
        threads.install(|| {
            decoder.reset();
            experts.set_phase(Phase::Prefill);
            decoder.forward(tokens, LogitRows::Last, &mut |call, out| {
                watch(call)?;
                experts.run(call, out)
            })?;
            Ok(())
        })
    }

    /// Mean negative log-likelihood of `tokens` after the first, in nats, read as one sequence.
    ///
    /// # Errors
    /// Tokens that do not fit the model, or a demand read that failed.
    pub fn negative_log_likelihood(&mut self, tokens: &[u32]) -> Result<f64, EngineError> {
        let Self { decoder, experts, threads, .. } = self;
        threads.install(|| {
            decoder.reset();
            experts.set_phase(Phase::Prefill);
            let inputs = &tokens[..tokens.len().saturating_sub(1)];
            let logits =
                decoder.forward(inputs, LogitRows::All, &mut |call, out| experts.run(call, out))?;
            let vocab = decoder.config().vocab_size;
            Ok(with_f32(&logits, |rows| {
                let each = rows.chunks_exact(vocab).zip(&tokens[1..]);
                let sum: f64 = each.map(|(row, &token)| surprise(row, token as usize)).sum();
                sum / inputs.len() as f64
            })?)
        })
    }
}

/// The parts of an engine that one generation uses.
struct Run<'a> {
    decoder: &'a mut Decoder,
    experts: &'a mut Experts,
    root: &'a SystemRoot,
}

impl Run<'_> {
    fn generate(
        &mut self,
        prompt: &[u32],
        options: GenerateOptions<'_>,
        on_token: &mut (dyn FnMut(u32) -> Result<(), EngineError> + Send),
    ) -> Result<Generation, EngineError> {
        let mut sampler = Sampler::new(options.sampling)?;
        let mut seen = prompt.to_vec();
        self.decoder.reset();
        self.experts.set_phase(Phase::Prefill);
        let meter = Meter::start(self.experts.tier(), self.root);
        let mut next = self.step(prompt, &mut sampler, &seen)?;
        let prefill = meter.read(self.experts.tier());
        self.experts.set_phase(Phase::Decode);
        let meter = Meter::start(self.experts.tier(), self.root);
        let stop = loop {
            if options.stop_ids.contains(&next) {
                break Stop::EndOfText;
            }
            if seen.len() - prompt.len() == options.max_tokens {
                break Stop::MaxTokens;
            }
            seen.push(next);
            on_token(next)?;
            if seen.len() - prompt.len() == options.max_tokens {
                break Stop::MaxTokens;
            }
            if self.decoder.position() == self.decoder.config().max_position_embeddings {
                break Stop::ContextFull;
            }
            next = self.step(&[next], &mut sampler, &seen)?;
        };
        let decode = meter.read(self.experts.tier());
        Ok(Generation { token_ids: seen.split_off(prompt.len()), stop, prefill, decode })
    }

    fn step(
        &mut self,
        tokens: &[u32],
        sampler: &mut Sampler,
        seen: &[u32],
    ) -> Result<u32, EngineError> {
        let Self { decoder, experts, .. } = self;
        let logits =
            decoder.forward(tokens, LogitRows::Last, &mut |call, out| experts.run(call, out))?;
        with_f32(&logits, |logits| sampler.sample(logits, seen))?
    }
}

/// `-ln softmax(logits)[token]`, summed in f64.
fn surprise(logits: &[f32], token: usize) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    sum.ln() - f64::from(logits[token] - max)
}

/// The model's tokenizer, where there is one.
fn text_of(pool: &Pool, dir: &Path) -> Result<Option<Text>, EngineError> {
    if let Some(metadata) = pool.gguf() {
        // Its arrays were not kept when the pool was opened.
        return Text::from_gguf(&Metadata::read(metadata.path())?);
    }
    let folder = if dir.is_dir() { dir } else { dir.parent().unwrap_or(dir) };
    Text::is_in(folder).then(|| Text::open(folder)).transpose()
}

/// The pool's config, if this engine has a decoder for its family.
fn decodable(pool: &Pool) -> Result<&CheckpointConfig, EngineError> {
    let root = pool.root().display();
    let config = pool.config().ok_or_else(|| EngineError::MissingConfig {
        path: pool.root().to_owned(),
        reason: "there is no config.json beside the weights".to_owned(),
    })?;
    if pool.layout().total_experts() == 0 {
        let problem = format!("{root} has no routed experts");
        return Err(EngineError::config("num_experts", &0, problem));
    }
    Ok(config)
}

fn stored_tensors(spine: &Spine) -> std::collections::BTreeMap<String, StoredTensor> {
    let names = spine.names().filter_map(|name| {
        let (view, bytes) = (spine.get(name)?, spine.bytes_of(name)?);
        let shape = view.shape.iter().map(|&dim| dim as usize).collect();
        let tensor = StoredTensor { dtype: view.dtype, shape, bytes: SharedBytes::new(bytes) };
        Some((name.to_owned(), tensor))
    });
    names.collect()
}
