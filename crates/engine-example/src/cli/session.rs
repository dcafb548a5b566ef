//! From command-line words to an open engine and a prompt.

use super::args::{ModelArgs, PromptArgs};
use super::{bundled, progress};
use anyhow::{Context, Result, bail};
use engine_example::kernels::Isa;
use engine_example::sampling::SamplingConfig;
use engine_example::text::Message;
use engine_example::{Engine, EngineError, EngineOptions, PromptReads};
use expert_tier::pool::SettingSource;
use expert_tier::{Admission, Notice, Pool, TierConfig};
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// An open engine and what it was opened with.
pub(crate) struct Session {
    pub(crate) engine: Engine,
    pub(crate) dir: PathBuf,
    pub(crate) options: EngineOptions,
}

/// The settings that a report prints with its numbers.
#[derive(Debug, Serialize)]
pub(crate) struct Settings {
    pub(crate) model: PathBuf,
    pub(crate) threads: usize,
    pub(crate) isa: &'static str,
    pub(crate) tier: TierConfig,
    pub(crate) fill_method: expert_tier::FillMethod,
    pub(crate) read_channel: String,
    pub(crate) probe: Option<expert_tier::ProbeKind>,
    pub(crate) huge_folios: bool,
    pub(crate) spine: expert_tier::SpinePlacement,
    pub(crate) spine_bytes: usize,
    pub(crate) prefill_chunk: usize,
    pub(crate) prompt_reads: PromptReads,
}

impl Session {
    pub(crate) fn open(args: &ModelArgs, admission: Admission) -> Result<Self> {
        let dir = match &args.model {
            Some(dir) => dir.clone(),
            None => bundled::model_dir()?,
        };
        let isa = match &args.isa {
            Some(name) => name.parse::<Isa>()?,
            None => Isa::detect(),
        };
        let options = EngineOptions {
            tier: TierConfig {
                admission,
                fill_threads: args.fill_threads,
                fill_method: args.fill,
                huge_folios: !args.no_huge_folios,
                ..TierConfig::default()
            },
            spine: args.spine,
            threads: args.threads.unwrap_or_else(cpus),
            prefill_chunk: args.prefill_chunk,
            prompt_reads: args.prompt_reads,
            isa,
        };
        let bar = progress::bytes_bar(0, "reading the spine");
        let engine = Engine::open(&dir, &options, |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        })?;
        bar.finish_and_clear();
        print_warnings(engine.pool().notices());
        print_router_default(engine.pool());
        print_warnings(engine.tier().notices());
        if args.prompt_reads == PromptReads::Pass
            && let Some(reason) = engine.tier().passing_unavailable()
        {
            eprintln!("warning: what a prompt reads stays in the page cache: {reason}");
        }
        Ok(Self { engine, dir, options })
    }

    pub(crate) fn settings(&self) -> Settings {
        let tier = self.engine.tier();
        Settings {
            model: self.dir.clone(),
            threads: self.options.threads,
            isa: self.options.isa.name(),
            tier: *tier.config(),
            fill_method: tier.fill_method(),
            read_channel: tier.read_channel(),
            probe: tier.probe(),
            huge_folios: tier.huge_folios(),
            spine: self.options.spine,
            spine_bytes: self.engine.spine().bytes(),
            prefill_chunk: self.options.prefill_chunk,
            prompt_reads: self.options.prompt_reads,
        }
    }

    /// The prompt's token ids, and its text where it is one.
    pub(crate) fn prompt(&self, args: &PromptArgs) -> Result<(Vec<u32>, Option<String>)> {
        if let Some(ids) = &args.ids {
            if ids.is_empty() {
                bail!("--ids is empty: at least one token is needed");
            }
            return Ok((ids.clone(), None));
        }
        let text = self.engine.text().with_context(|| {
            format!(
                "{} has no tokenizer.json or tiktoken.model: give the prompt as --ids",
                self.dir.display()
            )
        })?;
        let prompt = args.prompt.as_deref().unwrap_or(bundled::DEFAULT_PROMPT);
        let prompt = if args.chat {
            let chat = text.chat().with_context(|| {
                format!("{} has no chat template: leave out --chat", self.dir.display())
            })?;
            chat.render(&[Message::new("user", prompt)], true)?
        } else {
            prompt.to_owned()
        };
        let ids = text.encode(&prompt)?;
        if ids.is_empty() {
            bail!("the prompt is empty: at least one token is needed");
        }
        Ok((ids, Some(prompt)))
    }

    /// How tokens are drawn: the model's own settings, overridden by the command line.
    pub(crate) fn sampling(&self, args: &PromptArgs) -> Result<SamplingConfig> {
        if args.greedy {
            return Ok(SamplingConfig::GREEDY);
        }
        let mut config = SamplingConfig::from_generation_config(&generation_config(&self.dir)?)?;
        if let Some(temperature) = args.temperature {
            config.temperature = temperature.into();
        }
        if let Some(top_k) = args.top_k {
            config.top_k = top_k;
        }
        if let Some(top_p) = args.top_p {
            config.top_p = top_p.into();
        }
        config.seed = args.seed;
        Ok(config)
    }

    pub(crate) fn stop_ids(&self, args: &PromptArgs) -> Vec<u32> {
        match self.engine.text() {
            Some(text) if !args.ignore_eos => text.stop_ids().to_vec(),
            _ => Vec::new(),
        }
    }
}

/// Warnings go to standard error, one line each; the rest is for `inspect`.
pub(crate) fn print_warnings(notices: &[Notice]) {
    for notice in notices.iter().filter(|notice| notice.warning) {
        eprintln!("warning: {notice}");
    }
}

/// A router setting that nobody wrote down is used, but not silently.
fn print_router_default(pool: &Pool) {
    let Some(config) = pool.config() else { return };
    if let Some(setting) = config.norm_topk_prob
        && setting.source == SettingSource::FamilyDefault
    {
        let (value, family) = (setting.value, &config.model_type);
        eprintln!("note: norm_topk_prob is absent: {value}, the default of {family}");
    }
}

pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn generation_config(dir: &Path) -> Result<Map<String, Value>> {
    let path = dir.join("generation_config.json");
    if !path.exists() {
        return Ok(Map::new());
    }
    let bytes =
        std::fs::read(&path).map_err(|source| EngineError::Io { path: path.clone(), source })?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{} is not a JSON object", path.display()))
}
