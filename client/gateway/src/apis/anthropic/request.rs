//! Requests of Anthropic's Messages API, read strictly: an unsupported parameter is refused by name.

use baton_proto::record::{Message, Role};
use serde_json::{Map, Value, json};

use crate::{
    apis::openai::responses::ResponseId,
    form::{
        completion::{CompletionRequest, RequestPlace},
        fields::BodyFields,
        format, neutral,
        tools::{CallIds, PastCall, ToolChoice, ToolRequest},
        wire::read_common,
    },
    http::api_error::ApiError,
};

/// Between the text blocks of a message, which are texts of their own.
const BETWEEN_BLOCKS: &str = "\n\n";
/// Begins the id of a message.
pub(super) const MESSAGE_ID: &str = "msg_";
/// The codes by which the API's clients begin another thread, or go on without one.
pub(super) const THREAD_NOT_FOUND: &str = "thread_not_found";
pub(super) const THREAD_UNSUPPORTED: &str = "thread_unsupported_request";

/// Reads a body. Returns the request, and the message that it follows in a thread.
///
/// # Parameters
/// `session` is the session that the header names.
pub(super) fn read_request(
    body: &[u8],
    session: Option<String>,
) -> Result<(CompletionRequest, Option<ResponseId>), ApiError> {
    let mut fields = BodyFields::of_body(body)?;
    if fields.peek("max_tokens").is_none() {
        return Err(ApiError::value("max_tokens", "max_tokens is missing: a request limits its answer"));
    }
    let previous = read_thread(&mut fields)?;
    let request = CompletionRequest {
        session: previous.map(|previous| previous.session.to_string()).or(session),
        place: previous.map_or_else(RequestPlace::default, |id| RequestPlace::AfterTurn(id.seq)),
        ..read(fields)?
    };
    Ok((request, previous))
}

/// Takes the message that a thread continues. Each message begins or continues a session here, so a thread that begins
/// asks for nothing more.
fn read_thread(fields: &mut BodyFields) -> Result<Option<ResponseId>, ApiError> {
    let mut thread = fields.part("thread")?;
    let kind = thread.text("type")?;
    let previous = match kind.as_deref() {
        None | Some("create") => None,
        Some("continue") => {
            let id = thread.some_text("previous_message_id")?;
            Some(ResponseId::parse(MESSAGE_ID, &id).ok_or_else(thread_not_found)?)
        }
        Some(_) => {
            let message = "a thread is of type create or continue";
            return Err(ApiError::request(THREAD_UNSUPPORTED, &thread.at("type"), message));
        }
    };
    let unsupported = |error: ApiError| {
        ApiError::request(THREAD_UNSUPPORTED, error.param().unwrap_or_default(), error.message())
    };
    thread.refuse_rest("a thread").map_err(unsupported)?;
    Ok(previous)
}

/// No turn here has the message that a thread continues.
pub(super) fn thread_not_found() -> ApiError {
    let message = "no message with this id is kept here; send the whole conversation";
    ApiError::request(THREAD_NOT_FOUND, "thread.previous_message_id", message)
}

fn read(mut fields: BodyFields) -> Result<CompletionRequest, ApiError> {
    let mut messages = Vec::new();
    if fields.peek("system").is_some() {
        messages.push(Message::new(Role::System, fields.content("system", &["text"], BETWEEN_BLOCKS)?));
    }
    let inputs = fields.objects("messages")?;
    if inputs.is_empty() {
        return Err(ApiError::value("messages", "messages is empty"));
    }
    let mut ids = CallIds::default();
    for (index, message) in inputs.into_iter().enumerate() {
        read_message(index, message, &mut ids, &mut messages)?;
    }
    let tools = read_tools(&mut fields)?;
    if let Some(stop) = fields.take("stop_sequences") {
        fields.put("stop", stop);
    }
    read_format(&mut fields)?;
    read_common(fields, messages, tools)
}

/// A parameter under its name in this API, as in `messages.0.content`.
pub(super) fn own_param(param: &str) -> String {
    let own = match param {
        "stop" => "stop_sequences".to_owned(),
        "parallel_tool_calls" => "tool_choice.disable_parallel_tool_use".to_owned(),
        param => param
            .replace("response_format.json_schema", "output_config.format")
            .replace("response_format", "output_config.format")
            .replace(".function.parameters", ".input_schema")
            .replace(".function.", "."),
    };
    own.replace('[', ".").replace(']', "")
}

/// Reads `output_config`: writes the form of the answer as all APIs have it.
fn read_format(fields: &mut BodyFields) -> Result<(), ApiError> {
    let mut config = fields.part("output_config")?;
    // `high` is the API's default.
    if let Some(effort) = config.take("effort").filter(|effort| effort != "high") {
        neutral::check("effort", &effort).map_err(|error| error.renamed(|name| config.at(name)))?;
    }
    if let Some(format) = config.take("format") {
        fields.put(format::NAME, format::nested(format));
    }
    config.refuse_rest("output_config")
}

/// Reads the tools, in the form that the session holds, and the choice.
fn read_tools(fields: &mut BodyFields) -> Result<ToolRequest, ApiError> {
    let mut tools = Vec::new();
    for mut tool in fields.objects("tools")? {
        if tool.text("type")?.is_some_and(|kind| kind != "custom") {
            return Err(ApiError::unsupported(&tool.at("type"), "only tools of type custom are served"));
        }
        let mut function = Map::new();
        for name in ["name", "description", "input_schema", "strict"] {
            let own = if name == "input_schema" { "parameters" } else { name };
            function.extend(tool.take(name).map(|value| (own.to_owned(), value)));
        }
        // Wishes about caches and streams, which change no answer.
        tool.take("cache_control");
        tool.take("eager_input_streaming");
        tool.refuse_rest("a tool")?;
        tools.push(json!({ "type": "function", "function": function }));
    }
    let mut choice = fields.part("tool_choice")?;
    let parallel_tool_calls = choice.flag("disable_parallel_tool_use")?.map(|disable| !disable);
    let kind = choice.text("type")?;
    let choice = match kind.as_deref() {
        None | Some("auto") => ToolChoice::Auto,
        Some("none") => ToolChoice::Never,
        Some("any") => ToolChoice::Required,
        Some("tool") => {
            let missing =
                || ApiError::value("tool_choice.name", "a choice of type tool has the name of the tool");
            ToolChoice::Named(choice.text("name")?.ok_or_else(missing)?)
        }
        Some(_) => return Err(ApiError::value("tool_choice.type", "it is auto, any, tool or none")),
    };
    Ok(ToolRequest { tools, choice, parallel_tool_calls })
}

/// Reads a message. A user's message with results of tools becomes several: each result is a message here.
fn read_message(
    index: usize,
    mut message: BodyFields,
    ids: &mut CallIds,
    messages: &mut Vec<Message>,
) -> Result<(), ApiError> {
    // Instructions for all turns go into the parameter system.
    let role =
        message.role(if index > 0 { &["user", "assistant", "system"] } else { &["user", "assistant"] })?;
    let at = message.at("content");
    let Some(Value::Array(_)) = message.peek("content") else {
        messages.push(Message::new(role, message.content("content", &[], "")?));
        return message.refuse_rest("a message");
    };
    let blocks = message.objects("content")?;
    message.refuse_rest("a message")?;
    let (mut texts, mut calls) = (Vec::new(), Vec::new());
    let before = messages.len();
    for mut block in blocks {
        let kind = block.text("type")?.unwrap_or_default();
        match (kind.as_str(), role) {
            ("text", _) => texts.push(block.part_text()?),
            ("tool_use", Role::Assistant) => {
                let id = block.some_text("id")?;
                calls.push(PastCall::take(&mut block, Some(id), "input")?);
            }
            ("tool_result", Role::User) => {
                if !texts.is_empty() {
                    messages.push(Message::new(Role::User, texts.join(BETWEEN_BLOCKS)));
                    texts.clear();
                }
                messages.push(read_result(&mut block, ids)?);
            }
            // The API itself drops them before it asks a model.
            ("thinking" | "redacted_thinking", Role::Assistant) => {}
            (kind, _) => {
                let message = format!(
                    "a block of type {kind:?} is not supported here; send text, tool_use of the assistant and tool_result of the user"
                );
                return Err(ApiError::unsupported(&block.at("type"), message));
            }
        }
    }
    if role == Role::Assistant {
        messages.push(Message::new(role, ids.write(texts.concat(), calls, &at)?));
    } else if !texts.is_empty() || messages.len() == before {
        messages.push(Message::new(role, texts.join(BETWEEN_BLOCKS)));
    }
    Ok(())
}

fn read_result(block: &mut BodyFields, ids: &CallIds) -> Result<Message, ApiError> {
    let id = block.some_text("tool_use_id")?;
    let content = block.content("content", &["text"], BETWEEN_BLOCKS)?;
    // Models see a result as text alone.
    let text = if block.flag("is_error")? == Some(true) { format!("Error: {content}") } else { content };
    Ok(Message { role: Role::Tool, name: None, call_id: Some(ids.ours(id)), text })
}

/// Tokens of a request's texts and tools, by their bytes: more than a model's vocabulary makes of English. The API
/// counts without a limit of the answer.
pub(super) fn token_estimate(body: &[u8]) -> Result<u64, ApiError> {
    Ok(read(BodyFields::of_body(body)?)?.input_estimate())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apis::anthropic::error_body;
    use crate::form::fields::with;

    fn read(more: Value) -> Result<CompletionRequest, ApiError> {
        let body = with(
            json!({ "model": "m", "max_tokens": 20, "messages": [{ "role": "user", "content": "hi" }] }),
            more,
        );
        read_request(body.to_string().as_bytes(), None).map(|(request, _)| request)
    }

    #[test]
    fn texts_blocks_and_system_become_messages() {
        let request = read(json!({
            "system": [{ "type": "text", "text": "be brief", "cache_control": { "type": "ephemeral" } },
                       { "type": "text", "text": "in rhyme" }],
            "messages": [
                { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
                { "role": "assistant", "content": [{ "type": "thinking", "thinking": "x", "signature": "" },
                                                   { "type": "text", "text": "c" }] },
                { "role": "user", "content": "d" },
            ],
            "stop_sequences": ["END"], "top_k": 5, "temperature": 0.5, "stream": true, "metadata": { "user_id": "u" },
        }))
        .unwrap();
        assert_eq!(request.system, [Message::new(Role::System, "be brief\n\nin rhyme")]);
        assert_eq!(request.said(), [(Role::User, "a\n\nb"), (Role::Assistant, "c"), (Role::User, "d")]);
        assert_eq!((request.max_tokens, request.stream), (Some(20), true));
        assert_eq!((request.sampling.top_k, &request.sampling.stop[0][..]), (5, "END"));
    }

    #[test]
    fn calls_and_their_results_become_messages_of_their_own() {
        let call =
            |id: &str, name: &str| json!({ "type": "tool_use", "id": id, "name": name, "input": { "a": 1 } });
        let request = read(json!({
            "tools": [{ "name": "f", "description": "d", "input_schema": { "type": "object" } }],
            "messages": [
                { "role": "user", "content": "weather?" },
                { "role": "assistant", "content": [{ "type": "text", "text": "I look." }, call("toolu_1", "f"), call("toolu_2", "g")] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "toolu_2", "content": "rain", "is_error": true },
                    { "type": "tool_result", "tool_use_id": "toolu_1", "content": [{ "type": "text", "text": "sun" }] },
                    { "type": "text", "text": "and?" },
                ] },
            ],
        }))
        .unwrap();
        assert!(request.tools.as_ref().unwrap().has("f"));
        let answer = baton_proto::tools::read_answer(&request.messages[1].text, |_| true);
        assert_eq!((answer.content.trim(), answer.calls.len()), ("I look.", 2));
        let results = [(Role::Tool, "Error: rain"), (Role::Tool, "sun"), (Role::User, "and?")];
        assert_eq!(request.said()[2..], results);
        let places = [2, 3].map(|index: usize| {
            baton_proto::tools::call_position(request.messages[index].call_id.as_deref().unwrap())
        });
        assert_eq!(places, [Some(1), Some(0)]);
    }

    #[test]
    fn empty_contents_of_a_history_are_taken_and_null_is_absent() {
        let result = |more: Value| {
            with(json!({ "type": "tool_result", "tool_use_id": "toolu_1", "is_error": null }), more)
        };
        let empty = [
            json!({}),
            json!({ "content": null }),
            json!({ "content": "" }),
            json!({ "content": [] }),
            json!({ "content": [{ "type": "text", "text": "" }] }),
            json!({ "content": [{ "type": "text", "text": null }] }),
        ];
        for more in empty {
            let request = read(json!({
                "stop_sequences": null, "temperature": null, "thread": null, "tool_choice": { "type": "auto", "name": null },
                "tools": [{ "name": "f", "type": null, "description": null, "input_schema": { "required": null } }],
                "output_config": { "effort": null, "format": null },
                "messages": [
                    { "role": "user", "content": [] },
                    { "role": "assistant", "content": [{ "type": "tool_use", "id": "toolu_1", "name": "f", "input": null }] },
                    { "role": "user", "content": [result(more)] },
                ],
            }))
            .unwrap();
            assert_eq!((request.messages.len(), request.said()[2]), (3, (Role::Tool, "")));
        }
    }

    #[test]
    fn a_thread_is_continued_in_the_session_of_its_message() {
        let begun = read(json!({ "thread": { "type": "create" } })).unwrap();
        assert_eq!((begun.session, begun.place), (None, RequestPlace::AfterMessages));
        let id = format!("msg_{}{:016x}", "7".repeat(64), 3);
        let continued = read(json!({ "thread": { "type": "continue", "previous_message_id": id } })).unwrap();
        assert_eq!((continued.session, continued.place), (Some("7".repeat(64)), RequestPlace::AfterTurn(3)));
        for (thread, code) in [
            (json!({ "type": "continue", "previous_message_id": "msg_1" }), "thread_not_found"),
            (json!({ "type": "fork" }), "thread_unsupported_request"),
            (json!({ "type": "create", "more": 1 }), "thread_unsupported_request"),
        ] {
            let api_error = read(json!({ "thread": thread })).unwrap_err();
            assert_eq!(error_body(&api_error, None)["error"]["details"]["error_code"], code);
        }
    }

    #[test]
    fn wishes_of_coding_agents_that_change_no_answer_are_served() {
        let request = read(json!({
            "thinking": { "type": "adaptive" }, "output_config": { "effort": "high" },
            "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
            "messages": [{ "role": "user", "content": "a" }, { "role": "system", "content": "b" }],
        }))
        .unwrap();
        assert_eq!(request.said(), [(Role::User, "a"), (Role::System, "b")]);
    }

    #[test]
    fn a_form_is_a_schema_and_an_estimate_grows_with_the_text() {
        let format = json!({ "type": "json_schema", "schema": { "type": "object" } });
        let request = read(json!({ "output_config": { "format": format } })).unwrap();
        assert!(request.json_schema.unwrap().contains("object"));
        let count = |text: &str| {
            let body = json!({ "model": "m", "messages": [{ "role": "user", "content": text }] });
            token_estimate(body.to_string().as_bytes()).unwrap()
        };
        assert_eq!((count("abc"), count(&"abc".repeat(100))), (7, 106));
    }

    #[test]
    fn parameters_that_are_not_served_are_refused_by_their_names() {
        let said = |blocks: Value| json!([{ "role": "user", "content": blocks }]);
        let used = json!({ "type": "tool_use", "id": "1", "name": "f", "input": [] });
        let edits = json!({ "edits": [{ "type": "clear_tool_uses_20250919" }] });
        for (name, value, param) in [
            ("max_tokens", json!(null), "max_tokens"),
            ("max_tokens", json!(0), "max_tokens"),
            ("max_tokens", json!("8"), "max_tokens"),
            ("messages", json!([{ "role": "user", "content": 5 }]), "messages.0.content"),
            ("messages", json!([5]), "messages.0"),
            ("tools", json!([{ "name": 5 }]), "tools.0.name"),
            ("thread", json!({ "type": "fork" }), "thread.type"),
            ("thread", json!({ "type": "create", "more": 1 }), "thread.more"),
            ("thread", json!({ "type": "continue" }), "thread.previous_message_id"),
            ("messages", json!([]), "messages"),
            ("messages", json!([{ "role": "system", "content": "x" }]), "messages.0.role"),
            ("messages", said(json!([{ "type": "image", "source": {} }])), "messages.0.content.0.type"),
            ("messages", said(json!([{ "type": "text" }])), "messages.0.content.0.text"),
            ("messages", said(json!([{ "type": "tool_result" }])), "messages.0.content.0.tool_use_id"),
            ("messages", json!([{ "role": "assistant", "content": [used] }]), "messages.0.content.0.input"),
            ("system", json!([{ "type": "image" }]), "system.0.type"),
            ("system", json!("x".repeat(600 * 1024)), "system"),
            ("temperature", json!(9), "temperature"),
            ("stop_sequences", json!([""]), "stop_sequences"),
            ("thinking", json!({ "type": "enabled", "budget_tokens": 1024 }), "thinking"),
            ("tool_choice", json!({ "type": "any" }), "tool_choice"),
            ("tool_choice", json!({ "type": "tool" }), "tool_choice.name"),
            ("tool_choice", json!({ "type": "some" }), "tool_choice.type"),
            ("tools", json!([{ "type": "web_search_20250305", "name": "web_search" }]), "tools.0.type"),
            ("tools", json!([{ "name": "f", "input_schema": {}, "strict": 1 }]), "tools.0.strict"),
            ("tools", json!([{ "name": "a b", "input_schema": {} }]), "tools.0.name"),
            ("output_config", json!({ "effort": "low" }), "output_config.effort"),
            ("output_config", json!({ "format": { "type": "regex" } }), "output_config.format"),
            ("context_management", edits, "context_management.edits.0.type"),
            ("mcp_servers", json!([{}]), "mcp_servers"),
            ("temprature", json!(1), "temprature"),
        ] {
            let api_error =
                read(json!({ name: value.clone() })).err().unwrap_or_else(|| panic!("{name} {value}"));
            let body = error_body(&api_error, None);
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.contains(param), "{param}: {message}");
            assert_eq!(body["error"]["type"], "invalid_request_error");
        }
        let elsewhere = json!([{ "name": "f", "input_schema": { "$ref": "http://x" } }]);
        let api_error = read(json!({ "tools": elsewhere, "tool_choice": { "type": "any" } })).unwrap_err();
        assert_eq!(own_param(api_error.param().unwrap()), "tools.0.input_schema");
        let parallel = json!({
            "tools": [{ "name": "f", "input_schema": {} }],
            "tool_choice": { "type": "auto", "disable_parallel_tool_use": true },
        });
        let request = read(parallel).unwrap();
        assert!(request.is_one_call);
        assert_eq!(request.sampling.stop, ["</tool_call>"]);
    }
}
