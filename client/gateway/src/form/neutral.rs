//! Parameters that are not served: their neutral values, alike for all APIs.

use serde_json::{Value, json};

use crate::{
    form::fields::{BodyFields, is_empty},
    http::api_error::ApiError,
};

/// Parameters that describe the caller, or ask for a cache, and change no answer.
const LABELS: [&str; 10] = [
    "user",
    "metadata",
    "client_metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "service_tier",
    "store",
    "cache_control",
    "keep_alive",
];

/// Checks that all fields that are left change nothing.
pub(crate) fn check_rest(fields: &BodyFields) -> Result<(), ApiError> {
    fields.iter().try_for_each(|(name, value)| check(name, value))
}

/// Checks that a parameter which is not served, of this path, holds a value that changes nothing.
pub(crate) fn check(name: &str, value: &Value) -> Result<(), ApiError> {
    // Asked for by its presence, even with no options.
    let asks = name == "web_search_options" && !value.is_null();
    if (is_empty(value) && !asks) || LABELS.contains(&name) {
        return Ok(());
    }
    let (neutral, why) = match name {
        "n" | "best_of" => (json!([1, 1.0]), "one answer is given to a request"),
        "echo" => (json!([false]), "only the answer is given"),
        "logprobs" => (json!([false]), "this API reports no probabilities here: /v1/chat/completions does"),
        "top_logprobs" => (json!([0, 0.0]), "/v1/chat/completions reports them"),
        "suffix" | "template" => (json!([""]), "it is not served"),
        "raw" => (json!([false]), "nodes render each prompt by the model's template"),
        "min_tokens" => (json!([0, 0.0]), "nodes do not know it"),
        "modalities" => (json!([["text"]]), "only text is served"),
        "verbosity" => (json!(["medium"]), "no model here has verbosities"),
        "reasoning_effort" | "effort" | "reasoning.effort" => {
            (json!(["none"]), "no model here reasons apart from its answer")
        }
        "think" | "reasoning.enabled" => (json!([false]), "no model here thinks apart from its answer"),
        // With `adaptive` the model decides whether it thinks, and no model here does.
        "thinking.type" => (json!(["disabled", "adaptive"]), "no model here thinks in blocks of its own"),
        "reasoning.summary" | "reasoning.generate_summary" => {
            (json!(["auto", "concise", "detailed"]), "no model here reasons")
        }
        "thinking" | "reasoning" => {
            let wishes = BodyFields::of(value.clone(), name.to_owned())?;
            return wishes.iter().try_for_each(|(field, value)| check(&wishes.at(field), value));
        }
        _ if name.starts_with("thinking.") => return Ok(()),
        "context_management" => return check_context_edits(value),
        "background" => (json!([false]), "a response is answered at once"),
        "truncation" => (json!(["disabled"]), "a node cuts no input"),
        // There is no reasoning to hand out.
        "include" => (json!([["reasoning.encrypted_content"]]), "it is not served"),
        "conversation" => (json!([]), "use previous_response_id"),
        "max_tool_calls" => (json!([]), "a response runs no calls"),
        "tools" | "tool_choice" | "parallel_tool_calls" => (json!([]), "tools are for chat completions"),
        "functions" | "function_call" | "audio" | "prediction" | "web_search_options" | "container"
        | "mcp_servers" | "inference_geo" | "speed" | "images" | "context" | "prompt" => {
            (json!([]), "it is not served")
        }
        _ => {
            let message = format!("there is no parameter {name}");
            return Err(ApiError::request("unknown_parameter", name, message));
        }
    };
    if neutral.as_array().is_some_and(|neutral| neutral.contains(value)) {
        return Ok(());
    }
    Err(ApiError::unsupported(name, format!("{name} is not supported: {why}")))
}

/// Whether the edits of a context change nothing: there are no thinking blocks that could be cleared.
fn check_context_edits(value: &Value) -> Result<(), ApiError> {
    let mut context = BodyFields::of(value.clone(), "context_management".to_owned())?;
    for mut edit in context.objects("edits")? {
        if !edit.text("type")?.is_some_and(|kind| kind.starts_with("clear_thinking_")) {
            let message = "the gateway sends a conversation whole";
            return Err(ApiError::unsupported(&edit.at("type"), message));
        }
    }
    context.refuse_rest("context_management")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_api_has_the_same_neutral_values() {
        for (name, value) in [
            ("reasoning_effort", json!("none")),
            ("verbosity", json!("medium")),
            ("prompt_cache_retention", json!("24h")),
            ("reasoning", json!({ "effort": "none", "summary": "auto", "other": null })),
            ("thinking", json!({ "type": "disabled" })),
            ("think", json!(false)),
            ("min_tokens", json!(0)),
            ("n", json!(1.0)),
            ("service_tier", json!("auto")),
        ] {
            assert_eq!(check(name, &value), Ok(()), "{name} {value}");
        }
        for (name, value, param) in [
            ("reasoning_effort", json!("high"), "reasoning_effort"),
            ("reasoning", json!(1), "reasoning"),
            ("thinking", json!({ "type": 1 }), "thinking.type"),
        ] {
            assert_eq!(check(name, &value).unwrap_err().param(), Some(param), "{name} {value}");
        }
    }
}
