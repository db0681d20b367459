//! Ephemeral sessions between two requests: in memory alone, for some minutes.
//!
//! An agent sends its whole conversation with each request, and asks that nothing of it is kept. In a session that
//! goes on, its node has read the conversation already, and reads the new messages alone.

use std::time::Duration;

use baton_client::{Client, ClientError, NewSession};
use baton_proto::{
    ids::SessionId,
    record::{Message, Role},
    text::is_same_place,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::state::session_index::same_messages;

/// Time after its last answer until a session ends.
pub(crate) const IDLE_TIME: Duration = Duration::from_secs(5 * 60);
/// Most idle sessions. The session that was used longest ago ends first.
const MAX_IDLE: usize = 16;
/// Most bytes of their messages.
const MAX_IDLE_BYTES: usize = 64 * 1024 * 1024;
/// Time to acknowledge the last answer to its node. The node stores the blobs.
const GRACE: Duration = Duration::from_secs(5);

/// A session of a client of its own. No list and no head index contains it, and its blobs lie in the store for the
/// shortest time.
pub(crate) struct EphemeralSession {
    pub(crate) client: Client,
    pub(crate) id: SessionId,
}

impl EphemeralSession {
    pub(crate) async fn begin(client: &Client, system: Vec<Message>) -> Result<Self, ClientError> {
        let client = client.ephemeral()?;
        let id = client.new_session(NewSession { system, ..NewSession::default() }).await?;
        Ok(Self { client, id })
    }

    /// Ends it, and wipes its keys.
    pub(crate) async fn end(self) {
        self.client.shutdown(GRACE).await;
    }
}

/// The messages of a session.
#[derive(Clone, PartialEq)]
pub(crate) struct EphemeralHistory {
    /// The project of the program's key; none for the owner's programs.
    pub(crate) project: Option<String>,
    /// System texts and tools.
    pub(crate) pinned: Vec<Message>,
    /// All other messages, with the answers.
    pub(crate) messages: Vec<Message>,
    /// Answered turns.
    pub(crate) turns: u64,
}

impl EphemeralHistory {
    /// Whether a request of the project with these messages continues the session.
    fn is_of(&self, project: Option<&str>, pinned: &[Message], messages: &[Message]) -> bool {
        is_same_place(self.project.as_deref(), project)
            && self.pinned == pinned
            && same_messages(&self.messages, messages)
    }

    /// Notes an answered turn.
    pub(crate) fn answered(&mut self, messages: Vec<Message>, answer: &str) {
        self.messages.extend(messages);
        self.messages.push(Message::new(Role::Assistant, answer));
        self.turns += 1;
    }

    fn bytes(&self) -> usize {
        self.pinned.iter().chain(&self.messages).map(|message| message.text.len()).sum()
    }
}

/// The idle sessions, the last used last.
pub(crate) struct IdleSessions<T = EphemeralSession>(Mutex<Vec<IdleSession<T>>>);

struct IdleSession<T> {
    history: EphemeralHistory,
    session: T,
    used: Instant,
}

impl<T> Default for IdleSessions<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// Without the messages, which no log may have.
impl<T> std::fmt::Debug for IdleSessions<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IdleSessions")
    }
}

impl<T> IdleSessions<T> {
    /// Takes the session of a project that has exactly these messages.
    pub(crate) fn take(
        &self,
        project: Option<&str>,
        pinned: &[Message],
        messages: &[Message],
    ) -> Option<(EphemeralHistory, T)> {
        let mut idle = self.0.lock();
        let position = idle.iter().rposition(|one| one.history.is_of(project, pinned, messages))?;
        let taken = idle.remove(position);
        Some((taken.history, taken.session))
    }

    /// Keeps a session for a next request. The caller ends the returned sessions, for which there is no room.
    #[must_use]
    pub(crate) fn keep(&self, history: EphemeralHistory, session: T, now: Instant) -> Vec<T> {
        let mut idle = self.0.lock();
        idle.push(IdleSession { history, session, used: now });
        let (mut count, mut bytes) = (0, 0);
        let fitting = idle.iter().rev().take_while(|one| {
            count += 1;
            bytes += one.history.bytes();
            count <= MAX_IDLE && bytes <= MAX_IDLE_BYTES
        });
        let surplus = idle.len() - fitting.count();
        idle.drain(..surplus).map(|one| one.session).collect()
    }

    /// Takes the sessions that were not used for a time. The caller ends them.
    #[must_use]
    pub(crate) fn unused(&self, time: Duration, now: Instant) -> Vec<T> {
        let mut idle = self.0.lock();
        let unused = idle.iter().take_while(|one| now.duration_since(one.used) >= time).count();
        idle.drain(..unused).map(|one| one.session).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(text: &str) -> EphemeralHistory {
        let messages = vec![Message::new(Role::User, text), Message::new(Role::Assistant, "yes")];
        EphemeralHistory {
            project: None,
            pinned: vec![Message::new(Role::System, "brief")],
            messages,
            turns: 1,
        }
    }

    #[test]
    fn a_session_is_taken_once_by_the_program_that_has_its_messages() {
        let idle = IdleSessions::default();
        let one = history("a");
        assert!(idle.keep(one.clone(), 1, Instant::now()).is_empty());
        assert!(idle.take(None, &one.pinned, &one.messages[..1]).is_none(), "within a turn");
        assert!(idle.take(None, &one.pinned, &history("b").messages).is_none(), "other messages");
        assert!(idle.take(None, &[], &one.messages).is_none(), "other system text");
        assert!(idle.take(Some("anna"), &one.pinned, &one.messages).is_none(), "another project");
        let taken = idle.take(None, &one.pinned, &one.messages);
        assert!(taken.is_some_and(|(taken, session)| taken == one && session == 1));
        assert!(idle.take(None, &one.pinned, &one.messages).is_none());
    }

    #[test]
    fn sessions_are_few_and_small_and_the_oldest_ends_first() {
        let (idle, now) = (IdleSessions::default(), Instant::now());
        for number in 0..MAX_IDLE {
            assert!(idle.keep(history(&number.to_string()), number, now).is_empty());
        }
        assert_eq!(idle.keep(history("one more"), 99, now), [0]);
        let large = "x".repeat(MAX_IDLE_BYTES / 2);
        assert_eq!(idle.keep(history(&large), 100, now), [1]);
        let left: Vec<usize> = (2..MAX_IDLE).chain([99, 100]).collect();
        assert_eq!(idle.keep(history(&large), 101, now), left, "both together have too many bytes");
        let larger = "x".repeat(MAX_IDLE_BYTES + 1);
        assert_eq!(idle.keep(history(&larger), 102, now), [101, 102]);
    }

    #[test]
    fn unused_sessions_end() {
        let (idle, begun) = (IdleSessions::default(), Instant::now());
        assert!(idle.keep(history("a"), 1, begun).is_empty());
        assert!(idle.keep(history("b"), 2, begun + IDLE_TIME / 2).is_empty());
        assert!(idle.unused(IDLE_TIME, begun + IDLE_TIME / 2).is_empty());
        assert_eq!(idle.unused(IDLE_TIME, begun + IDLE_TIME), [1]);
        assert_eq!(idle.unused(Duration::ZERO, begun + IDLE_TIME), [2]);
    }
}
