//! `/v1/chat/completions` and `/v1/completions`, answered whole or as server-sent events.

use std::{convert::Infallible, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::State,
    http::HeaderMap,
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use baton_proto::{receipt::TokenCounts, record::FinishReason};
use futures::{Stream, StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use zeroize::Zeroizing;

use super::{
    Fault, Gateway,
    answer::{Answered, Running, Step, start},
    logprobs::Wanted,
    session_header::{SESSION, name_session},
    tools::{self, Part, Saying},
    wire::{Ask, ChatRequest, TextRequest},
};
use baton_client::TokenReport;

/// Largest body: the largest turn's messages, JSON-escaped, after a long conversation.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;
/// Most bytes read in all; those beyond the limit are dropped.
const MAX_DRAINED_BYTES: usize = 4 * MAX_BODY_BYTES;
/// Time for a body to arrive; until then it holds a slot.
const BODY_TIME: Duration = Duration::from_secs(60);
/// Pause after which a comment shows that the connection is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Chat,
    Text,
}

/// A chat completion.
pub(super) async fn complete(
    State(gateway): State<Gateway>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    let slot = gateway.slot()?;
    let mut ask = ChatRequest::read(&read(body).await?)?;
    if let Some(session) = headers.get(&SESSION) {
        let session = session.to_str().map_err(|_| Fault::value("session", "x-baton-session is not text"))?;
        ask.session = Some(session.to_owned());
    }
    respond(gateway, slot, ask, Form::Chat).await
}

/// A text completion.
pub(super) async fn complete_text(State(gateway): State<Gateway>, body: Body) -> Result<Response, Fault> {
    let slot = gateway.slot()?;
    let ask = TextRequest::read(&read(body).await?)?;
    respond(gateway, slot, ask, Form::Text).await
}

/// Reads a body. Reads and drops bytes beyond the limit for a while: a program that is cut off while it sends
/// never sees the error.
pub(super) async fn read(body: Body) -> Result<Zeroizing<Vec<u8>>, Fault> {
    let read = tokio::time::timeout(BODY_TIME, collect(body)).await;
    read.map_err(|_| Fault::request("body_too_slow", "", "the body did not arrive in time"))?
}

async fn collect(body: Body) -> Result<Zeroizing<Vec<u8>>, Fault> {
    let mut bytes = Zeroizing::new(Vec::new());
    let mut seen = 0;
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|_| Fault::request("invalid_body", "", "the body was cut off"))?;
        seen += part.len();
        if seen <= MAX_BODY_BYTES {
            bytes.extend_from_slice(&part);
        } else if seen > MAX_DRAINED_BYTES {
            break;
        }
    }
    if seen > MAX_BODY_BYTES {
        let message = format!("the body is larger than {MAX_BODY_BYTES} bytes");
        return Err(Fault::request("body_too_large", "", message));
    }
    Ok(bytes)
}

async fn respond(
    gateway: Gateway,
    slot: OwnedSemaphorePermit,
    ask: Ask,
    form: Form,
) -> Result<Response, Fault> {
    let (stream, include_usage, passing) = (ask.stream, ask.include_usage, ask.passing);
    let saying = ask.tools.clone().map(Saying::new);
    let mut frame = Frame {
        form,
        logprobs: ask.logprobs,
        model: ask.model.clone().unwrap_or_default(),
        id: format!("{}-{}", form.prefix(), hex::encode(baton_keys::secret::random_bytes::<12>())),
        created_s: gateway.client().now_ms() / 1000,
    };
    let mut running = start(&gateway, slot, ask).await?;
    let session = running.session;
    // An ephemeral session cannot be continued, so its errors do not name it.
    let named = |fault: Fault| if passing { fault } else { fault.of(session) };
    let mut response = if stream {
        // An answer that fails before it begins is an error with a status, as programs expect.
        let first = loop {
            match running.steps.recv().await {
                Some(Step::Model(model)) => frame.model = model,
                Some(Step::Failed(fault)) => return Err(named(fault)),
                first => break first,
            }
        };
        let events = frame.events(first, running, saying, include_usage);
        Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
    } else {
        frame.whole(running, saying).await.map_err(named)?.into_response()
    };
    if !passing {
        name_session(&mut response, session);
    }
    Ok(response)
}

/// The fields that all parts of a response share.
struct Frame {
    form: Form,
    logprobs: Option<Wanted>,
    /// The model's name.
    model: String,
    id: String,
    created_s: u64,
}

impl Form {
    fn prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Text => "cmpl",
        }
    }
}

impl Frame {
    async fn whole(&self, mut running: Running, saying: Option<Saying>) -> Result<Json<Value>, Fault> {
        let (mut text, mut reports) = (String::new(), Vec::new());
        loop {
            match running.steps.recv().await {
                Some(Step::Model(_)) => {}
                Some(Step::Logprobs(more)) => reports.extend(more),
                Some(Step::Text(more)) => text.push_str(&more),
                Some(Step::Done(answered)) => {
                    return Ok(Json(self.response(&text, &reports, saying, &answered)));
                }
                Some(Step::Failed(fault)) => return Err(fault),
                None => return Err(baton_client::ClientError::TaskEnded.into()),
            }
        }
    }

    fn response(
        &self,
        text: &str,
        reports: &[TokenReport],
        saying: Option<Saying>,
        answered: &Answered,
    ) -> Value {
        let mut finish = answered.outcome.finish;
        let message = match saying {
            None => tools::message(vec![Part::Text(text.to_owned())]),
            Some(mut saying) => {
                let mut parts = saying.push(text);
                parts.extend(saying.finish());
                finish = saying.finish_reason(finish);
                tools::message(parts)
            }
        };
        let finish = finish_reason(finish);
        // An answer recovered from the store after its node was lost has no log probabilities.
        let whole = reports.len() == answered.outcome.receipt.tokens.output as usize;
        let logprobs = if whole { self.logprobs(reports, &mut 0) } else { Value::Null };
        let (object, choice) = match self.form {
            Form::Chat => (
                "chat.completion",
                json!({
                    "index": 0,
                    "message": message,
                    "logprobs": logprobs,
                    "finish_reason": finish,
                }),
            ),
            Form::Text => (
                "text_completion",
                json!({ "index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish }),
            ),
        };
        json!({
            "id": self.id,
            "object": object,
            "created": self.created_s,
            "model": answered.model,
            "choices": [choice],
            "usage": usage(&answered.outcome.receipt.tokens),
            "baton": about(answered),
        })
    }

    /// The log probabilities of these tokens, in the requested form.
    fn logprobs(&self, reports: &[TokenReport], offset: &mut usize) -> Value {
        match (self.logprobs, self.form) {
            (None, _) => Value::Null,
            (Some(wanted), Form::Chat) => wanted.chat(reports),
            (Some(wanted), Form::Text) => wanted.text(reports, offset),
        }
    }

    /// The events of a stream: role, text, finish reason, token counts if requested, `[DONE]`.
    fn events(
        self,
        first: Option<Step>,
        running: Running,
        mut saying: Option<Saying>,
        include_usage: bool,
    ) -> impl Stream<Item = Result<Event, Infallible>> {
        let steps =
            stream::unfold(running, |mut running| async { Some((running.steps.recv().await?, running)) });
        let head = (self.form == Form::Chat)
            .then(|| self.chunk(&json!({ "role": "assistant", "content": "" }), Value::Null, None, None));
        // Reports whose text comes next, and the number of characters before it.
        let (mut waiting, mut offset) = (Vec::new(), 0);
        let rest = stream::iter(first).chain(steps).flat_map(move |step| {
            stream::iter(match step {
                Step::Model(_) => Vec::new(),
                Step::Logprobs(reports) => {
                    waiting.extend(reports);
                    Vec::new()
                }
                Step::Text(text) => {
                    let logprobs = self.told(&mut waiting, &mut offset);
                    match &mut saying {
                        None => vec![self.chunk(&self.delta(&text), logprobs, None, None)],
                        Some(saying) => self.parts(saying.push(&text), logprobs),
                    }
                }
                Step::Failed(fault) => vec![event(&fault.body())],
                Step::Done(answered) => {
                    let mut finish = answered.outcome.finish;
                    let mut last = Vec::new();
                    if let Some(saying) = &mut saying {
                        last = self.parts(saying.finish(), Value::Null);
                        finish = saying.finish_reason(finish);
                    }
                    let logprobs = self.told(&mut waiting, &mut offset);
                    let finish = Some(finish_reason(finish));
                    last.push(self.chunk(&self.delta(""), logprobs, finish, Some(&answered)));
                    if include_usage {
                        last.push(event(&self.usage_chunk(&answered)));
                    }
                    last.push(Event::default().data("[DONE]"));
                    last
                }
            })
        });
        stream::iter(head).chain(rest).map(Ok)
    }

    fn parts(&self, parts: Vec<Part>, logprobs: Value) -> Vec<Event> {
        // The log probabilities go with the first part; if the parts are held back, with a chunk of their
        // own.
        if parts.is_empty() && !logprobs.is_null() {
            return vec![self.chunk(&self.delta(""), logprobs, None, None)];
        }
        let all = std::iter::once(logprobs).chain(std::iter::repeat(Value::Null));
        parts.into_iter().zip(all).map(|(part, told)| self.chunk(&part.delta(), told, None, None)).collect()
    }

    /// The log probabilities of the waiting reports, which it removes.
    fn told(&self, waiting: &mut Vec<TokenReport>, offset: &mut usize) -> Value {
        let reports = std::mem::take(waiting);
        if reports.is_empty() { Value::Null } else { self.logprobs(&reports, offset) }
    }

    fn delta(&self, text: &str) -> Value {
        match self.form {
            Form::Chat if text.is_empty() => json!({}),
            Form::Chat => json!({ "content": text }),
            Form::Text => Value::from(text),
        }
    }

    fn chunk(
        &self,
        delta: &Value,
        logprobs: Value,
        finish: Option<&str>,
        answered: Option<&Answered>,
    ) -> Event {
        let field = if self.form == Form::Chat { "delta" } else { "text" };
        let choice = json!({ "index": 0, field: delta, "logprobs": logprobs, "finish_reason": finish });
        let mut chunk = self.base(&[choice]);
        if let (Some(answered), Value::Object(chunk)) = (answered, &mut chunk) {
            chunk.insert("baton".to_owned(), about(answered));
        }
        event(&chunk)
    }

    fn usage_chunk(&self, answered: &Answered) -> Value {
        let mut chunk = self.base(&[]);
        if let Value::Object(chunk) = &mut chunk {
            chunk.insert("usage".to_owned(), usage(&answered.outcome.receipt.tokens));
        }
        chunk
    }

    fn base(&self, choices: &[Value]) -> Value {
        let object = if self.form == Form::Chat { "chat.completion.chunk" } else { "text_completion" };
        json!({
            "id": self.id,
            "object": object,
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
        })
    }
}

fn event(value: &Value) -> Event {
    Event::default().data(value.to_string())
}

fn usage(tokens: &TokenCounts) -> Value {
    json!({
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.input.saturating_add(tokens.output),
    })
}

fn finish_reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Length => "length",
        FinishReason::ToolCall => "tool_calls",
        FinishReason::Stop | FinishReason::StopString | FinishReason::None => "stop",
    }
}

/// Data about the turn for which OpenAI's API has no field.
fn about(answered: &Answered) -> Value {
    let outcome = &answered.outcome;
    let mut about = json!({
        "session": outcome.session.to_string(),
        "turn": outcome.seq,
        "node": outcome.node.to_string(),
        // A turn that does not rebuild is never sent as an answer.
        "verified": true,
        "model": outcome.receipt.model.to_string(),
        "engine": outcome.receipt.engine.name(),
        "seed": outcome.receipt.seed,
        "receipt": outcome.receipt.receipt_hash().to_string(),
        "first_token_ms": outcome.receipt.timings.first_token_ms,
    });
    if !answered.devices.is_empty() {
        about["devices"] = json!(answered.devices);
    }
    about
}
