//! Requests as programs send them, alike over all APIs: settings, histories, and empty results of tools.

use baton_client::testkit::{
    World,
    fake::{Act, MODEL},
};
use baton_proto::ErrorCode;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::serve::{Endpoint, said, sent};

/// The four APIs of conversations.
const APIS: [&str; 4] = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"];

/// A request of an API with these messages, model and most tokens.
fn body(api: &str, messages: &Value, model: &str, tokens: u32) -> Value {
    match api {
        "/v1/responses" => json!({ "input": messages, "model": model, "max_output_tokens": tokens }),
        "/api/chat" => {
            json!({ "messages": messages, "model": model, "stream": false, "options": { "num_predict": tokens } })
        }
        _ => json!({ "messages": messages, "model": model, "max_tokens": tokens }),
    }
}

/// The most tokens of the last order that the node saw.
fn ordered_tokens(world: &World) -> u32 {
    world.nodes[0].seen(|seen| seen.turns.last().unwrap().max_output_tokens)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_answered_with_its_own_settings_and_not_with_those_of_one_that_failed() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    for api in APIS {
        let messages = said(&[("user", &format!("settings over {api}"))]);
        world.nodes[0].script([Act::Refuse(ErrorCode::ContextOverflow); 8]);
        let (status, _) = endpoint.ask(api, &body(api, &messages, "auto", 40)).await;
        assert_eq!(status, 400, "{api}");
        world.nodes[0].clear_script();
        endpoint.post(api, &body(api, &messages, "auto", 30)).await;
        assert_eq!(ordered_tokens(&world), 30, "{api}: the limit of a request that failed");

        let messages = said(&[("user", &format!("models over {api}"))]);
        let before = endpoint.sessions().await;
        let (status, _) = endpoint.ask(api, &body(api, &messages, "gpt-4", 2048)).await;
        assert_eq!(status, 404, "{api}");
        assert_eq!(endpoint.sessions().await, before, "{api}: no node was asked");
        let answer = endpoint.post(api, &body(api, &messages, MODEL, 31)).await;
        assert_eq!(ordered_tokens(&world), 31, "{api}: the limit of a request for another model");
        assert_eq!(answer["baton"]["turn"], 1);
    }
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seeds_and_stops_of_a_failed_request_are_not_those_of_the_next() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    for (name, failed, next) in [
        ("seed", json!(1), json!(5)),
        ("temperature", json!(0.5), json!(1)),
        ("top_p", json!(0.5), json!(1)),
        ("top_k", json!(5), json!(6)),
        ("presence_penalty", json!(0.5), json!(1)),
        ("logit_bias", json!({ "5": 1 }), json!({ "5": 2 })),
        ("stop", json!("x"), json!("y")),
    ] {
        let request = |value: &Value| {
            let mut body = body(APIS[0], &said(&[("user", name)]), "auto", 20);
            body[name] = value.clone();
            body
        };
        let turn_id = || world.nodes[0].seen(|seen| seen.turns.last().unwrap().turn_id);
        world.nodes[0].script([Act::Refuse(ErrorCode::ContextOverflow); 8]);
        assert_eq!(endpoint.ask(APIS[0], &request(&failed)).await.0, 400);
        world.nodes[0].clear_script();
        let first = turn_id();
        let answer = endpoint.post(APIS[0], &request(&next)).await;
        assert_ne!(turn_id(), first, "{name}: the turn of the failed request");
        if name == "seed" {
            assert_eq!(answer["baton"]["seed"], 5);
        } else {
            assert!(answer["baton"]["seed"].as_u64().unwrap() < 1 << 53, "{name}");
        }
    }
    endpoint.close().await;
}

fn history(turns: usize, bytes: usize) -> Vec<Value> {
    let text = |begin: String| format!("{begin} {}", "x".repeat(bytes));
    let turn = |turn: usize| {
        [
            json!({ "role": "user", "content": text(format!("question {turn}")) }),
            json!({ "role": "assistant", "content": text(format!("answer {turn}")) }),
        ]
    };
    (0..turns).flat_map(turn).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_of_any_length_that_no_session_has_is_answered_over_each_api() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    for api in APIS {
        // A history is larger than a turn, or than the model's context.
        for (turns, bytes, refusals, is_cut) in
            [(36, 1, 0, false), (2_100, 1, 0, true), (150, 4_000, 0, true), (30, 1_000, 3, true)]
        {
            world.nodes[0].script(vec![Act::Refuse(ErrorCode::ContextOverflow); refusals]);
            let mut messages = history(turns, bytes);
            messages.push(json!({ "role": "user", "content": format!("and now over {api}?") }));
            let first = endpoint.post(api, &body(api, &json!(messages), "auto", 20)).await;
            let left_out = first["baton"]["messages_left_out"].as_u64().unwrap_or(0);
            assert_eq!(left_out > 0, is_cut, "{api}: {turns} turns of {bytes} bytes, {left_out} left out");
            assert_eq!(left_out % 2, 0, "the rest begins with the user");
            if !is_cut {
                continue;
            }
            // The next request of the conversation goes on in the same session.
            let given = match api {
                "/v1/responses" => &first["output"][0]["content"][0]["text"],
                "/v1/messages" => &first["content"][0]["text"],
                "/api/chat" => &first["message"]["content"],
                _ => &first["choices"][0]["message"]["content"],
            };
            messages.push(json!({ "role": "assistant", "content": given }));
            messages.push(json!({ "role": "user", "content": "and then?" }));
            let second = endpoint.post(api, &body(api, &json!(messages), "auto", 20)).await;
            assert_eq!(second["baton"]["session"], first["baton"]["session"], "{api}");
            assert_eq!(second["baton"]["turn"], 2, "{api}");
            assert_eq!(second["baton"]["messages_left_out"].as_u64(), Some(left_out), "{api}");
        }
    }
    for (turns, bytes, refusals) in [(150, 4_000, 0), (30, 1_000, 2)] {
        world.nodes[0].script(vec![Act::Refuse(ErrorCode::ContextOverflow); refusals]);
        let mut input = history(turns, bytes);
        input.push(json!({ "role": "user", "content": "?" }));
        let first = endpoint.post("/v1/responses", &json!({ "input": input, "store": false })).await;
        assert!(first["baton"]["messages_left_out"].as_u64().unwrap() > 0);
        let given = &first["output"][0]["content"][0]["text"];
        input.extend(
            said(&[("assistant", given.as_str().unwrap()), ("user", "and then?")])
                .as_array()
                .unwrap()
                .clone(),
        );
        let second = endpoint.post("/v1/responses", &json!({ "input": input, "store": false })).await;
        assert_eq!(second["baton"]["session"], first["baton"]["session"]);
    }
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_printed_nothing_is_answered_over_each_api_and_a_user_who_says_nothing_is_refused() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    // A number that serde_json would round, in a schema, in calls of the model, and in those that come back.
    const LONG: &str = "123456789012345678901234567890";
    let post = async |api: &str, body: &Value| {
        let body = body.to_string().replace("\"LONG\"", LONG);
        let request =
            endpoint.request(Method::POST, api).header("content-type", "application/json").body(body);
        let text = request.send().await.unwrap().text().await.unwrap();
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["baton"]["verified"], true, "{text}");
        (text, answer)
    };
    let schema = json!({ "type": "object", "properties": { "n": { "const": "LONG" } } });
    let function = json!({ "name": "run", "parameters": schema });
    let arguments = format!("{{\"n\":{LONG}}}");
    for (number, result) in [json!(""), json!("\n"), json!(null)].into_iter().enumerate() {
        for api in APIS {
            let user = json!({ "role": "user", "content": format!("make a folder {number}") });
            let call = json!({ "id": "call_1", "type": "function", "function": { "name": "run", "arguments": arguments } });
            let (messages, tools) = match api {
                "/v1/responses" => (
                    json!([user, { "type": "function_call", "call_id": "call_1", "name": "run", "arguments": arguments },
                        { "type": "function_call_output", "call_id": "call_1", "output": result }]),
                    json!([{ "type": "function", "name": "run", "parameters": schema }]),
                ),
                "/v1/messages" => (
                    json!([user, { "role": "assistant", "content": [{ "type": "tool_use", "id": "toolu_1", "name": "run", "input": { "n": "LONG" } }] },
                        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "toolu_1", "content": result }] }]),
                    json!([{ "name": "run", "input_schema": schema }]),
                ),
                "/api/chat" => (
                    json!([user, { "role": "assistant", "tool_calls": [{ "function": { "name": "run", "arguments": { "n": "LONG" } } }] },
                        { "role": "tool", "tool_name": "run", "content": result }]),
                    json!([{ "type": "function", "function": function }]),
                ),
                _ => (
                    json!([user, { "role": "assistant", "content": null, "tool_calls": [call] },
                        { "role": "tool", "tool_call_id": "call_1", "content": result }]),
                    json!([{ "type": "function", "function": function }]),
                ),
            };
            // Carried in at first, and then in a session that has the call.
            let mut asked = body(api, &messages, "auto", 20);
            asked["tools"] = tools;
            post(api, &asked).await;
            let mut begun = messages.as_array().unwrap().clone();
            begun.truncate(1);
            world.nodes[0]
                .script([Act::Say("<tool_call>\n{\"name\": \"run\", \"arguments\": {\"n\": 123456789012345678901234567890}}\n</tool_call>")]);
            let mut first = asked.clone();
            first[if api == "/v1/responses" { "input" } else { "messages" }] = json!(begun);
            let (text, first) = post(api, &first).await;
            assert!(text.contains(LONG), "{api}: {text}");
            let (_, second) = post(api, &asked).await;
            assert_eq!(second["baton"]["session"], first["baton"]["session"], "{api} {result}");
            let session = endpoint.conversation(&second).await.session;
            let pinned = endpoint.client.session(session).system().await.unwrap();
            assert!(pinned[0].text.contains(LONG), "{api}: {}", pinned[0].text);
        }
    }
    for content in ["", " \n"] {
        for api in &APIS[..3] {
            let (status, error) =
                endpoint.ask(api, &body(api, &said(&[("user", content)]), "auto", 20)).await;
            assert_eq!(status, 400, "{api}: {error}");
        }
        let with_empty = said(&[("user", content), ("assistant", content), ("user", "hi")]);
        for api in APIS {
            endpoint.post(api, &body(api, &with_empty, "auto", 20)).await;
        }
    }
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_of_the_wrong_kind_is_an_error_of_the_api_that_names_it() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let first = endpoint.post("/v1/responses", &json!({ "input": "a" })).await;
    let id = first["id"].as_str().unwrap();
    let session = first["baton"]["session"].as_str().unwrap();
    for (path, param) in [
        (format!("/v1/responses/{id}/input_items?limit=many"), "limit"),
        (format!("/v1/responses/{id}/input_items?limit=101"), "limit"),
        (format!("/v1/responses/{id}/input_items?order=up"), "order"),
        (format!("/v1/responses/{id}/input_items?after=x"), "after"),
        (format!("/v1/responses/{id}?stream=true"), "stream"),
        (format!("/v1/responses/{id}?stream=maybe"), "stream"),
        (format!("/api/sessions/{session}?replaced=x"), "replaced"),
    ] {
        let (status, error) = sent(endpoint.request(Method::GET, &path)).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{path}: {error}");
    }
    let count = endpoint.post("/v1/responses/input_tokens", &json!({ "input": "abc" })).await;
    assert_eq!((&count["object"], &count["input_tokens"]), (&json!("response.input_tokens"), &json!(7)));
    let (status, error) = endpoint.ask("/v1/responses/compact", &json!({ "input": "a" })).await;
    assert_eq!((status, &error["error"]["code"]), (400, &json!("unsupported_parameter")));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preflight_of_an_allowed_page_allows_the_headers_that_it_asks_for() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let preflight = |origin: &str, names: &str| {
        endpoint
            .without_key(Method::OPTIONS, "/v1/chat/completions")
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", names)
            .send()
    };
    let names = "authorization,content-type,idempotency-key,x-stainless-lang,x-stainless-os";
    let allowed = preflight("https://chat.example", names).await.unwrap();
    assert_eq!(allowed.status(), StatusCode::NO_CONTENT);
    assert_eq!(allowed.headers()["access-control-allow-headers"], names);
    assert_eq!(allowed.headers()["access-control-allow-origin"], "https://chat.example");
    assert!(allowed.headers()["access-control-allow-methods"].to_str().unwrap().contains("PATCH"));
    for names in ["x-a: b", &"x".repeat(5_000)] {
        let odd = preflight("https://chat.example", names).await.unwrap();
        assert!(odd.headers().get("access-control-allow-headers").is_none());
    }
    let other = preflight("https://evil.example", names).await.unwrap();
    assert_eq!(other.status(), StatusCode::FORBIDDEN);
    assert!(other.headers().get("access-control-allow-headers").is_none());
    endpoint.close().await;
}
