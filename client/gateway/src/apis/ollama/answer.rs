//! An answer in the form of Ollama's API: one object, or a line of JSON for each part.

use baton_client::TokenReport;
use baton_proto::record::FinishReason;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{error_body, nanoseconds};
use crate::{
    clock::rfc3339,
    form::{
        fields::with,
        steps::AcceptedAnswer,
        tools::{AnswerPart, ModelCall},
    },
    http::{api_error::ApiError, event_stream::StreamForm, exact},
    state::Gateway,
    turns::{
        answer::{RunningTurn, WholeAnswer},
        response::AnswerWriter,
    },
};

/// Nanoseconds of a millisecond, in which receipts count.
const NS_PER_MS: u64 = 1_000_000;

/// Writes an answer from its parts.
#[derive(Clone)]
pub(super) struct LineWriter {
    /// Whether it has a message, and not a text.
    is_chat: bool,
    /// The model's name.
    model: String,
    created_at: String,
    begun: Instant,
}

impl AnswerWriter for LineWriter {
    // The API's clients read each line as JSON, so it has no sign of life.
    const STREAM: StreamForm = StreamForm { content_type: "application/x-ndjson", alive: "" };

    fn begin(&mut self, running: &RunningTurn) -> String {
        self.model.clone_from(&running.model);
        String::new()
    }

    /// A line for each part: this API has whole calls alone.
    fn more(&mut self, parts: Vec<AnswerPart>, _: &[TokenReport]) -> String {
        let line = |part| match part {
            AnswerPart::Text(text) => Some(self.line(&text, &[], false)),
            AnswerPart::CallEnded(call) => Some(self.line("", &[call], false)),
            AnswerPart::CallBegun(_) | AnswerPart::Arguments { .. } => None,
        };
        parts.into_iter().filter_map(line).map(|line| exact::write(&line) + "\n").collect()
    }

    fn end(&mut self, rest: Vec<AnswerPart>, answer: &AcceptedAnswer) -> String {
        format!("{}{}\n", self.more(rest, &[]), self.ended("", &[], answer.finish, answer))
    }

    fn fail(&mut self, api_error: &ApiError) -> String {
        format!("{}\n", error_body(api_error))
    }

    fn whole(mut self, WholeAnswer { ended, accepted: answer, .. }: &WholeAnswer) -> Value {
        self.model.clone_from(&answer.model);
        self.ended(&ended.text, &ended.calls, ended.finish, answer)
    }
}

impl LineWriter {
    pub(super) fn new(gateway: &Gateway, is_chat: bool) -> Self {
        let created_at = rfc3339(gateway.now_s());
        Self { is_chat, model: String::new(), created_at, begun: Instant::now() }
    }

    /// The answer to a request without a text.
    pub(super) fn loaded(mut self, model: Option<&str>) -> Value {
        self.model = model.unwrap_or_default().to_owned();
        with(self.line("", &[], true), json!({ "done_reason": "load" }))
    }

    fn line(&self, text: &str, calls: &[ModelCall], done: bool) -> Value {
        let calls: Vec<Value> = calls.iter().map(call_object).collect();
        let calls = (!calls.is_empty()).then(|| json!({ "tool_calls": calls }));
        let content = if self.is_chat {
            json!({ "message": with(json!({ "role": "assistant", "content": text }), calls.into()) })
        } else {
            json!({ "response": text })
        };
        let line = json!({ "model": self.model, "created_at": self.created_at });
        with(with(line, content), json!({ "done": done }))
    }

    /// The last line, with the counts.
    fn ended(&self, text: &str, calls: &[ModelCall], finish: FinishReason, answer: &AcceptedAnswer) -> Value {
        let (tokens, timings) = (&answer.outcome.receipt.tokens, &answer.outcome.receipt.timings);
        let reason = if finish == FinishReason::Length { "length" } else { "stop" };
        let counts = json!({
            "done_reason": reason,
            "total_duration": nanoseconds(self.begun.elapsed()),
            "load_duration": 0,
            "prompt_eval_count": tokens.input,
            "prompt_eval_duration": u64::from(timings.prefill_ms) * NS_PER_MS,
            "eval_count": tokens.output,
            "eval_duration": u64::from(timings.decode_ms) * NS_PER_MS,
            "baton": answer.about(),
        });
        with(self.line(text, calls, true), counts)
    }
}

fn call_object(call: &ModelCall) -> Value {
    let arguments = exact::read(&call.arguments).unwrap_or_else(|| json!({}));
    json!({ "id": call.id, "function": { "index": call.position, "name": call.name, "arguments": arguments } })
}
