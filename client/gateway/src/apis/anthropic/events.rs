//! An answer in the form of Anthropic's Messages API, whole or as events.
//!
//! The text is one block. A call is a block of its own, whose input comes as the model writes it.

use baton_client::TokenReport;
use baton_proto::{limits::MAX_STOP_BYTES, receipt::TokenCounts, record::FinishReason};
use futures::{Stream, StreamExt as _, stream};
use serde_json::{Map, Value, json};

use super::{error_body, request::MESSAGE_ID};
use crate::{
    apis::openai::responses::ResponseId,
    form::{
        completion::CompletionRequest,
        steps::{AcceptedAnswer, Step},
        tools::{AnswerParser, AnswerPart, EndedAnswer, ModelCall},
    },
    http::event_stream::ServerEvent,
    turns::answer::{RunningTurn, WholeAnswer},
};

/// Most bytes of the last tokens that are kept: the longest stop text and the longest token.
const MAX_TAIL_BYTES: usize = 4 * MAX_STOP_BYTES;

/// Writes a message from the steps of its turn.
pub(super) struct MessageWriter {
    id: String,
    /// The model's name.
    pub(super) model: String,
    parser: Option<AnswerParser>,
    /// The texts that end the answer.
    stops: Vec<String>,
    /// The last bytes of the tokens so far: a text that ended the answer is part of them, and not of its text.
    tail: Vec<u8>,
    /// Blocks so far.
    blocks: usize,
    /// Whether the last block is a text that may go on.
    in_text: bool,
}

impl MessageWriter {
    pub(super) fn new(request: &CompletionRequest, parser: Option<AnswerParser>) -> Self {
        Self {
            id: String::new(),
            model: request.model.clone().unwrap_or_default(),
            parser,
            stops: request.sampling.stop.clone(),
            tail: Vec::new(),
            blocks: 0,
            in_text: false,
        }
    }

    /// Names the message by its turn, which a thread continues.
    pub(super) fn set_id(&mut self, id: ResponseId) {
        self.id = id.with_prefix(MESSAGE_ID);
    }

    /// The message as a whole.
    pub(super) fn whole(mut self, whole: &WholeAnswer) -> Value {
        let answer = &whole.accepted;
        self.note_bytes(&whole.reports);
        let ended = EndedAnswer::read(&whole.text, self.parser.take(), answer.outcome.finish);
        let mut content = Vec::new();
        if ended.has_text() {
            content.push(json!({ "type": "text", "text": ended.text }));
        }
        content.extend(ended.calls.iter().map(|call| call_block(call, input_of(call))));
        self.model.clone_from(&answer.model);
        let mut message = self.message(&Value::from(content));
        let (reason, stop) = self.stop_of(ended.finish);
        message.insert("stop_reason".to_owned(), reason.into());
        message.insert("stop_sequence".to_owned(), stop);
        message.insert("usage".to_owned(), usage(&answer.outcome.receipt.tokens));
        message.insert("baton".to_owned(), answer.about());
        Value::Object(message)
    }

    /// The events, from the first step on.
    pub(super) fn events(mut self, first: Step, running: RunningTurn) -> impl Stream<Item = ServerEvent> {
        let head = event("message_start", json!({ "message": self.message(&json!([])) }));
        let rest = running.steps(first).flat_map(move |step| stream::iter(self.step(step)));
        stream::iter([head]).chain(rest)
    }

    fn step(&mut self, step: Step) -> Vec<ServerEvent> {
        match step {
            Step::Model(_) | Step::Note(_) => Vec::new(),
            Step::Logprobs(reports) => {
                self.note_bytes(&reports);
                Vec::new()
            }
            Step::Text(text) => {
                let parts = match &mut self.parser {
                    None => vec![AnswerPart::Text(text)],
                    Some(parser) => parser.push(&text),
                };
                self.parts(parts)
            }
            Step::Failed(api_error) => {
                vec![ServerEvent::named("error", error_body(&api_error, None))]
            }
            Step::Done(answer) => self.done(&answer),
        }
    }

    fn parts(&mut self, parts: Vec<AnswerPart>) -> Vec<ServerEvent> {
        let mut events = Vec::new();
        for part in parts {
            match part {
                AnswerPart::Text(text) => self.more_text(&text, &mut events),
                AnswerPart::CallBegun(call) => {
                    self.end_text(&mut events);
                    events.push(self.begin_block(&call_block(&call, json!({}))));
                    events.push(self.more_input(&call.arguments));
                }
                AnswerPart::Arguments { text, .. } => events.push(self.more_input(&text)),
                AnswerPart::CallEnded(_) => events.push(self.end_block()),
            }
        }
        events
    }

    fn more_text(&mut self, text: &str, events: &mut Vec<ServerEvent>) {
        // A model writes white space between its calls, which is no text block.
        if text.is_empty() || (!self.in_text && self.blocks > 0 && text.trim().is_empty()) {
            return;
        }
        if !self.in_text {
            events.push(self.begin_block(&json!({ "type": "text", "text": "" })));
            self.in_text = true;
        }
        events.push(self.delta(&json!({ "type": "text_delta", "text": text })));
    }

    fn end_text(&mut self, events: &mut Vec<ServerEvent>) {
        if std::mem::take(&mut self.in_text) {
            events.push(self.end_block());
        }
    }

    fn begin_block(&mut self, block: &Value) -> ServerEvent {
        self.blocks += 1;
        event("content_block_start", json!({ "index": self.blocks - 1, "content_block": block }))
    }

    fn delta(&self, delta: &Value) -> ServerEvent {
        event("content_block_delta", json!({ "index": self.blocks.saturating_sub(1), "delta": delta }))
    }

    fn more_input(&self, text: &str) -> ServerEvent {
        self.delta(&json!({ "type": "input_json_delta", "partial_json": text }))
    }

    fn end_block(&self) -> ServerEvent {
        event("content_block_stop", json!({ "index": self.blocks.saturating_sub(1) }))
    }

    fn done(&mut self, answer: &AcceptedAnswer) -> Vec<ServerEvent> {
        let mut finish = answer.outcome.finish;
        let mut events = Vec::new();
        if let Some(parser) = &mut self.parser {
            let rest = parser.finish();
            finish = parser.finish_reason(finish);
            events = self.parts(rest);
        }
        self.end_text(&mut events);
        let (reason, stop) = self.stop_of(finish);
        events.push(event(
            "message_delta",
            json!({
                "delta": { "stop_reason": reason, "stop_sequence": stop },
                "usage": usage(&answer.outcome.receipt.tokens),
                "baton": answer.about(),
            }),
        ));
        events.push(event("message_stop", json!({})));
        events
    }

    /// The message as it begins, with these blocks.
    fn message(&self, content: &Value) -> Map<String, Value> {
        let message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            // The receipt at the end has the counts.
            "usage": usage(&TokenCounts::default()),
        });
        match message {
            Value::Object(message) => message,
            _ => Map::new(),
        }
    }

    /// Notes the bytes of tokens, as many as a text that ends an answer may lie in.
    fn note_bytes(&mut self, reports: &[TokenReport]) {
        self.tail.extend(reports.iter().flat_map(|report| &report.token.bytes));
        let surplus = self.tail.len().saturating_sub(MAX_TAIL_BYTES);
        self.tail.drain(..surplus);
    }

    fn stop_of(&self, finish: FinishReason) -> (&'static str, Value) {
        match finish {
            FinishReason::Length => ("max_tokens", Value::Null),
            FinishReason::ToolCall => ("tool_use", Value::Null),
            FinishReason::StopString => ("stop_sequence", met_stop(&self.stops, &self.tail).into()),
            FinishReason::Stop | FinishReason::None => ("end_turn", Value::Null),
        }
    }
}

/// The text that ended an answer, given the last bytes of its tokens: the one that begins first, as for nodes. Without
/// these bytes it is known if there is one alone.
fn met_stop(stops: &[String], tail: &[u8]) -> Option<String> {
    if let [stop] = stops {
        return Some(stop.clone());
    }
    let place = |stop: &String| tail.windows(stop.len().max(1)).position(|window| window == stop.as_bytes());
    let met = stops.iter().filter_map(|stop| Some(((place(stop)?, stop.len()), stop)));
    met.min_by_key(|(place, _)| *place).map(|(_, stop)| stop.clone())
}

fn event(name: &str, mut data: Value) -> ServerEvent {
    if let Value::Object(data) = &mut data {
        data.insert("type".to_owned(), name.into());
    }
    ServerEvent::named(name, data)
}

fn call_block(call: &ModelCall, input: Value) -> Value {
    json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input })
}

fn input_of(call: &ModelCall) -> Value {
    serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}))
}

fn usage(tokens: &TokenCounts) -> Value {
    json!({
        "input_tokens": tokens.input,
        "output_tokens": tokens.output,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stop_sequence_that_was_met_is_named() {
        let met = |stops: &[&str], tail: &str| {
            let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
            met_stop(&stops, tail.as_bytes())
        };
        assert_eq!(met(&["END"], ""), Some("END".to_owned()));
        assert_eq!(met(&["zzz", "e", "a"], "th"), None, "its tokens are not known");
        assert_eq!(met(&["zzz", "e", "a"], "the"), Some("e".to_owned()));
        assert_eq!(met(&["\n", "END"], "so END\n"), Some("END".to_owned()));
        assert_eq!(met(&["b", "ab"], "xab"), Some("ab".to_owned()));
    }
}
