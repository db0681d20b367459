//! Where a request is said: in which session, and as what kind of turn.

use baton_proto::{
    ids::SessionId,
    link::BranchPoint,
    record::{Message, RecordKind},
    tools::{Definitions, is_definitions},
    turn::json_schema_hash,
};

use super::{
    Fault, Gateway,
    logprobs::Wanted,
    threads::{agreement, same_messages, split},
    wire::Ask,
};
use baton_client::{Client, ClientError, Conversation, NewSession, ResumeOptions, TurnInput};

/// A session, ready for the turn.
pub(super) struct Placed {
    pub(super) session: SessionId,
    pub(super) work: Work,
}

/// What is to be done there.
pub(super) enum Work {
    /// The same was asked and not answered: that turn is finished.
    Resume,
    /// A turn with these messages; with a seq it replaces what was said from there on.
    Turn { messages: Vec<Message>, replaces: Option<u64> },
}

/// A place that was found, before anything is done.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// A session with all that was said before; with a seq, in the place of what follows there.
    Session { session: SessionId, replaces: Option<u64> },
    /// A new session that begins with everything said; it may branch off another.
    New { branch: Option<BranchPoint> },
}

/// Finds or begins the session of a request, and makes it ready.
pub(super) async fn place(gateway: &Gateway, ask: &Ask, template: &TurnInput) -> Result<Placed, Fault> {
    let client = gateway.client();
    let unanswered = gateway.threads().take_unanswered(&ask.messages);
    if let Some(session) = unanswered
        && ask.session.is_none()
        && client.session(session).await.is_ok_and(|info| info.pending)
    {
        if is_asked_alike(gateway, session, ask).await?
            && pinned(client, session, ask).await? == client.system(session).await?
        {
            return Ok(Placed { session, work: Work::Resume });
        }
        // It is asked again with other tools or other system text, which that turn cannot have any more.
        client.abandon(session).await?;
    }
    let (before, new) = split(&ask.messages);
    if new.is_empty() {
        return Err(Fault::value(
            "messages",
            "the last message is the assistant's; there is nothing to answer",
        ));
    }
    let found = match ask.session.as_deref() {
        Some("new") => Found::New { branch: None },
        Some(name) => in_named(&conversation(gateway, name).await?, before)?,
        None => by_words(gateway, before, &ask.messages, template).await,
    };
    match found {
        Found::New { branch } => {
            check(template, &ask.messages)?;
            let mut system = ask.system.clone();
            system.extend(ask.tools.as_ref().map(Definitions::message));
            let begun = NewSession { system, branch, root: None };
            let session = client.new_session(begun).await?;
            gateway.used(session);
            Ok(Placed { session, work: Work::Turn { messages: ask.messages.clone(), replaces: None } })
        }
        Found::Session { session, .. } if client.session(session).await?.moves > 0 => {
            // What lost its place to another device's turn is said again first, and the request placed in what is then said.
            client.reconcile(session, &ResumeOptions::of(template), |_| {}).await?;
            gateway.learn(session).await?;
            Box::pin(place(gateway, ask, template)).await
        }
        Found::Session { session, replaces } => {
            check(template, new)?;
            gateway.used(session);
            let system = pinned(client, session, ask).await?;
            if let Some(pending) = client.pending_messages(session).await? {
                if same_messages(&pending, new)
                    && system == client.system(session).await?
                    && is_asked_alike(gateway, session, ask).await?
                {
                    return Ok(Placed { session, work: Work::Resume });
                }
                // Whoever asks something else does not wait for that answer any more.
                client.abandon(session).await?;
            }
            client.set_system(session, system).await?;
            Ok(Placed { session, work: Work::Turn { messages: new.to_vec(), replaces } })
        }
    }
}

/// Whether what was begun is asked for in the same form. A turn keeps the form that it was begun with.
async fn is_asked_alike(gateway: &Gateway, session: SessionId, ask: &Ask) -> Result<bool, Fault> {
    let sampling = gateway.client().pending_sampling(session).await?.unwrap_or_default();
    let schema = ask.json_schema.as_deref().map(json_schema_hash);
    Ok(sampling.json_schema == schema && sampling.logprobs == ask.logprobs.map_or(0, Wanted::asked))
}

fn check(template: &TurnInput, messages: &[Message]) -> Result<(), ClientError> {
    TurnInput { messages: messages.to_vec(), ..template.clone() }.check()
}

/// The conversation of the session that a text names: its id, the beginning of it, or `last`.
async fn conversation(gateway: &Gateway, name: &str) -> Result<Conversation, Fault> {
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
                return Err(Fault::value("session", "several sessions begin with this; give more of it"));
            }
            (None, _) => return Err(unknown().into()),
        }
    };
    Ok(client.conversation(id).await?)
}

/// In the session that the caller named. Without anything said before, the new messages follow what is there.
fn in_named(conversation: &Conversation, before: &[Message]) -> Result<Found, Fault> {
    let session = conversation.session;
    if before.is_empty() {
        return Ok(Found::Session { session, replaces: None });
    }
    let Some(turns) = agreement(&conversation.turns, before) else {
        return Err(Fault::conflict(
            "history_mismatch",
            "the messages before the new ones are not what this session says; send the new messages alone, or leave \
             the session away",
        ));
    };
    let replaces = conversation.turns.get(turns).map(|turn| turn.replaced_from);
    Ok(Found::Session { session, replaces })
}

/// In the session that says the same so far, if one does.
async fn by_words(gateway: &Gateway, before: &[Message], all: &[Message], template: &TurnInput) -> Found {
    let proposed = if before.is_empty() { Vec::new() } else { gateway.threads().propose(before) };
    for session in proposed {
        match gateway.client().conversation(session).await {
            Ok(conversation) => {
                let fits = check(template, all).is_ok();
                if let Some(found) = matched(&conversation, before, fits) {
                    return found;
                }
                // It was continued elsewhere since; what it says now is learned.
                gateway.threads().learn(&conversation);
            }
            Err(error) => {
                tracing::debug!(%error, "a proposed session cannot be read");
                gateway.threads().forget(session);
            }
        }
    }
    Found::New { branch: None }
}

/// What becomes of a request whose past stands in this session. Where it goes on it continues; where it says the last
/// thing differently that is an edit; from further back it branches off, so that both ways stay, unless what it
/// carries does not fit one turn.
fn matched(conversation: &Conversation, before: &[Message], fits: bool) -> Option<Found> {
    let session = conversation.session;
    let turns = agreement(&conversation.turns, before)?;
    let Some(next) = conversation.turns.get(turns) else {
        return Some(Found::Session { session, replaces: None });
    };
    if turns + 1 == conversation.turns.len() || !fits {
        return Some(Found::Session { session, replaces: Some(next.replaced_from) });
    }
    let shared = conversation.turns.get(turns.checked_sub(1)?)?;
    let branch = BranchPoint { session_id: session, link_hash: shared.link_hash };
    Some(Found::New { branch: Some(branch) })
}

/// The kind of a turn that replaces something, or nothing.
pub(super) fn kind(replaces: Option<u64>) -> RecordKind {
    if replaces.is_some() { RecordKind::Edit } else { RecordKind::Turn }
}

/// What a session that is asked this has pinned: the request's system text, or what a named session has where the
/// request has none; and always the request's tools.
async fn pinned(client: &Client, session: SessionId, ask: &Ask) -> Result<Vec<Message>, ClientError> {
    let mut system = ask.system.clone();
    if ask.session.is_some() && system.is_empty() {
        system = client.system(session).await?;
        system.retain(|message| !is_definitions(message));
    }
    system.extend(ask.tools.as_ref().map(Definitions::message));
    Ok(system)
}

#[cfg(test)]
mod tests {
    use baton_proto::{
        ids::{LinkHash, NodeId},
        record::Role,
    };

    use super::*;
    use baton_client::SaidTurn;

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
        let turns = messages.chunks(2).enumerate().map(|(seq, messages)| SaidTurn {
            seq: seq as u64,
            replaced_from: seq as u64,
            link_hash: LinkHash([u8::try_from(seq).unwrap_or(u8::MAX); 32]),
            node: NodeId([0; 32]),
            messages: messages.to_vec(),
        });
        Conversation { session: SessionId([1; 32]), used_ms: 0, turns: turns.collect() }
    }

    #[test]
    fn a_request_continues_edits_the_last_turn_or_branches_off() {
        let three = conversation(3);
        let session = three.session;
        let at = |turns| matched(&three, &said(turns), true);
        assert_eq!(at(3), Some(Found::Session { session, replaces: None }));
        assert_eq!(at(2), Some(Found::Session { session, replaces: Some(2) }));
        let branch = BranchPoint { session_id: session, link_hash: LinkHash([0; 32]) };
        assert_eq!(at(1), Some(Found::New { branch: Some(branch) }));
        assert_eq!(at(4), None);
        let too_much = matched(&three, &said(1), false);
        assert_eq!(too_much, Some(Found::Session { session, replaces: Some(1) }));
    }

    #[test]
    fn a_named_session_takes_new_messages_edits_anywhere_and_refuses_another_past() {
        let three = conversation(3);
        let session = three.session;
        assert_eq!(in_named(&three, &[]).unwrap(), Found::Session { session, replaces: None });
        assert_eq!(in_named(&three, &said(1)).unwrap(), Found::Session { session, replaces: Some(1) });
        assert!(in_named(&three, &said(4)).is_err());
    }
}
