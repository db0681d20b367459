//! `/v1/chat/completions` and `/v1/completions`, answered whole or as server-sent events.

use axum::{
    Json,
    body::Body,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use baton_proto::{receipt::TokenCounts, record::FinishReason};
use futures::{
    Stream, StreamExt as _,
    stream::{self, BoxStream},
};
use serde_json::{Value, json};

use crate::{
    form::{
        completion::CompletionRequest,
        logprobs::LogprobsRequest,
        steps::{AcceptedAnswer, Step},
        tools::{AnswerParser, AnswerPart, EndedAnswer, ModelCall},
        wire::{read_chat, read_text},
    },
    http::{
        api_error::ApiError,
        event_stream::{self, ServerEvent},
        session_header::{name_session, named_session},
    },
    state::{Gateway, request_slots::RequestSlot},
    turns::answer::{RunningTurn, WholeAnswer, start},
};
use baton_client::TokenReport;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CompletionForm {
    Chat,
    Text,
}

/// A chat completion.
pub(crate) async fn complete(gateway: Gateway, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let (slot, body) = gateway.receive(body).await?;
    let request = read_chat(&body, named_session(&headers)?)?;
    respond(gateway, slot, request, CompletionForm::Chat).await
}

/// A text completion.
pub(crate) async fn complete_text(gateway: Gateway, body: Body) -> Result<Response, ApiError> {
    let (slot, body) = gateway.receive(body).await?;
    let request = read_text(&body)?;
    respond(gateway, slot, request, CompletionForm::Text).await
}

async fn respond(
    gateway: Gateway,
    slot: RequestSlot,
    request: CompletionRequest,
    form: CompletionForm,
) -> Result<Response, ApiError> {
    let (stream, include_usage, ephemeral) = (request.stream, request.include_usage, request.is_ephemeral());
    let parser = request.answer_parser();
    let mut frame = ChunkFrame {
        form,
        index: 0,
        logprobs: request.logprobs,
        model: request.model.clone().unwrap_or_default(),
        id: format!("{}-{}", form.prefix(), hex::encode(baton_keys::secret::random_bytes::<12>())),
        created_s: gateway.client().now_ms() / 1000,
    };
    let (answers, others) = (request.answers, (request.answers > 1).then(|| request.clone()));
    let mut running = start(&gateway, slot, request).await?;
    let session = running.session;
    let mut more = Vec::new();
    for number in 1..answers {
        let Some(request) = others.as_ref().map(|request| request.beside(running.seq)) else { break };
        let request = CompletionRequest { sampling: request.sampling.other_seed(number), ..request };
        let parser = request.answer_parser();
        gateway.count_request()?;
        more.push((start(&gateway, gateway.slot()?, request).await?, parser));
    }
    let named = |api_error: ApiError| if ephemeral { api_error } else { api_error.of(session) };
    let first = running.first_step(&mut frame.model, stream).await.map_err(named)?;
    let mut response = if stream {
        let mut choices = vec![frame.clone().steps(first, running, parser).boxed()];
        for (mut running, parser) in more {
            let first = running.first_step(&mut frame.model, stream).await?;
            let frame = ChunkFrame { index: choices.len(), ..frame.clone() };
            choices.push(frame.steps(first, running, parser).boxed());
        }
        let events = frame.events(choices, include_usage);
        event_stream::respond(events, event_stream::KEEP_ALIVE, ServerEvent::comment())
    } else {
        let mut body = frame.response(&running.whole(first).await.map_err(named)?, parser);
        for (mut running, parser) in more {
            let first = running.first_step(&mut frame.model, stream).await?;
            add_choice(&mut body, frame.response(&running.whole(first).await?, parser));
        }
        Json(body).into_response()
    };
    if !ephemeral {
        name_session(&mut response, session);
    }
    Ok(response)
}

/// Adds another answer to a response: its choice, which names its own session, and its tokens.
fn add_choice(body: &mut Value, mut other: Value) {
    let take = |value: &mut Value, at: &str| value.pointer_mut(at).map(Value::take).unwrap_or_default();
    let mut choice = take(&mut other, "/choices/0");
    let about = take(&mut other, "/baton");
    for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        let at = format!("/usage/{name}");
        let tokens = other.pointer(&at).and_then(Value::as_u64).unwrap_or(0);
        if let Some(sum) = body.pointer_mut(&at) {
            *sum = sum.as_u64().unwrap_or(0).saturating_add(tokens).into();
        }
    }
    if let Some(Value::Array(choices)) = body.pointer_mut("/choices") {
        if let Value::Object(choice) = &mut choice {
            choice.insert("index".to_owned(), choices.len().into());
            choice.insert("baton".to_owned(), about);
        }
        choices.push(choice);
    }
}

/// A step of one choice in a stream.
enum ChoiceStep {
    Event(ServerEvent),
    /// Its end, with its tokens.
    End(TokenCounts),
}

/// The fields that all parts of a response share.
#[derive(Clone)]
struct ChunkFrame {
    form: CompletionForm,
    /// The choice's position.
    index: usize,
    logprobs: Option<LogprobsRequest>,
    /// The model's name.
    model: String,
    id: String,
    created_s: u64,
}

impl CompletionForm {
    fn prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Text => "cmpl",
        }
    }
}

impl ChunkFrame {
    fn response(&self, whole: &WholeAnswer, parser: Option<AnswerParser>) -> Value {
        let WholeAnswer { text, reports, accepted: answer } = whole;
        let ended = EndedAnswer::read(text, parser, answer.outcome.finish);
        let (message, finish) = (message(&ended), finish_reason(ended.finish));
        // An answer recovered from the store after its node was lost has no log probabilities.
        let whole = reports.len() == answer.outcome.receipt.tokens.output as usize;
        let logprobs = if whole { self.logprobs(reports, &mut 0) } else { Value::Null };
        let (object, choice) = match self.form {
            CompletionForm::Chat => (
                "chat.completion",
                json!({
                    "index": 0,
                    "message": message,
                    "logprobs": logprobs,
                    "finish_reason": finish,
                }),
            ),
            CompletionForm::Text => (
                "text_completion",
                json!({ "index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish }),
            ),
        };
        json!({
            "id": self.id,
            "object": object,
            "created": self.created_s,
            "model": answer.model,
            "system_fingerprint": answer.fingerprint(),
            "choices": [choice],
            "usage": usage(&answer.outcome.receipt.tokens),
            "baton": answer.about(),
        })
    }

    /// The log probabilities of these tokens, in the requested form.
    fn logprobs(&self, reports: &[TokenReport], offset: &mut usize) -> Value {
        match (self.logprobs, self.form) {
            (None, _) => Value::Null,
            (Some(request), CompletionForm::Chat) => request.chat(reports),
            (Some(request), CompletionForm::Text) => request.text(reports, offset),
        }
    }

    /// The events of a stream: those of its choices, then the token counts if requested, and `[DONE]`. After a
    /// choice that failed, neither follows.
    fn events(
        self,
        choices: Vec<BoxStream<'static, ChoiceStep>>,
        include_usage: bool,
    ) -> impl Stream<Item = ServerEvent> {
        let mut running = choices.len();
        let mut sum = TokenCounts::default();
        stream::select_all(choices).flat_map(move |step| {
            stream::iter(match step {
                ChoiceStep::Event(event) => vec![event],
                ChoiceStep::End(tokens) => {
                    sum.input = sum.input.saturating_add(tokens.input);
                    sum.output = sum.output.saturating_add(tokens.output);
                    running -= 1;
                    let counts = (running == 0 && include_usage).then(|| event(&self.usage_chunk(&sum)));
                    let done = (running == 0).then(|| ServerEvent::new("[DONE]"));
                    counts.into_iter().chain(done).collect()
                }
            })
        })
    }

    /// The steps of one choice: role, text, finish reason.
    fn steps(
        self,
        first: Step,
        running: RunningTurn,
        mut parser: Option<AnswerParser>,
    ) -> impl Stream<Item = ChoiceStep> {
        let head = (self.form == CompletionForm::Chat)
            .then(|| self.chunk(&json!({ "role": "assistant", "content": "" }), Value::Null, None, None));
        // Reports whose text comes next, and the number of characters before it.
        let (mut waiting, mut offset) = (Vec::new(), 0);
        let rest = running.steps(first).flat_map(move |step| {
            stream::iter(
                match step {
                    Step::Model(_) | Step::Note(_) => Vec::new(),
                    Step::Logprobs(reports) => {
                        waiting.extend(reports);
                        Vec::new()
                    }
                    Step::Text(text) => {
                        let logprobs = self.take_logprobs(&mut waiting, &mut offset);
                        match &mut parser {
                            None => vec![self.chunk(&self.delta(&text), logprobs, None, None)],
                            Some(parser) => self.parts(parser.push(&text), logprobs),
                        }
                    }
                    Step::Failed(api_error) => vec![event(&api_error.body())],
                    Step::Done(answer) => {
                        let mut finish = answer.outcome.finish;
                        let mut last = Vec::new();
                        if let Some(parser) = &mut parser {
                            last = self.parts(parser.finish(), Value::Null);
                            finish = parser.finish_reason(finish);
                        }
                        let logprobs = self.take_logprobs(&mut waiting, &mut offset);
                        let finish = Some(finish_reason(finish));
                        last.push(self.chunk(&self.delta(""), logprobs, finish, Some(&answer)));
                        let end = ChoiceStep::End(answer.outcome.receipt.tokens);
                        return stream::iter(
                            last.into_iter().map(ChoiceStep::Event).chain([end]).collect::<Vec<_>>(),
                        );
                    }
                }
                .into_iter()
                .map(ChoiceStep::Event)
                .collect::<Vec<_>>(),
            )
        });
        stream::iter(head.map(ChoiceStep::Event)).chain(rest)
    }

    fn parts(&self, parts: Vec<AnswerPart>, logprobs: Value) -> Vec<ServerEvent> {
        // The log probabilities go with the first part; if the parts are held back, with a chunk of their
        // own.
        let deltas: Vec<Value> = parts.into_iter().filter_map(delta).collect();
        if deltas.is_empty() && !logprobs.is_null() {
            return vec![self.chunk(&self.delta(""), logprobs, None, None)];
        }
        let all = std::iter::once(logprobs).chain(std::iter::repeat(Value::Null));
        deltas.iter().zip(all).map(|(delta, logprobs)| self.chunk(delta, logprobs, None, None)).collect()
    }

    /// The log probabilities of the waiting reports, which it removes.
    fn take_logprobs(&self, waiting: &mut Vec<TokenReport>, offset: &mut usize) -> Value {
        let reports = std::mem::take(waiting);
        if reports.is_empty() { Value::Null } else { self.logprobs(&reports, offset) }
    }

    fn delta(&self, text: &str) -> Value {
        match self.form {
            CompletionForm::Chat if text.is_empty() => json!({}),
            CompletionForm::Chat => json!({ "content": text }),
            CompletionForm::Text => Value::from(text),
        }
    }

    fn chunk(
        &self,
        delta: &Value,
        logprobs: Value,
        finish: Option<&str>,
        answer: Option<&AcceptedAnswer>,
    ) -> ServerEvent {
        let field = if self.form == CompletionForm::Chat { "delta" } else { "text" };
        let choice =
            json!({ "index": self.index, field: delta, "logprobs": logprobs, "finish_reason": finish });
        let mut chunk = self.base(&[choice]);
        if let (Some(answer), Value::Object(chunk)) = (answer, &mut chunk) {
            chunk.insert("system_fingerprint".to_owned(), answer.fingerprint().into());
            chunk.insert("baton".to_owned(), answer.about());
        }
        event(&chunk)
    }

    fn usage_chunk(&self, tokens: &TokenCounts) -> Value {
        let mut chunk = self.base(&[]);
        if let Value::Object(chunk) = &mut chunk {
            chunk.insert("usage".to_owned(), usage(tokens));
        }
        chunk
    }

    fn base(&self, choices: &[Value]) -> Value {
        let object =
            if self.form == CompletionForm::Chat { "chat.completion.chunk" } else { "text_completion" };
        json!({
            "id": self.id,
            "object": object,
            "created": self.created_s,
            "model": self.model,
            // The last chunk has it: the receipt names the model.
            "system_fingerprint": null,
            "choices": choices,
        })
    }
}

/// A part as a delta of a stream; the end of a call has none.
#[expect(clippy::indexing_slicing, reason = "a call is an object")]
fn delta(part: AnswerPart) -> Option<Value> {
    match part {
        AnswerPart::Text(text) => Some(json!({ "content": text })),
        AnswerPart::CallBegun(call) => {
            let mut object = call_object(&call);
            object["index"] = json!(call.position);
            Some(json!({ "tool_calls": [object] }))
        }
        AnswerPart::Arguments { position, text } => {
            Some(json!({ "tool_calls": [{ "index": position, "function": { "arguments": text } }] }))
        }
        AnswerPart::CallEnded(_) => None,
    }
}

fn call_object(call: &ModelCall) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments });
    json!({ "id": call.id, "type": "function", "function": function })
}

/// An answer as a message.
#[expect(clippy::indexing_slicing, reason = "a field of an object that is made here")]
fn message(ended: &EndedAnswer) -> Value {
    let content = ended.has_text().then_some(&ended.text);
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if !ended.calls.is_empty() {
        message["tool_calls"] = ended.calls.iter().map(call_object).collect();
    }
    message
}

fn event(value: &Value) -> ServerEvent {
    ServerEvent::new(value)
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
