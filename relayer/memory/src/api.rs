//! Requests to [`Memory`](crate::Memory) and their replies. They carry outside names only: internal ids never
//! leave.

use baton_proto::memory::MemoryItem;
use serde::{Deserialize, Serialize, Serializer};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    ids::ItemId,
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

/// A match that was left out.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Dropped)]
pub struct DroppedMatch {
    /// Id of the item.
    #[schema(value_type = String)]
    pub id: ItemId,
    /// Its score.
    pub score: f32,
    /// `threshold`, `limit`, `budget` or `duplicate`.
    #[schema(value_type = String)]
    pub reason: DropReason,
}

/// The result of a recall (F6).
#[derive(Clone, Debug, PartialEq)]
pub struct Recall {
    /// Best first.
    pub hits: Vec<Hit>,
    /// Matches that were dropped, best first, at most [`MAX_DROPPED`](crate::limits::MAX_DROPPED).
    pub dropped: Vec<DroppedMatch>,
    /// The kind of search.
    pub mode: RecallMode,
    /// Why the search was not a full one, in words for the user; `None` for a full search.
    pub degraded: Option<String>,
    /// Time taken, in microseconds.
    pub took_us: u64,
}

/// An item as its owner sees it.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Item)]
pub struct ItemView {
    /// 32 hex characters.
    #[schema(value_type = String)]
    pub id: ItemId,
    /// `episode`, `fact`, `entity` or `summary`.
    #[schema(value_type = String)]
    pub kind: Kind,
    /// `profile`, `relationship` or `episode`.
    #[schema(value_type = String)]
    pub layer: Layer,
    /// `system`, `user`, `assistant` or `summary`.
    #[schema(value_type = String)]
    pub role: Role,
    /// The text.
    #[schema(value_type = String)]
    pub text: Text,
    /// Project that the item counts towards; null for the shared pool.
    pub project: Option<String>,
    /// Session in which it was said.
    pub session: Option<String>,
    /// Turn in the session, from 0.
    pub turn: Option<u64>,
    /// Persona that shared it; null for the default persona.
    pub persona: Option<String>,
    /// Author of the words: `user`, `assistant`, `owner` or `import`.
    #[schema(value_type = String)]
    pub author: Author,
    /// When it was said, RFC 3339.
    #[serde(rename = "time", serialize_with = "as_rfc3339")]
    #[schema(value_type = String)]
    pub time_ms: u64,
    /// Start of validity, RFC 3339.
    #[serde(rename = "valid_from", serialize_with = "as_rfc3339")]
    #[schema(value_type = String)]
    pub valid_from_ms: u64,
    /// End of validity, RFC 3339; null while the item is valid.
    #[serde(rename = "valid_to", serialize_with = "as_rfc3339")]
    #[schema(value_type = Option<String>)]
    pub valid_to_ms: Option<u64>,
    /// Id of the item that replaced it.
    #[schema(value_type = Option<String>)]
    pub superseded_by: Option<ItemId>,
    /// `granted` or `pending`.
    #[schema(value_type = String)]
    pub consent: Consent,
    /// Whether only scopes that include intimate items show it.
    pub intimate: bool,
    /// Importance, 0 to 1.
    pub salience: f32,
    /// Whether it is archived: kept, but not recalled.
    pub archived: bool,
    /// Id of the Walrus blob or quilt patch with its content; empty until stored.
    #[serde(serialize_with = "as_text_or_empty")]
    #[schema(value_type = String)]
    pub blob_id: Option<String>,
    /// Number of times its text was repeated.
    pub accesses: u64,
    /// Ids of the items that it was derived from.
    #[schema(value_type = Vec<String>)]
    pub sources: Vec<ItemId>,
}

/// A time as RFC 3339 writes it, `2026-11-21T23:14:00.000Z`, from milliseconds since the Unix epoch. Years beyond 9999
/// are shown as the last moment of 9999.
#[must_use]
pub fn rfc3339(ms: u64) -> String {
    let ms = ms.min(LAST_MS);
    let seconds = i64::try_from(ms / 1_000).unwrap_or_default();
    let time = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second) = time.to_hms();
    let (month, milli) = (u8::from(month), ms % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// The last millisecond of the year 9999, which RFC 3339 can write.
const LAST_MS: u64 = 253_402_300_799_999;

fn as_rfc3339<S: Serializer>(ms: &(impl Copy + Into<Option<u64>>), serializer: S) -> Result<S::Ok, S::Error> {
    (*ms).into().map(rfc3339).serialize(serializer)
}

fn as_text_or_empty<S: Serializer>(text: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text.as_deref().unwrap_or_default())
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
    /// When it was said; `None` for now.
    pub time_ms: Option<u64>,
    /// Whether it is intimate; `None` lets the rules decide.
    pub intimate: Option<bool>,
    /// Its worth; `None` lets the rules decide.
    pub salience: Option<f32>,
}

impl RememberRequest {
    /// A fact of the profile, said now; the rules decide the rest.
    #[must_use]
    pub fn new(place: Place, text: impl Into<Text>) -> Self {
        let (text, layer) = (text.into(), Layer::Profile);
        Self { place, text, layer, time_ms: None, intimate: None, salience: None }
    }
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

/// A page of items.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = ItemPage)]
pub struct Page {
    /// Items, newest first.
    pub items: Vec<ItemView>,
    /// Value of `after` for the next page; null at the end.
    #[schema(value_type = Option<String>)]
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

/// Another item with the words, or a name deleted with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = HolderJson)]
pub struct Holder {
    /// 32 hex characters.
    #[schema(value_type = String)]
    pub id: ItemId,
    /// `episode` (a message), `fact`, `entity` or `summary`.
    #[schema(value_type = String)]
    pub kind: Kind,
    /// Author of the words: `user`, `assistant`, `owner` or `import`.
    #[schema(value_type = String)]
    pub author: Author,
    /// Its project; null for the shared pool.
    pub project: Option<String>,
    /// Its session.
    pub session: Option<String>,
    /// Turn in the session, from 0.
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

/// A project, session or persona.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = PlaceJson)]
pub struct PlaceView {
    /// Its name.
    pub name: String,
    /// Project of a session.
    pub project: Option<String>,
    /// Persona of a session.
    pub persona: Option<String>,
    /// Parent session of a fork.
    pub parent: Option<String>,
    /// Number of parent turns that a fork sees.
    pub parent_turns: Option<u64>,
    /// Number of items in it.
    pub items: u64,
    /// Bytes of text in it.
    pub bytes: u64,
    /// Creation time, RFC 3339.
    #[serde(rename = "created", serialize_with = "as_rfc3339")]
    #[schema(value_type = String)]
    pub created_ms: u64,
    /// Time of the last write, RFC 3339.
    #[serde(rename = "updated", serialize_with = "as_rfc3339")]
    #[schema(value_type = String)]
    pub updated_ms: u64,
}

/// The graph of a place.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = Graph)]
pub struct GraphView {
    /// Entities, facts and summaries.
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

/// The owner's settings, and their effect here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = SettingsJson)]
pub struct SettingsView {
    /// Whether the owner allows it. Default: false.
    pub extract_through_nodes: bool,
    /// Whether this relayer's operator offers nodes.
    pub nodes_offered: bool,
    /// Current extractor of memories: `rules`, `endpoint` (rules and the operator's model) or `nodes` (rules
    /// and a model on third-party nodes).
    #[schema(value_type = String)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ImportedJson)]
pub struct ImportReport {
    /// New items.
    pub added: u64,
    /// Items that were here already.
    pub skipped: u64,
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
