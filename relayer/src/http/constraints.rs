//! Adds the constraints of fields to the OpenAPI document, by the names of fields: a project has the same form in
//! each request and answer. Pure.

use serde_json::Value;
use utoipa::openapi::{
    Array, KnownFormat, OpenApi, RefOr, Schema, SchemaFormat,
    path::Operation,
    schema::{ArrayItems, Object, SchemaType, Type},
};

use super::open;

/// A constraint of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextForm {
    /// 1 to 256 bytes without control characters. The document counts characters, of which there are at most as
    /// many.
    Name,
    /// This many hex characters.
    Hex(u8),
    /// RFC 3339.
    Time,
    /// At most this many bytes.
    Bytes(usize),
    /// One of these.
    OneOf(&'static [&'static str]),
}

const KINDS: &[&str] = &["episode", "fact", "entity", "summary"];
const LAYERS: &[&str] = &["profile", "relationship", "episode"];
const AUTHORS: &[&str] = &["user", "assistant", "owner", "import"];
const SCOPES: &[&str] = &["read", "write", "chat", "admin", "intimate"];

/// Fields with the same form in all schemas and parameters.
const FIELDS: &[(&str, TextForm)] = &[
    ("project", TextForm::Name),
    ("session", TextForm::Name),
    ("persona", TextForm::Name),
    ("not_session", TextForm::Name),
    ("parent", TextForm::Name),
    ("idempotency_key", TextForm::Bytes(256)),
    ("superseded_by", TextForm::Hex(32)),
    ("owner_key", TextForm::Hex(64)),
    ("delegate_key", TextForm::Hex(64)),
    ("relayer", TextForm::Hex(64)),
    ("key", TextForm::Hex(64)),
    ("signature", TextForm::Hex(128)),
    ("url_signature", TextForm::Hex(128)),
    ("created", TextForm::Time),
    ("updated", TextForm::Time),
    ("updated_at", TextForm::Time),
    ("valid_from", TextForm::Time),
    ("valid_to", TextForm::Time),
    ("occurred_at", TextForm::Time),
    ("since", TextForm::Time),
    ("until", TextForm::Time),
    ("expires", TextForm::Time),
    ("not_before", TextForm::Time),
    ("time", TextForm::Time),
    ("before", TextForm::Time),
    ("author", TextForm::OneOf(AUTHORS)),
    ("authors", TextForm::OneOf(AUTHORS)),
    ("kinds", TextForm::OneOf(KINDS)),
    ("layers", TextForm::OneOf(LAYERS)),
    ("scopes", TextForm::OneOf(SCOPES)),
    ("consent", TextForm::OneOf(&["granted", "pending"])),
    ("decision", TextForm::OneOf(&["grant", "deny"])),
    ("others", TextForm::OneOf(&["none", "own", "all"])),
];

/// Fields whose form depends on their schema.
const FIELDS_OF_SCHEMAS: &[(&str, &str, TextForm)] = &[
    ("Dropped", "id", TextForm::Hex(32)),
    ("HolderJson", "id", TextForm::Hex(32)),
    ("Item", "id", TextForm::Hex(32)),
    ("Item", "kind", TextForm::OneOf(KINDS)),
    ("Item", "layer", TextForm::OneOf(LAYERS)),
    ("Item", "role", TextForm::OneOf(&["system", "user", "assistant", "summary"])),
    ("Item", "sources", TextForm::Hex(32)),
    ("HolderJson", "kind", TextForm::OneOf(KINDS)),
    ("DelegationJson", "id", TextForm::Hex(32)),
    ("KnownJson", "id", TextForm::Hex(32)),
    ("EdgeJson", "from", TextForm::Hex(32)),
    ("EdgeJson", "to", TextForm::Hex(32)),
    ("FilterInput", "from", TextForm::Time),
    ("FactInput", "layer", TextForm::OneOf(&["profile", "relationship"])),
    ("FactInput", "text", TextForm::Bytes(64 * 1024)),
    ("TextInput", "text", TextForm::Bytes(64 * 1024)),
    ("Dropped", "reason", TextForm::OneOf(&["threshold", "limit", "budget", "duplicate"])),
    ("RecallAnswer", "mode", TextForm::OneOf(&["full", "lexical", "none"])),
];

/// Adds the constraints to all schemas and parameters.
pub(super) fn constrain(document: &mut OpenApi) {
    let components = document.components.iter_mut().flat_map(|components| &mut components.schemas);
    for (name, schema) in components {
        let RefOr::T(Schema::Object(object)) = schema else { continue };
        for (field, property) in &mut object.properties {
            if let Some(form) = form_of(name, field) {
                apply(property, form);
            }
        }
    }
    for item in document.paths.paths.values_mut() {
        for (_, operation) in open::operations(item) {
            constrain_parameters(operation);
        }
    }
}

fn constrain_parameters(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        let form = form_of("", &parameter.name);
        if let (Some(form), Some(schema)) = (form, &mut parameter.schema) {
            apply(schema, form);
        }
    }
}

fn form_of(schema: &str, field: &str) -> Option<TextForm> {
    let own = FIELDS_OF_SCHEMAS.iter().find(|(of, name, _)| *of == schema && *name == field);
    let shared = || FIELDS.iter().find(|(name, _)| *name == field).map(|(_, form)| *form);
    own.map(|(_, _, form)| *form).or_else(shared)
}

fn apply(schema: &mut RefOr<Schema>, form: TextForm) {
    match schema {
        RefOr::T(Schema::Object(object)) if is_text(&object.schema_type) => apply_to_text(object, form),
        RefOr::T(Schema::Array(Array { items: ArrayItems::RefOrSchema(items), .. })) => apply(items, form),
        _ => {}
    }
}

/// Whether a value may be a text. A field that may be left out may be null too.
fn is_text(kind: &SchemaType) -> bool {
    match kind {
        SchemaType::Type(kind) => *kind == Type::String,
        SchemaType::Array(kinds) => kinds.contains(&Type::String),
        SchemaType::AnyValue => false,
    }
}

fn apply_to_text(object: &mut Object, form: TextForm) {
    match form {
        TextForm::Name => {
            (object.min_length, object.max_length) = (Some(1), Some(baton_memory::limits::MAX_NAME_BYTES));
            object.pattern = Some("^[^\\u0000-\\u001f\\u007f-\\u009f]+$".to_owned());
        }
        TextForm::Hex(digits) => object.pattern = Some(format!("^[0-9a-fA-F]{{{digits}}}$")),
        TextForm::Time => object.format = Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)),
        TextForm::Bytes(most) => object.max_length = Some(most),
        TextForm::OneOf(names) => {
            let mut values: Vec<Value> = names.iter().map(|name| Value::from(*name)).collect();
            if matches!(&object.schema_type, SchemaType::Array(kinds) if kinds.contains(&Type::Null)) {
                values.push(Value::Null);
            }
            object.enum_values = Some(values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_has_the_form_of_its_schema_or_else_that_of_its_name() {
        assert_eq!(form_of("EdgeJson", "from"), Some(TextForm::Hex(32)));
        assert_eq!(form_of("FilterInput", "from"), Some(TextForm::Time));
        assert_eq!(form_of("", "project"), Some(TextForm::Name));
        assert_eq!(form_of("Item", "text"), None);
    }
}
