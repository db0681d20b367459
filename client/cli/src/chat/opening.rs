//! Opens the session of a chat: the named one, a new one, or a branch. A branch is a new session that begins
//! with the turns of another up to one of them; the other session stays as it is.

use baton_client::{Client, Conversation, NewSession};
use baton_proto::{
    ids::SessionId,
    link::BranchPoint,
    record::{Message, Role},
    tools::is_definitions,
};

use crate::{
    args::{BranchStart, ChatArguments},
    chat::{dialogue::with_system, options::TurnOptions},
    failure::Failure,
    home::find_session,
    out::{Out, short_session, turn_number},
};

/// A session for new messages.
pub(super) struct OpenedSession {
    pub session: SessionId,
    /// The parent's messages, which the first turn of a branch repeats.
    pub history: Vec<Message>,
}

/// The named session, a branch of it, or a new one. System text for a named one waits until nothing is pending.
pub(super) async fn open_session(
    client: &Client,
    options: &TurnOptions,
    arguments: &ChatArguments,
    out: &Out,
) -> Result<OpenedSession, Failure> {
    let session = match (&arguments.session, &arguments.branch) {
        (None, _) => client.new_session(with_system(options.system.as_deref())).await?,
        (Some(named), None) => find_session(client, named).await?,
        (Some(named), Some(start)) => {
            let parent = find_session(client, named).await?;
            let (opened, seq) = branch(client, parent, start, arguments.system.as_deref()).await?;
            out.note(&format!(
                "A branch of {} after turn {}. That conversation stays as it is.",
                short_session(&parent),
                turn_number(seq)
            ));
            return Ok(opened);
        }
    };
    Ok(OpenedSession { session, history: Vec::new() })
}

/// Begins a branch of a session, with its system text unless the call gives another, and gives the position of
/// the last common turn. The branch's file is made with its first answer.
pub(super) async fn branch(
    client: &Client,
    parent: SessionId,
    start: &BranchStart,
    own_system: Option<&str>,
) -> Result<(OpenedSession, u64), Failure> {
    let handle = client.session(parent);
    let (conversation, after_turn) = match start {
        BranchStart::End => (handle.conversation().await?, None),
        BranchStart::Turn(number) => (handle.conversation().await?, Some(*number)),
        BranchStart::Fork(name) => (handle.branch_conversation(name).await?, None),
    };
    let (point, history) = shared_part(&conversation, after_turn)?;
    let mut system = handle.system().await?;
    system.retain(|message| !is_definitions(message));
    if let Some(text) = own_system {
        system = vec![Message::new(Role::System, text)];
    }
    let project = conversation.project.clone();
    let new = NewSession { system, branch: Some(point.1), project, root: None };
    let session = client.new_session(new).await?;
    Ok((OpenedSession { session, history }, point.0))
}

/// The position and the point of the branch, and the messages up to it.
fn shared_part(
    conversation: &Conversation,
    after_turn: Option<u64>,
) -> Result<((u64, BranchPoint), Vec<Message>), Failure> {
    let turns = &conversation.turns;
    let found = match after_turn {
        None => turns.len().checked_sub(1),
        Some(number) => turns.iter().position(|turn| turn_number(turn.seq) == number),
    };
    let Some((index, turn)) = found.and_then(|index| Some((index, turns.get(index)?))) else {
        let session = short_session(&conversation.session);
        return Err(match after_turn {
            None => Failure::usage(
                "There is no turn to branch after.",
                "send a message first: baton chat -s SESSION",
            ),
            Some(number) => Failure::usage(
                format!("The conversation has no turn {number}."),
                format!("see its turns: baton session show {session}"),
            ),
        });
    };
    let shared = turns.iter().take(index + 1);
    let history = shared.flat_map(|turn| turn.messages.clone()).collect();
    let point = BranchPoint { session_id: conversation.session, link_hash: turn.link_hash };
    Ok(((turn.seq, point), history))
}

#[cfg(test)]
mod tests {
    use baton_client::ConversationTurn;
    use baton_proto::ids::{LinkHash, NodeId};

    use super::*;

    #[test]
    fn a_branch_repeats_the_turns_up_to_its_point() {
        // Turn 2 was replaced by an edit, so the conversation has turns 1 and 3.
        let turn = |seq: u64| ConversationTurn {
            seq,
            replaced_from: seq,
            link_hash: LinkHash([u8::try_from(seq).unwrap(); 32]),
            node: NodeId([0; 32]),
            messages: vec![
                Message::new(Role::User, format!("q{seq}")),
                Message::new(Role::Assistant, format!("a{seq}")),
            ],
        };
        let conversation = Conversation {
            session: SessionId([1; 32]),
            title: String::new(),
            project: None,
            used_ms: 0,
            branch: None,
            turns: vec![turn(0), turn(2)],
        };
        let at = |after_turn| shared_part(&conversation, after_turn);
        for (after_turn, seq, messages) in [(None, 2, 4), (Some(3), 2, 4), (Some(1), 0, 2)] {
            let ((found, point), history) = at(after_turn).unwrap();
            assert_eq!((found, history.len()), (seq, messages));
            assert_eq!(point.link_hash, LinkHash([u8::try_from(seq).unwrap(); 32]));
        }
        assert!(at(Some(2)).is_err_and(|failure| failure.is_usage()), "a replaced turn");
        let empty = Conversation { turns: Vec::new(), ..conversation };
        assert!(shared_part(&empty, None).is_err());
    }
}
