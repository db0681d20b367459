//! Items of memory: list, get, edit, supersede, archive, delete, consent.

use baton_memory::{
    api::{ItemView, ListRequest, Others, Page},
    ids::ItemId,
    limits::{MAX_PAGE, MAX_QUERY_BYTES},
    model::{Consent, Text},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    ApiError,
    extract::not_blank,
    limits::MAX_IDS,
    operation::{Call, NoInput},
    removal::{self, EditAnswer, RemovalAnswer},
    shapes::{ChangedItem, FilterInput, item_id},
};

/// The items to list.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ListInput {
    /// Project to list. Default: the shared pool of no project.
    project: Option<String>,
    session: Option<String>,
    persona: Option<String>,
    /// Whether to list all places at once: those of the owner, or those of the project that the key is bound to.
    everything: bool,
    filters: FilterInput,
    /// Only items that contain all these words.
    words: Option<String>,
    /// Only items whose id begins with these hex characters.
    id: Option<String>,
    /// Only items with this consent: `granted` or `pending`.
    #[schema(value_type = Option<String>)]
    consent: Option<Consent>,
    /// Whether to include archived items.
    archived: bool,
    /// `next` of the previous page.
    after: Option<String>,
    /// Most items, up to 200. Default: 50.
    limit: Option<usize>,
}

const DEFAULT_PAGE: usize = 50;

pub(super) async fn list(call: Call, input: ListInput) -> Result<Page, ApiError> {
    if input.words.as_ref().is_some_and(|words| words.len() > MAX_QUERY_BYTES) {
        return Err(ApiError::bad(format!("`words` have at most {MAX_QUERY_BYTES} bytes")));
    }
    let request = ListRequest {
        place: call.caller.place(input.project, input.session, input.persona)?,
        everything: input.everything && call.caller.bound_to().is_none(),
        filters: call.caller.filters(input.filters.read()?),
        words: input.words.map(Into::into),
        id_prefix: input.id,
        consent: input.consent,
        include_archived: input.archived,
        after: input.after.as_deref().map(item_id).transpose()?,
        limit: input.limit.unwrap_or(DEFAULT_PAGE).clamp(1, MAX_PAGE),
    };
    Ok(call.memory().list(call.owner(), request).await?)
}

/// An item, if the caller may see it.
async fn visible(call: &Call, id: &str) -> Result<ItemId, ApiError> {
    let id = item_id(id)?;
    if call.caller.bound_to().is_some() {
        call.caller.sees(&call.memory().get(call.owner(), id).await?)?;
    }
    Ok(id)
}

/// The items of a list, if the caller may see all of them.
async fn all_visible(call: &Call, ids: &[String]) -> Result<Vec<ItemId>, ApiError> {
    if ids.is_empty() || ids.len() > MAX_IDS {
        return Err(ApiError::bad(format!("1 to {MAX_IDS} ids at a time")));
    }
    let mut items = Vec::with_capacity(ids.len());
    for id in ids {
        items.push(visible(call, id).await?);
    }
    Ok(items)
}

pub(super) async fn get(call: Call, _: NoInput) -> Result<ItemView, ApiError> {
    let view = call.memory().get(call.owner(), item_id(&call.target)?).await?;
    call.caller.reads(&view)?;
    Ok(view)
}

/// The new text of an item.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EditInput {
    /// The new text.
    text: String,
    /// Treatment of other items with the words:
    /// - `own` (default) deletes a fact's source messages and the user's own messages in the same project, if
    ///   they say it. For a message, it deletes facts made from it.
    /// - `all` also deletes the assistant's answers and other memories.
    /// - `none` leaves them.
    #[schema(value_type = Option<String>)]
    others: Option<Others>,
}

fn text(text: String) -> Result<Text, ApiError> {
    not_blank("text", &text)?;
    Ok(text.into())
}

pub(super) async fn edit(call: Call, input: EditInput) -> Result<EditAnswer, ApiError> {
    let options = removal::options(&call.caller, input.others);
    let id = visible(&call, &call.target).await?;
    let (item, removal) = call.memory().edit_with(call.owner(), id, text(input.text)?, options).await?;
    Ok(EditAnswer::of(&call.caller, item, removal))
}

/// The text of a new item.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TextInput {
    /// The new text.
    text: String,
}

pub(super) async fn supersede(call: Call, input: TextInput) -> Result<ChangedItem, ApiError> {
    let id = visible(&call, &call.target).await?;
    let view = call.memory().supersede(call.owner(), id, text(input.text)?).await?;
    Ok(ChangedItem::of(&call.caller, view))
}

/// The archive state of an item.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ArchiveInput {
    archived: bool,
}

pub(super) async fn archive(call: Call, input: ArchiveInput) -> Result<ChangedItem, ApiError> {
    let id = visible(&call, &call.target).await?;
    let view = call.memory().archive(call.owner(), id, input.archived).await?;
    Ok(ChangedItem::of(&call.caller, view))
}

/// Items to delete.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct IdsInput {
    /// 1 to 1000 item ids.
    ids: Vec<String>,
    /// Treatment of other items with the words: `own` (default), `all` or `none`, as for an edit.
    #[schema(value_type = Option<String>)]
    others: Option<Others>,
}

pub(super) async fn delete(call: Call, input: IdsInput) -> Result<RemovalAnswer, ApiError> {
    let options = removal::options(&call.caller, input.others);
    let ids = all_visible(&call, &input.ids).await?;
    let removal = call.memory().delete_with(call.owner(), ids, options).await?;
    Ok(RemovalAnswer::of(&call.caller, removal))
}

/// A decision on items that await consent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DecideInput {
    /// 1 to 1000 item ids.
    ids: Vec<String>,
    /// `grant` or `deny`; denied items are deleted.
    decision: String,
    /// Treatment of other items with denied words: `own` (default), `all` or `none`, as for an edit.
    #[schema(value_type = Option<String>)]
    others: Option<Others>,
}

pub(super) async fn decide(call: Call, input: DecideInput) -> Result<RemovalAnswer, ApiError> {
    let options = removal::options(&call.caller, input.others);
    let consent = match input.decision.as_str() {
        "grant" => Consent::Granted,
        "deny" => Consent::Denied,
        _ => return Err(ApiError::bad("`decision` is `grant` or `deny`")),
    };
    let ids = all_visible(&call, &input.ids).await?;
    let removal = call.memory().decide_with(call.owner(), ids, consent, options).await?;
    Ok(RemovalAnswer::of(&call.caller, removal))
}
