//! A request in its inner form, into which each API's adapter reads its own.

use baton_proto::{
    record::{Message, Role},
    tools::Definitions,
    turn::Sampling,
};

use crate::form::logprobs::LogprobsRequest;

/// A request as it is served.
#[derive(Debug, Clone, Default, PartialEq)]
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
    /// Whether no memory is recalled, where the endpoint has any.
    pub(crate) declines_memory: bool,
    /// The model, if it is named.
    pub(crate) model: Option<String>,
    /// The requested temperature; without one, the gateway's.
    pub(crate) temperature: Option<f32>,
    /// The requested seed; without one, a random one.
    pub(crate) seed: Option<u64>,
    /// All other settings of the sampling.
    pub(crate) sampling: Sampling,
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
    /// The names of fields that are skipped.
    pub(crate) ignored: Vec<String>,
    /// Answers beside the first one, in sessions of their own.
    pub(crate) more_answers: u64,
    /// How long its session lasts.
    pub(crate) retention: Retention,
}

/// How long a session lasts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Retention {
    /// In the home, until it is deleted.
    #[default]
    Stored,
    /// In memory, until some minutes after its last answer.
    Brief,
    /// In memory, until its answer.
    Single,
}

impl CompletionRequest {
    /// Whether it names a session that was there before.
    pub(crate) fn is_named(&self) -> bool {
        self.session.as_deref().is_some_and(|name| name != "new")
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

    /// The request for another answer beside the one whose turn has this place: in a branch of the named session, or in
    /// a new session with all messages; with another seed, if one is set.
    pub(crate) fn beside(&self, seq: u64, number: u64) -> Self {
        let after = match self.place {
            RequestPlace::BranchAfter(after) | RequestPlace::AfterTurn(after) => Some(after),
            RequestPlace::Replaces(seq) => seq.checked_sub(1),
            RequestPlace::AfterMessages | RequestPlace::Pending => seq.checked_sub(1),
        };
        let mut other = self.clone();
        other.seed = self.seed.map(|seed| seed.wrapping_add(number));
        match after.filter(|_| self.is_named()) {
            None => (other.session, other.place) = (Some("new".to_owned()), RequestPlace::AfterMessages),
            Some(after) => {
                if self.place == RequestPlace::AfterMessages {
                    other.messages = split(&self.messages).1.to_vec();
                }
                other.place = RequestPlace::BranchAfter(after);
            }
        }
        other
    }
}

#[cfg(test)]
impl CompletionRequest {
    /// The messages that are not pinned.
    pub(crate) fn said(&self) -> Vec<(Role, &str)> {
        self.messages.iter().map(|message| (message.role, message.text.as_str())).collect()
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum RequestPlace {
    /// After the messages that the request repeats; after the last turn if it repeats none.
    #[default]
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

/// Whether a model's name names no model.
pub(crate) fn is_any(model: &str) -> bool {
    matches!(model, "" | "auto" | "any" | "baton")
}
