//! Baton's own routes for items: recall, remember, turns, list, get, edit, supersede, archive, delete,
//! consent. Search terms are in bodies, never in URLs, which other programs log.

use axum::{Json, extract::State};
use baton_memory::{
    api::{Filters, ListRequest, RecallRequest, Remember, TurnRecord},
    ids::ItemId,
    limits::{MAX_PAGE, MAX_QUERY_BYTES},
    model::{Author, Consent, MemoryScope},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Doors, Fault, FaultJson, Input, Reader, Writer,
    extract::{Named, Params, scope_named},
    limits::{MAX_FACTS, MAX_IDS},
    removal::{self, EditAnswer, OthersQuery, RemovalAnswer},
    shapes::{ChangedItem, Count, FilterInput, Item, RecallAnswer, consent_named, item_id, layer_named},
};
use crate::{auth::Caller, delegation::Scope, time};

pub(super) fn routes() -> OpenApiRouter<Doors> {
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

/// A recall with all that it can take.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RecallInput {
    /// The user's words.
    query: String,
    /// The project; the shared pool if left out.
    project: Option<String>,
    /// The session in which it is asked, whose project counts.
    session: Option<String>,
    /// The persona that asks; the session's if left out. Another one than the session's sees nothing.
    persona: Option<String>,
    /// `full`, `neutral_and_relationship` (default), `relationship_only`, `neutral_only`, `insights_only` or `none`.
    memory_scope: Option<String>,
    /// At most 200; 6 if left out.
    limit: Option<usize>,
    /// Least score, 0 to 1.
    threshold: Option<f32>,
    /// Most tokens of all items together.
    budget_tokens: Option<u32>,
    #[serde(default)]
    filters: FilterInput,
}

/// Default number of items of a recall: a good number for a prompt.
const DEFAULT_HITS: usize = 6;

/// Finds memories, with scores and what was left out.
#[utoipa::path(post, path = "/v1/memory/recall", tag = "memory", request_body = RecallInput,
    responses((status = 200, body = RecallAnswer), (status = 400, body = FaultJson)))]
async fn recall(
    State(doors): State<Doors>,
    Reader(caller): Reader,
    Input(input): Input<RecallInput>,
) -> Result<Json<RecallAnswer>, Fault> {
    if input.query.len() > MAX_QUERY_BYTES {
        return Err(Fault::bad(format!("a query has at most {MAX_QUERY_BYTES} bytes")));
    }
    if input.threshold.is_some_and(|least| !(0.0..=1.0).contains(&least)) {
        return Err(Fault::bad("`threshold` is from 0 to 1"));
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
    Ok(Json(doors.memory().recall(caller.owner, request).await.into()))
}

/// Something to remember.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct FactInput {
    text: String,
    project: Option<String>,
    /// The session that it comes from.
    session: Option<String>,
    persona: Option<String>,
    /// `profile` (default) or `relationship`.
    layer: Option<String>,
    /// When it was said, RFC 3339; now if left out.
    #[serde(default, deserialize_with = "time::optional")]
    #[schema(value_type = Option<String>)]
    time: Option<u64>,
    /// Found out by rule if left out.
    intimate: Option<bool>,
    /// 0 to 1; found out by rule if left out.
    salience: Option<f32>,
    /// At most 256 bytes. The same call with the same key is made once; with another text it is refused.
    idempotency_key: Option<String>,
}

impl FactInput {
    fn read(self, caller: &Caller) -> Result<(Remember, Option<String>), Fault> {
        if self.text.trim().is_empty() {
            return Err(Fault::bad("`text` is empty"));
        }
        if self.salience.is_some_and(|salience| !(0.0..=1.0).contains(&salience)) {
            return Err(Fault::bad("`salience` is from 0 to 1"));
        }
        let fact = Remember {
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

/// Things to remember, all or none.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RememberInput {
    /// 1 to 100.
    facts: Vec<FactInput>,
}

/// What became of one of them.
#[derive(Debug, Serialize, ToSchema)]
struct RememberedJson {
    id: String,
    /// Whether it was there already; none for a key that may only write.
    existed: Option<bool>,
    /// The item that it took the place of; none for a key that may only write.
    superseded: Option<String>,
    /// Where its content lies on Walrus, once stored; none for a key that may only write.
    blob_id: Option<String>,
}

/// What became of them, in order.
#[derive(Debug, Serialize, ToSchema)]
struct RememberedAnswer {
    remembered: Vec<RememberedJson>,
}

/// Remembers facts; durable and searchable when it answers.
#[utoipa::path(post, path = "/v1/memory/remember", tag = "memory", request_body = RememberInput,
    responses((status = 200, body = RememberedAnswer), (status = 400, body = FaultJson), (status = 409, body = FaultJson)))]
async fn remember(
    State(doors): State<Doors>,
    Writer(caller): Writer,
    Input(input): Input<RememberInput>,
) -> Result<Json<RememberedAnswer>, Fault> {
    if input.facts.is_empty() || input.facts.len() > MAX_FACTS {
        return Err(Fault::bad(format!("1 to {MAX_FACTS} facts at a time")));
    }
    let facts = input.facts.into_iter().map(|fact| fact.read(&caller)).collect::<Result<Vec<_>, _>>()?;
    let remembered = doors.memory().remember_once(caller.owner, facts).await?;
    // Otherwise a write-only key could probe for existing facts.
    let reads = caller.may(Scope::Read);
    let shape = |one: baton_memory::api::Remembered| RememberedJson {
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
    /// The turn in the session, from 0. Sending it again changes nothing; another text under its number is refused.
    turn: u64,
    user: String,
    assistant: String,
    /// When, RFC 3339; now if left out.
    #[serde(default, deserialize_with = "time::optional")]
    #[schema(value_type = Option<String>)]
    time: Option<u64>,
}

/// Keeps both sides of an exchange that took place elsewhere; durable and searchable when it answers. A place that contradicts
/// the session's project or persona is refused, and so is another text under a turn's number that is taken.
#[utoipa::path(post, path = "/v1/memory/turns", tag = "memory", request_body = TurnInput,
    responses((status = 200, body = Count), (status = 400, body = FaultJson), (status = 409, body = FaultJson)))]
async fn record_turn(
    State(doors): State<Doors>,
    Writer(caller): Writer,
    Input(input): Input<TurnInput>,
) -> Result<Json<Count>, Fault> {
    let turn = TurnRecord {
        place: caller.place(input.project, Some(input.session), input.persona)?,
        turn: input.turn,
        user: input.user.into(),
        assistant: input.assistant.into(),
        time_ms: input.time.unwrap_or_else(|| doors.now_ms()),
    };
    doors.memory().record_turn(caller.owner, turn).await?;
    Ok(Json(Count { count: 1 }))
}

/// Which items to list.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct ListInput {
    project: Option<String>,
    session: Option<String>,
    persona: Option<String>,
    /// All places of the owner at once.
    everything: bool,
    filters: FilterInput,
    /// Only items that contain all these words.
    words: Option<String>,
    /// `granted` or `pending`.
    consent: Option<String>,
    /// Also archived ones.
    archived: bool,
    /// The `next` of the page before.
    after: Option<String>,
    /// At most 200; 50 if left out.
    limit: Option<usize>,
}

/// A page of items.
#[derive(Debug, Serialize, ToSchema)]
struct ItemPage {
    /// Newest first.
    items: Vec<Item>,
    /// What to send as `after` for the next page; none at the end.
    next: Option<String>,
}

const DEFAULT_PAGE: usize = 50;

/// Lists items, newest first.
#[utoipa::path(post, path = "/v1/memory/list", tag = "memory", request_body = ListInput,
    responses((status = 200, body = ItemPage), (status = 400, body = FaultJson)))]
async fn list(
    State(doors): State<Doors>,
    Reader(caller): Reader,
    Input(input): Input<ListInput>,
) -> Result<Json<ItemPage>, Fault> {
    if input.everything {
        caller.unbound()?;
    }
    if input.words.as_ref().is_some_and(|words| words.len() > MAX_QUERY_BYTES) {
        return Err(Fault::bad(format!("`words` have at most {MAX_QUERY_BYTES} bytes")));
    }
    let request = ListRequest {
        place: caller.place(input.project, input.session, input.persona)?,
        everything: input.everything,
        filters: caller.filters(input.filters.read()?),
        words: input.words.map(Into::into),
        consent: consent_named(input.consent.as_deref())?,
        include_archived: input.archived,
        after: input.after.as_deref().map(item_id).transpose()?,
        limit: input.limit.unwrap_or(DEFAULT_PAGE).clamp(1, MAX_PAGE),
    };
    page(&doors, &caller, request).await
}

async fn page(doors: &Doors, caller: &Caller, request: ListRequest) -> Result<Json<ItemPage>, Fault> {
    let page = doors.memory().list(caller.owner, request).await?;
    let next = page.next.map(|id| id.to_string());
    Ok(Json(ItemPage { items: page.items.into_iter().map(Item::from).collect(), next }))
}

/// The item of a path, if the caller may see it.
async fn visible(doors: &Doors, caller: &Caller, id: &str) -> Result<ItemId, Fault> {
    let id = item_id(id)?;
    if caller.bound_to().is_some() {
        caller.sees(&doors.memory().get(caller.owner, id).await?)?;
    }
    Ok(id)
}

/// The items of a list, if the caller may see all of them.
async fn all_visible(doors: &Doors, caller: &Caller, ids: &[String]) -> Result<Vec<ItemId>, Fault> {
    if ids.is_empty() || ids.len() > MAX_IDS {
        return Err(Fault::bad(format!("1 to {MAX_IDS} ids at a time")));
    }
    let mut items = Vec::with_capacity(ids.len());
    for id in ids {
        items.push(visible(doors, caller, id).await?);
    }
    Ok(items)
}

/// One item, wherever it is.
#[utoipa::path(get, path = "/v1/memory/items/{id}", tag = "memory", params(("id" = String, Path)),
    responses((status = 200, body = Item), (status = 404, body = FaultJson)))]
async fn get(
    State(doors): State<Doors>,
    Reader(caller): Reader,
    Named(id): Named<String>,
) -> Result<Json<Item>, Fault> {
    let view = doors.memory().get(caller.owner, item_id(&id)?).await?;
    caller.reads(&view)?;
    Ok(Json(view.into()))
}

/// A new text of an item.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TextInput {
    text: String,
}

impl TextInput {
    fn read(self) -> Result<baton_memory::model::Text, Fault> {
        match self.text.trim().is_empty() {
            true => Err(Fault::bad("`text` is empty")),
            false => Ok(self.text.into()),
        }
    }
}

/// Replaces an item's text. The old words are gone for good from the item, from what was made of it and from the graph. The answer
/// names what else holds them, and what became of it.
#[utoipa::path(patch, path = "/v1/memory/items/{id}", tag = "memory", params(("id" = String, Path), OthersQuery),
    request_body = TextInput, responses((status = 200, body = EditAnswer), (status = 404, body = FaultJson)))]
async fn edit(
    State(doors): State<Doors>,
    Writer(caller): Writer,
    Named(id): Named<String>,
    Params(query): Params<OthersQuery>,
    Input(input): Input<TextInput>,
) -> Result<Json<EditAnswer>, Fault> {
    let options = removal::options(&caller, query.others.as_deref())?;
    let id = visible(&doors, &caller, &id).await?;
    let (item, removal) = doors.memory().edit_with(caller.owner, id, input.read()?, options).await?;
    Ok(Json(EditAnswer::of(&caller, item, removal)))
}

/// Deletes an item for good. The answer names what else holds its words, and what became of it.
#[utoipa::path(delete, path = "/v1/memory/items/{id}", tag = "memory", params(("id" = String, Path), OthersQuery),
    responses((status = 200, body = RemovalAnswer), (status = 404, body = FaultJson)))]
async fn delete_one(
    State(doors): State<Doors>,
    Writer(caller): Writer,
    Named(id): Named<String>,
    Params(query): Params<OthersQuery>,
) -> Result<Json<RemovalAnswer>, Fault> {
    let options = removal::options(&caller, query.others.as_deref())?;
    let id = visible(&doors, &caller, &id).await?;
    match doors.memory().delete_with(caller.owner, vec![id], options).await? {
        removal if removal.count == 0 => Err(Fault::missing("item")),
        removal => Ok(Json(RemovalAnswer::of(&caller, removal))),
    }
}

/// Puts a new item in an item's place, which stays in history.
#[utoipa::path(post, path = "/v1/memory/items/{id}/supersede", tag = "memory", params(("id" = String, Path)),
    request_body = TextInput, responses((status = 200, body = ChangedItem), (status = 404, body = FaultJson)))]
async fn supersede(
    State(doors): State<Doors>,
    Writer(caller): Writer,
    Named(id): Named<String>,
    Input(input): Input<TextInput>,
) -> Result<Json<ChangedItem>, Fault> {
    let id = visible(&doors, &caller, &id).await?;
    let view = doors.memory().supersede(caller.owner, id, input.read()?).await?;
    Ok(Json(ChangedItem::of(&caller, view)))
}

/// Whether an item is archived.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ArchiveInput {
    archived: bool,
}

/// Archives an item, which is then kept and not recalled, or brings it back.
#[utoipa::path(post, path = "/v1/memory/items/{id}/archive", tag = "memory", params(("id" = String, Path)),
    request_body = ArchiveInput, responses((status = 200, body = ChangedItem), (status = 404, body = FaultJson)))]
async fn archive(
    State(doors): State<Doors>,
    Writer(caller): Writer,
    Named(id): Named<String>,
    Input(input): Input<ArchiveInput>,
) -> Result<Json<ChangedItem>, Fault> {
    let id = visible(&doors, &caller, &id).await?;
    let view = doors.memory().archive(caller.owner, id, input.archived).await?;
    Ok(Json(ChangedItem::of(&caller, view)))
}

/// Items to delete.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct IdsInput {
    /// 1 to 1000.
    ids: Vec<String>,
    /// What becomes of whatever else holds the words: `own` (default), `all` or `none`, as for one item.
    others: Option<String>,
}

/// Deletes items for good; those that are not there are passed over. The answer names what else holds their words, and what
/// became of it.
#[utoipa::path(post, path = "/v1/memory/delete", tag = "memory", request_body = IdsInput,
    responses((status = 200, body = RemovalAnswer), (status = 400, body = FaultJson)))]
async fn delete(
    State(doors): State<Doors>,
    Writer(caller): Writer,
    Input(input): Input<IdsInput>,
) -> Result<Json<RemovalAnswer>, Fault> {
    let options = removal::options(&caller, input.others.as_deref())?;
    let ids = all_visible(&doors, &caller, &input.ids).await?;
    let removal = doors.memory().delete_with(caller.owner, ids, options).await?;
    Ok(Json(RemovalAnswer::of(&caller, removal)))
}

/// Items that wait for the user's consent.
#[utoipa::path(get, path = "/v1/memory/consent", tag = "memory", responses((status = 200, body = ItemPage)))]
async fn waiting(State(doors): State<Doors>, Reader(caller): Reader) -> Result<Json<ItemPage>, Fault> {
    let request = ListRequest {
        place: caller.place(None, None, None)?,
        everything: caller.bound_to().is_none(),
        consent: Some(Consent::Pending),
        filters: caller.filters(Filters::default()),
        limit: MAX_PAGE,
        ..ListRequest::default()
    };
    page(&doors, &caller, request).await
}

/// A decision on items that wait.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DecideInput {
    /// 1 to 1000.
    ids: Vec<String>,
    /// `grant` or `deny`; denied items are deleted.
    decision: String,
    /// What becomes of whatever else holds denied words: `own` (default), `all` or `none`, as for a deletion.
    others: Option<String>,
}

/// Grants or denies consent. A denial deletes as a deletion does, and names what else holds the words.
#[utoipa::path(post, path = "/v1/memory/consent", tag = "memory", request_body = DecideInput,
    responses((status = 200, body = RemovalAnswer), (status = 400, body = FaultJson)))]
async fn decide(
    State(doors): State<Doors>,
    Writer(caller): Writer,
    Input(input): Input<DecideInput>,
) -> Result<Json<RemovalAnswer>, Fault> {
    let options = removal::options(&caller, input.others.as_deref())?;
    let consent = match input.decision.as_str() {
        "grant" => Consent::Granted,
        "deny" => Consent::Denied,
        _ => return Err(Fault::bad("`decision` is `grant` or `deny`")),
    };
    let ids = all_visible(&doors, &caller, &input.ids).await?;
    let removal = doors.memory().decide_with(caller.owner, ids, consent, options).await?;
    Ok(Json(RemovalAnswer::of(&caller, removal)))
}
