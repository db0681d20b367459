//! Decides on the memory of an exchange: whether to keep anything (the gate), which facts and moments, and
//! which known facts they repeat or end. Pure decisions by rule, and optionally by a model.
//!
//! The service's jobs call it after the reply. It stores nothing, reads no clock and trusts no model. A
//! model's answer is parsed strictly and must quote the exchange. It never decides on author, trust or the
//! floors (off the record, credentials).

mod canonical;
mod endpoint;
mod entities;
mod extract;
mod gate;
mod model;
mod prompts;
mod relation;
mod reply;
mod rules;
mod sensitive;
mod summary;
mod text;
mod words;

pub(crate) use canonical::{APOSTROPHES, holds_words};
pub use canonical::{canonical, wording};
pub use endpoint::{Endpoint, EndpointConfig, read_key};
pub use entities::entities;
pub use extract::{candidate_of, extract, unlabelled};
pub use gate::{combine, gate, needs_judge};
pub use model::{
    Complete, ModelError, ModelExtraction, ModelWriter, PromptMessage, PromptRole, RecalledItem,
};
pub use relation::{ExistingFact, Relation, relation, slot_of};
pub use reply::merge;
pub use sensitive::{is_intimate, is_secret, salience};
pub use summary::{SummaryMessage, summarise};

use crate::model::{Author, Consent, Layer, Role, Text, wire_enum};

/// A message and its answer, as input of rules and models.
#[derive(Clone, Copy)]
pub struct MessagePair<'a> {
    /// The user's message.
    pub user: &'a str,
    /// The answer.
    pub assistant: &'a str,
    /// When, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The persona that answered; `None` for the default persona, which has no self to describe.
    pub persona: Option<&'a str>,
}

impl std::fmt::Debug for MessagePair<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessagePair")
            .field("user_bytes", &self.user.len())
            .field("assistant_bytes", &self.assistant.len())
            .finish_non_exhaustive()
    }
}

wire_enum! {
    /// The judge's decision on an exchange (E4).
    #[derive(Default)]
    Mode {
        /// No objection.
        #[default]
        InWorldAnswer = "in_world_answer",
        /// The user must consent before it is kept.
        MemoryConsent = "memory_consent",
        /// None of it becomes memory.
        SafeRedirect = "safe_redirect",
    }
}

wire_enum! {
    /// The care that an exchange needs.
    #[derive(PartialOrd, Ord, Default)]
    Risk {
        /// None.
        #[default]
        Low = "low",
        /// Its owner should review the kept items.
        Medium = "medium",
        /// It is not kept without its owner's consent.
        High = "high",
    }
}

/// Flags that the rules set.
pub mod flag {
    /// The user asked not to remember it.
    pub const OFF_RECORD: &str = "off_record";
    /// The user asked to remember it.
    pub const EXPLICIT: &str = "explicit_request";
    /// It holds a password, a key, a card number or similar; that sentence is never a fact.
    pub const SECRET: &str = "secret";
    /// It is about health, sexuality, religion, politics, money or similar.
    pub const INTIMATE: &str = "intimate";
    /// It reads like an instruction to a model about its instructions.
    pub const INJECTION: &str = "injection";
    /// Greeting, thanks or acknowledgement.
    pub const SMALL_TALK: &str = "small_talk";
    /// It asks about earlier messages.
    pub const RECAP: &str = "recap";
    /// It asks or commands, and states nothing.
    pub const QUESTION: &str = "question";
}

/// A judge's five statements about an exchange; this module derives all else from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The action.
    pub mode: Mode,
    /// The care that it needs.
    pub risk: Risk,
    /// Labels, see [`flag`].
    pub flags: Vec<String>,
    /// The reason, without the words of the exchange.
    pub note: String,
    /// Whether it holds anything worth keeping. False by default.
    pub extract_memory: bool,
}

impl Verdict {
    /// Whether the exchange is excluded from memory.
    #[must_use]
    pub fn blocked(&self) -> bool {
        self.mode == Mode::SafeRedirect || self.risk == Risk::High
    }

    /// Whether its owner should review the kept items.
    #[must_use]
    pub fn review_required(&self) -> bool {
        self.risk != Risk::Low
    }

    /// Whether anything is extracted (E5).
    #[must_use]
    pub fn writes(&self) -> bool {
        self.extract_memory && self.mode != Mode::SafeRedirect
    }

    /// Whether the user must consent before it is kept (E6).
    #[must_use]
    pub fn asks_consent(&self) -> bool {
        self.mode == Mode::MemoryConsent
    }

    /// Whether a flag is set.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|one| one == flag)
    }

    /// The initial consent of each candidate of the exchange:
    ///
    /// - An intimate candidate waits for consent, unless the user asked to keep it.
    /// - Under `memory_consent`, all candidates wait if none is known to be intimate.
    /// - A blocked exchange, or one that reads like an injection, waits as a whole.
    #[must_use]
    pub fn consents(&self, candidates: &[Candidate]) -> Vec<Consent> {
        let all = self.blocked() || self.has(flag::INJECTION);
        let explicit = self.has(flag::EXPLICIT);
        let none_intimate = !candidates.iter().any(|candidate| candidate.intimate);
        candidates
            .iter()
            .map(|candidate| {
                let asked = if none_intimate { self.asks_consent() } else { candidate.intimate && !explicit };
                if all || asked { Consent::Pending } else { Consent::Granted }
            })
            .collect()
    }
}

wire_enum! {
    /// The kind of an entity. Its name is the prefix of its stable keys.
    EntityKind {
        /// A human.
        Person = "person",
        /// An animal.
        Pet = "pet",
        /// A place.
        Place = "place",
        /// A company, school or similar.
        Organisation = "organisation",
        /// A day or a time.
        Date = "date",
        /// Another named thing.
        Thing = "thing",
    }
}

/// An entity that a text names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityMention {
    /// The name in the text's spelling.
    pub name: String,
    /// Its kind.
    pub kind: EntityKind,
    /// The key of its node's upsert (E1): `kind:canonical name`.
    pub stable_key: String,
}

impl EntityMention {
    /// A mention by its name.
    #[must_use]
    pub fn new(name: &str, kind: EntityKind) -> Self {
        Self { name: name.to_owned(), kind, stable_key: format!("{}:{}", kind.name(), canonical(name)) }
    }
}

/// The subject of a statement that can hold one value only. A later statement with the same key and another
/// value ends the earlier one (F3).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// For example `user.lives_in`, `user.likes:coffee`, `pet.name:dog`.
    pub key: String,
    /// The canonical value.
    pub value: String,
}

/// An end of an edge, before it has an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EdgeEnd {
    /// The candidate that the edge comes with.
    Fact,
    /// The anchor of the user.
    User,
    /// The anchor of the persona that spoke.
    Persona,
    /// An entity by its stable key, from the candidate's entities.
    Entity(String),
}

/// A typed edge before it has ids (E1, E3).
#[derive(Clone, Debug, PartialEq)]
pub struct EdgeCandidate {
    /// The source.
    pub from: EdgeEnd,
    /// The target.
    pub to: EdgeEnd,
    /// The type, in snake case.
    pub label: String,
    /// Its meaning here, in words.
    pub description: String,
    /// The words that it was read from.
    pub evidence: Text,
    /// The confidence, 0 to 1.
    pub confidence: f32,
}

/// A statement of an exchange that is worth keeping.
///
/// `text` of the user's is an unchanged part of the user's message (D10). A later question shares those
/// words, and a paraphrase can be wrong. The author field names the speaker. The assistant's words are
/// labelled in the text itself (`Aria (assistant) said: …`), so that they are recognisable everywhere (F4).
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The words.
    pub text: Text,
    /// Profile for facts about the user; relationship for moments between user and persona.
    pub layer: Layer,
    /// The author, `User` or `Assistant`, by the message.
    pub author: Author,
    /// The role of that message.
    pub role: Role,
    /// Whether it is only for scopes that include intimate items.
    pub intimate: bool,
    /// Its worth, 0 to 1.
    pub salience: f32,
    /// The entities that it names.
    pub entities: Vec<EntityMention>,
    /// Its subject, if that holds one value only.
    pub slot: Option<Slot>,
    /// Edges that come with it; at least one.
    pub edges: Vec<EdgeCandidate>,
}

impl Candidate {
    /// The stable key of its item, if its subject holds one value only.
    #[must_use]
    pub fn slot_key(&self) -> Option<Text> {
        self.slot.as_ref().map(|slot| format!("slot:{}", slot.key).into())
    }
}
