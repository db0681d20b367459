//! Request and answer formats that several routes share.

use baton_memory::{
    api::{DroppedMatch, Filters, Hit, ItemView, PlaceView, Recall, RecallMode},
    ids::ItemId,
    model::{Author, Kind, Layer},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ApiError, limits::MAX_FILTER_NAMES};
use crate::{auth::Caller, delegation::Scope, time};

/// A created or changed item: whole if the key may read it, otherwise its id alone.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum ChangedItem {
    /// The item.
    Whole(Box<ItemView>),
    /// Its id, 32 hex characters.
    Id {
        /// Id of the new item, or of the item in the request.
        id: String,
    },
}

impl ChangedItem {
    pub(super) fn of(caller: &Caller, view: ItemView) -> Self {
        match caller.is_shown(&view) {
            true => Self::Whole(Box::new(view)),
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
    pub(crate) item: ItemView,
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
        let (distance, created_at) = (distance(&hit), time::format(hit.view.time_ms));
        Self { distance, score: hit.score, similarity: hit.similarity, item: hit.view, created_at }
    }
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
        Self {
            total: recall.hits.len(),
            results: recall.hits.into_iter().map(RecallHit::from).collect(),
            dropped: recall.dropped,
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

/// A created or changed place: whole if the key may read, otherwise its name alone.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum ChangedPlace {
    /// The place.
    Whole(Box<PlaceView>),
    /// Its name.
    Name {
        /// Name in the request.
        name: String,
    },
}

impl ChangedPlace {
    pub(super) fn of(caller: &Caller, view: PlaceView) -> Self {
        match caller.may(Scope::Read) {
            true => Self::Whole(Box::new(view)),
            false => Self::Name { name: view.name },
        }
    }
}

/// The number of changed objects.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(super) struct Count {
    /// Number of objects.
    pub(crate) count: u64,
}
