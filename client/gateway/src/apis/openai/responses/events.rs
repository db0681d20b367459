//! A response, whole or as events in OpenAI's order.
//!
//! The text is one message item. A call is an item of its own, whose arguments come as the model writes them.

use baton_client::TokenReport;
use baton_proto::ids::SessionId;
use serde_json::{Value, json};

use super::{
    RESPONSE_ID, ResponseId,
    object::{ResponseFrame, call_item, message_item, status, text_part},
};
use crate::{
    form::{
        fields::with,
        steps::AcceptedAnswer,
        tools::{AnswerPart, ModelCall},
    },
    http::{
        api_error::ApiError,
        event_stream::{EVENTS, StreamForm, named_event},
    },
    turns::{
        answer::{RunningTurn, WholeAnswer},
        response::AnswerWriter,
    },
};

/// Writes a response from the parts of its answer.
#[derive(Clone)]
pub(super) struct ResponseWriter {
    pub(super) frame: ResponseFrame,
    /// Whether a session keeps the response, whose id then names the turn.
    pub(super) is_kept: bool,
    pub(super) is_one_call: bool,
    pub(super) progress: ResponseProgress,
}

/// The part of a response that is written.
#[derive(Clone, Default)]
pub(super) struct ResponseProgress {
    events: String,
    /// Number of the next event.
    sequence: u64,
    /// The items, in the order of their beginnings.
    output: Vec<Value>,
    /// The position of the text's item, once it has begun, and the text so far.
    text: Option<(usize, String)>,
    /// The position of the call that is being written.
    call: Option<usize>,
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
        std::mem::take(&mut self.progress.events)
    }

    fn more(&mut self, parts: Vec<AnswerPart>, _: &[TokenReport]) -> String {
        for part in parts {
            match part {
                AnswerPart::Text(text) => self.more_text(&text),
                AnswerPart::CallBegun(call) => {
                    let begun = ModelCall { arguments: String::new(), ..call.clone() };
                    let item = call_item(&self.frame.id, &begun, "in_progress");
                    self.progress.call = Some(self.begin_item(item));
                    self.more_arguments(&call.arguments);
                }
                AnswerPart::Arguments { text, .. } => self.more_arguments(&text),
                AnswerPart::CallEnded(call) => self.end_call(&call),
            }
        }
        std::mem::take(&mut self.progress.events)
    }

    fn end(&mut self, rest: Vec<AnswerPart>, answer: &AcceptedAnswer) -> String {
        let status = status(answer.outcome.finish);
        self.progress.is_cut = status != "completed";
        self.progress.events = self.more(rest, &[]);
        // An answer without a word is an empty message, as in a whole response.
        if self.progress.output.is_empty() {
            self.begin_text();
        }
        self.name(answer.outcome.session, answer.outcome.seq);
        if let Some((index, text)) = self.progress.text.take() {
            self.text_event("output_text.done", index, json!({ "text": text, "logprobs": [] }));
            self.text_event("content_part.done", index, json!({ "part": text_part(&text) }));
            self.end_item(index, message_item(&self.frame.id, Some(&text), status));
        }
        let object = self.frame.accepted(&self.progress.output, answer);
        self.event(&format!("response.{status}"), json!({ "response": object }));
        std::mem::take(&mut self.progress.events)
    }

    fn fail(&mut self, api_error: &ApiError) -> String {
        let error = json!({ "code": api_error.code(), "message": api_error.message() });
        let object = with(self.frame.object("failed", &[]), json!({ "error": error }));
        self.event("response.failed", json!({ "response": object }));
        std::mem::take(&mut self.progress.events)
    }

    fn whole(mut self, WholeAnswer { ended, accepted: answer, .. }: &WholeAnswer) -> Value {
        self.name(answer.outcome.session, answer.outcome.seq);
        let output = self.frame.items(ended, status(answer.outcome.finish));
        self.frame.accepted(&output, answer)
    }
}

impl ResponseWriter {
    fn more_text(&mut self, text: &str) {
        // A model writes white space between its calls, which is no message.
        let is_between = self.progress.text.is_none() && !self.progress.output.is_empty();
        if text.is_empty() || (is_between && text.trim().is_empty()) {
            return;
        }
        if self.progress.text.is_none() {
            self.begin_text();
        }
        if let Some((index, before)) = &mut self.progress.text {
            before.push_str(text);
            let index = *index;
            self.text_event("output_text.delta", index, json!({ "delta": text, "logprobs": [] }));
        }
    }

    fn begin_text(&mut self) {
        let index = self.begin_item(message_item(&self.frame.id, None, "in_progress"));
        self.progress.text = Some((index, String::new()));
        self.text_event("content_part.added", index, json!({ "part": text_part("") }));
    }

    fn more_arguments(&mut self, text: &str) {
        if let Some(index) = self.progress.call {
            self.item_event("function_call_arguments.delta", index, json!({ "delta": text }));
        }
    }

    fn end_call(&mut self, call: &ModelCall) {
        let Some(index) = self.progress.call.take() else { return };
        let done = json!({ "arguments": call.arguments, "name": call.name });
        self.item_event("function_call_arguments.done", index, done);
        let status = if self.progress.is_cut { "incomplete" } else { "completed" };
        self.end_item(index, call_item(&self.frame.id, call, status));
    }

    /// Begins an item. Returns its position.
    fn begin_item(&mut self, item: Value) -> usize {
        let index = self.progress.output.len();
        self.event("response.output_item.added", json!({ "output_index": index, "item": item }));
        self.progress.output.push(item);
        index
    }

    fn end_item(&mut self, index: usize, item: Value) {
        self.event("response.output_item.done", json!({ "output_index": index, "item": item }));
        if let Some(place) = self.progress.output.get_mut(index) {
            *place = item;
        }
    }

    /// Names a kept response by its turn. A merge with another device may move the turn until it is accepted.
    fn name(&mut self, session: SessionId, seq: u64) {
        if self.is_kept {
            let id = ResponseId { session, seq, is_one_call: self.is_one_call };
            self.frame.id = format!("{RESPONSE_ID}{id}");
        }
    }

    /// An event of the text, which is the only part of its item.
    fn text_event(&mut self, name: &str, index: usize, fields: Value) {
        self.item_event(name, index, with(fields, json!({ "content_index": 0 })));
    }

    fn item_event(&mut self, name: &str, index: usize, fields: Value) {
        let id = self.progress.output.get(index).and_then(|item| item.get("id"));
        let fields = with(fields, json!({ "item_id": id, "output_index": index }));
        self.event(&format!("response.{name}"), fields);
    }

    /// An event with its number.
    fn event(&mut self, name: &str, fields: Value) {
        let number = json!({ "type": name, "sequence_number": self.progress.sequence });
        self.progress.sequence += 1;
        self.progress.events.push_str(&named_event(name, with(number, fields)));
    }
}
