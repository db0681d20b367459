//! Requests of Anthropic's Messages API, read strictly: an unsupported parameter is refused by name.

use baton_proto::{
    record::{Message, Role},
    tools::Json,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    api_error::ApiError,
    completion::{CompletionRequest, SamplingRequest, check_max_tokens, is_any},
    format,
    tools::{CallFault, CallIds, PastCall, ToolChoice, ToolRequest, check_call_count},
    wire::{is_empty, parse},
};

/// Between the text blocks of a message, which are texts of their own.
const BETWEEN_BLOCKS: &str = "\n\n";

#[derive(Deserialize)]
struct MessagesBody {
    model: Option<String>,
    max_tokens: Option<u32>,
    messages: Vec<MessageInput>,
    system: Option<Content>,
    stream: Option<bool>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    stop_sequences: Option<Vec<String>>,
    tools: Option<Vec<Map<String, Value>>>,
    tool_choice: Option<Choice>,
    output_config: Option<OutputConfig>,
    thinking: Option<Thinking>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct MessageInput {
    role: String,
    content: Content,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Blocks(Vec<Map<String, Value>>),
}

#[derive(Deserialize)]
struct Choice {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputConfig {
    format: Option<OutputFormat>,
    effort: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputFormat {
    #[serde(rename = "type")]
    kind: String,
    schema: Option<Value>,
}

#[derive(Deserialize)]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
}

/// Reads a body.
///
/// # Parameters
/// `session` is the session that the header names.
pub(super) fn read_request(body: &[u8], session: Option<String>) -> Result<CompletionRequest, ApiError> {
    let body: MessagesBody = parse(body)?;
    body.rest.iter().try_for_each(|(name, value)| neutral(name, value))?;
    if body.max_tokens.is_none() {
        return Err(ApiError::value("max_tokens", "max_tokens is missing: a request limits its answer"));
    }
    check_max_tokens(body.max_tokens)?;
    // With `adaptive` the model decides whether it thinks, and no model here does.
    if body.thinking.is_some_and(|thinking| !matches!(thinking.kind.as_str(), "disabled" | "adaptive")) {
        let message = "thinking is not supported: no model here thinks in blocks of its own";
        return Err(ApiError::unsupported("thinking", message));
    }
    let sampling = SamplingRequest {
        top_k: body.top_k.unwrap_or(0),
        stop: body.stop_sequences.unwrap_or_default(),
        ..SamplingRequest::of(body.temperature, body.top_p)
    };
    sampling.check()?;
    let system = match body.system {
        None => Vec::new(),
        Some(content) => vec![Message::new(Role::System, text_of(content, "system")?)],
    };
    if body.messages.is_empty() {
        return Err(ApiError::value("messages", "messages is empty"));
    }
    let mut messages = Vec::with_capacity(body.messages.len());
    let mut ids = CallIds::default();
    for (index, message) in body.messages.into_iter().enumerate() {
        read_message(index, message, &mut ids, &mut messages)?;
    }
    for message in system.iter().chain(&messages) {
        message.check().map_err(|_| ApiError::long_message("messages", message))?;
    }
    let tools = tool_request(body.tools.unwrap_or_default(), body.tool_choice)?.read()?;
    let json_schema = body.output_config.map(schema_of).transpose()?.flatten();
    let request = CompletionRequest {
        session,
        model: body.model.filter(|model| !is_any(model)),
        sampling,
        max_tokens: body.max_tokens,
        stream: body.stream.unwrap_or(false),
        json_schema,
        ..CompletionRequest::new(system, messages)
    };
    tools.into_request(request, "output_config.format")
}

/// A parameter under its name in this API, as in `messages.0.content`.
pub(super) fn own_param(param: &str) -> String {
    let own = match param {
        "stop" => "stop_sequences".to_owned(),
        "parallel_tool_calls" => "tool_choice.disable_parallel_tool_use".to_owned(),
        "response_format" => "output_config.format".to_owned(),
        param => param.replace(".function.", "."),
    };
    own.replace('[', ".").replace(']', "")
}

/// Whether an unsupported parameter holds only its default.
fn neutral(name: &str, value: &Value) -> Result<(), ApiError> {
    // They describe the caller, or ask for a cache, which changes no answer.
    if matches!(name, "metadata" | "service_tier" | "cache_control") || is_empty(value) {
        return Ok(());
    }
    if name == "context_management" {
        return check_context_edits(value);
    }
    if matches!(name, "container" | "mcp_servers" | "inference_geo" | "speed") {
        return Err(ApiError::unsupported(name, format!("{name} is not supported: it is not served")));
    }
    Err(ApiError::request("unknown_parameter", name, format!("there is no parameter {name}")))
}

/// Whether the edits of a context change nothing: there are no thinking blocks that could be cleared.
fn check_context_edits(value: &Value) -> Result<(), ApiError> {
    let edits = value.get("edits").and_then(Value::as_array);
    let edits = edits.ok_or_else(|| ApiError::value("context_management", "it has edits, a list"))?;
    let clears_thinking = |edit: &Value| {
        edit.get("type").and_then(Value::as_str).is_some_and(|kind| kind.starts_with("clear_thinking_"))
    };
    match edits.iter().position(|edit| !clears_thinking(edit)) {
        None => Ok(()),
        Some(index) => {
            let param = format!("context_management.edits[{index}].type");
            Err(ApiError::unsupported(&param, "the gateway sends a conversation whole"))
        }
    }
}

fn schema_of(config: OutputConfig) -> Result<Option<String>, ApiError> {
    // `high` is the API's default.
    if config.effort.is_some_and(|effort| !effort.is_null() && effort != "high") {
        return Err(ApiError::unsupported("output_config.effort", "no model here has efforts"));
    }
    match config.format {
        None => Ok(None),
        Some(OutputFormat { kind, schema: Some(schema @ Value::Object(_)) }) if kind == "json_schema" => {
            format::check_length(schema.to_string(), "output_config.format.schema").map(Some)
        }
        Some(_) => {
            let message = "output_config.format is of type json_schema, and has the schema, an object";
            Err(ApiError::value("output_config.format", message))
        }
    }
}

/// The tools in the form that the session holds.
fn tool_request(tools: Vec<Map<String, Value>>, choice: Option<Choice>) -> Result<ToolRequest, ApiError> {
    let mut functions = Vec::with_capacity(tools.len());
    for (index, mut tool) in tools.into_iter().enumerate() {
        let at = |field: &str| format!("tools[{index}].{field}");
        match tool.remove("type") {
            None | Some(Value::Null) => {}
            Some(kind) if kind == "custom" => {}
            Some(_) => {
                return Err(ApiError::unsupported(&at("type"), "only tools of type custom are served"));
            }
        }
        let mut function = Map::new();
        for (theirs, ours) in [
            ("name", "name"),
            ("description", "description"),
            ("input_schema", "parameters"),
            ("strict", "strict"),
        ] {
            if let Some(value) = tool.remove(theirs).filter(|value| !value.is_null()) {
                function.insert(ours.to_owned(), value);
            }
        }
        // Wishes about caches and streams, which change no answer.
        tool.retain(|name, value| {
            !matches!(name.as_str(), "cache_control" | "eager_input_streaming") && !is_empty(value)
        });
        if let Some(name) = tool.keys().next() {
            return Err(ApiError::unsupported(&at(name), format!("{name} is not supported in a tool")));
        }
        functions.push(json!({ "type": "function", "function": function }));
    }
    let parallel =
        choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use).map(|disable| !disable);
    let named = choice.as_ref().and_then(|choice| choice.name.clone());
    let choice = match choice.as_ref().map(|choice| choice.kind.as_str()) {
        None | Some("auto") => ToolChoice::Auto,
        Some("none") => ToolChoice::Never,
        Some("any") => ToolChoice::Required,
        Some("tool") => {
            let missing =
                || ApiError::value("tool_choice.name", "a choice of type tool has the name of the tool");
            ToolChoice::Named(named.ok_or_else(missing)?)
        }
        Some(_) => return Err(ApiError::value("tool_choice.type", "it is auto, any, tool or none")),
    };
    let tools = if functions.is_empty() { None } else { Json::parse(&Value::from(functions).to_string()) };
    Ok(ToolRequest { tools, choice, parallel_tool_calls: parallel })
}

/// Reads a message. A user's message with results of tools becomes several: each result is a message here.
fn read_message(
    index: usize,
    message: MessageInput,
    ids: &mut CallIds,
    messages: &mut Vec<Message>,
) -> Result<(), ApiError> {
    let at = |field: &str| format!("messages[{index}].{field}");
    if let Some((field, _)) = message.rest.iter().find(|(_, value)| !is_empty(value)) {
        return Err(ApiError::unsupported(&at(field), format!("{field} is not supported in a message")));
    }
    let role = match message.role.as_str() {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" if index > 0 => Role::System,
        _ => {
            return Err(ApiError::value(
                &at("role"),
                "a message's role is user or assistant, or system after the first; instructions for all turns go into \
                 the parameter system",
            ));
        }
    };
    let blocks = match message.content {
        Content::Text(text) => {
            messages.push(Message::new(role, text));
            return Ok(());
        }
        Content::Blocks(blocks) => blocks,
    };
    let (mut texts, mut calls) = (Vec::new(), Vec::new());
    for (place, mut block) in blocks.into_iter().enumerate() {
        let at = |field: &str| format!("messages[{index}].content[{place}].{field}");
        let kind = block.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        match (kind.as_str(), role) {
            ("text", _) => texts.push(take_text(&mut block, &at("text"))?),
            ("tool_use", Role::Assistant) => calls.push(read_call(&mut block, at)?),
            ("tool_result", Role::User) => {
                if !texts.is_empty() {
                    messages.push(Message::new(Role::User, texts.join(BETWEEN_BLOCKS)));
                    texts.clear();
                }
                messages.push(read_result(&mut block, ids, at)?);
            }
            // The API itself drops them before it asks a model.
            ("thinking" | "redacted_thinking", Role::Assistant) => {}
            (kind, _) => {
                let message = format!(
                    "a block of type {kind:?} is not supported here; send text, tool_use of the assistant and tool_result of the user"
                );
                return Err(ApiError::unsupported(&at("type"), message));
            }
        }
    }
    check_call_count(calls.len(), &at("content"))?;
    if role == Role::Assistant {
        let text = texts.concat();
        let text = if calls.is_empty() { text } else { ids.write(&text, calls) };
        messages.push(Message::new(role, text));
    } else if !texts.is_empty() {
        messages.push(Message::new(role, texts.join(BETWEEN_BLOCKS)));
    }
    Ok(())
}

fn read_call(block: &mut Map<String, Value>, at: impl Fn(&str) -> String) -> Result<PastCall, ApiError> {
    let text = |value: Option<Value>| value.and_then(|value| value.as_str().map(str::to_owned));
    let (id, name) = (text(block.remove("id")), text(block.remove("name")));
    let Some(id) = id else { return Err(ApiError::value(&at("id"), "a call has an id")) };
    let input = block.remove("input").unwrap_or_else(|| json!({})).to_string();
    PastCall::new(Some(id), name.unwrap_or_default(), &input).map_err(|fault| match fault {
        CallFault::Name => ApiError::value(&at("name"), fault.message()),
        CallFault::Arguments => ApiError::value(&at("input"), "input is an object"),
    })
}

fn read_result(
    block: &mut Map<String, Value>,
    ids: &CallIds,
    at: impl Fn(&str) -> String,
) -> Result<Message, ApiError> {
    let Some(Value::String(id)) = block.remove("tool_use_id") else {
        return Err(ApiError::value(&at("tool_use_id"), "a result has the tool_use_id of its call"));
    };
    let content = match block.remove("content") {
        None | Some(Value::Null) => String::new(),
        Some(content) => {
            let content = serde_json::from_value(content);
            let content = content
                .map_err(|_| ApiError::value(&at("content"), "content is a text or a list of text blocks"))?;
            text_of(content, &at("content"))?
        }
    };
    // Models see a result as text alone.
    let text = match block.remove("is_error") {
        Some(Value::Bool(true)) => format!("Error: {content}"),
        _ => content,
    };
    Ok(Message { role: Role::Tool, name: None, call_id: Some(ids.ours(id)), text })
}

/// A text, or the texts of its blocks.
fn text_of(content: Content, at: &str) -> Result<String, ApiError> {
    let blocks = match content {
        Content::Text(text) => return Ok(text),
        Content::Blocks(blocks) => blocks,
    };
    let mut texts = Vec::with_capacity(blocks.len());
    for (place, mut block) in blocks.into_iter().enumerate() {
        let at = |field: &str| format!("{at}[{place}].{field}");
        if block.get("type").and_then(Value::as_str) != Some("text") {
            return Err(ApiError::unsupported(&at("type"), "only blocks of type text are supported here"));
        }
        texts.push(take_text(&mut block, &at("text"))?);
    }
    Ok(texts.join(BETWEEN_BLOCKS))
}

fn take_text(block: &mut Map<String, Value>, at: &str) -> Result<String, ApiError> {
    match block.remove("text") {
        Some(Value::String(text)) => Ok(text),
        _ => Err(ApiError::value(at, "a text block has a text")),
    }
}

/// Tokens of a request's texts and tools, by their bytes: more than a model's vocabulary makes of English.
pub(super) fn token_estimate(body: &[u8]) -> Result<u64, ApiError> {
    let mut body: Map<String, Value> = parse(body)?;
    // The API counts without a limit of the answer.
    body.entry("max_tokens").or_insert_with(|| 1.into());
    Ok(read_request(Value::Object(body).to_string().as_bytes(), None)?.input_estimate())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::error_body;

    fn read(more: Value) -> Result<CompletionRequest, ApiError> {
        let mut body =
            json!({ "model": "m", "max_tokens": 20, "messages": [{ "role": "user", "content": "hi" }] });
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        read_request(body.to_string().as_bytes(), None)
    }

    fn texts(request: &CompletionRequest) -> Vec<(Role, &str)> {
        request.messages.iter().map(|message| (message.role, message.text.as_str())).collect()
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
        assert_eq!(texts(&request), [(Role::User, "a\n\nb"), (Role::Assistant, "c"), (Role::User, "d")]);
        assert_eq!((request.max_tokens, request.stream), (Some(20), true));
        assert_eq!((request.sampling.top_k, request.sampling.stop), (5, vec!["END".to_owned()]));
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
        assert_eq!(
            texts(&request)[2..],
            [(Role::Tool, "Error: rain"), (Role::Tool, "sun"), (Role::User, "and?")]
        );
        let places = [2, 3].map(|index: usize| {
            baton_proto::tools::call_position(request.messages[index].call_id.as_deref().unwrap())
        });
        assert_eq!(places, [Some(1), Some(0)]);
    }

    #[test]
    fn wishes_of_coding_agents_that_change_no_answer_are_served() {
        let request = read(json!({
            "thinking": { "type": "adaptive" }, "output_config": { "effort": "high" },
            "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
            "messages": [{ "role": "user", "content": "a" }, { "role": "system", "content": "b" }],
        }))
        .unwrap();
        assert_eq!(texts(&request), [(Role::User, "a"), (Role::System, "b")]);
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
        for (name, value, param) in [
            ("max_tokens", json!(null), "max_tokens"),
            ("max_tokens", json!(0), "max_tokens"),
            ("messages", json!([]), "messages"),
            ("messages", json!([{ "role": "system", "content": "x" }]), "messages.0.role"),
            ("messages", said(json!([{ "type": "image", "source": {} }])), "messages.0.content.0.type"),
            ("messages", said(json!([{ "type": "text" }])), "messages.0.content.0.text"),
            ("messages", said(json!([{ "type": "tool_result" }])), "messages.0.content.0.tool_use_id"),
            (
                "messages",
                json!([{ "role": "assistant", "content": [{ "type": "tool_use", "id": "1", "name": "f", "input": [] }] }]),
                "messages.0.content.0.input",
            ),
            ("system", json!([{ "type": "image" }]), "system.0.type"),
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
            (
                "context_management",
                json!({ "edits": [{ "type": "clear_tool_uses_20250919" }] }),
                "context_management.edits.0.type",
            ),
            ("mcp_servers", json!([{}]), "mcp_servers"),
            ("temprature", json!(1), "temprature"),
        ] {
            let api_error =
                read(json!({ name: value.clone() })).err().unwrap_or_else(|| panic!("{name} {value}"));
            let body = error_body(&api_error, None);
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.contains(param), "{param}: {message}");
            assert_eq!(
                (&body["type"], &body["error"]["type"]),
                (&json!("error"), &json!("invalid_request_error"))
            );
        }
        let parallel = json!({
            "tools": [{ "name": "f", "input_schema": {} }],
            "tool_choice": { "type": "auto", "disable_parallel_tool_use": true },
        });
        let request = read(parallel).unwrap();
        assert!(request.is_one_call);
        assert_eq!(request.sampling.stop, ["</tool_call>"]);
    }
}
