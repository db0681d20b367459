//! Requests of OpenAI's Responses API, read strictly: an unsupported parameter is refused by name.

use baton_proto::{
    record::{Message, Role},
    tools::Json,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    ResponseId,
    input_items::InputItems,
    remote::{Approval, ListedServer, WantedServer},
};
use crate::{
    api_error::ApiError,
    completion::{CompletionRequest, Retention},
    tool_servers::function_name,
    tools::{ToolChoice, ToolRequest},
    wire::{CommonParameters, parse, read_choice, unreadable},
};

/// Least `max_output_tokens`, as in OpenAI's API.
const LEAST_OUTPUT_TOKENS: u32 = 16;

/// A request as it is served.
pub(super) struct ResponseRequest {
    pub(super) completion: CompletionRequest,
    /// The response that this one follows.
    pub(super) previous: Option<ResponseId>,
    /// The parameters that the response object repeats.
    pub(super) echo: Map<String, Value>,
    /// Answers to requests for approval. Their results are still to be written into the messages.
    pub(super) approvals: Vec<Approval>,
    /// The servers whose tools the program has already.
    pub(super) known_servers: Vec<String>,
}

/// A request whose servers of tools are not asked yet.
pub(super) struct RequestDraft {
    body: Body,
    echo: Map<String, Value>,
    /// Functions of the program, in the form of chat completions.
    functions: Vec<Value>,
    pub(super) servers: Vec<WantedServer>,
}

#[derive(Deserialize)]
struct Body {
    input: Option<Input>,
    instructions: Option<String>,
    previous_response_id: Option<String>,
    store: Option<bool>,
    max_output_tokens: Option<u32>,
    text: Option<TextOptions>,
    tools: Option<Vec<Map<String, Value>>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    stream_options: Option<StreamOptions>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Text(String),
    Items(Vec<Map<String, Value>>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextOptions {
    format: Option<Value>,
    verbosity: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    /// Padding that hides the stream's sizes from observers; this connection is a loopback one.
    #[serde(default, rename = "include_obfuscation")]
    _include_obfuscation: Option<bool>,
}

impl RequestDraft {
    /// Reads a body.
    pub(super) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let mut body: Body = parse(body)?;
        let echo = body.echo();
        body.refuse_unserved()?;
        if body.stream_options.is_some() && body.rest.get("stream").and_then(Value::as_bool) != Some(true) {
            return Err(ApiError::value("stream_options", "stream_options needs stream to be true"));
        }
        let (functions, servers) = body.split_tools()?;
        Ok(Self { body, echo, functions, servers })
    }

    /// The request with the tools of these servers.
    pub(super) fn with_servers(self, listed: &[ListedServer]) -> Result<ResponseRequest, ApiError> {
        let Self { mut body, echo, mut functions, .. } = self;
        functions.extend(listed.iter().flat_map(ListedServer::functions));
        let previous = body
            .previous_response_id
            .as_deref()
            .map(|text| ResponseId::parse(text).ok_or_else(|| ResponseId::unknown("previous_response_id")));
        let previous = previous.transpose()?;
        let mut items = InputItems::default();
        match body.input.take() {
            None => {}
            Some(Input::Text(text)) => items.messages.push(Message::new(Role::User, text)),
            Some(Input::Items(input)) => items.read(input)?,
        }
        let InputItems { mut messages, mut approvals, known_servers, .. } = items;
        if messages.is_empty() {
            return Err(ApiError::value("input", "input is a text, or a list of items that is not empty"));
        }
        let pinned = messages.iter().take_while(|message| message.role == Role::System).count();
        for approval in &mut approvals {
            approval.message -= pinned;
        }
        let rest = messages.split_off(pinned);
        let mut system = messages;
        if let Some(instructions) = body.instructions.take() {
            system.insert(0, Message::new(Role::System, instructions));
        } else if previous.is_some() && system.is_empty() {
            // Instructions of an earlier response do not carry over; an empty text removes the session's.
            system.push(Message::new(Role::System, ""));
        }
        for message in system.iter().chain(&rest) {
            message.check().map_err(|_| ApiError::long_message("input", message))?;
        }
        let retention = if body.store == Some(false) { Retention::Brief } else { Retention::Stored };
        let tools = body.tool_request(functions)?.read().map_err(flat_name)?;
        let common = body.common()?;
        let completion = common.into_request(system, rest, None).map_err(own_name)?;
        let completion = tools.into_request(completion, "text.format")?;
        let completion = CompletionRequest { retention, ..completion };
        if completion.is_ephemeral() && previous.is_some() {
            let message =
                "store is false, so nothing of this response is kept; previous_response_id needs a kept one";
            return Err(ApiError::unsupported("store", message));
        }
        Ok(ResponseRequest { completion, previous, echo, approvals, known_servers })
    }
}

impl Body {
    /// The parameters that the response object repeats, with the API's defaults.
    fn echo(&self) -> Map<String, Value> {
        let rest = |name: &str, default: Value| self.rest.get(name).cloned().unwrap_or(default);
        let format = self.text.as_ref().and_then(|text| text.format.clone());
        let echo = json!({
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": rest("metadata", json!({})),
            "parallel_tool_calls": self.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": self.previous_response_id,
            "reasoning": { "effort": null, "summary": null },
            "store": self.store.unwrap_or(true),
            "temperature": rest("temperature", Value::Null),
            "text": { "format": format.unwrap_or_else(|| json!({ "type": "text" })) },
            "tool_choice": self.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            "tools": self.tools.clone().unwrap_or_default(),
            "top_p": rest("top_p", Value::Null),
            "truncation": "disabled",
            "user": rest("user", Value::Null),
        });
        match echo {
            Value::Object(echo) => echo,
            _ => Map::new(),
        }
    }

    /// Takes the parameters of this API that have one served value out of the rest.
    fn refuse_unserved(&mut self) -> Result<(), ApiError> {
        for (name, served, why) in [
            ("background", json!([false]), "a response is answered at once"),
            ("truncation", json!(["disabled"]), "a node cuts no input"),
            // There is no reasoning to hand out.
            ("include", json!([[], ["reasoning.encrypted_content"]]), "it is not served"),
            ("conversation", json!([]), "use previous_response_id"),
            ("prompt", json!([]), "send the prompt's text as instructions and input"),
            ("max_tool_calls", json!([]), "a response runs the approved calls alone"),
            ("top_logprobs", json!([0]), "/v1/chat/completions reports them"),
        ] {
            let value = self.rest.remove(name).unwrap_or_default();
            if !value.is_null() && !served.as_array().is_some_and(|served| served.contains(&value)) {
                return Err(ApiError::unsupported(name, format!("{name} is not supported: {why}")));
            }
        }
        self.refuse_reasoning()?;
        // A label for the server's own logs, which the gateway does not have.
        if self.rest.remove("client_metadata").is_some_and(|labels| !labels.is_object() && !labels.is_null())
        {
            return Err(ApiError::value("client_metadata", "client_metadata is an object"));
        }
        let verbosity = self.text.as_ref().and_then(|text| text.verbosity.as_ref());
        if verbosity.is_some_and(|value| !value.is_null() && *value != json!("medium")) {
            return Err(ApiError::unsupported("text.verbosity", "text.verbosity is not supported"));
        }
        if self.max_output_tokens.is_some_and(|tokens| tokens < LEAST_OUTPUT_TOKENS) {
            let message = format!("max_output_tokens is at least {LEAST_OUTPUT_TOKENS}");
            return Err(ApiError::value("max_output_tokens", message));
        }
        for name in ["messages", "prompt", "max_tokens", "max_completion_tokens", "n", "response_format"] {
            if self.rest.contains_key(name) {
                let message = format!("{name} is a parameter of /v1/chat/completions, not of /v1/responses");
                return Err(ApiError::request("unknown_parameter", name, message));
            }
        }
        Ok(())
    }

    /// No model here reasons apart from its answer. So an effort is refused, and a summary of nothing is not.
    fn refuse_reasoning(&mut self) -> Result<(), ApiError> {
        let wishes = match self.rest.remove("reasoning") {
            None | Some(Value::Null) => return Ok(()),
            Some(Value::Object(wishes)) => wishes,
            Some(_) => return Err(ApiError::value("reasoning", "reasoning is an object")),
        };
        for (name, value) in wishes {
            let is_served = match name.as_str() {
                "effort" => value.is_null() || value == "none",
                "summary" | "generate_summary" => {
                    value.is_null() || ["auto", "concise", "detailed"].iter().any(|known| value == *known)
                }
                _ => value.is_null(),
            };
            if !is_served {
                let message = format!("reasoning.{name} is not supported: no model here reasons");
                return Err(ApiError::unsupported(&format!("reasoning.{name}"), message));
            }
        }
        Ok(())
    }

    /// The tools: functions in the form that the session holds, whose fields are a map of their own, and servers.
    fn split_tools(&mut self) -> Result<(Vec<Value>, Vec<WantedServer>), ApiError> {
        let (mut functions, mut servers) = (Vec::new(), Vec::new());
        for (index, mut tool) in self.tools.take().unwrap_or_default().into_iter().enumerate() {
            let kind = tool.remove("type");
            match kind.as_ref().map(Value::as_str) {
                None => return Err(ApiError::value(&format!("tools[{index}].type"), "a tool has a type")),
                Some(Some("function")) => {
                    tool.retain(|_, value| !value.is_null());
                    functions.push(json!({ "type": "function", "function": tool }));
                }
                Some(Some("mcp")) => servers.push(WantedServer::read(index, tool)?),
                Some(_) => {
                    let message = "only tools of the types function and mcp are served";
                    return Err(ApiError::unsupported(&format!("tools[{index}].type"), message));
                }
            }
        }
        Ok((functions, servers))
    }

    fn tool_request(&mut self, functions: Vec<Value>) -> Result<ToolRequest, ApiError> {
        let tools = match functions.is_empty() {
            true => None,
            false => Json::parse(&Value::from(functions).to_string()),
        };
        let choice = self.tool_choice.take();
        let text = |field: &str| choice.as_ref()?.get(field)?.as_str();
        let choice = match (text("type"), text("server_label"), text("name")) {
            (Some("mcp"), Some(label), Some(tool)) => ToolChoice::Named(function_name(label, tool)),
            _ => read_choice(choice.as_ref(), "/name")?,
        };
        Ok(ToolRequest { tools, choice, parallel_tool_calls: self.parallel_tool_calls })
    }

    /// The parameters that all APIs share, under their names there.
    fn common(self) -> Result<CommonParameters, ApiError> {
        let mut rest = self.rest;
        if let Some(tokens) = self.max_output_tokens {
            rest.insert("max_completion_tokens".to_owned(), tokens.into());
        }
        if let Some(format) = self.text.and_then(|text| text.format).filter(|format| !format.is_null()) {
            rest.insert("response_format".to_owned(), nested_format(format));
        }
        serde_path_to_error::deserialize(Value::Object(rest)).map_err(|error| unreadable(&error))
    }
}

/// A `text.format` as `response_format` has it: the schema in a map of its own.
fn nested_format(format: Value) -> Value {
    match format {
        Value::Object(mut fields) if fields.get("type") == Some(&json!("json_schema")) => {
            fields.remove("type");
            json!({ "type": "json_schema", "json_schema": fields })
        }
        other => other,
    }
}

/// A tool's parameter under its name in this API.
fn flat_name(api_error: ApiError) -> ApiError {
    api_error.renamed(|param| param.replace(".function.", "."))
}

/// A shared parameter under its name in this API.
pub(super) fn own_name(api_error: ApiError) -> ApiError {
    api_error.renamed(|param| match param {
        "max_tokens" => "max_output_tokens".to_owned(),
        "messages" => "input".to_owned(),
        other => other
            .replace("response_format.json_schema", "text.format")
            .replace("response_format", "text.format"),
    })
}

#[cfg(test)]
mod tests {
    use baton_proto::ids::SessionId;

    use super::*;

    fn read(more: Value) -> Result<ResponseRequest, ApiError> {
        let mut body = json!({ "model": "m", "input": "hi" });
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        RequestDraft::read(body.to_string().as_bytes())?.with_servers(&[])
    }

    fn said(request: &ResponseRequest) -> Vec<(Role, &str)> {
        request.completion.messages.iter().map(|message| (message.role, message.text.as_str())).collect()
    }

    #[test]
    fn texts_items_and_instructions_become_messages() {
        let request = read(json!({ "instructions": "be brief" })).unwrap();
        assert_eq!(said(&request), [(Role::User, "hi")]);
        assert_eq!(request.completion.system, [Message::new(Role::System, "be brief")]);
        let items = json!([
            { "role": "developer", "content": "in rhyme" },
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "a" }] },
            { "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
              "content": [{ "type": "output_text", "text": "b", "annotations": [] }] },
            { "role": "user", "content": "c" },
        ]);
        let request = read(json!({ "instructions": "be brief", "input": items })).unwrap();
        assert_eq!(request.completion.system.len(), 2);
        assert_eq!(said(&request), [(Role::User, "a"), (Role::Assistant, "b"), (Role::User, "c")]);
        assert!(!request.completion.is_ephemeral());
        assert!(read(json!({ "store": false })).unwrap().completion.is_ephemeral());
    }

    #[test]
    fn calls_follow_their_text_and_outputs_name_them() {
        let items = json!([
            { "role": "user", "content": "weather?" },
            { "role": "assistant", "content": "I look." },
            { "type": "function_call", "call_id": "call_x", "name": "f", "arguments": "{\"a\":1}" },
            { "type": "function_call", "call_id": "call_y", "name": "g", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "call_y", "output": "rain" },
        ]);
        let request = read(json!({ "input": items })).unwrap();
        let messages = &request.completion.messages;
        assert_eq!(messages.len(), 3);
        let answer = baton_proto::tools::read_answer(&messages[1].text, |_| true);
        assert_eq!((answer.content.trim(), answer.calls.len()), ("I look.", 2));
        let id = messages[2].call_id.as_deref().unwrap();
        assert_eq!(baton_proto::tools::call_position(id), Some(1));
    }

    #[test]
    fn a_follower_names_its_session_and_drops_old_instructions() {
        let id = ResponseId { session: SessionId([7; 32]), seq: 3, is_one_call: false };
        let request = read(json!({ "previous_response_id": id.to_string() })).unwrap();
        assert_eq!(request.previous, Some(id));
        assert_eq!(request.completion.system, [Message::new(Role::System, "")]);
        let refused = read(json!({ "previous_response_id": "resp_1" })).err().unwrap();
        assert_eq!(refused.code(), "previous_response_not_found");
    }

    #[test]
    fn the_form_and_the_tools_are_read_from_their_flat_shapes() {
        let format =
            json!({ "type": "json_schema", "name": "n", "strict": true, "schema": { "type": "object" } });
        let request = read(json!({ "text": { "format": format } })).unwrap();
        assert!(request.completion.json_schema.unwrap().contains("object"));
        let tool =
            json!({ "type": "function", "name": "f", "parameters": { "type": "object" }, "strict": null });
        let request = read(json!({ "tools": [tool], "max_output_tokens": 20 })).unwrap();
        assert!(request.completion.tools.unwrap().has("f"));
        assert_eq!(request.completion.max_tokens, Some(20));
        assert_eq!(request.echo["tools"][0]["name"], "f");
    }

    #[test]
    fn parameters_that_are_not_served_are_refused_by_their_names() {
        let tool = |more: Value| {
            let mut tool = json!({ "type": "function", "name": "f" });
            if let (Value::Object(tool), Value::Object(more)) = (&mut tool, more) {
                tool.extend(more);
            }
            json!([tool])
        };
        for (name, value, param) in [
            ("background", json!(true), "background"),
            ("conversation", json!("conv_1"), "conversation"),
            ("truncation", json!("auto"), "truncation"),
            ("include", json!(["message.output_text.logprobs"]), "include"),
            ("reasoning", json!({ "effort": "high" }), "reasoning.effort"),
            ("max_output_tokens", json!(15), "max_output_tokens"),
            ("max_output_tokens", json!(1_000_000), "max_output_tokens"),
            ("temperature", json!(9), "temperature"),
            ("temprature", json!(1), "temprature"),
            ("messages", json!([]), "messages"),
            ("input", json!([]), "input"),
            ("input", json!([{ "type": "item_reference", "id": "x" }]), "input[0].type"),
            ("input", json!([{ "role": "user", "content": "x", "name": "me" }]), "input[0].name"),
            ("input", json!([{ "role": "robot", "content": "x" }]), "input[0].role"),
            (
                "input",
                json!([{ "role": "user", "content": [{ "type": "input_image" }] }]),
                "input[0].content",
            ),
            ("input", json!([{ "type": "function_call_output", "output": "x" }]), "input[0].call_id"),
            ("text", json!({ "format": { "type": "regex" } }), "text.format"),
            ("text", json!({ "verbosity": "high" }), "text.verbosity"),
            ("tools", json!([{ "type": "web_search" }]), "tools[0].type"),
            ("tools", tool(json!({ "strict": 1 })), "tools[0].strict"),
            ("tools", tool(json!({ "name": "a b" })), "tools[0].name"),
        ] {
            let api_error =
                read(json!({ name: value.clone() })).err().unwrap_or_else(|| panic!("{name} {value}"));
            assert_eq!(api_error.body()["error"]["param"], param, "{value}");
        }
        let served = json!({
            "background": false, "truncation": "disabled", "include": ["reasoning.encrypted_content"],
            "reasoning": { "effort": null, "summary": "auto" }, "client_metadata": { "a": "b" }, "metadata": { "a": "b" }, "user": "me", "top_logprobs": 0,
            "text": { "format": { "type": "text" }, "verbosity": "medium" }, "stream": true,
        });
        assert!(read(served).unwrap().completion.stream);
    }
}
