//! Conversions between the node and the engine's language layer: prompts, errors, and log probabilities on
//! the wire.

use baton_engine::language::{
    Call, Conversation, Grammar, Json, LanguageError, Logprob, LogprobReport, Message, Role as Speaker, Tool,
    grammar, sampler,
};
use baton_keys::contexts::{SAMPLER_RANDOMNESS, TOKENIZER};
use baton_proto::{
    limits::MAX_SCHEMA_BYTES,
    tools::Json as ProtoJson,
    wire::{TokenBytes, TokenLogprob},
};
use zeroize::Zeroizing;

use super::{EngineError, Sampling, native::LoadError};
use crate::prompt::{Prompt, Role, ToolMessage};

// The engine crate does not know the protocol; these constants of both must be equal.
const _: () = assert!(MAX_SCHEMA_BYTES == grammar::MAX_SCHEMA_BYTES);
const _: () = assert!(same(SAMPLER_RANDOMNESS.as_str(), sampler::RANDOMNESS_CONTEXT));
const _: () = assert!(same(TOKENIZER.as_str(), baton_engine::language::tokenizer::TOKENIZER_CONTEXT));

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut index = 0;
    while index < a.len() && index < b.len() && a[index] == b[index] {
        index += 1;
    }
    index == a.len() && index == b.len()
}

impl From<LanguageError> for EngineError {
    fn from(error: LanguageError) -> Self {
        match error {
            LanguageError::Template { reason } => Self::Template { reason },
            LanguageError::ToolsUnsupported => Self::ToolsUnsupported,
            LanguageError::NoEndToken => Self::Unsupported { what: "a schema without an end token" },
            LanguageError::Schema { reason } => Self::Schema { reason },
            LanguageError::NoPrefix => Self::InvalidResume,
            error => Self::Compute { reason: error.to_string() },
        }
    }
}

impl From<LanguageError> for LoadError {
    fn from(error: LanguageError) -> Self {
        match error {
            LanguageError::Unknown { model, pre } => {
                Self::Unsupported { what: format!("tokenizer {model} / {pre}") }
            }
            error => Self::Language(error),
        }
    }
}

/// A prompt for the engine's templates.
pub(super) fn conversation(prompt: &Prompt) -> Conversation {
    let tools = prompt.tools().into_iter().flat_map(|tools| tools.tools());
    let tool = |tool: &ProtoJson| Tool { definition: json(tool), text: tool.write() };
    Conversation {
        messages: prompt.spoken().into_iter().map(message).collect(),
        tools: tools.map(tool).collect(),
    }
}

fn message(spoken: ToolMessage<'_>) -> Message {
    let ToolMessage { message, content, text, calls, answers } = spoken;
    let role = match message.role {
        Role::System => Speaker::System,
        Role::User => Speaker::User,
        Role::Assistant => Speaker::Assistant,
        Role::Tool => Speaker::Tool,
    };
    let (id, tool) = answers.unzip();
    let call = |spoken: crate::prompt::SpokenCall| Call {
        id: spoken.id,
        arguments: json(&spoken.call.arguments),
        name: spoken.call.name,
    };
    Message {
        role,
        text,
        content,
        calls: calls.into_iter().map(call).collect(),
        name: message.name.clone().or(tool),
        call_id: id.or_else(|| message.call_id.clone()),
    }
}

fn json(value: &ProtoJson) -> Json {
    match value {
        ProtoJson::Null => Json::Null,
        ProtoJson::Bool(value) => Json::Bool(*value),
        ProtoJson::Number(number) => Json::Number(number.clone()),
        ProtoJson::Text(text) => Json::Text(text.clone()),
        ProtoJson::List(values) => Json::List(values.iter().map(json).collect()),
        ProtoJson::Map(entries) => {
            Json::Map(entries.iter().map(|(key, value)| (key.clone(), json(value))).collect())
        }
    }
}

/// The settings of a job that choose tokens.
pub(super) fn sampling(asked: &Sampling) -> baton_engine::language::Sampling {
    baton_engine::language::Sampling {
        temperature: asked.temperature,
        top_p: asked.top_p,
        top_k: asked.top_k,
        min_p: asked.min_p,
        repetition_penalty: asked.repetition_penalty,
        seed: asked.seed,
        presence_penalty: asked.presence_penalty,
        frequency_penalty: asked.frequency_penalty,
        token_biases: asked.token_biases.iter().map(|bias| (bias.token, bias.bias)).collect(),
    }
}

/// A constraint on an answer. Valid for one job of the engine that made it.
#[derive(Clone)]
pub struct Constraint(pub(super) ConstraintKind);

#[derive(Clone)]
pub(super) enum ConstraintKind {
    /// For an engine that chooses tokens itself.
    Grammar(Box<Grammar>),
    /// For a proxied server: the client's schema as sent, within its limits.
    Passed(Zeroizing<String>),
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Constraint(..)")
    }
}

/// The report on one token: the token itself, then the most likely tokens, each with its bytes.
pub(super) fn logprobs(report: LogprobReport) -> Vec<TokenLogprob> {
    let token = |(one, bytes): (Logprob, Vec<u8>)| TokenLogprob {
        token: one.token,
        millinats: one.millinats,
        bytes: TokenBytes(bytes),
    };
    report.tokens.into_iter().zip(report.spelled).map(token).collect()
}
