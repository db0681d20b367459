//! Options and answers of deletions, edits and denials: the caller's choice for other holders of the words,
//! and its result. The routes are in [`super::items`].

use baton_memory::api::{Holder, ItemView, Others, Removal, RemovalOptions};
use serde::Serialize;
use utoipa::ToSchema;

use super::shapes::ChangedItem;
use crate::{auth::Caller, delegation::Scope};

/// The options of a removal, limited by the caller's rights. A caller that is bound to a project removes, and
/// learns, nothing of another.
pub(super) fn options(caller: &Caller, others: Option<Others>) -> RemovalOptions {
    RemovalOptions { others: others.unwrap_or_default(), same_project: caller.bound_to().is_some() }
}

/// The result of a deletion or decision, with other items that hold the words.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RemovalAnswer {
    /// Number of requested items that existed.
    count: u64,
    /// Other items that held the words, at most 200; remaining items first. Delete these by id. Absent for a
    /// write-only key.
    #[serde(skip_serializing_if = "Option::is_none")]
    others: Option<Vec<Holder>>,
    /// Number of further items.
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<u64>,
}

/// The item with its new text, and other items that held the old words.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EditAnswer {
    #[serde(flatten)]
    item: ChangedItem,
    /// Other items that held the old words, at most 200; remaining items first. Delete these by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    others: Option<Vec<Holder>>,
    /// Number of further items.
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<u64>,
}

/// The other holders, and the count of further ones; `None` for a write-only key, which must learn nothing
/// about them.
fn holders(caller: &Caller, others: Vec<Holder>, more: u64) -> (Option<Vec<Holder>>, Option<u64>) {
    if !caller.may(Scope::Read) {
        return (None, None);
    }
    (Some(others), Some(more))
}

impl RemovalAnswer {
    pub(super) fn of(caller: &Caller, removal: Removal) -> Self {
        let (others, more) = holders(caller, removal.others, removal.more);
        Self { count: removal.count, others, more }
    }
}

impl EditAnswer {
    pub(super) fn of(caller: &Caller, item: ItemView, removal: Removal) -> Self {
        let Removal { others, more, .. } = removal;
        let (others, more) = holders(caller, others, more);
        Self { item: ChangedItem::of(caller, item), others, more }
    }
}
