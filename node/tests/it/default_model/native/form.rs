//! Answers under a schema, and the probabilities of their tokens.

use std::time::Instant;

use serde_json::{Value, json};

use super::*;

/// A job under a schema.
fn constrained(question: &str, settings: &Settings, schema: &Value, resume: &[u32]) -> GenerateJob {
    let constraint = engine().constrain(&schema.to_string()).unwrap();
    GenerateJob { constraint: Some(constraint), ..job(question, settings, resume) }
}

async fn ask_for(question: &str, settings: &Settings, schema: &Value, resume: &[u32]) -> Answer {
    let handle = engine().generate(constrained(question, settings, schema, resume)).unwrap();
    read(handle, resume.len()).await.unwrap()
}

fn warm(seed: u64) -> Settings {
    greedy(80).with(|it| (it.temperature, it.seed) = (1.0, seed))
}

/// A question, its schema, and a manual check of the answer.
type Case = (&'static str, Value, fn(&Value) -> bool);

fn cases() -> Vec<Case> {
    let city = json!({
        "type": "object",
        "properties": {
            "city": { "type": "string", "maxLength": 12 },
            "millions": { "type": "integer", "minimum": 0, "maximum": 99 },
        },
        "required": ["city", "millions"],
        "additionalProperties": false,
    });
    let list = json!({
        "type": "array", "minItems": 1, "maxItems": 3,
        "items": { "anyOf": [{ "enum": ["red", "green", "blue"] }, { "type": "boolean" }] },
    });
    let tree = json!({
        "$defs": { "node": {
            "type": "object",
            "properties": { "name": { "enum": ["a", "b"] }, "next": { "$ref": "#/$defs/node" } },
            "required": ["name"], "additionalProperties": false, } },
        "type": "object", "properties": { "root": { "$ref": "#/$defs/node" } },
        "required": ["root"], "additionalProperties": false,
    });
    fn is_city(value: &Value) -> bool {
        let fits = |map: &serde_json::Map<String, Value>| {
            map.len() == 2
                && map["city"].as_str().is_some_and(|city| city.chars().count() <= 12)
                && map["millions"].as_u64().is_some_and(|millions| millions <= 99)
        };
        value.as_object().is_some_and(fits)
    }
    fn is_list(value: &Value) -> bool {
        let known = [json!("red"), json!("green"), json!("blue"), json!(true), json!(false)];
        let fits =
            |list: &Vec<Value>| (1..=3).contains(&list.len()) && list.iter().all(|one| known.contains(one));
        value.as_array().is_some_and(fits)
    }
    fn is_node(value: &Value) -> bool {
        let known = |(key, value): (&String, &Value)| match key.as_str() {
            "name" => value == "a" || value == "b",
            "next" => is_node(value),
            _ => false,
        };
        value.as_object().is_some_and(|map| map.contains_key("name") && map.iter().all(known))
    }
    fn is_tree(value: &Value) -> bool {
        value.as_object().is_some_and(|map| map.len() == 1 && map.get("root").is_some_and(is_node))
    }
    vec![
        ("Name the capital of France and how many million people live there.", city, is_city),
        ("Which colours has a traffic light?", list, is_list),
        ("Make a short list of names.", tree, is_tree),
    ]
}

#[tokio::test]
async fn an_answer_satisfies_its_schema_whatever_the_temperature() {
    let _guard = every_core().await;
    for (question, schema, fits) in cases() {
        let mut texts = Vec::new();
        for sampling in [greedy(80), warm(1), warm(2), warm(3).with(|it| it.temperature = 3.0)] {
            let answer = ask_for(question, &sampling, &schema, &[]).await;
            // A cut answer is only the beginning of a value.
            if answer.finish == FinishReason::Stop {
                let value: Value = serde_json::from_str(&answer.text).unwrap();
                assert!(fits(&value), "{}", answer.text);
                texts.push(answer.text);
            } else {
                assert_eq!(answer.finish, FinishReason::Length, "{}", answer.text);
            }
        }
        assert!(texts.len() >= 3, "most answers are whole: {texts:?}");
    }
}

#[tokio::test]
async fn a_constrained_answer_resumes_anywhere_to_the_same_text() {
    let _guard = every_core().await;
    let (question, schema, _) = cases().swap_remove(0);
    for sampling in [greedy(80), warm(7)] {
        let whole = ask_for(question, &sampling, &schema, &[]).await;
        assert_eq!(whole.finish, FinishReason::Stop, "{}", whole.text);
        for &(tokens, bytes) in &whole.cuts {
            let rest = ask_for(question, &sampling, &schema, &whole.ids[..tokens]).await;
            assert_eq!((&rest.ids[..], rest.finish), (&whole.ids[tokens..], FinishReason::Stop));
            assert_eq!(rest.text, whole.text[bytes..]);
        }
    }
    // The beginning of another text cannot be part of this answer.
    let other = engine().encode_text("Paris").to_vec();
    let handle = engine().generate(constrained(question, &greedy(80), &schema, &other)).unwrap();
    assert_eq!(read(handle, other.len()).await.unwrap_err(), EngineError::InvalidResume);
}

#[tokio::test]
async fn limits_and_stop_strings_still_end_a_constrained_answer() {
    let _guard = every_core().await;
    let (question, schema, _) = cases().swap_remove(0);
    let whole = ask_for(question, &greedy(80), &schema, &[]).await;
    let short = ask_for(question, &greedy(3), &schema, &[]).await;
    assert_eq!((short.ids.len(), short.finish), (3, FinishReason::Length));
    assert!(whole.text.starts_with(&short.text));
    // The last token of the value uses up the room exactly.
    let room = u32::try_from(whole.ids.len()).unwrap();
    let exact = ask_for(question, &greedy(room), &schema, &[]).await;
    assert_eq!((exact.text, exact.finish), (whole.text.clone(), FinishReason::Stop));
    let stop = greedy(80).with(|it| it.stop = vec!["\", \"mill".into()]);
    let stopped = ask_for(question, &stop, &schema, &[]).await;
    assert_eq!(stopped.finish, FinishReason::StopString);
    assert!(whole.text.starts_with(&stopped.text) && !stopped.text.contains("mill"), "{}", stopped.text);
}

#[tokio::test]
async fn probabilities_are_the_models_own_whatever_chooses_among_them() {
    let _guard = every_core().await;
    let question = "What is the capital of France?";
    let plain = ask(question, &greedy(7), &[]).await.unwrap();
    assert!(plain.reports.is_empty());
    let told = greedy(7).with(|it| it.logprobs = 20);
    let answer = ask(question, &told, &[]).await.unwrap();
    assert_eq!((&answer.ids, &answer.text), (&plain.ids, &plain.text));
    assert_eq!(answer.reports.len(), answer.ids.len());
    for (id, tokens) in answer.ids.iter().zip(&answer.reports) {
        assert_eq!((tokens.len(), tokens[0].token), (21, *id));
        assert_eq!(tokens[0], tokens[1], "the likeliest was chosen");
        assert!(tokens[1..].is_sorted_by(|a, b| a.millinats >= b.millinats));
        let total: f64 = tokens[1..].iter().map(|one| (f64::from(one.millinats) / 1000.0).exp()).sum();
        assert!(total > 0.5 && total < 1.001, "{total}");
        for one in tokens {
            assert_eq!(one.bytes.0, *engine().decode(&[one.token]));
        }
    }
    // Temperature, penalty and grammar do not change the model's own probabilities at a position.
    let resume = &answer.ids[..3];
    let hot = greedy(4).with(|it| {
        (it.temperature, it.seed, it.repetition_penalty, it.logprobs) = (4.0, 5, 3.0, 5);
    });
    let other = ask(question, &hot, resume).await.unwrap();
    let model = &answer.reports[3];
    assert_eq!(other.reports[0][1..], model[1..6]);
    let schema = json!({ "const": 1 });
    let held = ask_for(question, &greedy(8).with(|it| it.logprobs = 3), &schema, &[]).await;
    assert_eq!((held.text.as_str(), held.finish), ("1", FinishReason::Stop));
    assert_eq!(held.reports[0][1..], answer.reports[0][1..4]);
    assert!(held.reports[0][0].millinats < held.reports[0][1].millinats, "it was made to say so");
}

/// A schema with this nesting depth.
fn nested(depth: usize) -> Value {
    (0..depth).fold(json!({ "type": "null" }), |inner, _| json!({ "type": "array", "items": inner }))
}

/// Definitions that each refer to the next, inside a keyword with deep resolution.
fn chain(length: usize) -> Value {
    let mut definitions = serde_json::Map::new();
    for index in 0..length {
        let next = json!({ "allOf": [{ "$ref": format!("#/$defs/d{}", index + 1) }, { "type": "object" }] });
        definitions.insert(format!("d{index}"), next);
    }
    definitions.insert(format!("d{length}"), json!({ "type": "object" }));
    json!({ "$ref": "#/$defs/d0", "$defs": definitions })
}

#[test]
fn hostile_schemas_end_soon_and_with_an_error() {
    let options =
        |count: u32| (0..count).map(|n| json!({ "properties": { "a": { "minimum": n } } })).collect();
    let many = |count| Value::Array(options(count));
    let product = json!({ "allOf": (0..12).map(|_| json!({ "anyOf": many(10) })).collect::<Vec<_>>() });
    let cases = [
        ("depth", nested(60)),
        ("chain", chain(257)),
        ("values", Value::Array(vec![json!(1); 4096])),
        ("product", product),
        ("itself", json!({ "$ref": "#" })),
        ("both itself", json!({ "allOf": [{ "$ref": "#" }, { "$ref": "#" }] })),
        ("elsewhere", json!({ "$ref": "https://example.com/schema" })),
        ("nothing", json!({ "$ref": "#/$defs/nothing" })),
        ("lenient", json!({ "type": "object", "x-guidance": { "lenient": true } })),
        ("unsupported", json!({ "type": "object", "unevaluatedProperties": false, "not": {} })),
        ("never", json!({ "type": "object", "properties": { "a": false }, "required": ["a"] })),
        ("contradiction", json!({ "type": "integer", "minimum": 3, "maximum": 2 })),
        ("not a schema", json!({ "type": 7 })),
    ];
    // Loads the model, so that the times below are those of the schemas.
    engine();
    for (name, schema) in cases {
        let began = Instant::now();
        let outcome = engine().constrain(&schema.to_string()).map(|_| ());
        eprintln!("{name}: {:?} after {:?}", outcome, began.elapsed());
        assert!(matches!(outcome, Err(EngineError::Schema { .. })), "{name}: {outcome:?}");
        assert!(began.elapsed().as_secs() < 5, "{name}: {:?}", began.elapsed());
    }
    for text in ["", "{", "null", "true", "[]", "\"x\"", &"[".repeat(60_000), &" ".repeat(65_536 + 1)] {
        let refused = engine().constrain(text).map(|_| ());
        assert!(matches!(refused, Err(EngineError::Schema { .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn schemas_at_the_limits_do_not_harm_the_process() {
    let _guard = every_core().await;
    let wide: serde_json::Map<_, _> =
        (0..1500).map(|n| (format!("p{n}"), json!({ "type": "string" }))).collect();
    let cases = [
        ("depth", nested(46)),
        ("chain", chain(246)),
        ("wide", json!({ "type": "object", "properties": wide, "additionalProperties": false })),
        ("pattern", json!({ "type": "string", "pattern": "((a{1,500}){1,500}){1,500}" })),
        ("long", json!({ "type": "string", "minLength": 100_000, "maxLength": 1_000_000 })),
        ("items", json!({ "type": "array", "minItems": 1_000_000, "items": { "type": "null" } })),
        ("words", json!({ "enum": (0..4000).map(|n| format!("word {n}")).collect::<Vec<_>>() })),
    ];
    // Loads the model, so that the times below are those of the schemas.
    engine();
    for (name, schema) in cases {
        let began = Instant::now();
        // The crate decides whether it accepts the schema, and whether a step costs too much. Both are
        // bounded.
        let constraint = match engine().constrain(&schema.to_string()) {
            Ok(constraint) => constraint,
            Err(error) => {
                assert!(matches!(error, EngineError::Schema { .. }), "{name}: {error:?}");
                eprintln!("{name}: refused after {:?}", began.elapsed());
                continue;
            }
        };
        let compiled = began.elapsed();
        let job = GenerateJob { constraint: Some(constraint), ..job("Go on.", &greedy(10), &[]) };
        let outcome = read(engine().generate(job).unwrap(), 0).await;
        assert!(matches!(outcome, Ok(_) | Err(EngineError::Schema { .. })), "{name}: {outcome:?}");
        eprintln!("{name}: {compiled:?}, with its answer {:?}", began.elapsed());
        assert!(compiled.as_secs() < 10, "{name}: {compiled:?}");
    }
}
