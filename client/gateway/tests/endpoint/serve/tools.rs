//! Tools, given to nodes and called by models, in OpenAI's shape.

use super::*;

const HERMES: &str = "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"day\": 1}}\n</tool_call>\n\
                      <tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
const LLAMA: &str = "{\"name\": \"now\", \"parameters\": {\"zone\": \"UTC\"}}";

fn tool(name: &str) -> Value {
    json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object", "properties": {} } } })
}

fn ask(messages: &Value, tools: &[Value]) -> Value {
    json!({ "model": MODEL, "messages": messages, "tools": tools })
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_results_go_around_in_one_session_whatever_form_they_come_back_in() {
    let (world, endpoint) = Endpoint::with_nodes(2).await;
    let tools = [tool("get_weather"), tool("now")];
    let mut messages = said(&[("user", "Weather?")]);
    world.will_say(HERMES);
    let first = endpoint.post(CHAT, &ask(&messages, &tools)).await;
    let choice = &first["choices"][0];
    assert_has(
        choice,
        &json!({ "finish_reason": "tool_calls", "message": { "content": "I look.", "tool_calls": [
            { "function": { "name": "get_weather", "arguments": "{\"city\": \"Paris\", \"day\": 1}" } },
            { "type": "function", "function": { "arguments": "{}" } },
        ] } }),
    );
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0]["id"], calls[1]["id"]);

    // As sent back by a program that parses and rewrites arguments.
    let mut back = choice["message"].clone();
    back["tool_calls"][0]["function"]["arguments"] = json!("{\"day\":1.0,\"city\":\"Paris\"}");
    let list = messages.as_array_mut().unwrap();
    list.push(back);
    for call in calls {
        list.push(json!({ "role": "tool", "tool_call_id": call["id"], "content": "rain" }));
    }
    world.will_echo();
    let second = endpoint.post(CHAT, &ask(&messages, &tools)).await;
    assert_turn(&second, &first, 2);
    // The scripted answer begins with the pinned messages: the definitions.
    let text = answer(&second).to_owned();
    assert!(text.starts_with("[{") && text.contains("get_weather") && text.ends_with("rain (1)"), "{text}");
    let kept = endpoint.conversation(&first).await;
    assert_eq!(kept.turns[0].messages[1].text, HERMES, "the chain has what the model wrote");
    assert_eq!(kept.turns[1].messages[0].call_id.as_deref(), calls[0]["id"].as_str());

    // Other tools apply from the next turn on; so do no tools, by absence or by choice.
    let list = messages.as_array_mut().unwrap();
    list.extend(said(&[("assistant", &text), ("user", "again")]).as_array().unwrap().clone());
    let third = endpoint.post(CHAT, &ask(&messages, &[tool("other")])).await;
    assert!(answer(&third).contains("other") && !answer(&third).contains("get_weather"), "{third}");
    assert_turn(&third, &first, 3);
    let list = messages.as_array_mut().unwrap();
    list.extend(said(&[("assistant", answer(&third)), ("user", "bye")]).as_array().unwrap().clone());
    let none = with(ask(&messages, &tools), json!({ "tool_choice": "none" }));
    let fourth = endpoint.post(CHAT, &none).await;
    assert_eq!((answer(&fourth), &fourth["baton"]["turn"]), ("bye (3)", &json!(4)));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_calls_as_deltas_and_nothing_of_their_syntax() {
    let (world, endpoint) = Endpoint::with_nodes(2).await;
    let tools = [tool("get_weather"), tool("now")];
    let mut messages = said(&[("user", "Weather?")]);
    let mut session = None;
    for (turn, (text, content, names)) in [
        (HERMES, "I look.", &["get_weather", "now"][..]),
        (LLAMA, "", &["now"]),
        ("{\"name\": \"Ann\"}", "{\"name\": \"Ann\"}", &[]),
    ]
    .into_iter()
    .enumerate()
    {
        world.will_say(text);
        let (said_text, finish, chunks) = endpoint.stream(&ask(&messages, &tools)).await;
        assert_eq!(said_text, content);
        assert_eq!(finish.as_deref(), Some(if names.is_empty() { "stop" } else { "tool_calls" }));
        let deltas = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array());
        let mut calls: Vec<Value> = Vec::new();
        for delta in deltas.flatten() {
            let more = delta["function"]["arguments"].as_str().unwrap();
            match calls.iter_mut().find(|call| call["index"] == delta["index"]) {
                Some(call) => {
                    let before = call["function"]["arguments"].as_str().unwrap();
                    call["function"]["arguments"] = json!(format!("{before}{more}"));
                }
                None => calls.push(delta.clone()),
            }
        }
        assert_eq!(calls.len(), names.len());
        for (place, (call, name)) in calls.iter().zip(names).enumerate() {
            let named = json!({ "index": place, "type": "function", "function": { "name": name } });
            assert_has(call, &named);
            let arguments = call["function"]["arguments"].as_str().unwrap();
            assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object());
        }
        let about = &chunks.last().unwrap()["baton"];
        assert_eq!(session.get_or_insert_with(|| about["session"].clone()), &about["session"]);
        assert_eq!((&about["seq"], &about["turn"]), (&json!(turn), &json!(turn + 1)));
        let list = messages.as_array_mut().unwrap();
        list.push(json!({ "role": "assistant", "content": said_text, "tool_calls": calls }));
        if calls.is_empty() {
            list.push(json!({ "role": "user", "content": "go on" }));
        }
        for call in &calls {
            list.push(json!({ "role": "tool", "tool_call_id": call["id"], "content": "42" }));
        }
    }
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_node_takes_tools_that_is_said_and_the_same_without_them_is_answered() {
    let (world, endpoint) = Endpoint::with_nodes(2).await;
    world.nodes.iter().for_each(|node| node.script([Act::Refuse(ErrorCode::ModelUnavailable); 8]));
    let messages = said(&[("user", "Weather?")]);
    let (status, body) = endpoint.ask(CHAT, &ask(&messages, &[tool("now")])).await;
    assert_eq!(status, 400);
    assert_has(&body["error"], &json!({ "code": "unsupported_parameter", "param": "tools" }));
    let asked: usize = world.nodes.iter().map(|node| node.seen(|seen| seen.turns.len())).sum();
    assert_eq!(asked, 2, "each node once");
    assert_eq!(endpoint.sessions().await, 0, "the request left no session");
    world.will_say(LLAMA);
    let plain = endpoint.say(&messages).await;
    assert_eq!(answer(&plain), LLAMA, "without tools, it is an answer");
    world.will_say(LLAMA);
    // The client finds a node that takes them behind one that does not.
    world.nodes[0].clear_script();
    world.nodes[0].script([Act::Refuse(ErrorCode::ModelUnavailable); 8]);
    let called = endpoint.post(CHAT, &ask(&said(&[("user", "Time?")]), &[tool("now")])).await;
    assert_eq!(called["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "now");
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_session_keeps_its_system_text_and_has_the_tools_of_each_request() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let first = endpoint.say(&said(&[("system", "S:"), ("user", "a")])).await;
    let id = first["baton"]["session"].as_str().unwrap();
    let session = id.parse().unwrap();
    let pinned = async || endpoint.client.session(session).system().await.unwrap().len();
    endpoint.post(CHAT, &with(ask(&said(&[("user", "b")]), &[tool("now")]), json!({ "session": id }))).await;
    assert_eq!(pinned().await, 2);
    let (_, last) = sent(endpoint.chat_in(id, &said(&[("user", "c")]))).await;
    assert_eq!((answer(&last), pinned().await), ("S:c (2)", 1));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_call_is_held_to_the_schema_of_its_tool_and_read_as_a_call() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let messages = said(&[("user", "Weather?")]);
    let forced = json!({ "tool_choice": tool("now"), "parallel_tool_calls": false });
    let body = with(ask(&messages, &[tool("get_weather"), tool("now")]), forced);
    // The scripted node answers in JSON where it has a schema.
    let call = "{\"name\":\"now\",\"arguments\":{\"zone\":\"UTC\"}}";
    world.will_say(call);
    let forced = endpoint.post(CHAT, &body).await;
    let asked = world.nodes[0].seen(|seen| seen.asked.pop()).unwrap().0;
    assert!(
        asked.unwrap().contains("{\"const\": \"now\"}"),
        "the node holds the answer to the call's schema"
    );
    let now = json!({ "function": { "name": "now", "arguments": "{\"zone\":\"UTC\"}" } });
    let message = json!({ "content": null, "tool_calls": [now] });
    assert_has(&forced["choices"][0], &json!({ "finish_reason": "tool_calls", "message": message }));
    // Anthropic's API and the Responses API say it in their own ways.
    let anthropic = json!({
        "model": "auto", "max_tokens": 50, "messages": [{ "role": "user", "content": "Time?" }],
        "tools": [{ "name": "now", "input_schema": { "type": "object" }, "strict": true }],
        "tool_choice": { "type": "tool", "name": "now", "disable_parallel_tool_use": true },
    });
    world.will_say(call);
    let message = endpoint.post("/v1/messages", &anthropic).await;
    assert_has(&message, &json!({ "stop_reason": "tool_use", "content": [{ "name": "now" }] }));
    let responses = json!({
        "input": "Time now?", "tools": [{ "type": "function", "name": "now", "strict": true }],
        "tool_choice": { "type": "function", "name": "now" },
    });
    world.will_say(call);
    let response = endpoint.post("/v1/responses", &responses).await;
    assert_eq!(response["output"][0]["type"], "function_call", "{response}");
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_with_one_call_has_it_alone_when_it_is_fetched_again() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let calls = "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>\
                 <tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>";
    let names = |response: &Value| {
        let items = response["output"].as_array().unwrap().iter();
        items.map(|item| item["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (parallel, expected) in [(true, 2), (false, 1)] {
        let body = json!({
            "input": format!("Time now, {parallel}?"), "parallel_tool_calls": parallel,
            "tools": [{ "type": "function", "name": "now" }],
        });
        world.will_say(calls);
        let made = endpoint.post("/v1/responses", &body).await;
        assert_eq!(names(&made), vec!["now"; expected], "{made}");
        let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
        let fetched = endpoint.get(&path).await;
        assert_eq!((&fetched["id"], names(&fetched)), (&made["id"], names(&made)), "{fetched}");
    }
    endpoint.close().await;
}
