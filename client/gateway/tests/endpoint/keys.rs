//! Keys with names: each sees its project alone, and is held to its quotas.

use std::sync::Arc;

use baton_client::{AccountKey, TurnInput};
use baton_gateway::{KeyListFile, NamedKey, read_usage};
use baton_proto::ErrorCode;
use baton_testkit::{
    World,
    fake::{Act, MODEL},
    relayer::{FakeRelayer, Trick},
};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use zeroize::Zeroizing;

use crate::{
    features::Memory,
    serve::{Endpoint, KEY, said},
};

/// A program with a key.
struct Program<'a> {
    endpoint: &'a Endpoint,
    key: Zeroizing<String>,
}

impl<'a> Program<'a> {
    /// Adds a key to the home of an endpoint that is not open yet.
    fn add(world: &World, name: &str, change: impl FnOnce(&mut NamedKey)) -> Zeroizing<String> {
        KeyListFile::of_home(world.home.path()).add(name, 0, change).unwrap().1
    }

    fn of(endpoint: &'a Endpoint, key: Zeroizing<String>) -> Self {
        Self { endpoint, key }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.endpoint.without_key(method, path).bearer_auth(self.key.as_str())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let response = self.request(Method::GET, path).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    async fn chat(&self, messages: &Value) -> Response {
        let body = json!({ "model": MODEL, "messages": messages });
        self.request(Method::POST, "/v1/chat/completions").json(&body).send().await.unwrap()
    }

    /// A chat completion that must succeed.
    async fn say(&self, messages: &Value) -> Value {
        let response = self.chat(messages).await;
        let status = response.status();
        let body: Value = response.json().await.unwrap();
        assert_eq!(status, StatusCode::OK, "{body}");
        body
    }

    /// The status and code of a chat completion that must fail, with the time after which to ask again.
    async fn refused(&self, messages: &Value) -> (u16, String, Option<u64>) {
        let response = self.chat(messages).await;
        let status = response.status().as_u16();
        let wait_s =
            response.headers().get("retry-after").map(|wait| wait.to_str().unwrap().parse().unwrap());
        let body: Value = response.json().await.unwrap();
        (status, body["error"]["code"].as_str().unwrap().to_owned(), wait_s)
    }
}

fn ids(list: &Value) -> Vec<&str> {
    list["sessions"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_sees_the_conversations_of_its_project_and_the_owner_sees_all() {
    let world = World::new(1).await;
    let anna = Program::add(&world, "anna", |_| {});
    let phone = Program::add(&world, "phone", |key| key.project = "anna".to_owned());
    let ben = Program::add(&world, "ben", |_| {});
    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), None).await;
    let (anna_key, ben_key) = (anna.clone(), ben.clone());
    let [anna, phone, ben] = [anna, phone, ben].map(|key| Program::of(&endpoint, key));

    let hers = anna.say(&said(&[("user", "the secret harbour")])).await;
    let session = hers["baton"]["session"].as_str().unwrap();
    let goes_on =
        said(&[("user", "the secret harbour"), ("assistant", "the secret harbour (0)"), ("user", "b")]);
    let his = ben.say(&goes_on).await;
    assert_ne!(his["baton"]["session"], session, "the same words begin a conversation of his own");
    assert_eq!(phone.say(&goes_on).await["baton"]["session"], session, "another key of the project goes on");

    let (_, listed) = anna.get("/api/sessions").await;
    assert_eq!(ids(&listed), [session]);
    let (_, listed) = ben.get("/api/sessions").await;
    assert_eq!(ids(&listed), [his["baton"]["session"].as_str().unwrap()]);
    let owner = endpoint.get("/api/sessions").await;
    assert_eq!(owner["sessions"].as_array().unwrap().len(), 2);
    let (_, found) = anna.get("/api/sessions/search?q=harbour").await;
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
    assert_eq!(rename.send().await.unwrap().status(), StatusCode::NOT_FOUND);
    for named in [session, &session[..8]] {
        let body = json!({ "model": MODEL, "session": named, "messages": said(&[("user", "c")]) });
        let response = ben.request(Method::POST, "/v1/chat/completions").json(&body).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{named}");
    }
    let follow =
        json!({ "model": MODEL, "previous_response_id": format!("resp_{session}{:016x}", 0), "input": "c" });
    let followed = ben.request(Method::POST, "/v1/responses").json(&follow).send().await.unwrap();
    assert_eq!(followed.status(), StatusCode::BAD_REQUEST);
    let last = json!({ "model": MODEL, "session": "last", "messages": said(&[("user", "c")]) });
    let last = anna.request(Method::POST, "/v1/chat/completions").json(&last).send().await.unwrap();
    assert_eq!(last.json::<Value>().await.unwrap()["baton"]["session"], session, "her last one, not his");
    let (status, shown) = anna.get(&format!("/api/sessions/{session}")).await;
    assert_eq!((status, shown["turns"].as_array().unwrap().len()), (200, 3));
    endpoint.close().await;

    // The project is in the session's journal.
    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), None).await;
    let (anna, ben) = (Program::of(&endpoint, anna_key), Program::of(&endpoint, ben_key));
    let all = ["the secret harbour", "b", "c"].into_iter().enumerate().flat_map(|(turn, text)| {
        let answer = format!("{text} ({turn})");
        [json!({ "role": "user", "content": text }), json!({ "role": "assistant", "content": answer })]
    });
    let all: Value = all.chain([json!({ "role": "user", "content": "d" })]).collect();
    assert_eq!(anna.say(&all).await["baton"]["session"], session);
    assert_eq!(ben.get(&format!("/api/sessions/{session}")).await.0, 404);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_cut_and_refuse_with_the_time_to_wait_and_usage_is_told() {
    let world = World::new(1).await;
    let requests = Program::add(&world, "few", |key| key.quotas.requests_per_hour = Some(2));
    let tokens = Program::add(&world, "short", |key| key.quotas.tokens_per_day = Some(40));
    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), None).await;
    let (few_key, short_key) = (requests.clone(), tokens.clone());
    let [few, short] = [requests, tokens].map(|key| Program::of(&endpoint, key));
    let question = said(&[("user", "a")]);

    let first = few.chat(&question).await;
    let header = |name: &str| first.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(header("x-ratelimit-limit-requests").as_deref(), Some("2"));
    assert_eq!(header("x-ratelimit-remaining-requests").as_deref(), Some("1"));
    assert_eq!(header("x-ratelimit-limit-tokens"), None);
    few.say(&question).await;
    let (status, code, wait_s) = few.refused(&question).await;
    assert_eq!((status, code.as_str()), (429, "rate_limit_exceeded"));
    assert!(wait_s.is_some_and(|wait_s| (1..=3_600).contains(&wait_s)), "{wait_s:?}");
    let text = json!({ "model": MODEL, "prompt": "a" });
    let text = few.request(Method::POST, "/v1/completions").json(&text).send().await.unwrap();
    assert_eq!(text.status(), StatusCode::TOO_MANY_REQUESTS, "the quota is one for all APIs");
    let own = json!({ "model": MODEL, "max_tokens": 5, "messages": question });
    let own = few.request(Method::POST, "/v1/messages").header("anthropic-version", "2023-06-01").json(&own);
    let own: Value = own.send().await.unwrap().json().await.unwrap();
    assert_eq!(own["error"]["type"], "rate_limit_error", "{own}");

    let mut refused = None;
    for _ in 0..40 {
        let response = short.chat(&question).await;
        if response.status() != StatusCode::OK {
            refused = Some(response.json::<Value>().await.unwrap());
            break;
        }
    }
    assert_eq!(refused.unwrap()["error"]["code"], "insufficient_quota");
    let (_, usage) = short.get("/api/usage").await;
    let shown = usage["keys"].as_array().unwrap();
    assert_eq!((shown.len(), &shown[0]["name"]), (1, &json!("short")), "its own usage alone");
    let day = &shown[0]["days"][0];
    let used = day["input_tokens"].as_u64().unwrap() + day["output_tokens"].as_u64().unwrap();
    assert!(used > 0 && used <= 40, "{usage}");
    let all = endpoint.get("/api/usage").await;
    assert_eq!(all["keys"].as_array().unwrap().len(), 2);
    endpoint.close().await;

    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), None).await;
    let (few, short) = (Program::of(&endpoint, few_key), Program::of(&endpoint, short_key));
    assert_eq!(few.refused(&question).await.0, 429, "a restart gives nothing back");
    assert_eq!(short.refused(&question).await.0, 429);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_ends_is_removed_and_is_added_while_the_endpoint_runs() {
    let world = World::new(1).await;
    let ended = Program::add(&world, "ended", |key| key.expires_s = Some(1));
    let guest = Program::add(&world, "guest", |_| {});
    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), None).await;
    let [ended, guest] = [ended, guest].map(|key| Program::of(&endpoint, key));
    let question = said(&[("user", "a")]);
    let (status, code, _) = ended.refused(&question).await;
    assert_eq!((status, code.as_str()), (401, "key_expired"));
    guest.say(&question).await;
    let list = KeyListFile::of_home(world.home.path());
    list.remove("guest").unwrap();
    let late = Program::of(&endpoint, Program::add(&world, "late", |_| {}));
    let learned = async {
        while guest.get("/api/sessions").await.0 != 401 || late.get("/api/sessions").await.0 != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), learned).await.unwrap();
    let (status, code, _) = guest.refused(&question).await;
    assert_eq!((status, code.as_str()), (401, "invalid_api_key"));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_of_the_key_s_project_and_only_where_the_key_has_it() {
    let world = World::new(1).await;
    let relayer = FakeRelayer::start(&world.nodes[0], Trick::None).await;
    let (remembered, mut exchanges) = mpsc::unbounded_channel();
    let memory = Arc::new(Memory(AccountKey::generate(), remembered));
    let with = Program::add(&world, "with", |key| key.memory = true);
    let without = Program::add(&world, "without", |_| {});
    let template = TurnInput::new(Vec::new()).with_route(|route| route.relayer = Some(relayer.named()));
    let endpoint = Endpoint::with_keys(&world, template, Some(memory)).await;
    let [with, without] = [with, without].map(|key| Program::of(&endpoint, key));
    without.say(&said(&[("user", "quiet")])).await;
    assert!(relayer.hints.lock().is_empty(), "the relayer hears nothing of it");
    with.say(&said(&[("user", "a")])).await;
    let projects: Vec<_> = relayer.hints.lock().iter().map(|hint| hint.project.clone()).collect();
    assert_eq!(projects, [Some("with".to_owned())]);
    assert_eq!(exchanges.recv().await.unwrap().0, "a");
    endpoint.close().await;
    assert!(exchanges.recv().await.is_none());
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
    let with = Program::add(&world, "with", |key| key.memory = true);
    let without = Program::add(&world, "without", |_| {});
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
        let program = Program::of(&endpoint, key);
        let defaults = program.get("/api/defaults").await.1;
        let said = &defaults[if is_on { "privacy" } else { "privacy_without_memory" }];
        let lines = if gives_words { json!([sealed, words, exchange]) } else { json!([sealed]) };
        assert_eq!(said["relayer"], lines, "{defaults}");
        let summary = said["summary"].as_str().unwrap();
        assert_eq!(summary.contains(exchange), gives_words, "{summary}");
        assert_eq!((summary.contains(owner_reads), defaults["owner"] == true), (!is_owner, is_owner));
        let before = relayer.hints.lock().len();
        let question = said_by_user(number);
        let body = json!({ "model": MODEL, "messages": question, "memory": is_on });
        let answered =
            program.request(Method::POST, "/v1/chat/completions").json(&body).send().await.unwrap();
        assert_eq!(answered.status(), StatusCode::OK);
        drop(answered.bytes().await.unwrap());
        assert_eq!(relayer.hints.lock().len() - before, usize::from(gives_words), "{number}");
        if gives_words {
            assert_eq!(exchanges.recv().await.unwrap().0, format!("question {number}"));
        }
    }
    endpoint.close().await;
    assert!(exchanges.recv().await.is_none(), "no other exchange was sent");
}

fn said_by_user(number: usize) -> Value {
    said(&[("user", &format!("question {number}"))])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_sees_edits_and_forgets_the_memories_of_its_project_alone() {
    let world = World::new(1).await;
    let anna = Program::add(&world, "anna", |key| key.memory = true);
    let off = Program::add(&world, "off", |_| {});
    let (remembered, _exchanges) = mpsc::unbounded_channel();
    let memory = Arc::new(Memory(AccountKey::generate(), remembered));
    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), Some(memory)).await;
    let [anna, off] = [anna, off].map(|key| Program::of(&endpoint, key));
    let (status, listed) = anna.get("/api/memory?query=tea&kind=fact").await;
    let item = &listed["items"][0];
    assert_eq!(
        (status, &item["text"], &item["project"]),
        (200, &json!("tea fact"), &json!("anna")),
        "{listed}"
    );
    assert_eq!(anna.get("/api/memory?project=ANNA").await.0, 200, "a name has no case");
    assert_eq!(anna.get("/api/memory?project=ben").await.0, 400);
    assert_eq!(off.get("/api/memory").await.0, 404);
    let send = async |program: &Program<'_>, method: Method, path: &str| {
        let response = program.request(method, path).json(&json!({ "text": "new" })).send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    let edited = send(&anna, Method::PATCH, "/api/memory/abcd").await;
    assert_eq!((edited.0, &edited.1["text"], &edited.1["project"]), (200, &json!("new"), &json!("anna")));
    let empty = anna.request(Method::PATCH, "/api/memory/abcd").json(&json!({})).send().await.unwrap();
    let empty: Value = empty.json().await.unwrap();
    assert_eq!(empty["error"]["param"], "text", "{empty}");
    assert_eq!(send(&anna, Method::DELETE, "/api/memory/anna1").await.0, 200);
    assert_eq!(send(&anna, Method::DELETE, "/api/memory/ben1").await.0, 404, "another's");
    assert_eq!(send(&anna, Method::DELETE, "/api/memory").await, (200, json!({ "deleted": 4 })));
    let owner = async |method: Method, path: &str| {
        let response = endpoint.request(method, path).send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    assert_eq!(owner(Method::GET, "/api/memory").await.1["items"][0]["project"], Value::Null);
    assert_eq!(owner(Method::DELETE, "/api/memory").await.0, 400, "a slip deletes nothing");
    assert_eq!(owner(Method::DELETE, "/api/memory?kind=fact").await, (200, json!({ "deleted": 9 })));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_reach_memory_s_tools_with_the_owner_s_key_alone() {
    let world = World::new(1).await;
    let named = Program::add(&world, "named", |key| key.memory = true);
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
    let named = Program::of(&endpoint, named);
    let refused = named.request(Method::POST, "/mcp").body("ping").send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    endpoint.close().await;

    let endpoint = Endpoint::open(&world).await;
    let none = endpoint.request(Method::POST, "/mcp").body("ping").send().await.unwrap();
    let none: Value = none.json().await.unwrap();
    assert_eq!(none["error"]["code"], "no_memory");
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

/// Reads a stream until the answer's first text.
async fn first_text(mut response: Response) -> Response {
    let mut seen = String::new();
    while !seen.contains(r#""content":"a"#) {
        seen.push_str(std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap());
    }
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
        let key = Program::add(&world, "anna", |_| {});
        let template = TurnInput::new(Vec::new()).with_route(|route| route.max_attempts = 2);
        let endpoint = Endpoint::with_keys(&world, template, None).await;
        let anna = Program::of(&endpoint, key);
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
            Reader::HangsUpAfterText => drop(first_text(asked.await.unwrap()).await),
            Reader::ServerStops => {
                let mut response = first_text(asked.await.unwrap()).await;
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
                    saved = tokio::time::timeout(baton_testkit::GRACE, saved) => saved.unwrap(),
                }
                assert_eq!(counted(&world, "anna"), (1, most), "{act:?}, {reader:?}");
            }
        }
        endpoint.close().await;
        let (requests, tokens) = counted(&world, "anna");
        assert_eq!(requests, 1, "{act:?}");
        assert!((least..=most).contains(&tokens), "{act:?}, {reader:?}: {tokens}");
        let aborts = world.nodes[0].seen(|seen| seen.aborts.len());
        assert_eq!(
            aborts > 0,
            reader == Reader::HangsUpAfterText,
            "an answer without a reader is stopped: {act:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_their_bodies_are_counted_and_keep_nobody_waiting() {
    let world = World::new(1).await;
    let few = |key: &mut NamedKey| key.quotas.requests_per_hour = Some(70);
    let (anna, ben) = (Program::add(&world, "anna", few), Program::add(&world, "ben", few));
    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), None).await;
    let mut waiting = Vec::new();
    for _ in 0..70 {
        waiting.push(endpoint.begin_chat(&anna, 100).await);
    }
    let (anna, ben) = (Program::of(&endpoint, anna), Program::of(&endpoint, ben));
    let question = said(&[("user", "a")]);
    ben.say(&question).await;
    endpoint.say(&question).await;
    let all_came = async {
        while anna.get("/api/usage").await.1["keys"][0]["requests_left"] != 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(baton_testkit::GRACE, all_came).await.expect("each is counted as it comes");
    let refused = anna.chat(&question).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let refused: Value = refused.json().await.unwrap();
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("70 requests") && message.contains("begins anew in "), "{message}");
    drop(waiting);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_eight_requests_at_once_and_further_ones_are_not_counted() {
    let world = World::new(1).await;
    let key = Program::add(&world, "anna", |_| {});
    let endpoint = Endpoint::with_keys(&world, TurnInput::new(Vec::new()), None).await;
    let anna = Program::of(&endpoint, key);
    world.nodes[0].script([Act::AdmitAndHang; 8]);
    let texts = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|text| said(&[("user", text)]));
    let mut running: Vec<_> = texts.iter().map(|text| Box::pin(anna.chat(text))).collect();
    tokio::select! {
        _ = futures::future::select_all(running.iter_mut()) => panic!("all of them hang"),
        () = world.nodes[0].hung(8) => {}
    }
    let (status, code, _) = anna.refused(&said(&[("user", "i")])).await;
    assert_eq!((status, code.as_str()), (429, "rate_limit_exceeded"));
    endpoint.say(&said(&[("user", "j")])).await;
    drop(running);
    endpoint.close().await;
    assert_eq!(counted(&world, "anna").0, 8);
}
