//! The objects of the Responses API, made from turns. Pure.

use baton_client::TurnView;
use baton_proto::{
    receipt::TokenCounts,
    record::{FinishReason, Message, Role},
};
use serde_json::{Value, json};

use super::{RESPONSE_ID, ResponseId};
use crate::form::{
    fields::with,
    steps::AcceptedAnswer,
    tools::{AnswerParser, EndedAnswer, ModelCall},
};

/// The fields that all states of a response share.
#[derive(Clone)]
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
    pub(super) fn object(&self, status: &str, output: &[Value]) -> Value {
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
    pub(super) fn accepted(&self, output: &[Value], answer: &AcceptedAnswer) -> Value {
        let object = self.finished(output, answer.outcome.finish, Some(&answer.outcome.receipt.tokens));
        with(object, json!({ "model": answer.model, "baton": answer.about() }))
    }

    fn finished(&self, output: &[Value], finish: FinishReason, tokens: Option<&TokenCounts>) -> Value {
        let cut = (finish == FinishReason::Length).then(|| json!({ "reason": "max_output_tokens" }));
        let end = json!({ "incomplete_details": cut, "usage": tokens.map(usage) });
        with(self.object(status(finish), output), end)
    }

    /// The items of an answer: its text as one message, then its calls.
    pub(super) fn items(&self, ended: &EndedAnswer, status: &str) -> Vec<Value> {
        let text = ended.has_text().then(|| message_item(&self.id, Some(&ended.text), status));
        let calls = ended.calls.iter().map(|call| call_item(&self.id, call, status));
        text.into_iter().chain(calls).collect()
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
pub(super) fn status(finish: FinishReason) -> &'static str {
    if finish == FinishReason::Length { "incomplete" } else { "completed" }
}

/// The item of the answer's text; without a text, of a message that begins.
pub(super) fn message_item(id: &str, text: Option<&str>, status: &str) -> Value {
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
pub(super) fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

/// The item of a call.
pub(super) fn call_item(id: &str, call: &ModelCall, status: &str) -> Value {
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
    let (role, kind) = match message.role {
        Role::System => ("system", "input_text"),
        Role::Assistant => ("assistant", "output_text"),
        Role::User | Role::Tool => ("user", "input_text"),
    };
    let content = json!([{ "type": kind, "text": message.text }]);
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
