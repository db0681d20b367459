use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    gguf::Gguf,
    language::tests::{byte_tokens, vocabulary},
};

/// A vocabulary of single bytes, some longer tokens, and an end token.
fn tokenizer() -> Tokenizer {
    let mut tokens = vec![("<|im_end|>".to_owned(), 3, 0.0)];
    tokens.extend(byte_tokens());
    let longer = [
        "{\"",
        "\": ",
        ", \"",
        "true",
        "fal",
        "name",
        "}]",
        "\"}",
        "12",
        "<tool_call>",
        "<tool_call>{",
        "call>",
        "call>\n",
    ];
    tokens.extend(longer.map(|text| (text.to_owned(), 1, 0.0)));
    let file = vocabulary("llama", "default", &tokens).u32("tokenizer.ggml.eos_token_id", 0).finish();
    Tokenizer::load(&Gguf::parse(&file).unwrap(), &file).unwrap()
}

fn grammars() -> &'static (Tokenizer, Grammars) {
    static MADE: std::sync::OnceLock<(Tokenizer, Grammars)> = std::sync::OnceLock::new();
    MADE.get_or_init(|| {
        let tokenizer = tokenizer();
        let grammars = Grammars::new(&tokenizer).unwrap();
        (tokenizer, grammars)
    })
}

fn compile(schema: &Value) -> Result<Grammar, LanguageError> {
    grammars().1.compile(&schema.to_string())
}

/// The allowed next tokens.
fn allowed(grammar: &mut Grammar) -> Vec<u32> {
    let mut logits = vec![0.0; grammars().0.vocabulary()];
    grammar.mask(&mut logits, |id| grammars().0.is_stop(id)).unwrap();
    (0u32..).zip(&logits).filter(|(_, logit)| logit.is_finite()).map(|(id, _)| id).collect()
}

/// An answer whose tokens a list of numbers selects from the allowed ones; none if it gets too long.
fn answer(grammar: &mut Grammar, choices: &[u16]) -> Option<(Vec<u32>, Vec<u8>)> {
    let (mut ids, mut bytes) = (Vec::new(), Vec::new());
    for choice in choices {
        let next = allowed(grammar);
        let id = next[usize::from(*choice) % next.len()];
        if grammars().0.is_stop(id) {
            return Some((ids, bytes));
        }
        grammar.push(id).unwrap();
        ids.push(id);
        bytes.extend_from_slice(grammars().0.token_bytes(id));
        if grammar.is_complete() {
            return Some((ids, bytes));
        }
    }
    None
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(|byte| u32::from(byte) + 1).collect()
}

/// The id of a longer token.
fn token(text: &str) -> u32 {
    let tokenizer = &grammars().0;
    (257u32..).find(|&id| tokenizer.token_bytes(id) == text.as_bytes()).unwrap()
}

#[test]
fn a_call_within_a_free_answer_is_held_to_its_schema() {
    let schema = json!({
        "type": "object", "properties": { "name": { "const": "f" }, "arguments": { "type": "object",
        "properties": { "a": { "enum": [12] } }, "required": ["a"], "additionalProperties": false } },
        "required": ["name", "arguments"], "additionalProperties": false,
    });
    let start = grammars().1.compile_calls(&schema.to_string(), false).unwrap();
    let all = grammars().0.vocabulary();
    for begin in
        [vec![token("<tool_call>")], ids("<tool_call>"), [ids("<tool_"), vec![token("call>")]].concat()]
    {
        let mut grammar = start.clone();
        // Any text and the answer's end may come first, but no token that goes on after the marker.
        grammar.resume(&ids("Wait. < <tool ")).unwrap();
        assert_eq!(allowed(&mut grammar).len(), all - 1);
        assert!(!allowed(&mut grammar).contains(&token("<tool_call>{")));
        grammar.resume(&ids("<tool_")).unwrap();
        assert!(allowed(&mut grammar).contains(&token("call>")));
        assert!(!allowed(&mut grammar).contains(&token("call>\n")));
        grammar.resume(&ids("x")).unwrap();
        for _ in 0..2 {
            grammar.resume(&begin).unwrap();
            let next = allowed(&mut grammar);
            assert!(next.contains(&ids("{")[0]) && next.contains(&ids("\n")[0]));
            assert!(!next.contains(&ids("x")[0]) && !next.contains(&0), "no end within a call");
            grammar.resume(&ids("\n{\"name\": \"f\", \"arguments\": {\"a\": 12}}\n</tool_call>")).unwrap();
            assert_eq!(allowed(&mut grammar).len(), all - 1, "text is free again");
        }
        assert!(!grammar.is_complete());
        let wrong = [begin.clone(), ids("{\"name\": \"g\"")].concat();
        assert!(start.clone().resume(&wrong).is_err());
    }
    assert!(grammars().1.compile_calls("{\"type\": \"object\", \"not\": {}}", false).is_err());

    // So are the calls of a code block, if the block begins with a call of a tool.
    let next = |text: &str| {
        let mut grammar = start.clone();
        grammar.resume(&ids(text)).unwrap();
        allowed(&mut grammar)
    };
    for block in [" ```json\n", "```\n\n"] {
        let name = next(&format!("{block}{{ \"name\":\n \""));
        assert!(name.contains(&ids("f")[0]) && !name.contains(&ids("g")[0]));
        let call = format!("{block}{{\n  \"name\": \"f\",\n  \"arguments\": {{\n \"a\": ");
        assert!(!next(&call).contains(&ids("3")[0]) && next(&call).contains(&ids("1")[0]));
        let more = next(&format!("{call}12}}}}\n"));
        assert!(more.contains(&ids("`")[0]) && more.contains(&ids("{")[0]) && !more.contains(&ids("x")[0]));
        assert_eq!(next(&format!("{call}12}}}}\n```")).len(), all - 1, "text is free again");
    }
    for text in [
        "```json\n{\"id\": ",
        "```json\n[",
        "```rust\n{\"name\": \"",
        "So:\n```json\n{\"name\": \"",
        "`{\"name\": \"",
    ] {
        assert_eq!(next(text).len(), all - 1, "{text}");
    }

    // So is an answer that is a call without a marker, with one brace or two.
    for begin in ["{\"name\": \"", " {\n \"name\" : \"", "{{\"name\": \""] {
        let name = next(begin);
        assert!(name.contains(&ids("f")[0]) && !name.contains(&ids("g")[0]), "{begin}");
    }
    let end = next("{{\"name\": \"f\", \"arguments\": {\"a\": 12}}");
    assert!(end.contains(&ids("}")[0]) && !end.contains(&0), "the second brace comes");
    assert!(next("{\"name\": \"f\", \"arguments\": {\"a\": 12}}").contains(&0), "the answer may end");
    assert_eq!(next("{\"id\": ").len(), all - 1);

    // Space without end is no beginning of a call.
    let endless = format!("```json\n{}", " ".repeat(600));
    assert_eq!(next(&format!("{endless}{{\"name\": \"")).len(), all - 1);
    let strict = grammars().1.compile_calls(&schema.to_string(), true).unwrap();
    assert!(strict.clone().resume(&ids(&endless)).is_err());

    // A strict answer has no calls in other syntaxes.
    let may = |text: &str, next: u32| {
        let mut grammar = strict.clone();
        grammar.resume(&ids(text)).unwrap();
        allowed(&mut grammar).contains(&next)
    };
    assert!(!may("", ids("{")[0]) && !may(" \n", ids("[")[0]) && !may("", token("{\"")));
    assert!(may("Well: ", ids("{")[0]) && may("", ids("W")[0]));
    assert!(!may("So [TOOL_CALLS", ids("]")[0]) && may("So [TOOL_CALL", ids("]")[0]));
    assert!(!may("<|python_tag|", ids(">")[0]) && may("<|python_tag|", ids("<")[0]));
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 4 },
            "kind": { "enum": ["a", "bc", 7] },
            "tags": { "type": "array", "items": { "type": "boolean" }, "maxItems": 3 },
            "age": { "type": "integer", "minimum": 0, "maximum": 120 },
            "more": { "$ref": "#/$defs/node" },
        },
        "required": ["name", "kind", "tags", "age"],
        "additionalProperties": false,
        "$defs": { "node": { "type": "object", "properties": { "in": { "$ref": "#/$defs/node" } },
            "additionalProperties": false } },
    })
}

fn node_fits(value: &Value) -> bool {
    value.as_object().is_some_and(|map| map.iter().all(|(key, value)| key == "in" && node_fits(value)))
}

/// Whether a value satisfies [`person`], checked by hand.
fn fits(value: &Value) -> bool {
    let Some(map) = value.as_object() else { return false };
    let known = ["name", "kind", "tags", "age", "more"];
    map.keys().all(|key| known.contains(&key.as_str()))
        && value["name"].as_str().is_some_and(|name| name.chars().count() <= 4)
        && [json!("a"), json!("bc"), json!(7)].contains(&value["kind"])
        && value["tags"].as_array().is_some_and(|tags| tags.len() <= 3 && tags.iter().all(Value::is_boolean))
        && value["age"].as_u64().is_some_and(|age| age <= 120)
        && map.get("more").is_none_or(node_fits)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]
    #[test]
    fn every_answer_satisfies_the_schema_and_resumes_anywhere(
        choices in prop::collection::vec(any::<u16>(), 400),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut grammar = compile(&person()).unwrap();
        if let Some((ids, text)) = answer(&mut grammar, &choices) {
            let value: Value = serde_json::from_slice(&text).unwrap();
            prop_assert!(fits(&value), "{}", value);
            let cut = cut.index(ids.len() + 1);
            let mut resumed = compile(&person()).unwrap();
            resumed.resume(&ids[..cut]).unwrap();
            if cut < ids.len() {
                let rest = answer(&mut resumed, &choices[cut..]).unwrap();
                prop_assert_eq!(&rest.0[..], &ids[cut..]);
            }
        }
    }
}

#[test]
fn an_answer_ends_where_the_value_is_whole_and_no_sooner() {
    let mut grammar = compile(&json!({ "const": [true] })).unwrap();
    assert!(!allowed(&mut grammar).contains(&0));
    grammar.resume(&ids("[true")).unwrap();
    assert!(!grammar.is_complete() && !allowed(&mut grammar).contains(&0));
    grammar.resume(&ids("]")).unwrap();
    assert!(grammar.is_complete());
    let mut number = compile(&json!({ "type": "integer" })).unwrap();
    number.resume(&ids("4")).unwrap();
    assert!(!number.is_complete() && allowed(&mut number).contains(&0), "more digits may follow");
}

#[test]
fn a_prefix_that_the_schema_does_not_allow_is_refused() {
    for wrong in ["[", "{\"x", "{ \"", "{}"] {
        let refused = compile(&person()).unwrap().resume(&ids(wrong));
        assert_eq!(refused, Err(LanguageError::NoPrefix), "{wrong}");
    }
    assert_eq!(compile(&person()).unwrap().resume(&[u32::MAX]), Err(LanguageError::NoPrefix));
    assert_eq!(compile(&person()).unwrap().resume(&[0]), Err(LanguageError::NoPrefix), "the end");
}

#[test]
fn fields_come_in_the_order_of_the_schema() {
    let schema = json!({ "type": "object", "properties": { "z": { "const": 1 }, "a": { "const": 2 } },
        "required": ["a", "z"], "additionalProperties": false });
    let (_, text) = answer(&mut compile(&schema).unwrap(), &[0; 100]).unwrap();
    assert_eq!(text, b"{\"z\": 1, \"a\": 2}");
}

/// Whether a schema, as its author wrote it, takes this answer.
fn takes(schema: &str, answer: &str) -> bool {
    let mut grammar = grammars().1.compile(schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
    grammar.resume(&ids(answer)).is_ok() && (grammar.is_complete() || allowed(&mut grammar).contains(&0))
}

#[test]
fn numbers_keep_all_their_digits() {
    let big = "123456789012345678901234567890";
    for (schema, right, wrong) in [
        (r#"{"const": 9007199254740993}"#.to_owned(), vec!["9007199254740993"], vec!["9007199254740992"]),
        (r#"{"const": -9007199254740993}"#.to_owned(), vec!["-9007199254740993"], vec!["-9007199254740992"]),
        (
            r#"{"const": 18446744073709551615}"#.to_owned(),
            vec!["18446744073709551615"],
            vec!["18446744073709551616"],
        ),
        (format!(r#"{{"const": {big}}}"#), vec![big], vec!["123456789012345680000000000000"]),
        (
            r#"{"type": "integer", "enum": [1, 9007199254740993, "a"]}"#.to_owned(),
            vec!["1", "9007199254740993"],
            vec!["9007199254740992", "\"a\"", "2251799813685249"],
        ),
        (
            r#"{"const": {"a": [9007199254740993, "b"]}}"#.to_owned(),
            vec![r#"{"a": [9007199254740993, "b"]}"#],
            vec![r#"{"a": [9007199254740992, "b"]}"#],
        ),
        (
            r#"{"type": "integer", "minimum": 9007199254740993}"#.to_owned(),
            vec!["9007199254740993", "9007199254741000", big],
            vec!["9007199254740992", "5", "-9007199254740999"],
        ),
        (
            r#"{"type": "integer", "exclusiveMinimum": -9007199254740995, "maximum": 18446744073709551615}"#
                .to_owned(),
            vec!["-9007199254740994", "-1", "0", "18446744073709551615"],
            vec!["-9007199254740995", "18446744073709551616"],
        ),
        (
            r#"{"type": ["number", "null"], "maximum": 9007199254740993}"#.to_owned(),
            vec!["null", "-0.5", "9007199254740992.25", "9007199254740993", "9007199254740993.0"],
            vec!["9007199254740993.5", "9007199254740994", "\"\""],
        ),
        (r#"{"const": 0.1}"#.to_owned(), vec!["0.1"], vec!["0.10000000000000001"]),
        (
            r#"{"const": 0.12345678901234567890}"#.to_owned(),
            vec!["0.12345678901234567890"],
            vec!["0.12345678901234568"],
        ),
        (r#"{"const": 1e400}"#.to_owned(), vec!["1e400"], vec!["1e308"]),
        (r#"{"const": 1.0}"#.to_owned(), vec!["1"], vec!["2"]),
        (
            r#"{"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}"#.to_owned(),
            vec!["7", "-9007199254740991"],
            vec!["9007199254740992"],
        ),
        (
            r#"{"const": "9007199254740993"}"#.to_owned(),
            vec!["\"9007199254740993\""],
            vec!["9007199254740993"],
        ),
    ] {
        assert!(right.iter().all(|answer| takes(&schema, answer)), "{schema}");
        assert!(!wrong.iter().any(|answer| takes(&schema, answer)), "{schema}");
    }
    let call = r#"{"type": "object", "properties": {"id": {"const": 9007199254740993}}, "required": ["id"], "additionalProperties": false}"#;
    let start = grammars().1.compile_calls(call, false).unwrap();
    for block in ["<tool_call>{\"id\": 900719925474099", "```json\n{ \"name\": \""] {
        let mut grammar = start.clone();
        let _ = grammar.resume(&ids(block));
        assert!(!allowed(&mut grammar).contains(&ids("2")[0]) || block.starts_with('`'));
    }
}

#[test]
fn multiples_within_close_bounds_and_decided_conditions_are_held() {
    for (schema, right, wrong) in [
        (
            r#"{"type": "number", "minimum": 0.3, "maximum": 0.3, "multipleOf": 0.1}"#,
            &["0.3"][..],
            &["0.2"][..],
        ),
        (
            r#"{"type": "number", "minimum": 0.7, "exclusiveMaximum": 0.77, "multipleOf": 0.07}"#,
            &["0.7"],
            &["0.77", "0.74"],
        ),
        (
            r#"{"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254741013, "multipleOf": 10}"#,
            &["9007199254741000", "9007199254741010"],
            &["9007199254740993", "9007199254740990", "9007199254741020"],
        ),
        (
            r#"{"type": ["integer", "null"], "exclusiveMinimum": -7, "maximum": 7, "multipleOf": 3.5}"#,
            &["0", "7", "null"],
            &["-7", "3", "3.5"],
        ),
        (r#"{"type": "integer", "minimum": 1, "maximum": 100000, "multipleOf": 7}"#, &["7", "99995"], &["8"]),
        (r#"{"if": true, "then": {"type": "integer"}, "else": {"type": "string"}}"#, &["3"], &["\"a\""]),
        (r#"{"type": "integer", "if": {}, "then": {"const": 1}}"#, &["1"], &["2"]),
        (r#"{"if": false, "then": {"type": "integer"}, "else": {"const": "a"}}"#, &["\"a\""], &["3"]),
        (
            r#"{"type": "array", "items": {"type": "integer"}, "contains": {"const": 1}, "minContains": 0}"#,
            &["[2]", "[]"],
            &["3"],
        ),
    ] {
        assert!(right.iter().all(|answer| takes(schema, answer)), "{schema}");
        assert!(!wrong.iter().any(|answer| takes(schema, answer)), "{schema}");
    }
}

#[test]
fn keywords_that_say_nothing_are_no_reason_to_refuse() {
    for (keyword, right, wrong) in [
        (r#""uniqueItems": false"#, "3", "[]"),
        (
            r#""title": "t", "description": "d", "default": 1e400, "examples": [1], "deprecated": true"#,
            "3",
            "[]",
        ),
        (r#""readOnly": true, "writeOnly": false, "$comment": "c", "contentEncoding": "base64""#, "3", "[]"),
        (r#""contentMediaType": "image/png", "contentSchema": {}, "format": "int64""#, "3", "[]"),
        (r#""additionalProperties": true, "not": false, "then": {}, "minContains": 1"#, "3", "[]"),
        (
            r#""if": {"type": "string"}, "unevaluatedProperties": {}, "dependentRequired": {"a": []}"#,
            "3",
            "[]",
        ),
        (r#""propertyNames": {"type": "string"}, "$defs": {"unused": {"not": {}}}"#, "3", "[]"),
    ] {
        let schema = format!(r#"{{"type": "integer", {keyword}}}"#);
        assert!(takes(&schema, right) && !takes(&schema, wrong), "{schema}");
    }
    for format in ["path", "binary", "password", "ipvanyaddress", "uri-reference"] {
        assert!(takes(&format!(r#"{{"type": "string", "format": "{format}"}}"#), "\"x\""), "{format}");
    }
    assert!(!takes(r#"{"type": "string", "format": "date"}"#, "\"x\""));
}

#[test]
fn a_set_of_few_values_has_each_once() {
    let colours = r##"{"type": "array", "items": {"$ref": "#/$defs/C"}, "uniqueItems": true, "minItems": 1,
        "$defs": {"C": {"enum": ["a", "b"], "title": "C", "type": "string"}}}"##;
    for right in [r#"["a"]"#, r#"["b", "a"]"#, r#"["a", "b"]"#] {
        assert!(takes(colours, right), "{right}");
    }
    for wrong in ["[]", r#"["a", "a"]"#, r#"["c"]"#, r#"["a", "b", "a"]"#] {
        assert!(!takes(colours, wrong), "{wrong}");
    }
    let eight = r#"{"type": "array", "items": {"enum": [1, 2, 3, 4, 5, 6, 7, 8]}, "uniqueItems": true}"#;
    assert!(takes(eight, "[1, 3, 8]") && !takes(eight, "[1, 1]"));
    assert!(takes(
        r#"{"type": "array", "items": {"type": "string"}, "uniqueItems": true, "maxItems": 1}"#,
        "[\"x\"]"
    ));
}

#[test]
fn a_definition_is_found_by_its_name_with_and_without_escapes() {
    for (name, reference) in [
        ("Foo<string>", "Foo%3Cstring%3E"),
        ("Foo<string>", "Foo<string>"),
        ("a/b~c", "a~1b~0c"),
        ("a b", "a%20b"),
        ("größe", "gr%C3%B6%c3%9fe"),
        ("a%3Cb", "a%253Cb"),
        ("$3c.", "$3c."),
    ] {
        for keyword in ["$defs", "definitions"] {
            let schema = json!({
                "type": "array", "items": { "$ref": format!("#/{keyword}/{reference}") },
                keyword: { name: { "const": 1 }, "<": { "const": 2 } },
            });
            assert!(takes(&schema.to_string(), "[1]") && !takes(&schema.to_string(), "[2]"), "{schema}");
        }
    }
}

#[test]
fn a_refusal_names_the_keyword_and_its_place() {
    let refused =
        |schema: &str| grammars().1.compile(schema).err().map(|error| error.to_string()).unwrap_or_default();
    for (inner, said) in [
        (r#"{"not": {"type": "string"}}"#, "`not` at /properties/v/not: "),
        (r#"{"if": {"const": 1}, "then": {"const": 2}}"#, "`if` at /properties/v/if: "),
        (
            r#"{"dependentRequired": {"a": ["b"]}}"#,
            "`dependentRequired` at /properties/v/dependentRequired: ",
        ),
        (
            r#"{"type": "array", "items": {"type": "string"}, "uniqueItems": true}"#,
            "`uniqueItems` at /properties/v/uniqueItems: ",
        ),
        (
            r#"{"type": "array", "items": {"type": "array", "contains": {}}}"#,
            "`contains` at /properties/v/items/contains: ",
        ),
        (r##"{"$ref": "https://example.com/a"}"##, "`$ref` at /properties/v/$ref: "),
        (r##"{"$ref": "#/$defs/none"}"##, "`$ref` at /properties/v/$ref: "),
        (r#"{"type": "string", "pattern": "(?=a)b"}"#, "`pattern` at /properties/v/pattern: "),
        (r#"{"oneOf": [{"type": "string"}, {"minLength": 3}]}"#, "`oneOf` at /properties/v/oneOf: "),
        (
            r#"{"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1}"#,
            "`minProperties` at /properties/v/minProperties: ",
        ),
        (
            r#"{"type": "number", "multipleOf": 9007199254740993}"#,
            "`multipleOf` at /properties/v/multipleOf: ",
        ),
        (
            r#"{"type": "integer", "minimum": 8, "maximum": 13, "multipleOf": 7}"#,
            "`multipleOf` at /properties/v/multipleOf: ",
        ),
        (
            r#"{"type": "integer", "minimum": 9007199254740993, "multipleOf": 10}"#,
            "`multipleOf` at /properties/v/multipleOf: ",
        ),
        (
            r#"{"type": "array", "contains": {}, "minContains": 0, "maxContains": 1}"#,
            "`contains` at /properties/v/contains: ",
        ),
        (r#"{"type": "string", "maxLength": "x"}"#, "`maxLength` at /properties/v/maxLength: "),
    ] {
        let schema =
            format!(r#"{{"type": "object", "properties": {{"u": {{"pattern": "a"}}, "v": {inner}}}}}"#);
        let reason = refused(&schema);
        assert!(reason.contains(said), "{schema}: {reason}");
    }
    let long = format!(r#"{{"properties": {{"{}": {{"not": {{}}}}}}}}"#, "n".repeat(10_000));
    assert!(refused(&long).len() < 500);
}
