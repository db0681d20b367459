//! Request and answer formats that several routes share.

use baton_memory::{
    api::{DropReason, Filters, Hit, ItemView, PlaceView, Recall, RecallMode},
    ids::ItemId,
    model::{Author, Edge, Kind, Layer},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ApiError, limits::MAX_FILTER_NAMES};
use crate::{auth::Caller, delegation::Scope, time};

/// A memory item.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Item {
    /// 32 hex characters.
    pub(crate) id: String,
    /// `episode`, `fact`, `entity` or `summary`.
    pub(crate) kind: String,
    /// `profile`, `relationship` or `episode`.
    pub(crate) layer: String,
    /// `system`, `user`, `assistant` or `summary`.
    pub(crate) role: String,
    /// The text.
    pub(crate) text: String,
    /// Project that the item counts towards; null for the shared pool.
    pub(crate) project: Option<String>,
    /// Session in which it was said.
    pub(crate) session: Option<String>,
    /// Turn in the session, from 0.
    pub(crate) turn: Option<u64>,
    /// Persona that shared it; null for the default persona.
    pub(crate) persona: Option<String>,
    /// Author of the words: `user`, `assistant`, `owner` or `import`.
    pub(crate) author: String,
    /// When it was said, RFC 3339.
    pub(crate) time: String,
    /// Start of validity, RFC 3339.
    pub(crate) valid_from: String,
    /// End of validity, RFC 3339; null while the item is valid.
    pub(crate) valid_to: Option<String>,
    /// Id of the item that replaced it.
    pub(crate) superseded_by: Option<String>,
    /// `granted` or `pending`.
    pub(crate) consent: String,
    /// Whether only scopes that include intimate items show it.
    pub(crate) intimate: bool,
    /// Importance, 0 to 1.
    pub(crate) salience: f32,
    /// Whether it is archived: kept, but not recalled.
    pub(crate) archived: bool,
    /// Id of the Walrus blob or quilt patch with its content; empty until stored.
    pub(crate) blob_id: String,
    /// Number of times its text was repeated.
    pub(crate) accesses: u64,
    /// Ids of the items that it was derived from.
    pub(crate) sources: Vec<String>,
}

impl From<ItemView> for Item {
    fn from(mut view: ItemView) -> Self {
        Self {
            id: view.id.to_string(),
            kind: view.kind.name().to_owned(),
            layer: view.layer.name().to_owned(),
            role: view.role.name().to_owned(),
            text: std::mem::take(&mut view.text.0),
            project: view.project,
            session: view.session,
            turn: view.turn,
            persona: view.persona,
            author: view.author.name().to_owned(),
            time: time::format(view.time_ms),
            valid_from: time::format(view.valid_from_ms),
            valid_to: view.valid_to_ms.map(time::format),
            superseded_by: view.superseded_by.map(|id| id.to_string()),
            consent: view.consent.name().to_owned(),
            intimate: view.intimate,
            salience: view.salience,
            archived: view.archived,
            blob_id: view.blob_id.unwrap_or_default(),
            accesses: view.accesses,
            sources: view.sources.iter().map(ToString::to_string).collect(),
        }
    }
}

/// A created or changed item: whole if the key may read it, otherwise its id alone.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum ChangedItem {
    /// The item.
    Whole(Box<Item>),
    /// Its id, 32 hex characters.
    Id {
        /// Id of the new item, or of the item in the request.
        id: String,
    },
}

impl ChangedItem {
    pub(super) fn of(caller: &Caller, view: ItemView) -> Self {
        match caller.is_shown(&view) {
            true => Self::Whole(Box::new(view.into())),
            false => Self::Id { id: view.id.to_string() },
        }
    }
}

/// An item found by a recall.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Found)]
pub(super) struct RecallHit {
    /// The item.
    #[serde(flatten)]
    pub(crate) item: Item,
    /// Score that orders the results, 0 to 1.
    pub(crate) score: f32,
    /// Cosine similarity with the query, if both have vectors.
    pub(crate) similarity: Option<f32>,
    /// 1 - similarity, or 1 - score without vectors.
    pub(crate) distance: f32,
    /// When it was said, as `time`: the SDK's name.
    pub(crate) created_at: String,
}

/// The distance of a hit from its query: 1 - similarity, or 1 - score without vectors.
pub(super) fn distance(hit: &Hit) -> f32 {
    1.0 - hit.similarity.unwrap_or(hit.score)
}

impl From<Hit> for RecallHit {
    fn from(hit: Hit) -> Self {
        let (distance, item) = (distance(&hit), Item::from(hit.view));
        let created_at = item.time.clone();
        Self { distance, score: hit.score, similarity: hit.similarity, item, created_at }
    }
}

/// A match that was left out.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Dropped)]
pub(super) struct DroppedMatch {
    /// The item.
    id: String,
    /// Its score.
    score: f32,
    /// `threshold`, `limit`, `budget` or `duplicate`.
    #[schema(value_type = String)]
    reason: DropReason,
}

/// The result of a recall.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct RecallAnswer {
    /// Memories, best first; may be empty.
    results: Vec<RecallHit>,
    /// Number of results.
    total: usize,
    /// Matches that were left out, best first.
    dropped: Vec<DroppedMatch>,
    /// Number of unreadable memories: always 0, since all are here.
    dropped_count: u64,
    /// Kind of search: `full`, `lexical` (words only) or `none`.
    #[schema(value_type = String)]
    mode: RecallMode,
    /// Reason for a search that was not full.
    degraded: Option<String>,
    /// Duration, in microseconds.
    took_us: u64,
}

impl From<Recall> for RecallAnswer {
    fn from(recall: Recall) -> Self {
        let dropped = |(id, score, reason): (ItemId, f32, DropReason)| DroppedMatch {
            id: id.to_string(),
            score,
            reason,
        };
        Self {
            total: recall.hits.len(),
            results: recall.hits.into_iter().map(RecallHit::from).collect(),
            dropped: recall.dropped.into_iter().map(dropped).collect(),
            dropped_count: 0,
            mode: recall.mode,
            degraded: recall.degraded,
            took_us: recall.took_us,
        }
    }
}

/// Filters of items. An omitted list or time does not filter.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FilterInput {
    /// Kinds to include: `episode`, `fact`, `entity`, `summary`.
    #[schema(value_type = Vec<String>)]
    pub(crate) kinds: Vec<Kind>,
    /// Layers to include: `profile`, `relationship`, `episode`.
    #[schema(value_type = Vec<String>)]
    pub(crate) layers: Vec<Layer>,
    /// Authors to include: `user`, `assistant`, `owner`, `import`.
    #[schema(value_type = Vec<String>)]
    pub(crate) authors: Vec<Author>,
    /// Only items said at or after this time, RFC 3339.
    #[serde(deserialize_with = "time::optional")]
    #[schema(value_type = Option<String>)]
    pub(crate) from: Option<u64>,
    /// Only items said before this time, RFC 3339.
    #[serde(deserialize_with = "time::optional")]
    #[schema(value_type = Option<String>)]
    pub(crate) before: Option<u64>,
    /// Whether to include items that are no longer valid.
    pub(crate) history: bool,
    /// Session to exclude.
    pub(crate) not_session: Option<String>,
}

impl FilterInput {
    /// Its form in memory.
    pub(super) fn read(self) -> Result<Filters, ApiError> {
        if self.kinds.len().max(self.layers.len()).max(self.authors.len()) > MAX_FILTER_NAMES {
            return Err(ApiError::bad(format!("a list of `filters` has at most {MAX_FILTER_NAMES} names")));
        }
        Ok(Filters {
            kinds: self.kinds,
            layers: self.layers,
            authors: self.authors,
            from_ms: self.from,
            before_ms: self.before,
            include_ended: self.history,
            not_session: super::extract::checked("session", self.not_session)?,
            // The caller's grant decides; see `Caller::filters`.
            without_intimate: true,
        })
    }
}

/// An item's id.
pub(super) fn item_id(text: &str) -> Result<ItemId, ApiError> {
    text.parse().map_err(|_| ApiError::missing("item").hinting("an item's id has 32 hex characters"))
}

/// A project, session or persona.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct PlaceJson {
    /// Its name.
    pub(crate) name: String,
    /// Project of a session.
    pub(crate) project: Option<String>,
    /// Persona of a session.
    pub(crate) persona: Option<String>,
    /// Parent session of a fork.
    pub(crate) parent: Option<String>,
    /// Number of parent turns that a fork sees.
    pub(crate) parent_turns: Option<u64>,
    /// Number of items in it.
    pub(crate) items: u64,
    /// Bytes of text in it.
    pub(crate) bytes: u64,
    /// Creation time, RFC 3339.
    pub(crate) created: String,
    /// Time of the last write, RFC 3339.
    pub(crate) updated: String,
}

impl From<PlaceView> for PlaceJson {
    fn from(view: PlaceView) -> Self {
        Self {
            name: view.name,
            project: view.project,
            persona: view.persona,
            parent: view.parent,
            parent_turns: view.parent_turns,
            items: view.items,
            bytes: view.bytes,
            created: time::format(view.created_ms),
            updated: time::format(view.updated_ms),
        }
    }
}

/// A created or changed place: whole if the key may read, otherwise its name alone.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum ChangedPlace {
    /// The place.
    Whole(Box<PlaceJson>),
    /// Its name.
    Name {
        /// Name in the request.
        name: String,
    },
}

impl ChangedPlace {
    pub(super) fn of(caller: &Caller, view: PlaceView) -> Self {
        match caller.may(Scope::Read) {
            true => Self::Whole(Box::new(view.into())),
            false => Self::Name { name: view.name },
        }
    }
}

/// A typed edge between two items.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct EdgeJson {
    /// Id of the source item.
    pub(crate) from: String,
    /// Id of the target item.
    pub(crate) to: String,
    /// Type, in snake case.
    pub(crate) label: String,
    /// Meaning here, in words.
    pub(crate) description: String,
    /// Words that it was extracted from.
    pub(crate) evidence: String,
    /// Confidence, 0 to 1.
    pub(crate) confidence: f32,
}

impl From<Edge> for EdgeJson {
    fn from(mut edge: Edge) -> Self {
        Self {
            from: edge.from.to_string(),
            to: edge.to.to_string(),
            label: edge.label,
            description: std::mem::take(&mut edge.description.0),
            evidence: std::mem::take(&mut edge.evidence.0),
            confidence: edge.confidence,
        }
    }
}

/// The number of changed objects.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(super) struct Count {
    /// Number of objects.
    pub(crate) count: u64,
}
