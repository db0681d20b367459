//! JSON with all digits of its numbers. `serde_json` rounds numbers beyond 64 bits, and long fractions. In a [`Value`] of
//! this module, such a number is a text behind a mark. The mark is random, so no program can send it.

use std::sync::LazyLock;

use axum::{
    http::header,
    response::{IntoResponse as _, Response},
};
use baton_proto::tools::Json;
use serde_json::{Number, Value};

/// Begins a number that `serde_json` would write in another way.
static MARK: LazyLock<String> = LazyLock::new(|| hex::encode(baton_keys::secret::random_bytes::<16>()) + " ");

/// Reads a text that is exactly one value.
pub(crate) fn read(text: &str) -> Option<Value> {
    Json::parse(text).map(value)
}

fn value(json: Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(flag) => flag.into(),
        Json::Number(text) => match text.parse::<Number>() {
            Ok(number) if number.to_string() == *text => number.into(),
            _ => format!("{}{}", *MARK, *text).into(),
        },
        Json::Text(mut text) => std::mem::take(&mut *text).into(),
        Json::List(values) => values.into_iter().map(value).collect(),
        Json::Map(entries) => {
            let entries = entries.into_iter().map(|(mut key, json)| (std::mem::take(&mut *key), value(json)));
            Value::Object(entries.collect())
        }
    }
}

/// Rounds a marked number, or those of a list, for a reader of numbers and texts. Numbers deeper inside stay.
pub(crate) fn round(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(number) = text.strip_prefix(&**MARK) {
                *value = number.parse::<f64>().map_or(0.0, |number| number.clamp(f64::MIN, f64::MAX)).into();
            }
        }
        Value::Array(items) => items.iter_mut().filter(|item| item.is_string()).for_each(round),
        _ => {}
    }
}

/// A response with this body.
pub(crate) fn respond(body: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], write(body)).into_response()
}

/// The text of a value.
pub(crate) fn write(value: &Value) -> String {
    restored(value.to_string())
}

/// A text of JSON with its numbers in the place of the marked texts.
pub(crate) fn restored(text: String) -> String {
    let mark = format!("\"{}", *MARK);
    let mut parts = text.split(&mark);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (number, rest) = part.split_once('"').unwrap_or((part, ""));
        out.extend([number, rest]);
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_keep_their_digits_and_a_reader_of_numbers_rounds_them() {
        let text = r#"{"a":[18446744073709551616,-1.0,0.12345678901234567890,"1e400",1e400],"b":{"c":1.50}}"#;
        let mut read = read(text).unwrap();
        assert_eq!(write(&read), text);
        round(&mut read["a"]);
        round(&mut read["b"]);
        assert_eq!(
            read["a"],
            json!([18_446_744_073_709_551_616.0, -1.0, 0.123_456_789_012_345_68, "1e400", f64::MAX])
        );
        assert_eq!(write(&read["b"]), r#"{"c":1.50}"#);
    }
}
