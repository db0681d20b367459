//! Reads the objects of requests, bodies and queries alike: field by field, each with its path for the error.
//!
//! A field that is `null` counts as absent, and a whole number may be written as a float. No other value is
//! converted: the error names the field.

use std::{fmt::Display, ops::RangeInclusive};

use axum::extract::{FromRequestParts, Query};
use baton_proto::{record::Role, turn::in_range};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::http::{api_error::ApiError, exact};

/// Begins a text in some editors' files, and is no part of it.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The roles of messages with their names, which are alike in all APIs.
const ROLES: [(Role, &str); 4] =
    [(Role::System, "system"), (Role::User, "user"), (Role::Assistant, "assistant"), (Role::Tool, "tool")];

/// The name of a role.
pub(crate) fn role_name(role: Role) -> &'static str {
    ROLES.into_iter().find(|(own, _)| *own == role).map_or("", |(_, name)| name)
}

/// The fields of an object that are not read yet.
#[derive(Default)]
pub(crate) struct BodyFields {
    fields: Map<String, Value>,
    /// The object's own path; empty for a body.
    path: String,
    /// Whether all values are texts.
    is_query: bool,
}

impl BodyFields {
    /// The fields of a body.
    pub(crate) fn of_body(body: &[u8]) -> Result<Self, ApiError> {
        let unreadable = |reason: String| {
            ApiError::request("invalid_body", "", format!("the body cannot be read: {reason}"))
        };
        let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
        match std::str::from_utf8(body).ok().and_then(exact::read) {
            Some(value @ Value::Object(_)) => Self::of(value, String::new()),
            Some(_) => Err(unreadable("it is no JSON object".to_owned())),
            None => {
                let error = serde_json::from_slice::<Value>(body).err();
                let place = error.map(|error| format!(" (line {}, column {})", error.line(), error.column()));
                let place = place.unwrap_or_default();
                Err(unreadable(format!("it is no JSON, or nested too deep{place}")))
            }
        }
    }

    /// The fields of a value at a path. Numbers within their values keep all digits (`http/exact.rs`).
    pub(crate) fn of(value: Value, path: String) -> Result<Self, ApiError> {
        match value {
            Value::Object(mut fields) => {
                fields.values_mut().for_each(exact::round);
                Ok(Self { fields, path, is_query: false })
            }
            _ => Err(ApiError::value(&path, format!("{path} is an object"))),
        }
    }

    /// The path of a field.
    pub(crate) fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The object's own path.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Whether a field is there, and be it `null`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.contains_key(name)
    }

    /// Writes a field, for a reader that expects it under this name.
    pub(crate) fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.fields.insert(name.to_owned(), value.into());
    }

    /// A field that stays.
    pub(crate) fn peek(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// Takes a field. The others keep their order, in which models see the fields of tools.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.shift_remove(name).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, form: impl Display) -> ApiError {
        let path = self.at(name);
        ApiError::value(&path, format!("{path} is {form}"))
    }

    /// Takes a text.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "a text")),
        }
    }

    /// Takes a text that must be there.
    pub(crate) fn some_text(&mut self, name: &str) -> Result<String, ApiError> {
        self.text(name)?.ok_or_else(|| self.wrong(name, "a text, and missing"))
    }

    /// Takes one text or several.
    pub(crate) fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, ApiError> {
        let text = |value| if let Value::String(text) = value { Some(text) } else { None };
        let texts = match self.take(name) {
            None => return Ok(None),
            Some(Value::Array(values)) => values.into_iter().map(text).collect(),
            Some(value) => text(value).map(|text| vec![text]),
        };
        texts.map(Some).ok_or_else(|| self.wrong(name, "a text or a list of texts"))
    }

    /// Takes a truth value.
    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        let flag = match self.take(name) {
            None => return Ok(None),
            Some(Value::Bool(flag)) => Some(flag),
            Some(Value::String(text)) if self.is_query => match text.as_str() {
                "true" | "1" => Some(true),
                "false" | "0" => Some(false),
                _ => None,
            },
            Some(_) => None,
        };
        flag.map(Some).ok_or_else(|| self.wrong(name, "true or false"))
    }

    /// Takes a number of this range.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = f32::deserialize(value).ok().filter(|number| in_range(*number, range.clone()));
        let form = || format!("a number from {} to {}", range.start(), range.end());
        number.map(Some).ok_or_else(|| self.wrong(name, form()))
    }

    /// Takes a whole number of this range.
    pub(crate) fn whole<T>(&mut self, name: &str, range: RangeInclusive<T>) -> Result<Option<T>, ApiError>
    where
        T: TryFrom<i128> + PartialOrd + Display,
    {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = match &value {
            Value::String(text) if self.is_query => text.parse().ok(),
            value => whole(value),
        };
        let number =
            number.and_then(|number| T::try_from(number).ok()).filter(|number| range.contains(number));
        let form = || format!("a whole number from {} to {}", range.start(), range.end());
        number.map(Some).ok_or_else(|| self.wrong(name, form()))
    }

    /// Takes a list.
    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(values)) => Ok(Some(values)),
            Some(_) => Err(self.wrong(name, "a list")),
        }
    }

    /// Takes an object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Self>, ApiError> {
        let path = self.at(name);
        self.take(name).map(|value| Self::of(value, path)).transpose()
    }

    /// Takes an object. An absent one has no fields.
    pub(crate) fn part(&mut self, name: &str) -> Result<Self, ApiError> {
        let path = self.at(name);
        Ok(self.object(name)?.unwrap_or(Self { path, ..Self::default() }))
    }

    /// Takes a list of objects.
    pub(crate) fn objects(&mut self, name: &str) -> Result<Vec<Self>, ApiError> {
        let path = self.at(name);
        let values = self.list(name)?.unwrap_or_default().into_iter().enumerate();
        values.map(|(index, value)| Self::of(value, format!("{path}[{index}]"))).collect()
    }

    /// Takes the role of a message, which is one of these. OpenAI's developer is the system.
    pub(crate) fn role(&mut self, roles: &[&str]) -> Result<Role, ApiError> {
        let name = self.text("role")?.unwrap_or_default();
        let known = if name == "developer" { "system" } else { &name };
        let role = ROLES.into_iter().find(|(_, own)| *own == known && roles.contains(&name.as_str()));
        role.map(|(role, _)| role).ok_or_else(|| self.wrong("role", format!("one of {}", roles.join(", "))))
    }

    /// Takes a content: a text, or a list of parts of these types with texts. Without one it is empty, as a tool
    /// that prints nothing leaves it.
    pub(crate) fn content(&mut self, name: &str, kinds: &[&str], between: &str) -> Result<String, ApiError> {
        match self.peek(name) {
            Some(Value::Array(_)) => {}
            None | Some(Value::String(_)) => return Ok(self.text(name)?.unwrap_or_default()),
            Some(_) => return Err(self.wrong(name, "a text or a list of text parts")),
        }
        let mut texts = Vec::new();
        for mut part in self.objects(name)? {
            let kind = part.text("type")?.unwrap_or_default();
            if !kinds.contains(&kind.as_str()) {
                let message = format!("content of type {kind:?} is not supported here; send text");
                return Err(ApiError::unsupported(&part.at("type"), message));
            }
            texts.push(part.part_text()?);
        }
        Ok(texts.join(between))
    }

    /// Takes the text of a text part, which may be empty.
    pub(crate) fn part_text(&mut self) -> Result<String, ApiError> {
        if !self.has("text") {
            return Err(ApiError::value(&self.at("text"), "a text part has a text"));
        }
        Ok(self.text("text")?.unwrap_or_default())
    }

    /// The fields that are left.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// All fields that are left.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.fields
    }

    /// Refuses each field that is left, unless it is empty.
    pub(crate) fn refuse_rest(&self, place: &str) -> Result<(), ApiError> {
        match self.fields.iter().find(|(_, value)| !is_empty(value)) {
            None => Ok(()),
            Some((name, _)) => {
                Err(ApiError::unsupported(&self.at(name), format!("{name} is not supported in {place}")))
            }
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for BodyFields {
    type Rejection = ApiError;

    /// The fields of a query.
    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        state: &S,
    ) -> Result<Self, Self::Rejection> {
        let pairs = Query::<Vec<(String, String)>>::from_request_parts(parts, state).await;
        let Query(pairs) = pairs
            .map_err(|_| ApiError::request("invalid_query", "", "the query of the address cannot be read"))?;
        let fields = pairs.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        Ok(Self { fields, path: String::new(), is_query: true })
    }
}

/// A whole number, in either of JSON's forms.
pub(crate) fn whole(value: &Value) -> Option<i128> {
    let exact = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    exact.or_else(|| value.as_f64().filter(|number| number.fract() == 0.0).map(to_whole))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the caller checked that it is whole; larger ones saturate"
)]
fn to_whole(number: f64) -> i128 {
    number as i128
}

/// Whether a value holds nothing.
pub(crate) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Keywords of a schema whose value may be `null`.
const NULL_HAS_MEANING: [&str; 4] = ["const", "default", "enum", "examples"];

/// A schema, or a tool with its schema, without the keywords that programs write as `null` for absent.
pub(crate) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().filter_map(|(name, value)| {
                if NULL_HAS_MEANING.contains(&name.as_str()) {
                    return Some((name, value));
                }
                (!value.is_null()).then(|| (name, without_nulls(value)))
            });
            Value::Object(kept.collect())
        }
        Value::Array(values) => values.into_iter().map(without_nulls).collect(),
        value => value,
    }
}

/// A page of a list, as OpenAI and Anthropic write it.
pub(crate) fn page_of(items: &[Value], has_more: bool) -> Value {
    let id_of = |item: Option<&Value>| item.and_then(|item| item.get("id")).cloned();
    json!({ "first_id": id_of(items.first()), "last_id": id_of(items.last()), "has_more": has_more, "data": items })
}

/// An object with more fields: those of another object, if it is one.
pub(crate) fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(value: Value) -> BodyFields {
        BodyFields::of(value, "a".to_owned()).unwrap()
    }

    fn refused<T>(read: Result<T, ApiError>) -> (String, String) {
        let error = read.err().unwrap();
        (error.param().unwrap().to_owned(), error.message().to_owned())
    }

    #[test]
    fn null_is_absent_and_whole_numbers_have_any_form() {
        let mut read = fields(json!({ "n": null, "x": 77.0, "y": 1e3, "seed": u64::MAX, "z": -1 }));
        assert_eq!(read.whole("n", 0..=9).unwrap(), None);
        assert_eq!(read.whole("x", 0..=u32::MAX).unwrap(), Some(77));
        assert_eq!(read.whole("y", 0..=u32::MAX).unwrap(), Some(1000));
        assert_eq!(read.whole("seed", i128::MIN..=i128::MAX).unwrap(), Some(i128::from(u64::MAX)));
        assert_eq!(read.whole("z", -1..=1i64).unwrap(), Some(-1));
        assert!(read.rest().is_empty());
    }

    #[test]
    fn a_wrong_value_is_named_by_its_path_in_plain_words() {
        let wrong = || fields(json!({ "x": "8", "l": [{}, 1], "half": 0.5, "huge": 1e300 }));
        assert_eq!(
            refused(wrong().whole("x", 0..=9)),
            ("a.x".to_owned(), "a.x is a whole number from 0 to 9".to_owned())
        );
        assert_eq!(refused(wrong().whole("half", 0..=9)).0, "a.half");
        assert_eq!(refused(wrong().whole("huge", 0..=9)).0, "a.huge");
        assert_eq!(refused(wrong().number("x", 0.0..=1.0)).1, "a.x is a number from 0 to 1");
        assert_eq!(refused(wrong().flag("x")).1, "a.x is true or false");
        assert_eq!(refused(wrong().text("l")).1, "a.l is a text");
        assert_eq!(refused(wrong().objects("l")), ("a.l[1]".to_owned(), "a.l[1] is an object".to_owned()));
        assert_eq!(refused(wrong().texts("l")).1, "a.l is a text or a list of texts");
        assert_eq!(refused(wrong().content("half", &["text"], "")).0, "a.half");
    }

    #[test]
    fn schemas_lose_absent_keywords_and_keep_nulls_that_mean_something() {
        let schema = json!({ "type": "object", "required": null, "description": null,
            "properties": { "x": { "const": null, "enum": [null, 1], "title": null } } });
        let kept = json!({ "type": "object", "properties": { "x": { "const": null, "enum": [null, 1] } } });
        assert_eq!(without_nulls(schema), kept);
    }
}
