//! Decides a request's session and the kind of its turn.

use std::time::Duration;

use baton_proto::{
    chain::{HistoryTurn, effective},
    ids::SessionId,
    link::BranchPoint,
    record::{Message, RecordKind},
    tools::{Definitions, is_definitions},
};

use tokio::sync::mpsc::UnboundedSender;

use super::{
    ApiError, Gateway,
    carried_history::{fit, starts},
    completion::{CompletionRequest, RequestPlace, split},
    session_index::{agreement, same_messages},
    session_slots::{Holder, SessionSlot},
    steps::Step,
    unanswered::discard_unused,
};
use baton_client::{
    Client, ClientError, Conversation, ConversationTurn, NewSession, ResumeOptions, TurnInput,
};

/// A session, ready for the turn.
pub(super) struct PreparedSession {
    pub(super) session: SessionId,
    pub(super) work: SessionWork,
    /// The request's oldest messages that the session does not have: together they are larger than a turn.
    pub(super) messages_left_out: usize,
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
    Session { session: SessionId, replaces: Option<u64>, left_out: usize },
    /// A new session that begins with all messages that fit a turn; it may branch off another. `history` has the
    /// parent's messages before the branch that the request does not repeat.
    New { branch: Option<BranchPoint>, history: Vec<Message> },
}

/// Time for a turn to end whose program has hung up.
const HANG_UP_WAIT: Duration = Duration::from_secs(5);

/// Finds or begins the session of a request, makes it ready, and takes it until the request is answered.
///
/// # Parameters
/// `steps` goes to the program; it shows whether the program still waits.
pub(super) async fn prepare_session(
    gateway: &Gateway,
    request: &CompletionRequest,
    template: &TurnInput,
    steps: &UnboundedSender<Step>,
) -> Result<(PreparedSession, SessionSlot), ApiError> {
    let client = gateway.client();
    let take = |session| gateway.inner.session_slots.take(session, steps.downgrade());
    let busy = |_| ClientError::Busy;
    let project = gateway.caller.project();
    let unanswered = gateway.index().take_unanswered(&request.messages, project);
    if let Some(session) = unanswered
        && request.session.is_none()
        && client.session(session).info().await.is_ok_and(|info| info.pending)
    {
        if is_same_request(gateway, session, (request, template), None).await? {
            let slot = take(session).map_err(busy)?;
            return Ok((PreparedSession::resumed(client, session, request).await?, slot));
        }
        // The request now has other settings, tools or system text, which the begun turn cannot take any more.
        if !discard_unused(gateway, request, session).await {
            client.session(session).abandon().await?;
        }
    }
    let (before, mut new) = split(&request.messages);
    if new.is_empty() {
        let message = if request.messages.is_empty() {
            "there is only system text; add a message of the user, which is answered"
        } else {
            "the last message is the assistant's; there is nothing to answer"
        };
        return Err(ApiError::value("messages", message));
    }
    if request.place != RequestPlace::AfterMessages {
        new = &request.messages;
    }
    if let Some(name) = request.session.as_deref().filter(|name| *name != "new") {
        let session = conversation(gateway, name).await?.session;
        if repeats_pending(gateway, session, (request, template)).await? {
            gateway.note_use(session);
            let slot = match take(session) {
                Ok(slot) => slot,
                Err(holder) => {
                    wait_if_hung_up(holder).await?;
                    return Box::pin(prepare_session(gateway, request, template, steps)).await;
                }
            };
            return Ok((PreparedSession::resumed(client, session, request).await?, slot));
        }
    }
    let choice = choose(gateway, request, before, template).await?;
    let (choice, slot) = match choice {
        SessionChoice::Session { session, replaces, .. } => match take(session) {
            Ok(slot) => {
                // The request that held the session may have ended since: then its turn is part of the session.
                if choose(gateway, request, before, template).await? != choice {
                    drop(slot);
                    return Box::pin(prepare_session(gateway, request, template, steps)).await;
                }
                let choice = match request.session {
                    None if runs_other_turn(client, session, new).await? => {
                        branch_beside(client, (session, replaces)).await?
                    }
                    _ => choice,
                };
                (choice, Some(slot))
            }
            Err(holder) if holder.has_hung_up() => {
                wait_if_hung_up(holder).await?;
                return Box::pin(prepare_session(gateway, request, template, steps)).await;
            }
            Err(_) => match request.place {
                _ if request.session.is_none() => (branch_beside(client, (session, replaces)).await?, None),
                RequestPlace::AfterTurn(seq) => {
                    let conversation = client.session(session).conversation().await?;
                    (choose_at_turn(&conversation, RequestPlace::BranchAfter(seq), seq)?, None)
                }
                _ => return Err(ClientError::Busy.into()),
            },
        },
        choice @ SessionChoice::New { .. } => (choice, None),
    };
    match choice {
        SessionChoice::New { branch, history } => {
            let mut messages = [history.as_slice(), &request.messages].concat();
            let newest = messages.len() - new.len();
            let messages_left_out = fit(&mut messages, newest);
            check(template, &messages)?;
            let mut system = pinned(request);
            if request.system.is_empty()
                && let (Some(branch), RequestPlace::BranchAfter(_)) = (&branch, request.place)
            {
                let own = own_system(client, branch.session_id).await?;
                system.splice(0..0, own.into_iter().filter(|message| !message.text.is_empty()));
            }
            let project = project.map(str::to_owned);
            let begun = NewSession { system, branch, project, root: None };
            let session = client.new_session(begun).await?;
            gateway.note_use(session);
            let slot = take(session).map_err(busy)?;
            let work = SessionWork::Turn { messages, replaces: None };
            Ok((PreparedSession { session, work, messages_left_out }, slot))
        }
        SessionChoice::Session { session, .. }
            if client.session(session).info().await?.waiting_replays > 0 =>
        {
            // Another device's chain displaced turns: replay them first, then place the request in the
            // result.
            client.session(session).reconcile(&ResumeOptions::of(template), |_| {}).await?;
            gateway.learn(session).await?;
            if request.place != RequestPlace::AfterMessages {
                return Err(ApiError::conflict(
                    "turn_moved",
                    "another device's turns were merged, so the turn may have another seq; read the session again",
                ));
            }
            drop(slot);
            Box::pin(prepare_session(gateway, request, template, steps)).await
        }
        SessionChoice::Session { session, replaces, left_out } => {
            let slot = slot.ok_or(ClientError::Busy)?;
            check(template, new)?;
            gateway.note_use(session);
            let system = pinned_messages(client, session, request).await?;
            let pending = client.session(session).pending_messages().await?;
            if request.place == RequestPlace::Pending
                && !pending.as_ref().is_some_and(|pending| same_messages(pending, new))
            {
                let message = "this message was answered or dropped meanwhile; read the session again";
                return Err(ApiError::conflict("message_not_pending", message));
            }
            if let Some(pending) = pending {
                if same_messages(&pending, new)
                    && is_same_request(gateway, session, (request, template), Some(replaces)).await?
                {
                    let work = SessionWork::Resume;
                    return Ok((PreparedSession { session, work, messages_left_out: left_out }, slot));
                }
                // A different request no longer waits for that answer.
                client.session(session).abandon().await?;
            }
            client.session(session).set_system(system).await?;
            let work = SessionWork::Turn { messages: new.to_vec(), replaces };
            Ok((PreparedSession { session, work, messages_left_out: left_out }, slot))
        }
    }
}

/// The messages that a new session of a request pins: its system texts and its tools.
pub(super) fn pinned(request: &CompletionRequest) -> Vec<Message> {
    let texts = request.system.iter().filter(|message| !message.text.is_empty()).cloned();
    texts.chain(request.tools.as_ref().map(Definitions::message)).collect()
}

/// The place of a request, as the sessions are now.
async fn choose(
    gateway: &Gateway,
    request: &CompletionRequest,
    before: &[Message],
    template: &TurnInput,
) -> Result<SessionChoice, ApiError> {
    match request.session.as_deref() {
        Some("new") => Ok(SessionChoice::New { branch: None, history: Vec::new() }),
        Some(name) => {
            let conversation = conversation(gateway, name).await?;
            let conversation = match request.place {
                RequestPlace::BranchAfter(seq) => conversation_until(gateway, conversation, seq).await?,
                _ => conversation,
            };
            choose_in_named(&conversation, before, request.place)
        }
        None => Ok(find_by_messages(gateway, before, &request.messages, template).await),
    }
}

/// A conversation as it stood after a turn, if later turns replaced that one.
async fn conversation_until(
    gateway: &Gateway,
    conversation: Conversation,
    seq: u64,
) -> Result<Conversation, ClientError> {
    if conversation.turns.iter().any(|turn| turn.seq == seq) {
        return Ok(conversation);
    }
    let views = gateway.client().session(conversation.session).history().await?;
    let until: Vec<HistoryTurn> =
        views.into_iter().map(|view| view.turn).take_while(|turn| turn.link.seq <= seq).collect();
    let turns = effective(&until).into_iter().filter_map(|position| {
        let turn = until.get(position)?;
        Some(ConversationTurn {
            seq: turn.link.seq,
            replaced_from: turn.link.seq,
            link_hash: turn.link.link_hash(),
            node: turn.link.author,
            messages: turn.record.as_ref()?.messages.clone(),
        })
    });
    Ok(Conversation { turns: turns.collect(), ..conversation })
}

/// Waits for the end of a turn whose program has hung up, as before a retry, or after a stop. Other turns are
/// not waited for.
async fn wait_if_hung_up(holder: Holder) -> Result<(), ClientError> {
    if !holder.has_hung_up() {
        return Err(ClientError::Busy);
    }
    tokio::time::timeout(HANG_UP_WAIT, holder.ended()).await.map_err(|_| ClientError::Busy)
}

/// Whether another turn runs in the session that a request's messages chose, such as a replay. The same messages
/// once more are a retry.
async fn runs_other_turn(client: &Client, session: SessionId, new: &[Message]) -> Result<bool, ClientError> {
    let handle = client.session(session);
    let pending = handle.pending_messages().await?;
    Ok(pending.is_some_and(|pending| !same_messages(&pending, new)) && handle.is_busy().await?)
}

/// A branch before the turn that runs in a session, so that both requests are answered.
async fn branch_beside(
    client: &Client,
    (session, replaces): (SessionId, Option<u64>),
) -> Result<SessionChoice, ApiError> {
    let turns = client.session(session).conversation().await?.turns;
    let shared = turns.iter().take_while(|turn| replaces.is_none_or(|from| turn.seq < from)).last();
    let branch = shared.map(|turn| BranchPoint { session_id: session, link_hash: turn.link_hash });
    Ok(SessionChoice::New { branch, history: Vec::new() })
}

/// Whether a request for a named session repeats all messages of its unanswered turn, as the chat page does to
/// resume it. The turn that begins a branch holds its history too.
async fn repeats_pending(
    gateway: &Gateway,
    session: SessionId,
    (request, template): (&CompletionRequest, &TurnInput),
) -> Result<bool, ApiError> {
    if !matches!(request.place, RequestPlace::AfterMessages | RequestPlace::Pending) {
        return Ok(false);
    }
    let client = gateway.client();
    if client.session(session).info().await?.waiting_replays > 0 {
        return Ok(false);
    }
    let pending = client.session(session).pending_messages().await?;
    Ok(pending.is_some_and(|pending| same_messages(&pending, &request.messages))
        && is_same_request(gateway, session, (request, template), None).await?)
}

/// Whether the pending turn was begun with all settings of a request, its system text and its tools. A turn keeps
/// them from its beginning. A request without a seed takes any.
///
/// # Parameters
/// `replaces` is the seq from which the request replaces turns; none if its messages alone found the turn.
async fn is_same_request(
    gateway: &Gateway,
    session: SessionId,
    (request, template): (&CompletionRequest, &TurnInput),
    replaces: Option<Option<u64>>,
) -> Result<bool, ApiError> {
    let handle = gateway.client().session(session);
    let Some(pending) = handle.pending_settings().await? else { return Ok(false) };
    let mut wanted = template.settings();
    wanted.supersedes_from = replaces.unwrap_or(pending.supersedes_from);
    Ok(pending.serve(wanted, request.sampling.seed.is_some())
        && pinned_messages(gateway.client(), session, request).await? == handle.system().await?)
}

impl PreparedSession {
    /// A session in which the same request is unanswered.
    async fn resumed(
        client: &Client,
        session: SessionId,
        request: &CompletionRequest,
    ) -> Result<Self, ClientError> {
        let handle = client.session(session);
        let begun = handle.info().await?.turns == 0;
        let pending = handle.pending_messages().await?.filter(|_| begun);
        let left_out = pending.map_or(0, |pending| request.messages.len().saturating_sub(pending.len()));
        Ok(Self { session, work: SessionWork::Resume, messages_left_out: left_out })
    }
}

fn check(template: &TurnInput, messages: &[Message]) -> Result<(), ClientError> {
    TurnInput { messages: messages.to_vec(), ..template.clone() }.check()
}

/// The conversation of a session that the caller named: its id, a prefix of the id, or `last`.
async fn conversation(gateway: &Gateway, name: &str) -> Result<Conversation, ApiError> {
    let client = gateway.client();
    let unknown = || ClientError::UnknownSession(name.chars().take(64).collect());
    let wanted = name.to_lowercase();
    let id = match (wanted.parse::<SessionId>(), gateway.caller.project()) {
        (Ok(id), _) => id,
        (Err(_), None) if name == "last" => client.last_session().await?.ok_or_else(unknown)?,
        (Err(_), project) => {
            let ids = match project {
                None => client.session_ids().await?,
                // Last used first.
                Some(project) => gateway.index().ids_of(project),
            };
            let mut found = ids.iter().filter(|id| !wanted.is_empty() && id.to_string().starts_with(&wanted));
            match (found.next(), found.next()) {
                (Some(id), None) => *id,
                (Some(_), Some(_)) => {
                    return Err(ApiError::value(
                        "session",
                        "several sessions begin with this; give more of it",
                    ));
                }
                (None, _) if name == "last" => *ids.first().ok_or_else(unknown)?,
                (None, _) => return Err(unknown().into()),
            }
        }
    };
    Ok(gateway.session(id).await?.conversation().await?)
}

/// Places a request in the session that the caller named: at the turn that it names, or after its earlier
/// messages. Without either, the new messages follow the end.
fn choose_in_named(
    conversation: &Conversation,
    before: &[Message],
    place: RequestPlace,
) -> Result<SessionChoice, ApiError> {
    let session = conversation.session;
    match place {
        RequestPlace::Replaces(seq) | RequestPlace::BranchAfter(seq) | RequestPlace::AfterTurn(seq) => {
            return choose_at_turn(conversation, place, seq);
        }
        RequestPlace::Pending => return Ok(SessionChoice::Session { session, replaces: None, left_out: 0 }),
        RequestPlace::AfterMessages => {}
    }
    if before.is_empty() {
        return Ok(SessionChoice::Session { session, replaces: None, left_out: 0 });
    }
    let Some(turns) = agreement(&conversation.turns, before) else {
        return Err(ApiError::conflict(
            "history_mismatch",
            "the messages before the new ones are not what this session says; send the new messages alone, or leave \
             the session away",
        ));
    };
    let replaces = conversation.turns.get(turns).map(|turn| turn.replaced_from);
    Ok(SessionChoice::Session { session, replaces, left_out: 0 })
}

/// Places new messages at a turn of a session.
fn choose_at_turn(
    conversation: &Conversation,
    place: RequestPlace,
    seq: u64,
) -> Result<SessionChoice, ApiError> {
    let session = conversation.session;
    let found = conversation.turns.iter().enumerate().find(|(_, turn)| turn.seq == seq);
    let Some((index, turn)) = found else {
        return Err(ApiError::conflict(
            "turn_not_found",
            format!("the session has no present turn with seq {seq}; read the session again"),
        ));
    };
    if matches!(place, RequestPlace::Replaces(_)) {
        return Ok(SessionChoice::Session { session, replaces: Some(turn.replaced_from), left_out: 0 });
    }
    if matches!(place, RequestPlace::AfterTurn(_)) && index + 1 == conversation.turns.len() {
        return Ok(SessionChoice::Session { session, replaces: None, left_out: 0 });
    }
    let shared = conversation.turns.iter().take(index + 1);
    let history = shared.flat_map(|turn| turn.messages.clone()).collect();
    let branch = BranchPoint { session_id: session, link_hash: turn.link_hash };
    Ok(SessionChoice::New { branch: Some(branch), history })
}

/// Places a request in a session with the same earlier messages, if there is one.
async fn find_by_messages(
    gateway: &Gateway,
    before: &[Message],
    all: &[Message],
    template: &TurnInput,
) -> SessionChoice {
    let fits = check(template, all).is_ok();
    // A session may have begun without the oldest messages.
    for start in starts(all, before.len()) {
        let before = before.get(start..).unwrap_or_default();
        let proposed = match before {
            [] => Vec::new(),
            before => gateway.index().propose(before, gateway.caller.project()),
        };
        for session in proposed {
            match gateway.client().session(session).conversation().await {
                Ok(conversation) => match match_session(&conversation, before, fits) {
                    Some(SessionChoice::Session { session, replaces, .. }) => {
                        return SessionChoice::Session { session, replaces, left_out: start };
                    }
                    Some(choice) => return choice,
                    // Another program continued it; index its present messages.
                    None => gateway.index().learn(&conversation),
                },
                Err(error) => {
                    tracing::debug!(%error, "a proposed session cannot be read");
                    gateway.index().forget(session);
                }
            }
        }
    }
    SessionChoice::New { branch: None, history: Vec::new() }
}

/// Matches a request with a session that holds its earlier messages. After the last turn, the session
/// continues. If only the last turn differs, the request is an edit. From further back it branches, so that
/// both versions stay; if the branch's messages do not fit one turn, it is an edit too.
fn match_session(conversation: &Conversation, before: &[Message], fits: bool) -> Option<SessionChoice> {
    let session = conversation.session;
    let turns = agreement(&conversation.turns, before)?;
    let Some(next) = conversation.turns.get(turns) else {
        return Some(SessionChoice::Session { session, replaces: None, left_out: 0 });
    };
    if turns + 1 == conversation.turns.len() || !fits {
        return Some(SessionChoice::Session { session, replaces: Some(next.replaced_from), left_out: 0 });
    }
    let shared = conversation.turns.get(turns.checked_sub(1)?)?;
    let branch = BranchPoint { session_id: session, link_hash: shared.link_hash };
    Some(SessionChoice::New { branch: Some(branch), history: Vec::new() })
}

/// The record kind of a turn: an edit if it replaces turns.
pub(super) fn record_kind(replaces: Option<u64>) -> RecordKind {
    if replaces.is_some() { RecordKind::Edit } else { RecordKind::Turn }
}

/// The messages to pin to the session: the request's system text and tools. A named session keeps its own
/// text if the request has none; an empty text removes it.
async fn pinned_messages(
    client: &Client,
    session: SessionId,
    request: &CompletionRequest,
) -> Result<Vec<Message>, ClientError> {
    let mut system = request.system.clone();
    if request.session.is_some() && system.is_empty() {
        system = own_system(client, session).await?;
    }
    system.retain(|message| !message.text.is_empty());
    system.extend(request.tools.as_ref().map(Definitions::message));
    Ok(system)
}

/// The pinned system text of a session, without the definitions of tools.
async fn own_system(client: &Client, session: SessionId) -> Result<Vec<Message>, ClientError> {
    let mut system = client.session(session).system().await?;
    system.retain(|message| !is_definitions(message));
    Ok(system)
}

#[cfg(test)]
mod tests {
    use baton_proto::{
        ids::{LinkHash, NodeId},
        record::Role,
    };

    use super::*;

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
        Conversation {
            session: SessionId([1; 32]),
            title: String::new(),
            project: None,
            used_ms: 0,
            branch: None,
            turns: turns.collect(),
        }
    }

    #[test]
    fn a_request_continues_edits_the_last_turn_or_branches_off() {
        let three = conversation(3);
        let session = three.session;
        let at = |turns| match_session(&three, &said(turns), true);
        assert_eq!(at(3), Some(SessionChoice::Session { session, replaces: None, left_out: 0 }));
        assert_eq!(at(2), Some(SessionChoice::Session { session, replaces: Some(2), left_out: 0 }));
        let branch = BranchPoint { session_id: session, link_hash: LinkHash([0; 32]) };
        assert_eq!(at(1), Some(SessionChoice::New { branch: Some(branch), history: Vec::new() }));
        assert_eq!(at(4), None);
        let too_much = match_session(&three, &said(1), false);
        assert_eq!(too_much, Some(SessionChoice::Session { session, replaces: Some(1), left_out: 0 }));
    }

    #[test]
    fn a_named_session_takes_new_messages_edits_anywhere_and_refuses_another_past() {
        let three = conversation(3);
        let session = three.session;
        let choose = |before: &[Message]| choose_in_named(&three, before, RequestPlace::AfterMessages);
        assert_eq!(choose(&[]).unwrap(), SessionChoice::Session { session, replaces: None, left_out: 0 });
        assert_eq!(
            choose(&said(1)).unwrap(),
            SessionChoice::Session { session, replaces: Some(1), left_out: 0 }
        );
        assert!(choose(&said(4)).is_err());
    }

    #[test]
    fn a_named_turn_is_replaced_even_the_first_or_begins_a_branch_with_its_history() {
        let three = conversation(3);
        let session = three.session;
        let choose = |place| choose_in_named(&three, &[], place);
        assert_eq!(
            choose(RequestPlace::Replaces(0)).unwrap(),
            SessionChoice::Session { session, replaces: Some(0), left_out: 0 }
        );
        let branch = BranchPoint { session_id: session, link_hash: LinkHash([1; 32]) };
        assert_eq!(
            choose(RequestPlace::BranchAfter(1)).unwrap(),
            SessionChoice::New { branch: Some(branch), history: said(2) }
        );
        assert_eq!(
            choose(RequestPlace::AfterTurn(1)).unwrap(),
            choose(RequestPlace::BranchAfter(1)).unwrap()
        );
        assert_eq!(
            choose(RequestPlace::AfterTurn(2)).unwrap(),
            SessionChoice::Session { session, replaces: None, left_out: 0 }
        );
        assert_eq!(
            choose(RequestPlace::Pending).unwrap(),
            SessionChoice::Session { session, replaces: None, left_out: 0 }
        );
        assert!(choose(RequestPlace::AfterTurn(3)).is_err(), "no such turn");
        assert!(choose(RequestPlace::Replaces(3)).is_err(), "no such turn");
        assert!(choose(RequestPlace::BranchAfter(3)).is_err(), "no such turn");
    }
}
