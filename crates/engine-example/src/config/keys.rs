use crate::error::EngineError;
use serde_json::{Map, Value};

/// No size in a config may be larger: it keeps every product of two sizes inside `usize`.
const MAX_SIZE: usize = 1 << 28;

/// Typed look-ups in a config; a `null` counts as absent.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    map: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>) -> Self {
        Self { map }
    }

    pub(crate) fn get(self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// A `config-inconsistent` error about `key`.
    pub(crate) fn bad(self, key: &str, problem: impl Into<String>) -> EngineError {
        EngineError::config(key, &self.shown(key), problem)
    }

    pub(crate) fn unsupported(self, key: &str, reason: impl Into<String>) -> EngineError {
        EngineError::unsupported(key, &self.shown(key), reason)
    }

    /// The value as written, cut so that a hostile config cannot flood the terminal.
    fn shown(self, key: &str) -> String {
        let text = self.map.get(key).map_or_else(|| "absent".to_owned(), Value::to_string);
        match text.char_indices().nth(80) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text,
        }
    }

    /// A size from 1 to [`MAX_SIZE`].
    pub(crate) fn size(self, key: &str) -> Result<usize, EngineError> {
        self.opt_size(key)?.ok_or_else(|| self.bad(key, "is needed"))
    }

    pub(crate) fn opt_size(self, key: &str) -> Result<Option<usize>, EngineError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        match size {
            Some(size) if (1..=MAX_SIZE).contains(&size) => Ok(Some(size)),
            _ => Err(self.bad(key, format!("must be a whole number from 1 to {MAX_SIZE}"))),
        }
    }

    /// A count from 0 to [`MAX_SIZE`].
    pub(super) fn opt_count(self, key: &str) -> Result<Option<usize>, EngineError> {
        match self.get(key) {
            Some(value) if value.as_u64() == Some(0) => Ok(Some(0)),
            _ => self.opt_size(key),
        }
    }

    /// The first of these keys that is there.
    pub(super) fn first_of<'k>(self, keys: &[&'k str]) -> Option<&'k str> {
        keys.iter().copied().find(|key| self.get(key).is_some())
    }

    pub(super) fn layers(self) -> Result<u16, EngineError> {
        let key = "num_hidden_layers";
        u16::try_from(self.size(key)?).map_err(|_| self.unsupported(key, "at most 65535 layers"))
    }

    pub(crate) fn opt_bool(self, key: &str) -> Result<Option<bool>, EngineError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.bad(key, "must be true or false"))
    }

    pub(crate) fn opt_str(self, key: &str) -> Result<Option<&'a str>, EngineError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.bad(key, "must be a string"))
    }

    /// A finite number.
    pub(crate) fn opt_number(self, key: &str) -> Result<Option<f64>, EngineError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.bad(key, "must be a number"))
    }

    /// A finite number above zero.
    pub(crate) fn opt_positive(self, key: &str) -> Result<Option<f64>, EngineError> {
        match self.opt_number(key)? {
            Some(number) if number <= 0.0 => Err(self.bad(key, "must be above 0")),
            number => Ok(number),
        }
    }

    pub(super) fn object(self, key: &str) -> Result<Option<Self>, EngineError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let object = value.as_object().map(Keys::new);
        object.map(Some).ok_or_else(|| self.bad(key, "must be an object"))
    }

    pub(super) fn opt_list(self, key: &str) -> Result<Vec<usize>, EngineError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let list: Option<Vec<usize>> = value.as_array().and_then(|list| {
            list.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
        });
        list.ok_or_else(|| self.bad(key, "must be a list of whole numbers"))
    }
}
