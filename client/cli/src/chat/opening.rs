//! Opens the session of a chat: the named one, a new one, or a branch. A branch is a new session that begins
//! with the turns of another up to one of them; the other session stays as it is.

use baton_client::{Client, Conversation, ConversationTurn, NewSession};
use baton_proto::{
    ids::SessionId,
    link::BranchPoint,
    record::{Message, Role},
    tools::is_definitions,
};

use crate::{
    args::{ChatArguments, WHOLE},
    chat::{dialogue::with_system, options::TurnOptions},
    failure::Failure,
    home::find_session,
    out::{Out, short, turn_number},
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
                short(&parent),
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
    start: &str,
    own_system: Option<&str>,
) -> Result<(OpenedSession, u64), Failure> {
    let handle = client.session(parent);
    // The name of a branch that a fork left has eight hexadecimal digits; no conversation has that many turns.
    let (conversation, after_turn) = match start.parse() {
        _ if start == WHOLE => (handle.conversation().await?, None),
        Ok(number) if start.len() < 8 => (handle.conversation().await?, Some(number)),
        _ => (handle.branch_conversation(start).await?, None),
    };
    let shared = shared_turns(&conversation, after_turn);
    let Some(last) = shared.last() else {
        let missing = after_turn.map_or_else(
            || "There is no turn to branch after.".to_owned(),
            |number| format!("The conversation has no turn {number}."),
        );
        let hint = format!("see its turns: baton session show {}", short(&parent));
        return Err(Failure::usage(missing, hint));
    };
    let mut system = handle.system().await?;
    system.retain(|message| !is_definitions(message));
    if let Some(text) = own_system {
        system = vec![Message::new(Role::System, text)];
    }
    let branch = Some(BranchPoint { session_id: parent, link_hash: last.link_hash });
    let new = NewSession { system, branch, project: conversation.project.clone(), root: None };
    let session = client.new_session(new).await?;
    let history = shared.iter().flat_map(|turn| turn.messages.clone()).collect();
    Ok((OpenedSession { session, history }, last.seq))
}

/// The turns up to the one with this number, or all; none if there is no such turn.
fn shared_turns(conversation: &Conversation, after_turn: Option<u64>) -> &[ConversationTurn] {
    let turns = &conversation.turns;
    let position = |number| turns.iter().position(|turn| turn_number(turn.seq) == number);
    let count = match after_turn {
        None => turns.len(),
        Some(number) => position(number).map_or(0, |position| position + 1),
    };
    turns.get(..count).unwrap_or_default()
}

#[cfg(test)]
mod tests {
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
            messages: Vec::new(),
        };
        let conversation = Conversation {
            session: SessionId([1; 32]),
            title: String::new(),
            project: None,
            used_ms: 0,
            branch: None,
            turns: vec![turn(0), turn(2)],
        };
        // The number 2 is a replaced turn's.
        for (after_turn, shared) in [(None, &[0, 2][..]), (Some(3), &[0, 2]), (Some(1), &[0]), (Some(2), &[])]
        {
            let seqs: Vec<u64> =
                shared_turns(&conversation, after_turn).iter().map(|turn| turn.seq).collect();
            assert_eq!(seqs, shared);
        }
    }
}
