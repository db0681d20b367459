//! What one may ask of [`Memory`](crate::Memory), and what it answers. Outside names only: internal ids never leave.

use baton_proto::memory::MemoryItem;
use serde::{Deserialize, Serialize};

use crate::{
    ids::{ItemId, OwnerId},
    model::{Author, Consent, Kind, Layer, MemoryScope, Role, Text},
    search::Weights,
};

/// Where a request stands. Resolved on the server for each request, to internal ids; what cannot be resolved sees nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The session, by its outside name (at most [`MAX_NAME_BYTES`](crate::limits::MAX_NAME_BYTES)).
    pub session: Option<String>,
    /// The project that the request claims. Of a session that is known, the session's own project counts, and another
    /// claim sees nothing; a session that is new is made in this project before its first recall (B10).
    pub project: Option<String>,
    /// The persona that the request claims; none is the session's, and the default one without a session. Of a session that
    /// is known, the session's own persona counts, and another claim sees nothing.
    pub persona: Option<String>,
}

/// What a recall may return.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filters {
    /// Only these kinds; empty for all.
    pub kinds: Vec<Kind>,
    /// Only these layers; empty for all.
    pub layers: Vec<Layer>,
    /// Only what was said by these; empty for all.
    pub authors: Vec<Author>,
    /// Only what was said at or after this time.
    pub from_ms: Option<u64>,
    /// Only what was said before this time.
    pub before_ms: Option<u64>,
    /// Also items whose validity has ended (history).
    pub include_ended: bool,
    /// Nothing from this session: its own words are in the window of the conversation already.
    pub not_session: Option<String>,
    /// Nothing intimate, whatever the scope says: the asker was not granted it.
    pub without_intimate: bool,
}

/// A recall.
#[derive(Clone, Debug)]
pub struct RecallRequest {
    /// Where the asker stands.
    pub place: Place,
    /// What of memory it may see.
    pub scope: MemoryScope,
    /// The user's words.
    pub query: Text,
    /// Most items.
    pub limit: usize,
    /// Least score, 0 to 1; "no match" is an answer.
    pub threshold: Option<f32>,
    /// Most tokens of all items together; none for no budget.
    pub budget_tokens: Option<u32>,
    /// What may be returned.
    pub filters: Filters,
    /// How much relevance, recency and importance count; relevance alone if none.
    pub weights: Option<Weights>,
}

/// How a recall searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecallMode {
    /// By words and by meaning.
    Full,
    /// By words alone: the embedder did not answer in time, or has not caught up.
    Lexical,
    /// Not at all: the scope is `none`, the place sees nothing, or the deadline ran out.
    None,
}

/// An item that a recall found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// The item.
    pub view: ItemView,
    /// 0 to 1, by which hits are ordered.
    pub score: f32,
    /// Cosine similarity with the query, where both have vectors.
    pub similarity: Option<f32>,
}

/// Why an item that matched is not among the hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// Below the threshold.
    Threshold,
    /// Beyond the limit of items.
    Limit,
    /// Beyond the budget of tokens.
    Budget,
    /// Says the same as a better hit.
    Duplicate,
}

/// What a recall answers (F6).
#[derive(Clone, Debug, PartialEq)]
pub struct Recall {
    /// Best first.
    pub hits: Vec<Hit>,
    /// What matched and was dropped, best first, at most [`MAX_DROPPED`](crate::limits::MAX_DROPPED).
    pub dropped: Vec<(ItemId, f32, DropReason)>,
    /// How it searched.
    pub mode: RecallMode,
    /// Why it did less than a full search, in words for the user; none for a full one.
    pub degraded: Option<String>,
    /// How long it took, in microseconds.
    pub took_us: u64,
}

/// An item as its owner sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemView {
    /// Its id.
    pub id: ItemId,
    /// What it is.
    pub kind: Kind,
    /// Who may know it.
    pub layer: Layer,
    /// Role of the message.
    pub role: Role,
    /// The text.
    pub text: Text,
    /// The project it counts as in now.
    pub project: Option<String>,
    /// The session it was said in.
    pub session: Option<String>,
    /// The turn in the session.
    pub turn: Option<u64>,
    /// The persona that shared it; none is the default one.
    pub persona: Option<String>,
    /// Whose words.
    pub author: Author,
    /// When it was said, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// From when it holds.
    pub valid_from_ms: u64,
    /// Until when it held; none while it holds.
    pub valid_to_ms: Option<u64>,
    /// The item that took its place.
    pub superseded_by: Option<ItemId>,
    /// Whether the user agreed.
    pub consent: Consent,
    /// Whether it is intimate.
    pub intimate: bool,
    /// How much it is worth, 0 to 1.
    pub salience: f32,
    /// Whether it is archived: kept, not recalled.
    pub archived: bool,
    /// The Walrus blob or quilt patch that holds its content, once stored.
    pub blob_id: Option<String>,
    /// How often the same was said again.
    pub accesses: u64,
    /// The items that it was made from.
    pub sources: Vec<ItemId>,
}

/// Both sides of one exchange (C10), as they were said.
#[derive(Clone, Debug)]
pub struct TurnRecord {
    /// Where.
    pub place: Place,
    /// The turn in the session, from 0. Recording the same turn again changes nothing; another text under its number is
    /// refused.
    pub turn: u64,
    /// The user's message.
    pub user: Text,
    /// The answer.
    pub assistant: Text,
    /// When, in milliseconds since the Unix epoch.
    pub time_ms: u64,
}

/// Something to remember by hand.
#[derive(Clone, Debug)]
pub struct Remember {
    /// Where; facts without a session belong to the project, or to the shared pool.
    pub place: Place,
    /// The fact.
    pub text: Text,
    /// Its layer: profile or relationship.
    pub layer: Layer,
    /// Whose words.
    pub author: Author,
    /// When it was said; now if none.
    pub time_ms: Option<u64>,
    /// Intimate or not; found out by rule if none.
    pub intimate: Option<bool>,
    /// How much it is worth; found out by rule if none.
    pub salience: Option<f32>,
}

/// What became of something to remember.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The item.
    pub id: ItemId,
    /// Whether it was there already, with the same text, in the same place.
    pub existed: bool,
    /// The item that it took the place of.
    pub superseded: Option<ItemId>,
    /// Where its content lies on Walrus, once stored.
    pub blob_id: Option<String>,
}

/// Which items to list.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// Where the asker stands; `everything` overrules it.
    pub place: Place,
    /// All places of the owner at once (F1: the owner sees all that is kept).
    pub everything: bool,
    /// What to list.
    pub filters: Filters,
    /// Only items that contain all these words.
    pub words: Option<Text>,
    /// Only with this consent.
    pub consent: Option<Consent>,
    /// Also archived ones.
    pub include_archived: bool,
    /// The last item of the page before.
    pub after: Option<ItemId>,
    /// Most items, at most [`MAX_PAGE`](crate::limits::MAX_PAGE).
    pub limit: usize,
}

/// A page of items, newest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The items.
    pub items: Vec<ItemView>,
    /// Where the next page begins; none at the end.
    pub next: Option<ItemId>,
}

/// What becomes of whatever else holds the words of items that are deleted, edited or denied. Whichever it is, entities that
/// nothing names any more go, and so do summaries that were made from what goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Others {
    /// It stays, and is named.
    None,
    /// Messages go that a fact was made from and that say it word for word, and so do the user's own messages in the same project
    /// that say it. Facts go that were made from a message. The rest stays, and is named.
    #[default]
    Own,
    /// It goes: answers of the assistant, other memories, and whatever says a name that goes.
    All,
}

impl Others {
    /// All of them.
    pub const ALL: &[Self] = &[Self::None, Self::Own, Self::All];

    /// Its name in requests.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Own => "own",
            Self::All => "all",
        }
    }

    /// The one with a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|others| others.name() == name)
    }
}

/// How items are deleted, edited or denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovalOptions {
    /// What becomes of whatever else holds the words.
    pub others: Others,
    /// Look in the projects of the items alone: a caller who is bound to one must learn of no other.
    pub same_project: bool,
}

/// Something else that holds the words of a removed or edited item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its id.
    pub id: ItemId,
    /// What it is.
    pub kind: Kind,
    /// Whose words.
    pub author: Author,
    /// The project it counts as in.
    pub project: Option<String>,
    /// The session it was said in.
    pub session: Option<String>,
    /// The turn in the session.
    pub turn: Option<u64>,
    /// Whether it is gone as well.
    pub deleted: bool,
}

/// What a deletion, an edit or a denial did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// How many of the named items there were.
    pub count: u64,
    /// What else held the words, at most [`MAX_HOLDERS`](crate::limits::MAX_HOLDERS): first what is left.
    pub others: Vec<Holder>,
    /// How many more there are.
    pub more: u64,
}

/// A project, session or persona with what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlaceView {
    /// Its outside name.
    pub name: String,
    /// For a session: its project.
    pub project: Option<String>,
    /// For a session: its persona.
    pub persona: Option<String>,
    /// For a forked session: its parent.
    pub parent: Option<String>,
    /// For a forked session: the turns of the parent that it sees.
    pub parent_turns: Option<u64>,
    /// Items in it.
    pub items: u64,
    /// When it began, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When it was last written to.
    pub updated_ms: u64,
    /// Bytes of text in it.
    pub bytes: u64,
}

/// The graph of a place.
#[derive(Clone, Debug, Default)]
pub struct GraphView {
    /// Nodes.
    pub nodes: Vec<ItemView>,
    /// Edges between them.
    pub edges: Vec<crate::model::Edge>,
}

/// Numbers about an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Items that are kept.
    pub items: u64,
    /// By kind.
    pub episodes: u64,
    /// By kind.
    pub facts: u64,
    /// By kind.
    pub entities: u64,
    /// By kind.
    pub summaries: u64,
    /// Edges.
    pub edges: u64,
    /// Items that wait for the user's consent.
    pub pending_consent: u64,
    /// Jobs that wait.
    pub queued_jobs: u64,
    /// Jobs that failed at least once and will be tried again.
    pub retried_jobs: u64,
    /// Extractions by a model that were given up after all tries: rules alone decided on the turn, which is kept.
    pub abandoned_jobs: u64,
    /// Items whose content is not on Walrus yet.
    pub unstored: u64,
    /// Items without a vector of the present embedder.
    pub unembedded: u64,
    /// Bytes of text.
    pub bytes: u64,
    /// Most items of an owner.
    pub max_items: u64,
    /// Whether nodes of strangers may read exchanges: the owner's own decision.
    pub extract_through_nodes: bool,
}

/// What an owner decides on how its memory is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerSettings {
    /// Whether nodes of strangers may read exchanges, to find out what to keep of them. No by default.
    pub extract_through_nodes: bool,
}

/// What an owner decided, and what follows from it at this relayer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingsView {
    /// The decisions.
    pub settings: OwnerSettings,
    /// Whether the operator offers nodes at all.
    pub nodes_offered: bool,
    /// What reads the owner's exchanges now.
    pub written_by: WrittenBy,
}

/// What finds out what to keep of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WrittenBy {
    /// Rules alone.
    Rules,
    /// Rules, and a model at the operator's endpoint.
    Endpoint,
    /// Rules, and a model on nodes of strangers.
    Nodes,
}

/// What a restore did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Items brought back from Walrus.
    pub restored: u64,
    /// Items that were here already.
    pub skipped: u64,
    /// Blobs looked at.
    pub total: u64,
    /// Blobs that could not be read or opened.
    pub failed: u64,
    /// Whether more would follow with a higher limit.
    pub truncated: bool,
}

/// What an import did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// New items.
    pub added: u64,
    /// Items that were here already.
    pub skipped: u64,
}

/// A job as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobView {
    /// Its number.
    pub job: u64,
    /// What it is about.
    pub item: Option<ItemId>,
    /// Whether it is done, running or waiting.
    pub state: JobState,
    /// How often it was tried.
    pub attempts: u32,
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Not begun, or to be tried again.
    Pending,
    /// Done.
    Done,
    /// Given up.
    Failed,
}

/// Why memory did not do what was asked, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// There is no such item, project, session or persona, or the asker may not see it.
    #[error("no such {0}")]
    NotFound(&'static str),
    /// The request breaks a limit or contradicts itself; the text says how.
    #[error("{0}")]
    Invalid(String),
    /// It contradicts what is there.
    #[error("{0}")]
    Conflict(String),
    /// The owner has as much as it may.
    #[error("this owner's memory is full: {0}")]
    Full(String),
    /// Trying again later may work.
    #[error("memory is unavailable: {0}")]
    Unavailable(String),
    /// What is stored cannot be used.
    #[error("this owner's memory is damaged: {0}")]
    Damaged(String),
    /// The database holds less than it once did; nothing is read or written until it is restored, or the loss accepted
    /// ([`Memory::accept_loss`](crate::Memory::accept_loss)).
    #[error("a part of this owner's memory is lost: {0}")]
    Lost(String),
}

/// A shorthand of this crate.
pub type Result<T, E = MemoryError> = std::result::Result<T, E>;

/// Who an export is of, with its lines.
#[derive(Clone, Debug)]
pub struct Export {
    /// Whose.
    pub owner: OwnerId,
    /// JSON lines: a header, one line for each item, and a last one with the signature over all before it.
    pub lines: Vec<Text>,
}

/// Most bytes of one item's text in a prompt: a long message is cut to what it begins with.
pub const EXCERPT_BYTES: usize = 1_200;

/// What of a text goes into a prompt (E7): its beginning, up to a sentence's end or a word's where there is one.
#[must_use]
pub fn excerpt(text: &str) -> std::borrow::Cow<'_, str> {
    if text.len() <= EXCERPT_BYTES {
        return text.into();
    }
    let start = text.get(..text.floor_char_boundary(EXCERPT_BYTES)).unwrap_or_default();
    let sentence =
        start.rfind(['.', '!', '?', '\n']).filter(|end| *end > EXCERPT_BYTES / 2).map(|end| end + 1);
    let end = sentence.or_else(|| start.rfind(' ')).unwrap_or(start.len());
    format!("{} …", start.get(..end).unwrap_or(start).trim_end()).into()
}

impl Recall {
    /// The items as a turn carries them, best first: text, and where it comes from in words (F4).
    #[must_use]
    pub fn memory_items(&self) -> Vec<MemoryItem> {
        self.hits.iter().map(|hit| hit.view.memory_item()).collect()
    }
}

impl ItemView {
    /// The item as a turn carries it.
    #[must_use]
    pub fn memory_item(&self) -> MemoryItem {
        MemoryItem { text: excerpt(&self.text).into_owned(), source: self.source(), time_ms: self.time_ms }
    }

    /// Where it comes from, in words for model and person. A node writes "from" before it: "(from the user on 7 May 2023)".
    #[must_use]
    pub fn source(&self) -> String {
        let who = match (self.author, self.kind) {
            (_, Kind::Summary) => "a summary of earlier messages up to",
            (_, Kind::Entity) => "the names known on",
            (Author::User, _) => "the user on",
            (Author::Owner, _) => "a note by the user on",
            (Author::Import, _) => "an import by the user on",
            (Author::Assistant, _) => "the assistant on",
        };
        let day = crate::dates::Day::of(self.time_ms);
        let doubt = match self.author {
            Author::Assistant if !matches!(self.kind, Kind::Summary | Kind::Entity) => {
                ", not confirmed by the user"
            }
            _ => "",
        };
        let ended = if self.valid_to_ms.is_some() { ", no longer true" } else { "" };
        format!("{who} {day}{doubt}{ended}")
    }
}
