use super::jsonl::{Tail, TornTail};
use super::text::{TextLines, json_error};
use crate::canonical::{Record, Records, Rows};
use crate::error::TraceError;
use crate::ids::ModelShape;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use std::fmt;
use std::io::BufRead;

/// The optional first line of a plain trace.
#[derive(Deserialize)]
pub(super) struct PlainHeader {
    #[serde(default)]
    pub(super) model: String,
    #[serde(alias = "n_experts")]
    num_experts: u16,
    top_k: u16,
    moe_layers: Vec<u16>,
    pub(super) expert_bytes: Option<u64>,
}

impl PlainHeader {
    pub(super) fn shape(&self) -> ModelShape {
        ModelShape {
            moe_layers: self.moe_layers.clone(),
            n_experts: self.num_experts,
            top_k: self.top_k,
        }
    }
}

#[derive(Deserialize)]
struct PlainRow {
    #[serde(alias = "tok", alias = "token")]
    step: Option<u64>,
    pos: Option<u64>,
    layer: Option<u64>,
    experts: Option<Routes>,
}

/// Reads `{"step":0,"layer":1,"experts":[5,0]}`, one line a step and layer.
pub(super) struct PlainRecords {
    lines: TextLines,
    header: Option<PlainHeader>,
    /// A first line that was a row.
    first: Option<Record>,
}

enum Line {
    Header(PlainHeader),
    Row(Record),
}

impl PlainRecords {
    pub(super) fn new(input: Box<dyn BufRead + Send>, tail: Tail) -> Result<Self, TraceError> {
        let mut lines = TextLines::new(input, tail, false);
        let (mut header, mut first) = (None, None);
        match lines.next(parse_first)? {
            Some(Line::Header(found)) => {
                lines.not_a_record();
                header = Some(found);
            }
            Some(Line::Row(row)) => first = Some(row),
            None if lines.torn().is_none() => {
                let reason = "the file is empty".to_owned();
                return Err(TraceError::NotATrace { line: 1, reason });
            }
            None => {}
        }
        Ok(Self { lines, header, first })
    }

    pub(super) fn header(&self) -> Option<&PlainHeader> {
        self.header.as_ref()
    }
}

impl Records for PlainRecords {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        match self.first.take() {
            Some(row) => Ok(Some(row)),
            None => self.lines.next(parse_row),
        }
    }

    fn torn(&self) -> Option<TornTail> {
        self.lines.torn()
    }
}

fn parse_first(text: &[u8], line: u64) -> Result<Line, TraceError> {
    #[derive(Deserialize)]
    struct Peek {
        #[serde(default)]
        top_k: Option<serde::de::IgnoredAny>,
    }
    let peek: Peek = serde_json::from_slice(text).map_err(|error| json_error(line, &error))?;
    if peek.top_k.is_none() {
        return parse_row(text, line).map(Line::Row);
    }
    serde_json::from_slice(text).map(Line::Header).map_err(|error| json_error(line, &error))
}

fn parse_row(text: &[u8], line: u64) -> Result<Record, TraceError> {
    let row: PlainRow = serde_json::from_slice(text).map_err(|error| json_error(line, &error))?;
    let missing = |field| TraceError::MissingField { line, field };
    let routes = row.experts.ok_or_else(|| missing("experts"))?;
    Ok(Record {
        line,
        step: Some(row.step.ok_or_else(|| missing("step"))?),
        position: row.pos,
        layer: row.layer.ok_or_else(|| missing("layer"))?,
        ids: routes.ids,
        rows: routes.rows,
    })
}

/// A list of ids, or a list of lists of ids.
pub(super) struct Routes {
    pub(super) ids: Vec<i64>,
    pub(super) rows: Rows,
}

impl<'de> Deserialize<'de> for Routes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Outer;
        impl<'de> Visitor<'de> for Outer {
            type Value = Routes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of expert ids, or a list of such lists")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Routes, A::Error> {
                let mut ids = Vec::new();
                let mut widths = Vec::new();
                let mut flat = 0_usize;
                while let Some(item) = items.next_element::<Item>()? {
                    match item {
                        Item::Id(id) => {
                            flat += 1;
                            ids.push(id);
                        }
                        Item::Route(route) => {
                            widths.push(route.len());
                            ids.extend(route);
                        }
                    }
                    if flat > 0 && !widths.is_empty() {
                        let mixed = "a list mixes expert ids with lists of them";
                        return Err(serde::de::Error::custom(mixed));
                    }
                }
                let rows = if widths.is_empty() { Rows::Flat } else { Rows::Each(widths) };
                Ok(Routes { ids, rows })
            }
        }
        deserializer.deserialize_seq(Outer)
    }
}

enum Item {
    Id(i64),
    Route(Vec<i64>),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct One;
        impl<'de> Visitor<'de> for One {
            type Value = Item;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an expert id or a list of them")
            }

            fn visit_i64<E: serde::de::Error>(self, id: i64) -> Result<Item, E> {
                Ok(Item::Id(id))
            }

            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<Item, E> {
                // No model has that many: it stays an unknown expert, never a known one.
                Ok(Item::Id(i64::try_from(id).unwrap_or(i64::MAX)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut ids: A) -> Result<Item, A::Error> {
                let mut route = Vec::new();
                while let Some(id) = ids.next_element::<i64>()? {
                    route.push(id);
                }
                Ok(Item::Route(route))
            }
        }
        deserializer.deserialize_any(One)
    }
}
