//! Conversations with a user. A single message, the prompt and the full-screen view drive the same
//! [`dialogue::Dialogue`].

pub(crate) mod dialogue;
pub(crate) mod line;
pub(crate) mod message;
mod opening;
pub(crate) mod options;
pub(crate) mod prompt;
pub(crate) mod rekey;

use baton_proto::ids::SessionId;

use crate::out::{Out, short};

/// Says that the message without an answer is in this session's journal.
fn note_saved(session: SessionId, out: &Out) {
    if let Some(command) = out.continuation(&short(&session)) {
        out.note(&format!("Your message is saved. Continue with: {command}"));
    }
}
