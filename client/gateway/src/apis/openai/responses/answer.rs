//! A response, whole or as events in OpenAI's order, and the objects of the API.
//!
//! The text is one message item. A call is an item of its own, whose arguments come as the model writes them.

use std::sync::Arc;

use baton_client::{TokenReport, TurnView};
use baton_proto::{
    ids::SessionId,
    receipt::TokenCounts,
    record::{FinishReason, Message, Role},
};
use serde_json::{Value, json};

use super::{RESPONSE_ID, ResponseId};
use crate::{
    form::{
        completion::CompletionRequest,
        fields::{role_name, with},
        steps::AcceptedAnswer,
        tools::{AnswerParser, AnswerPart, EndedAnswer, ModelCall},
    },
    http::{
        api_error::ApiError,
        event_stream::{EVENTS, StreamForm, named_event},
    },
    state::ResponseLabels,
    turns::{
        answer::{RunningTurn, WholeAnswer},
        response::AnswerWriter,
    },
};

/// Writes a response from the parts of its answer.
#[derive(Clone, Default)]
pub(super) struct ResponseWriter {
    frame: ResponseFrame,
    /// Of a response that a session keeps, whose id names the turn.
    kept: Option<Arc<ResponseLabels>>,
    is_one_call: bool,
    events: String,
    /// Number of the next event.
    sequence: u64,
    /// The items, in the order of their beginnings.
    output: Vec<Value>,
    /// The position of the text's item, once it has begun, and the text so far.
    text: Option<(usize, String)>,
    /// Whether a limit cut the answer.
    is_cut: bool,
}

impl AnswerWriter for ResponseWriter {
    // Codex ends a stream after minutes without an event; a comment is none.
    const STREAM: StreamForm =
        StreamForm { alive: "event: keepalive\ndata: {\"type\":\"keepalive\"}\n\n", ..EVENTS };

    fn begin(&mut self, running: &RunningTurn) -> String {
        self.frame.model.clone_from(&running.model);
        self.name(running.session, running.seq);
        let object = self.frame.object("in_progress", &[]);
        self.event("response.created", json!({ "response": object }));
        self.event("response.in_progress", json!({ "response": object }));
        std::mem::take(&mut self.events)
    }

    fn more(&mut self, parts: Vec<AnswerPart>, _: &[TokenReport]) -> String {
        for part in parts {
            match part {
                AnswerPart::Text(text) => self.more_text(&text),
                AnswerPart::CallBegun(call) => {
                    let begun = ModelCall { arguments: String::new(), ..call.clone() };
                    let item = call_item(&self.frame.id, &begun, "in_progress");
                    self.begin_item(item);
                    self.more_arguments(&call.arguments);
                }
                AnswerPart::Arguments { text, .. } => self.more_arguments(&text),
                AnswerPart::CallEnded(call) => self.end_call(&call),
            }
        }
        std::mem::take(&mut self.events)
    }

    fn end(&mut self, rest: Vec<AnswerPart>, answer: &AcceptedAnswer) -> String {
        let status = status(answer.outcome.finish);
        self.is_cut = status != "completed";
        self.events = self.more(rest, &[]);
        // An answer without a word is an empty message, as in a whole response.
        if self.output.is_empty() {
            self.begin_text();
        }
        self.name(answer.outcome.session, answer.outcome.seq);
        if let Some((index, text)) = self.text.take() {
            self.text_event("output_text.done", index, json!({ "text": text, "logprobs": [] }));
            self.text_event("content_part.done", index, json!({ "part": text_part(&text) }));
            let own_status = if index + 1 == self.output.len() { status } else { "completed" };
            self.end_item(index, message_item(&self.frame.id, Some(&text), own_status));
        }
        let object = self.frame.accepted(&self.output, answer);
        self.event(&format!("response.{status}"), json!({ "response": object }));
        std::mem::take(&mut self.events)
    }

    fn fail(&mut self, api_error: &ApiError) -> String {
        let error = json!({ "code": api_error.code(), "message": api_error.message() });
        let object = with(self.frame.object("failed", &[]), json!({ "error": error }));
        self.event("response.failed", json!({ "response": object }));
        std::mem::take(&mut self.events)
    }

    fn whole(mut self, WholeAnswer { ended, accepted: answer, .. }: &WholeAnswer) -> Value {
        self.name(answer.outcome.session, answer.outcome.seq);
        let output = self.frame.items(ended, status(answer.outcome.finish));
        self.frame.accepted(&output, answer)
    }
}

impl ResponseWriter {
    pub(super) fn new(
        frame: ResponseFrame,
        request: &CompletionRequest,
        labels: Arc<ResponseLabels>,
    ) -> Self {
        let kept = (!request.is_ephemeral()).then_some(labels);
        Self { frame, kept, is_one_call: request.is_one_call, ..Self::default() }
    }

    fn more_text(&mut self, text: &str) {
        // A model writes white space between its calls, which is no message.
        let is_between = self.text.is_none() && !self.output.is_empty();
        if text.is_empty() || (is_between && text.trim().is_empty()) {
            return;
        }
        if self.text.is_none() {
            self.begin_text();
        }
        if let Some((index, before)) = &mut self.text {
            before.push_str(text);
            let index = *index;
            self.text_event("output_text.delta", index, json!({ "delta": text, "logprobs": [] }));
        }
    }

    fn begin_text(&mut self) {
        let index = self.begin_item(message_item(&self.frame.id, None, "in_progress"));
        self.text = Some((index, String::new()));
        self.text_event("content_part.added", index, json!({ "part": text_part("") }));
    }

    /// The call that is being written is the last item.
    fn more_arguments(&mut self, text: &str) {
        let index = self.output.len().saturating_sub(1);
        self.item_event("function_call_arguments.delta", index, json!({ "delta": text }));
    }

    fn end_call(&mut self, call: &ModelCall) {
        let index = self.output.len().saturating_sub(1);
        let done = json!({ "arguments": call.arguments, "name": call.name });
        self.item_event("function_call_arguments.done", index, done);
        let status = if self.is_cut { "incomplete" } else { "completed" };
        self.end_item(index, call_item(&self.frame.id, call, status));
    }

    /// Begins an item. Returns its position.
    fn begin_item(&mut self, item: Value) -> usize {
        let index = self.output.len();
        self.event("response.output_item.added", json!({ "output_index": index, "item": item }));
        self.output.push(item);
        index
    }

    fn end_item(&mut self, index: usize, item: Value) {
        self.event("response.output_item.done", json!({ "output_index": index, "item": item }));
        if let Some(place) = self.output.get_mut(index) {
            *place = item;
        }
    }

    /// Names a kept response by its turn. A merge with another device may move the turn until it is accepted.
    fn name(&mut self, session: SessionId, seq: u64) {
        if let Some(labels) = &self.kept {
            let id = ResponseId { session, seq, is_one_call: self.is_one_call };
            self.frame.id = format!("{RESPONSE_ID}{id}");
            labels.keep((session, seq), self.frame.echo.get("metadata"));
        }
    }

    /// An event of the text, which is the only part of its item.
    fn text_event(&mut self, name: &str, index: usize, fields: Value) {
        self.item_event(name, index, with(fields, json!({ "content_index": 0 })));
    }

    fn item_event(&mut self, name: &str, index: usize, fields: Value) {
        let id = self.output.get(index).and_then(|item| item.get("id"));
        let fields = with(fields, json!({ "item_id": id, "output_index": index }));
        self.event(&format!("response.{name}"), fields);
    }

    /// An event with its number.
    fn event(&mut self, name: &str, fields: Value) {
        let number = json!({ "type": name, "sequence_number": self.sequence });
        self.sequence += 1;
        self.events.push_str(&named_event(name, with(number, fields)));
    }
}

/// The fields that all states of a response share.
#[derive(Clone, Default)]
pub(super) struct ResponseFrame {
    pub(super) id: String,
    pub(super) created_s: u64,
    /// The model's name.
    pub(super) model: String,
    /// The parameters of the request.
    pub(super) echo: Value,
}

impl ResponseFrame {
    /// The object in a state, with these output items.
    fn object(&self, status: &str, output: &[Value]) -> Value {
        let object = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": null,
            "model": self.model,
            "output": output,
            "usage": null,
        });
        with(object, self.echo.clone())
    }

    /// The object of an accepted answer.
    fn accepted(&self, output: &[Value], answer: &AcceptedAnswer) -> Value {
        let object = self.finished(output, answer.outcome.finish, Some(&answer.outcome.receipt.tokens));
        with(object, json!({ "model": answer.model, "baton": answer.about() }))
    }

    fn finished(&self, output: &[Value], finish: FinishReason, tokens: Option<&TokenCounts>) -> Value {
        let cut = (finish == FinishReason::Length).then(|| json!({ "reason": "max_output_tokens" }));
        let end = json!({ "incomplete_details": cut, "usage": tokens.map(usage) });
        with(self.object(status(finish), output), end)
    }

    /// The items of an answer: its text as one message, then its calls.
    fn items(&self, ended: &EndedAnswer, status: &str) -> Vec<Value> {
        // A limit cuts the last item alone.
        let of = |is_last: bool| if is_last { status } else { "completed" };
        let last = ended.calls.len();
        let message = || message_item(&self.id, Some(&ended.text), of(last == 0));
        let calls =
            ended.calls.iter().zip(1..).map(|(call, number)| call_item(&self.id, call, of(number == last)));
        ended.has_text().then(message).into_iter().chain(calls).collect()
    }

    /// The object of a kept turn; `parser` reads the calls of its answer.
    pub(super) fn of_turn(&self, view: &TurnView, parser: Option<AnswerParser>) -> Value {
        let record = view.turn.record.as_ref();
        let text = record.and_then(|record| record.answer()).unwrap_or_default();
        let finish = record.map_or(FinishReason::None, |record| record.finish);
        let ended = EndedAnswer::read(text, parser, finish);
        let output = self.items(&ended, status(finish));
        let tokens = view.receipt.as_ref().map(|receipt| &receipt.tokens);
        self.finished(&output, finish, tokens)
    }
}

/// The state of an ended response.
fn status(finish: FinishReason) -> &'static str {
    if finish == FinishReason::Length { "incomplete" } else { "completed" }
}

/// The item of the answer's text; without a text, of a message that begins.
fn message_item(id: &str, text: Option<&str>, status: &str) -> Value {
    let content: Vec<Value> = text.map(text_part).into_iter().collect();
    json!({
        "id": format!("msg_{}", bare(id)),
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    })
}

/// A part of a message.
fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

/// The item of a call.
fn call_item(id: &str, call: &ModelCall, status: &str) -> Value {
    json!({
        "id": format!("fc_{}_{}", bare(id), call.position),
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    })
}

/// A message of the input.
pub(super) fn input_item(id: ResponseId, index: usize, message: &Message) -> Value {
    let item = format!("msg_{id}_{index}");
    if message.role == Role::Tool {
        return json!({
            "id": item,
            "type": "function_call_output",
            "status": "completed",
            "call_id": message.call_id,
            "output": message.text,
        });
    }
    let kind = if message.role == Role::Assistant { "output_text" } else { "input_text" };
    let content = json!([{ "type": kind, "text": message.text }]);
    let role = role_name(message.role);
    json!({ "id": item, "type": "message", "status": "completed", "role": role, "content": content })
}

fn bare(id: &str) -> &str {
    id.strip_prefix(RESPONSE_ID).unwrap_or(id)
}

fn usage(tokens: &TokenCounts) -> Value {
    json!({
        "input_tokens": tokens.input,
        "input_tokens_details": { "cached_tokens": 0 },
        "output_tokens": tokens.output,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": tokens.input.saturating_add(tokens.output),
    })
}
