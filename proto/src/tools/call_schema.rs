//! The JSON schema of a call, for an answer that must be one, or for the calls within an answer.
//!
//! A call is `{"name": NAME, "arguments": ARGUMENTS}`, in which the arguments satisfy the tool's own schema.

use zeroize::Zeroizing;

use super::{Definitions, Json};

/// The entries of a map.
type JsonEntries = Vec<(Zeroizing<String>, Json)>;

/// Prefix of the parts of an answer's schema.
const ANSWER_PREFIX: &str = "answer_";
/// Where a schema keeps the parts to which it refers.
const PART_KEYS: [&str; 2] = ["$defs", "definitions"];

/// The arguments that a call may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallArguments {
    /// Those that satisfy the tool's schema.
    Checked,
    /// Any map.
    Any,
}

/// Why there is no schema of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallSchemaError {
    /// No tool has the name.
    #[error("no tool is named {0:?}")]
    NoTool(String),
    /// The parameters of the tool with this index refer to something other than their own definitions.
    #[error("the parameters of a tool refer to their own $defs alone")]
    Reference(usize),
    /// The schema of the answer refers to something other than its own definitions.
    #[error("beside tools, the schema of an answer refers to its own $defs alone")]
    AnswerReference,
}

/// The schema of a call to one of the tools, or to the named one.
///
/// # Errors
/// [`CallSchemaError`].
pub fn call_schema(
    tools: &Definitions,
    named: Option<&str>,
    checked: CallArguments,
) -> Result<String, CallSchemaError> {
    if let Some(name) = named
        && !tools.has(name)
    {
        return Err(CallSchemaError::NoTool(name.to_owned()));
    }
    let mut parts = JsonEntries::new();
    let calls = calls(tools, named, checked, &mut parts)?;
    Ok(either(calls, parts))
}

/// The schema of an answer that is a call to one of the tools, or else satisfies `answer`.
///
/// # Errors
/// [`CallSchemaError`].
pub fn call_or_answer_schema(tools: &Definitions, answer: Json) -> Result<String, CallSchemaError> {
    let mut parts = JsonEntries::new();
    let mut all = calls(tools, None, CallArguments::Checked, &mut parts)?;
    let answer = apart(answer, ANSWER_PREFIX, &mut parts);
    all.push(answer.ok_or(CallSchemaError::AnswerReference)?);
    Ok(either(all, parts))
}

/// Keywords that describe properties beside `properties`.
const OPENING: [&str; 6] = ["additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf"];

/// The schemas of the calls to the tools, or to the named one.
fn calls(
    tools: &Definitions,
    named: Option<&str>,
    checked: CallArguments,
    parts: &mut JsonEntries,
) -> Result<Vec<Json>, CallSchemaError> {
    let kind = || ("type", Json::text("object"));
    let closed = || ("additionalProperties", Json::Bool(false));
    let mut calls = Vec::new();
    for (index, tool) in tools.tools().iter().enumerate() {
        let function = tool.get("function");
        let name = function.and_then(|function| function.get("name")).and_then(Json::as_text);
        let Some(name) = name.filter(|name| named.is_none_or(|named| named == *name)) else { continue };
        let arguments = match function.and_then(|function| function.get("parameters")) {
            _ if checked == CallArguments::Any => Json::map([kind()]),
            Some(Json::Map(parameters)) => {
                let schema = Json::Map(with_object_type(parameters));
                apart(schema, &format!("tool{index}_"), parts).ok_or(CallSchemaError::Reference(index))?
            }
            // A function without parameters has none.
            Some(Json::Null) | None => Json::map([kind(), ("properties", Json::map([])), closed()]),
            Some(_) => Json::map([kind()]),
        };
        let name = Json::map([("const", Json::text(name))]);
        calls.push(Json::map([
            kind(),
            ("properties", Json::map([("name", name), ("arguments", arguments)])),
            ("required", Json::List(vec![Json::text("name"), Json::text("arguments")])),
            closed(),
        ]));
    }
    Ok(calls)
}

/// The schema of a call's arguments. They are an object, also where the tool's schema does not say so. No properties are
/// none; otherwise a model invents some.
fn with_object_type(parameters: &JsonEntries) -> JsonEntries {
    let has =
        |entries: &JsonEntries, names: &[&str]| entries.iter().any(|(key, _)| names.contains(&key.as_str()));
    let mut schema = parameters.clone();
    let add =
        |schema: &mut JsonEntries, key: &str, value| schema.push((Zeroizing::new(key.to_owned()), value));
    if !has(&schema, &["type"]) {
        add(&mut schema, "type", Json::text("object"));
    }
    let is_empty = |value: &Json| *value == Json::Null || *value == Json::map([]);
    if !has(&schema, &OPENING)
        && schema.iter().all(|(key, value)| key.as_str() != "properties" || is_empty(value))
    {
        schema.retain(|(key, _)| key.as_str() != "properties");
        add(&mut schema, "properties", Json::map([]));
        add(&mut schema, "additionalProperties", Json::Bool(false));
    }
    schema
}

/// The schema of a value that satisfies one of these, which refer to these parts.
fn either(schemas: Vec<Json>, parts: JsonEntries) -> String {
    let mut schema = match <[Json; 1]>::try_from(schemas) {
        Ok([schema]) => schema,
        Err(schemas) => Json::map([("anyOf", Json::List(schemas))]),
    };
    if let (false, Json::Map(schema)) = (parts.is_empty(), &mut schema) {
        schema.push((Zeroizing::new("$defs".to_owned()), Json::Map(parts)));
    }
    schema.write().to_string()
}

/// A schema without its parts, which go to `parts` under names with this prefix. None if it refers elsewhere.
fn apart(mut schema: Json, prefix: &str, parts: &mut JsonEntries) -> Option<Json> {
    let mut own = JsonEntries::new();
    if let Json::Map(fields) = &mut schema {
        fields.retain_mut(|(key, value)| match value {
            Json::Map(map) if PART_KEYS.contains(&key.as_str()) => {
                own.append(map);
                false
            }
            _ => true,
        });
    }
    refer(&mut schema, prefix)?;
    for (name, mut part) in own {
        refer(&mut part, prefix)?;
        parts.push((Zeroizing::new(format!("{prefix}{}", *name)), part));
    }
    Some(schema)
}

/// Renames the references of a schema to its parts. None if it refers elsewhere.
fn refer(schema: &mut Json, prefix: &str) -> Option<()> {
    match schema {
        Json::Map(entries) => entries.iter_mut().try_for_each(|(key, value)| {
            if let (true, Json::Text(target)) = (key.as_str() == "$ref", &mut *value) {
                let name = PART_KEYS.iter().find_map(|key| target.strip_prefix(&format!("#/{key}/")))?;
                *target = Zeroizing::new(format!("#/$defs/{prefix}{name}"));
            }
            refer(value, prefix)
        }),
        Json::List(list) => list.iter_mut().try_for_each(|value| refer(value, prefix)),
        _ => Some(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn tools(tools: &Value) -> Definitions {
        let Some(Json::List(tools)) = Json::parse(&tools.to_string()) else { panic!("a list") };
        Definitions::of(tools).unwrap()
    }

    fn tool(name: &str, parameters: &Value) -> Value {
        json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
    }

    fn schema(tools: &Definitions, named: Option<&str>) -> Result<Value, CallSchemaError> {
        let text = call_schema(tools, named, CallArguments::Checked)?;
        Ok(serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn a_call_to_any_tool_or_to_one() {
        let weather = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
        let now = json!({ "type": "function", "function": { "name": "now" } });
        let tools = tools(&json!([tool("weather", &weather), now]));
        let any = schema(&tools, None).unwrap();
        assert_eq!(any["anyOf"].as_array().unwrap().len(), 2);
        assert_eq!(any["anyOf"][0]["properties"]["arguments"], weather);
        let one = schema(&tools, Some("now")).unwrap();
        assert_eq!(one["properties"]["name"], json!({ "const": "now" }));
        let none = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        assert_eq!(one["properties"]["arguments"], none);
        assert_eq!(schema(&tools, Some("then")), Err(CallSchemaError::NoTool("then".to_owned())));
        let loose = call_schema(&tools, Some("weather"), CallArguments::Any).unwrap();
        assert!(!loose.contains("city"));
    }

    #[test]
    fn a_tool_without_properties_has_no_arguments() {
        let arguments = |parameters: Value| {
            schema(&tools(&json!([tool("ping", &parameters)])), None).unwrap()["properties"]["arguments"]
                .clone()
        };
        let none = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        assert_eq!(arguments(json!({ "type": "object" })), none);
        assert_eq!(arguments(json!({ "type": "object", "properties": null })), none);
        assert_eq!(arguments(json!({ "type": "object", "properties": {} })), none);
        assert_eq!(arguments(json!({ "properties": {}, "type": "object" })), none);
        for open in [
            json!({ "type": "object", "properties": {}, "additionalProperties": true }),
            json!({ "type": "object", "properties": {}, "additionalProperties": { "type": "string" } }),
            json!({ "type": "object", "properties": {}, "patternProperties": { "a": {} } }),
        ] {
            assert_eq!(arguments(open.clone()), open);
        }
    }

    #[test]
    fn parts_of_two_tools_keep_apart() {
        let with_part = |kind: &str| {
            json!({
                "type": "object",
                "properties": { "place": { "$ref": "#/$defs/Place" } },
                "$defs": { "Place": { "type": kind, "items": { "$ref": "#/$defs/Place" } } },
            })
        };
        let tools = tools(&json!([tool("a", &with_part("string")), tool("b", &with_part("array"))]));
        let any = schema(&tools, None).unwrap();
        let place = &any["anyOf"][1]["properties"]["arguments"]["properties"]["place"];
        assert_eq!(place["$ref"], "#/$defs/tool1_Place");
        assert_eq!(any["$defs"]["tool0_Place"]["type"], "string");
        assert_eq!(any["$defs"]["tool1_Place"]["items"]["$ref"], "#/$defs/tool1_Place");
    }

    #[test]
    fn an_answer_is_a_call_or_has_a_form_of_its_own() {
        let tools = tools(&json!([tool("a", &json!({ "type": "object" }))]));
        let form = json!({
            "type": "object", "properties": { "p": { "$ref": "#/definitions/P" } }, "definitions": { "P": { "type": "null" } },
        });
        let or_answer = |form: &Value| call_or_answer_schema(&tools, Json::parse(&form.to_string()).unwrap());
        let text = or_answer(&form).unwrap();
        let schema: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(schema["anyOf"][0]["properties"]["name"]["const"], "a");
        assert_eq!(schema["anyOf"][1]["properties"]["p"]["$ref"], "#/$defs/answer_P");
        assert_eq!(schema["$defs"]["answer_P"]["type"], "null");
        let elsewhere = json!({ "items": { "$ref": "#" } });
        assert_eq!(or_answer(&elsewhere), Err(CallSchemaError::AnswerReference));
    }

    #[test]
    fn a_schema_that_refers_elsewhere_has_none() {
        let circular = json!({ "type": "object", "properties": { "more": { "$ref": "#" } } });
        let tools = tools(&json!([tool("a", &circular)]));
        assert_eq!(schema(&tools, None), Err(CallSchemaError::Reference(0)));
    }
}
