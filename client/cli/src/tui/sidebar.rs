//! The list of sessions beside the conversation. Pure, except for reading them.

use std::sync::{Arc, Mutex, PoisonError};

use baton_client::{Client, ClientError, Conversation};
use baton_proto::{ids::SessionId, text::searchable};

use super::wrap;

/// Most listed sessions, the last used: more than a user looks through; `baton session list` has all.
pub(crate) const MAX_SESSIONS: usize = 100;
/// Longest filter.
const MAX_FILTER_BYTES: usize = 200;
/// File times may be this much coarser than the clock.
const TIME_SLACK_MS: u64 = 2000;

/// A session in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionEntry {
    /// The session.
    pub session: SessionId,
    /// Its title.
    pub title: String,
    /// Turns that count.
    pub turns: usize,
    /// Time of its last use, in milliseconds since the Unix epoch.
    pub used_ms: u64,
}

impl SessionEntry {
    fn of(conversation: &Conversation) -> Self {
        let title = wrap::clean_line(&conversation.title);
        let (session, turns, used_ms) =
            (conversation.session, conversation.turns.len(), conversation.used_ms);
        Self { session, title, turns, used_ms }
    }
}

/// Reads the list. Sessions unchanged since the last read are not read again.
pub(crate) async fn list(client: &Client, known: &[SessionEntry]) -> Result<Vec<SessionEntry>, ClientError> {
    let since = known.iter().map(|one| one.used_ms).max().unwrap_or(0).saturating_sub(TIME_SLACK_MS);
    let read = Arc::new(Mutex::new(Vec::new()));
    let sink = read.clone();
    let look = move |conversation: Conversation| {
        sink.lock().unwrap_or_else(PoisonError::into_inner).push(SessionEntry::of(&conversation));
    };
    client.each_conversation(since, MAX_SESSIONS, look).await?;
    let there = client.session_ids().await?;
    let mut listed = std::mem::take(&mut *read.lock().unwrap_or_else(PoisonError::into_inner));
    let fresh: Vec<SessionId> = listed.iter().map(|one| one.session).collect();
    let old = known.iter().filter(|one| there.contains(&one.session) && !fresh.contains(&one.session));
    listed.extend(old.cloned());
    listed.sort_by_key(|one| std::cmp::Reverse((one.used_ms, one.session)));
    listed.truncate(MAX_SESSIONS);
    Ok(listed)
}

/// The list on the screen.
#[derive(Debug, Default)]
pub(crate) struct Sidebar {
    all: Vec<SessionEntry>,
    /// The sessions that the filter leaves.
    listed: Vec<SessionEntry>,
    selected: usize,
    filter: Option<Filter>,
    /// Whether it has the keyboard focus.
    pub focused: bool,
    /// Whether the user closed it.
    pub hidden: bool,
}

/// Words that the title of a listed session has.
#[derive(Debug, Default)]
struct Filter {
    text: String,
    /// Whether keys still change it.
    typing: bool,
}

impl Filter {
    fn fits(&self, one: &SessionEntry) -> bool {
        let title = searchable(&one.title);
        let id = one.session.to_string();
        let mut words = self.text.split_whitespace().map(searchable);
        words.all(|word| title.contains(&word) || id.starts_with(&word))
    }
}

impl Sidebar {
    /// The sessions that the filter leaves.
    pub(crate) fn listed(&self) -> &[SessionEntry] {
        &self.listed
    }

    /// The index of the marked session.
    pub(crate) fn selected(&self) -> usize {
        self.selected
    }

    /// Takes a new list; the mark stays on its session.
    pub(crate) fn set(&mut self, listed: Vec<SessionEntry>) {
        self.all = listed;
        self.apply_filter();
    }

    /// Lists the sessions that fit; the mark stays on its session if that is listed.
    fn apply_filter(&mut self) {
        let marked = self.choice();
        let fits = |one: &&SessionEntry| self.filter.as_ref().is_none_or(|filter| filter.fits(one));
        self.listed = self.all.iter().filter(fits).cloned().collect();
        let found = marked.and_then(|id| self.listed.iter().position(|one| one.session == id));
        self.selected = found.unwrap_or(0);
    }

    /// The words of the filter, and whether keys still change them.
    pub(crate) fn filter(&self) -> Option<(&str, bool)> {
        self.filter.as_ref().map(|filter| (filter.text.as_str(), filter.typing))
    }

    /// Lets keys change the filter, or takes its words as they are.
    pub(crate) fn type_filter(&mut self, typing: bool) {
        self.filter.get_or_insert_default().typing = typing;
        if self.filter.as_ref().is_some_and(|filter| !typing && filter.text.trim().is_empty()) {
            self.filter = None;
        }
    }

    /// Adds a character to the filter, or takes one off.
    pub(crate) fn edit_filter(&mut self, added: Option<char>) {
        let Some(filter) = &mut self.filter else { return };
        match added {
            Some(c) if filter.text.len() < MAX_FILTER_BYTES => filter.text.push(c),
            Some(_) => {}
            None => drop(filter.text.pop()),
        }
        self.apply_filter();
    }

    /// Removes the filter; false if there is none.
    pub(crate) fn clear_filter(&mut self) -> bool {
        let had = self.filter.take().is_some();
        self.apply_filter();
        had
    }

    /// Gives the keyboard focus back, and lists all sessions.
    pub(crate) fn unfocus(&mut self) {
        self.focused = false;
        self.clear_filter();
    }

    /// Whether there are sessions, listed or not.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Gives it the keyboard focus, with the mark on this session.
    pub(crate) fn focus(&mut self, session: Option<SessionId>) {
        self.focused = true;
        self.hidden = false;
        let found = session.and_then(|id| self.listed.iter().position(|one| one.session == id));
        self.selected = found.unwrap_or(self.selected);
    }

    /// The title of a session; empty if it is not in the list.
    pub(crate) fn title_of(&self, session: SessionId) -> String {
        let found = self.all.iter().find(|one| one.session == session);
        found.map(|one| one.title.clone()).unwrap_or_default()
    }

    /// Moves the mark.
    pub(crate) fn step(&mut self, by: isize) {
        let last = self.listed.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }

    /// The marked session.
    pub(crate) fn choice(&self) -> Option<SessionId> {
        self.listed.get(self.selected).map(|one| one.session)
    }
}
