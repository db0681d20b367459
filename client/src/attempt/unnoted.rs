//! The text of a reply since the last entry of the journal. It reaches the journal even if the caller drops
//! the reply, as when a person stops an answer: a later start shows the part that arrived.

use std::sync::Arc;

use zeroize::Zeroizing;

use crate::session::{
    open_session::Session,
    state::{AttemptChange, Entry},
};

/// The text of one attempt that is in no entry of the journal yet.
pub(super) struct UnnotedText {
    session: Arc<Session>,
    attempt: u32,
    text: Zeroizing<String>,
}

impl UnnotedText {
    pub(super) fn new(session: Arc<Session>, attempt: u32) -> Self {
        Self { session, attempt, text: Zeroizing::default() }
    }

    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// The entry with the text, which is then noted; none without a text.
    pub(super) fn take(&mut self) -> Option<Entry> {
        let text = std::mem::take(&mut *self.text);
        (!text.is_empty()).then_some(Entry::OfAttempt(self.attempt, AttemptChange::Received(text)))
    }

    /// Forgets the text: the turn was accepted, or the text is void.
    pub(super) fn clear(&mut self) {
        self.text = Zeroizing::default();
    }
}

impl Drop for UnnotedText {
    fn drop(&mut self) {
        if let Some(entry) = self.take() {
            self.session.note_later(entry);
        }
    }
}
