//! Finds the session that a list of messages continues. Pure.
//!
//! A chat program sends the whole conversation with every request and knows no sessions. So each session is
//! indexed by marks: a keyed hash of all messages up to the end of each turn. A request's messages before its
//! new ones have such a hash too. A mark only proposes a session; [`agreement`] compares the messages.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
};

use baton_proto::{
    ids::SessionId,
    record::{Message, Role},
    text::is_same_place,
    tools::canonical_answer,
};

use baton_client::{Conversation, ConversationTurn};

/// Most indexed sessions. The least recently used is forgotten first; a request for it begins a new session.
pub(crate) const MAX_SESSIONS: usize = 1_000;
/// Most marks of all sessions.
const MAX_MARKS: usize = 200_000;
/// Most sessions compared for one request: several begin alike only after the same questions.
pub(crate) const MAX_PROPOSALS: usize = 8;

/// Hash of the messages up to a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct WordsMark(u64);

impl WordsMark {
    /// The mark after one more message with this hash.
    fn then(self, hash: u64) -> Self {
        // The hash is keyed, so any step that depends on the order will do.
        Self((self.0.rotate_left(5) ^ hash).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}

/// A session with its marks: one for each turn, in place of the turns themselves.
#[derive(Debug)]
struct IndexedSession {
    marks: Vec<WordsMark>,
    conversation: Conversation,
}

/// The sessions, indexed by their messages.
#[derive(Debug, Default)]
pub(crate) struct SessionIndex {
    hasher: RandomState,
    sessions: HashMap<SessionId, IndexedSession>,
    /// Sessions in which a mark occurs, each with the number of turns before it.
    at: HashMap<WordsMark, Vec<(SessionId, usize)>>,
    /// Sessions with an unanswered turn, by the mark of all messages, the new ones included.
    unanswered: HashMap<WordsMark, SessionId>,
    marks: usize,
}

impl SessionIndex {
    fn hash(&self, message: &Message) -> u64 {
        self.hasher.hash_one((message.role as u8, canonical(message)))
    }

    fn extend(&self, mark: WordsMark, messages: &[Message]) -> WordsMark {
        messages.iter().fold(mark, |mark, message| mark.then(self.hash(message)))
    }

    /// Indexes a session's present messages, in place of earlier ones.
    pub(crate) fn learn(&mut self, mut conversation: Conversation) {
        let session = conversation.session;
        self.forget(session);
        let mut mark = WordsMark(0);
        let mut marks = Vec::with_capacity(conversation.turns.len());
        for (index, turn) in std::mem::take(&mut conversation.turns).iter().enumerate() {
            mark = self.extend(mark, &turn.messages);
            marks.push(mark);
            self.at.entry(mark).or_default().push((session, index + 1));
        }
        self.marks += marks.len();
        self.sessions.insert(session, IndexedSession { marks, conversation });
        while self.sessions.len() > MAX_SESSIONS || (self.marks > MAX_MARKS && self.sessions.len() > 1) {
            let all = self.sessions.values().map(|one| &one.conversation);
            let Some(oldest) = all.min_by_key(|one| one.used_ms).map(|one| one.session) else { break };
            self.forget(oldest);
        }
    }

    /// Forgets a session.
    pub(crate) fn forget(&mut self, session: SessionId) {
        let Some(entry) = self.sessions.remove(&session) else { return };
        self.marks -= entry.marks.len();
        for mark in entry.marks {
            if let Some(occurrences) = self.at.get_mut(&mark) {
                occurrences.retain(|(id, _)| *id != session);
                if occurrences.is_empty() {
                    self.at.remove(&mark);
                }
            }
        }
    }

    /// The indexed sessions of a project, or of all, last used first: each without its turns, and their number.
    pub(crate) fn list(&self, project: Option<&str>) -> Vec<(Conversation, usize)> {
        let is_of = |one: &&IndexedSession| {
            project.is_none() || is_same_place(one.conversation.project.as_deref(), project)
        };
        let listed = self.sessions.values().filter(is_of);
        let mut listed: Vec<_> = listed.map(|one| (one.conversation.clone(), one.marks.len())).collect();
        listed.sort_by_key(|(one, _)| std::cmp::Reverse((one.used_ms, one.session)));
        listed
    }

    /// Sessions of a project that begin with the messages from one of these places on, as whole turns: with that place,
    /// first the sessions that end there, then the last used.
    pub(crate) fn propose(
        &self,
        messages: &[Message],
        starts: impl IntoIterator<Item = usize>,
        project: Option<&str>,
    ) -> Vec<(usize, SessionId)> {
        let hashes: Vec<u64> = messages.iter().map(|message| self.hash(message)).collect();
        let from = |start: usize| {
            let hashes = hashes.get(start..).unwrap_or_default();
            let mark = hashes.iter().fold(WordsMark(0), |mark, hash| mark.then(*hash));
            self.of_mark(mark, project).into_iter().map(move |session| (start, session))
        };
        starts.into_iter().flat_map(from).collect()
    }

    fn of_mark(&self, mark: WordsMark, project: Option<&str>) -> Vec<SessionId> {
        let occurrences = self.at.get(&mark).map(Vec::as_slice).unwrap_or_default();
        let found = occurrences.iter().filter_map(|(id, turns)| {
            let IndexedSession { marks, conversation } = self.sessions.get(id)?;
            let is_of = is_same_place(conversation.project.as_deref(), project);
            is_of.then_some((marks.len() == *turns, conversation.used_ms, *id))
        });
        let mut found: Vec<_> = found.collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.into_iter().take(MAX_PROPOSALS).map(|(_, _, id)| id).collect()
    }

    /// Notes that a session of a project has these messages without an answer.
    pub(crate) fn note_unanswered(
        &mut self,
        messages: &[Message],
        project: Option<&str>,
        session: SessionId,
    ) {
        if self.unanswered.len() >= MAX_SESSIONS {
            self.unanswered.clear();
        }
        let mark = self.extend(self.beginning(project), messages);
        self.unanswered.insert(mark, session);
    }

    /// Takes the session of a project that has exactly these messages without an answer; the note is removed.
    pub(crate) fn take_unanswered(
        &mut self,
        messages: &[Message],
        project: Option<&str>,
    ) -> Option<SessionId> {
        let mark = self.extend(self.beginning(project), messages);
        self.unanswered.remove(&mark)
    }

    /// The mark before the messages of a project.
    fn beginning(&self, project: Option<&str>) -> WordsMark {
        WordsMark(self.hasher.hash_one(project))
    }
}

/// The number of whole turns at a session's beginning that equal these messages. `None` if the messages
/// differ, or end within a turn.
pub(crate) fn agreement(turns: &[ConversationTurn], messages: &[Message]) -> Option<usize> {
    let mut rest = messages;
    for (index, turn) in turns.iter().enumerate() {
        if rest.is_empty() {
            return Some(index);
        }
        let (here, after) = rest.split_at_checked(turn.messages.len())?;
        if !here.iter().zip(&turn.messages).all(|(a, b)| same(a, b)) {
            return None;
        }
        rest = after;
    }
    rest.is_empty().then_some(turns.len())
}

/// Whether a session began with a history that was carried in. Only such a one may lack a request's oldest messages.
pub(crate) fn is_carried(conversation: &Conversation) -> bool {
    let first = conversation.turns.first().map(|turn| turn.messages.as_slice()).unwrap_or_default();
    first.iter().filter(|message| message.role == Role::Assistant).count() > 1
}

/// Whether two lists hold the same messages.
pub(crate) fn same_messages(a: &[Message], b: &[Message]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
}

fn same(a: &Message, b: &Message) -> bool {
    a.role == b.role && canonical(a) == canonical(b)
}

/// Chat programs trim displayed text and send it back trimmed. They send an assistant's calls back as calls,
/// not as their original text.
fn canonical(message: &Message) -> Cow<'_, str> {
    match message.role {
        Role::Assistant => Cow::Owned(canonical_answer(&message.text).to_string()),
        _ => Cow::Borrowed(message.text.trim()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use baton_proto::ids::{LinkHash, NodeId};

    use super::*;
    use crate::form::completion::split;

    pub(crate) fn user(text: &str) -> Message {
        Message::new(Role::User, text)
    }

    pub(crate) fn answer(text: &str) -> Message {
        Message::new(Role::Assistant, text)
    }

    pub(crate) fn conversation(number: u8, used_ms: u64, said: &[(&str, &str)]) -> Conversation {
        let turn = |(seq, (question, reply)): (usize, &(&str, &str))| ConversationTurn {
            seq: seq as u64,
            replaced_from: seq as u64,
            link_hash: LinkHash([0; 32]),
            node: NodeId([0; 32]),
            messages: vec![user(question), answer(reply)],
        };
        let turns: Vec<ConversationTurn> = said.iter().enumerate().map(turn).collect();
        let title = baton_client::title_of(turns.iter().flat_map(|turn: &ConversationTurn| &turn.messages));
        Conversation { session: SessionId([number; 32]), title, project: None, used_ms, branch: None, turns }
    }

    fn proposed(index: &SessionIndex, said: &[Message], project: Option<&str>) -> Vec<SessionId> {
        index.propose(said, [0], project).into_iter().map(|(_, session)| session).collect()
    }

    #[test]
    fn a_session_is_found_by_its_messages_and_one_that_ends_there_comes_first() {
        let mut index = SessionIndex::default();
        let first = conversation(1, 10, &[("hi", "hello"), ("how are you?", "well")]);
        let second = conversation(2, 5, &[("hi", "hello")]);
        index.learn(first.clone());
        index.learn(second.clone());
        let said = [user("hi"), answer(" hello\n")];
        assert_eq!(proposed(&index, &said, None), [second.session, first.session]);
        let said = [user("hi"), answer("hello"), user("how are you?"), answer("well")];
        assert_eq!(proposed(&index, &said, None), [first.session]);
        assert!(proposed(&index, &[user("hi"), answer("hullo")], None).is_empty());
        assert!(proposed(&index, &[user("hi")], None).is_empty(), "within a turn");
        index.forget(second.session);
        assert_eq!(proposed(&index, &[user("hi"), answer("hello")], None), [first.session]);
        // Its former messages are forgotten when it is learned again.
        index.learn(conversation(1, 2, &[("hi", "good day")]));
        assert!(proposed(&index, &[user("hi"), answer("hello")], None).is_empty());
        assert_eq!(index.marks, 1);
    }

    #[test]
    fn the_oldest_sessions_are_forgotten_beyond_the_limit() {
        let mut index = SessionIndex::default();
        for number in 0..=MAX_SESSIONS {
            let mut one = conversation(0, number as u64, &[("hi", &number.to_string())]);
            one.session.0[..8].copy_from_slice(&(number as u64).to_le_bytes());
            index.learn(one);
        }
        assert_eq!(index.sessions.len(), MAX_SESSIONS);
        assert!(proposed(&index, &[user("hi"), answer("0")], None).is_empty());
        assert_eq!(proposed(&index, &[user("hi"), answer("1")], None).len(), 1);
    }

    #[test]
    fn the_words_decide_how_far_a_session_agrees() {
        let turns = conversation(1, 1, &[("a", "b"), ("c", "d")]).turns;
        let said = [user("a"), answer("b"), user("c"), answer("d")];
        assert_eq!(agreement(&turns, &said), Some(2));
        assert_eq!(agreement(&turns, &said[..2]), Some(1));
        assert_eq!(agreement(&turns, &[]), Some(0));
        assert_eq!(agreement(&turns, &said[..3]), None, "within a turn");
        assert_eq!(agreement(&turns, &[user("a"), answer("x")]), None);
        let longer = [&said[..], &[user("e"), answer("f")]].concat();
        assert_eq!(agreement(&turns, &longer), None);
    }

    #[test]
    fn new_messages_are_those_after_the_last_answer() {
        let said = [user("a"), answer("b"), user("c"), user("d")];
        assert_eq!(split(&said).1, &said[2..]);
        assert_eq!(split(&said[..1]), (&[][..], &said[..1]));
        assert!(split(&said[..2]).1.is_empty());
    }

    #[test]
    fn what_was_asked_and_not_answered_is_found_once() {
        let mut index = SessionIndex::default();
        let session = SessionId([3; 32]);
        index.note_unanswered(&[user("a")], None, session);
        assert_eq!(index.take_unanswered(&[user("b")], None), None);
        assert_eq!(index.take_unanswered(&[user("a")], Some("anna")), None, "of another project");
        assert_eq!(index.take_unanswered(&[user("a")], None), Some(session));
        assert_eq!(index.take_unanswered(&[user("a")], None), None);
    }

    #[test]
    fn a_project_sees_its_own_sessions_alone_the_last_used_first() {
        let mut index = SessionIndex::default();
        let of_anna = Conversation {
            project: Some("anna".to_owned()),
            ..conversation(1, 5, &[("  hi\n you ", "hello")])
        };
        index.learn(of_anna.clone());
        index.learn(conversation(2, 9, &[("long", "x"), ("y", "z")]));
        let said = [user("  hi\n you "), answer("hello")];
        assert_eq!(proposed(&index, &said, Some("anna")), [of_anna.session]);
        assert!(proposed(&index, &said, Some("ben")).is_empty());
        assert!(proposed(&index, &said, None).is_empty(), "the owner's programs do not continue it either");
        let listed = |project| {
            let list = index.list(project).into_iter().map(|(one, turns)| (one.title, turns));
            list.collect::<Vec<_>>()
        };
        assert_eq!(listed(Some("ANNA")), [("hi you".to_owned(), 1)]);
        assert_eq!(listed(None), [("long".to_owned(), 2), ("hi you".to_owned(), 1)]);
    }
}
