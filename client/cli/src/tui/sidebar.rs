//! The list of sessions beside the conversation. Pure, except for reading them.

use std::sync::mpsc;

use baton_client::{Client, ClientError, Conversation};
use baton_proto::ids::SessionId;

use super::wrap;

/// Most listed sessions, the last used: more than a user looks through; `baton session list` has all.
const MAX_SESSIONS: usize = 100;
/// File times may be this much coarser than the clock.
const TIME_SLACK_MS: u64 = 2000;

/// A session in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SessionEntry {
    /// The session.
    pub session: SessionId,
    /// Its title.
    pub title: String,
    /// Time of its last use, in milliseconds since the Unix epoch.
    pub used_ms: u64,
}

/// Reads the list. Sessions unchanged since the last read are not read again.
pub(super) async fn list(client: &Client, known: &[SessionEntry]) -> Result<Vec<SessionEntry>, ClientError> {
    let since = known.iter().map(|one| one.used_ms).max().unwrap_or(0).saturating_sub(TIME_SLACK_MS);
    let (found, read) = mpsc::channel();
    let look = move |Conversation { session, title, used_ms, .. }: Conversation| {
        // The receiver lives until the look is over.
        let _ = found.send(SessionEntry { session, title: wrap::clean_line(&title), used_ms });
    };
    client.each_conversation(since, MAX_SESSIONS, look).await?;
    let there = client.session_ids().await?;
    let mut listed: Vec<SessionEntry> = read.into_iter().collect();
    let fresh: Vec<SessionId> = listed.iter().map(|one| one.session).collect();
    let old = known.iter().filter(|one| there.contains(&one.session) && !fresh.contains(&one.session));
    listed.extend(old.cloned());
    listed.sort_by_key(|one| std::cmp::Reverse((one.used_ms, one.session)));
    listed.truncate(MAX_SESSIONS);
    Ok(listed)
}

/// The list on the screen.
#[derive(Debug, Default)]
pub(super) struct Sidebar {
    /// The sessions, the last used first.
    pub listed: Vec<SessionEntry>,
    /// The index of the marked session.
    pub selected: usize,
    /// Whether it has the keyboard focus.
    pub focused: bool,
    /// Whether the user closed it.
    pub hidden: bool,
}

impl Sidebar {
    /// Takes a new list; the mark stays on its session.
    pub(super) fn set(&mut self, listed: Vec<SessionEntry>) {
        let marked = self.choice();
        self.listed = listed;
        self.selected = marked.and_then(|session| self.position(session)).unwrap_or(0);
    }

    fn position(&self, session: SessionId) -> Option<usize> {
        self.listed.iter().position(|one| one.session == session)
    }

    /// Gives it the keyboard focus, with the mark on this session.
    pub(super) fn focus(&mut self, session: Option<SessionId>) {
        self.focused = true;
        self.hidden = false;
        self.selected = session.and_then(|session| self.position(session)).unwrap_or(self.selected);
    }

    /// The title of a session; empty if it is not in the list.
    pub(super) fn title_of(&self, session: SessionId) -> String {
        let found = self.listed.iter().find(|one| one.session == session);
        found.map(|one| one.title.clone()).unwrap_or_default()
    }

    /// Moves the mark.
    pub(super) fn step(&mut self, by: isize) {
        let last = self.listed.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }

    /// The marked session.
    pub(super) fn choice(&self) -> Option<SessionId> {
        self.listed.get(self.selected).map(|one| one.session)
    }
}
