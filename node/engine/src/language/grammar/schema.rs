//! A schema as the grammar library takes it.
//!
//! Keywords that say nothing are left out, sets become lists of their values, and numbers beyond `f64` become
//! placeholders (`numbers.rs`). A keyword that the library does not hold is refused by its name and place.

use serde_json::{Map, Value, json};

use super::numbers::{self, Limit, Numbers, has_mark};
use crate::language::LanguageError;

/// Keywords that describe a value, and constrain nothing.
const ANNOTATIONS: [&str; 14] = [
    "$comment",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "deprecated",
    "description",
    "discriminator",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];
/// Keywords that the library does not hold.
const UNSUPPORTED: [&str; 16] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];
/// The formats that the library holds; any other is an annotation.
const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];
/// Keywords with a schema, with a list of schemas, and with a map of them.
const INNER: [&str; 3] = ["additionalItems", "additionalProperties", "items"];
const LISTS: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
const MAPS: [&str; 4] = ["$defs", "definitions", "patternProperties", "properties"];
/// Keywords beside which a schema still says what it says.
const SILENT: [&str; 5] = ["$defs", "$id", "$schema", "definitions", "x-guidance"];
/// Keywords that take in other schemas of the same value.
const COMBINING: [&str; 4] = ["$ref", "allOf", "anyOf", "oneOf"];
/// Keywords of definitions.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];
/// Bounds, the lower ones first.
const BOUNDS: [&str; 4] = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"];
/// Keywords that messages of the library name.
const KEYWORDS: [&str; 22] = [
    "additionalProperties",
    "allOf",
    "anyOf",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
];
const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
/// Most values of a set's type. All lists of distinct values are more than the library takes soon.
const MAX_SETS: usize = 400;
/// Most bytes of a place in a refusal.
const MAX_POINTER_BYTES: usize = 256;

/// The refusal of a keyword at a place: `/properties/a/not` is the keyword `not` of the property `a`.
pub(super) fn refused(keyword: &str, pointer: &str, reason: &str) -> LanguageError {
    let shown: String = pointer.chars().filter(|c| !c.is_control()).take(MAX_POINTER_BYTES / 4).collect();
    LanguageError::Schema { reason: format!("`{keyword}` at {shown}/{keyword}: {reason}").into() }
}

/// A step below a place.
fn below(pointer: &str, keyword: &str, key: &str) -> String {
    format!("{pointer}/{keyword}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Calls `visit` with each schema directly within another, and its place.
pub(super) fn each_inner(
    fields: &mut Map<String, Value>,
    pointer: &str,
    visit: &mut dyn FnMut(&mut Value, &str) -> Result<(), LanguageError>,
) -> Result<(), LanguageError> {
    for (keyword, value) in fields {
        match value {
            Value::Array(values) if LISTS.contains(&keyword.as_str()) => {
                for (index, value) in values.iter_mut().enumerate() {
                    visit(value, &below(pointer, keyword, &index.to_string()))?;
                }
            }
            Value::Object(values) if MAPS.contains(&keyword.as_str()) => {
                for (key, value) in values {
                    visit(value, &below(pointer, keyword, key))?;
                }
            }
            value if INNER.contains(&keyword.as_str()) => visit(value, &format!("{pointer}/{keyword}"))?,
            _ => {}
        }
    }
    Ok(())
}

/// The schema as the library takes it, and the numbers of its placeholders.
///
/// # Errors
/// [`LanguageError::Schema`] names a keyword and its place.
pub(super) fn prepared(mut schema: Value) -> Result<(Value, Numbers), LanguageError> {
    rename_definitions(&mut schema);
    let root = schema.clone();
    drop_unused(&mut schema, &root);
    let mut walk = Walk { root: &root, numbers: Numbers::default() };
    walk.schema(&mut schema, "")?;
    if !walk.numbers.is_empty() {
        refuse_combinations(&mut schema, "")?;
        let definitions =
            schema.as_object_mut().map(|fields| fields.entry("$defs").or_insert_with(|| json!({})));
        if let Some(Value::Object(definitions)) = definitions {
            definitions.extend(walk.numbers.definitions());
        }
    }
    Ok((schema, walk.numbers))
}

/// Gives each definition a name that a reference has without escapes, which the library does not take.
fn rename_definitions(schema: &mut Value) {
    for keyword in DEFINITIONS {
        if let Some(Value::Object(definitions)) = schema.get_mut(keyword) {
            let renamed = std::mem::take(definitions).into_iter().map(|(name, value)| (plain(&name), value));
            *definitions = renamed.collect();
        }
    }
    rename_references(schema);
}

fn rename_references(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    if let Some(Value::String(reference)) = fields.get_mut("$ref") {
        let place = DEFINITIONS.iter().find_map(|keyword| {
            let place = reference.strip_prefix("#/")?.strip_prefix(keyword)?.strip_prefix('/')?;
            Some((keyword, place.split_at(place.find('/').unwrap_or(place.len()))))
        });
        if let Some((keyword, (name, rest))) = place {
            *reference = format!("#/{keyword}/{}{rest}", plain(&unescaped(name)));
        }
    }
    // It never fails.
    let _ = each_inner(fields, "", &mut |inner, _| {
        rename_references(inner);
        Ok(())
    });
}

/// A name of letters, digits and a few signs; other characters become their numbers, so that two names stay different.
fn plain(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    name.chars().map(|c| if is_plain(c) { c.to_string() } else { format!("${:x}.", u32::from(c)) }).collect()
}

/// The name that a step of a JSON pointer (RFC 6901) in a URI fragment (RFC 3986) stands for.
fn unescaped(step: &str) -> String {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (mut bytes, mut rest) = (Vec::new(), step.as_bytes());
    while let [first, others @ ..] = rest {
        let code = match others {
            [high, low, ..] if *first == b'%' => digit(*high).zip(digit(*low)),
            _ => None,
        };
        bytes.push(code.map_or(*first, |(high, low)| high << 4 | low));
        rest = if code.is_some() { others.get(2..).unwrap_or_default() } else { others };
    }
    String::from_utf8_lossy(&bytes).replace("~1", "/").replace("~0", "~")
}

/// Leaves out definitions to which nothing refers: the library does not read them either.
fn drop_unused(schema: &mut Value, root: &Value) {
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|field| references(field, found));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    references(root, &mut found);
    for keyword in ["$defs", "definitions"] {
        if let Some(Value::Object(definitions)) = schema.get_mut(keyword) {
            let is_named = |name: &str, reference: &str| {
                let rest = reference.strip_prefix("#/").and_then(|rest| rest.strip_prefix(keyword));
                let rest =
                    rest.and_then(|rest| rest.strip_prefix('/')).and_then(|rest| rest.strip_prefix(name));
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            definitions.retain(|name, _| found.iter().any(|reference| is_named(name, reference)));
        }
    }
}

/// Refuses keywords that combine schemas of one value: a placeholder is compared as the number that it is.
fn refuse_combinations(schema: &mut Value, pointer: &str) -> Result<(), LanguageError> {
    let Value::Object(fields) = schema else { return Ok(()) };
    let says = |key: &&String| !SILENT.contains(&key.as_str());
    let combining = fields.keys().find(|key| COMBINING.contains(&key.as_str()));
    let parts = fields.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    if let Some(keyword) = combining.filter(|_| fields.keys().filter(says).count() > 1 || parts > 1) {
        let reason = "beside numbers of so many digits, it has no other keyword with it";
        return Err(refused(keyword, pointer, reason));
    }
    each_inner(fields, pointer, &mut |inner, place| refuse_combinations(inner, place))
}

/// The keyword at which a message of the library points.
pub(super) fn culprit(message: &str) -> Option<&'static str> {
    const WORDS: [(&str, &str); 12] = [
        ("oneOf", "oneOf"),
        ("min/maxProperties", "minProperties"),
        ("circular references", "$ref"),
        ("patternProperty", "patternProperties"),
        ("multipleOf", "multipleOf"),
        ("inimum", "minimum"),
        ("aximum", "maximum"),
        ("float range", "minimum"),
        ("integer range", "minimum"),
        ("Invalid type", "type"),
        ("type must be", "type"),
        ("egex", "pattern"),
    ];
    let quoted = KEYWORDS.iter().find(|keyword| {
        [format!("'{keyword}'"), format!("{keyword} must")]
            .iter()
            .any(|words| message.contains(words.as_str()))
    });
    let word = || WORDS.iter().find(|(words, _)| message.contains(words)).map(|(_, keyword)| *keyword);
    quoted.copied().or_else(word)
}

/// The places of a keyword, each with the schema that has it and with all definitions.
pub(super) fn places(schema: &mut Value, keyword: &str) -> Vec<(String, Value)> {
    fn visit(
        schema: &mut Value,
        pointer: &str,
        keyword: &str,
        definitions: &Value,
        found: &mut Vec<(String, Value)>,
    ) {
        let Value::Object(fields) = schema else { return };
        if fields.contains_key(keyword)
            || (keyword == "minProperties" && fields.contains_key("maxProperties"))
        {
            let mut alone = fields.clone();
            alone.insert("$defs".to_owned(), definitions.clone());
            found.push((pointer.to_owned(), alone.into()));
        }
        // It never fails.
        let _ = each_inner(fields, pointer, &mut |inner, place| {
            visit(inner, place, keyword, definitions, found);
            Ok(())
        });
    }
    let definitions = schema.get("$defs").cloned().unwrap_or_default();
    let mut found = Vec::new();
    visit(schema, "", keyword, &definitions, &mut found);
    found
}

struct Walk<'a> {
    root: &'a Value,
    numbers: Numbers,
}

impl Walk<'_> {
    fn schema(&mut self, schema: &mut Value, pointer: &str) -> Result<(), LanguageError> {
        let Value::Object(fields) = schema else { return Ok(()) };
        decide_condition(fields);
        let conditional =
            fields.contains_key("if") && ["then", "else"].iter().any(|keyword| fields.contains_key(*keyword));
        let counts = fields.contains_key("maxContains")
            || fields.get("minContains").and_then(Value::as_f64) != Some(0.0);
        let contains = fields.contains_key("contains") && counts;
        fields.retain(|keyword, value| match keyword.as_str() {
            "if" | "then" | "else" => conditional,
            "contains" | "minContains" | "maxContains" => contains,
            keyword => says_something(keyword, value),
        });
        self.reference(fields, pointer)?;
        self.set(fields, pointer)?;
        if let Some(keyword) = fields.keys().find(|keyword| UNSUPPORTED.contains(&keyword.as_str())) {
            return Err(refused(keyword, pointer, "nodes do not hold answers to it"));
        }
        each_inner(fields, pointer, &mut |inner, place| self.schema(inner, place))?;
        self.multiples(fields, pointer)?;
        self.values(fields, pointer)?;
        self.bounds(fields, pointer)
    }

    fn reference(&self, fields: &Map<String, Value>, pointer: &str) -> Result<(), LanguageError> {
        let Some(reference) = fields.get("$ref") else { return Ok(()) };
        let place = reference.as_str().and_then(|reference| reference.strip_prefix('#'));
        // The library takes no escapes in a place.
        let leads = |place: &&str| {
            !place.contains(['~', '%']) && (*place == "/" || self.root.pointer(place).is_some())
        };
        match place.filter(leads) {
            Some(_) => Ok(()),
            None => Err(refused(
                "$ref",
                pointer,
                "only places of this schema are followed, as #/$defs/NAME, and it has no such place",
            )),
        }
    }

    /// Turns a set of few values into the list of its values.
    fn set(&self, fields: &mut Map<String, Value>, pointer: &str) -> Result<(), LanguageError> {
        if !fields.contains_key("uniqueItems") {
            return Ok(());
        }
        let count = |keyword: &str| {
            fields.get(keyword).and_then(Value::as_u64).map(|n| usize::try_from(n).unwrap_or(usize::MAX))
        };
        let (least, most) = (count("minItems").unwrap_or(0), count("maxItems").unwrap_or(usize::MAX));
        if most <= 1 {
            fields.remove("uniqueItems");
            return Ok(());
        }
        let refuse = |reason| Err(refused("uniqueItems", pointer, reason));
        let known = ["type", "items", "uniqueItems", "minItems", "maxItems"];
        let alone = fields.keys().all(|key| known.contains(&key.as_str()) || SILENT.contains(&key.as_str()));
        if !alone || fields.get("type").is_none_or(|kind| kind != "array") {
            return refuse("a set has only a type, items, and their numbers");
        }
        let Some(values) = fields.get("items").and_then(|items| self.values_of(items)) else {
            return refuse("the items of a set have an enum, a const, or are booleans");
        };
        let Some(sets) = sets(&values, least, most.min(values.len())) else {
            return refuse("its items have too many values");
        };
        if sets.is_empty() {
            return refuse("nothing satisfies it");
        }
        known.iter().for_each(|key| drop(fields.shift_remove(*key)));
        fields.insert("enum".to_owned(), sets.into());
        Ok(())
    }

    /// The values that satisfy a schema, if it lists them.
    fn values_of(&self, schema: &Value) -> Option<Vec<Value>> {
        let mut schema = schema;
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            schema = self.root.pointer(reference.strip_prefix('#')?)?;
        }
        let fields = schema.as_object()?;
        let says = |(key, value): &(&String, &Value)| says_something(key, value) && *key != "type";
        let kinds = fields.get("type");
        let mut said = fields.iter().filter(says);
        let (first, second) = (said.next(), said.next());
        let listed = match (first, second) {
            (Some((key, Value::Array(values))), None) if key == "enum" => values.clone(),
            (Some((key, value)), None) if key == "const" => vec![value.clone()],
            (None, None) if kinds.is_some_and(|kind| kind == "boolean") => vec![true.into(), false.into()],
            (None, None) if kinds.is_some_and(|kind| kind == "null") => vec![Value::Null],
            _ => return None,
        };
        let mut values: Vec<Value> = Vec::new();
        for value in listed {
            if has_kind(&value, kinds) && !values.contains(&value) {
                values.push(value);
            }
        }
        Some(values)
    }

    /// Lists the multiples within close bounds: the library rounds what it compares.
    fn multiples(&mut self, fields: &mut Map<String, Value>, pointer: &str) -> Result<(), LanguageError> {
        let known = [&["type"][..], &BOUNDS[..]].concat();
        let Some(step) = fields.get("multipleOf") else { return Ok(()) };
        let (numeric, others) = kinds(fields.get("type").cloned());
        if numeric.is_empty() || self.is_alone(fields, pointer, "multipleOf", &known).is_err() {
            return Ok(());
        }
        let integer = !numeric.iter().any(|kind| *kind == "number");
        let bounds = BOUNDS.map(|bound| fields.get(bound).cloned());
        let Some(multiples) = numbers::multiples(step, &limits(&bounds), integer) else { return Ok(()) };
        if multiples.is_empty() {
            return Err(refused("multipleOf", pointer, "no multiple is within the bounds"));
        }
        known.iter().chain(&["multipleOf"]).for_each(|key| drop(fields.shift_remove(*key)));
        let mut schemas = vec![json!({ "enum": multiples })];
        if !others.is_empty() {
            schemas.push(json!({ "type": others }));
        }
        schemas.iter_mut().try_for_each(|schema| match schema {
            Value::Object(fields) => self.values(fields, pointer),
            _ => Ok(()),
        })?;
        one_of(fields, schemas);
        Ok(())
    }

    /// Replaces `const` and `enum` with numbers beyond `f64`.
    fn values(&mut self, fields: &mut Map<String, Value>, pointer: &str) -> Result<(), LanguageError> {
        for keyword in ["const", "enum"] {
            let Some(value) = fields.get(keyword).filter(|value| has_mark(value)) else { continue };
            let values = if keyword == "enum" {
                value.as_array().cloned().unwrap_or_default()
            } else {
                vec![value.clone()]
            };
            self.is_alone(fields, pointer, keyword, &["type"])?;
            let kinds = fields.shift_remove("type");
            let of =
                |value: &Value| self.numbers.of_const(value).unwrap_or_else(|| json!({ "const": value }));
            let schemas: Vec<Value> =
                values.iter().filter(|value| has_kind(value, kinds.as_ref())).map(of).collect();
            fields.shift_remove(keyword);
            one_of(fields, schemas);
        }
        Ok(())
    }

    /// Replaces bounds beyond `f64`.
    fn bounds(&mut self, fields: &mut Map<String, Value>, pointer: &str) -> Result<(), LanguageError> {
        let Some(keyword) = BOUNDS.into_iter().find(|bound| fields.get(*bound).is_some_and(has_mark)) else {
            let marked =
                fields.iter().find(|(key, value)| *key != "const" && *key != "enum" && is_mark(value));
            return marked
                .map_or(Ok(()), |(key, _)| Err(refused(key, pointer, "the number has too many digits")));
        };
        let strings = ["type", "minLength", "maxLength", "pattern", "format"];
        self.is_alone(fields, pointer, keyword, &[&strings[..], &BOUNDS[..]].concat())?;
        let (numeric, others) = kinds(fields.shift_remove("type"));
        let bounds = BOUNDS.map(|bound| fields.shift_remove(bound));
        let [least, most] = &limits(&bounds);
        let mut schemas = Vec::new();
        if !numeric.is_empty() {
            let integer = !numeric.iter().any(|kind| *kind == "number");
            let number = self.numbers.within(least, most, integer);
            schemas.push(
                number.ok_or_else(|| refused(keyword, pointer, "no integer of 38 digits is within it"))?,
            );
        }
        let mut rest = Map::new();
        for key in strings {
            rest.extend(fields.shift_remove(key).map(|value| (key.to_owned(), value)));
        }
        if !others.is_empty() {
            rest.insert("type".to_owned(), others.into());
            schemas.push(rest.into());
        }
        one_of(fields, schemas);
        Ok(())
    }

    /// Refuses a keyword with numbers beyond `f64` beside keywords other than these.
    fn is_alone(
        &self,
        fields: &Map<String, Value>,
        pointer: &str,
        keyword: &str,
        beside: &[&str],
    ) -> Result<(), LanguageError> {
        let known =
            |key: &String| key == keyword || beside.contains(&key.as_str()) || SILENT.contains(&key.as_str());
        match fields.keys().find(|key| !known(key)) {
            None => Ok(()),
            Some(other) => Err(refused(other, pointer, "it stands beside a number of too many digits")),
        }
    }
}

/// Leaves one branch of a condition that always holds, or never.
fn decide_condition(fields: &mut Map<String, Value>) {
    let holds = match fields.get("if") {
        Some(Value::Bool(holds)) => *holds,
        Some(Value::Object(none)) if none.is_empty() => true,
        _ => return,
    };
    fields.shift_remove("if");
    let [then, otherwise] = ["then", "else"].map(|keyword| fields.shift_remove(keyword));
    let branch = if holds { then } else { otherwise }.filter(|branch| *branch != Value::Bool(true));
    if let (Some(branch), Value::Array(all)) = (branch, fields.entry("allOf").or_insert_with(|| json!([]))) {
        all.push(branch);
    }
}

/// The numeric types of a schema, and the others.
fn kinds(kind: Option<Value>) -> (Vec<Value>, Vec<Value>) {
    let kinds = match kind {
        Some(Value::Array(kinds)) => kinds,
        Some(kind) => vec![kind],
        None => TYPES.map(Value::from).to_vec(),
    };
    kinds.into_iter().partition(|kind| *kind == "number" || *kind == "integer")
}

/// The lower and the upper bounds among the values of [`BOUNDS`].
fn limits(values: &[Option<Value>; 4]) -> [Vec<Limit<'_>>; 2] {
    let mut limits = [Vec::new(), Vec::new()];
    for (index, value) in values.iter().enumerate() {
        // In an old form, a flag says that the bound itself is excluded.
        let flag = (index % 2 == 0).then(|| values.get(index + 1)).flatten().and_then(Option::as_ref);
        let excluded = index % 2 == 1 || flag.is_some_and(|flag| *flag == Value::Bool(true));
        if let (Some(value), Some(side)) =
            (value.as_ref().filter(|value| !value.is_boolean()), limits.get_mut(index / 2))
        {
            side.push(Limit { value, excluded });
        }
    }
    limits
}

/// Whether a keyword constrains a value.
fn says_something(keyword: &str, value: &Value) -> bool {
    let any = |value: &Value| *value == Value::Bool(true) || value.as_object().is_some_and(Map::is_empty);
    match keyword {
        "format" => value.as_str().is_none_or(|format| FORMATS.contains(&format)),
        "uniqueItems" | "not" => *value != Value::Bool(false),
        "additionalProperties" | "unevaluatedProperties" | "unevaluatedItems" => !any(value),
        "propertyNames" => !any(value) && *value != json!({ "type": "string" }),
        "dependencies" | "dependentSchemas" => !any(value),
        "dependentRequired" => {
            value.as_object().is_none_or(|fields| fields.values().any(|names| *names != json!([])))
        }
        keyword => !ANNOTATIONS.contains(&keyword),
    }
}

/// Adds the alternatives to a schema that says nothing else.
fn one_of(fields: &mut Map<String, Value>, mut schemas: Vec<Value>) {
    match (schemas.len(), schemas.pop()) {
        (1, Some(Value::Object(only))) => fields.extend(only),
        (_, last) => {
            schemas.extend(last);
            fields.insert("anyOf".to_owned(), schemas.into());
        }
    }
}

/// Whether a value is a number beyond `f64`.
fn is_mark(value: &Value) -> bool {
    value.is_string() && has_mark(value)
}

/// Whether a value has a type of this keyword's value.
fn has_kind(value: &Value, kinds: Option<&Value>) -> bool {
    let is = |kind: &Value| match (kind.as_str(), value) {
        (Some("null"), Value::Null)
        | (Some("boolean"), Value::Bool(_))
        | (Some("number"), Value::Number(_))
        | (Some("array"), Value::Array(_))
        | (Some("object"), Value::Object(_)) => true,
        (Some("integer"), Value::Number(number)) => {
            number.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        (Some("integer" | "number"), Value::String(_)) => is_mark(value),
        (Some("string"), Value::String(_)) => !is_mark(value),
        _ => false,
    };
    match kinds {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(is),
        Some(kind) => is(kind),
    }
}

/// All lists of distinct values within these lengths. If they are too many, only those in the order of `values`; `None`
/// if these are too many as well.
fn sets(values: &[Value], least: usize, most: usize) -> Option<Vec<Value>> {
    let all = |ordered: bool| {
        // Lists of indices, each with the ones before it, shortest first.
        let (mut lists, mut begin) = (vec![Vec::new()], 0);
        for _ in 0..most {
            let end = lists.len();
            for at in begin..end {
                for next in 0..values.len() {
                    let list: &Vec<usize> = lists.get(at)?;
                    let fits = if ordered {
                        list.last().is_none_or(|last| *last < next)
                    } else {
                        !list.contains(&next)
                    };
                    if fits {
                        let longer = [list.as_slice(), &[next]].concat();
                        lists.push(longer);
                    }
                    if lists.len() > MAX_SETS {
                        return None;
                    }
                }
            }
            begin = end;
        }
        Some(lists)
    };
    let lists = all(false).or_else(|| all(true))?;
    let of = |list: Vec<usize>| list.iter().filter_map(|index| values.get(*index).cloned()).collect();
    Some(lists.into_iter().filter(|list| list.len() >= least).map(of).collect())
}
