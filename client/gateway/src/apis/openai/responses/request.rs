//! Requests of OpenAI's Responses API, read strictly: an unsupported parameter is refused by name.

use baton_proto::{
    limits::MAX_OUTPUT_TOKENS,
    record::{Message, Role},
};
use serde_json::{Value, json};

use super::{RESPONSE_ID, ResponseId};
use crate::{
    form::{
        completion::{CompletionRequest, RequestPlace, Retention},
        fields::BodyFields,
        format, neutral,
        tools::{CallIds, PastCall, ToolRequest},
        wire::{read_choice, read_common},
    },
    http::api_error::ApiError,
};

/// Least `max_output_tokens`, as in OpenAI's API.
const LEAST_OUTPUT_TOKENS: u32 = 16;

/// A request as it is served.
pub(super) struct ResponseRequest {
    pub(super) completion: CompletionRequest,
    /// The response that this one follows.
    pub(super) previous: Option<ResponseId>,
    /// The parameters that the response object repeats.
    pub(super) echo: Value,
}

impl ResponseRequest {
    /// Reads a body.
    pub(super) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = BodyFields::of_body(body)?;
        let echo = echo(&fields);
        for name in ["messages", "max_tokens", "max_completion_tokens", "response_format"] {
            if fields.has(name) {
                let message = format!("{name} is a parameter of /v1/chat/completions, not of /v1/responses");
                return Err(ApiError::request("unknown_parameter", name, message));
            }
        }
        let previous = fields.text("previous_response_id")?;
        let parse = |text: String| ResponseId::parse(RESPONSE_ID, &text).ok_or_else(ResponseId::unknown);
        let previous = previous.map(parse).transpose()?;
        let mut messages = match fields.peek("input") {
            Some(Value::String(text)) => vec![Message::new(Role::User, text.as_str())],
            _ => read_items(fields.objects("input")?)?,
        };
        fields.take("input");
        let Some(first) = messages.first().map(|message| message.role) else {
            return Err(ApiError::value("input", "input is a text, or a list of items that is not empty"));
        };
        // Instructions of an earlier response do not carry over; an empty text removes the session's.
        let removed = (previous.is_some() && first != Role::System).then(String::new);
        let instructions = fields.text("instructions")?.or(removed);
        messages.splice(0..0, instructions.map(|text| Message::new(Role::System, text)));
        let stored = fields.flag("store")?.unwrap_or(true);
        if !stored && previous.is_some() {
            let message =
                "store is false, so nothing of this response is kept; previous_response_id needs a kept one";
            return Err(ApiError::unsupported("store", message));
        }
        let tools = tool_request(&mut fields)?;
        rename_shared(&mut fields)?;
        let completion = read_common(fields, messages, tools).map_err(own_name)?;
        let completion = CompletionRequest {
            retention: if stored { Retention::Stored } else { Retention::Brief },
            session: previous.map(|previous| previous.session.to_string()),
            place: previous.map_or_else(RequestPlace::default, |id| RequestPlace::AfterTurn(id.seq)),
            ..completion
        };
        Ok(Self { completion, previous, echo })
    }
}

/// The parameters that the response object repeats, with the API's defaults.
fn echo(fields: &BodyFields) -> Value {
    let field = |name: &str, default: Value| fields.peek(name).cloned().unwrap_or(default);
    let format = fields.peek("text").and_then(|text| text.get("format")).filter(|format| !format.is_null());
    json!({
        "instructions": field("instructions", Value::Null),
        "max_output_tokens": field("max_output_tokens", Value::Null),
        "metadata": field("metadata", json!({})),
        "parallel_tool_calls": field("parallel_tool_calls", json!(true)),
        "previous_response_id": field("previous_response_id", Value::Null),
        "reasoning": { "effort": null, "summary": null },
        "store": field("store", json!(true)),
        "temperature": field("temperature", Value::Null),
        "text": { "format": format.cloned().unwrap_or_else(|| json!({ "type": "text" })) },
        "tool_choice": field("tool_choice", "auto".into()),
        "tools": field("tools", json!([])),
        "top_p": field("top_p", Value::Null),
        "truncation": "disabled",
        "user": field("user", Value::Null),
    })
}

/// The tools, in the form of chat completions: the fields of a function are a map of their own.
fn tool_request(fields: &mut BodyFields) -> Result<ToolRequest, ApiError> {
    let mut tools = Vec::new();
    for mut tool in fields.objects("tools")? {
        match tool.text("type")?.as_deref() {
            None => return Err(ApiError::value(&tool.at("type"), "a tool has a type")),
            Some("function") => tools.push(json!({ "type": "function", "function": tool.rest() })),
            Some(_) => {
                let message = "only tools of the type function are served";
                return Err(ApiError::unsupported(&tool.at("type"), message));
            }
        }
    }
    let choice = read_choice(fields.take("tool_choice").as_ref(), "/name")?;
    Ok(ToolRequest { tools, choice, parallel_tool_calls: fields.flag("parallel_tool_calls")? })
}

/// Writes the parameters that all APIs share under their names there.
fn rename_shared(fields: &mut BodyFields) -> Result<(), ApiError> {
    if let Some(tokens) = fields.whole("max_output_tokens", LEAST_OUTPUT_TOKENS..=MAX_OUTPUT_TOKENS)? {
        fields.put("max_tokens", tokens);
    }
    let mut text = fields.part("text")?;
    if let Some(form) = text.take("format") {
        fields.put(format::NAME, format::nested(form));
    }
    if let Some(verbosity) = text.take("verbosity") {
        neutral::check("verbosity", &verbosity).map_err(|error| error.renamed(|name| text.at(name)))?;
    }
    text.refuse_rest("text")
}

/// A shared parameter under its name in this API.
pub(super) fn own_name(api_error: ApiError) -> ApiError {
    api_error.renamed(|param| match param {
        "max_tokens" => "max_output_tokens".to_owned(),
        "messages" => "input".to_owned(),
        "system" => "instructions".to_owned(),
        other => other
            .replace("response_format.json_schema", "text.format")
            .replace("response_format", "text.format")
            .replace(".function.", "."),
    })
}

/// The types of a content's parts that are texts.
const TEXT_PARTS: [&str; 3] = ["input_text", "output_text", "text"];

/// The items of an input, as messages.
#[derive(Default)]
struct InputItems {
    messages: Vec<Message>,
    ids: CallIds,
    /// The text of the assistant's message that is open. Calls follow it in one message.
    open: Option<String>,
    calls: Vec<PastCall>,
}

/// Reads the items of an input as messages.
fn read_items(items: Vec<BodyFields>) -> Result<Vec<Message>, ApiError> {
    let mut read = InputItems::default();
    for item in items {
        read.item(item)?;
    }
    read.close()?;
    Ok(read.messages)
}

impl InputItems {
    fn item(&mut self, mut item: BodyFields) -> Result<(), ApiError> {
        let kind = item.text("type")?.unwrap_or_else(|| "message".to_owned());
        match kind.as_str() {
            "message" => {
                let role = item.role(&["system", "developer", "user", "assistant"])?;
                let text = item.content("content", &TEXT_PARTS, "")?;
                self.close()?;
                if role == Role::Assistant {
                    self.open = Some(text);
                } else {
                    self.messages.push(Message::new(role, text));
                }
            }
            "function_call" => {
                let id = item.some_text("call_id")?;
                self.calls.push(PastCall::take(&mut item, Some(id), "arguments")?);
                self.open.get_or_insert_default();
            }
            "function_call_output" => {
                let id = item.some_text("call_id")?;
                let text = item.content("output", &TEXT_PARTS, "")?;
                self.close()?;
                let call_id = Some(self.ids.ours(id));
                self.messages.push(Message { role: Role::Tool, name: None, call_id, text });
            }
            other => {
                let message = format!(
                    "an item of type {other:?} is not supported; send messages, calls and their outputs"
                );
                return Err(ApiError::unsupported(&item.at("type"), message));
            }
        }
        // Programs send the items of earlier responses back, with their ids and states.
        item.take("id");
        item.take("status");
        item.refuse_rest("an item")
    }

    /// Ends the assistant's message, if one is open.
    fn close(&mut self) -> Result<(), ApiError> {
        let Some(text) = self.open.take() else { return Ok(()) };
        let text = self.ids.write(text, std::mem::take(&mut self.calls), "input")?;
        self.messages.push(Message::new(Role::Assistant, text));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::ids::SessionId;

    use super::*;
    use crate::form::fields::with;

    fn read(more: Value) -> Result<ResponseRequest, ApiError> {
        let body = with(json!({ "model": "m", "input": "hi" }), more);
        ResponseRequest::read(body.to_string().as_bytes())
    }

    #[test]
    fn texts_items_and_instructions_become_messages() {
        let request = read(json!({ "instructions": "be brief" })).unwrap();
        assert_eq!(request.completion.said(), [(Role::User, "hi")]);
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
        let expected = [(Role::User, "a"), (Role::Assistant, "b"), (Role::User, "c")];
        assert_eq!(request.completion.said(), expected);
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
    fn empty_outputs_and_contents_are_taken() {
        let empty = [
            json!({}),
            json!({ "output": null }),
            json!({ "output": "" }),
            json!({ "output": [] }),
            json!({ "output": [{ "type": "input_text", "text": "" }] }),
        ];
        for more in empty {
            let output =
                with(json!({ "type": "function_call_output", "call_id": "call_x", "status": null }), more);
            let items = json!([
                { "role": "user", "content": null },
                { "role": "assistant", "content": [] },
                { "type": "function_call", "call_id": "call_x", "name": "f", "arguments": null },
                output,
            ]);
            let request =
                read(json!({ "input": items, "text": null, "tools": null, "store": null })).unwrap();
            assert_eq!(request.completion.said().last(), Some(&(Role::Tool, "")));
        }
    }

    #[test]
    fn a_follower_names_its_session_and_drops_old_instructions() {
        let id = ResponseId { session: SessionId([7; 32]), seq: 3, is_one_call: false };
        let request = read(json!({ "previous_response_id": format!("resp_{id}") })).unwrap();
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
            let tool = with(json!({ "type": "function", "name": "f" }), more);
            json!([tool])
        };
        let image = json!([{ "role": "user", "content": [{ "type": "input_image" }] }]);
        for (name, value, param) in [
            ("background", json!(true), "background"),
            ("conversation", json!("conv_1"), "conversation"),
            ("truncation", json!("auto"), "truncation"),
            ("include", json!(["message.output_text.logprobs"]), "include"),
            ("reasoning", json!({ "effort": "high" }), "reasoning.effort"),
            ("max_output_tokens", json!(15), "max_output_tokens"),
            ("max_output_tokens", json!("20"), "max_output_tokens"),
            ("store", json!("no"), "store"),
            ("input", json!(5), "input"),
            ("instructions", json!("x".repeat(600 * 1024)), "instructions"),
            ("input", json!([5]), "input[0]"),
            ("text", json!(5), "text"),
            ("text", json!({ "more": 1 }), "text.more"),
            ("tools", json!([5]), "tools[0]"),
            ("max_output_tokens", json!(1_000_000), "max_output_tokens"),
            ("temperature", json!(9), "temperature"),
            ("temprature", json!(1), "temprature"),
            ("messages", json!([]), "messages"),
            ("input", json!([]), "input"),
            ("input", json!([{ "type": "item_reference", "id": "x" }]), "input[0].type"),
            ("input", json!([{ "type": "mcp_approval_response", "approve": true }]), "input[0].type"),
            ("input", json!([{ "role": "user", "content": "x", "name": "me" }]), "input[0].name"),
            ("input", json!([{ "role": "robot", "content": "x" }]), "input[0].role"),
            ("input", image, "input[0].content[0].type"),
            ("input", json!([{ "type": "function_call_output", "output": "x" }]), "input[0].call_id"),
            ("text", json!({ "format": { "type": "regex" } }), "text.format"),
            ("text", json!({ "verbosity": "high" }), "text.verbosity"),
            ("tools", json!([{ "type": "web_search" }]), "tools[0].type"),
            ("tools", json!([{ "type": "mcp", "server_label": "home" }]), "tools[0].type"),
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
