//! The items of an input as messages: texts, calls and their outputs.

use baton_proto::record::{Message, Role};

use crate::{
    form::{
        fields::BodyFields,
        tools::{CallFault, CallIds, PastCall, check_call_count},
    },
    http::api_error::ApiError,
};

/// The types of a content's parts that are texts.
const TEXT_PARTS: [&str; 3] = ["input_text", "output_text", "text"];

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
}

impl InputItems {
    pub(super) fn read(&mut self, items: Vec<BodyFields>) -> Result<(), ApiError> {
        for item in items {
            self.item(item)?;
        }
        self.close();
        Ok(())
    }

    fn item(&mut self, mut item: BodyFields) -> Result<(), ApiError> {
        let kind = item.text("type")?.unwrap_or_else(|| "message".to_owned());
        match kind.as_str() {
            "message" => {
                let role = role_of(&mut item)?;
                let text = item.content("content", &TEXT_PARTS, "")?;
                self.close();
                if role == Role::Assistant {
                    self.open = Some(OpenAnswer { text, calls: Vec::new() });
                } else {
                    self.messages.push(Message::new(role, text));
                }
            }
            "function_call" => {
                let (id, name) = (item.some_text("call_id")?, item.some_text("name")?);
                let arguments = item.text("arguments")?.unwrap_or_default();
                self.call(&item, id, name, &arguments)?;
            }
            "function_call_output" => {
                let id = item.some_text("call_id")?;
                let text = item.content("output", &TEXT_PARTS, "")?;
                self.result(id, text);
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

    fn call(&mut self, item: &BodyFields, id: String, name: String, arguments: &str) -> Result<(), ApiError> {
        let call = PastCall::new(Some(id), name, arguments).map_err(|fault| {
            let field = if fault == CallFault::Name { "name" } else { "arguments" };
            ApiError::value(&item.at(field), fault.message())
        })?;
        let answer = self.open.get_or_insert_with(OpenAnswer::default);
        answer.calls.push(call);
        check_call_count(answer.calls.len(), item.path())
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

fn role_of(item: &mut BodyFields) -> Result<Role, ApiError> {
    match item.text("role")?.as_deref() {
        Some("system" | "developer") => Ok(Role::System),
        Some("user") => Ok(Role::User),
        Some("assistant") => Ok(Role::Assistant),
        _ => {
            Err(ApiError::value(&item.at("role"), "a message's role is system, developer, user or assistant"))
        }
    }
}
