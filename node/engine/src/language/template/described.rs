//! Tools for models whose chat template has no part for them: their definitions stand in the system text, with the
//! syntax of a call, and results are the user's messages.
//!
//! The words are part of a prompt, so answers of nodes can be compared only where all use the same words.

use zeroize::Zeroizing;

use crate::language::chat::{Conversation, Message, Role};

const BEFORE: &str = "You can call these functions:\n";
const AFTER: &str = "To call a function, answer with its name and its arguments:\n<tool_call>\n\
                     {\"name\": \"NAME\", \"arguments\": {}}\n</tool_call>\n\
                     The next message has the result. Call a function only where the answer needs it.";

/// The conversation without tools, calls and results as such.
pub(super) fn described(conversation: &Conversation) -> Conversation {
    let mut text = Zeroizing::new(String::new());
    let mut messages = Vec::with_capacity(conversation.messages.len() + 1);
    let mut rest = conversation.messages.as_slice();
    // Templates take one system text, the first message.
    while let [first, after @ ..] = rest
        && first.role == Role::System
    {
        text.push_str(&first.text);
        text.push_str("\n\n");
        rest = after;
    }
    text.push_str(BEFORE);
    for tool in &conversation.tools {
        text.push_str(&tool.text);
        text.push('\n');
    }
    text.push_str(AFTER);
    messages.push(Message::new(Role::System, text.as_str()));
    let mut results: Vec<&Message> = Vec::new();
    for message in rest {
        if message.role == Role::Tool {
            results.push(message);
            continue;
        }
        end_results(&mut results, &mut messages);
        messages.push(Message {
            name: message.name.clone(),
            ..Message::new(message.role, message.text.as_str())
        });
    }
    end_results(&mut results, &mut messages);
    Conversation { messages, tools: Vec::new() }
}

/// The results so far as one message of the user.
fn end_results(results: &mut Vec<&Message>, messages: &mut Vec<Message>) {
    if results.is_empty() {
        return;
    }
    let mut text = Zeroizing::new(String::new());
    for result in results.drain(..) {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str("<tool_response>\n");
        text.push_str(&result.text);
        text.push_str("\n</tool_response>");
    }
    messages.push(Message::new(Role::User, text.as_str()));
}
