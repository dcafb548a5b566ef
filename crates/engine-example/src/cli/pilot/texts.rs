//! What fits and scores read: files, or the bundled model's own texts.

use super::super::args_pilot::TextsArgs;
use super::super::session::Session;
use anyhow::{Context, Result, bail};
use engine_example::EngineError;
use std::path::Path;

/// Texts of the bundled model, made by `pilot/make.sh`: name and content.
macro_rules! bundled {
    ($($name:literal),+ $(,)?) => {
        [$(($name, include_str!(concat!("../../../pilot/", $name)))),+]
    };
}

static BUNDLED: [(&str, &str); 24] = bundled![
    "code-101.txt",
    "code-102.txt",
    "code-103.txt",
    "code-104.txt",
    "code-105.txt",
    "code-106.txt",
    "fiction-107.txt",
    "fiction-108.txt",
    "fiction-109.txt",
    "fiction-110.txt",
    "fiction-111.txt",
    "fiction-112.txt",
    "math-113.txt",
    "math-114.txt",
    "math-115.txt",
    "math-116.txt",
    "math-117.txt",
    "math-118.txt",
    "systems-119.txt",
    "systems-120.txt",
    "systems-121.txt",
    "systems-122.txt",
    "systems-123.txt",
    "systems-124.txt",
];

/// Texts as token ids, each of a domain.
pub(super) struct Texts {
    /// Names of the domains, in the order they came.
    pub(super) domains: Vec<String>,
    /// Domain and tokens; none longer than a window.
    pub(super) windows: Vec<(usize, Vec<u32>)>,
}

impl Texts {
    pub(super) fn read(session: &Session, args: &TextsArgs, own_model: bool) -> Result<Self> {
        let context = session.engine.decoder().config().max_position_embeddings;
        if args.window < 2 {
            bail!("--window {}: at least 2 tokens are needed", args.window);
        }
        let mut texts = Self { domains: Vec::new(), windows: Vec::new() };
        let window = args.window.min(context);
        if args.files.is_empty() {
            if !own_model {
                bail!("which texts? The bundled ones are the bundled model's own: name files");
            }
            for (name, text) in BUNDLED {
                texts.add(name, &encode(session, text)?, window);
            }
            return Ok(texts);
        }
        for path in &args.files {
            let text = std::fs::read_to_string(path)
                .map_err(|source| EngineError::Io { path: path.clone(), source })?;
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            if args.ids {
                for (line, text) in (1..).zip(text.lines()) {
                    let place = || format!("{}, line {line}", path.display());
                    texts.add(&name, &ids(text).with_context(place)?, window);
                }
            } else {
                let tokens = encode(session, &text)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                texts.add(&name, &tokens, window);
            }
        }
        if texts.windows.is_empty() {
            bail!("the files hold no text of 2 tokens");
        }
        Ok(texts)
    }

    fn add(&mut self, name: &str, tokens: &[u32], window: usize) {
        let domain = name.split(['-', '.']).next().unwrap_or(name);
        let known = self.domains.iter().position(|known| known == domain);
        let at = known.unwrap_or_else(|| {
            self.domains.push(domain.to_owned());
            self.domains.len() - 1
        });
        let windows = tokens.chunks(window).filter(|window| window.len() > 1);
        self.windows.extend(windows.map(|window| (at, window.to_vec())));
    }

    /// Numbers of the windows whose domain is one that is wanted.
    pub(super) fn windows_where(&self, wanted: impl Fn(usize) -> bool) -> Vec<usize> {
        let all = self.windows.iter().enumerate();
        all.filter(|(_, window)| wanted(window.0)).map(|(at, _)| at).collect()
    }

    /// Tokens of a domain.
    pub(super) fn tokens(&self, domain: usize) -> usize {
        self.windows.iter().filter(|window| window.0 == domain).map(|window| window.1.len()).sum()
    }
}

fn encode(session: &Session, text: &str) -> Result<Vec<u32>> {
    let tokenizer = session.engine.text().with_context(|| {
        let dir = Path::display(&session.dir);
        format!("{dir} has no tokenizer.json: give token ids with --ids")
    })?;
    Ok(tokenizer.encode(text)?)
}

fn ids(line: &str) -> Result<Vec<u32>> {
    let words = line.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    words.map(|word| word.parse().with_context(|| format!("{word:?} is no token id"))).collect()
}
