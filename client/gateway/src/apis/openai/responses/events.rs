//! The events of a streamed response, in OpenAI's order.
//!
//! The text is one message item. A call is an item of its own, whose arguments come as the model writes them.

use futures::{Stream, StreamExt as _, stream};
use serde_json::{Value, json};

use super::{
    ResponseId,
    object::{ResponseFrame, call_item, message_item, status, text_part},
};
use crate::{
    form::{
        steps::{AcceptedAnswer, Step},
        tools::{AnswerParser, AnswerPart, EndedAnswer, ModelCall},
    },
    http::{api_error::ApiError, event_stream::ServerEvent},
    turns::answer::{RunningTurn, WholeAnswer},
};

/// Writes a response from the steps of its turn.
pub(super) struct EventWriter {
    frame: ResponseFrame,
    /// The id, if a session keeps the response.
    kept: Option<ResponseId>,
    parser: Option<AnswerParser>,
    /// Number of the next event.
    sequence: u64,
    /// The text so far, once its item has begun.
    text: Option<String>,
    /// Position of the text's item.
    text_index: usize,
    /// The place of the call that is being written.
    call: Option<Value>,
    /// The state of the calls that end.
    status: &'static str,
    /// The ended items, in the order of their beginnings.
    output: Vec<Option<Value>>,
}

impl EventWriter {
    pub(super) fn new(frame: ResponseFrame, kept: Option<ResponseId>, parser: Option<AnswerParser>) -> Self {
        Self {
            frame,
            kept,
            parser,
            sequence: 0,
            text: None,
            text_index: 0,
            call: None,
            status: "completed",
            output: Vec::new(),
        }
    }

    /// The whole response.
    pub(super) fn whole(mut self, whole: &WholeAnswer) -> Value {
        let answer = &whole.accepted;
        self.settle(answer);
        let ended = EndedAnswer::read(&whole.text, self.parser.take(), answer.outcome.finish);
        let output = self.frame.items(&ended, status(answer.outcome.finish));
        Value::Object(self.frame.accepted(&output, answer))
    }

    /// The events, from the first step on.
    pub(super) fn events(mut self, first: Step, running: RunningTurn) -> impl Stream<Item = ServerEvent> {
        let object = Value::Object(self.frame.object("in_progress", &[]));
        let head = vec![
            self.event("response.created", json!({ "response": object })),
            self.event("response.in_progress", json!({ "response": object })),
        ];
        let rest = running.steps(first).flat_map(move |step| stream::iter(self.step(step)));
        stream::iter(head).chain(rest)
    }

    fn step(&mut self, step: Step) -> Vec<ServerEvent> {
        match step {
            Step::Model(_) | Step::Note(_) | Step::Logprobs(_) => Vec::new(),
            Step::Text(text) => {
                let parts = self.push(&text);
                self.parts(parts)
            }
            Step::Failed(api_error) => self.failed(&api_error),
            Step::Done(answer) => self.done(&answer),
        }
    }

    fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        match &mut self.parser {
            None => vec![AnswerPart::Text(text.to_owned())],
            Some(parser) => parser.push(text),
        }
    }

    fn rest(&mut self) -> Vec<AnswerPart> {
        self.parser.as_mut().map(AnswerParser::finish).unwrap_or_default()
    }

    fn parts(&mut self, parts: Vec<AnswerPart>) -> Vec<ServerEvent> {
        let mut events = Vec::new();
        for part in parts {
            match part {
                AnswerPart::Text(text) if text.is_empty() => {}
                AnswerPart::Text(text) => self.more_text(&text, &mut events),
                AnswerPart::CallBegun(call) => self.begin_call(call, &mut events),
                AnswerPart::Arguments { text, .. } => self.more_arguments(&text, &mut events),
                AnswerPart::CallEnded(call) => self.end_call(&call, &mut events),
            }
        }
        events
    }

    fn more_text(&mut self, text: &str, events: &mut Vec<ServerEvent>) {
        if self.text.is_none() {
            // A model writes white space between its calls, which is no message.
            if text.trim().is_empty() && !self.output.is_empty() {
                return;
            }
            self.begin_text(events);
        }
        if let Some(before) = &mut self.text {
            before.push_str(text);
        }
        let place = self.text_place();
        events.push(self.event_at(
            "response.output_text.delta",
            &place,
            json!({ "delta": text, "logprobs": [] }),
        ));
    }

    fn begin_text(&mut self, events: &mut Vec<ServerEvent>) {
        self.text = Some(String::new());
        self.text_index = self.output.len();
        self.output.push(None);
        let item = message_item(&self.frame.id, None, "in_progress");
        let added = json!({ "output_index": self.text_index, "item": item });
        events.push(self.event("response.output_item.added", added));
        let place = self.text_place();
        events.push(self.event_at("response.content_part.added", &place, json!({ "part": text_part("") })));
    }

    /// The fields that name the text's part.
    fn text_place(&self) -> Value {
        let item = message_item(&self.frame.id, None, "in_progress");
        json!({ "item_id": item.get("id"), "output_index": self.text_index, "content_index": 0 })
    }

    fn begin_call(&mut self, mut call: ModelCall, events: &mut Vec<ServerEvent>) {
        let arguments = std::mem::take(&mut call.arguments);
        let (index, item) = (self.output.len(), call_item(&self.frame.id, &call, "in_progress"));
        self.output.push(None);
        self.call = Some(json!({ "item_id": item.get("id"), "output_index": index }));
        events.push(self.event("response.output_item.added", json!({ "output_index": index, "item": item })));
        self.more_arguments(&arguments, events);
    }

    fn more_arguments(&mut self, text: &str, events: &mut Vec<ServerEvent>) {
        let Some(place) = self.call.clone() else { return };
        events.push(self.event_at(
            "response.function_call_arguments.delta",
            &place,
            json!({ "delta": text }),
        ));
    }

    fn end_call(&mut self, call: &ModelCall, events: &mut Vec<ServerEvent>) {
        let Some(place) = self.call.take() else { return };
        let item = call_item(&self.frame.id, call, self.status);
        let done = json!({ "arguments": call.arguments, "name": call.name });
        events.push(self.event_at("response.function_call_arguments.done", &place, done));
        let index = place.get("output_index").cloned().unwrap_or_default();
        events.push(self.event("response.output_item.done", json!({ "output_index": index, "item": item })));
        if let Some(ended) = self.output.iter_mut().rev().find(|ended| ended.is_none()) {
            *ended = Some(item);
        }
    }

    /// Takes the id from the accepted turn: a merge with another device may have moved it meanwhile.
    fn settle(&mut self, answer: &AcceptedAnswer) {
        if let Some(kept) = self.kept {
            self.frame.id = ResponseId { seq: answer.outcome.seq, ..kept }.to_string();
        }
    }

    fn done(&mut self, answer: &AcceptedAnswer) -> Vec<ServerEvent> {
        let status = status(answer.outcome.finish);
        self.status = status;
        let rest = self.rest();
        let mut events = self.parts(rest);
        // An answer without a word is an empty message, as in a whole response.
        if self.output.is_empty() {
            self.begin_text(&mut events);
        }
        self.settle(answer);
        if let Some(text) = self.text.clone() {
            let place = self.text_place();
            let done = json!({ "text": text, "logprobs": [] });
            events.push(self.event_at("response.output_text.done", &place, done));
            let part = json!({ "part": text_part(&text) });
            events.push(self.event_at("response.content_part.done", &place, part));
            let item = message_item(&self.frame.id, Some(&text), status);
            let ended = json!({ "output_index": self.text_index, "item": item });
            events.push(self.event("response.output_item.done", ended));
            if let Some(place) = self.output.get_mut(self.text_index) {
                *place = Some(item);
            }
        }
        let output: Vec<Value> = self.output.iter().flatten().cloned().collect();
        let object = Value::Object(self.frame.accepted(&output, answer));
        let name = format!("response.{status}");
        events.push(self.event(&name, json!({ "response": object })));
        events
    }

    fn failed(&mut self, api_error: &ApiError) -> Vec<ServerEvent> {
        let body = api_error.body();
        let message = body.get("error").and_then(|error| error.get("message")).cloned();
        let mut object = self.frame.object("failed", &[]);
        object.insert("error".to_owned(), json!({ "code": api_error.code(), "message": message }));
        vec![self.event("response.failed", json!({ "response": object }))]
    }

    fn event(&mut self, name: &str, fields: Value) -> ServerEvent {
        self.event_at(name, &Value::Null, fields)
    }

    /// An event with its number, the fields of its place, and its own.
    fn event_at(&mut self, name: &str, place: &Value, fields: Value) -> ServerEvent {
        let mut data = serde_json::Map::new();
        data.insert("type".to_owned(), name.into());
        data.insert("sequence_number".to_owned(), self.sequence.into());
        self.sequence += 1;
        if let Value::Object(place) = place {
            data.extend(place.clone());
        }
        if let Value::Object(fields) = fields {
            data.extend(fields);
        }
        ServerEvent::named(name, Value::Object(data))
    }
}
