//! An answer in the form of Anthropic's Messages API, whole or as events.
//!
//! The text is one block. A call is a block of its own, whose input comes as the model writes it.

use baton_client::TokenReport;
use baton_proto::{receipt::TokenCounts, record::FinishReason};
use serde_json::{Value, json};

use super::{error_body, request::MESSAGE_ID};
use crate::{
    apis::openai::responses::ResponseId,
    form::{
        completion::CompletionRequest,
        fields::with,
        steps::AcceptedAnswer,
        tools::{AnswerPart, ModelCall},
    },
    http::{
        api_error::ApiError,
        event_stream::{EVENTS, StreamForm, named_event},
        exact,
    },
    turns::{
        answer::{RunningTurn, WholeAnswer},
        response::AnswerWriter,
    },
};

/// Writes a message from the parts of its answer.
#[derive(Clone, Default)]
pub(super) struct MessageWriter {
    id: String,
    /// The model's name.
    model: String,
    /// The tokens of the input by an estimate: the receipt at the end has their number.
    input_estimate: u32,
    /// The texts that end the answer.
    stops: Vec<String>,
    /// The bytes of the tokens so far: a text that ended the answer is part of them, and not of its text.
    bytes: Vec<u8>,
    /// Blocks so far.
    blocks: usize,
    /// Whether the last block is a text that may go on.
    in_text: bool,
    events: String,
}

impl AnswerWriter for MessageWriter {
    const STREAM: StreamForm = StreamForm { alive: "event: ping\ndata: {\"type\":\"ping\"}\n\n", ..EVENTS };

    fn begin(&mut self, running: &RunningTurn) -> String {
        self.model.clone_from(&running.model);
        // A thread continues the message by its turn.
        let RunningTurn { session, seq, .. } = *running;
        self.id = format!("{MESSAGE_ID}{}", ResponseId { session, seq, is_one_call: false });
        self.event("message_start", json!({ "message": self.message(&[]) }));
        std::mem::take(&mut self.events)
    }

    fn more(&mut self, parts: Vec<AnswerPart>, reports: &[TokenReport]) -> String {
        self.bytes.extend(reports.iter().flat_map(|report| &report.token.bytes));
        for part in parts {
            match part {
                AnswerPart::Text(text) => self.more_text(&text),
                AnswerPart::CallBegun(call) => {
                    self.end_text();
                    self.begin_block(&call_block(&call, json!({})));
                    self.more_input(&call.arguments);
                }
                AnswerPart::Arguments { text, .. } => self.more_input(&text),
                AnswerPart::CallEnded(_) => self.end_block(),
            }
        }
        std::mem::take(&mut self.events)
    }

    fn end(&mut self, rest: Vec<AnswerPart>, answer: &AcceptedAnswer) -> String {
        self.events = self.more(rest, &[]);
        self.end_text();
        let delta = self.stop_of(answer.finish);
        let usage = usage(&answer.outcome.receipt.tokens);
        self.event("message_delta", json!({ "delta": delta, "usage": usage, "baton": answer.about() }));
        self.event("message_stop", json!({}));
        std::mem::take(&mut self.events)
    }

    fn fail(&mut self, api_error: &ApiError) -> String {
        named_event("error", error_body(api_error, None))
    }

    fn whole(mut self, WholeAnswer { ended, reports, accepted: answer }: &WholeAnswer) -> Value {
        self.bytes.extend(reports.iter().flat_map(|report| &report.token.bytes));
        let text = ended.has_text().then(|| json!({ "type": "text", "text": ended.text }));
        let input = |call: &ModelCall| exact::read(&call.arguments).unwrap_or_else(|| json!({}));
        let calls = ended.calls.iter().map(|call| call_block(call, input(call)));
        let content: Vec<Value> = text.into_iter().chain(calls).collect();
        self.model.clone_from(&answer.model);
        let usage = usage(&answer.outcome.receipt.tokens);
        let end = with(self.stop_of(ended.finish), json!({ "usage": usage, "baton": answer.about() }));
        with(self.message(&content), end)
    }
}

impl MessageWriter {
    pub(super) fn new(request: &CompletionRequest) -> Self {
        let input_estimate = u32::try_from(request.input_estimate()).unwrap_or(u32::MAX);
        Self { input_estimate, stops: request.sampling.stop.clone(), ..Self::default() }
    }

    fn event(&mut self, name: &str, data: Value) {
        self.events.push_str(&named_event(name, with(data, json!({ "type": name }))));
    }

    fn more_text(&mut self, text: &str) {
        // A model writes white space between its calls, which is no text block.
        if text.is_empty() || (!self.in_text && self.blocks > 0 && text.trim().is_empty()) {
            return;
        }
        if !self.in_text {
            self.begin_block(&json!({ "type": "text", "text": "" }));
            self.in_text = true;
        }
        self.delta(&json!({ "type": "text_delta", "text": text }));
    }

    fn end_text(&mut self) {
        if std::mem::take(&mut self.in_text) {
            self.end_block();
        }
    }

    fn begin_block(&mut self, block: &Value) {
        self.event("content_block_start", json!({ "index": self.blocks, "content_block": block }));
        self.blocks += 1;
    }

    fn delta(&mut self, delta: &Value) {
        self.event("content_block_delta", json!({ "index": self.blocks.saturating_sub(1), "delta": delta }));
    }

    fn more_input(&mut self, text: &str) {
        self.delta(&json!({ "type": "input_json_delta", "partial_json": text }));
    }

    fn end_block(&mut self) {
        self.event("content_block_stop", json!({ "index": self.blocks.saturating_sub(1) }));
    }

    /// The message as it begins, with these blocks.
    fn message(&self, content: &[Value]) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage(&TokenCounts { input: self.input_estimate, ..TokenCounts::default() }),
        })
    }

    fn stop_of(&self, finish: FinishReason) -> Value {
        let (reason, stop) = match finish {
            FinishReason::Length => ("max_tokens", None),
            FinishReason::ToolCall => ("tool_use", None),
            FinishReason::StopString => ("stop_sequence", met_stop(&self.stops, &self.bytes)),
            FinishReason::Stop | FinishReason::None => ("end_turn", None),
        };
        json!({ "stop_reason": reason, "stop_sequence": stop })
    }
}

/// The text that ended an answer, given the bytes of its tokens: the one that begins first, as for nodes. Without these
/// bytes it is known if there is one alone.
fn met_stop<'a>(stops: &'a [String], bytes: &[u8]) -> Option<&'a String> {
    if let [stop] = stops {
        return Some(stop);
    }
    let place = |stop: &String| bytes.windows(stop.len().max(1)).position(|part| part == stop.as_bytes());
    stops.iter().filter(|stop| place(stop).is_some()).min_by_key(|stop| (place(stop), stop.len()))
}

fn call_block(call: &ModelCall, input: Value) -> Value {
    json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input })
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
            met_stop(&stops, tail.as_bytes()).cloned()
        };
        assert_eq!(met(&["END"], ""), Some("END".to_owned()));
        assert_eq!(met(&["zzz", "e", "a"], "th"), None, "its tokens are not known");
        assert_eq!(met(&["zzz", "e", "a"], "the"), Some("e".to_owned()));
        assert_eq!(met(&["\n", "END"], "so END\n"), Some("END".to_owned()));
        assert_eq!(met(&["b", "ab"], "xab"), Some("ab".to_owned()));
    }
}
