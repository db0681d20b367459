//! What an exchange leaves in memory: whether anything does (the gate), what (facts and moments), what it is about, and
//! what of the known it repeats or ends. Pure decisions by rule, and a model that may be asked as well.
//!
//! Called by the jobs of the service, after the reply. Nothing here stores, reads a clock or trusts a model: what a model
//! says is parsed strictly, must point into the words of the exchange, and never decides on author, trust or the floors
//! (off the record, credentials).

mod canonical;
mod endpoint;
mod entities;
mod extract;
mod gate;
mod model;
mod prompts;
mod relation;
mod reply;
mod requests;
mod rules;
mod sensitive;
mod summary;
mod text;
mod words;

pub use canonical::canonical;
pub use endpoint::{Endpoint, EndpointConfig, KeyFileError, read_key};
pub use entities::entities;
pub use extract::{candidate_of, extract, unlabelled};
pub use gate::{combine, gate, needs_judge};
pub use model::{Complete, Extracted, ModelError, ModelWriter, PromptMessage, PromptRole, Recalled, Writer};
pub use relation::{ExistingFact, Relation, relation, slot_of};
pub use reply::merge;
pub use sensitive::{is_intimate, is_secret, salience};
pub use summary::{Spoken, summarise};

use crate::model::{Author, Consent, Layer, Role, Text};

/// One exchange as the rules and models see it.
#[derive(Clone, Copy)]
pub struct Exchange<'a> {
    /// The user's message.
    pub user: &'a str,
    /// The answer.
    pub assistant: &'a str,
    /// When, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The persona that answered; none is the default one, which tells nothing of itself.
    pub persona: Option<&'a str>,
}

impl std::fmt::Debug for Exchange<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange")
            .field("user_bytes", &self.user.len())
            .field("assistant_bytes", &self.assistant.len())
            .finish_non_exhaustive()
    }
}

/// What the judge decides on an exchange (E4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing stands against it.
    InWorldAnswer,
    /// The user is asked before it is kept.
    MemoryConsent,
    /// Nothing of it becomes memory.
    SafeRedirect,
}

impl Mode {
    /// Its name where a judge writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InWorldAnswer => "in_world_answer",
            Self::MemoryConsent => "memory_consent",
            Self::SafeRedirect => "safe_redirect",
        }
    }

    /// The one with a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::InWorldAnswer, Self::MemoryConsent, Self::SafeRedirect]
            .into_iter()
            .find(|mode| mode.name() == name)
    }
}

/// How much care an exchange needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Risk {
    /// None.
    Low,
    /// Its owner should look at what is kept.
    Medium,
    /// It is not kept without its owner's word.
    High,
}

impl Risk {
    /// Its name where a judge writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }

    /// The one with a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Low, Self::Medium, Self::High].into_iter().find(|risk| risk.name() == name)
    }
}

/// Flags that the rules set.
pub mod flag {
    /// The user asked that this is not remembered.
    pub const OFF_RECORD: &str = "off_record";
    /// The user asked that this is remembered.
    pub const EXPLICIT: &str = "explicit_request";
    /// It holds a password, a key, a card number or the like; that sentence is never a fact.
    pub const SECRET: &str = "secret";
    /// It is about health, sexuality, religion, politics, money or the like.
    pub const INTIMATE: &str = "intimate";
    /// It reads like an instruction to a model about its instructions.
    pub const INJECTION: &str = "injection";
    /// Greeting, thanks or acknowledgement.
    pub const SMALL_TALK: &str = "small_talk";
    /// It asks what was said before.
    pub const RECAP: &str = "recap";
    /// It asks or commands, and tells nothing.
    pub const QUESTION: &str = "question";
}

/// The five things that a judge says of an exchange; everything else is derived from them here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What to do.
    pub mode: Mode,
    /// How much care it needs.
    pub risk: Risk,
    /// Labels, see [`flag`].
    pub flags: Vec<String>,
    /// Why, in words, without the words of the exchange.
    pub note: String,
    /// Whether anything is worth keeping. The default is no.
    pub extract_memory: bool,
}

impl Default for Verdict {
    fn default() -> Self {
        Self {
            mode: Mode::InWorldAnswer,
            risk: Risk::Low,
            flags: Vec::new(),
            note: String::new(),
            extract_memory: false,
        }
    }
}

impl Verdict {
    /// Whether the exchange is kept from memory.
    #[must_use]
    pub fn blocked(&self) -> bool {
        self.mode == Mode::SafeRedirect || self.risk == Risk::High
    }

    /// Whether its owner should look at what is kept.
    #[must_use]
    pub fn review_required(&self) -> bool {
        self.risk != Risk::Low
    }

    /// Whether anything is extracted (E5).
    #[must_use]
    pub fn writes(&self) -> bool {
        self.extract_memory && self.mode != Mode::SafeRedirect
    }

    /// Whether the user is asked before it is kept (E6).
    #[must_use]
    pub fn asks_consent(&self) -> bool {
        self.mode == Mode::MemoryConsent
    }

    /// Whether a flag is set.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|one| one == flag)
    }

    /// The consent that each candidate of the exchange begins with. What is intimate waits for the user's word, unless the user
    /// asked for it to be kept; under `memory_consent` everything waits where no candidate is known to be intimate; and an
    /// exchange that is blocked, or reads like an injection, waits as a whole.
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

/// What an entity is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntityKind {
    /// A human.
    Person,
    /// An animal.
    Pet,
    /// A place.
    Place,
    /// A company, school or the like.
    Organisation,
    /// A day or a time.
    Date,
    /// Anything else with a name.
    Thing,
}

impl EntityKind {
    /// Its name, which begins the stable keys of its kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Pet => "pet",
            Self::Place => "place",
            Self::Organisation => "organisation",
            Self::Date => "date",
            Self::Thing => "thing",
        }
    }
}

/// Something that a text names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityMention {
    /// As the text writes it.
    pub name: String,
    /// What it is.
    pub kind: EntityKind,
    /// What its node is upserted by (E1): `kind:canonical name`.
    pub stable_key: String,
}

impl EntityMention {
    /// A mention by its name.
    #[must_use]
    pub fn new(name: &str, kind: EntityKind) -> Self {
        Self { name: name.to_owned(), kind, stable_key: format!("{}:{}", kind.name(), canonical(name)) }
    }
}

/// What a statement is about, when it can hold one value only: a later statement with the same key and another value
/// ends the earlier one (F3).
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
    /// An entity by its stable key; among the candidate's entities.
    Entity(String),
}

/// A typed edge before it has ids (E1, E3).
#[derive(Clone, Debug, PartialEq)]
pub struct EdgeCandidate {
    /// From where.
    pub from: EdgeEnd,
    /// To where.
    pub to: EdgeEnd,
    /// The type, in snake case.
    pub label: String,
    /// What it means here, in words.
    pub description: String,
    /// The words that it was read from.
    pub evidence: Text,
    /// 0 to 1.
    pub confidence: f32,
}

/// Something that an exchange told and that is worth keeping.
///
/// `text` of the user's is a stretch of the user's message, unchanged (D10): the words that were said are the words that a
/// later question shares, a paraphrase can be wrong, and who said it stands beside it as the author. What the assistant said
/// is labelled in the text itself (`Aria (assistant) said: …`), so that it reads as such wherever it goes (F4).
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The words.
    pub text: Text,
    /// Profile for what is so of the user; relationship for moments between user and persona.
    pub layer: Layer,
    /// Whose words: `User` or `Assistant`, by where they stand.
    pub author: Author,
    /// The role of that message.
    pub role: Role,
    /// Whether it is only for scopes that include intimate items.
    pub intimate: bool,
    /// How much it is worth remembering, 0 to 1.
    pub salience: f32,
    /// What it names.
    pub entities: Vec<EntityMention>,
    /// What it is about, if that holds one value only.
    pub slot: Option<Slot>,
    /// Edges that come with it; at least one.
    pub edges: Vec<EdgeCandidate>,
}

impl Candidate {
    /// The stable key of its item, if it is about something that holds one value only.
    #[must_use]
    pub fn slot_key(&self) -> Option<Text> {
        self.slot.as_ref().map(|slot| format!("slot:{}", slot.key).into())
    }
}
