//! `response_format`: the requested form of an answer, as the JSON schema that nodes receive.

use baton_proto::limits::MAX_SCHEMA_BYTES;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::api_error::ApiError;

/// The parameter.
pub(super) const NAME: &str = "response_format";
/// Longest name of a schema, as in OpenAI's API.
const MAX_NAME_BYTES: usize = 64;

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Format {
    Text {},
    JsonObject {},
    JsonSchema { json_schema: NamedSchema },
}

/// A schema with its name. The answer satisfies it, strict or not.
///
/// Programs see the text of `expecting` in an error.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "struct Named")]
struct NamedSchema {
    name: String,
    #[serde(rename = "description")]
    _description: Option<String>,
    schema: Option<Value>,
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

/// Takes the parameter out of a request: the schema that the answer must satisfy, if any.
pub(super) fn take(rest: &mut Map<String, Value>) -> Result<Option<String>, ApiError> {
    let Some(value) = rest.remove(NAME).filter(|value| !value.is_null()) else { return Ok(None) };
    let kind = value.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    if !matches!(kind.as_str(), "text" | "json_object" | "json_schema") {
        let message = "response_format is of type text, json_object or json_schema";
        return Err(ApiError::unsupported(NAME, message));
    }
    let format: Format = serde_json::from_value(value)
        .map_err(|error| ApiError::value(NAME, format!("response_format cannot be read: {error}")))?;
    let schema = match format {
        Format::Text {} => return Ok(None),
        Format::JsonObject {} => json!({ "type": "object" }),
        Format::JsonSchema { json_schema: NamedSchema { name, schema, .. } } => {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
            if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(plain) {
                let message = "json_schema.name is 1 to 64 of a-z, A-Z, 0-9, underscores and dashes";
                return Err(ApiError::value("response_format.json_schema.name", message));
            }
            match schema {
                Some(schema @ Value::Object(_)) => schema,
                _ => {
                    let message = "json_schema.schema is the schema, an object";
                    return Err(ApiError::value("response_format.json_schema.schema", message));
                }
            }
        }
    };
    check_length(schema.to_string(), "response_format.json_schema.schema").map(Some)
}

/// The schema, unless it is too long; `at` names the parameter.
pub(super) fn check_length(schema: String, at: &str) -> Result<String, ApiError> {
    if schema.len() > MAX_SCHEMA_BYTES {
        let message = format!("the schema has {} bytes, the limit is {MAX_SCHEMA_BYTES}", schema.len());
        return Err(ApiError::value(at, message));
    }
    Ok(schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> Result<Option<String>, ApiError> {
        let mut rest = Map::new();
        rest.insert(NAME.to_owned(), value);
        let taken = take(&mut rest);
        assert!(rest.is_empty());
        taken
    }

    #[test]
    fn a_schema_comes_out_with_its_fields_in_their_order() {
        let schema = json!({ "type": "object", "properties": { "z": {}, "a": {} } });
        let named = |more: Value| {
            let mut named = json!({ "name": "a-Name_1", "schema": schema });
            if let (Value::Object(named), Value::Object(more)) = (&mut named, more) {
                named.extend(more);
            }
            read(json!({ "type": "json_schema", "json_schema": named }))
        };
        let expected = r#"{"type":"object","properties":{"z":{},"a":{}}}"#;
        for more in [json!({}), json!({ "strict": true, "description": "d" }), json!({ "strict": null })] {
            assert_eq!(named(more).unwrap().as_deref(), Some(expected));
        }
        assert_eq!(read(json!({ "type": "json_object" })).unwrap().as_deref(), Some(r#"{"type":"object"}"#));
        for nothing in [json!({ "type": "text" }), Value::Null] {
            assert_eq!(read(nothing).unwrap(), None);
        }
        for wrong in
            [json!({ "name": "a b" }), json!({ "name": "" }), json!({ "schema": true }), json!({ "x": 1 })]
        {
            assert!(named(wrong.clone()).is_err(), "{wrong}");
        }
        assert!(named(json!({ "schema": { "const": "x".repeat(MAX_SCHEMA_BYTES) } })).is_err());
    }

    #[test]
    fn what_is_not_served_is_refused() {
        for wrong in [
            json!("json"),
            json!({}),
            json!({ "type": "grammar" }),
            json!({ "type": "json_schema" }),
            json!({ "type": "json_schema", "json_schema": { "name": "a" } }),
            json!({ "type": "text", "more": 1 }),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
