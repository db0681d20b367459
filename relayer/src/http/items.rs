//! Baton's own routes for items: recall, remember, turns, list, get, edit, supersede, archive, delete,
//! consent. Search terms are in bodies, never in URLs, which other programs log.

use axum::{Json, extract::State};
use baton_memory::{
    api::{Filters, ListRequest, RecallRequest, RememberRequest, TurnRecord},
    ids::ItemId,
    limits::{MAX_PAGE, MAX_QUERY_BYTES},
    model::{Author, Consent, MemoryScope},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    ApiError, ApiErrorJson, AppState, Input, Reader, Writer,
    extract::{Params, PathName, scope_named},
    limits::{MAX_FACTS, MAX_IDS},
    removal::{self, EditAnswer, OthersQuery, RemovalAnswer},
    shapes::{ChangedItem, Count, FilterInput, Item, RecallAnswer, consent_named, item_id, layer_named},
};
use crate::{auth::Caller, delegation::Scope, time};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(recall))
        .routes(routes!(remember))
        .routes(routes!(record_turn))
        .routes(routes!(list))
        .routes(routes!(get, edit, delete_one))
        .routes(routes!(supersede))
        .routes(routes!(archive))
        .routes(routes!(delete))
        .routes(routes!(waiting, decide))
}

/// A recall request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RecallInput {
    /// The user's words.
    query: String,
    /// Project. Default: the shared pool.
    project: Option<String>,
    /// Session that asks; its own project applies.
    session: Option<String>,
    /// Persona that asks. Default: the session's persona; any other sees nothing.
    persona: Option<String>,
    /// `full`, `neutral_and_relationship` (default), `relationship_only`, `neutral_only`, `insights_only` or
    /// `none`.
    memory_scope: Option<String>,
    /// Most hits, up to 200. Default: 6.
    limit: Option<usize>,
    /// Minimum score, 0 to 1.
    threshold: Option<f32>,
    /// Most tokens of all hits together.
    budget_tokens: Option<u32>,
    #[serde(default)]
    filters: FilterInput,
}

/// Default number of items of a recall: a good number for a prompt.
const DEFAULT_HITS: usize = 6;

/// Finds memories, with scores and the matches that were left out.
#[utoipa::path(post, path = "/v1/memory/recall", tag = "memory", request_body = RecallInput,
    responses((status = 200, body = RecallAnswer), (status = 400, body = ApiErrorJson)))]
async fn recall(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Input(input): Input<RecallInput>,
) -> Result<Json<RecallAnswer>, ApiError> {
    if input.query.len() > MAX_QUERY_BYTES {
        return Err(ApiError::bad(format!("a query has at most {MAX_QUERY_BYTES} bytes")));
    }
    if input.threshold.is_some_and(|least| !(0.0..=1.0).contains(&least)) {
        return Err(ApiError::bad("`threshold` is from 0 to 1"));
    }
    let request = RecallRequest {
        place: caller.place(input.project, input.session, input.persona)?,
        scope: scope_named(input.memory_scope.as_deref(), MemoryScope::NeutralAndRelationship)?,
        query: input.query.into(),
        limit: input.limit.unwrap_or(DEFAULT_HITS).min(MAX_PAGE),
        threshold: input.threshold,
        budget_tokens: input.budget_tokens,
        filters: caller.filters(input.filters.read()?),
        weights: None,
    };
    Ok(Json(app.memory().recall(caller.owner, request).await.into()))
}

/// A fact to remember.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct FactInput {
    text: String,
    project: Option<String>,
    /// Session that the fact comes from.
    session: Option<String>,
    persona: Option<String>,
    /// `profile` (default) or `relationship`.
    layer: Option<String>,
    /// When it was said, RFC 3339. Default: now.
    #[serde(default, deserialize_with = "time::optional")]
    #[schema(value_type = Option<String>)]
    time: Option<u64>,
    /// Whether the fact is intimate. Default: decided by rules.
    intimate: Option<bool>,
    /// Importance, 0 to 1. Default: decided by rules.
    salience: Option<f32>,
    /// At most 256 bytes. A repeated call with the same key takes effect once; another text is refused.
    idempotency_key: Option<String>,
}

impl FactInput {
    fn read(self, caller: &Caller) -> Result<(RememberRequest, Option<String>), ApiError> {
        if self.text.trim().is_empty() {
            return Err(ApiError::bad("`text` is empty"));
        }
        if self.salience.is_some_and(|salience| !(0.0..=1.0).contains(&salience)) {
            return Err(ApiError::bad("`salience` is from 0 to 1"));
        }
        let fact = RememberRequest {
            place: caller.place(self.project, self.session, self.persona)?,
            text: self.text.into(),
            layer: layer_named(self.layer.as_deref())?,
            author: Author::Owner,
            time_ms: self.time,
            intimate: self.intimate,
            salience: self.salience,
        };
        Ok((fact, self.idempotency_key))
    }
}

/// Facts to remember, all or none.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RememberInput {
    /// 1 to 100 facts.
    facts: Vec<FactInput>,
}

/// The result for one fact.
#[derive(Debug, Serialize, ToSchema)]
struct RememberedJson {
    id: String,
    /// Whether it existed already; null for a write-only key.
    existed: Option<bool>,
    /// Id of the replaced item; null for a write-only key.
    superseded: Option<String>,
    /// Walrus id of its content, once stored; null for a write-only key.
    blob_id: Option<String>,
}

/// The results, in the order of the facts.
#[derive(Debug, Serialize, ToSchema)]
struct RememberedAnswer {
    remembered: Vec<RememberedJson>,
}

/// Remembers facts; they are durable and searchable once the request is answered.
#[utoipa::path(post, path = "/v1/memory/remember", tag = "memory", request_body = RememberInput,
    responses((status = 200, body = RememberedAnswer), (status = 400, body = ApiErrorJson), (status = 409, body = ApiErrorJson)))]
async fn remember(
    State(app): State<AppState>,
    Writer(caller): Writer,
    Input(input): Input<RememberInput>,
) -> Result<Json<RememberedAnswer>, ApiError> {
    if input.facts.is_empty() || input.facts.len() > MAX_FACTS {
        return Err(ApiError::bad(format!("1 to {MAX_FACTS} facts at a time")));
    }
    let facts = input.facts.into_iter().map(|fact| fact.read(&caller)).collect::<Result<Vec<_>, _>>()?;
    let remembered = app.memory().remember_once(caller.owner, facts).await?;
    // Otherwise a write-only key could probe for existing facts.
    let reads = caller.may(Scope::Read);
    let shape = |one: baton_memory::api::RememberOutcome| RememberedJson {
        id: one.id.to_string(),
        existed: reads.then_some(one.existed),
        superseded: one.superseded.filter(|_| reads).map(|id| id.to_string()),
        blob_id: one.blob_id.filter(|_| reads),
    };
    Ok(Json(RememberedAnswer { remembered: remembered.into_iter().map(shape).collect() }))
}

/// Both sides of an exchange.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TurnInput {
    session: String,
    project: Option<String>,
    persona: Option<String>,
    /// Turn in the session, from 0. Sending it again changes nothing; another text under its number is
    /// refused.
    turn: u64,
    user: String,
    assistant: String,
    /// Time of the exchange, RFC 3339. Default: now.
    #[serde(default, deserialize_with = "time::optional")]
    #[schema(value_type = Option<String>)]
    time: Option<u64>,
}

/// Records both sides of an exchange that took place elsewhere.
///
/// The turn is durable and searchable once the request is answered. A place that contradicts the session's
/// project or persona is refused. Another text under a used turn number is refused too.
#[utoipa::path(post, path = "/v1/memory/turns", tag = "memory", request_body = TurnInput,
    responses((status = 200, body = Count), (status = 400, body = ApiErrorJson), (status = 409, body = ApiErrorJson)))]
async fn record_turn(
    State(app): State<AppState>,
    Writer(caller): Writer,
    Input(input): Input<TurnInput>,
) -> Result<Json<Count>, ApiError> {
    let turn = TurnRecord {
        place: caller.place(input.project, Some(input.session), input.persona)?,
        turn: input.turn,
        user: input.user.into(),
        assistant: input.assistant.into(),
        time_ms: input.time.unwrap_or_else(|| app.now_ms()),
    };
    app.memory().record_turn(caller.owner, turn).await?;
    Ok(Json(Count { count: 1 }))
}

/// The items to list.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct ListInput {
    project: Option<String>,
    session: Option<String>,
    persona: Option<String>,
    /// Whether to list all places of the owner at once.
    everything: bool,
    filters: FilterInput,
    /// Only items that contain all these words.
    words: Option<String>,
    /// Only items whose id begins with these hex characters.
    id: Option<String>,
    /// Only items with this consent: `granted` or `pending`.
    consent: Option<String>,
    /// Whether to include archived items.
    archived: bool,
    /// `next` of the previous page.
    after: Option<String>,
    /// Most items, up to 200. Default: 50.
    limit: Option<usize>,
}

/// A page of items.
#[derive(Debug, Serialize, ToSchema)]
struct ItemPage {
    /// Items, newest first.
    items: Vec<Item>,
    /// Value of `after` for the next page; null at the end.
    next: Option<String>,
}

const DEFAULT_PAGE: usize = 50;

/// Lists items, newest first.
#[utoipa::path(post, path = "/v1/memory/list", tag = "memory", request_body = ListInput,
    responses((status = 200, body = ItemPage), (status = 400, body = ApiErrorJson)))]
async fn list(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Input(input): Input<ListInput>,
) -> Result<Json<ItemPage>, ApiError> {
    if input.everything {
        caller.unbound()?;
    }
    if input.words.as_ref().is_some_and(|words| words.len() > MAX_QUERY_BYTES) {
        return Err(ApiError::bad(format!("`words` have at most {MAX_QUERY_BYTES} bytes")));
    }
    let request = ListRequest {
        place: caller.place(input.project, input.session, input.persona)?,
        everything: input.everything,
        filters: caller.filters(input.filters.read()?),
        words: input.words.map(Into::into),
        id_prefix: input.id,
        consent: consent_named(input.consent.as_deref())?,
        include_archived: input.archived,
        after: input.after.as_deref().map(item_id).transpose()?,
        limit: input.limit.unwrap_or(DEFAULT_PAGE).clamp(1, MAX_PAGE),
    };
    page(&app, &caller, request).await
}

async fn page(app: &AppState, caller: &Caller, request: ListRequest) -> Result<Json<ItemPage>, ApiError> {
    let page = app.memory().list(caller.owner, request).await?;
    let next = page.next.map(|id| id.to_string());
    Ok(Json(ItemPage { items: page.items.into_iter().map(Item::from).collect(), next }))
}

/// The item of a path, if the caller may see it.
async fn visible(app: &AppState, caller: &Caller, id: &str) -> Result<ItemId, ApiError> {
    let id = item_id(id)?;
    if caller.bound_to().is_some() {
        caller.sees(&app.memory().get(caller.owner, id).await?)?;
    }
    Ok(id)
}

/// The items of a list, if the caller may see all of them.
async fn all_visible(app: &AppState, caller: &Caller, ids: &[String]) -> Result<Vec<ItemId>, ApiError> {
    if ids.is_empty() || ids.len() > MAX_IDS {
        return Err(ApiError::bad(format!("1 to {MAX_IDS} ids at a time")));
    }
    let mut items = Vec::with_capacity(ids.len());
    for id in ids {
        items.push(visible(app, caller, id).await?);
    }
    Ok(items)
}

/// Returns one item, from any place.
#[utoipa::path(get, path = "/v1/memory/items/{id}", tag = "memory", params(("id" = String, Path)),
    responses((status = 200, body = Item), (status = 404, body = ApiErrorJson)))]
async fn get(
    State(app): State<AppState>,
    Reader(caller): Reader,
    PathName(id): PathName<String>,
) -> Result<Json<Item>, ApiError> {
    let view = app.memory().get(caller.owner, item_id(&id)?).await?;
    caller.reads(&view)?;
    Ok(Json(view.into()))
}

/// The new text of an item.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TextInput {
    text: String,
}

impl TextInput {
    fn read(self) -> Result<baton_memory::model::Text, ApiError> {
        match self.text.trim().is_empty() {
            true => Err(ApiError::bad("`text` is empty")),
            false => Ok(self.text.into()),
        }
    }
}

/// Replaces an item's text.
///
/// The old words are deleted permanently from the item, from items derived from it and from the graph. The
/// answer lists other items with the old words, and whether each was deleted.
#[utoipa::path(patch, path = "/v1/memory/items/{id}", tag = "memory", params(("id" = String, Path), OthersQuery),
    request_body = TextInput, responses((status = 200, body = EditAnswer), (status = 404, body = ApiErrorJson)))]
async fn edit(
    State(app): State<AppState>,
    Writer(caller): Writer,
    PathName(id): PathName<String>,
    Params(query): Params<OthersQuery>,
    Input(input): Input<TextInput>,
) -> Result<Json<EditAnswer>, ApiError> {
    let options = removal::options(&caller, query.others.as_deref())?;
    let id = visible(&app, &caller, &id).await?;
    let (item, removal) = app.memory().edit_with(caller.owner, id, input.read()?, options).await?;
    Ok(Json(EditAnswer::of(&caller, item, removal)))
}

/// Deletes an item permanently.
///
/// The answer lists other items with its words, and whether each was deleted.
#[utoipa::path(delete, path = "/v1/memory/items/{id}", tag = "memory", params(("id" = String, Path), OthersQuery),
    responses((status = 200, body = RemovalAnswer), (status = 404, body = ApiErrorJson)))]
async fn delete_one(
    State(app): State<AppState>,
    Writer(caller): Writer,
    PathName(id): PathName<String>,
    Params(query): Params<OthersQuery>,
) -> Result<Json<RemovalAnswer>, ApiError> {
    let options = removal::options(&caller, query.others.as_deref())?;
    let id = visible(&app, &caller, &id).await?;
    match app.memory().delete_with(caller.owner, vec![id], options).await? {
        removal if removal.count == 0 => Err(ApiError::missing("item")),
        removal => Ok(Json(RemovalAnswer::of(&caller, removal))),
    }
}

/// Replaces an item with a new item; the old item stays in history.
#[utoipa::path(post, path = "/v1/memory/items/{id}/supersede", tag = "memory", params(("id" = String, Path)),
    request_body = TextInput, responses((status = 200, body = ChangedItem), (status = 404, body = ApiErrorJson)))]
async fn supersede(
    State(app): State<AppState>,
    Writer(caller): Writer,
    PathName(id): PathName<String>,
    Input(input): Input<TextInput>,
) -> Result<Json<ChangedItem>, ApiError> {
    let id = visible(&app, &caller, &id).await?;
    let view = app.memory().supersede(caller.owner, id, input.read()?).await?;
    Ok(Json(ChangedItem::of(&caller, view)))
}

/// The archive state of an item.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ArchiveInput {
    archived: bool,
}

/// Archives an item, or brings it back; an archived item is kept but not recalled.
#[utoipa::path(post, path = "/v1/memory/items/{id}/archive", tag = "memory", params(("id" = String, Path)),
    request_body = ArchiveInput, responses((status = 200, body = ChangedItem), (status = 404, body = ApiErrorJson)))]
async fn archive(
    State(app): State<AppState>,
    Writer(caller): Writer,
    PathName(id): PathName<String>,
    Input(input): Input<ArchiveInput>,
) -> Result<Json<ChangedItem>, ApiError> {
    let id = visible(&app, &caller, &id).await?;
    let view = app.memory().archive(caller.owner, id, input.archived).await?;
    Ok(Json(ChangedItem::of(&caller, view)))
}

/// Items to delete.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct IdsInput {
    /// 1 to 1000 item ids.
    ids: Vec<String>,
    /// Treatment of other items with the words: `own` (default), `all` or `none`, as for one item.
    others: Option<String>,
}

/// Deletes items permanently; missing items are skipped.
///
/// The answer lists other items with their words, and whether each was deleted.
#[utoipa::path(post, path = "/v1/memory/delete", tag = "memory", request_body = IdsInput,
    responses((status = 200, body = RemovalAnswer), (status = 400, body = ApiErrorJson)))]
async fn delete(
    State(app): State<AppState>,
    Writer(caller): Writer,
    Input(input): Input<IdsInput>,
) -> Result<Json<RemovalAnswer>, ApiError> {
    let options = removal::options(&caller, input.others.as_deref())?;
    let ids = all_visible(&app, &caller, &input.ids).await?;
    let removal = app.memory().delete_with(caller.owner, ids, options).await?;
    Ok(Json(RemovalAnswer::of(&caller, removal)))
}

/// Lists items that await the user's consent.
#[utoipa::path(get, path = "/v1/memory/consent", tag = "memory", responses((status = 200, body = ItemPage)))]
async fn waiting(State(app): State<AppState>, Reader(caller): Reader) -> Result<Json<ItemPage>, ApiError> {
    let request = ListRequest {
        place: caller.place(None, None, None)?,
        everything: caller.bound_to().is_none(),
        consent: Some(Consent::Pending),
        filters: caller.filters(Filters::default()),
        limit: MAX_PAGE,
        ..ListRequest::default()
    };
    page(&app, &caller, request).await
}

/// A decision on items that await consent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DecideInput {
    /// 1 to 1000 item ids.
    ids: Vec<String>,
    /// `grant` or `deny`; denied items are deleted.
    decision: String,
    /// Treatment of other items with denied words: `own` (default), `all` or `none`, as for a deletion.
    others: Option<String>,
}

/// Grants or denies consent.
///
/// A denial deletes the items, and the answer lists other items with their words.
#[utoipa::path(post, path = "/v1/memory/consent", tag = "memory", request_body = DecideInput,
    responses((status = 200, body = RemovalAnswer), (status = 400, body = ApiErrorJson)))]
async fn decide(
    State(app): State<AppState>,
    Writer(caller): Writer,
    Input(input): Input<DecideInput>,
) -> Result<Json<RemovalAnswer>, ApiError> {
    let options = removal::options(&caller, input.others.as_deref())?;
    let consent = match input.decision.as_str() {
        "grant" => Consent::Granted,
        "deny" => Consent::Denied,
        _ => return Err(ApiError::bad("`decision` is `grant` or `deny`")),
    };
    let ids = all_visible(&app, &caller, &input.ids).await?;
    let removal = app.memory().decide_with(caller.owner, ids, consent, options).await?;
    Ok(Json(RemovalAnswer::of(&caller, removal)))
}
