//! The data model: items of memory, their properties and the edges between them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::ids::{ItemId, PersonaId, ProjectId, SessionId};

macro_rules! wire_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vmeta])* $variant),* }

        impl $name {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its name in requests, answers and exports.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// The value with this name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                match name { $($text => Some(Self::$variant),)* _ => None }
            }
        }
    };
}
pub(crate) use wire_enum;

wire_enum! {
    /// The kind of an item.
    Kind {
        /// One message of a conversation, word for word.
        Episode = "episode",
        /// One fact, in one sentence.
        Fact = "fact",
        /// A person, place or thing that facts are about.
        Entity = "entity",
        /// A short form of older episodes.
        Summary = "summary",
    }
}

wire_enum! {
    /// Who may know an item.
    Layer {
        /// About the user: every persona of the user may know it.
        Profile = "profile",
        /// Between the user and one persona.
        Relationship = "relationship",
        /// A part of a conversation, with one persona.
        Episode = "episode",
    }
}

wire_enum! {
    /// The role of a message.
    Role {
        /// Instructions.
        System = "system",
        /// The person.
        User = "user",
        /// The model.
        Assistant = "assistant",
        /// A summary of older messages.
        Summary = "summary",
    }
}

wire_enum! {
    /// The author of an item's words. Only the user's words are trusted as the user's.
    Author {
        /// The user said it in a conversation.
        User = "user",
        /// The model said it.
        Assistant = "assistant",
        /// The owner wrote it by hand, or through an agent that acts for the owner.
        Owner = "owner",
        /// It came with an import.
        Import = "import",
    }
}

wire_enum! {
    /// Whether the user agrees that the item is kept.
    Consent {
        /// Kept and recalled.
        Granted = "granted",
        /// Not recalled until the user agrees.
        Pending = "pending",
        /// Refused by the user and removed at once; only answers carry this value.
        Denied = "denied",
    }
}

wire_enum! {
    /// The part of memory that a turn may use.
    #[derive(Default)]
    MemoryScope {
        /// Everything.
        Full = "full",
        /// The profile without intimate items, and memories between user and persona.
        #[default]
        NeutralAndRelationship = "neutral_and_relationship",
        /// Only memories between user and persona, without intimate items.
        RelationshipOnly = "relationship_only",
        /// Only the profile, without intimate items.
        NeutralOnly = "neutral_only",
        /// Only the profile, intimate items too.
        InsightsOnly = "insights_only",
        /// Nothing.
        None = "none",
    }
}

/// The source of an item (F4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The session, if it was said in one.
    pub session: Option<SessionId>,
    /// The turn in the session, from 0.
    pub turn: Option<u64>,
    /// Whose words.
    pub author: Author,
    /// When it was said, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The items that it was derived from.
    pub sources: Vec<ItemId>,
}

/// An item of memory.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Its id.
    pub id: ItemId,
    /// Its kind.
    pub kind: Kind,
    /// Its layer: who may know it.
    pub layer: Layer,
    /// Role of the message that it is or was derived from.
    pub role: Role,
    /// The text, exactly as it was given.
    pub text: Text,
    /// For an entity: the key of its upsert.
    pub stable_key: Option<Text>,
    /// The project tag from its creation, which never changes. An episode belongs to its session's project.
    pub project: Option<ProjectId>,
    /// The persona that shared it.
    pub persona: PersonaId,
    /// Its source.
    pub provenance: Provenance,
    /// Whether the user agreed.
    pub consent: Consent,
    /// Whether it is only for scopes that include intimate items.
    pub intimate: bool,
    /// Its worth, 0 to 1.
    pub salience: f32,
    /// From when it holds, in milliseconds since the Unix epoch.
    pub valid_from_ms: u64,
    /// BLAKE3 of the canonical text under the owner's key, so that an outsider cannot guess the text.
    pub content_hash: [u8; 32],
}

/// A text that is wiped on drop and hidden from `Debug`.
#[derive(
    Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, Zeroize, ZeroizeOnDrop,
)]
pub struct Text(pub String);

impl std::borrow::Borrow<str> for Text {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl std::ops::Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Text({} bytes)", self.0.len())
    }
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Item").field("id", &self.id).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// A typed edge between two items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = EdgeJson)]
pub struct Edge {
    /// Id of the source item.
    #[schema(value_type = String)]
    pub from: ItemId,
    /// Id of the target item.
    #[schema(value_type = String)]
    pub to: ItemId,
    /// The type, in snake case: `mentions`, `supersedes`, `said_in` and others.
    pub label: String,
    /// Its meaning here, in words.
    #[schema(value_type = String)]
    pub description: Text,
    /// The words that it was read from.
    #[schema(value_type = String)]
    pub evidence: Text,
    /// The confidence, 0 to 1.
    pub confidence: f32,
}
