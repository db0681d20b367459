//! Adds the constraints of fields to the OpenAPI document, by the names of fields: a project has the same form in
//! each request and answer. Pure.

use baton_memory::{
    limits::{MAX_IDEMPOTENCY_BYTES, MAX_NAME_BYTES},
    model::{Author, Kind, Layer, MemoryScope, Role},
};
use serde_json::{Value, json};

use super::{
    extract::SHARED,
    limits::{MAX_ANALYZE_BYTES, MAX_FACTS, MAX_FILTER_NAMES, MAX_IDS},
};

/// The form of a time (RFC 3339, section 5.6), after 1970 in every zone.
const TIME_PATTERN: &str = r"^(197[1-9]|19[89][0-9]|[2-9][0-9]{3})-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})$";

/// The white space of Unicode, which `str::trim` removes, in a class of a pattern. `\s` of a pattern (ECMA-262) is
/// another set: it has U+FEFF, and lacks U+0085.
const SPACES: &str = r"\u0009-\u000d\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028-\u2029\u202f\u205f\u3000";

/// The control characters, in a class of a pattern.
const CONTROLS: &str = r"\u0000-\u001f\u007f-\u009f";

/// 1 to 256 bytes, not only space, without control characters. The document counts characters, of which there are at
/// most as many.
fn name(pattern_start: &str) -> Value {
    let pattern = format!("{pattern_start}[^{CONTROLS}]*[^{SPACES}{CONTROLS}][^{CONTROLS}]*$");
    json!({ "minLength": 1, "maxLength": MAX_NAME_BYTES, "pattern": pattern })
}

fn hex(digits: usize) -> Value {
    json!({ "pattern": format!("^[0-9a-fA-F]{{{digits}}}$") })
}

/// Not only space.
fn not_blank() -> Value {
    json!({ "minLength": 1, "pattern": format!("[^{SPACES}]") })
}

fn one_of<'a>(names: impl IntoIterator<Item = &'a str>) -> Value {
    json!({ "enum": names.into_iter().collect::<Vec<_>>() })
}

/// The form of a field or, without a schema, of a parameter. For a list, it is the form of each item.
fn form_of(schema: &str, field: &str) -> Option<Value> {
    Some(match (schema, field) {
        ("Item" | "HolderJson", "kind") | (_, "kinds") => one_of(Kind::ALL.iter().map(|kind| kind.name())),
        ("FactInput", "layer") => one_of([Layer::Profile.name(), Layer::Relationship.name()]),
        ("Item", "layer") | (_, "layers") => one_of(Layer::ALL.iter().map(|layer| layer.name())),
        ("Item", "role") => one_of(Role::ALL.iter().map(|role| role.name())),
        (_, "author" | "authors") => one_of(Author::ALL.iter().map(|author| author.name())),
        (_, "memory_scope") => one_of(MemoryScope::ALL.iter().map(|scope| scope.name())),
        (_, "consent") => one_of(["granted", "pending"]),
        (_, "decision") => one_of(["grant", "deny"]),
        (_, "others") => one_of(["none", "own", "all"]),
        ("RecallInput", "sort") => one_of(["relevance", "recent"]),
        ("Dropped", "reason") => one_of(["threshold", "limit", "budget", "duplicate"]),
        ("RecallAnswer", "mode") => one_of(["full", "lexical", "none"]),
        ("Dropped" | "HolderJson" | "Item" | "KnownJson" | "Accepted", "id")
        | ("EdgeJson", "from" | "to")
        | ("Item", "sources")
        | ("Accepted", "superseded")
        | ("IdsInput" | "DecideInput", "ids")
        | (_, "superseded_by") => hex(32),
        (_, "relayer") => hex(64),
        (_, "url_signature") => hex(128),
        (_, "confirm") => json!({ "pattern": "^0x[0-9a-fA-F]{64}$" }),
        (_, "updated_after") => json!({ "pattern": "^[0-9]{1,19}\\.([0-9a-f]{2})*$" }),
        ("FilterInput", "from")
        | (_, "created" | "updated" | "updated_at" | "valid_from" | "valid_to" | "occurred_at")
        | (_, "until" | "time" | "before") => {
            json!({ "format": "date-time", "pattern": TIME_PATTERN })
        }
        ("ProjectInput", "name") => name(&format!("^(?!{SHARED}$)")),
        ("NameInput" | "SessionInput" | "ForkInput" | "", "name")
        | (_, "project" | "namespace" | "session" | "persona" | "not_session" | "parent") => name("^"),
        (_, "idempotency_key") => json!({ "maxLength": MAX_IDEMPOTENCY_BYTES }),
        ("FactInput" | "EditInput" | "TextInput" | "Analyze" | "Embed", "text") => {
            let mut text = not_blank();
            text["maxLength"] = MAX_ANALYZE_BYTES.into();
            text
        }
        ("RecallInput", "query") | ("Ask", "question") => not_blank(),
        ("RecallInput" | "Ask" | "Restore" | "", "limit") => json!({ "minimum": 1 }),
        ("RecallInput", "threshold") | ("FactInput", "salience") => json!({ "minimum": 0, "maximum": 1 }),
        ("ChatInput", "temperature") => json!({ "minimum": 0, "maximum": 5 }),
        ("ScoringWeights", "recency_half_life_days") => json!({ "minimum": 0.01, "maximum": 36_500 }),
        ("ScoringWeights", _) => json!({ "minimum": 0, "maximum": 1_000 }),
        _ => return None,
    })
}

/// The bounds of a list.
fn length_of(schema: &str, field: &str) -> Value {
    match (schema, field) {
        ("IdsInput" | "DecideInput", "ids") => json!({ "minItems": 1, "maxItems": MAX_IDS }),
        (_, "kinds" | "layers" | "authors") => json!({ "maxItems": MAX_FILTER_NAMES }),
        ("Bulk", "items") => json!({ "minItems": 1, "maxItems": MAX_FACTS }),
        ("BulkQuery", "job_ids") => json!({ "maxItems": MAX_FACTS }),
        ("ChatInput", "messages") => json!({ "minItems": 1 }),
        _ => json!({}),
    }
}

/// Adds the constraints to all schemas and parameters.
pub(super) fn constrain(document: &mut Value) {
    for (name, schema) in fields_of(document.pointer_mut("/components/schemas")) {
        // A value of an enum without a tag may have the form of several variants: the first that fits counts.
        if let Some(variants) = schema.as_object_mut().and_then(|schema| schema.remove("oneOf")) {
            schema["anyOf"] = variants;
        }
        constrain_fields(name, schema);
        // A schema that has the fields of another one, and its own.
        let parts = schema.get_mut("allOf").and_then(Value::as_array_mut);
        parts.into_iter().flatten().for_each(|part| constrain_fields(name, part));
    }
    let items = fields_of(document.get_mut("paths"));
    for (_, operation) in items.flat_map(|(_, item)| fields_of(Some(item))) {
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for parameter in parameters.into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap_or_default().to_owned();
            apply(&mut parameter["schema"], "", &name);
        }
    }
    widen(document);
}

fn fields_of(object: Option<&mut Value>) -> impl Iterator<Item = (&String, &mut Value)> {
    object.and_then(Value::as_object_mut).into_iter().flatten()
}

fn constrain_fields(name: &str, schema: &mut Value) {
    fields_of(schema.get_mut("properties")).for_each(|(field, property)| apply(property, name, field));
}

fn apply(property: &mut Value, schema: &str, field: &str) {
    let mut each = &mut *property;
    if each.get("items").is_some() {
        merge(each, length_of(schema, field));
        each = &mut each["items"];
    }
    let Some(mut form) = form_of(schema, field) else { return };
    // A field that may be left out may be null too.
    if is_a(each, "null")
        && let Some(Value::Array(names)) = form.get_mut("enum")
    {
        names.push(Value::Null);
    }
    merge(each, form);
}

fn merge(schema: &mut Value, constraints: Value) {
    if let (Value::Object(schema), Value::Object(constraints)) = (schema, constraints) {
        schema.extend(constraints);
    }
}

/// Whether a value may have this type.
fn is_a(schema: &Value, kind: &str) -> bool {
    schema["type"] == kind || schema["type"].as_array().is_some_and(|kinds| kinds.contains(&json!(kind)))
}

/// Numbers without a sign have another format and a larger maximum than those with one.
fn widen(part: &mut Value) {
    if is_a(part, "integer") && part["maximum"].is_null() {
        let is_small = part["format"] == "int32";
        let (format, most) = if is_small { ("uint32", u32::MAX.into()) } else { ("uint64", u64::MAX) };
        (part["format"], part["maximum"]) = (format.into(), most.into());
    }
    match part {
        Value::Array(items) => items.iter_mut().for_each(widen),
        Value::Object(fields) => fields.values_mut().for_each(widen),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_field_has_the_form_of_its_schema_or_else_that_of_its_name() {
        assert_eq!(form_of("EdgeJson", "from"), Some(hex(32)));
        assert_eq!(form_of("FilterInput", "from"), form_of("Item", "time"));
        assert_eq!(form_of("", "project"), Some(name("^")));
        assert_eq!(form_of("Item", "text"), None);
    }

    #[test]
    fn the_spaces_of_patterns_are_those_that_are_trimmed() {
        let (mut listed, mut first) = (BTreeSet::new(), None);
        for code in SPACES.split(r"\u").skip(1) {
            let last = u32::from_str_radix(&code[..4], 16).unwrap();
            listed.extend(first.unwrap_or(last)..=last);
            first = code.ends_with('-').then_some(last);
        }
        let is_space = |code: &u32| char::from_u32(*code).is_some_and(char::is_whitespace);
        assert_eq!(listed, (0..=u32::from(char::MAX)).filter(is_space).collect());
    }
}
