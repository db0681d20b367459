//! Adds the constraints of fields to the OpenAPI document, by the names of fields: a project has the same form in
//! each request and answer. Pure.

use serde_json::Value;
use utoipa::{
    Number,
    openapi::{
        Array, KnownFormat, OpenApi, RefOr, Schema, SchemaFormat,
        path::Operation,
        schema::{AnyOf, ArrayItems, Object, SchemaType, Type},
    },
};

use super::{
    extract::SHARED,
    limits::{MAX_FACTS, MAX_FILTER_NAMES, MAX_IDS},
    open,
};

/// A constraint of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldForm {
    /// 1 to 256 bytes, not only space, without control characters. The document counts characters, of which there
    /// are at most as many.
    Name,
    /// A name that is not the shared pool's.
    Project,
    /// This many hex characters.
    Hex(u8),
    /// RFC 3339.
    Time,
    /// At most this many bytes.
    Bytes(usize),
    /// At most this many bytes, and not only space.
    Words(usize),
    /// Not only space.
    NotBlank,
    /// 0x and 64 hex characters.
    Account,
    /// The time and the name of a namespace.
    Cursor,
    /// One of these.
    OneOf(&'static [&'static str]),
    /// A list of some of these.
    SomeOf(&'static [&'static str]),
    /// A number above 0.
    Positive,
    /// From 0 to this number.
    UpTo(usize),
    /// A number of days: from a hundredth to this number.
    Days(usize),
    /// A list of at most this many values.
    AtMost(usize),
    /// A list with a value.
    AtLeastOne,
    /// A list of 1 to this many values.
    NotEmpty(usize),
    /// A list of 1 to this many ids of 32 hex characters.
    Ids(usize),
}

const KINDS: &[&str] = &["episode", "fact", "entity", "summary"];
const LAYERS: &[&str] = &["profile", "relationship", "episode"];
const AUTHORS: &[&str] = &["user", "assistant", "owner", "import"];
const SCOPES: &[&str] = &["read", "write", "chat", "admin", "intimate"];
const MEMORY_SCOPES: &[&str] =
    &["full", "neutral_and_relationship", "relationship_only", "neutral_only", "insights_only", "none"];

/// The form of a time (RFC 3339, section 5.6), after 1970 in every zone.
const TIME_PATTERN: &str = r"^(197[1-9]|19[89][0-9]|[2-9][0-9]{3})-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})$";

/// The first and last characters of each range of white space in Unicode, which `str::trim` removes. `\s` of a pattern
/// (ECMA-262) is another set: it has U+FEFF, and lacks U+0085.
const SPACES: [(char, char); 10] = [
    ('\t', '\r'),
    (' ', ' '),
    ('\u{85}', '\u{85}'),
    ('\u{a0}', '\u{a0}'),
    ('\u{1680}', '\u{1680}'),
    ('\u{2000}', '\u{200a}'),
    ('\u{2028}', '\u{2029}'),
    ('\u{202f}', '\u{202f}'),
    ('\u{205f}', '\u{205f}'),
    ('\u{3000}', '\u{3000}'),
];

/// The control characters, in a class of a pattern.
const CONTROLS: &str = r"\u0000-\u001f\u007f-\u009f";

/// The spaces, in a class of a pattern.
fn spaces() -> String {
    let range = |(first, last): &(char, char)| {
        let of = |character: &char| format!("\\u{:04x}", u32::from(*character));
        if first == last { of(first) } else { format!("{}-{}", of(first), of(last)) }
    };
    SPACES.iter().map(range).collect()
}

/// The form of a text with a character that is no space.
fn words_pattern() -> String {
    format!("[^{}]", spaces())
}

/// The form of a name: a character that is no space, among others that are no control characters.
fn name_pattern() -> String {
    format!("^[^{CONTROLS}]*[^{}{CONTROLS}][^{CONTROLS}]*$", spaces())
}

/// Most bytes of a text to remember.
const MAX_TEXT: usize = 64 * 1024;

/// Fields with the same form in all schemas and parameters.
const FIELDS: &[(&str, FieldForm)] = &[
    ("project", FieldForm::Name),
    ("namespace", FieldForm::Name),
    ("session", FieldForm::Name),
    ("persona", FieldForm::Name),
    ("not_session", FieldForm::Name),
    ("parent", FieldForm::Name),
    ("idempotency_key", FieldForm::Bytes(256)),
    ("superseded_by", FieldForm::Hex(32)),
    ("owner_key", FieldForm::Hex(64)),
    ("delegate_key", FieldForm::Hex(64)),
    ("relayer", FieldForm::Hex(64)),
    ("key", FieldForm::Hex(64)),
    ("signature", FieldForm::Hex(128)),
    ("url_signature", FieldForm::Hex(128)),
    ("created", FieldForm::Time),
    ("updated", FieldForm::Time),
    ("updated_at", FieldForm::Time),
    ("valid_from", FieldForm::Time),
    ("valid_to", FieldForm::Time),
    ("occurred_at", FieldForm::Time),
    ("since", FieldForm::Time),
    ("until", FieldForm::Time),
    ("expires", FieldForm::Time),
    ("not_before", FieldForm::Time),
    ("time", FieldForm::Time),
    ("before", FieldForm::Time),
    ("author", FieldForm::OneOf(AUTHORS)),
    ("authors", FieldForm::SomeOf(AUTHORS)),
    ("kinds", FieldForm::SomeOf(KINDS)),
    ("layers", FieldForm::SomeOf(LAYERS)),
    ("scopes", FieldForm::OneOf(SCOPES)),
    ("consent", FieldForm::OneOf(&["granted", "pending"])),
    ("decision", FieldForm::OneOf(&["grant", "deny"])),
    ("others", FieldForm::OneOf(&["none", "own", "all"])),
    ("memory_scope", FieldForm::OneOf(MEMORY_SCOPES)),
    ("confirm", FieldForm::Account),
    ("updated_after", FieldForm::Cursor),
];

/// Fields whose form depends on their schema.
const FIELDS_OF_SCHEMAS: &[(&str, &str, FieldForm)] = &[
    ("Dropped", "id", FieldForm::Hex(32)),
    ("HolderJson", "id", FieldForm::Hex(32)),
    ("Item", "id", FieldForm::Hex(32)),
    ("Item", "kind", FieldForm::OneOf(KINDS)),
    ("Item", "layer", FieldForm::OneOf(LAYERS)),
    ("Item", "role", FieldForm::OneOf(&["system", "user", "assistant", "summary"])),
    ("Item", "sources", FieldForm::Hex(32)),
    ("HolderJson", "kind", FieldForm::OneOf(KINDS)),
    ("DelegationJson", "id", FieldForm::Hex(32)),
    ("KnownJson", "id", FieldForm::Hex(32)),
    ("EdgeJson", "from", FieldForm::Hex(32)),
    ("EdgeJson", "to", FieldForm::Hex(32)),
    ("FilterInput", "from", FieldForm::Time),
    ("FactInput", "layer", FieldForm::OneOf(&["profile", "relationship"])),
    ("FactInput", "text", FieldForm::Words(MAX_TEXT)),
    ("EditInput", "text", FieldForm::Words(MAX_TEXT)),
    ("TextInput", "text", FieldForm::Words(MAX_TEXT)),
    ("Analyze", "text", FieldForm::Words(MAX_TEXT)),
    ("Embed", "text", FieldForm::Words(MAX_TEXT)),
    ("Bulk", "items", FieldForm::NotEmpty(MAX_FACTS)),
    ("BulkQuery", "job_ids", FieldForm::AtMost(MAX_FACTS)),
    ("RecallInput", "query", FieldForm::NotBlank),
    ("Ask", "question", FieldForm::NotBlank),
    ("RecallInput", "threshold", FieldForm::UpTo(1)),
    ("FactInput", "salience", FieldForm::UpTo(1)),
    ("ChatInput", "temperature", FieldForm::UpTo(5)),
    ("ScoringWeights", "semantic", FieldForm::UpTo(1000)),
    ("ScoringWeights", "recency", FieldForm::UpTo(1000)),
    ("ScoringWeights", "importance", FieldForm::UpTo(1000)),
    ("ScoringWeights", "recency_half_life_days", FieldForm::Days(36_500)),
    ("RecallInput", "sort", FieldForm::OneOf(&["relevance", "recent"])),
    ("IdsInput", "ids", FieldForm::Ids(MAX_IDS)),
    ("DecideInput", "ids", FieldForm::Ids(MAX_IDS)),
    ("RecallInput", "limit", FieldForm::Positive),
    ("Ask", "limit", FieldForm::Positive),
    ("Restore", "limit", FieldForm::Positive),
    ("", "limit", FieldForm::Positive),
    ("ChatInput", "messages", FieldForm::AtLeastOne),
    ("NameInput", "name", FieldForm::Name),
    ("ProjectInput", "name", FieldForm::Project),
    ("Accepted", "id", FieldForm::Hex(32)),
    ("Accepted", "superseded", FieldForm::Hex(32)),
    ("SessionInput", "name", FieldForm::Name),
    ("ForkInput", "name", FieldForm::Name),
    ("", "name", FieldForm::Name),
    ("Dropped", "reason", FieldForm::OneOf(&["threshold", "limit", "budget", "duplicate"])),
    ("RecallAnswer", "mode", FieldForm::OneOf(&["full", "lexical", "none"])),
];

/// Adds the constraints to all schemas and parameters.
pub(super) fn constrain(document: &mut OpenApi) {
    let components = document.components.iter_mut().flat_map(|components| &mut components.schemas);
    for (name, schema) in components {
        let RefOr::T(schema) = schema else { continue };
        match schema {
            Schema::Object(object) => constrain_fields(name, object),
            // A schema that has the fields of another one, and its own.
            Schema::AllOf(parts) => {
                for part in &mut parts.items {
                    if let RefOr::T(Schema::Object(object)) = part {
                        constrain_fields(name, object);
                    }
                }
            }
            _ => name_variants(schema),
        }
    }
    for item in document.paths.paths.values_mut() {
        for (_, operation) in open::operations(item) {
            constrain_parameters(operation);
        }
    }
}

fn constrain_fields(schema: &str, object: &mut Object) {
    for (field, property) in &mut object.properties {
        widen(property);
        if let Some(form) = form_of(schema, field) {
            apply(property, form);
        }
    }
}

/// A value of an enum without a tag may have the form of several variants: the first that fits counts.
fn name_variants(schema: &mut Schema) {
    if let Schema::OneOf(variants) = schema {
        let mut any = AnyOf::new();
        (any.items, any.description) = (variants.items.clone(), variants.description.clone());
        *schema = Schema::AnyOf(any);
    }
}

/// Numbers without a sign have another format and a larger maximum than those with one.
fn widen(property: &mut RefOr<Schema>) {
    let RefOr::T(Schema::Object(object)) = property else { return };
    let lacks_only_maximum = object.minimum.is_some() && object.maximum.is_none();
    if !is_a(&object.schema_type, &Type::Integer) || !lacks_only_maximum {
        return;
    }
    let (format, most) = match object.format {
        Some(SchemaFormat::KnownFormat(KnownFormat::Int32)) => ("uint32", u32::MAX as usize),
        _ => ("uint64", usize::MAX),
    };
    (object.format, object.maximum) =
        (Some(SchemaFormat::Custom(format.to_owned())), Some(Number::UInt(most)));
}

fn constrain_parameters(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        let form = form_of("", &parameter.name);
        if let (Some(form), Some(schema)) = (form, &mut parameter.schema) {
            apply(schema, form);
            widen(schema);
        }
    }
}

fn form_of(schema: &str, field: &str) -> Option<FieldForm> {
    let own = FIELDS_OF_SCHEMAS.iter().find(|(of, name, _)| *of == schema && *name == field);
    let shared = || FIELDS.iter().find(|(name, _)| *name == field).map(|(_, form)| *form);
    own.map(|(_, _, form)| *form).or_else(shared)
}

fn apply(schema: &mut RefOr<Schema>, form: FieldForm) {
    match schema {
        RefOr::T(Schema::Object(object)) if is_a(&object.schema_type, &Type::String) => {
            apply_to_text(object, form)
        }
        RefOr::T(Schema::Object(object)) => apply_to_number(object, form),
        RefOr::T(Schema::Array(array)) => apply_to_list(array, form),
        _ => {}
    }
}

/// Whether a value may have this type. A field that may be left out may be null too.
fn is_a(kind: &SchemaType, wanted: &Type) -> bool {
    match kind {
        SchemaType::Type(kind) => kind == wanted,
        SchemaType::Array(kinds) => kinds.contains(wanted),
        SchemaType::AnyValue => false,
    }
}

fn apply_to_number(object: &mut Object, form: FieldForm) {
    match form {
        FieldForm::Positive => object.minimum = Some(Number::UInt(1)),
        FieldForm::UpTo(most) => {
            (object.minimum, object.maximum) = (Some(Number::UInt(0)), Some(Number::UInt(most)));
        }
        FieldForm::Days(most) => {
            (object.minimum, object.maximum) = (Some(Number::Float(0.01)), Some(Number::UInt(most)));
        }
        _ => {}
    }
}

fn apply_to_list(array: &mut Array, form: FieldForm) {
    match form {
        FieldForm::NotEmpty(most) | FieldForm::Ids(most) => {
            (array.min_items, array.max_items) = (Some(1), Some(most));
        }
        FieldForm::AtLeastOne => array.min_items = Some(1),
        FieldForm::AtMost(most) => array.max_items = Some(most),
        FieldForm::SomeOf(_) => array.max_items = Some(MAX_FILTER_NAMES),
        _ => {}
    }
    let form = if matches!(form, FieldForm::Ids(_)) { FieldForm::Hex(32) } else { form };
    if let ArrayItems::RefOrSchema(items) = &mut array.items {
        apply(items, form);
    }
}

fn apply_to_text(object: &mut Object, form: FieldForm) {
    match form {
        FieldForm::Name | FieldForm::Project => {
            (object.min_length, object.max_length) = (Some(1), Some(baton_memory::limits::MAX_NAME_BYTES));
            object.pattern = Some(match form {
                FieldForm::Project => format!("^(?!{SHARED}$){}", name_pattern().trim_start_matches('^')),
                _ => name_pattern(),
            });
        }
        FieldForm::Hex(digits) => object.pattern = Some(format!("^[0-9a-fA-F]{{{digits}}}$")),
        FieldForm::Time => {
            object.format = Some(SchemaFormat::KnownFormat(KnownFormat::DateTime));
            object.pattern = Some(TIME_PATTERN.to_owned());
        }
        FieldForm::Bytes(most) => object.max_length = Some(most),
        FieldForm::Words(most) => {
            (object.min_length, object.max_length) = (Some(1), Some(most));
            object.pattern = Some(words_pattern());
        }
        FieldForm::NotBlank => {
            object.min_length = Some(1);
            object.pattern = Some(words_pattern());
        }
        FieldForm::Account => object.pattern = Some("^0x[0-9a-fA-F]{64}$".to_owned()),
        FieldForm::Cursor => object.pattern = Some("^[0-9]{1,19}\\.([0-9a-f]{2})*$".to_owned()),
        FieldForm::OneOf(names) | FieldForm::SomeOf(names) => {
            let mut values: Vec<Value> = names.iter().map(|name| Value::from(*name)).collect();
            if is_a(&object.schema_type, &Type::Null) {
                values.push(Value::Null);
            }
            object.enum_values = Some(values);
        }
        FieldForm::Positive
        | FieldForm::UpTo(_)
        | FieldForm::Days(_)
        | FieldForm::AtMost(_)
        | FieldForm::AtLeastOne
        | FieldForm::NotEmpty(_)
        | FieldForm::Ids(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_has_the_form_of_its_schema_or_else_that_of_its_name() {
        assert_eq!(form_of("EdgeJson", "from"), Some(FieldForm::Hex(32)));
        assert_eq!(form_of("FilterInput", "from"), Some(FieldForm::Time));
        assert_eq!(form_of("", "project"), Some(FieldForm::Name));
        assert_eq!(form_of("Item", "text"), None);
    }

    #[test]
    fn the_spaces_of_patterns_are_those_that_are_trimmed() {
        for character in char::MIN..=char::MAX {
            let is_space = SPACES.iter().any(|(first, last)| (first..=last).contains(&&character));
            assert_eq!(is_space, character.is_whitespace(), "{character:?}");
        }
        assert!(words_pattern().starts_with(r"[^\u0009-\u000d\u0020\u0085"), "{}", words_pattern());
    }
}
