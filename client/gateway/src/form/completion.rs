//! A request in its inner form, into which each API's adapter reads its own.

use baton_proto::{
    record::{Message, Role},
    tools::Definitions,
    turn::{Sampling, TokenBias},
};

use baton_client::MODEL_PENALTY;

use crate::{form::logprobs::LogprobsRequest, http::api_error::ApiError};

/// A request as it is served.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CompletionRequest {
    /// System text at the beginning: pinned to the session.
    pub(crate) system: Vec<Message>,
    /// The tools that the model may call: also pinned.
    pub(crate) tools: Option<Definitions>,
    /// All other messages, in order.
    pub(crate) messages: Vec<Message>,
    /// The session, if it is named.
    pub(crate) session: Option<String>,
    /// The place of the new messages in the named session.
    pub(crate) place: RequestPlace,
    /// Whether memory is recalled, where the endpoint has any.
    pub(crate) memory: bool,
    /// The model, if it is named.
    pub(crate) model: Option<String>,
    /// The requested sampling.
    pub(crate) sampling: SamplingRequest,
    /// Most tokens of the answer.
    pub(crate) max_tokens: Option<u32>,
    /// Whether the answer is streamed.
    pub(crate) stream: bool,
    /// Whether a stream ends with the token counts.
    pub(crate) include_usage: bool,
    /// The JSON schema that the answer must satisfy.
    pub(crate) json_schema: Option<String>,
    /// Whether that schema is the one of a forced call.
    pub(crate) is_forced: bool,
    /// Whether the program wants one call at most, and the model may call.
    pub(crate) is_one_call: bool,
    /// The requested log probabilities.
    pub(crate) logprobs: Option<LogprobsRequest>,
    /// Whether the session's tools stay, where the request has none.
    pub(crate) keeps_tools: bool,
    /// The names of fields that are skipped.
    pub(crate) ignored: Vec<String>,
    /// Number of answers; all but the first are in sessions of their own.
    pub(crate) answers: usize,
    /// How long its session lasts.
    pub(crate) retention: Retention,
}

/// How long a session lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retention {
    /// In the home, until it is deleted.
    Stored,
    /// In memory, until some minutes after its last answer.
    Brief,
    /// In memory, until its answer.
    Single,
}

impl CompletionRequest {
    /// A request with these messages, and no wishes beside them.
    pub(crate) fn new(system: Vec<Message>, messages: Vec<Message>) -> Self {
        Self {
            system,
            tools: None,
            messages,
            session: None,
            place: RequestPlace::AfterMessages,
            memory: true,
            model: None,
            sampling: SamplingRequest::default(),
            max_tokens: None,
            stream: false,
            include_usage: false,
            json_schema: None,
            is_forced: false,
            is_one_call: false,
            logprobs: None,
            keeps_tools: false,
            ignored: Vec::new(),
            answers: 1,
            retention: Retention::Stored,
        }
    }

    /// Whether its session is in memory alone. No list contains it, so answers and errors do not name it.
    pub(crate) fn is_ephemeral(&self) -> bool {
        self.retention != Retention::Stored
    }

    /// The estimated tokens of its messages, system text and tools.
    pub(crate) fn input_estimate(&self) -> u64 {
        let tools = self.tools.as_ref().map(Definitions::message);
        let all = self.system.iter().chain(&self.messages).chain(&tools);
        all.map(|message| estimate_tokens(&message.text) + TOKENS_PER_MESSAGE).sum()
    }

    /// The request for another answer beside the one whose turn has this place: in a branch of the named
    /// session, or in a new session with all messages.
    pub(crate) fn beside(&self, seq: u64) -> Self {
        let named = self.session.as_deref().is_some_and(|name| name != "new");
        let after = match self.place {
            _ if !named => None,
            RequestPlace::BranchAfter(after) | RequestPlace::AfterTurn(after) => Some(after),
            RequestPlace::Replaces(seq) => seq.checked_sub(1),
            RequestPlace::AfterMessages | RequestPlace::Pending => seq.checked_sub(1),
        };
        let Some(after) = after else {
            return Self {
                session: Some("new".to_owned()),
                place: RequestPlace::AfterMessages,
                ..self.clone()
            };
        };
        let mut other = Self { place: RequestPlace::BranchAfter(after), ..self.clone() };
        if self.place == RequestPlace::AfterMessages {
            other.messages = split(&self.messages).1.to_vec();
        }
        other
    }
}

/// Bytes of a token in an estimate; English has four, other languages and code have fewer.
const BYTES_PER_TOKEN: usize = 3;
/// Tokens around a message in an estimate: its role and its ends.
const TOKENS_PER_MESSAGE: u64 = 6;

/// The estimated tokens of a text.
pub(crate) fn estimate_tokens(text: &str) -> u64 {
    text.len().div_ceil(BYTES_PER_TOKEN) as u64
}

/// Splits a request's messages after the assistant's last one: earlier messages and new messages.
pub(crate) fn split(messages: &[Message]) -> (&[Message], &[Message]) {
    let last = messages.iter().rposition(|message| message.role == Role::Assistant);
    messages.split_at(last.map_or(0, |last| last + 1))
}

/// The place of a request's messages in the session that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestPlace {
    /// After the messages that the request repeats; after the last turn if it repeats none.
    AfterMessages,
    /// In place of this turn and all later ones. All messages of the request are the turn's.
    Replaces(u64),
    /// In a new session that branches off after this turn. All messages of the request follow the history.
    BranchAfter(u64),
    /// After this turn, wherever that is possible: at the end of the session if the turn is the last one and no
    /// other request runs there, else in a branch. All messages of the request are new.
    AfterTurn(u64),
    /// The messages of the session's unanswered turn once more; without that turn the request is refused.
    Pending,
}

/// A request's sampling parameters; the gateway's apply where it sets none.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SamplingRequest {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: f32,
    pub(crate) top_k: u32,
    pub(crate) min_p: f32,
    /// None is the one that suits the model.
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) presence_penalty: f32,
    pub(crate) frequency_penalty: f32,
    pub(crate) token_biases: Vec<TokenBias>,
    pub(crate) seed: Option<u64>,
    pub(crate) stop: Vec<String>,
}

impl Default for SamplingRequest {
    fn default() -> Self {
        Self {
            temperature: None,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            token_biases: Vec::new(),
            seed: None,
            stop: Vec::new(),
        }
    }
}

impl SamplingRequest {
    /// A request with this temperature and nucleus. A nucleus of zero leaves the likeliest token.
    pub(crate) fn of(temperature: Option<f32>, top_p: Option<f32>) -> Self {
        if top_p == Some(0.0) {
            return Self { temperature: Some(0.0), ..Self::default() };
        }
        Self { temperature, top_p: top_p.unwrap_or(1.0), ..Self::default() }
    }

    /// The same for another answer: with another seed, if one is set.
    pub(crate) fn other_seed(&self, number: usize) -> Self {
        let seed = self.seed.map(|seed| seed.wrapping_add(number as u64));
        Self { seed, ..self.clone() }
    }

    /// Checks every number. An error names it as here.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        check_sampling(self)
    }

    /// The settings, with these defaults.
    pub(crate) fn with_defaults(&self, temperature: f32, seed: u64) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(temperature),
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty.unwrap_or(MODEL_PENALTY),
            seed: self.seed.unwrap_or(seed),
            stop: self.stop.clone(),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            token_biases: self.token_biases.clone(),
            ..Sampling::default()
        }
    }
}

/// Whether a model's name names no model.
pub(crate) fn is_any(model: &str) -> bool {
    matches!(model, "" | "auto" | "any" | "baton")
}

/// Checks every number by the name under which it was sent.
fn check_sampling(request: &SamplingRequest) -> Result<(), ApiError> {
    let checks = [
        (
            "temperature",
            Sampling { temperature: request.temperature.unwrap_or(0.0), ..Sampling::default() },
            "a number from 0 to 5",
        ),
        ("top_p", Sampling { top_p: request.top_p, ..Sampling::default() }, "a number from 0 to 1"),
        ("min_p", Sampling { min_p: request.min_p, ..Sampling::default() }, "a number from 0 to 1"),
        (
            "repetition_penalty",
            Sampling { repetition_penalty: request.repetition_penalty.unwrap_or(1.0), ..Sampling::default() },
            "a number above 0, at most 10",
        ),
        (
            "presence_penalty",
            Sampling { presence_penalty: request.presence_penalty, ..Sampling::default() },
            "a number from -2 to 2",
        ),
        (
            "frequency_penalty",
            Sampling { frequency_penalty: request.frequency_penalty, ..Sampling::default() },
            "a number from -2 to 2",
        ),
        (
            "logit_bias",
            Sampling { token_biases: request.token_biases.clone(), ..Sampling::default() },
            "a number from -100 to 100 for each of at most 300 tokens",
        ),
        (
            "stop",
            Sampling { stop: request.stop.clone(), ..Sampling::default() },
            "at most 16 texts of 1 to 256 bytes",
        ),
    ];
    for (name, sampling, range) in checks {
        if sampling.check().is_err() {
            return Err(ApiError::value(name, format!("{name} is {range}")));
        }
    }
    Ok(())
}
