//! Keys with names: each sees its project alone, and is held to its quotas.

use std::sync::Arc;

use baton_client::testkit::{
    World,
    fake::{Act, MODEL},
    relayer::{FakeRelayer, Trick},
};
use baton_client::{AccountKey, TurnInput};
use baton_gateway::{KeyListFile, NamedKey, read_usage};
use baton_proto::ErrorCode;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use zeroize::Zeroizing;

use crate::{
    features::Memory,
    serve::{CHAT, Endpoint, KEY, Program, assert_has, said, sent, until, user},
};

/// Adds a key to the home of an endpoint that is not open yet.
fn add(world: &World, name: &str, change: impl FnOnce(&mut NamedKey)) -> Zeroizing<String> {
    KeyListFile::of_home(world.home.path()).add(name, 0, change).unwrap().1
}

fn asked(messages: &Value) -> Value {
    json!({ "model": MODEL, "messages": messages })
}

/// The status and code of a chat completion that must fail, with the time after which to ask again.
async fn refused(program: &Program, messages: &Value) -> (u16, String, Option<u64>) {
    let response = program.chat(&asked(messages)).send().await.unwrap();
    let status = response.status().as_u16();
    let wait_s = response.headers().get("retry-after").map(|wait| wait.to_str().unwrap().parse().unwrap());
    let body: Value = response.json().await.unwrap();
    (status, body["error"]["code"].as_str().unwrap().to_owned(), wait_s)
}

fn ids(list: &Value) -> Vec<&str> {
    list["sessions"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_sees_the_conversations_of_its_project_and_the_owner_sees_all() {
    let world = World::new(1).await;
    let anna = add(&world, "anna", |_| {});
    let phone = add(&world, "phone", |key| key.project = "anna".to_owned());
    let ben = add(&world, "ben", |_| {});
    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), None).await;
    let (anna_key, ben_key) = (anna.clone(), ben.clone());
    let [anna, phone, ben] = [anna, phone, ben].map(|key| endpoint.by(&key));

    let hers = anna.say(&said(&[("user", "the secret harbour")])).await;
    let session = hers["baton"]["session"].as_str().unwrap();
    let goes_on =
        said(&[("user", "the secret harbour"), ("assistant", "the secret harbour (0)"), ("user", "b")]);
    let his = ben.say(&goes_on).await;
    assert_ne!(his["baton"]["session"], session, "the same words begin a conversation of his own");
    assert_eq!(phone.say(&goes_on).await["baton"]["session"], session, "another key of the project goes on");

    let (_, listed) = anna.see("/api/sessions").await;
    assert_eq!(ids(&listed), [session]);
    let (_, listed) = ben.see("/api/sessions").await;
    assert_eq!(ids(&listed), [his["baton"]["session"].as_str().unwrap()]);
    let owner = endpoint.get("/api/sessions").await;
    assert_eq!(owner["sessions"].as_array().unwrap().len(), 2);
    let (_, found) = anna.see("/api/sessions/search?q=harbour").await;
    assert_eq!(ids(&found), [session]);

    for (method, path) in [
        (Method::GET, format!("/api/sessions/{session}")),
        (Method::GET, format!("/api/sessions/{session}/export")),
        (Method::POST, format!("/api/sessions/{session}/verify")),
        (Method::POST, format!("/api/sessions/{session}/abandon")),
        (Method::DELETE, format!("/api/sessions/{session}")),
        (Method::GET, format!("/v1/responses/resp_{session}{:016x}", 0)),
        (Method::GET, format!("/v1/responses/resp_{session}{:016x}/input_items", 0)),
        (Method::DELETE, format!("/v1/responses/resp_{session}{:016x}", 0)),
    ] {
        let response = ben.request(method.clone(), &path).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{method} {path}");
    }
    let rename =
        ben.request(Method::PATCH, &format!("/api/sessions/{session}")).json(&json!({ "title": "x" }));
    assert_eq!(sent(rename).await.0, 404);
    let named = |name: &str| json!({ "model": MODEL, "session": name, "messages": [user("c")] });
    for name in [session, &session[..8]] {
        assert_eq!(ben.ask(CHAT, &named(name)).await.0, 404, "{name}");
    }
    let follow = json!({ "previous_response_id": format!("resp_{session}{:016x}", 0), "input": "c" });
    assert_eq!(ben.ask("/v1/responses", &follow).await.0, 400);
    let (_, last) = anna.ask(CHAT, &named("last")).await;
    assert_eq!(last["baton"]["session"], session, "her last one, not his");
    let (status, shown) = anna.see(&format!("/api/sessions/{session}")).await;
    assert_eq!((status, shown["turns"].as_array().unwrap().len()), (200, 3));
    endpoint.close().await;

    // The project is in the session's journal.
    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), None).await;
    let (anna, ben) = (endpoint.by(&anna_key), endpoint.by(&ben_key));
    let words = ["the secret harbour", "the secret harbour (0)", "b", "b (1)", "c", "c (2)", "d"];
    let all: Vec<_> = ["user", "assistant"].into_iter().cycle().zip(words).collect();
    assert_eq!(anna.say(&said(&all)).await["baton"]["session"], session);
    assert_eq!(ben.see(&format!("/api/sessions/{session}")).await.0, 404);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_cut_and_refuse_with_the_time_to_wait_and_usage_is_told() {
    let world = World::new(1).await;
    let requests = add(&world, "few", |key| key.quotas.requests_per_hour = Some(2));
    let tokens = add(&world, "short", |key| key.quotas.tokens_per_day = Some(40));
    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), None).await;
    let (few_key, short_key) = (requests.clone(), tokens.clone());
    let [few, short] = [requests, tokens].map(|key| endpoint.by(&key));
    let question = said(&[("user", "a")]);

    let first = few.chat(&asked(&question)).send().await.unwrap();
    let header = |name: &str| first.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(header("x-ratelimit-limit-requests").as_deref(), Some("2"));
    assert_eq!(header("x-ratelimit-remaining-requests").as_deref(), Some("1"));
    assert_eq!(header("x-ratelimit-limit-tokens"), None);
    few.say(&question).await;
    let (status, code, wait_s) = refused(&few, &question).await;
    assert_eq!((status, code.as_str()), (429, "rate_limit_exceeded"));
    assert!(wait_s.is_some_and(|wait_s| (1..=3_600).contains(&wait_s)), "{wait_s:?}");
    let (status, _) = few.ask("/v1/completions", &json!({ "model": MODEL, "prompt": "a" })).await;
    assert_eq!(status, 429, "the quota is one for all APIs");
    let own = json!({ "model": MODEL, "max_tokens": 5, "messages": question });
    let (_, own) = few.ask("/v1/messages", &own).await;
    assert_eq!(own["error"]["type"], "rate_limit_error", "{own}");

    let mut answers = 0;
    while short.chat(&asked(&question)).send().await.unwrap().status() == StatusCode::OK {
        answers += 1;
        assert!(answers < 40, "the quota refuses nothing");
    }
    assert_eq!(refused(&short, &question).await.1, "insufficient_quota");
    let (_, usage) = short.see("/api/usage").await;
    let shown = usage["keys"].as_array().unwrap();
    assert_eq!((shown.len(), &shown[0]["name"]), (1, &json!("short")), "its own usage alone");
    let day = &shown[0]["days"][0];
    let used = day["input_tokens"].as_u64().unwrap() + day["output_tokens"].as_u64().unwrap();
    assert!(used > 0 && used <= 40, "{usage}");
    let all = endpoint.get("/api/usage").await;
    assert_eq!(all["keys"].as_array().unwrap().len(), 2);
    endpoint.close().await;

    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), None).await;
    let (few, short) = (endpoint.by(&few_key), endpoint.by(&short_key));
    assert_eq!(refused(&few, &question).await.0, 429, "a restart gives nothing back");
    assert_eq!(refused(&short, &question).await.0, 429);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_ends_is_removed_and_is_added_while_the_endpoint_runs() {
    let world = World::new(1).await;
    let ended = add(&world, "ended", |key| key.expires_s = Some(1));
    let guest = add(&world, "guest", |_| {});
    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), None).await;
    let [ended, guest] = [ended, guest].map(|key| endpoint.by(&key));
    let question = said(&[("user", "a")]);
    let (status, code, _) = refused(&ended, &question).await;
    assert_eq!((status, code.as_str()), (401, "key_expired"));
    guest.say(&question).await;
    let list = KeyListFile::of_home(world.home.path());
    list.remove("guest").unwrap();
    let late = endpoint.by(&add(&world, "late", |_| {}));
    let learned = async {
        while guest.see("/api/sessions").await.0 != 401 || late.see("/api/sessions").await.0 != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), learned).await.unwrap();
    let (status, code, _) = refused(&guest, &question).await;
    assert_eq!((status, code.as_str()), (401, "invalid_api_key"));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sentences_about_privacy_say_what_a_turn_does_with_the_words_of_a_person() {
    let sealed = "Each turn passes sealed through the relayer relayer.example, which cannot read it.";
    let words = "The relayer relayer.example gets a few words of each message, to search memory with them.";
    let exchange = "Each exchange is sent to the relayer memory.example, which can read it.";
    let owner_reads = "The owner of this endpoint can read your conversations.";
    let world = World::new(1).await;
    let relayer = FakeRelayer::start(&world.nodes[0], Trick::None).await;
    let (remembered, mut exchanges) = mpsc::unbounded_channel();
    let memory = Arc::new(Memory(AccountKey::generate(), remembered));
    let with = add(&world, "with", |key| key.memory = true);
    let without = add(&world, "without", |_| {});
    let template = TurnInput::new(Vec::new()).with_route(|route| route.relayer = Some(relayer.named()));
    let endpoint = Endpoint::with_keys(&world, template, Some(memory)).await;
    let owner = Zeroizing::new(KEY.to_owned());
    // The key, whether its person left memory on, and whether words of it reach a relayer.
    for (number, (key, is_owner, is_on, gives_words)) in [
        (owner.clone(), true, true, true),
        (owner, true, false, false),
        (with.clone(), false, true, true),
        (with, false, false, false),
        (without, false, true, false),
    ]
    .into_iter()
    .enumerate()
    {
        let program = endpoint.by(&key);
        let defaults = program.see("/api/defaults").await.1;
        let said = &defaults[if is_on { "privacy" } else { "privacy_without_memory" }];
        let lines = if gives_words { json!([sealed, words, exchange]) } else { json!([sealed]) };
        assert_eq!(said["relayer"], lines, "{defaults}");
        let summary = said["summary"].as_str().unwrap();
        assert_eq!(summary.contains(exchange), gives_words, "{summary}");
        assert_eq!((summary.contains(owner_reads), defaults["owner"] == true), (!is_owner, is_owner));
        let before = relayer.hints.lock().len();
        let messages = [user(&format!("question {number}"))];
        let (status, _) =
            program.ask(CHAT, &json!({ "model": MODEL, "messages": messages, "memory": is_on })).await;
        assert_eq!(status, 200);
        assert_eq!(relayer.hints.lock().len() - before, usize::from(gives_words), "{number}");
        if gives_words {
            let project = relayer.hints.lock().last().unwrap().project.clone();
            assert_eq!(project.as_deref(), (!is_owner).then_some("with"), "that of the key");
            assert_eq!(exchanges.recv().await.unwrap().0, format!("question {number}"));
        }
    }
    endpoint.close().await;
    assert!(exchanges.recv().await.is_none(), "no other exchange was sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_sees_edits_and_forgets_the_memories_of_its_project_alone() {
    let world = World::new(1).await;
    let anna = add(&world, "anna", |key| key.memory = true);
    let off = add(&world, "off", |_| {});
    let (remembered, _exchanges) = mpsc::unbounded_channel();
    let memory = Arc::new(Memory(AccountKey::generate(), remembered));
    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), Some(memory)).await;
    let [anna, off] = [anna, off].map(|key| endpoint.by(&key));
    let (status, listed) = anna.see("/api/memory?query=tea&kind=fact").await;
    let item = &listed["items"][0];
    assert_eq!(status, 200);
    assert_has(item, &json!({ "text": "tea fact", "project": "anna" }));
    assert_eq!(anna.see("/api/memory?project=ANNA").await.0, 200, "a name has no case");
    assert_eq!(anna.see("/api/memory?project=ben").await.0, 400);
    assert_eq!(off.see("/api/memory").await.0, 404);
    let edit = |body: &Value| sent(anna.request(Method::PATCH, "/api/memory/abcd").json(body));
    let (status, edited) = edit(&json!({ "text": "new" })).await;
    assert_eq!(status, 200);
    assert_has(&edited, &json!({ "text": "new", "project": "anna" }));
    assert_eq!(edit(&json!({})).await.1["error"]["param"], "text");
    let delete = |path: &str| sent(anna.request(Method::DELETE, path));
    assert_eq!(delete("/api/memory/anna1").await.0, 200);
    assert_eq!(delete("/api/memory/ben1").await.0, 404, "another's");
    assert_eq!(delete("/api/memory").await, (200, json!({ "deleted": 4 })));
    let owner = |method: Method, path: &str| sent(endpoint.request(method, path));
    assert_eq!(owner(Method::GET, "/api/memory").await.1["items"][0]["project"], Value::Null);
    assert_eq!(owner(Method::DELETE, "/api/memory").await.0, 400, "a slip deletes nothing");
    assert_eq!(owner(Method::DELETE, "/api/memory?kind=fact").await, (200, json!({ "deleted": 9 })));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_reach_memory_s_tools_with_the_owner_s_key_alone() {
    let world = World::new(1).await;
    let named = add(&world, "named", |key| key.memory = true);
    let (remembered, _exchanges) = mpsc::unbounded_channel();
    let memory = Arc::new(Memory(AccountKey::generate(), remembered));
    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), Some(memory)).await;
    let ask = async |message: &'static str| {
        let request = endpoint.request(Method::POST, "/mcp").header("mcp-protocol-version", "2025-06-18");
        let response = request.body(message).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    assert_eq!(ask("ping").await, (200, "{\"ping\":\"2025-06-18\"}".to_owned()));
    assert_eq!(ask("quiet").await, (202, String::new()));
    let (status, text) = ask("bad").await;
    assert!(status == 502 && text.contains("cannot be reached"), "{text}");
    let named = endpoint.by(&named);
    let refused = named.request(Method::POST, "/mcp").body("ping").send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    endpoint.close().await;

    let endpoint = Endpoint::open(&world).await;
    let none = endpoint.request(Method::POST, "/mcp").body("ping");
    assert_eq!(endpoint.refused(none).await.1, "no_memory");
    endpoint.close().await;
}

/// The requests and tokens of a key in all days, as saved.
fn counted(world: &World, name: &str) -> (u64, u64) {
    let usage = read_usage(world.home.path());
    let days = usage.of(name).into_iter().flat_map(|usage| usage.days().map(|(_, day)| day));
    days.fold((0, 0), |(requests, tokens), day| {
        (requests + day.requests, tokens + day.input_tokens + day.output_tokens)
    })
}

/// The answer to a request from its first text on.
async fn first_text(asked: impl Future<Output = reqwest::Result<Response>>) -> Response {
    let mut response = asked.await.unwrap();
    until(&mut response, r#""content":"a"#).await;
    response
}

/// How a program meets its answer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Reader {
    Whole,
    HangsUpBeforeText,
    HangsUpAfterText,
    /// The server stops after the first text, and waits for the end.
    ServerStops,
    /// The server is killed: only the usage that is saved by then counts.
    ServerIsKilled,
}

#[tokio::test(flavor = "multi_thread")]
async fn however_a_request_ends_its_node_s_tokens_are_counted() {
    const LIMIT: u64 = 9;
    // One message "a": a token and its frame.
    const INPUT: u64 = 7;
    for (act, reader, least, most) in [
        (Act::Serve, Reader::Whole, 1, INPUT + LIMIT),
        (Act::Refuse(ErrorCode::ContextOverflow), Reader::Whole, 0, 0),
        (Act::Fail(ErrorCode::Internal), Reader::Whole, INPUT + LIMIT, INPUT + LIMIT),
        (Act::Truncate, Reader::Whole, INPUT + LIMIT, INPUT + LIMIT),
        (Act::AdmitAndHang, Reader::HangsUpBeforeText, INPUT + LIMIT, INPUT + LIMIT),
        (Act::Hang, Reader::HangsUpAfterText, INPUT + LIMIT, INPUT + LIMIT),
        (Act::Serve, Reader::ServerStops, 1, INPUT + LIMIT),
        (Act::AdmitAndHang, Reader::ServerIsKilled, INPUT + LIMIT, INPUT + LIMIT),
    ] {
        let world = World::new(1).await;
        let key = add(&world, "anna", |_| {});
        let template = TurnInput::new(Vec::new()).with_route(|route| route.max_attempts = 2);
        let endpoint = Endpoint::with_keys(&world, template, None).await;
        let anna = endpoint.by(&key);
        world.nodes[0].script([act; 8]);
        let streams = matches!(reader, Reader::HangsUpAfterText | Reader::ServerStops);
        let body = json!({
            "model": MODEL, "messages": said(&[("user", "a")]), "max_tokens": LIMIT, "stream": streams,
        });
        let asked = anna.request(Method::POST, "/v1/chat/completions").json(&body).send();
        match reader {
            Reader::Whole => drop(asked.await.unwrap().bytes().await.unwrap()),
            Reader::HangsUpBeforeText => tokio::select! {
                _ = asked => panic!("nothing is answered"),
                () = world.nodes[0].hangs() => {}
            },
            Reader::HangsUpAfterText => drop(first_text(asked).await),
            Reader::ServerStops => {
                let mut response = first_text(asked).await;
                let rest = async { while response.chunk().await.unwrap().is_some() {} };
                tokio::join!(endpoint.close(), rest);
                let (_, tokens) = counted(&world, "anna");
                assert!((least..=most).contains(&tokens), "{act:?}, {reader:?}: {tokens}");
                continue;
            }
            Reader::ServerIsKilled => {
                let saved = async {
                    while counted(&world, "anna").1 == 0 {
                        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    }
                };
                tokio::select! {
                    _ = asked => panic!("nothing is answered"),
                    saved = tokio::time::timeout(baton_client::testkit::GRACE, saved) => saved.unwrap(),
                }
                assert_eq!(counted(&world, "anna"), (1, most), "{act:?}, {reader:?}");
            }
        }
        endpoint.close().await;
        let (requests, tokens) = counted(&world, "anna");
        assert_eq!(requests, 1, "{act:?}");
        assert!((least..=most).contains(&tokens), "{act:?}, {reader:?}: {tokens}");
        let aborts = world.nodes[0].seen(|seen| seen.aborts.len());
        let has_left = reader == Reader::HangsUpAfterText;
        assert_eq!(aborts > 0, has_left, "an answer without a reader is stopped: {act:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_their_bodies_are_counted_and_keep_nobody_waiting() {
    let world = World::new(1).await;
    let few = |key: &mut NamedKey| key.quotas.requests_per_hour = Some(70);
    let (anna, ben) = (add(&world, "anna", few), add(&world, "ben", few));
    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), None).await;
    let mut waiting = Vec::new();
    for _ in 0..70 {
        waiting.push(endpoint.begin_chat(&anna, 100).await);
    }
    let (anna, ben) = (endpoint.by(&anna), endpoint.by(&ben));
    let question = said(&[("user", "a")]);
    ben.say(&question).await;
    endpoint.say(&question).await;
    let all_came = async {
        while anna.see("/api/usage").await.1["keys"][0]["requests_left"] != 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(baton_client::testkit::GRACE, all_came).await.expect("each is counted as it comes");
    let (status, refused) = sent(anna.chat(&asked(&question))).await;
    assert_eq!(status, 429);
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("70 requests") && message.contains("begins anew in "), "{message}");
    drop(waiting);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_eight_requests_at_once_and_further_ones_are_not_counted() {
    let world = World::new(1).await;
    let key = add(&world, "anna", |_| {});
    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), None).await;
    let anna = endpoint.by(&key);
    world.nodes[0].script([Act::AdmitAndHang; 8]);
    let texts = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|text| said(&[("user", text)]));
    let mut running: Vec<_> = texts.iter().map(|text| Box::pin(anna.chat(&asked(text)).send())).collect();
    tokio::select! {
        _ = futures::future::select_all(running.iter_mut()) => panic!("all of them hang"),
        () = world.nodes[0].hung(8) => {}
    }
    let (status, code, _) = refused(&anna, &said(&[("user", "i")])).await;
    assert_eq!((status, code.as_str()), (429, "rate_limit_exceeded"));
    endpoint.say(&said(&[("user", "j")])).await;
    drop(running);
    endpoint.close().await;
    assert_eq!(counted(&world, "anna").0, 8);
}
