//! `/v1/chat/completions` and `/v1/completions`, answered whole or as server-sent events.

use std::sync::Arc;

use axum::{body::Body, http::HeaderMap, response::Response};
use baton_proto::{receipt::TokenCounts, record::FinishReason};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    form::{
        completion::CompletionRequest,
        fields::with,
        logprobs::LogprobsRequest,
        steps::AcceptedAnswer,
        tools::{AnswerPart, EndedAnswer, ModelCall},
        wire::{own_text_name, read_chat, read_text},
    },
    http::{
        api_error::ApiError,
        event_stream::{EVENTS, StreamForm, event},
        session_header::named_session,
    },
    state::Gateway,
    turns::{
        answer::{RunningTurn, WholeAnswer},
        response::{AnswerWriter, respond},
    },
};
use baton_client::TokenReport;

/// A chat completion.
pub(crate) async fn complete(gateway: Gateway, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let (slot, body) = gateway.receive(body).await?;
    let request = read_chat(&body, named_session(&headers)?)?;
    let writer = CompletionWriter::new(&gateway, &request, true);
    respond(&gateway, slot, request, writer).await
}

/// A text completion.
pub(crate) async fn complete_text(gateway: Gateway, body: Body) -> Result<Response, ApiError> {
    let (slot, body) = gateway.receive(body).await?;
    let request = read_text(&body)?;
    let writer = CompletionWriter::new(&gateway, &request, false);
    respond(&gateway, slot, request, writer).await.map_err(own_text_name)
}

/// Writes a chat completion, or a text completion.
#[derive(Clone)]
struct CompletionWriter {
    is_chat: bool,
    /// The position of the answer.
    index: usize,
    /// The answers of the stream that did not end, and the tokens of those that did.
    stream: Arc<Mutex<(u64, TokenCounts)>>,
    logprobs: Option<LogprobsRequest>,
    /// Whether a stream ends with the token counts.
    include_usage: bool,
    /// Characters before the next tokens.
    offset: usize,
    /// The model's name.
    model: String,
    id: String,
    created_s: u64,
}

impl AnswerWriter for CompletionWriter {
    const STREAM: StreamForm = EVENTS;

    fn begin(&mut self, running: &RunningTurn) -> String {
        self.model.clone_from(&running.model);
        if !self.is_chat {
            return String::new();
        }
        self.chunk(json!({ "role": "assistant", "content": "" }), Value::Null, None)
    }

    fn more(&mut self, parts: Vec<AnswerPart>, reports: &[TokenReport]) -> String {
        let mut logprobs = self.logprobs(reports);
        let mut deltas: Vec<Value> = parts.into_iter().filter_map(|part| self.delta(part)).collect();
        // The log probabilities go with the first part; if the parts are held back, with a chunk of their own.
        if deltas.is_empty() && !logprobs.is_null() {
            deltas.push(self.empty_delta());
        }
        deltas.into_iter().map(|delta| self.chunk(delta, logprobs.take(), None)).collect()
    }

    fn end(&mut self, rest: Vec<AnswerPart>, answer: &AcceptedAnswer) -> String {
        let mut out = self.more(rest, &[]);
        out += &self.chunk(self.empty_delta(), Value::Null, Some(answer));
        let (open, sum) = &mut *self.stream.lock();
        let tokens = &answer.outcome.receipt.tokens;
        sum.input = sum.input.saturating_add(tokens.input);
        sum.output = sum.output.saturating_add(tokens.output);
        *open = open.saturating_sub(1);
        if *open == 0 {
            let counts =
                with(self.object("chat.completion.chunk", &[], None), json!({ "usage": usage(sum) }));
            out += &if self.include_usage { event(counts) } else { String::new() };
            out += &event("[DONE]");
        }
        out
    }

    fn fail(&mut self, api_error: &ApiError) -> String {
        event(api_error.body())
    }

    fn whole(mut self, WholeAnswer { ended, reports, accepted: answer }: &WholeAnswer) -> Value {
        // An answer recovered from the store after its node was lost has no log probabilities.
        let is_reported = reports.len() == answer.outcome.receipt.tokens.output as usize;
        let logprobs = if is_reported { self.logprobs(reports) } else { Value::Null };
        let (field, value) =
            if self.is_chat { ("message", message(ended)) } else { ("text", json!(ended.text)) };
        let choice = json!({
            "index": self.index, field: value, "logprobs": logprobs, "finish_reason": finish_reason(ended.finish),
        });
        self.model.clone_from(&answer.model);
        let usage = usage(&answer.outcome.receipt.tokens);
        with(self.object("chat.completion", &[choice], Some(answer)), json!({ "usage": usage }))
    }

    fn another(&self, position: usize) -> Self {
        Self { index: position, ..self.clone() }
    }

    /// Adds the other's choice, which names its own session, and its tokens.
    #[expect(clippy::indexing_slicing, reason = "fields of objects that are made here")]
    fn join(whole: &mut Value, mut other: Value) {
        let mut choice = other["choices"][0].take();
        choice["baton"] = other["baton"].take();
        for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            let [own, more] = [&*whole, &other].map(|body| body["usage"][name].as_u64().unwrap_or(0));
            whole["usage"][name] = own.saturating_add(more).into();
        }
        whole["choices"].as_array_mut().into_iter().for_each(|choices| choices.push(choice.take()));
    }
}

impl CompletionWriter {
    fn new(gateway: &Gateway, request: &CompletionRequest, is_chat: bool) -> Self {
        let prefix = if is_chat { "chatcmpl" } else { "cmpl" };
        Self {
            is_chat,
            index: 0,
            stream: Arc::new(Mutex::new((request.more_answers + 1, TokenCounts::default()))),
            logprobs: request.logprobs,
            include_usage: request.include_usage,
            offset: 0,
            model: String::new(),
            id: format!("{prefix}-{}", hex::encode(baton_keys::secret::random_bytes::<12>())),
            created_s: gateway.now_s(),
        }
    }

    /// The log probabilities of these tokens, in the requested form.
    fn logprobs(&mut self, reports: &[TokenReport]) -> Value {
        match self.logprobs {
            Some(request) if self.is_chat && !reports.is_empty() => request.chat(reports),
            Some(request) if !reports.is_empty() => request.text(reports, &mut self.offset),
            _ => Value::Null,
        }
    }

    /// A part as a delta of a stream; the end of a call has none.
    fn delta(&self, part: AnswerPart) -> Option<Value> {
        match part {
            AnswerPart::Text(text) if !self.is_chat => Some(text.into()),
            AnswerPart::Text(text) => Some(json!({ "content": text })),
            AnswerPart::CallBegun(call) => {
                let call = with(call_object(&call), json!({ "index": call.position }));
                Some(json!({ "tool_calls": [call] }))
            }
            AnswerPart::Arguments { position, text } => {
                Some(json!({ "tool_calls": [{ "index": position, "function": { "arguments": text } }] }))
            }
            AnswerPart::CallEnded(_) => None,
        }
    }

    fn empty_delta(&self) -> Value {
        if self.is_chat { json!({}) } else { "".into() }
    }

    /// A part of a stream; the last one has the accepted answer.
    fn chunk(&self, delta: Value, logprobs: Value, answer: Option<&AcceptedAnswer>) -> String {
        let field = if self.is_chat { "delta" } else { "text" };
        let finish = answer.map(|answer| finish_reason(answer.finish));
        let choice =
            json!({ "index": self.index, field: delta, "logprobs": logprobs, "finish_reason": finish });
        event(self.object("chat.completion.chunk", &[choice], answer))
    }

    /// The fields that a whole answer and the parts of a stream share; `kind` is that of a chat.
    fn object(&self, kind: &str, choices: &[Value], answer: Option<&AcceptedAnswer>) -> Value {
        let object = json!({
            "id": self.id,
            "object": if self.is_chat { kind } else { "text_completion" },
            "created": self.created_s,
            "model": self.model,
            // Only an accepted answer has it: the receipt names the model.
            "system_fingerprint": answer.map(AcceptedAnswer::fingerprint),
            "choices": choices,
        });
        with(object, answer.map(|answer| json!({ "baton": answer.about() })).into())
    }
}

fn call_object(call: &ModelCall) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments });
    json!({ "id": call.id, "type": "function", "function": function })
}

/// An answer as a message.
fn message(ended: &EndedAnswer) -> Value {
    let content = ended.has_text().then_some(&ended.text);
    let calls: Vec<Value> = ended.calls.iter().map(call_object).collect();
    let calls = (!calls.is_empty()).then(|| json!({ "tool_calls": calls }));
    with(json!({ "role": "assistant", "content": content, "refusal": null }), calls.into())
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
