use super::cursor::Cursor;
use super::header;
use crate::error::TierError;
use crate::pool::collect::open_regular;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Arrays of at most this many elements are kept by every reader: a number a layer.
const SHORT: u64 = 4096;
/// Most elements that a reader of whole arrays takes: no vocabulary is near it.
const LONGEST: u64 = 16 << 20;
/// The format's own limit.
const LONGEST_KEY: u64 = 65535;

/// A value of the metadata; integers and floats of all widths as the widest.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names say it")]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array(Array),
}

/// An array of the metadata.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names say it")]
pub enum Array {
    Unsigned(Vec<u64>),
    Signed(Vec<i64>),
    Float(Vec<f64>),
    Bool(Vec<bool>),
    Text(Vec<String>),
    /// Too long to be kept unasked: how many elements it has.
    Long(u64),
}

impl Array {
    /// Elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Unsigned(items) => items.len() as u64,
            Self::Signed(items) => items.len() as u64,
            Self::Float(items) => items.len() as u64,
            Self::Bool(items) => items.len() as u64,
            Self::Text(items) => items.len() as u64,
            Self::Long(len) => *len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The metadata of a GGUF file: `general.architecture`, hyper-parameters, the tokenizer.
#[derive(Clone, PartialEq, Debug)]
pub struct Metadata {
    path: PathBuf,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// Reads the metadata of the file `path` with all its arrays. No weight is read.
    ///
    /// # Errors
    /// As [`crate::Pool::open`] for what stands before the tensors; `limit` for arrays of more
    /// than 16,777,216 elements.
    pub fn read(path: &Path) -> Result<Self, TierError> {
        let (file, stat) = open_regular(path)?;
        let mut cursor = Cursor::new(&file, stat.len(), path);
        let counts = header::read_counts(&mut cursor)?;
        Self::parse(&mut cursor, counts.values, true)
    }

    /// `count` pairs; long arrays only if `all` are wanted.
    pub(super) fn parse(cursor: &mut Cursor<'_>, count: u64, all: bool) -> Result<Self, TierError> {
        // A key's length, its type, and one byte: the shortest pair has a one-byte key.
        cursor.expect(count, 8 + 1 + 4 + 1)?;
        let mut values = BTreeMap::new();
        for _ in 0..count {
            let key = key(cursor)?;
            let kind = cursor.u32()?;
            let value = Value::parse(cursor, kind, &key, all)?;
            if values.contains_key(&key) {
                let path = cursor.path.to_owned();
                return Err(TierError::DuplicateName { path, name: key, other: None });
            }
            values.insert(key, value);
        }
        Ok(Self { path: cursor.path.to_owned(), values })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// All keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// The string `key`; `None` if there is no such key.
    ///
    /// # Errors
    /// `config-inconsistent` for a value of another type.
    pub fn text(&self, key: &str) -> Result<Option<&str>, TierError> {
        self.typed(key, "a string", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// The whole number `key`, from 0 up; `None` if there is no such key.
    ///
    /// # Errors
    /// `config-inconsistent` for a value of another type.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, TierError> {
        self.typed(key, "a whole number from 0 up", |value| match *value {
            Value::Unsigned(number) => Some(number),
            Value::Signed(number) => u64::try_from(number).ok(),
            _ => None,
        })
    }

    /// The number `key`; `None` if there is no such key.
    ///
    /// # Errors
    /// `config-inconsistent` for a value of another type, and for one that is not finite.
    pub fn float(&self, key: &str) -> Result<Option<f64>, TierError> {
        self.typed(key, "a finite number", |value| match *value {
            Value::Float(number) => number.is_finite().then_some(number),
            Value::Unsigned(number) => Some(number as f64),
            Value::Signed(number) => Some(number as f64),
            _ => None,
        })
    }

    /// The truth value `key`; `None` if there is no such key.
    ///
    /// # Errors
    /// `config-inconsistent` for a value of another type.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, TierError> {
        self.typed(key, "true or false", |value| match *value {
            Value::Bool(value) => Some(value),
            _ => None,
        })
    }

    /// The array `key`; `None` if there is no such key.
    ///
    /// # Errors
    /// `config-inconsistent` for a value of another type.
    pub fn array(&self, key: &str) -> Result<Option<&Array>, TierError> {
        self.typed(key, "an array", |value| match value {
            Value::Array(array) => Some(array),
            _ => None,
        })
    }

    /// The array of strings `key`; `None` if there is no such key.
    ///
    /// # Errors
    /// `config-inconsistent` for a value of another type.
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>, TierError> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::Text(texts)) => Some(texts.as_slice()),
            Value::Array(array) if array.is_empty() => Some(&[]),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, TierError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| {
            let found: String = format!("{value:?}").chars().take(80).collect();
            self.error(key, format!("must be {wanted}, is {found}"))
        })
    }

    /// A `config-inconsistent` error about `key`.
    pub(in crate::pool) fn error(&self, key: &str, reason: String) -> TierError {
        TierError::ConfigValue { path: self.path.clone(), key: key.to_owned(), reason }
    }
}

/// Goes on behind a pair, and returns its key.
pub(super) fn skip_pair(cursor: &mut Cursor<'_>) -> Result<String, TierError> {
    let key = key(cursor)?;
    let kind = cursor.u32()?;
    Value::parse(cursor, kind, &key, false)?;
    Ok(key)
}

fn key(cursor: &mut Cursor<'_>) -> Result<String, TierError> {
    let key = cursor.text(&|| "a key".to_owned())?;
    if key.is_empty() {
        return Err(cursor.invalid(None, "a key is empty"));
    }
    if key.len() as u64 > LONGEST_KEY {
        let reason = format!("a key has {} bytes, at most {LONGEST_KEY} are allowed", key.len());
        return Err(cursor.invalid(None, reason));
    }
    Ok(key)
}

/// The types' numbers in the format.
mod kind {
    pub(super) const BOOL: u32 = 7;
    pub(super) const TEXT: u32 = 8;
    pub(super) const ARRAY: u32 = 9;

    /// Bytes of a value; of a string only those of its length.
    pub(super) fn least_bytes(kind: u32) -> Option<u64> {
        match kind {
            0 | 1 | BOOL => Some(1),
            2 | 3 => Some(2),
            4..=6 => Some(4),
            TEXT | 10..=12 => Some(8),
            _ => None,
        }
    }
}

impl Value {
    fn parse(cursor: &mut Cursor<'_>, kind: u32, key: &str, all: bool) -> Result<Self, TierError> {
        Ok(match kind {
            0 => Self::Unsigned(u8::from_le_bytes(cursor.array()?).into()),
            1 => Self::Signed(i8::from_le_bytes(cursor.array()?).into()),
            2 => Self::Unsigned(u16::from_le_bytes(cursor.array()?).into()),
            3 => Self::Signed(i16::from_le_bytes(cursor.array()?).into()),
            4 => Self::Unsigned(cursor.u32()?.into()),
            5 => Self::Signed(i32::from_le_bytes(cursor.array()?).into()),
            6 => Self::Float(f32::from_le_bytes(cursor.array()?).into()),
            kind::BOOL => Self::Bool(truth(cursor, key)?),
            kind::TEXT => Self::Text(cursor.text(&|| format!("the value of {key}"))?),
            kind::ARRAY => Self::Array(Array::parse(cursor, key, all)?),
            10 => Self::Unsigned(cursor.u64()?),
            11 => Self::Signed(i64::from_le_bytes(cursor.array()?)),
            12 => Self::Float(f64::from_le_bytes(cursor.array()?)),
            _ => return Err(unknown_kind(cursor, kind, key)),
        })
    }
}

fn truth(cursor: &mut Cursor<'_>, key: &str) -> Result<bool, TierError> {
    match cursor.array()? {
        [0] => Ok(false),
        [1] => Ok(true),
        [byte] => Err(cursor.invalid(None, format!("{key}: the boolean is {byte}, not 0 or 1"))),
    }
}

fn unknown_kind(cursor: &Cursor<'_>, kind: u32, key: &str) -> TierError {
    cursor.invalid(None, format!("{key}: value type {kind}, known are 0 to 12"))
}

impl Array {
    fn parse(cursor: &mut Cursor<'_>, key: &str, all: bool) -> Result<Self, TierError> {
        let kind = cursor.u32()?;
        if kind == kind::ARRAY {
            let reason = "an array of arrays: no writer is known that makes them";
            return Err(cursor.unsupported(format!("key {key}"), reason));
        }
        let each = kind::least_bytes(kind).ok_or_else(|| unknown_kind(cursor, kind, key))?;
        let len = cursor.u64()?;
        cursor.expect(len, each)?;
        if !all && len > SHORT {
            if kind == kind::TEXT {
                for _ in 0..len {
                    cursor.skip_text()?;
                }
            } else {
                cursor.skip(len, each)?;
            }
            return Ok(Self::Long(len));
        }
        if len > LONGEST {
            return Err(TierError::Limit {
                path: cursor.path.to_owned(),
                what: format!("{key}: the number of elements"),
                value: len,
                most: LONGEST,
            });
        }
        let mut array = match kind {
            kind::TEXT => Self::Text(Vec::new()),
            kind::BOOL => Self::Bool(Vec::new()),
            1 | 3 | 5 | 11 => Self::Signed(Vec::new()),
            6 | 12 => Self::Float(Vec::new()),
            _ => Self::Unsigned(Vec::new()),
        };
        for _ in 0..len {
            array.push(Value::parse(cursor, kind, key, all)?);
        }
        Ok(array)
    }

    /// Adds an element of the array's own type.
    fn push(&mut self, value: Value) {
        match (self, value) {
            (Self::Unsigned(items), Value::Unsigned(item)) => items.push(item),
            (Self::Signed(items), Value::Signed(item)) => items.push(item),
            (Self::Float(items), Value::Float(item)) => items.push(item),
            (Self::Bool(items), Value::Bool(item)) => items.push(item),
            (Self::Text(items), Value::Text(item)) => items.push(item),
            (array, value) => unreachable!("one type number made {array:?} and {value:?}"),
        }
    }
}
