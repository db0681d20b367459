//! The slots that a template sees instead of conversation texts, and the splitting of its output at them.
//!
//! In definitions and calls of tools, all texts and all user-chosen keys are slots too. `tojson` writes such
//! a value with escaped texts, as one slot between its outermost brackets. The template itself sees only
//! these brackets, and some templates cut the last one off.

use std::{
    collections::HashMap,
    fmt::{self, Write as _},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use minijinja::{
    Error, ErrorKind, Value,
    value::{Enumerator, Kwargs, Object, ObjectRepr, ValueKind},
};
use zeroize::Zeroizing;

use super::Segment;
use crate::language::{
    LanguageError,
    chat::{Json, escape},
};

/// Largest indentation of `tojson`.
const MAX_INDENT: usize = 16;
/// Deepest nesting of values for `tojson`: the same as the JSON parser's.
const MAX_DEPTH: usize = 128;

/// Decimal digits that `f64` holds, whatever they are.
const EXACT_DIGITS: usize = 15;

/// Maximum size in bytes of all JSON of a prompt: some times the longest definitions, since indentation
/// multiplies a few bytes.
const MAX_JSON_BYTES: usize = 2 << 20;

/// Definition keys that templates look up by name; user-chosen names of parameters do not count.
const KEYS: [&str; 40] = [
    "$defs",
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "default",
    "definitions",
    "description",
    "enum",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "function",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "multipleOf",
    "name",
    "not",
    "nullable",
    "oneOf",
    "parameters",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "return",
    "response",
    "strict",
    "title",
    "type",
    "uniqueItems",
];
/// Keys whose values are maps with user-chosen keys.
const NAMED: [&str; 4] = ["properties", "$defs", "definitions", "patternProperties"];
/// Keys with arbitrary values.
const ANYTHING: [&str; 4] = ["default", "const", "enum", "examples"];
/// Values of `type`.
const TYPES: [&str; 8] = ["function", "object", "array", "string", "number", "integer", "boolean", "null"];

/// The origin of a map's keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    /// Keys of a definition.
    Schema,
    /// User-chosen keys, with definitions as values.
    Names,
    /// User-chosen keys at all levels.
    Free,
}

/// The texts behind the slots. Clones share them.
#[derive(Clone)]
pub(super) struct Slots {
    /// The prefix of every slot's name.
    prefix: Arc<str>,
    texts: Arc<Mutex<Vec<Slot>>>,
    /// The slots of keys, by the keys' hashes.
    keys: Arc<Mutex<HashMap<blake3::Hash, Value>>>,
    /// Bytes of JSON written so far.
    written: Arc<AtomicUsize>,
}

struct Slot {
    text: Zeroizing<String>,
    /// Slots whose texts this text contains.
    parts: Vec<usize>,
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slots")
    }
}

fn broken() -> Error {
    Error::new(ErrorKind::InvalidOperation, "the template changes message texts")
}

impl Slots {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into(), texts: Arc::default(), keys: Arc::default(), written: Arc::default() }
    }

    fn texts(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a slot for a text, and returns its number. Templates test texts for emptiness, so an empty
    /// text stays empty.
    pub(super) fn put(&self, text: Zeroizing<String>) -> (Value, usize) {
        self.put_of(text, Vec::new())
    }

    fn put_of(&self, text: Zeroizing<String>, parts: Vec<usize>) -> (Value, usize) {
        let mut texts = self.texts();
        let number = texts.len();
        // As texts, numbers of one length are in their order.
        let value = if text.is_empty() { String::new() } else { format!("{}{number:06}z", self.prefix) };
        texts.push(Slot { text, parts });
        (Value::from(value), number)
    }

    /// As [`Self::put`], without the number.
    pub(super) fn text(&self, text: &str) -> Value {
        self.put(Zeroizing::new(text.to_owned())).0
    }

    /// The slot of a key, the same each time: templates look for a parameter's name in the list `required`.
    fn key(&self, key: &str) -> Value {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.entry(blake3::hash(key.as_bytes())).or_insert_with(|| self.text(key)).clone()
    }

    /// Creates the slots of all keys of these values, in the keys' order, so that a template can sort a map by them.
    pub(super) fn put_keys<'a>(&self, values: impl Iterator<Item = &'a Json>) {
        fn find<'a>(value: &'a Json, keys: &mut Vec<&'a str>) {
            match value {
                Json::List(values) => values.iter().for_each(|value| find(value, keys)),
                Json::Map(entries) => entries.iter().for_each(|(key, value)| {
                    keys.push(key);
                    find(value, keys);
                }),
                _ => {}
            }
        }
        let mut keys = Vec::new();
        values.for_each(|value| find(value, &mut keys));
        keys.sort_by(|a, b| small(a).cmp(small(b)).then(a.cmp(b)));
        keys.dedup();
        keys.into_iter().for_each(|key| drop(self.key(key)));
    }

    /// The slot's number, if the text is exactly one slot.
    pub(super) fn number(&self, text: &str) -> Option<usize> {
        text.strip_prefix(&*self.prefix)?.strip_suffix('z')?.parse().ok()
    }

    /// Converts JSON to a template value.
    pub(super) fn json(&self, json: &Json, keys: Keys) -> Value {
        match json {
            Json::Null => Value::from(()),
            Json::Bool(value) => Value::from(*value),
            Json::Number(text) => match (text.parse::<i64>(), text.parse::<u64>(), text.parse::<f64>()) {
                (Ok(number), ..) => Value::from(number),
                (_, Ok(number), _) => Value::from(number),
                (.., Ok(number)) if text.bytes().filter(u8::is_ascii_digit).count() <= EXACT_DIGITS => {
                    Value::from(number)
                }
                _ => Value::from_object(LongNumber(text.clone())),
            },
            Json::Text(text) => self.text(text),
            Json::List(values) => values.iter().map(|value| self.json(value, keys)).collect(),
            Json::Map(entries) => {
                let entries = entries.iter().map(|(key, value)| self.entry(key, value, keys));
                Value::from_object(OrderedMap(entries.collect()))
            }
        }
    }

    fn entry(&self, key: &str, value: &Json, keys: Keys) -> (Value, Value) {
        if keys != Keys::Schema || !KEYS.contains(&key) {
            let under = if keys == Keys::Names { Keys::Schema } else { keys };
            return (self.key(key), self.json(value, under));
        }
        let value = match value {
            Json::List(names) if key == "required" => names.iter().map(|name| self.required(name)).collect(),
            _ if key == "type" => self.kind(value),
            _ if NAMED.contains(&key) => self.json(value, Keys::Names),
            _ if ANYTHING.contains(&key) => self.json(value, Keys::Free),
            _ => self.json(value, Keys::Schema),
        };
        (Value::from(key), value)
    }

    /// An entry of `required`.
    fn required(&self, name: &Json) -> Value {
        if let Json::Text(name) = name { self.key(name) } else { self.json(name, Keys::Schema) }
    }

    /// The value of `type`, which templates compare.
    fn kind(&self, value: &Json) -> Value {
        match value {
            Json::Text(text) if TYPES.contains(&text.as_str()) => Value::from(text.as_str()),
            Json::List(kinds) => kinds.iter().map(|kind| self.kind(kind)).collect(),
            _ => self.json(value, Keys::Schema),
        }
    }

    /// The filter `tojson`: as `json.dumps`, without escaping non-ASCII characters.
    pub(super) fn tojson(
        &self,
        value: &Value,
        indent: Option<&Value>,
        named: &Kwargs,
    ) -> Result<Value, Error> {
        let style = Style::read(indent, named)?;
        let mut writer = Writer { slots: self, style, out: Zeroizing::default(), parts: Vec::new() };
        writer.value(value, 0)?;
        let Writer { out, parts, .. } = writer;
        self.written.fetch_add(out.len(), Ordering::Relaxed);
        // A value that contains a slot has brackets or quotes around it.
        let (Some(first), Some(last)) = (out.chars().next(), out.chars().next_back()) else {
            return Err(broken());
        };
        let Some(inner) = out.get(1..out.len() - 1).filter(|_| !parts.is_empty()) else {
            return Ok(Value::from(out.as_str()));
        };
        let (slot, _) = self.put_of(Zeroizing::new(inner.to_owned()), parts);
        Ok(Value::from(format!("{first}{slot}{last}")))
    }

    /// Splits text at its slots.
    fn cut<'t>(&self, text: &'t str) -> Result<Vec<(&'t str, Option<usize>)>, Error> {
        let mut pieces = Vec::new();
        let mut slot = None;
        for (index, part) in text.split(&*self.prefix).enumerate() {
            let mut after = part;
            if index > 0 {
                let (number, rest) = part.split_once('z').ok_or_else(broken)?;
                slot = Some(number.parse().map_err(|_| broken())?);
                after = rest;
            }
            pieces.push((after, slot));
        }
        Ok(pieces)
    }

    /// Splits the rendered text at the slots. Each `required` slot must appear, itself or within another,
    /// unless its text is empty.
    pub(super) fn split(&self, rendered: &str, required: &[usize]) -> Result<Vec<Segment>, LanguageError> {
        let failed = |reason: &str| LanguageError::Template { reason: reason.into() };
        let cut = self.cut(rendered).map_err(|_| failed("the template changes message texts"))?;
        let texts = self.texts();
        let mut seen = vec![false; texts.len()];
        let mut segments = Vec::new();
        for (after, slot) in cut {
            if let Some(number) = slot {
                let slot = texts.get(number).ok_or_else(|| failed("the template changes message texts"))?;
                seen[number] = true;
                segments.push(Segment::Content(slot.text.clone()));
            }
            segments.push(Segment::Template(after.to_owned()));
        }
        // A slot's parts have smaller numbers than the slot.
        for number in (0..texts.len()).rev().filter(|&number| !texts[number].parts.is_empty()) {
            if seen[number] {
                texts[number].parts.iter().for_each(|&part| seen[part] = true);
            }
        }
        if required.iter().any(|&slot| !seen[slot] && !texts[slot].text.is_empty()) {
            return Err(failed("the template leaves a message out"));
        }
        Ok(segments)
    }
}

/// A key in small letters, as templates compare keys.
fn small(key: &str) -> impl Iterator<Item = char> {
    key.chars().flat_map(char::to_lowercase)
}

/// A map with this order of entries.
pub(super) fn ordered<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::from_object(OrderedMap(
        entries.into_iter().map(|(key, value)| (Value::from(key), value)).collect(),
    ))
}

/// A number with more digits than the template's numbers hold, as it is written.
#[derive(Debug)]
struct LongNumber(Zeroizing<String>);

impl Object for LongNumber {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A map that keeps the order of its entries.
#[derive(Debug)]
struct OrderedMap(Vec<(Value, Value)>);

impl Object for OrderedMap {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.iter().map(|(key, _)| key.clone()).collect())
    }
}

/// The style of JSON output.
struct Style {
    indent: Option<usize>,
    after_item: String,
    after_key: String,
    /// Whether other characters than ASCII's are escaped.
    ascii: bool,
}

impl Style {
    fn read(indent: Option<&Value>, named: &Kwargs) -> Result<Self, Error> {
        let unsupported =
            |what: &str| Error::new(ErrorKind::InvalidOperation, format!("tojson has no {what}"));
        let indent = indent.cloned().map_or_else(|| named.get("indent"), |indent| Ok(Some(indent)))?;
        let indent = match indent {
            None => None,
            Some(none) if none.is_none() => None,
            Some(indent) => match indent.as_usize() {
                Some(indent) if indent <= MAX_INDENT => Some(indent),
                _ => return Err(unsupported("such indent")),
            },
        };
        let is_set =
            |option| Ok::<_, Error>(named.get::<Option<Value>>(option)?.is_some_and(|value| value.is_true()));
        if is_set("sort_keys")? {
            return Err(unsupported("sort_keys"));
        }
        let ascii = is_set("ensure_ascii")?;
        let separators = named.get::<Option<Value>>("separators")?.filter(|value| !value.is_none());
        let (after_item, after_key) = match separators {
            None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
            Some(two) => {
                let text = |index| two.get_item_by_index(index).map(|text| text.to_string());
                (text(0)?, text(1)?)
            }
        };
        named.assert_all_used()?;
        Ok(Self { indent, after_item, after_key, ascii })
    }
}

impl Style {
    fn escape(&self, text: &str, out: &mut Zeroizing<String>) {
        let begin = out.len();
        escape(text, out);
        if self.ascii && !out.is_ascii() {
            let escaped = Zeroizing::new(out.split_off(begin));
            for unit in escaped.encode_utf16() {
                match u8::try_from(unit).ok().filter(u8::is_ascii) {
                    Some(byte) => out.push(char::from(byte)),
                    None => drop(write!(out, "\\u{unit:04x}")),
                }
            }
        }
    }
}

struct Writer<'a> {
    slots: &'a Slots,
    style: Style,
    out: Zeroizing<String>,
    parts: Vec<usize>,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let written = self.slots.written.load(Ordering::Relaxed);
        if depth > MAX_DEPTH || self.out.len() + written > MAX_JSON_BYTES {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: too deep or too long"));
        }
        match value.kind() {
            ValueKind::None | ValueKind::Undefined => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&value.to_string()),
            ValueKind::String => self.text(value.as_str().unwrap_or_default())?,
            ValueKind::Map => {
                self.out.push('{');
                let mut any = false;
                for key in value.try_iter()? {
                    self.next_item(&mut any, depth + 1);
                    self.text(&key.to_string())?;
                    let after_key = self.style.after_key.clone();
                    self.out.push_str(&after_key);
                    self.value(&value.get_item(&key)?, depth + 1)?;
                }
                self.end('}', any, depth);
            }
            ValueKind::Seq | ValueKind::Iterable => {
                self.out.push('[');
                let mut any = false;
                for item in value.try_iter()? {
                    self.next_item(&mut any, depth + 1);
                    self.value(&item, depth + 1)?;
                }
                self.end(']', any, depth);
            }
            _ => match value.downcast_object_ref::<LongNumber>() {
                Some(number) => self.out.push_str(&number.0),
                None => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: not a JSON value")),
            },
        }
        Ok(())
    }

    /// Writes a text of the template, of the conversation, or of both.
    fn text(&mut self, text: &str) -> Result<(), Error> {
        self.out.push('"');
        for (after, slot) in self.slots.cut(text)? {
            if let Some(number) = slot {
                let texts = self.slots.texts();
                let slot = texts.get(number).ok_or_else(broken)?;
                self.style.escape(&slot.text, &mut self.out);
                self.parts.push(number);
            }
            self.style.escape(after, &mut self.out);
        }
        self.out.push('"');
        Ok(())
    }

    fn next_item(&mut self, any: &mut bool, depth: usize) {
        if std::mem::replace(any, true) {
            let after_item = self.style.after_item.clone();
            self.out.push_str(&after_item);
        }
        self.new_line(depth);
    }

    fn end(&mut self, bracket: char, any: bool, depth: usize) {
        if any {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }
}
