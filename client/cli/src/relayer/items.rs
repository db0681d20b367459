//! Items of memory at a relayer: found by the beginning of their id, listed, and deleted together. `baton memory`
//! and the gateway's routes call it.

use baton_proto::text::is_same_place;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{failure::Failure, out::clean, relayer::client::RelayerClient};

/// Hex characters of an id.
const ID_CHARS: usize = 32;
/// Fewest characters of an id's beginning.
const MIN_PREFIX_CHARS: usize = 4;
/// Items of one list.
pub(crate) const PAGE: usize = 200;
/// Ids with the same beginning that an error names.
const NAMED_IDS: usize = 8;

/// The items to delete.
pub(crate) struct ItemSelection<'a> {
    /// Their project.
    pub(crate) project: Option<&'a str>,
    /// Their kind.
    pub(crate) kind: Option<&'a str>,
    /// All places, if there is no project.
    pub(crate) everything: bool,
}

impl RelayerClient {
    /// The id of the one item whose id begins with a text.
    pub(crate) async fn item_id(&self, id: &str) -> Result<String, Failure> {
        let is_hex = id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hex || !(MIN_PREFIX_CHARS..=ID_CHARS).contains(&id.len()) {
            let message =
                format!("{} is no memory's id: at least {MIN_PREFIX_CHARS} of its hex digits", clean(id));
            return Err(Failure::usage(message, "baton memory list --all shows them"));
        }
        if id.len() == ID_CHARS {
            return Ok(id.to_lowercase());
        }
        let body = json!({
            "everything": true, "archived": true, "filters": { "history": true }, "id": id, "limit": NAMED_IDS,
        });
        let found = self.json(Method::POST, "/api/list", Some(&body)).await?;
        let ids: Vec<&str> = items_of(&found).iter().filter_map(|item| item["id"].as_str()).collect();
        match ids.as_slice() {
            [one] => Ok((*one).to_owned()),
            [] => Err(Failure::usage(
                format!("No memory's id begins with {id}."),
                "baton memory list --all shows them",
            )),
            several => {
                let named = several.iter().map(|id| clean(id)).collect::<Vec<_>>().join(", ");
                Err(Failure::usage(
                    format!("Several ids begin with {id}: {named}"),
                    "give more digits of the id",
                ))
            }
        }
    }

    /// As [`Self::item_id`], for each of some ids.
    pub(crate) async fn item_ids(&self, ids: &[String]) -> Result<Vec<String>, Failure> {
        let mut all = Vec::with_capacity(ids.len());
        for id in ids {
            all.push(self.item_id(id).await?);
        }
        Ok(all)
    }

    /// Deletes all selected items for good; returns their number. `others` is the treatment of other items with
    /// their words.
    pub(crate) async fn delete_items(
        &self,
        selection: &ItemSelection<'_>,
        others: Option<&str>,
    ) -> Result<u64, Failure> {
        if let (Some(project), None) = (selection.project, selection.kind) {
            let path = format!("/api/projects/{}", escaped(project));
            return match self.json(Method::DELETE, &path, None).await {
                Ok(answer) => Ok(answer["count"].as_u64().unwrap_or_default()),
                Err(failure) if is_missing(&failure) => Ok(0),
                Err(failure) => Err(failure),
            };
        }
        let mut body = json!({
            "everything": selection.everything && selection.project.is_none(), "archived": true, "limit": PAGE,
            "filters": { "history": true, "kinds": selection.kind.into_iter().collect::<Vec<_>>() },
            "project": selection.project,
        });
        let mut deleted = 0;
        loop {
            let found = self.json(Method::POST, "/api/list", Some(&body)).await?;
            let is_selected = |item: &&Value| {
                body["everything"] == true || is_same_place(item["project"].as_str(), selection.project)
            };
            let ids: Vec<&Value> =
                items_of(&found).iter().filter(is_selected).map(|item| &item["id"]).collect();
            let count = if ids.is_empty() {
                0
            } else {
                let wanted = json!({ "ids": ids, "others": others });
                let answer = self.json(Method::POST, "/api/delete", Some(&wanted)).await?;
                answer["count"].as_u64().unwrap_or_default()
            };
            deleted += count;
            // A page without anything to delete: the next one follows it.
            match found["next"].as_str() {
                None => return Ok(deleted),
                Some(next) if count == 0 => body["after"] = next.into(),
                Some(_) => {}
            }
        }
    }
}

/// Whether a relayer's error says that the named thing is not there.
pub(crate) fn is_missing(failure: &Failure) -> bool {
    matches!(failure, Failure::Described { name, .. } if name == "not_found")
}

/// The items of an answer.
pub(crate) fn items_of(answer: &Value) -> &[Value] {
    answer["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Text as a part of a URL.
pub(crate) fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
