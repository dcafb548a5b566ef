//! From a path to an open pool.

use super::assemble::{Assembled, assemble};
use super::collect::Collected;
use super::config::CheckpointConfig;
use super::{HeadKind, Pool, PoolFormat, PoolInner, gguf, packed, source};
use crate::error::TierError;
use crate::notice::Notice;
use std::path::Path;
use std::sync::Arc;

impl Pool {
    /// Recognises and opens a checkpoint: a folder with `model.safetensors`, a folder with
    /// shards and `model.safetensors.index.json`, or one `.safetensors` file (a shard of an
    /// indexed set stands for the set), a folder with a config and files that are together the
    /// model it describes, without an index (one a layer or one an expert, in the folder or its
    /// sub-folders), a GGUF file (any of a split set stands for the set) or the folder of one, or
    /// a [`packed`] pool (its folder or one of its files).
    /// A `config.json` beside it is used if there is one.
    ///
    /// Only headers, the index and the config are read; no weight is. A checkpoint without
    /// routed experts opens too, with an empty [`Pool::layout`].
    ///
    /// # Errors
    ///
    /// Every malformation has a [`TierError::kind`] of its own and names the file, the tensor
    /// or key, and the numbers wanted and found. Disagreement between the config and the
    /// experts is `config-inconsistent`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TierError> {
        let path = path.as_ref();
        let dir = if path.is_dir() { path } else { source::parent(path) };
        let (collected, checksums) = match packed::index_of(path)? {
            Some(index) => packed::collect(&index)?,
            None => (source::collect(path)?, packed::Checksums::default()),
        };
        let config = CheckpointConfig::read(&dir.join("config.json"))?;
        Self::of(path, config, collected, checksums)
    }

    /// The same, but only the dense part: the layout is empty, and whether the experts are what
    /// the config says is not asked.
    ///
    /// # Errors
    ///
    /// As [`Pool::open`], without what concerns experts alone.
    pub fn open_spine(path: impl AsRef<Path>) -> Result<Self, TierError> {
        let path = path.as_ref();
        let dir = if path.is_dir() { path } else { source::parent(path) };
        let (mut collected, checksums) = match packed::index_of(path)? {
            Some(index) => packed::collect(&index)?,
            None => (source::collect(path)?, packed::Checksums::default()),
        };
        collected.parts.clear();
        collected.stacks.clear();
        let mut config = CheckpointConfig::read(&dir.join("config.json"))?;
        if let Some(config) = &mut config {
            config.expert_layers = None;
        }
        Self::of(path, config, collected, checksums)
    }

    /// Opens the packed pool behind an index that has not got its name yet.
    pub(crate) fn open_packed(index: &Path) -> Result<Self, TierError> {
        let (collected, checksums) = packed::collect(index)?;
        let dir = source::parent(index);
        let config = CheckpointConfig::read(&dir.join("config.json"))?;
        Self::of(dir, config, collected, checksums)
    }

    /// The pool of what was collected.
    pub(super) fn of(
        path: &Path,
        config: Option<CheckpointConfig>,
        mut collected: Collected,
        checksums: packed::Checksums,
    ) -> Result<Self, TierError> {
        let gguf = collected.gguf.take();
        let config = match &gguf {
            // The file speaks for itself: a config beside it may be of another model.
            Some(metadata) => {
                let any = !collected.stacks.is_empty() || !collected.parts.is_empty();
                Some(gguf::checkpoint(metadata, &collected.spine, any)?)
            }
            None => config,
        };
        let format = match collected.files.len() {
            _ if checksums.present() => PoolFormat::Packed,
            1 if gguf.is_some() => PoolFormat::Gguf,
            _ if gguf.is_some() => PoolFormat::GgufSplit,
            0 | 1 => PoolFormat::Safetensors,
            _ => PoolFormat::SafetensorsShards,
        };
        let Assembled { layout, beyond } = assemble(&mut collected, config.as_ref(), path)?;
        let Collected { files, weight_shapes, spine, foreign, unknown, holes, notices, .. } =
            collected;
        let mut pool = PoolInner {
            root: path.to_owned(),
            files,
            layout,
            spine,
            notices,
            config,
            weight_shapes,
            foreign,
            beyond,
            unknown,
            holes,
            format,
            checksums,
            gguf,
        };
        let more = Pool::remarks(&pool);
        pool.notices.extend(more);
        let pool = Self { inner: Arc::new(pool) };
        let head = pool.head_notice();
        Ok(pool.with_notice(head))
    }

    fn remarks(pool: &PoolInner) -> Vec<Notice> {
        let root = pool.root.display();
        let mut notices = Vec::new();
        if pool.layout.total_experts() == 0 {
            notices.push(Notice::info(format!("{root}: no routed experts")));
        }
        if let Some(example) = &pool.unknown.example {
            notices.push(Notice::warning(format!(
                "{root}: {} expert tensors of a kind that is not served, for example {example}",
                pool.unknown.tensors
            )));
        }
        if pool.foreign.tensors > 0 {
            let (tensors, bytes) = (pool.foreign.tensors, pool.foreign.bytes);
            let text =
                format!("{root}: {tensors} tensors of other models are left out ({bytes} bytes)");
            notices.push(Notice::info(text));
        }
        notices
    }

    /// What is odd about the head; never an error here, as work on experts needs no head.
    fn head_notice(&self) -> Option<Notice> {
        let config = self.config()?;
        let setting = config.tie_word_embeddings?;
        let stored = self.spine().contains_key("lm_head.weight");
        // Files that are no whole model have no embedding either.
        let whole = self.spine().contains_key("embed_tokens.weight");
        match self.check_head() {
            Ok(HeadKind::Tied) if stored => Some(Notice::warning(format!(
                "{}: tie_word_embeddings is {setting}, yet lm_head.weight is there: the setting \
                 wins, the embedding is the head",
                self.root().display()
            ))),
            Err(error) if whole || stored => Some(Notice::warning(error.to_string())),
            _ => None,
        }
    }

    fn with_notice(mut self, notice: Option<Notice>) -> Self {
        if let (Some(notice), Some(inner)) = (notice, Arc::get_mut(&mut self.inner)) {
            inner.notices.push(notice);
        }
        self
    }
}
