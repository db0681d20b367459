use proptest::prelude::*;

use super::*;

fn call(name: &str, arguments: &str) -> Call {
    Call { name: name.to_owned(), arguments: Json::parse(arguments).unwrap() }
}

fn known(name: &str) -> bool {
    matches!(name, "f" | "get_weather")
}

#[track_caller]
fn check(text: &str, content: &str, calls: &[Call]) {
    let answer = read_answer(text, known);
    assert_eq!((answer.content.as_str(), &answer.calls[..]), (content, calls), "{text:?} {answer:?}");
}

#[test]
fn reads_the_syntax_of_each_family() {
    let f = || call("f", r#"{"a": 1, "b": "x"}"#);
    let hermes = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": \"x\"}}\n</tool_call>";
    check(hermes, "", &[f()]);
    check(&format!("Let me see.\n\n{hermes}\n{hermes}\n"), "Let me see.", &[f(), f()]);
    check(&format!("{hermes}\nDone."), "\nDone.", &[f()]);
    // Cut by its length or a stop string, after the whole call.
    check(hermes.strip_suffix("/tool_call>").unwrap(), "", &[f()]);
    check(hermes.strip_suffix("\n</tool_call>").unwrap(), "", &[f()]);

    let bare = r#"{"name": "f", "parameters": {"a": 1, "b": "x"}}"#;
    check(bare, "", &[f()]);
    check(&format!("<|python_tag|>{bare}"), "", &[f()]);
    // Two braces, as some templates show a call by mistake.
    check(&format!("{{{bare}}}"), "", &[f()]);
    check(&format!("{{{bare}\n"), "", &[f()]);
    check(&format!("{{{bare}}} and"), &format!("{{{bare}}} and"), &[]);
    check(&format!(" {bare}; {bare}\n"), "", &[f(), f()]);
    check(&format!("I look. <|python_tag|>{bare}"), "I look.", &[f()]);
    check(r#"{"type": "function", "name": "f", "parameters": {"a": 1, "b": "x"}}"#, "", &[f()]);

    let plain = r#"{"name": "f", "arguments": {"a": 1, "b": "x"}}"#;
    check(&format!("```json\n{plain}\n```"), "", &[f()]);
    check(&format!(" ```\n{plain}\n{plain}```\n"), "", &[f(), f()]);

    let list =
        r#"[{"name": "f", "arguments": {"a": 1, "b": "x"}}, {"name": "get_weather", "arguments": {}}]"#;
    let both = [f(), call("get_weather", "{}")];
    check(&format!("[TOOL_CALLS] {list}"), "", &both);
    check(&format!("[TOOL_CALLS]{list}"), "", &both);
    check(&format!(" {list}"), "", &both);
    let with_id =
        r#"[TOOL_CALLS] [{"name": "f", "arguments": "{\"a\": 1, \"b\": \"x\"}", "id": "abcdefghi"}]"#;
    check(with_id, "", &[f()]);
}

#[test]
fn what_is_no_call_is_text_and_stays_as_it_is() {
    for text in [
        "",
        "hello",
        "  hello \n",
        "<tool_call>",
        "a <tool_call> b",
        "a  <tool_call>{\"name\": 5}</tool_call>  b ",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"a b\", \"arguments\": {}}</tool_call>",
        "<tool_call>f(1)</tool_call>",
        "</tool_call>",
        "[TOOL_CALLS] []",
        "[TOOL_CALLS] [1, 2]",
        "[TOOL_CALLS",
        "[TOOL",
        "[1, 2]",
        "[link](there)",
        "{\"name\": \"Bob\", \"parameters\": {}}",
        "{\"name\": \"f\"}",
        "{\"name\": \"f\", \"parameters\": {}, \"age\": 3}",
        "{\"name\": \"f\", \"parameters\": {}} and more",
        "{\"answer\": 42}",
        "`",
        "```",
        "```js",
        "```json\n",
        "```json\n[1, 2]\n```",
        "```json\n```",
        "```json\n{\"name\": \"Bob\", \"arguments\": {}}\n```",
        "```json\n{\"name\": \"f\", \"parameters\": {}}\n```",
        "```json\n{\"arguments\": {}, \"name\": \"f\"}\n```",
        "```json\n{\"name\": \"f\", \"arguments\": {}}",
        "```json\n{\"name\": \"f\", \"arguments\": {}}\n``` as asked",
        "```rust\n{\"name\": \"f\", \"arguments\": {}}\n```",
        "\u{a0}{\"name\": \"f\", \"parameters\": {}}",
        "```json\n\u{2003}{\"name\": \"f\", \"arguments\": {}}\n```",
        "<|python_tag|>print(1)",
        "x < y <tool",
    ] {
        check(text, text, &[]);
    }
}

#[test]
fn an_argument_that_looks_like_syntax_is_an_argument() {
    let arguments = r#"{"a": "</tool_call><tool_call>{\"name\": \"f\"}", "b": "}]\"\\"}"#;
    let text = write_call("f", arguments);
    check(&text, "", &[call("f", arguments)]);
    let text = format!("[TOOL_CALLS] [{{\"name\": \"f\", \"arguments\": {arguments}}}]");
    check(&text, "", &[call("f", arguments)]);
}

#[test]
fn more_calls_than_the_limit_stay_text() {
    let one = write_call("f", "{}");
    let answer = read_answer(&vec![one.as_str(); MAX_CALLS + 1].join("\n"), known);
    assert_eq!(answer.calls.len(), MAX_CALLS);
    assert_eq!(answer.content.trim(), one.as_str());
}

#[test]
fn an_answer_full_of_markers_is_text_after_some_of_them() {
    for marker in
        ["<tool_call>", "<tool_call>{", "<|python_tag|>{\"", "[TOOL_CALLS] [[", "<tool_call>{} [TOOL_CALLS]"]
    {
        let text = marker.repeat((512 << 10) / marker.len());
        let mut reader = AnswerReader::new(|_| true);
        let mut pieces = reader.push(&text);
        pieces.extend(reader.finish());
        // Each accepted marker ends a piece; the reader does not scan the text after the last of them again.
        assert!(pieces.len() <= 2 * reader::MAX_FAILED_MARKERS + 2, "{marker}: {} pieces", pieces.len());
        let answer = read_answer(&text, |_| true);
        assert!(*answer.content == text && answer.calls.is_empty(), "{marker}");
    }
}

#[test]
fn definitions_are_read_strictly_and_written_in_the_order_they_came() {
    let tool =
        |name: &str| format!(r#"{{"type": "function", "function": {{"name": "{name}", "b": 1, "a": 2.5}}}}"#);
    let text = format!("[{}, {}]", tool("z"), tool("a.b-c_1"));
    let definitions = Definitions::parse(&text).unwrap();
    assert_eq!(definitions.message().text, text);
    assert_eq!(definitions.names().collect::<Vec<_>>(), ["z", "a.b-c_1"]);
    assert!(definitions.has("z") && !definitions.has("x"));
    let pinned = [Message::new(Role::System, "be brief"), definitions.message()];
    assert_eq!(Definitions::pinned(&pinned), Some(Some(definitions.clone())));
    assert_eq!(Definitions::pinned(&pinned[..1]), Some(None));
    assert_eq!(Definitions::pinned(&[definitions.message(), definitions.message()]), None);
    let long = "n".repeat(65);
    for wrong in [
        "[]".to_owned(),
        "{}".to_owned(),
        "[1]".to_owned(),
        "not JSON".to_owned(),
        r#"[{"type": "retrieval"}]"#.to_owned(),
        r#"[{"type": "function", "function": {}}]"#.to_owned(),
        r#"[{"function": {"name": "f"}}]"#.to_owned(),
        format!("[{}, {}]", tool("f"), tool("f")),
        format!("[{}]", tool("a b")),
        format!("[{}]", tool("<|im_end|>")),
        format!("[{}]", tool(&long)),
        format!("[{}]", (0..=MAX_TOOLS).map(|n| tool(&n.to_string())).collect::<Vec<_>>().join(",")),
    ] {
        assert_eq!(Definitions::parse(&wrong), None, "{wrong}");
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(Definitions::parse(&deep).is_none());
}

#[test]
fn json_keeps_its_order_and_the_last_of_double_keys() {
    let text = r#"{"z": [1, -2.5, true, null, "\"\\\n\u0001é"], "a": {"b": {}, "c": []}, "z": 3}"#;
    assert_eq!(Json::parse(text).unwrap().write().as_str(), r#"{"z": 3, "a": {"b": {}, "c": []}}"#);
    let text = r#"["\"\\\n\u0001é\t\b\f\r"]"#;
    assert_eq!(Json::parse(text).unwrap().write().as_str(), text);
    assert!(!format!("{:?}", Json::parse(r#"{"secret": "word"}"#)).contains("secret"));
    for wrong in [
        "",
        "[1,]",
        "[,1]",
        "{\"a\" 1}",
        "{a: 1}",
        "[1 2]",
        "01",
        "1.",
        "+1",
        "tru",
        "nul",
        "[1]]",
        "\"a",
        "{1: 2}",
    ] {
        assert_eq!(Json::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn numbers_keep_all_their_digits() {
    let text = "[18446744073709551616, -9223372036854775809, 0.12345678901234567890, 1e400, 1.0, -0, 1E+2]";
    assert_eq!(Json::parse(&text.replace(' ', "\n")).unwrap().write().as_str(), text);
    let definitions = r#"[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"n": {"const": 123456789012345678901234567890}}}}}]"#;
    let tools = Definitions::parse(definitions).unwrap();
    assert_eq!(tools.message().text, definitions);
    let schema = call_schema(&tools, None, CallArguments::Checked).unwrap();
    assert!(schema.contains(r#"{"const": 123456789012345678901234567890}"#), "{schema}");
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 123456789012345678901234567890}}\n</tool_call>";
    let answer = read_answer(call, known);
    assert_eq!(write_answer("", &answer.calls).as_str(), call);
    let rounded = call.replace("123456789012345678901234567890", "1.2345678901234568e29");
    assert_eq!(canonical_answer(call), canonical_answer(&rounded), "JavaScript writes it so");
}

#[test]
fn answers_that_say_the_same_have_one_form() {
    let hermes =
        "Wait.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1.0, \"b\": [1e2]}}\n</tool_call>";
    let same = [
        "  Wait.<tool_call>{\"arguments\":{\"b\":[100],\"a\":1},\"name\":\"f\"}</tool_call>\n",
        "Wait. [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"b\": [100.0], \"a\": 1}}]",
        "Wait.<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1, \"b\": [100]}}",
    ];
    for text in same {
        assert_eq!(canonical_answer(text), canonical_answer(hermes), "{text}");
    }
    let answer = read_answer(hermes, known);
    assert_eq!(canonical_answer(&write_answer(&answer.content, &answer.calls)), canonical_answer(hermes));
    assert_ne!(canonical_answer("Wait."), canonical_answer(hermes));
    assert_eq!(canonical_answer(" hi \n").as_str(), "hi");
}

#[test]
fn call_ids_encode_their_position() {
    for position in [0, 1, 9, 10, 35, 36, 61] {
        assert_eq!(call_position(&call_id([7, 0, 255, 61, 62, 9, 10, 100], position)), Some(position));
    }
    assert_eq!(call_id_of("x", 1).len(), 9);
    assert_ne!(call_id_of("x", 1), call_id_of("y", 1));
    for id in ["", "call_1", "call_abc123", "12345678é", "1234567890"] {
        assert_eq!(call_position(id), None, "{id}");
    }
}

/// Answers made of fragments of the syntaxes.
fn scrambled() -> impl Strategy<Value = String> {
    let parts = [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "{\"name\": \"f\", \"arguments\": {\"a\": \"}\"}}",
        "{\"name\":\"f\",\"parameters\":{}}",
        "[{\"name\": \"f\", \"arguments\": {}}]",
        "{\"name\": ",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        ";",
        " ",
        "\n",
        "<",
        "<tool",
        "é",
        "word",
        "{\"x\": 1}",
    ];
    prop::collection::vec(prop::sample::select(parts.to_vec()), 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn however_an_answer_is_cut_it_says_the_same(text in scrambled(), sizes in prop::collection::vec(1usize..7, 1..20)) {
        let whole = read_answer(&text, known);
        let mut reader = AnswerReader::new(known);
        let characters: Vec<char> = text.chars().collect();
        let mut pieces = Vec::new();
        let (mut at, mut sizes) = (0, sizes.into_iter().cycle());
        while at < characters.len() {
            let end = (at + sizes.next().unwrap()).min(characters.len());
            pieces.extend(reader.push(&characters[at..end].iter().collect::<String>()));
            at = end;
        }
        pieces.extend(reader.finish());
        let (mut content, mut calls) = (String::new(), Vec::new());
        for piece in pieces {
            match piece {
                Piece::Content(text) => content.push_str(&text),
                Piece::Call(call) => calls.push(call),
            }
        }
        prop_assert_eq!((content.as_str(), &calls), (whole.content.as_str(), &whole.calls));
        // Without a call, nothing is lost.
        if calls.is_empty() {
            prop_assert_eq!(&content, &text);
            let canonical = canonical_answer(&text);
            prop_assert_eq!((canonical.as_str(), canonical_answer(&canonical)), (text.trim(), canonical.clone()));
        }
    }

    #[test]
    fn any_call_is_read_back_out_of_what_is_written_of_it(
        words in "[a-z .<>\\[\\]]{0,20}",
        name in "[A-Za-z0-9_.-]{1,64}",
        arguments in prop::collection::vec(("\\PC{0,12}", "\\PC{0,30}"), 0..5),
    ) {
        let map = arguments.into_iter().map(|(key, value)| (Zeroizing::new(key), Json::text(&value)));
        let arguments = Json::parse(&Json::Map(map.collect()).write()).unwrap();
        let calls = [Call { name, arguments }];
        let answer = read_answer(&write_answer(&words, &calls), |_| false);
        prop_assert_eq!(&answer.calls[..], &calls);
        prop_assert_eq!(answer.content.trim_end(), words.trim_end());
    }

    #[test]
    fn nothing_makes_the_readers_panic(text in "\\PC{0,80}") {
        let _ = (read_answer(&text, |_| true), Definitions::parse(&text), call_position(&text));
        let _ = canonical_answer(&text);
    }
}
