//! Decides a request's session and the kind of its turn.

use baton_proto::{
    ids::SessionId,
    link::BranchPoint,
    record::{Message, RecordKind},
    tools::{Definitions, is_definitions},
    turn::json_schema_hash,
};

use super::{
    ApiError, Gateway,
    logprobs::LogprobsRequest,
    session_index::{agreement, same_messages, split},
    wire::CompletionRequest,
};
use baton_client::{Client, ClientError, Conversation, NewSession, ResumeOptions, TurnInput};

/// A session, ready for the turn.
pub(super) struct PreparedSession {
    pub(super) session: SessionId,
    pub(super) work: SessionWork,
}

/// The work to do in the session.
pub(super) enum SessionWork {
    /// The same request is unanswered: finish that turn.
    Resume,
    /// A turn with these messages; `replaces` is the seq from which it replaces earlier turns.
    Turn { messages: Vec<Message>, replaces: Option<u64> },
}

/// The session decided for a request, before any change.
#[derive(Debug, PartialEq, Eq)]
enum SessionChoice {
    /// A session that begins with the earlier messages; `replaces` is the seq from which the request replaces
    /// its turns.
    Session { session: SessionId, replaces: Option<u64> },
    /// A new session that begins with all messages; it may branch off another.
    New { branch: Option<BranchPoint> },
}

/// Finds or begins the session of a request, and makes it ready.
pub(super) async fn prepare_session(
    gateway: &Gateway,
    request: &CompletionRequest,
    template: &TurnInput,
) -> Result<PreparedSession, ApiError> {
    let client = gateway.client();
    let unanswered = gateway.index().take_unanswered(&request.messages);
    if let Some(session) = unanswered
        && request.session.is_none()
        && client.session(session).info().await.is_ok_and(|info| info.pending)
    {
        if has_same_form(gateway, session, request).await?
            && pinned_messages(client, session, request).await? == client.session(session).system().await?
        {
            return Ok(PreparedSession { session, work: SessionWork::Resume });
        }
        // The request now has other tools or system text, which the begun turn cannot take any more.
        client.session(session).abandon().await?;
    }
    let (before, new) = split(&request.messages);
    if new.is_empty() {
        return Err(ApiError::value(
            "messages",
            "the last message is the assistant's; there is nothing to answer",
        ));
    }
    let choice = match request.session.as_deref() {
        Some("new") => SessionChoice::New { branch: None },
        Some(name) => choose_in_named(&conversation(gateway, name).await?, before)?,
        None => find_by_messages(gateway, before, &request.messages, template).await,
    };
    match choice {
        SessionChoice::New { branch } => {
            check(template, &request.messages)?;
            let mut system = request.system.clone();
            system.extend(request.tools.as_ref().map(Definitions::message));
            let begun = NewSession { system, branch, root: None };
            let session = client.new_session(begun).await?;
            gateway.note_use(session);
            Ok(PreparedSession {
                session,
                work: SessionWork::Turn { messages: request.messages.clone(), replaces: None },
            })
        }
        SessionChoice::Session { session, .. }
            if client.session(session).info().await?.waiting_replays > 0 =>
        {
            // Another device's chain displaced turns: replay them first, then place the request in the
            // result.
            client.session(session).reconcile(&ResumeOptions::of(template), |_| {}).await?;
            gateway.learn(session).await?;
            Box::pin(prepare_session(gateway, request, template)).await
        }
        SessionChoice::Session { session, replaces } => {
            check(template, new)?;
            gateway.note_use(session);
            let system = pinned_messages(client, session, request).await?;
            if let Some(pending) = client.session(session).pending_messages().await? {
                if same_messages(&pending, new)
                    && system == client.session(session).system().await?
                    && has_same_form(gateway, session, request).await?
                {
                    return Ok(PreparedSession { session, work: SessionWork::Resume });
                }
                // A different request no longer waits for that answer.
                client.session(session).abandon().await?;
            }
            client.session(session).set_system(system).await?;
            Ok(PreparedSession { session, work: SessionWork::Turn { messages: new.to_vec(), replaces } })
        }
    }
}

/// Whether the request has the form of the pending turn. A turn keeps its form from its beginning.
async fn has_same_form(
    gateway: &Gateway,
    session: SessionId,
    request: &CompletionRequest,
) -> Result<bool, ApiError> {
    let sampling = gateway.client().session(session).pending_sampling().await?.unwrap_or_default();
    let schema = request.json_schema.as_deref().map(json_schema_hash);
    Ok(sampling.json_schema == schema
        && sampling.logprobs == request.logprobs.map_or(0, LogprobsRequest::requested_alternatives))
}

fn check(template: &TurnInput, messages: &[Message]) -> Result<(), ClientError> {
    TurnInput { messages: messages.to_vec(), ..template.clone() }.check()
}

/// The conversation of a named session: its id, a prefix of the id, or `last`.
async fn conversation(gateway: &Gateway, name: &str) -> Result<Conversation, ApiError> {
    let client = gateway.client();
    let unknown = || ClientError::UnknownSession(name.chars().take(64).collect());
    let id = if name == "last" {
        client.last_session().await?.ok_or_else(unknown)?
    } else {
        let ids = client.session_ids().await?;
        let wanted = name.to_lowercase();
        let mut found = ids.iter().filter(|id| !wanted.is_empty() && id.to_string().starts_with(&wanted));
        match (found.next(), found.next()) {
            (Some(id), None) => *id,
            (Some(_), Some(_)) => {
                return Err(ApiError::value("session", "several sessions begin with this; give more of it"));
            }
            (None, _) => return Err(unknown().into()),
        }
    };
    Ok(client.session(id).conversation().await?)
}

/// Places a request in the session that the caller named. Without earlier messages, the new ones follow its
/// end.
fn choose_in_named(conversation: &Conversation, before: &[Message]) -> Result<SessionChoice, ApiError> {
    let session = conversation.session;
    if before.is_empty() {
        return Ok(SessionChoice::Session { session, replaces: None });
    }
    let Some(turns) = agreement(&conversation.turns, before) else {
        return Err(ApiError::conflict(
            "history_mismatch",
            "the messages before the new ones are not what this session says; send the new messages alone, or leave \
             the session away",
        ));
    };
    let replaces = conversation.turns.get(turns).map(|turn| turn.replaced_from);
    Ok(SessionChoice::Session { session, replaces })
}

/// Places a request in a session with the same earlier messages, if there is one.
async fn find_by_messages(
    gateway: &Gateway,
    before: &[Message],
    all: &[Message],
    template: &TurnInput,
) -> SessionChoice {
    let proposed = if before.is_empty() { Vec::new() } else { gateway.index().propose(before) };
    for session in proposed {
        match gateway.client().session(session).conversation().await {
            Ok(conversation) => {
                let fits = check(template, all).is_ok();
                if let Some(choice) = match_session(&conversation, before, fits) {
                    return choice;
                }
                // Another program continued it; index its present messages.
                gateway.index().learn(&conversation);
            }
            Err(error) => {
                tracing::debug!(%error, "a proposed session cannot be read");
                gateway.index().forget(session);
            }
        }
    }
    SessionChoice::New { branch: None }
}

/// Matches a request with a session that holds its earlier messages. After the last turn, the session
/// continues. If only the last turn differs, the request is an edit. From further back it branches, so that
/// both versions stay; if the branch's messages do not fit one turn, it is an edit too.
fn match_session(conversation: &Conversation, before: &[Message], fits: bool) -> Option<SessionChoice> {
    let session = conversation.session;
    let turns = agreement(&conversation.turns, before)?;
    let Some(next) = conversation.turns.get(turns) else {
        return Some(SessionChoice::Session { session, replaces: None });
    };
    if turns + 1 == conversation.turns.len() || !fits {
        return Some(SessionChoice::Session { session, replaces: Some(next.replaced_from) });
    }
    let shared = conversation.turns.get(turns.checked_sub(1)?)?;
    let branch = BranchPoint { session_id: session, link_hash: shared.link_hash };
    Some(SessionChoice::New { branch: Some(branch) })
}

/// The record kind of a turn: an edit if it replaces turns.
pub(super) fn record_kind(replaces: Option<u64>) -> RecordKind {
    if replaces.is_some() { RecordKind::Edit } else { RecordKind::Turn }
}

/// The messages to pin to the session: the request's system text and tools. A named session keeps its own
/// text if the request has none.
async fn pinned_messages(
    client: &Client,
    session: SessionId,
    request: &CompletionRequest,
) -> Result<Vec<Message>, ClientError> {
    let mut system = request.system.clone();
    if request.session.is_some() && system.is_empty() {
        system = client.session(session).system().await?;
        system.retain(|message| !is_definitions(message));
    }
    system.extend(request.tools.as_ref().map(Definitions::message));
    Ok(system)
}

#[cfg(test)]
mod tests {
    use baton_proto::{
        ids::{LinkHash, NodeId},
        record::Role,
    };

    use super::*;
    use baton_client::ConversationTurn;

    fn said(turns: u8) -> Vec<Message> {
        (0..turns)
            .flat_map(|turn| {
                [
                    Message::new(Role::User, format!("q{turn}")),
                    Message::new(Role::Assistant, format!("a{turn}")),
                ]
            })
            .collect()
    }

    fn conversation(turns: u8) -> Conversation {
        let messages = said(turns);
        let turns = messages.chunks(2).enumerate().map(|(seq, messages)| ConversationTurn {
            seq: seq as u64,
            replaced_from: seq as u64,
            link_hash: LinkHash([u8::try_from(seq).unwrap_or(u8::MAX); 32]),
            node: NodeId([0; 32]),
            messages: messages.to_vec(),
        });
        Conversation { session: SessionId([1; 32]), title: String::new(), used_ms: 0, turns: turns.collect() }
    }

    #[test]
    fn a_request_continues_edits_the_last_turn_or_branches_off() {
        let three = conversation(3);
        let session = three.session;
        let at = |turns| match_session(&three, &said(turns), true);
        assert_eq!(at(3), Some(SessionChoice::Session { session, replaces: None }));
        assert_eq!(at(2), Some(SessionChoice::Session { session, replaces: Some(2) }));
        let branch = BranchPoint { session_id: session, link_hash: LinkHash([0; 32]) };
        assert_eq!(at(1), Some(SessionChoice::New { branch: Some(branch) }));
        assert_eq!(at(4), None);
        let too_much = match_session(&three, &said(1), false);
        assert_eq!(too_much, Some(SessionChoice::Session { session, replaces: Some(1) }));
    }

    #[test]
    fn a_named_session_takes_new_messages_edits_anywhere_and_refuses_another_past() {
        let three = conversation(3);
        let session = three.session;
        assert_eq!(choose_in_named(&three, &[]).unwrap(), SessionChoice::Session { session, replaces: None });
        assert_eq!(
            choose_in_named(&three, &said(1)).unwrap(),
            SessionChoice::Session { session, replaces: Some(1) }
        );
        assert!(choose_in_named(&three, &said(4)).is_err());
    }
}
