//! Decides a request's session and the kind of its turn.

use std::time::Duration;

use baton_proto::{
    chain::{HistoryTurn, effective},
    ids::SessionId,
    link::BranchPoint,
    record::Message,
    tools::{Definitions, is_definitions},
};

use tokio::sync::mpsc::UnboundedSender;

use crate::{
    form::{
        completion::{CompletionRequest, RequestPlace, split},
        steps::Step,
    },
    http::api_error::ApiError,
    sessions::{
        carried_history::{CarriedMessages, starts},
        unanswered::discard_unused,
    },
    state::{
        Gateway,
        session_index::{agreement, is_carried, same_messages},
        session_slots::{SessionSlot, SlotHolder},
    },
};
use baton_client::{Client, ClientError, Conversation, ConversationTurn, NewSession, TurnInput};

/// A session, ready for the turn.
pub(crate) struct PreparedSession {
    pub(crate) session: SessionId,
    /// The messages of the turn, and the number of the request's oldest messages that the session does not have.
    pub(crate) carried: CarriedMessages,
    /// Whether they are unanswered there, so that their turn goes on.
    pub(crate) is_resumed: bool,
    /// The seq from which the turn replaces earlier turns.
    pub(crate) replaces: Option<u64>,
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

/// Times that a request chooses its session. It chooses anew if another request or device changed the session meanwhile.
const MAX_CHOICES: usize = 16;

/// Finds or begins the session of a request, makes it ready, and takes it until the request is answered.
///
/// # Parameters
/// `steps` goes to the program; it shows whether the program still waits.
pub(crate) async fn prepare_session(
    gateway: &Gateway,
    request: &CompletionRequest,
    template: &TurnInput,
    steps: &UnboundedSender<Step>,
) -> Result<ReadySession, ApiError> {
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
    let seeker = Seeker { gateway, client: gateway.client(), request, template, steps, before, new };
    for _ in 0..MAX_CHOICES {
        if let Some(ready) = seeker.prepare().await? {
            return Ok(ready);
        }
    }
    Err(ClientError::Busy.into())
}

/// A prepared session, taken until the request is answered.
type ReadySession = (PreparedSession, SessionSlot);

/// A request that looks for its session.
struct Seeker<'a> {
    gateway: &'a Gateway,
    client: &'a Client,
    request: &'a CompletionRequest,
    template: &'a TurnInput,
    steps: &'a UnboundedSender<Step>,
    /// The earlier messages, which the session has.
    before: &'a [Message],
    /// The messages to answer.
    new: &'a [Message],
}

impl Seeker<'_> {
    /// Chooses a session and makes it ready; none if it changed meanwhile.
    async fn prepare(&self) -> Result<Option<ReadySession>, ApiError> {
        if let Some(session) = self.unanswered().await? {
            return match self.take(session) {
                Ok(slot) => Ok(Some((self.resumed(session).await?, slot))),
                Err(holder) => wait_if_hung_up(holder).await.map(|()| None).map_err(Into::into),
            };
        }
        let choice = self.choose().await?;
        let (session, replaces, left_out) = match choice {
            SessionChoice::New { branch, history } => return self.begin(branch, history).await.map(Some),
            SessionChoice::Session { session, replaces, left_out } => (session, replaces, left_out),
        };
        let unnamed = self.request.session.is_none();
        match self.take(session) {
            // The request that held the session may have ended since: then its turn is part of the session.
            Ok(_) if self.choose().await? != choice => Ok(None),
            Ok(_) if unnamed && runs_other_turn(self.client, session, self.new).await? => {
                self.begin_beside(session, replaces).await.map(Some)
            }
            Ok(slot) => self.continue_session(session, slot, replaces, left_out).await.map(Some),
            Err(holder) if holder.has_hung_up() => {
                wait_if_hung_up(holder).await?;
                Ok(None)
            }
            Err(_) if unnamed => self.begin_beside(session, replaces).await.map(Some),
            Err(_) => {
                let RequestPlace::AfterTurn(seq) = self.request.place else {
                    return Err(ClientError::Busy.into());
                };
                let conversation = self.client.session(session).conversation().await?;
                let (branch, history) = branch_at_turn(&conversation, seq)?;
                self.begin(Some(branch), history).await.map(Some)
            }
        }
    }

    fn take(&self, session: SessionId) -> Result<SessionSlot, SlotHolder> {
        self.gateway.note_use(session);
        self.gateway.inner.session_slots.take(session, self.steps.downgrade())
    }

    /// The session whose unanswered turn has all of the request's messages and settings: the named one, as the chat page
    /// resumes a turn, or else whichever has it. The turn that begins a branch holds its history too.
    async fn unanswered(&self) -> Result<Option<SessionId>, ApiError> {
        let all = &self.request.messages;
        let noted = self.gateway.index().take_unanswered(all, self.gateway.caller.project());
        let session = match self.request.session.as_deref() {
            None => noted,
            Some("new") => None,
            Some(name) => Some(conversation(self.gateway, name).await?.session),
        };
        let is_after = matches!(self.request.place, RequestPlace::AfterMessages | RequestPlace::Pending);
        let Some(session) = session.filter(|_| is_after) else { return Ok(None) };
        let handle = self.client.session(session);
        let is_unnamed = self.request.session.is_none();
        // The turn of a long history lacks its oldest messages.
        let is_it = |pending: Vec<Message>| is_unnamed || same_messages(&pending, all);
        if !handle.pending_messages().await.ok().flatten().is_some_and(is_it) {
            return Ok(None);
        }
        if self.is_same_request(session, None).await? {
            return Ok(Some(session));
        }
        // The request now has other settings, tools or system text, which the begun turn cannot take any more.
        if is_unnamed && !discard_unused(self.gateway, session).await {
            handle.abandon().await?;
        }
        Ok(None)
    }

    /// Whether the pending turn was begun with all settings of the request, its system text and its tools. A turn keeps
    /// them from its beginning. A request without a seed takes any.
    ///
    /// # Parameters
    /// `replaces` is the seq from which the request replaces turns; none if its messages alone found the turn.
    async fn is_same_request(
        &self,
        session: SessionId,
        replaces: Option<Option<u64>>,
    ) -> Result<bool, ApiError> {
        let handle = self.client.session(session);
        let Some(pending) = handle.pending_settings().await? else { return Ok(false) };
        let mut wanted = self.template.settings();
        wanted.supersedes_from = replaces.unwrap_or(pending.supersedes_from);
        Ok(pending.serve(wanted, self.request.seed.is_some())
            && self.pinned_in(Some(session)).await? == handle.system().await?)
    }

    /// The messages to pin to a session for the request: its system text and tools. A session that it names keeps its own
    /// text if the request has none, also in a branch of its; an empty text removes it.
    async fn pinned_in(&self, session: Option<SessionId>) -> Result<Vec<Message>, ClientError> {
        let mut pinned = pinned(self.request);
        let keeps_text = self.request.session.is_some() && self.request.system.is_empty();
        if let Some(session) = session.filter(|_| keeps_text) {
            let system = self.client.session(session).system().await?.into_iter();
            pinned
                .splice(0..0, system.filter(|message| !message.text.is_empty() && !is_definitions(message)));
        }
        Ok(pinned)
    }

    /// A session in which the same request is unanswered.
    async fn resumed(&self, session: SessionId) -> Result<PreparedSession, ClientError> {
        let handle = self.client.session(session);
        let messages = handle.pending_messages().await?.unwrap_or_default();
        let left_out = self.request.messages.len().saturating_sub(messages.len());
        let left_out = if handle.info().await?.turns == 0 { left_out } else { 0 };
        let carried = CarriedMessages::new(messages, left_out);
        Ok(PreparedSession { session, carried, is_resumed: true, replaces: None })
    }

    /// The place of the request, as the sessions are now.
    async fn choose(&self) -> Result<SessionChoice, ApiError> {
        match self.request.session.as_deref() {
            Some("new") => Ok(SessionChoice::New { branch: None, history: Vec::new() }),
            Some(name) => {
                let conversation = conversation(self.gateway, name).await?;
                let conversation = match self.request.place {
                    RequestPlace::BranchAfter(seq) => {
                        conversation_until(self.gateway, conversation, seq).await?
                    }
                    _ => conversation,
                };
                choose_in_named(&conversation, self.before, self.request.place)
            }
            None => Ok(self.find_by_messages().await),
        }
    }

    /// The place in a session with the same earlier messages, if there is one.
    async fn find_by_messages(&self) -> SessionChoice {
        let all = &self.request.messages;
        let fits = check(self.template, all).is_ok();
        // A session may have begun without the oldest messages.
        let starts = starts(all, self.before.len());
        let proposed = self.gateway.index().propose(self.before, starts, self.gateway.caller.project());
        for (start, session) in proposed {
            let before = self.before.get(start..).unwrap_or_default();
            match self.client.session(session).conversation().await {
                Ok(conversation) if start > 0 && !is_carried(&conversation) => {}
                Ok(conversation) => match match_session(&conversation, before, fits) {
                    Some(SessionChoice::Session { session, replaces, .. }) => {
                        return SessionChoice::Session { session, replaces, left_out: start };
                    }
                    Some(choice) => return choice,
                    // Another program continued it; index its present messages.
                    None => self.gateway.index().learn(conversation),
                },
                Err(error) => {
                    tracing::debug!(%error, "a proposed session cannot be read");
                    self.gateway.index().forget(session);
                }
            }
        }
        SessionChoice::New { branch: None, history: Vec::new() }
    }

    /// Begins a session, which may branch off another.
    async fn begin(
        &self,
        branch: Option<BranchPoint>,
        history: Vec<Message>,
    ) -> Result<ReadySession, ApiError> {
        let messages = [history.as_slice(), &self.request.messages].concat();
        let newest = messages.len() - self.new.len();
        let carried = CarriedMessages::fit(messages, newest);
        check(self.template, &carried.messages)?;
        let is_chosen = matches!(self.request.place, RequestPlace::BranchAfter(_));
        let parent = branch.filter(|_| is_chosen).map(|branch| branch.session_id);
        let system = self.pinned_in(parent).await?;
        let project = self.gateway.caller.project().map(str::to_owned);
        let session = self.client.new_session(NewSession { system, branch, project, root: None }).await?;
        let slot = self.take(session).map_err(|_| ClientError::Busy)?;
        Ok((PreparedSession { session, carried, is_resumed: false, replaces: None }, slot))
    }

    /// Begins a branch before the turn that runs in a session, so that both requests are answered.
    async fn begin_beside(
        &self,
        session: SessionId,
        replaces: Option<u64>,
    ) -> Result<ReadySession, ApiError> {
        let turns = self.client.session(session).conversation().await?.turns;
        let shared = turns.iter().take_while(|turn| replaces.is_none_or(|from| turn.seq < from)).last();
        let branch = shared.map(|turn| BranchPoint { session_id: session, link_hash: turn.link_hash });
        self.begin(branch, Vec::new()).await
    }

    /// Makes the taken session ready for the request.
    async fn continue_session(
        &self,
        session: SessionId,
        slot: SessionSlot,
        replaces: Option<u64>,
        left_out: usize,
    ) -> Result<ReadySession, ApiError> {
        let handle = self.client.session(session);
        check(self.template, self.new)?;
        let system = self.pinned_in(Some(session)).await?;
        let pending = handle.pending_messages().await?;
        let is_pending = pending.as_ref().is_some_and(|pending| same_messages(pending, self.new));
        if self.request.place == RequestPlace::Pending && !is_pending {
            let message = "this message was answered or dropped meanwhile; read the session again";
            return Err(ApiError::new("message_not_pending", message));
        }
        let is_resumed = is_pending && self.is_same_request(session, Some(replaces)).await?;
        if !is_resumed {
            if pending.is_some() {
                // A different request no longer waits for that answer.
                handle.abandon().await?;
            }
            handle.set_system(system).await?;
        }
        let carried = CarriedMessages::new(self.new.to_vec(), left_out);
        Ok((PreparedSession { session, carried, is_resumed, replaces }, slot))
    }
}

/// The messages that a new session of a request pins: its system texts and its tools.
pub(crate) fn pinned(request: &CompletionRequest) -> Vec<Message> {
    let texts = request.system.iter().filter(|message| !message.text.is_empty()).cloned();
    texts.chain(request.tools.as_ref().map(Definitions::message)).collect()
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
async fn wait_if_hung_up(holder: SlotHolder) -> Result<(), ClientError> {
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

/// Whether a turn takes these messages.
pub(crate) fn check(template: &TurnInput, messages: &[Message]) -> Result<(), ClientError> {
    TurnInput { messages: messages.to_vec(), ..template.clone() }.check()
}

/// The conversation of a session that the caller named: its id, a prefix of the id, or `last`.
async fn conversation(gateway: &Gateway, name: &str) -> Result<Conversation, ApiError> {
    let wanted = name.to_lowercase();
    let id = match wanted.parse::<SessionId>() {
        Ok(id) => id,
        Err(_) => {
            gateway.refresh().await?;
            // Last used first.
            let listed = gateway.index().list(gateway.caller.project());
            let is_last = name == "last";
            let ids = listed.iter().map(|(one, _)| one.session);
            let is_meant = |id: &SessionId| is_last || id.to_string().starts_with(&wanted);
            let mut found = ids.filter(is_meant).take(if is_last { 1 } else { 2 });
            match (found.next().filter(|_| !wanted.is_empty()), found.next()) {
                (Some(id), None) => id,
                (Some(_), Some(_)) => {
                    let message = "several sessions begin with this; give more of it";
                    return Err(ApiError::value("session", message));
                }
                (None, _) => return Err(ClientError::UnknownSession(name.chars().take(64).collect()).into()),
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
    let continued = |replaces| Ok(SessionChoice::Session { session, replaces, left_out: 0 });
    match place {
        RequestPlace::Pending => continued(None),
        RequestPlace::AfterMessages if before.is_empty() => continued(None),
        RequestPlace::AfterMessages => {
            let Some(turns) = agreement(&conversation.turns, before) else {
                return Err(ApiError::new(
                    "history_mismatch",
                    "the messages before the new ones are not what this session says; send the new messages alone, or \
                     leave the session away",
                ));
            };
            continued(conversation.turns.get(turns).map(|turn| turn.replaced_from))
        }
        RequestPlace::Replaces(seq) => continued(Some(turn_at(conversation, seq)?.1.replaced_from)),
        RequestPlace::AfterTurn(seq) if conversation.turns.last().is_some_and(|turn| turn.seq == seq) => {
            continued(None)
        }
        RequestPlace::AfterTurn(seq) | RequestPlace::BranchAfter(seq) => {
            let (branch, history) = branch_at_turn(conversation, seq)?;
            Ok(SessionChoice::New { branch: Some(branch), history })
        }
    }
}

/// A branch after a turn of a session, and the messages up to it.
fn branch_at_turn(conversation: &Conversation, seq: u64) -> Result<(BranchPoint, Vec<Message>), ApiError> {
    let (index, turn) = turn_at(conversation, seq)?;
    let shared = conversation.turns.iter().take(index + 1);
    let history = shared.flat_map(|turn| turn.messages.clone()).collect();
    Ok((BranchPoint { session_id: conversation.session, link_hash: turn.link_hash }, history))
}

/// A present turn, with its index.
fn turn_at(conversation: &Conversation, seq: u64) -> Result<(usize, &ConversationTurn), ApiError> {
    conversation.turns.iter().enumerate().find(|(_, turn)| turn.seq == seq).ok_or_else(|| {
        let message = format!("the session has no present turn with seq {seq}; read the session again");
        ApiError::new("turn_not_found", message)
    })
}

/// Matches a request with a session that holds its earlier messages. After the last turn, the session
/// continues. If only the last turn differs, the request is an edit. From further back it branches, so that
/// both versions stay; if the branch's messages do not fit one turn, it is an edit too.
fn match_session(conversation: &Conversation, before: &[Message], fits: bool) -> Option<SessionChoice> {
    let session = conversation.session;
    let turns = agreement(&conversation.turns, before)?;
    let replaces = conversation.turns.get(turns).map(|next| next.replaced_from);
    if turns + 1 >= conversation.turns.len() || !fits {
        return Some(SessionChoice::Session { session, replaces, left_out: 0 });
    }
    let shared = conversation.turns.get(turns.checked_sub(1)?)?;
    let branch = BranchPoint { session_id: session, link_hash: shared.link_hash };
    Some(SessionChoice::New { branch: Some(branch), history: Vec::new() })
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

    fn continued(replaces: Option<u64>) -> SessionChoice {
        SessionChoice::Session { session: SessionId([1; 32]), replaces, left_out: 0 }
    }

    fn branched(after: u8, history: Vec<Message>) -> SessionChoice {
        let branch = BranchPoint { session_id: SessionId([1; 32]), link_hash: LinkHash([after; 32]) };
        SessionChoice::New { branch: Some(branch), history }
    }

    #[test]
    fn a_request_continues_edits_the_last_turn_or_branches_off() {
        for (turns, fits, expected) in [
            (3, true, Some(continued(None))),
            (2, true, Some(continued(Some(2)))),
            (1, true, Some(branched(0, Vec::new()))),
            (4, true, None),
            (1, false, Some(continued(Some(1)))),
        ] {
            assert_eq!(match_session(&conversation(3), &said(turns), fits), expected, "{turns}");
        }
    }

    #[test]
    fn a_named_session_takes_new_messages_edits_anywhere_and_refuses_another_past() {
        use RequestPlace::{AfterMessages, AfterTurn, BranchAfter, Pending, Replaces};
        for (before, place, expected) in [
            (0, AfterMessages, Some(continued(None))),
            (1, AfterMessages, Some(continued(Some(1)))),
            (4, AfterMessages, None),
            (0, Replaces(0), Some(continued(Some(0)))),
            (0, BranchAfter(1), Some(branched(1, said(2)))),
            (0, AfterTurn(1), Some(branched(1, said(2)))),
            (0, AfterTurn(2), Some(continued(None))),
            (0, Pending, Some(continued(None))),
            (0, AfterTurn(3), None),
            (0, Replaces(3), None),
            (0, BranchAfter(3), None),
        ] {
            let chosen = choose_in_named(&conversation(3), &said(before), place);
            assert_eq!(chosen.ok(), expected, "{place:?} after {before} turns");
        }
    }
}
