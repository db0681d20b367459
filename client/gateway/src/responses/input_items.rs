//! The items of an input as messages: texts, calls and their outputs, and the items of tool servers.

use baton_proto::record::{Message, Role};
use serde_json::{Map, Value};

use super::remote::{Approval, RemoteCall};
use crate::{
    api_error::ApiError,
    tool_servers::function_name,
    tools::{CallFault, CallIds, PastCall, check_call_count},
    wire::is_empty,
};

/// The assistant's message that the next items continue, with its calls.
#[derive(Default)]
struct OpenAnswer {
    text: String,
    calls: Vec<PastCall>,
}

/// The items of an input, as messages.
#[derive(Default)]
pub(super) struct InputItems {
    pub(super) messages: Vec<Message>,
    ids: CallIds,
    /// The answer that is open. Calls follow the assistant's text in one message.
    open: Option<OpenAnswer>,
    pub(super) approvals: Vec<Approval>,
    /// Calls that wait for approval, each with the id of its request.
    requests: Vec<(String, RemoteCall)>,
    pub(super) known_servers: Vec<String>,
}

impl InputItems {
    pub(super) fn read(&mut self, items: Vec<Map<String, Value>>) -> Result<(), ApiError> {
        for (index, item) in items.into_iter().enumerate() {
            self.item(index, item)?;
        }
        self.close();
        Ok(())
    }

    fn item(&mut self, index: usize, mut item: Map<String, Value>) -> Result<(), ApiError> {
        let at = |field: &str| format!("input[{index}].{field}");
        let kind = match item.remove("type") {
            None | Some(Value::Null) => "message".to_owned(),
            Some(Value::String(kind)) => kind,
            Some(_) => return Err(ApiError::value(&at("type"), "an item's type is a text")),
        };
        match kind.as_str() {
            "message" => {
                let role = role_of(item.remove("role"), &at("role"))?;
                let text = text_of(item.remove("content"), &at("content"))?;
                self.close();
                if role == Role::Assistant {
                    self.open = Some(OpenAnswer { text, calls: Vec::new() });
                } else {
                    self.messages.push(Message::new(role, text));
                }
            }
            "function_call" => {
                let [id, name, arguments] = texts(&mut item, index, ["call_id", "name", "arguments"])?;
                self.call(index, id, name, &arguments)?;
            }
            "function_call_output" => {
                let [id] = texts(&mut item, index, ["call_id"])?;
                let text = text_of(item.remove("output"), &at("output"))?;
                self.result(id, text);
            }
            "mcp_list_tools" => {
                let [label] = texts(&mut item, index, ["server_label"])?;
                self.known_servers.push(label);
                item.clear();
            }
            "mcp_approval_request" => {
                let [id, label, tool, arguments] =
                    texts(&mut item, index, ["id", "server_label", "name", "arguments"])?;
                let name = function_name(&label, &tool);
                self.call(index, Approval::call_id(&id).to_owned(), name, &arguments)?;
                self.requests.push((id, RemoteCall { label, tool, arguments }));
            }
            "mcp_approval_response" => {
                let [id] = texts(&mut item, index, ["approval_request_id"])?;
                let Some(Value::Bool(approved)) = item.remove("approve") else {
                    return Err(ApiError::value(&at("approve"), "approve is true or false"));
                };
                let reason = item.remove("reason").and_then(|reason| reason.as_str().map(str::to_owned));
                self.result(Approval::call_id(&id).to_owned(), String::new());
                let message = self.messages.len() - 1;
                let call = self.requests.iter().find(|(asked, _)| *asked == id);
                let call = call.map(|(_, call)| call.clone());
                self.approvals.push(Approval { id, approved, reason, message, call, result: None });
            }
            "mcp_call" => {
                let [id] = texts(&mut item, index, ["approval_request_id"])?;
                let text = ["output", "error"].iter().find_map(|name| item.get(*name)?.as_str());
                let approval = self.approvals.iter_mut().find(|approval| approval.id == id);
                let (Some(text), Some(approval)) = (text, approval) else {
                    let message =
                        "a call has its output or error, and follows the response to its approval request";
                    return Err(ApiError::value(&at("approval_request_id"), message));
                };
                approval.result = Some(text.to_owned());
                item.clear();
            }
            other => {
                let message = format!(
                    "an item of type {other:?} is not supported; send messages, calls and their outputs"
                );
                return Err(ApiError::unsupported(&at("type"), message));
            }
        }
        // Programs send the items of earlier responses back, with their ids and states.
        let ours = |name: &str| matches!(name, "id" | "status");
        if let Some((field, _)) = item.iter().find(|(name, value)| !ours(name) && !is_empty(value)) {
            return Err(ApiError::unsupported(&at(field), format!("{field} is not supported in an item")));
        }
        Ok(())
    }

    fn call(&mut self, index: usize, id: String, name: String, arguments: &str) -> Result<(), ApiError> {
        let call = PastCall::new(Some(id), name, arguments).map_err(|fault| {
            let field = if fault == CallFault::Name { "name" } else { "arguments" };
            ApiError::value(&format!("input[{index}].{field}"), fault.message())
        })?;
        let answer = self.open.get_or_insert_with(OpenAnswer::default);
        answer.calls.push(call);
        check_call_count(answer.calls.len(), &format!("input[{index}]"))
    }

    fn result(&mut self, id: String, text: String) {
        self.close();
        let call_id = Some(self.ids.ours(id));
        self.messages.push(Message { role: Role::Tool, name: None, call_id, text });
    }

    /// Ends the assistant's message, if one is open.
    fn close(&mut self) {
        let Some(OpenAnswer { text, calls }) = self.open.take() else { return };
        let text = if calls.is_empty() { text } else { self.ids.write(&text, calls) };
        self.messages.push(Message::new(Role::Assistant, text));
    }
}

/// Takes these texts out of an item.
fn texts<const N: usize>(
    item: &mut Map<String, Value>,
    index: usize,
    names: [&str; N],
) -> Result<[String; N], ApiError> {
    let mut taken = Vec::with_capacity(N);
    for name in names {
        let Some(Value::String(text)) = item.remove(name) else {
            return Err(ApiError::value(
                &format!("input[{index}].{name}"),
                format!("the item has the text {name}"),
            ));
        };
        taken.push(text);
    }
    taken.try_into().map_err(|_| ApiError::value("input", "an item cannot be read"))
}

fn role_of(role: Option<Value>, at: &str) -> Result<Role, ApiError> {
    match role.as_ref().and_then(Value::as_str) {
        Some("system" | "developer") => Ok(Role::System),
        Some("user") => Ok(Role::User),
        Some("assistant") => Ok(Role::Assistant),
        _ => Err(ApiError::value(at, "a message's role is system, developer, user or assistant")),
    }
}

/// A text, or the text of its parts.
fn text_of(content: Option<Value>, at: &str) -> Result<String, ApiError> {
    match content {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for part in &parts {
                let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
                match (kind, part.get("text").and_then(Value::as_str)) {
                    ("input_text" | "output_text" | "text", Some(part)) => text.push_str(part),
                    ("input_text" | "output_text" | "text", None) => {
                        return Err(ApiError::value(at, "a text part has no text"));
                    }
                    (kind, _) => {
                        let message = format!("content of type {kind:?} is not supported; send text");
                        return Err(ApiError::unsupported(at, message));
                    }
                }
            }
            Ok(text)
        }
        _ => Err(ApiError::value(at, "it is a text or a list of text parts")),
    }
}
