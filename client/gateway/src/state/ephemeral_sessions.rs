//! Ephemeral sessions between two requests: in memory alone, for some minutes.
//!
//! An agent sends its whole conversation with each request, and asks that nothing of it is kept. In a session that
//! goes on, its node has read the conversation already, and reads the new messages alone.

use std::time::Duration;

use baton_client::{Client, ClientError, Conversation, NewSession};
use baton_proto::{ids::SessionId, record::Message, text::is_same_place};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::state::session_index::{agreement, is_carried};

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
    pub(crate) async fn begin(client: &Client, new: NewSession) -> Result<Self, ClientError> {
        let client = client.ephemeral()?;
        let id = client.new_session(new).await?;
        Ok(Self { client, id })
    }

    /// Ends it, and wipes its keys.
    pub(crate) async fn end(self) {
        self.client.shutdown(GRACE).await;
    }
}

/// The idle sessions, the last used last.
pub(crate) struct IdleSessions<T = EphemeralSession>(Mutex<Vec<IdleSession<T>>>);

struct IdleSession<T> {
    /// Its system texts and tools.
    pinned: Vec<Message>,
    conversation: Conversation,
    session: T,
    used: Instant,
}

impl<T> IdleSession<T> {
    /// Whether a request of the project with these messages continues the session.
    fn is_of(&self, project: Option<&str>, pinned: &[Message], messages: &[Message]) -> bool {
        let Conversation { project: own, turns, .. } = &self.conversation;
        is_same_place(own.as_deref(), project)
            && self.pinned == pinned
            && agreement(turns, messages) == Some(turns.len())
    }

    fn bytes(&self) -> usize {
        let messages = self.conversation.turns.iter().flat_map(|turn| &turn.messages);
        self.pinned.iter().chain(messages).map(|message| message.text.len()).sum()
    }
}

impl<T> Default for IdleSessions<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> IdleSessions<T> {
    /// Takes the session of a project that has exactly the messages from one of these places on; also returns that place.
    pub(crate) fn take(
        &self,
        project: Option<&str>,
        pinned: &[Message],
        messages: &[Message],
        starts: impl IntoIterator<Item = usize>,
    ) -> Option<(usize, T)> {
        let mut idle = self.0.lock();
        let position = |start: usize| {
            let rest = messages.get(start..)?;
            let is_it = |one: &IdleSession<T>| {
                one.is_of(project, pinned, rest) && (start == 0 || is_carried(&one.conversation))
            };
            Some((start, idle.iter().rposition(is_it)?))
        };
        let (start, position) = starts.into_iter().find_map(position)?;
        Some((start, idle.remove(position).session))
    }

    /// Keeps a session for a next request. The caller ends the returned sessions, for which there is no room.
    #[must_use]
    pub(crate) fn keep(
        &self,
        pinned: Vec<Message>,
        conversation: Conversation,
        session: T,
        now: Instant,
    ) -> Vec<T> {
        let mut idle = self.0.lock();
        idle.push(IdleSession { pinned, conversation, session, used: now });
        let (mut count, mut bytes) = (0, 0);
        let fitting = idle.iter().rev().take_while(|one| {
            count += 1;
            bytes += one.bytes();
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
    use crate::state::session_index::tests::{answer, conversation, user};

    impl IdleSessions<usize> {
        /// Keeps a session with this message of the user.
        fn keep_said(&self, text: &str, session: usize, now: Instant) -> Vec<usize> {
            self.keep(Vec::new(), conversation(1, 0, &[(text, "yes")]), session, now)
        }
    }

    #[test]
    fn a_session_is_taken_once_by_the_program_that_has_its_messages() {
        let idle = IdleSessions::default();
        let pinned = [Message::new(baton_proto::record::Role::System, "brief")];
        let said = [user("a"), answer("yes")];
        let kept = idle.keep(pinned.to_vec(), conversation(1, 0, &[("a", "yes")]), 1, Instant::now());
        assert!(kept.is_empty());
        let take = |project, pinned: &[Message], said: &[Message]| {
            idle.take(project, pinned, said, [0]).map(|(_, session)| session)
        };
        assert!(take(None, &pinned, &said[..1]).is_none(), "within a turn");
        assert!(take(None, &pinned, &[]).is_none(), "before its turns");
        assert!(take(None, &pinned, &[user("b"), answer("yes")]).is_none(), "other messages");
        assert!(take(None, &[], &said).is_none(), "other system text");
        assert!(take(Some("anna"), &pinned, &said).is_none(), "another project");
        let older = [&[user("x"), answer("y")], &said[..]].concat();
        assert!(idle.take(None, &pinned, &older, [0, 2]).is_none(), "it did not begin without them");
        assert_eq!(take(None, &pinned, &said), Some(1));
        assert!(take(None, &pinned, &said).is_none());
    }

    #[test]
    fn sessions_are_few_and_small_and_the_oldest_ends_first() {
        let (idle, now) = (IdleSessions::default(), Instant::now());
        for number in 0..MAX_IDLE {
            assert!(idle.keep_said(&number.to_string(), number, now).is_empty());
        }
        assert_eq!(idle.keep_said("one more", 99, now), [0]);
        let large = "x".repeat(MAX_IDLE_BYTES / 2);
        assert_eq!(idle.keep_said(&large, 100, now), [1]);
        let left: Vec<usize> = (2..MAX_IDLE).chain([99, 100]).collect();
        assert_eq!(idle.keep_said(&large, 101, now), left, "both together have too many bytes");
        let larger = "x".repeat(MAX_IDLE_BYTES + 1);
        assert_eq!(idle.keep_said(&larger, 102, now), [101, 102]);
    }

    #[test]
    fn unused_sessions_end() {
        let (idle, begun) = (IdleSessions::default(), Instant::now());
        assert!(idle.keep_said("a", 1, begun).is_empty());
        assert!(idle.keep_said("b", 2, begun + IDLE_TIME / 2).is_empty());
        assert!(idle.unused(IDLE_TIME, begun + IDLE_TIME / 2).is_empty());
        assert_eq!(idle.unused(IDLE_TIME, begun + IDLE_TIME), [1]);
        assert_eq!(idle.unused(Duration::ZERO, begun + IDLE_TIME), [2]);
    }
}
