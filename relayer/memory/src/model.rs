//! The one model: what an item of memory is, and what is said about it.

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::ids::{ItemId, PersonaId, ProjectId, SessionId};

macro_rules! wire_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$vmeta])* $variant),* }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its name in requests, answers and exports.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// The one with a name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                match name { $($text => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

wire_enum! {
    /// What an item is.
    Kind {
        /// One message of a conversation, word for word.
        Episode = "episode",
        /// Something worth knowing, in one sentence.
        Fact = "fact",
        /// A person, place or thing that facts are about.
        Entity = "entity",
        /// Older episodes in short.
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
        /// What was said in a conversation, with one persona.
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
    /// Whose words an item is made from. Only the user's are trusted like the user's.
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
    /// Whether the user agrees that it is kept.
    Consent {
        /// Kept and recalled.
        Granted = "granted",
        /// The user has to be asked; not recalled until then.
        Pending = "pending",
        /// The user said no; removed at once, this is only what an answer says.
        Denied = "denied",
    }
}

wire_enum! {
    /// What of memory a turn may use.
    MemoryScope {
        /// Everything.
        Full = "full",
        /// The profile without intimate items, and what is between user and persona.
        NeutralAndRelationship = "neutral_and_relationship",
        /// Only what is between user and persona, without intimate items.
        RelationshipOnly = "relationship_only",
        /// Only the profile, without intimate items.
        NeutralOnly = "neutral_only",
        /// Only the profile, intimate items too.
        InsightsOnly = "insights_only",
        /// Nothing.
        None = "none",
    }
}

#[expect(clippy::derivable_impls, reason = "the macro knows no default")]
impl Default for MemoryScope {
    fn default() -> Self {
        Self::NeutralAndRelationship
    }
}

/// Where an item comes from (F4).
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
    /// The items that it was made from.
    pub sources: Vec<ItemId>,
}

/// An item of memory.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Its id.
    pub id: ItemId,
    /// What it is.
    pub kind: Kind,
    /// Who may know it.
    pub layer: Layer,
    /// Role of the message it is or was made from.
    pub role: Role,
    /// The text, exactly as it was given.
    pub text: Text,
    /// For an entity: what it is upserted by.
    pub stable_key: Option<Text>,
    /// The project it was tagged with when it was made. Never changes; what an episode belongs to is its session's.
    pub project: Option<ProjectId>,
    /// The persona that shared it.
    pub persona: PersonaId,
    /// Where it comes from.
    pub provenance: Provenance,
    /// Whether the user agreed.
    pub consent: Consent,
    /// Whether it is only for scopes that include intimate items.
    pub intimate: bool,
    /// How much it is worth remembering, 0 to 1.
    pub salience: f32,
    /// From when it holds, in milliseconds since the Unix epoch.
    pub valid_from_ms: u64,
    /// BLAKE3 of the canonical text under the owner's key, so that it cannot be guessed from outside.
    pub content_hash: [u8; 32],
}

/// A text that is wiped when it is dropped and not shown by `Debug`.
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

/// A typed edge between two items (E1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edge {
    /// From which item.
    pub from: ItemId,
    /// To which.
    pub to: ItemId,
    /// The type, in snake case: `mentions`, `temporal_follows`, `continues_thread`, `supersedes`, `said_in`, ...
    pub label: String,
    /// What it means here, in words.
    pub description: Text,
    /// The words that it was read from.
    pub evidence: Text,
    /// 0 to 1.
    pub confidence: f32,
}
