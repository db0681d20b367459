//! The API for JavaScript. Failures are `Error` objects with a `code`.

use std::time::Duration;

use axum::Router;
use baton_client::{Client, ClientConfig, ClientError, NewSession, SessionHandle, TurnEvent, TurnInput};
use baton_gateway::{Gateway, GatewayConfig};
use baton_keys::session::SessionRoot;
use baton_proto::{
    ids::SessionId,
    record::{FinishReason, Message, Role},
};
use baton_walrus_client::ShardCount;
use js_sys::{Function, Reflect};
use send_wrapper::SendWrapper;
use serde::{Deserialize, Serialize};
use serde_json::json;
use wasm_bindgen::prelude::*;
use web_sys::{Request, Response};

use crate::{endpoint, store::FetchStore};

/// Shards of Walrus itself.
const WALRUS_SHARDS: u16 = 1000;
/// Longest wait for running turns and uploads at the end.
const GRACE: Duration = Duration::from_secs(10);

/// Declarations that the generator cannot make.
#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** Where the nodes and the store are. */
export interface BatonOptions {
  /** Nodes that listen on WebSocket, such as "/dns4/node.example/tcp/443/tls/ws/p2p/12D3Koo...". */
  nodes: string[];
  /** Base URL of a Walrus aggregator, which reads blobs. */
  aggregator: string;
  /** Base URL of a publisher; default: the aggregator. */
  publisher?: string;
  /** Base URL of a head index; default: the publisher. */
  heads?: string;
  /** Shards of the store; default: 1000, as Walrus has. */
  shards?: number;
  /** Whether the echo engine, which repeats its input, may answer requests of `fetch`; default: no. */
  allowEcho?: boolean;
}

/** A node that was found. */
export interface BatonNode {
  id: string;
  models: string[];
}

/** A step of an answer. */
export type BatonEvent =
  | { type: "attempt"; attempt: number; node: string; model: string; continues: number }
  | { type: "text"; text: string }
  | { type: "failed"; node: string; code?: string; reason: string }
  | { type: "restarted" }
  | { type: "accepted" };

/** Options of a message. */
export interface SayOptions {
  /** The model's name; default: any. */
  model?: string;
  /** Most tokens of the answer. */
  maxTokens?: number;
  /** Whether the echo engine, which repeats its input, may answer. */
  allowEcho?: boolean;
  /** Called for each event, in their order. */
  onEvent?: (event: BatonEvent) => void;
}

/** An answer that the page has verified: record, link and blob are rebuilt byte for byte. */
export interface BatonAnswer {
  text: string;
  /** Its turn, from 0. */
  seq: number;
  /** The node that signed it. */
  node: string;
  /** Nodes that were asked before it. */
  attempt: number;
  finish: string;
  model: string;
  inputTokens: number;
  outputTokens: number;
  /** Earlier turns and memories that the model did not see, because its context has no room. */
  omitted: { turns: number; memories: number };
}

/** A turn of the conversation. */
export interface BatonTurn {
  seq: number;
  node: string;
  messages: { role: string; text: string }[];
}

/** The outcome of a check of all turns. */
export interface BatonReport {
  good: boolean;
  turns: number;
  blobsChecked: number;
  receiptsChecked: number;
  fromStore: number;
  problems: string[];
}

/** An error: its code is a stable name. */
export interface BatonError extends Error {
  code: string;
}
"#;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn log_error(text: &str);

    /// Options of a client.
    #[wasm_bindgen(typescript_type = "BatonOptions")]
    pub type JsOptions;
    /// Options of a message.
    #[wasm_bindgen(typescript_type = "SayOptions")]
    pub type JsSayOptions;
    /// Nodes.
    #[wasm_bindgen(typescript_type = "BatonNode[]")]
    pub type JsNodes;
    /// An answer.
    #[wasm_bindgen(typescript_type = "BatonAnswer")]
    pub type JsAnswer;
    /// Turns.
    #[wasm_bindgen(typescript_type = "BatonTurn[]")]
    pub type JsTurns;
    /// A report.
    #[wasm_bindgen(typescript_type = "BatonReport")]
    pub type JsReport;
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Options {
    nodes: Vec<String>,
    aggregator: String,
    publisher: Option<String>,
    heads: Option<String>,
    shards: Option<u16>,
    #[serde(default)]
    allow_echo: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SayInput {
    model: Option<String>,
    max_tokens: Option<u32>,
    #[serde(default)]
    allow_echo: bool,
}

/// A client in this page: its identities, its sessions, and its connections with nodes.
#[wasm_bindgen]
pub struct BatonClient {
    client: Client,
    /// The gateway's routes over the client.
    routes: Router,
}

#[wasm_bindgen]
impl BatonClient {
    /// Opens a client. Nodes are dialled in the background.
    ///
    /// # Errors
    /// A wrong option, by its name.
    pub async fn open(options: JsOptions) -> Result<BatonClient, JsValue> {
        // Else a fault would be "unreachable", without a word.
        std::panic::set_hook(Box::new(|fault| log_error(&fault.to_string())));
        let options: Options = read(&options, "options")?;
        let shards = ShardCount::new(options.shards.unwrap_or(WALRUS_SHARDS))
            .map_err(|error| wrong("shards", &error.to_string()))?;
        let publisher = options.publisher.as_deref().unwrap_or(&options.aggregator);
        let heads = options.heads.as_deref().unwrap_or(publisher);
        let store = FetchStore::new(publisher, &options.aggregator, heads, shards);
        let mut config = ClientConfig::new(None, store.clone(), store, shards);
        for node in &options.nodes {
            config.bootstrap.push(node.parse().map_err(|error| wrong("nodes", &format!("{node}: {error}")))?);
        }
        let client = Client::open(config).await.map_err(failure)?;
        let template = TurnInput::new(Vec::new()).by_model();
        let config = GatewayConfig::new(template.with_route(|route| route.allow_echo = options.allow_echo));
        let routes = Gateway::open(client.clone(), config).await.map_err(failure)?.router();
        Ok(Self { client, routes })
    }

    /// Answers a request as `baton serve` does, without a server: with the APIs of OpenAI, Anthropic and Ollama, and
    /// those of the chat page. Libraries that take a `fetch` of their own take this one. An aborted request ends its
    /// turn.
    ///
    /// # Errors
    /// A request whose body cannot be read. All other errors are responses, in the form of the request's API.
    pub async fn fetch(&self, request: Request) -> Result<Response, JsValue> {
        endpoint::answer(self.routes.clone(), request).await
    }

    /// The nodes found so far.
    pub async fn nodes(&self) -> Result<JsNodes, JsValue> {
        let nodes = self.client.nodes().await;
        let shown = nodes.iter().map(|node| {
            let models: Vec<_> = node.record.models.iter().map(|model| model.name.clone()).collect();
            json!({ "id": node.record.node.to_string(), "models": models })
        });
        written(&shown.collect::<Vec<_>>()).map(JsCast::unchecked_into)
    }

    /// Begins a session, with a new random root.
    ///
    /// # Errors
    /// None is known.
    #[wasm_bindgen(js_name = newSession)]
    pub async fn new_session(&self, system: Option<String>) -> Result<BatonSession, JsValue> {
        let new = system.map_or_else(NewSession::default, NewSession::with_system);
        let id = self.client.new_session(new).await.map_err(failure)?;
        Ok(BatonSession { handle: self.client.session(id) })
    }

    /// A session of this client, by its id.
    ///
    /// # Errors
    /// A text that is no id. A session that is not here fails when it is used.
    pub fn session(&self, id: &str) -> Result<BatonSession, JsValue> {
        let id: SessionId = id.parse().map_err(|_| wrong("id", "it is no session's id"))?;
        Ok(BatonSession { handle: self.client.session(id) })
    }

    /// Restores a session by its 24 words, from head index and store.
    ///
    /// # Errors
    /// Wrong words; a session that the index does not know.
    pub async fn restore(&self, words: String) -> Result<BatonSession, JsValue> {
        let root = SessionRoot::from_words(&words).map_err(|error| wrong("words", &error.to_string()))?;
        let id = self.client.recover(&root).await.map_err(failure)?;
        Ok(BatonSession { handle: self.client.session(id) })
    }

    /// Ends the client: waits a moment for uploads, then closes its connections.
    pub async fn close(&self) {
        self.client.shutdown(GRACE).await;
    }
}

/// A conversation.
#[wasm_bindgen]
pub struct BatonSession {
    handle: SessionHandle,
}

#[wasm_bindgen]
impl BatonSession {
    /// The session's id: hex of its public key.
    #[wasm_bindgen(getter)]
    #[must_use]
    pub fn id(&self) -> String {
        self.handle.id().to_string()
    }

    /// Says something, and waits for the verified answer. If a node dies in mid-answer, another goes on.
    ///
    /// # Errors
    /// As the client's turn: no node, a failed turn.
    pub async fn say(&self, text: String, options: Option<JsSayOptions>) -> Result<JsAnswer, JsValue> {
        let (input, on_event) = say_input(text, options.as_ref().map(AsRef::as_ref))?;
        let on_event = on_event.map(SendWrapper::new);
        let outcome = self
            .handle
            .turn(input, move |event| {
                let (Some(call), Some(shown)) = (&on_event, event_json(&event)) else { return };
                if let Ok(shown) = written(&shown) {
                    // An error of the page's own is no error of the turn.
                    let _ = call.call1(&JsValue::NULL, &shown);
                }
            })
            .await
            .map_err(failure)?;
        let receipt = &outcome.receipt;
        let answer = json!({
            "text": outcome.text,
            "seq": outcome.seq,
            "node": outcome.node.to_string(),
            "attempt": outcome.attempt,
            "finish": finish_name(outcome.finish),
            "model": receipt.model.to_string(),
            "inputTokens": receipt.tokens.input,
            "outputTokens": receipt.tokens.output,
            "omitted": { "turns": outcome.omitted.turns, "memories": outcome.omitted.memories },
        });
        written(&answer).map(JsCast::unchecked_into)
    }

    /// The turns, oldest first.
    pub async fn history(&self) -> Result<JsTurns, JsValue> {
        let conversation = self.handle.conversation().await.map_err(failure)?;
        let message = |message: &Message| json!({ "role": role_name(message.role), "text": message.text });
        let turns = conversation.turns.iter().map(|turn| {
            let messages: Vec<_> = turn.messages.iter().map(message).collect();
            json!({ "seq": turn.seq, "node": turn.node.to_string(), "messages": messages })
        });
        written(&turns.collect::<Vec<_>>()).map(JsCast::unchecked_into)
    }

    /// Waits until every blob is seen in the store and the head is published; false after so many seconds.
    pub async fn settled(&self, seconds: f64) -> Result<bool, JsValue> {
        let wait = Duration::try_from_secs_f64(seconds.clamp(0.0, 3600.0))
            .map_err(|_| wrong("seconds", "it is no number"))?;
        let stored = self.handle.wait_settled(wait).await.map_err(failure)?;
        let published = self.handle.wait_published(wait).await.map_err(failure)?;
        Ok(stored && published)
    }

    /// Checks every turn again: links, receipts, and all blobs with their Walrus IDs.
    pub async fn verify(&self) -> Result<JsReport, JsValue> {
        let report = self.handle.verify(true).await.map_err(failure)?;
        let problems: Vec<_> = report
            .problems
            .iter()
            .map(|problem| format!("turn {}: {}", problem.seq, problem.code.name()))
            .collect();
        let shown = json!({
            "good": report.is_good(),
            "turns": report.turns,
            "blobsChecked": report.blobs_checked,
            "receiptsChecked": report.receipts_checked,
            "fromStore": report.from_store,
            "problems": problems,
        });
        written(&shown).map(JsCast::unchecked_into)
    }

    /// The 24 words that restore the session on any device. They are its key.
    pub async fn words(&self) -> Result<String, JsValue> {
        let root = self.handle.backup().await.map_err(failure)?;
        Ok(root.to_words().to_string())
    }

    /// The signed export, which `baton session import` and the Python verifier read.
    #[wasm_bindgen(js_name = exportText)]
    pub async fn export_text(&self) -> Result<String, JsValue> {
        let text = self.handle.export(false).await.map_err(failure)?;
        Ok(text.to_string())
    }
}

/// The input of a turn, and the function for its events.
fn say_input(text: String, options: Option<&JsValue>) -> Result<(TurnInput, Option<Function>), JsValue> {
    let options = options.filter(|options| !options.is_undefined() && !options.is_null());
    let Some(options) = options else { return Ok((TurnInput::user(text).by_model(), None)) };
    let on_event = Reflect::get(options, &"onEvent".into()).ok().and_then(|call| call.dyn_into().ok());
    // A function is no JSON.
    let plain = js_sys::Object::assign(&js_sys::Object::new(), options.unchecked_ref());
    Reflect::delete_property(&plain, &"onEvent".into())?;
    let input: SayInput = read(&plain, "options")?;
    let turn = TurnInput::user(text)
        .by_model()
        .with_route(|route| (route.allow_echo, route.model) = (input.allow_echo, input.model));
    let turn = match input.max_tokens {
        Some(most) => TurnInput { max_output_tokens: most, ..turn },
        None => turn,
    };
    Ok((turn, on_event))
}

fn event_json(event: &TurnEvent) -> Option<serde_json::Value> {
    Some(match event {
        TurnEvent::Attempt { attempt, node, model, continues, .. } => json!({
            "type": "attempt", "attempt": attempt, "node": node.to_string(), "model": model, "continues": continues,
        }),
        TurnEvent::Text(text) => json!({ "type": "text", "text": text }),
        TurnEvent::AttemptFailed { node, code, reason, .. } => json!({
            "type": "failed", "node": node.to_string(), "code": code.map(|code| code.name()), "reason": reason,
        }),
        TurnEvent::Restarted => json!({ "type": "restarted" }),
        TurnEvent::Accepted => json!({ "type": "accepted" }),
        _ => return None,
    })
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    }
}

/// The name of an end, as OpenAI's API has it.
fn finish_name(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Length => "length",
        FinishReason::ToolCall => "tool_calls",
        _ => "stop",
    }
}

/// Reads a JavaScript object as JSON.
fn read<T: for<'de> Deserialize<'de>>(value: &JsValue, name: &str) -> Result<T, JsValue> {
    let text = js_sys::JSON::stringify(value).map_err(|_| wrong(name, "it is no JSON"))?;
    let text = text.as_string().unwrap_or_default();
    serde_json::from_str(&text).map_err(|error| wrong(name, &error.to_string()))
}

/// Makes a JavaScript object of JSON.
fn written(value: &impl Serialize) -> Result<JsValue, JsValue> {
    let text = serde_json::to_string(value).map_err(|error| wrong("output", &error.to_string()))?;
    js_sys::JSON::parse(&text)
}

fn wrong(name: &str, reason: &str) -> JsValue {
    coded("InvalidOption", &format!("{name}: {reason}"))
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err hands over")]
fn failure(error: ClientError) -> JsValue {
    coded(error.name(), &error.to_string())
}

/// An `Error` with a code.
fn coded(code: &str, message: &str) -> JsValue {
    let error = js_sys::Error::new(message);
    // A new object takes any field.
    let _ = Reflect::set(&error, &"code".into(), &code.into());
    error.into()
}
