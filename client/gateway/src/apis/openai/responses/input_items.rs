//! The items of an input as messages: texts, calls and their outputs.

use baton_proto::record::{Message, Role};

use crate::{
    form::{
        fields::BodyFields,
        tools::{CallIds, PastCall},
    },
    http::api_error::ApiError,
};

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
pub(super) fn read_items(items: Vec<BodyFields>) -> Result<Vec<Message>, ApiError> {
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
