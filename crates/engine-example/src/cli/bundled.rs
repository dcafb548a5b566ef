//! The bundled model: used from the checkout where it lies, or written out once by a binary
//! that was moved away from it.

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// What a sentence of the bundled model's training mixture could look like.
pub(crate) const DEFAULT_PROMPT: &str = "The server writes the log file to disk before";

/// What the model is called.
pub(crate) const NAME: &str = "tiny-moe";

struct File {
    name: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($name:literal),+ $(,)?) => {
        [$(File { name: $name, bytes: include_bytes!(concat!("../../model/", $name)) }),+]
    };
}

static FILES: [File; 6] = files![
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "pilot.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// The folder of the bundled model.
pub(crate) fn model_dir() -> Result<PathBuf> {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("model");
    if complete(&checkout) {
        return Ok(checkout);
    }
    let dir = cache_dir().join(format!("tiny-moe-{}", fingerprint()));
    if complete(&dir) {
        return Ok(dir);
    }
    write_out(&dir)
        .with_context(|| format!("cannot write the bundled model to {}", dir.display()))?;
    Ok(dir)
}

/// Sizes are enough: a different build has a different fingerprint, and files are renamed into
/// place whole.
fn complete(dir: &Path) -> bool {
    FILES.iter().all(|file| {
        fs::metadata(dir.join(file.name)).is_ok_and(|found| found.len() == file.bytes.len() as u64)
    })
}

fn write_out(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    for file in &FILES {
        let partial = dir.join(format!("{}.{}.part", file.name, std::process::id()));
        fs::write(&partial, file.bytes)?;
        fs::rename(&partial, dir.join(file.name))?;
    }
    Ok(())
}

fn fingerprint() -> String {
    let mut hash = Sha256::new();
    for file in &FILES {
        hash.update(file.bytes);
    }
    hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

fn cache_dir() -> PathBuf {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(env::temp_dir)
        .join("expert-tier")
}
