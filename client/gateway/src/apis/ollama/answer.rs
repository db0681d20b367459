//! An answer in the form of Ollama's API: one object, or a line of JSON for each part.

use baton_proto::record::FinishReason;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{error_body, nanoseconds};
use crate::{
    clock::rfc3339,
    form::{
        steps::{AcceptedAnswer, Step},
        tools::{AnswerParser, AnswerPart, EndedAnswer, ModelCall},
    },
    turns::answer::WholeAnswer,
};

/// Nanoseconds of a millisecond, in which receipts count.
const NS_PER_MS: u64 = 1_000_000;

/// The two forms of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerForm {
    /// With a message.
    Chat,
    /// With a text.
    Generate,
}

/// Writes an answer from the steps of its turn.
pub(super) struct AnswerWriter {
    form: AnswerForm,
    /// The model's name.
    pub(super) model: String,
    created_at: String,
    begun: Instant,
    parser: Option<AnswerParser>,
}

impl AnswerWriter {
    pub(super) fn new(
        form: AnswerForm,
        model: String,
        created_s: u64,
        begun: Instant,
        parser: Option<AnswerParser>,
    ) -> Self {
        Self { form, model, created_at: rfc3339(created_s), begun, parser }
    }

    /// The answer to a request without a text.
    pub(super) fn loaded(&self) -> Value {
        let mut line = self.line("", &[], true);
        line.insert("done_reason".to_owned(), "load".into());
        Value::Object(line)
    }

    /// The answer as one object.
    pub(super) fn whole(mut self, whole: &WholeAnswer) -> Value {
        let answer = &whole.accepted;
        let ended = EndedAnswer::read(&whole.text, self.parser.take(), answer.outcome.finish);
        self.model.clone_from(&answer.model);
        Value::Object(self.ended(&ended.text, &ended.calls, ended.finish, answer))
    }

    /// The lines of a step.
    pub(super) fn lines(&mut self, step: Step) -> String {
        let mut out = String::new();
        let mut put = |line: Map<String, Value>| {
            out.push_str(&Value::Object(line).to_string());
            out.push('\n');
        };
        match step {
            Step::Model(_) | Step::Note(_) | Step::Logprobs(_) => {}
            Step::Text(text) => match &mut self.parser {
                None => put(self.line(&text, &[], false)),
                Some(parser) => {
                    let parts = parser.push(&text);
                    parts.into_iter().filter_map(|part| self.part(part)).for_each(put);
                }
            },
            Step::Failed(api_error) => {
                if let Value::Object(line) = error_body(&api_error) {
                    put(line);
                }
            }
            Step::Done(answer) => {
                let mut finish = answer.outcome.finish;
                let mut rest = Vec::new();
                if let Some(parser) = &mut self.parser {
                    rest = parser.finish();
                    finish = parser.finish_reason(finish);
                }
                rest.into_iter().filter_map(|part| self.part(part)).for_each(&mut put);
                put(self.ended("", &[], finish, &answer));
            }
        }
        out
    }

    /// The line of a part: this API has whole calls alone.
    fn part(&self, part: AnswerPart) -> Option<Map<String, Value>> {
        match part {
            AnswerPart::Text(text) => Some(self.line(&text, &[], false)),
            AnswerPart::CallEnded(call) => Some(self.line("", &[call], false)),
            AnswerPart::CallBegun(_) | AnswerPart::Arguments { .. } => None,
        }
    }

    fn line(&self, text: &str, calls: &[ModelCall], done: bool) -> Map<String, Value> {
        let mut line = Map::new();
        line.insert("model".to_owned(), self.model.clone().into());
        line.insert("created_at".to_owned(), self.created_at.clone().into());
        if self.form == AnswerForm::Generate {
            line.insert("response".to_owned(), text.into());
        } else {
            let mut message = Map::new();
            message.insert("role".to_owned(), "assistant".into());
            message.insert("content".to_owned(), text.into());
            if !calls.is_empty() {
                message.insert("tool_calls".to_owned(), calls.iter().map(call_object).collect());
            }
            line.insert("message".to_owned(), Value::Object(message));
        }
        line.insert("done".to_owned(), done.into());
        line
    }

    /// The last line, with the counts.
    fn ended(
        &self,
        text: &str,
        calls: &[ModelCall],
        finish: FinishReason,
        answer: &AcceptedAnswer,
    ) -> Map<String, Value> {
        let mut line = self.line(text, calls, true);
        let (tokens, timings) = (&answer.outcome.receipt.tokens, &answer.outcome.receipt.timings);
        let reason = if finish == FinishReason::Length { "length" } else { "stop" };
        for (name, value) in [
            ("done_reason", Value::from(reason)),
            ("total_duration", nanoseconds(self.begun.elapsed()).into()),
            ("load_duration", 0.into()),
            ("prompt_eval_count", tokens.input.into()),
            ("prompt_eval_duration", (u64::from(timings.prefill_ms) * NS_PER_MS).into()),
            ("eval_count", tokens.output.into()),
            ("eval_duration", (u64::from(timings.decode_ms) * NS_PER_MS).into()),
            ("baton", answer.about()),
        ] {
            line.insert(name.to_owned(), value);
        }
        line
    }
}

fn call_object(call: &ModelCall) -> Value {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
    json!({ "id": call.id, "function": { "index": call.position, "name": call.name, "arguments": arguments } })
}
