//! The text of a session's conversation, without the cryptography: for callers that show it or search it.

use std::sync::Arc;

use baton_proto::{
    chain::{HistoryTurn, effective},
    ids::{LinkHash, NodeId, SessionId},
    link::BranchPoint,
    record::{Message, Record, RecordKind},
};

use crate::{
    core::Core,
    error::ClientError,
    session::{
        open_session,
        state::{Branch, State},
        title,
    },
    sync::{
        reconcile::name_of,
        sessions::{journals_by_use, with_state},
    },
};

/// An effective turn with its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationTurn {
    /// Its position in the chain.
    pub seq: u64,
    /// The `supersedes_from` of an edit in its place.
    pub replaced_from: u64,
    /// Hash of its link; a branch after this turn names it.
    pub link_hash: LinkHash,
    /// The node that served it.
    pub node: NodeId,
    /// The new messages, then the answer.
    pub messages: Vec<Message>,
}

/// A session with its effective turns, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    /// The session.
    pub session: SessionId,
    /// The title that the user gave, or else the beginning of the first message.
    pub title: String,
    /// The project that it belongs to in this home; none for the home's owner.
    pub project: Option<String>,
    /// When it was last used, in milliseconds since the Unix epoch.
    pub used_ms: u64,
    /// The point at which it left its parent, if it is a branch.
    pub branch: Option<BranchPoint>,
    /// Its turns.
    pub turns: Vec<ConversationTurn>,
}

impl Conversation {
    fn of(state: &State) -> Self {
        Self::with(state, &state.history)
    }

    /// The conversation that ends with the branch of this name; none without such a branch.
    pub(crate) fn of_branch(state: &State, name: &str) -> Option<Self> {
        let ends = |branch: &&Branch| {
            branch.turns.last().is_some_and(|last| name_of(&last.turn.link.link_hash()) == name)
        };
        let branch = state.branches.iter().find(ends)?;
        let turns: Vec<HistoryTurn> = state.turns_until_end_of(branch).into_iter().cloned().collect();
        Some(Self::with(state, &turns))
    }

    fn with(state: &State, all: &[HistoryTurn]) -> Self {
        let turns = effective(all).into_iter().filter_map(|position| {
            let turn = all.get(position)?;
            let record = turn.record.as_ref()?;
            Some(ConversationTurn {
                seq: turn.link.seq,
                replaced_from: replaced_from(turn.link.seq, record),
                link_hash: turn.link.link_hash(),
                node: turn.link.author,
                messages: record.messages.clone(),
            })
        });
        Self {
            session: state.session_id,
            title: title::title(state),
            project: state.header.project.clone(),
            used_ms: state.last_used_ms(),
            branch: state.header.branch,
            turns: turns.collect(),
        }
    }
}

/// As [`SessionHandle::conversation`](crate::SessionHandle::conversation).
pub(crate) async fn conversation(core: &Arc<Core>, id: SessionId) -> Result<Conversation, ClientError> {
    with_state(core, id, Conversation::of).await
}

/// As [`Client::each_conversation`](crate::Client::each_conversation).
pub(crate) fn each_conversation(
    core: &Core,
    since_ms: u64,
    limit: usize,
    mut look: impl FnMut(Conversation),
) -> Result<(), ClientError> {
    if core.journals.folder().is_none() {
        let open: Vec<_> = core.lock().values().cloned().collect();
        open.iter().take(limit).for_each(|session| look(session.read(Conversation::of)));
        return Ok(());
    }
    let changed = journals_by_use(core)?.into_iter().take_while(|(changed, _)| *changed >= since_ms);
    for (_, path) in changed.take(limit) {
        match open_session::peek(&path, &core.journals.secret) {
            Ok(state) => look(Conversation::of(&state)),
            Err(error) => tracing::warn!(%error, "a journal cannot be read"),
        }
    }
    Ok(())
}

/// The `supersedes_from` of an edit of this record.
///
/// `supersedes_from = f` means back to before `f`. An edit of an edit, or of a tombstone, names the same seq
/// as its predecessor: its own seq would bring back the replaced turns. A summary names itself, since the
/// summarised turns are still wanted.
fn replaced_from(seq: u64, record: &Record) -> u64 {
    match record.kind {
        RecordKind::Turn | RecordKind::Summary => seq,
        RecordKind::Edit | RecordKind::Tombstone => record.supersedes_from.unwrap_or(seq),
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::record::FinishReason;

    use super::*;

    #[test]
    fn an_edit_of_an_edit_names_the_original() {
        let record = |kind, from| Record::of_turn(kind, from, &[], "", FinishReason::Stop);
        assert_eq!(replaced_from(4, &record(RecordKind::Turn, None)), 4);
        assert_eq!(replaced_from(5, &record(RecordKind::Edit, Some(4))), 4);
        assert_eq!(replaced_from(6, &record(RecordKind::Edit, Some(4))), 4, "and again");
        assert_eq!(
            replaced_from(5, &record(RecordKind::Tombstone, Some(2))),
            2,
            "nothing deleted comes back"
        );
        assert_eq!(replaced_from(5, &record(RecordKind::Summary, Some(0))), 5);
    }
}
