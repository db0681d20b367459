//! `/api/usage`: the usage and quotas of keys with names. A key sees its own; the owner sees all.

use axum::Json;
use serde_json::{Value, json};

use crate::{
    clock::rfc3339,
    keys::{
        NamedKey,
        caller::Caller,
        usage::{DayUsage, UsageTable},
    },
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
    let shown: Vec<Value> = keys.iter().filter(is_shown).map(|key| describe(key, &usage, now_s)).collect();
    Json(json!({ "keys": shown }))
}

fn describe(key: &NamedKey, usage: &UsageTable, now_s: u64) -> Value {
    let rest = usage.rest(key, now_s);
    let own = usage.of(&key.name);
    let days = own.into_iter().flat_map(|own| own.days());
    json!({
        "name": key.name,
        "project": key.project,
        "memory": key.memory,
        "created": rfc3339(key.created_s),
        "expires": key.expires_s.map(rfc3339),
        "requests_per_hour": key.quotas.requests_per_hour,
        "requests_left": rest.requests,
        "tokens_per_day": key.quotas.tokens_per_day,
        "tokens_left": rest.tokens,
        "days": days
            .map(|(day_s, DayUsage { requests, input_tokens, output_tokens })| json!({
                "day": rfc3339(day_s).split('T').next(),
                "requests": requests,
                "input_tokens": input_tokens,
                "output_tokens": output_tokens,
            }))
            .collect::<Vec<_>>(),
    })
}
