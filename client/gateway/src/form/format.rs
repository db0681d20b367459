//! `response_format`: the requested form of an answer, as the JSON schema that nodes receive.

use baton_proto::limits::MAX_SCHEMA_BYTES;
use serde_json::{Value, json};

use crate::{
    form::fields::{BodyFields, without_nulls},
    http::{api_error::ApiError, exact},
};

/// The parameter.
pub(crate) const NAME: &str = "response_format";
/// Longest name of a schema, as in OpenAI's API.
const MAX_NAME_BYTES: usize = 64;

/// Takes the parameter out of a request: the schema that the answer must satisfy, if any.
pub(crate) fn take(fields: &mut BodyFields) -> Result<Option<String>, ApiError> {
    let Some(mut format) = fields.object(NAME)? else { return Ok(None) };
    let schema = match format.text("type")?.as_deref() {
        Some("text") => None,
        Some("json_object") => Some(json!({ "type": "object" }).to_string()),
        Some("json_schema") => Some(take_schema(&mut format)?),
        _ => {
            let message = "response_format is of type text, json_object or json_schema";
            return Err(ApiError::unsupported(NAME, message));
        }
    };
    format.refuse_rest(NAME)?;
    Ok(schema)
}

/// A form with its schema beside the type, as some APIs write it, in the shape of [`NAME`].
pub(crate) fn nested(form: Value) -> Value {
    match form {
        Value::Object(mut fields) if fields.get("type") == Some(&json!("json_schema")) => {
            fields.shift_remove("type");
            fields.entry("name").or_insert_with(|| "answer".into());
            json!({ "type": "json_schema", "json_schema": fields })
        }
        other => other,
    }
}

/// Takes a schema with its name. The answer satisfies it, strict or not.
fn take_schema(format: &mut BodyFields) -> Result<String, ApiError> {
    let missing =
        || ApiError::value(&format!("{NAME}.json_schema"), "json_schema is the schema with its name");
    let mut named = format.object("json_schema")?.ok_or_else(missing)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let name = named.text("name")?.unwrap_or_default();
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(plain) {
        let message = "json_schema.name is 1 to 64 of a-z, A-Z, 0-9, underscores and dashes";
        return Err(ApiError::value(&named.at("name"), message));
    }
    named.text("description")?;
    named.flag("strict")?;
    let at = named.at("schema");
    let Some(schema @ Value::Object(_)) = named.take("schema") else {
        return Err(ApiError::value(&at, "json_schema.schema is the schema, an object"));
    };
    named.refuse_rest("json_schema")?;
    check_length(exact::write(&without_nulls(schema)), &at)
}

/// The schema, unless it is too long; `at` names the parameter.
pub(crate) fn check_length(schema: String, at: &str) -> Result<String, ApiError> {
    if schema.len() > MAX_SCHEMA_BYTES {
        let message = format!("the schema has {} bytes, the limit is {MAX_SCHEMA_BYTES}", schema.len());
        return Err(ApiError::value(at, message));
    }
    Ok(schema)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form::fields::with;

    fn read(value: Value) -> Result<Option<String>, ApiError> {
        let mut fields = BodyFields::of(json!({ NAME: value }), String::new())?;
        let taken = take(&mut fields);
        assert!(fields.rest().is_empty());
        taken
    }

    #[test]
    fn a_schema_comes_out_with_its_fields_in_their_order() {
        let schema = json!({ "type": "object", "properties": { "z": {}, "a": {} } });
        let named = |more: Value| {
            let named = with(json!({ "name": "a-Name_1", "schema": schema }), more);
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
    fn a_schema_keeps_all_digits_of_its_numbers() {
        let schema =
            r#"{"enum":[9007199254740993,123456789012345678901234567890],"minimum":0.12345678901234567890}"#;
        let body = format!(
            r#"{{"{NAME}":{{"type":"json_schema","json_schema":{{"name":"n","schema":{schema}}}}}}}"#
        );
        let mut fields = BodyFields::of_body(body.as_bytes()).unwrap();
        assert_eq!(take(&mut fields).unwrap().as_deref(), Some(schema));
    }

    #[test]
    fn what_is_not_served_is_refused() {
        let text = json!({ "type": "text", "more": 1 });
        for wrong in [json!("json"), json!({}), json!({ "type": "json_schema" }), text] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
