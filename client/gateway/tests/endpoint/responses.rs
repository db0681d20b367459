//! OpenAI's Responses API over sessions.

use baton_client::testkit::fake::Act;
use baton_proto::ErrorCode;
use reqwest::Method;
use serde_json::{Value, json};

use crate::serve::{CALL, Endpoint, assert_has, assert_turn, hung, named_events, said, sent, with};

async fn create(endpoint: &Endpoint, body: &Value) -> Value {
    endpoint.post("/v1/responses", body).await
}

async fn get(endpoint: &Endpoint, path: &str) -> (u16, Value) {
    sent(endpoint.request(Method::GET, &format!("/v1/responses/{path}"))).await
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap()
}

/// The events of a stream, each with its data.
async fn events(endpoint: &Endpoint, body: &Value) -> Vec<Value> {
    let events = named_events(endpoint, "/v1/responses", body).await;
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_a_turn_and_the_next_one_follows_it_or_branches_off() {
    let (_world, endpoint) = Endpoint::with_nodes(2).await;
    let first = create(&endpoint, &json!({ "input": "a", "metadata": { "k": "v" } })).await;
    assert_eq!(text(&first), "a (0)");
    assert_has(&first, &json!({ "object": "response", "status": "completed", "metadata": { "k": "v" } }));
    let count = |name: &str| first["usage"][name].as_u64().unwrap();
    assert_eq!(count("total_tokens"), count("input_tokens") + count("output_tokens"));
    let follow =
        |input: &str, previous: &Value| json!({ "input": input, "previous_response_id": previous["id"] });
    let second = create(&endpoint, &follow("b", &first)).await;
    assert_eq!((text(&second), &second["baton"]["session"]), ("b (1)", &first["baton"]["session"]));
    assert_eq!(second["previous_response_id"], first["id"]);
    // Another follower of the first one branches off, and the second one still continues its session.
    let brief = with(follow("c", &first), json!({ "instructions": "be brief" }));
    let beside = create(&endpoint, &brief).await;
    assert_ne!(beside["baton"]["session"], first["baton"]["session"]);
    assert_eq!(beside["instructions"], "be brief");
    let branch = endpoint.client.session(beside["baton"]["session"].as_str().unwrap().parse().unwrap());
    assert_eq!(branch.system().await.unwrap()[0].text, "be brief");
    create(&endpoint, &follow("c2", &beside)).await;
    assert!(branch.system().await.unwrap().is_empty(), "old instructions do not carry over");
    let third = create(&endpoint, &follow("d", &second)).await;
    assert_eq!((text(&third), &third["baton"]["session"]), ("d (2)", &first["baton"]["session"]));
    let unknown = json!({ "input": "x", "previous_response_id": first["id"].as_str().unwrap().replace("resp_", "resp_ff") });
    let (status, error) = endpoint.ask("/v1/responses", &unknown).await;
    assert_eq!((status, &error["error"]["code"]), (400, &json!("previous_response_not_found")));
    // Chat completions with the same history continue the same session.
    let roles = ["user", "assistant"].into_iter().cycle();
    let history: Vec<_> = roles.zip(["a", "a (0)", "b", "b (1)", "d", "d (2)", "e"]).collect();
    assert_turn(&endpoint.say(&said(&history)).await, &first, 4);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_of_one_response_at_once_branch_and_one_that_hung_up_is_resumed() {
    let (world, endpoint) = Endpoint::with_nodes(2).await;
    let first = create(&endpoint, &json!({ "input": "a" })).await;
    let follow = json!({ "input": "b", "previous_response_id": first["id"] });
    let streamed = with(follow.clone(), json!({ "stream": true }));
    let request = endpoint.request(Method::POST, "/v1/responses").json(&streamed);
    let (session, running) = hung(&world, request).await;
    assert_eq!(first["baton"]["session"], session);
    let beside = create(&endpoint, &follow).await;
    let parent = endpoint.conversation(&beside).await.branch.unwrap();
    assert_eq!(parent.session_id.to_string(), session);
    drop(running);
    // The endpoint notices at its next write; until then a follower branches.
    let again = loop {
        let again = create(&endpoint, &follow).await;
        if again["baton"]["session"] == session {
            break again;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert_eq!((text(&again), &again["baton"]["turn"]), ("b (1)", &json!(2)));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_the_turn_name_the_parameters_of_this_api() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let refused = async |body: Value| {
        let (_, error) = endpoint.ask("/v1/responses", &body).await;
        (error["error"]["code"].clone(), error["error"]["param"].clone())
    };
    let system = json!({ "input": [{ "role": "system", "content": "be brief" }] });
    assert_eq!(refused(system).await, (json!("invalid_value"), json!("input")));
    let long = json!({ "input": "x".repeat(600 * 1024) });
    assert_eq!(refused(long).await.1, json!("input"));
    world.nodes[0].script([Act::Refuse(ErrorCode::ContextOverflow); 8]);
    let overflow = (json!("context_length_exceeded"), json!("input"));
    assert_eq!(refused(json!({ "input": "hi" })).await, overflow);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_the_events_of_the_api_in_their_order_and_ends_with_the_whole_response() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let events = events(&endpoint, &json!({ "input": "hello there", "stream": true })).await;
    let mut names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    names.dedup();
    let begin = ["created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"];
    let end = ["output_text.done", "content_part.done", "output_item.done", "completed"];
    let order: Vec<String> = begin.iter().chain(&end).map(|name| format!("response.{name}")).collect();
    assert_eq!(names, order);
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    let last = &events.last().unwrap()["response"];
    assert_eq!((deltas.as_str(), text(last)), ("hello there (0)", "hello there (0)"));
    assert_eq!(last["id"], events[0]["response"]["id"]);
    assert_eq!(events[0]["response"]["status"], "in_progress");
    let (status, kept) = get(&endpoint, last["id"].as_str().unwrap()).await;
    assert_eq!((status, &kept["output"], &kept["usage"]), (200, &last["output"], &last["usage"]));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_items_and_their_outputs_go_on() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let tools = json!([{ "type": "function", "name": "get_weather", "parameters": { "type": "object" } }]);
    world.will_say(CALL);
    let asked = json!({ "input": "Weather?", "tools": tools });
    let first = create(&endpoint, &asked).await;
    let items = first["output"].as_array().unwrap();
    assert_eq!((items.len(), &items[0]["type"]), (2, &json!("message")));
    let call = json!({ "name": "get_weather", "arguments": "{\"city\": \"Paris\"}" });
    assert_has(&items[1], &with(call, json!({ "type": "function_call" })));
    world.will_say(CALL);
    let streamed = events(&endpoint, &with(asked, json!({ "stream": true }))).await;
    for name in ["function_call_arguments.delta", "function_call_arguments.done", "completed"] {
        assert!(streamed.iter().any(|event| event["type"] == format!("response.{name}")), "{name}");
    }
    world.will_echo();
    let output =
        json!([{ "type": "function_call_output", "call_id": items[1]["call_id"], "output": "rain" }]);
    let second =
        create(&endpoint, &json!({ "input": output, "previous_response_id": first["id"], "tools": tools }))
            .await;
    assert_eq!(second["baton"]["session"], first["baton"]["session"]);
    // The whole input again, as programs without previous_response_id send it.
    let whole = json!([
        { "role": "user", "content": "Weather?" }, items[0], items[1], output[0],
        second["output"][0], { "role": "user", "content": "And now?" },
    ]);
    let third = create(&endpoint, &json!({ "input": whole, "tools": tools })).await;
    assert_turn(&third, &first, 3);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_are_read_listed_and_deleted_and_those_without_a_store_are_not_kept() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let input = json!([{ "role": "user", "content": "a" }, { "role": "user", "content": "b" }]);
    let first = create(&endpoint, &json!({ "input": input, "metadata": { "k": "v" } })).await;
    let id = first["id"].as_str().unwrap();
    let (status, kept) = get(&endpoint, id).await;
    assert_eq!((status, &kept["id"], &kept["output"]), (200, &first["id"], &first["output"]));
    assert_eq!(kept["metadata"], json!({ "k": "v" }));
    let (_, list) = get(&endpoint, &format!("{id}/input_items?order=asc&limit=1")).await;
    assert_eq!((&list["data"][0]["content"][0]["text"], &list["has_more"]), (&json!("a"), &json!(true)));
    let after = list["last_id"].as_str().unwrap();
    let (_, rest) = get(&endpoint, &format!("{id}/input_items?order=asc&after={after}")).await;
    assert_eq!((&rest["data"][0]["content"][0]["text"], &rest["has_more"]), (&json!("b"), &json!(false)));
    let cancel = endpoint.request(Method::POST, &format!("/v1/responses/{id}/cancel"));
    assert_eq!(endpoint.refused(cancel).await, (400, "unsupported_parameter".to_owned()));

    let second = create(&endpoint, &json!({ "input": "c", "previous_response_id": id })).await;
    let delete = |id: &str| endpoint.request(Method::DELETE, &format!("/v1/responses/{id}"));
    assert_eq!(endpoint.refused(delete(id)).await, (409, "response_in_conversation".to_owned()));
    assert_eq!(get(&endpoint, second["id"].as_str().unwrap()).await.0, 200, "nothing was deleted");
    let lone = create(&endpoint, &json!({ "input": "alone" })).await;
    let lone = lone["id"].as_str().unwrap();
    assert_eq!(sent(delete(lone)).await.1, json!({ "id": lone, "object": "response", "deleted": true }));
    assert_eq!(get(&endpoint, lone).await.0, 404);

    let before = endpoint.sessions().await;
    let fleeting = create(&endpoint, &json!({ "input": "a", "store": false })).await;
    assert_eq!((text(&fleeting), &fleeting["store"]), ("a (0)", &json!(false)));
    assert_eq!(get(&endpoint, fleeting["id"].as_str().unwrap()).await.0, 404);
    assert_eq!(endpoint.sessions().await, before);
    assert_eq!(get(&endpoint, "resp_1").await.0, 404);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_is_not_stored_goes_on_in_one_session_in_memory() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let body = |words: &[&str]| {
        let roles = ["user", "assistant"].into_iter().cycle();
        let input: Vec<Value> =
            roles.zip(words).map(|(role, text)| json!({ "role": role, "content": text })).collect();
        json!({ "input": input, "store": false })
    };
    let ask = async |words: &[&str]| create(&endpoint, &body(words)).await;
    let first = ask(&["a"]).await;
    let second = ask(&["a", "a (0)", "b"]).await;
    assert_eq!((text(&first), text(&second)), ("a (0)", "b (1)"));
    assert_eq!(first["baton"]["session"], second["baton"]["session"]);
    let mut third = body(&["a", "a (0)", "b", "b (1)", "c"]);
    third["stream"] = json!(true);
    let streamed = events(&endpoint, &third).await;
    assert_eq!(text(&streamed.last().unwrap()["response"]), "c (2)");
    // The session has gone on, so another request after its first answers begins a session of its own.
    assert_eq!(text(&ask(&["a", "a (0)", "b"]).await), "b (0)");
    assert_eq!(text(&ask(&["a", "another answer", "b"]).await), "b (0)");
    let words = ["a", "a (0)", "b", "b (1)", "c", "c (2)", "d"];
    let mut other = body(&words);
    other["instructions"] = json!("Be long.");
    assert_eq!(text(&create(&endpoint, &other).await), "Be long.d (0)");
    assert_eq!(text(&ask(&words).await), "d (3)");
    // A session without an answer is not kept either.
    let words = [&words[..], &["d (3)", "e"]].concat();
    world.nodes[0].script([Act::Refuse(ErrorCode::ContextOverflow); 8]);
    assert_eq!(endpoint.ask("/v1/responses", &body(&words)).await.0, 400);
    world.nodes[0].clear_script();
    assert_eq!(text(&ask(&words).await), "e (0)");

    assert_eq!(get(&endpoint, second["id"].as_str().unwrap()).await.0, 404);
    assert_eq!(endpoint.sessions().await, 0);
    let storage =
        world.nodes[0].seen(|seen| seen.asked.iter().map(|(_, storage)| *storage).collect::<Vec<_>>());
    assert!(storage.iter().all(|one| (one.open_epochs, one.closed_epochs) == (1, 1)), "{storage:?}");
    endpoint.close().await;
    let journals = std::fs::read_dir(world.home.path().join("sessions")).unwrap().flatten();
    assert!(!journals.into_iter().any(|file| file.path().extension().is_some_and(|end| end == "journal")));
    assert_eq!(world.nodes[0].seen(|seen| seen.acks.len()), 8, "each answer was acknowledged");
}
