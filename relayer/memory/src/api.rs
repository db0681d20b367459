//! Requests to [`Memory`](crate::Memory) and their replies. They carry outside names only: internal ids never
//! leave.

use baton_proto::memory::MemoryItem;
use serde::{Deserialize, Serialize};

use crate::{
    ids::{ItemId, OwnerId},
    model::{Author, Consent, Kind, Layer, MemoryScope, Role, Text, wire_enum},
    search::Weights,
};

/// The place that a request comes from. The server resolves it to internal ids for each request; a place that
/// does not resolve sees nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The session, by its outside name (at most [`MAX_NAME_BYTES`](crate::limits::MAX_NAME_BYTES)).
    pub session: Option<String>,
    /// The project that the request claims. A known session keeps its own project, and another claim sees
    /// nothing. A new session is created in this project before its first recall (B10).
    pub project: Option<String>,
    /// The persona that the request claims. A known session keeps its own persona, and another claim sees
    /// nothing. `None` means the session's persona, or the default one without a session.
    pub persona: Option<String>,
}

/// Limits on the items that a recall may return.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filters {
    /// Only these kinds; empty for all.
    pub kinds: Vec<Kind>,
    /// Only these layers; empty for all.
    pub layers: Vec<Layer>,
    /// Only items by these authors; empty for all.
    pub authors: Vec<Author>,
    /// Only items said at or after this time.
    pub from_ms: Option<u64>,
    /// Only items said before this time.
    pub before_ms: Option<u64>,
    /// Also items whose validity has ended (history).
    pub include_ended: bool,
    /// Nothing from this session: its words are in the window of the conversation already.
    pub not_session: Option<String>,
    /// Nothing intimate, whatever the scope says: the caller was not granted it.
    pub without_intimate: bool,
}

/// A recall.
#[derive(Clone, Debug, Default)]
pub struct RecallRequest {
    /// The caller's place.
    pub place: Place,
    /// The part of memory that the caller may see.
    pub scope: MemoryScope,
    /// The user's words.
    pub query: Text,
    /// Most items.
    pub limit: usize,
    /// Least score, 0 to 1; "no match" is a valid answer.
    pub threshold: Option<f32>,
    /// Most tokens of all items together; none for no budget.
    pub budget_tokens: Option<u32>,
    /// The items that may be returned.
    pub filters: Filters,
    /// Weights of relevance, recency and importance; `None` for relevance alone.
    pub weights: Option<Weights>,
}

/// The kind of search that a recall did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecallMode {
    /// By words and by meaning.
    Full,
    /// By words alone: the embedder did not answer in time, or lags behind.
    Lexical,
    /// No search: the scope is `none`, the place sees nothing, or the deadline ran out.
    None,
}

/// An item that a recall found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// The item.
    pub view: ItemView,
    /// 0 to 1; the order of the hits.
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

/// The result of a recall (F6).
#[derive(Clone, Debug, PartialEq)]
pub struct Recall {
    /// Best first.
    pub hits: Vec<Hit>,
    /// Matches that were dropped, best first, at most [`MAX_DROPPED`](crate::limits::MAX_DROPPED).
    pub dropped: Vec<(ItemId, f32, DropReason)>,
    /// The kind of search.
    pub mode: RecallMode,
    /// Why the search was not a full one, in words for the user; `None` for a full search.
    pub degraded: Option<String>,
    /// Time taken, in microseconds.
    pub took_us: u64,
}

/// An item as its owner sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemView {
    /// Its id.
    pub id: ItemId,
    /// Its kind.
    pub kind: Kind,
    /// Its layer: who may know it.
    pub layer: Layer,
    /// Role of the message.
    pub role: Role,
    /// The text.
    pub text: Text,
    /// The project that it counts towards now.
    pub project: Option<String>,
    /// The session it was said in.
    pub session: Option<String>,
    /// The turn in the session.
    pub turn: Option<u64>,
    /// The persona that shared it; `None` for the default persona.
    pub persona: Option<String>,
    /// Whose words.
    pub author: Author,
    /// When it was said, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// From when it holds.
    pub valid_from_ms: u64,
    /// Until when it held; `None` while it holds.
    pub valid_to_ms: Option<u64>,
    /// The item that replaced it.
    pub superseded_by: Option<ItemId>,
    /// Whether the user agreed.
    pub consent: Consent,
    /// Whether it is intimate.
    pub intimate: bool,
    /// Its worth, 0 to 1.
    pub salience: f32,
    /// Whether it is archived: kept, not recalled.
    pub archived: bool,
    /// The Walrus blob or quilt patch of its content, once stored.
    pub blob_id: Option<String>,
    /// How often its text was repeated.
    pub accesses: u64,
    /// The items that it was derived from.
    pub sources: Vec<ItemId>,
}

/// Both sides of one exchange (C10), word for word.
#[derive(Clone, Debug)]
pub struct TurnRecord {
    /// The place of the exchange.
    pub place: Place,
    /// The turn in the session, from 0. Recording the same turn again changes nothing; another text under the
    /// same number is refused.
    pub turn: u64,
    /// The user's message.
    pub user: Text,
    /// The answer.
    pub assistant: Text,
    /// When, in milliseconds since the Unix epoch.
    pub time_ms: u64,
}

/// A memory that is written by hand.
#[derive(Clone, Debug)]
pub struct RememberRequest {
    /// The place. Without a session, the fact belongs to the project or to the shared pool.
    pub place: Place,
    /// The fact.
    pub text: Text,
    /// Its layer: profile or relationship.
    pub layer: Layer,
    /// Whose words.
    pub author: Author,
    /// When it was said; `None` for now.
    pub time_ms: Option<u64>,
    /// Whether it is intimate; `None` lets the rules decide.
    pub intimate: Option<bool>,
    /// Its worth; `None` lets the rules decide.
    pub salience: Option<f32>,
}

/// The result of a [`RememberRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RememberOutcome {
    /// The item.
    pub id: ItemId,
    /// Whether the same text was in the same place already.
    pub existed: bool,
    /// The item that it replaced.
    pub superseded: Option<ItemId>,
    /// The Walrus id of its content, once stored.
    pub blob_id: Option<String>,
}

/// A request for a page of items.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// The caller's place; `everything` overrides it.
    pub place: Place,
    /// All places of the owner at once (F1: the owner sees all that is kept).
    pub everything: bool,
    /// The items to list.
    pub filters: Filters,
    /// Only items that contain all these words.
    pub words: Option<Text>,
    /// Only items whose id begins with this text.
    pub id_prefix: Option<String>,
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
    /// The cursor of the next page; `None` at the end.
    pub next: Option<ItemId>,
}

wire_enum! {
    /// The fate of other items that hold the words of deleted, edited or denied items. In each case, entities
    /// that no item names any more are deleted. Summaries of deleted items are deleted too.
    #[derive(Default)]
    Others {
        /// They stay, and the answer names them.
        None = "none",
        /// Deletes messages that say a fact word for word: its source messages and the user's own messages in the
        /// same project. For a message, deletes the facts that were made from it. The rest stays, and the answer
        /// names it.
        #[default]
        Own = "own",
        /// All are deleted: the assistant's answers, other memories, and every item that says a deleted name.
        All = "all",
    }
}

/// Options of a deletion, an edit or a denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovalOptions {
    /// The fate of other items that hold the words.
    pub others: Others,
    /// Search the items' own projects alone: a caller that is bound to a project must learn of no other.
    pub same_project: bool,
}

/// Another item that holds the words of a removed or edited item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its id.
    pub id: ItemId,
    /// Its kind.
    pub kind: Kind,
    /// Whose words.
    pub author: Author,
    /// The project that it counts towards.
    pub project: Option<String>,
    /// The session it was said in.
    pub session: Option<String>,
    /// The turn in the session.
    pub turn: Option<u64>,
    /// Whether it was deleted as well.
    pub deleted: bool,
}

/// The result of a deletion, an edit or a denial.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// How many of the named items existed.
    pub count: u64,
    /// Other holders of the words, at most [`MAX_HOLDERS`](crate::limits::MAX_HOLDERS): remaining ones first.
    pub others: Vec<Holder>,
    /// How many more holders there are.
    pub more: u64,
}

/// A project, session or persona with its counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlaceView {
    /// Its outside name.
    pub name: String,
    /// For a session: its project.
    pub project: Option<String>,
    /// For a session: its persona.
    pub persona: Option<String>,
    /// For a forked session: its parent.
    pub parent: Option<String>,
    /// For a forked session: the visible turns of the parent.
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

/// Counts for one owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// All items.
    pub items: u64,
    /// Items that are episodes.
    pub episodes: u64,
    /// Items that are facts.
    pub facts: u64,
    /// Items that are entities.
    pub entities: u64,
    /// Items that are summaries.
    pub summaries: u64,
    /// Edges.
    pub edges: u64,
    /// Items that wait for the user's consent.
    pub pending_consent: u64,
    /// Jobs that wait.
    pub queued_jobs: u64,
    /// Jobs that failed at least once and will be retried.
    pub retried_jobs: u64,
    /// Model extractions that were abandoned after all tries. The turn is kept; rules alone decided on it.
    pub abandoned_jobs: u64,
    /// Items whose content is not on Walrus yet.
    pub unstored: u64,
    /// Items without a vector from the current embedder.
    pub unembedded: u64,
    /// Bytes of text.
    pub bytes: u64,
    /// The owner's limit on items.
    pub max_items: u64,
    /// Whether third-party nodes may read exchanges: the owner's own decision.
    pub extract_through_nodes: bool,
}

/// An owner's decisions on how its memory is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerSettings {
    /// Whether third-party nodes may read exchanges, to extract facts from them. No by default.
    pub extract_through_nodes: bool,
}

/// An owner's decisions, and their effect at this relayer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingsView {
    /// The decisions.
    pub settings: OwnerSettings,
    /// Whether the operator offers nodes at all.
    pub nodes_offered: bool,
    /// The reader of the owner's exchanges now.
    pub written_by: WrittenBy,
}

/// The part of the system that extracts facts from an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WrittenBy {
    /// Rules alone.
    Rules,
    /// Rules, and a model at the operator's endpoint.
    Endpoint,
    /// Rules, and a model on third-party nodes.
    Nodes,
}

/// The result of a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Items brought back from Walrus.
    pub restored: u64,
    /// Items that were here already.
    pub skipped: u64,
    /// Blobs that were checked.
    pub total: u64,
    /// Blobs that could not be read or opened.
    pub failed: u64,
    /// Whether a higher limit would restore more.
    pub truncated: bool,
}

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ImportReport {
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
    /// The item that it works on.
    pub item: ItemId,
    /// Whether it is done; otherwise it is tried again until it is.
    pub is_done: bool,
}

/// Why a request failed; one variant for each reaction of the caller.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// No such item, project, session or persona exists, or the caller may not see it.
    #[error("no such {0}")]
    NotFound(&'static str),
    /// The request breaks a limit or contradicts itself; the text says how.
    #[error("{0}")]
    Invalid(String),
    /// It contradicts existing data.
    #[error("{0}")]
    Conflict(String),
    /// The owner has reached its limit.
    #[error("this owner's memory is full: {0}")]
    Full(String),
    /// A later try may succeed.
    #[error("memory is unavailable: {0}")]
    Unavailable(String),
    /// Stored data is unusable.
    #[error("this owner's memory is damaged: {0}")]
    Damaged(String),
    /// The database holds less than before. Nothing is read or written until the database is restored, or the
    /// loss accepted ([`Memory::accept_loss`](crate::Memory::accept_loss)).
    #[error("a part of this owner's memory is lost: {0}")]
    Lost(String),
}

/// A result with this crate's error.
pub type Result<T, E = MemoryError> = std::result::Result<T, E>;

/// An export with its owner.
#[derive(Clone, Debug)]
pub struct Export {
    /// The owner.
    pub owner: OwnerId,
    /// JSON lines: a header, one line for each item, and a signature line over all lines before it.
    pub lines: Vec<Text>,
}

/// Most bytes of one item's text in a prompt: a long message is cut to its beginning.
pub const EXCERPT_BYTES: usize = 1_200;

/// The part of a text that goes into a prompt (E7): its beginning, cut at the end of a sentence or word if
/// possible.
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
    /// The items as a turn carries them, best first: text, and source in words (F4).
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

    /// Its source, in words for the model and the user. A node writes "from" before it: "(from the user on 7
    /// May 2023)".
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
