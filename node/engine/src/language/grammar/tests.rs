use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{gguf::Gguf, language::tests::vocabulary};

/// A vocabulary of single bytes, some longer tokens, and an end token.
fn tokenizer() -> Tokenizer {
    let mut tokens = vec![("<|im_end|>".to_owned(), 3, 0.0)];
    tokens.extend((0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), 6, 0.0)));
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
    let tokens: Vec<(&str, i32, f32)> =
        tokens.iter().map(|(text, kind, score)| (text.as_str(), *kind, *score)).collect();
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
    let bytes = |text: &str| text.bytes().map(|byte| u32::from(byte) + 1).collect::<Vec<_>>();
    grammar.resume(&bytes("[true")).unwrap();
    assert!(!grammar.is_complete() && !allowed(&mut grammar).contains(&0));
    grammar.resume(&bytes("]")).unwrap();
    assert!(grammar.is_complete());
    let mut number = compile(&json!({ "type": "integer" })).unwrap();
    number.resume(&bytes("4")).unwrap();
    assert!(!number.is_complete() && allowed(&mut number).contains(&0), "more digits may follow");
}

#[test]
fn a_prefix_that_the_schema_does_not_allow_is_refused() {
    let bytes = |text: &str| text.bytes().map(|byte| u32::from(byte) + 1).collect::<Vec<_>>();
    for wrong in ["[", "{\"x", "{ \"", "{}"] {
        let refused = compile(&person()).unwrap().resume(&bytes(wrong));
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

#[test]
fn an_answer_matches_the_expression_it_is_held_to() {
    let grammars = &grammars().1;
    for first in [0, 7, 300] {
        let mut grammar = grammars.compile_regex("[a-c]{3}-[0-9]+x").unwrap();
        let (_, text) =
            answer(&mut grammar, &[first, 1, 2, 0, 3, 4, 11, 0, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
                .unwrap_or_default();
        let text = String::from_utf8(text).unwrap();
        let fits = text.len() > 5 && text.as_bytes()[3] == b'-' && text.ends_with('x');
        assert!(text.is_empty() || fits, "{text}");
    }
    let mut grammar = grammars.compile_regex("ab").unwrap();
    assert_eq!(answer(&mut grammar, &[0; 4]).unwrap().1, b"ab");
    let mut grammar = grammars.compile_regex("a/b|a/b").unwrap();
    assert_eq!(answer(&mut grammar, &[0; 5]).unwrap().1, b"a/b");
    let literal = "a/\nstart: /x";
    assert_eq!(
        answer(&mut grammars.compile_regex(literal).unwrap(), &[0; 20]).unwrap().1,
        literal.as_bytes()
    );
    for wrong in ["(", "[^\\x00-\\u{10ffff}]"] {
        assert!(matches!(grammars.compile_regex(wrong), Err(LanguageError::Schema { .. })), "{wrong}");
    }
    let long = "a".repeat(MAX_SCHEMA_BYTES + 1);
    assert_eq!(grammars.compile_regex(&long).err(), Some(LanguageError::Schema { reason: "it is too long" }));
}
