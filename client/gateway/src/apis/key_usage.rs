//! `/api/usage`: the usage and quotas of keys with names. A key sees its own; the owner sees all.

use axum::Json;
use serde_json::{Value, json};

use crate::{
    keys::{Caller, NamedKey},
    state::Gateway,
};

/// The keys with their usage.
pub(crate) async fn show(gateway: Gateway) -> Json<Value> {
    let now_s = gateway.now_s();
    let (keys, usage) = gateway.config().keys.as_ref().map(|keys| keys.usage()).unwrap_or_default();
    let is_shown = |key: &&NamedKey| match &gateway.caller {
        Caller::Owner => true,
        Caller::Key(own) => own.name == key.name,
    };
    let shown: Vec<Value> = keys.iter().filter(is_shown).map(|key| usage.describe(key, now_s)).collect();
    Json(json!({ "keys": shown }))
}
