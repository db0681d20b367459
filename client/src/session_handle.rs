//! One session of a client, for its callers.

use std::{fmt, sync::Arc, time::Duration};

use baton_keys::session::SessionRoot;
use baton_proto::{
    ids::{NodeId, SessionId},
    record::Message,
};
use zeroize::Zeroizing;

use crate::{
    background::{
        self,
        renewal::{self, RenewReport},
    },
    core::Core,
    error::ClientError,
    event::{RouteOptions, TurnEvent, TurnInput, TurnOutcome, TurnSettings, check_texts},
    evidence::Equivocation,
    session::{
        info::{SessionInfo, TurnView, info, view},
        journal::JournalLocation,
        lifetime::BlobLifetime,
        open_session::Session,
        state::{Entry, State},
        title,
    },
    sync::{
        conversation::{self, Conversation},
        head::HeadStatus,
        receipts::{self, TurnReceipt},
        reconcile::{self, ReconcileReport, SessionBranch},
        sessions::{self, Deletion},
        transfer,
        verify::{self, STORING_GRACE, VerifyReport},
    },
    turn::{self, audit::AuditOutcome},
    wait,
};

/// One session of a client, from [`Client::session`](crate::Client::session). Nothing is opened before the
/// first call; each call opens the session's journal if needed and resumes its unfinished background work.
#[derive(Clone)]
pub struct SessionHandle {
    core: Arc<Core>,
    id: SessionId,
}

impl SessionHandle {
    pub(crate) fn new(core: Arc<Core>, id: SessionId) -> Self {
        Self { core, id }
    }

    /// The session's id.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Gives the session a title; none for the beginning of its first message. Only this device shows it.
    ///
    /// # Errors
    /// [`ClientError::TitleTooLong`], and as writing the session's journal.
    pub async fn rename(&self, title: Option<&str>) -> Result<(), ClientError> {
        let title = title::checked(title.unwrap_or_default())
            .map_err(|chars| ClientError::TitleTooLong { chars, limit: title::MAX_TITLE_CHARS })?;
        self.open_shortly().await?.record(vec![Entry::Title(title)]).await
    }

    async fn open(&self) -> Result<Arc<Session>, ClientError> {
        background::open(&self.core, self.id, false).await
    }

    /// The session, perhaps without the turns that its snapshot leaves out.
    async fn open_shortly(&self) -> Result<Arc<Session>, ClientError> {
        background::open(&self.core, self.id, true).await
    }

    /// The status of a session.
    ///
    /// # Errors
    /// [`ClientError::UnknownSession`], and as opening its journal.
    pub async fn info(&self) -> Result<SessionInfo, ClientError> {
        Ok(info(&*self.open_shortly().await?, self.core.terms()))
    }

    /// Whether a turn or another change of the chain runs now.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn is_busy(&self) -> Result<bool, ClientError> {
        Ok(self.open_shortly().await?.begin().is_err())
    }

    /// The accepted turns of a session, oldest first.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn history(&self) -> Result<Vec<TurnView>, ClientError> {
        let session = self.open().await?;
        Ok(session.read(|state| {
            let turns = state.history.iter().zip(&state.meta);
            turns.map(view).collect()
        }))
    }

    /// The last accepted turn of a session; none before the first.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn last_turn(&self) -> Result<Option<TurnView>, ClientError> {
        Ok(self.open().await?.read(|state| state.last().map(view)))
    }

    /// The conversation of a session. A session that is not open here is read without opening it, so that
    /// other processes may continue it.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn conversation(&self) -> Result<Conversation, ClientError> {
        conversation::conversation(&self.core, self.id).await
    }

    /// The receipts of a session's turns, oldest first. With `verify` every signature is checked again: the
    /// receipt against the turn's link and authorisation, and the acknowledgement against both.
    ///
    /// # Errors
    /// [`ClientError::UnknownSession`], [`ClientError::JournalDamaged`], [`ClientError::File`].
    pub async fn receipts(&self, verify: bool) -> Result<Vec<TurnReceipt>, ClientError> {
        receipts::receipts(&self.core, self.id, verify).await
    }

    /// The turns of a session for which their node signed a second link, oldest first.
    ///
    /// # Errors
    /// As [`SessionHandle::receipts`].
    pub async fn equivocations(&self) -> Result<Vec<Equivocation>, ClientError> {
        let turns = self.receipts(false).await?;
        Ok(turns.into_iter().filter_map(|turn| turn.equivocation).collect())
    }

    /// The branches of a session: turns that forks left beside its conversation, or that lie before a gap of it.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn branches(&self) -> Result<Vec<SessionBranch>, ClientError> {
        Ok(self.open().await?.read(reconcile::branches))
    }

    /// The conversation that ends with a branch: the turns before it, and its own.
    ///
    /// # Errors
    /// [`ClientError::UnknownBranch`], and as opening the session.
    pub async fn branch_conversation(&self, name: &str) -> Result<Conversation, ClientError> {
        let found = self.open().await?.read(|state| Conversation::of_branch(state, name));
        found.ok_or_else(|| ClientError::UnknownBranch(name.chars().take(64).collect()))
    }

    /// The pinned system text of a session, with the definitions of its tools ([`baton_proto::tools`]).
    ///
    /// # Errors
    /// As opening the session.
    pub async fn system(&self) -> Result<Vec<Message>, ClientError> {
        Ok(self.open_shortly().await?.read(|state| state.system.to_vec()))
    }

    /// Replaces the pinned system text of a session, from the next turn on. Does nothing if the text is the
    /// same.
    ///
    /// # Errors
    /// [`ClientError::PendingTurn`] while a turn is not finished; as [`SessionHandle::info`].
    pub async fn set_system(&self, system: Vec<Message>) -> Result<(), ClientError> {
        check_texts(&system)?;
        let session = self.open_shortly().await?;
        if session.read(|state| *state.system == system) {
            return Ok(());
        }
        let _permit = session.begin()?;
        if session.read(|state| state.pending.is_some()) {
            return Err(ClientError::PendingTurn);
        }
        session.record(vec![Entry::System(system)]).await
    }

    /// The messages of the unfinished turn, if there is one.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn pending_messages(&self) -> Result<Option<Vec<Message>>, ClientError> {
        let session = self.open_shortly().await?;
        Ok(session.read(|state| state.pending.as_ref().map(|pending| pending.turn.messages.clone())))
    }

    /// The settings of the unfinished turn, if there is one.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn pending_settings(&self) -> Result<Option<TurnSettings>, ClientError> {
        let session = self.open_shortly().await?;
        Ok(session.read(|state| state.pending.as_ref().map(|pending| pending.turn.settings())))
    }

    /// Sends a message in a session and waits for the answer, accepted and journaled. Background work
    /// (storing, acknowledging, publishing the head) continues afterwards.
    ///
    /// Cancel safe: a dropped call leaves the turn pending in the journal. [`SessionHandle::resume`] finishes it,
    /// [`SessionHandle::abandon`] gives it up. The closed substream informs the node.
    ///
    /// # Errors
    /// - [`ClientError::EmptyMessage`], [`ClientError::MessageTooLong`], [`ClientError::PendingTurn`],
    ///   [`ClientError::Busy`].
    /// - [`ClientError::Deleted`] once another device's deletion is known here.
    /// - [`ClientError::NoNode`] and [`ClientError::TurnFailed`], after which the turn stays pending: nodes
    ///   do not sign their reasons, so no reason makes the client forget the message.
    pub async fn turn(
        &self,
        input: TurnInput,
        on_event: impl FnMut(TurnEvent) + Send,
    ) -> Result<TurnOutcome, ClientError> {
        // Before the session is opened: a wrong input leaves no trace.
        input.check()?;
        let session = self.open_shortly().await?;
        // Nor does a message to a session that another device deleted.
        if session.read(|state| state.deleted_elsewhere) {
            return Err(ClientError::Deleted);
        }
        turn::turn(&self.core, &session, input, on_event).await
    }

    /// Finishes a pending turn, if there is one. Asks the authors of its attempts about them, and accepts a
    /// turn that an author sealed; otherwise makes new attempts.
    ///
    /// # Errors
    /// As [`SessionHandle::turn`].
    pub async fn resume(
        &self,
        route: RouteOptions,
        on_event: impl FnMut(TurnEvent) + Send,
    ) -> Result<Option<TurnOutcome>, ClientError> {
        turn::resume(&self.core, &self.open_shortly().await?, route, on_event).await
    }

    /// Gives up an unanswered message, if there is one; its attempts are aborted in the background.
    ///
    /// # Errors
    /// [`ClientError::Busy`] while it runs, and as opening the session.
    pub async fn abandon(&self) -> Result<(), ClientError> {
        turn::abandon(&self.core, &self.open_shortly().await?).await
    }

    /// Has the nodes of an unanswered message stop: its attempts are aborted in the background. The message stays, and
    /// [`SessionHandle::resume`] makes a new attempt at it.
    ///
    /// # Errors
    /// [`ClientError::Busy`] while it runs, and as opening the session.
    pub async fn stop_attempts(&self) -> Result<(), ClientError> {
        turn::stop_attempts(&self.core, &self.open_shortly().await?)
    }

    /// Whether the message of a failed turn is kept: the one rule by which front ends say so. A kept message is in
    /// the journal, and [`SessionHandle::resume`] sends it again, also after a restart. Two kinds are given up here,
    /// and their sender has the text:
    /// - a message that nodes refused as it is, or of a session that another device deleted, since it would fail again;
    /// - with `is_repeatable`, a message for which no node was asked: its sender is a command or a program, which
    ///   can repeat its call.
    ///
    /// A session that is left without a turn or a message leaves no file when it is closed.
    ///
    /// # Errors
    /// As [`SessionHandle::abandon`].
    pub async fn keeps_message(&self, error: &ClientError, is_repeatable: bool) -> Result<bool, ClientError> {
        let session = self.open_shortly().await?;
        if error.is_refusal_of_request() || matches!(error, ClientError::Deleted) {
            turn::abandon(&self.core, &session).await?;
        } else if is_repeatable {
            self.abandon_unasked().await?;
        }
        Ok(!error.is_before_message() && session.read(|state| state.pending.is_some()))
    }

    /// Gives up an unanswered message for which no node was asked. Returns whether there was one.
    ///
    /// # Errors
    /// As [`SessionHandle::abandon`].
    pub async fn abandon_unasked(&self) -> Result<bool, ClientError> {
        let unasked = self.open_shortly().await?.read(State::is_unasked);
        if unasked {
            self.abandon().await?;
        }
        Ok(unasked)
    }

    /// Merges a session with its other devices' turns, and publishes the head. A fork is resolved by the rule, and the
    /// chain that loses becomes a branch ([`SessionHandle::branches`]). Harmless if there is no other device.
    ///
    /// Cancel safe: completed steps are in the journal, and the next call continues from there.
    ///
    /// # Errors
    /// - [`ClientError::Busy`] while a turn runs.
    /// - [`ClientError::Deleted`].
    /// - [`ClientError::Store`] when no index answers, the other device's blobs cannot be read, or a turn here cannot be
    ///   stored before it leaves the chain.
    /// - The chain's codes if they do not verify.
    pub async fn reconcile(
        &self,
        on_event: impl FnMut(TurnEvent) + Send,
    ) -> Result<ReconcileReport, ClientError> {
        reconcile::reconcile(&self.core, &self.open().await?, on_event).await
    }

    /// Publishes this device's head over another device's whose blobs are gone for good, so that it cannot be
    /// merged. Otherwise new turns here could not be found from the root. If the other device comes back, it
    /// sees both chains and resolves them by the rule.
    ///
    /// # Errors
    /// [`ClientError::Busy`] while a turn runs, [`ClientError::Deleted`], [`ClientError::Store`].
    pub async fn publish_over(&self) -> Result<(), ClientError> {
        reconcile::publish_over(&self.core, &self.open().await?).await
    }

    /// Compares the head index with this device's state. Changes nothing in the session;
    /// [`SessionHandle::reconcile`] does. A head that the index lacks is published again in the background;
    /// [`SessionHandle::wait_delivered`] waits for it.
    ///
    /// # Errors
    /// - [`baton_proto::ErrorCode::RollbackDetected`] when indexes show less than they took, and none shows all of it.
    /// - [`baton_proto::ErrorCode::ForkDetected`] when an index shows another turn in the place of a turn known here.
    /// - [`ClientError::Behind`] when another device has added turns.
    /// - [`ClientError::Store`] when no index can be reached.
    pub async fn check_head(&self) -> Result<HeadStatus, ClientError> {
        background::check_head(&self.core, &self.open_shortly().await?).await
    }

    /// Waits until every accepted turn of a session is stored with a known ID, and its head is published.
    /// False if that took longer than `timeout`. Resumes unfinished work.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn wait_settled(&self, timeout: Duration) -> Result<bool, ClientError> {
        Ok(wait::wait_settled(&self.core, &self.open_shortly().await?, timeout).await)
    }

    /// Waits until the head of a session is published and its last turn's author has the acknowledgement.
    /// False if that took longer than `timeout`; the rest is in the journal.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn wait_delivered(&self, timeout: Duration) -> Result<bool, ClientError> {
        let delivered = |session: &Session| {
            session.read(|state| {
                let last = state.next_seq().checked_sub(1);
                state.is_published() && last.is_none_or(|last| !state.unacked.contains(&last))
            })
        };
        Ok(wait::until(&*self.open_shortly().await?, timeout, delivered).await)
    }

    /// Waits until all head indexes have the head of a session; false if that took longer than `timeout`.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn wait_published(&self, timeout: Duration) -> Result<bool, ClientError> {
        let published = |session: &Session| {
            session.read(|state| state.is_published() && state.head_unconfirmed.is_none())
        };
        Ok(wait::until(&*self.open_shortly().await?, timeout, published).await)
    }

    /// Waits until the head of a session is published or its publication fails. True if another device's
    /// turns are in its way, so that [`SessionHandle::reconcile`] has work. False also if nothing is known within
    /// `timeout`.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn wait_compared(&self, timeout: Duration) -> Result<bool, ClientError> {
        let session = self.open_shortly().await?;
        let diverged = |session: &Session| session.indexes(|view| view.diverged);
        wait::until(&session, timeout, |session| diverged(session) || session.is_publication_over()).await;
        Ok(diverged(&session))
    }

    /// Verifies a session. Checks every link, signature and record, every blob's BLAKE3 (in-segment ones are
    /// rebuilt), and the Walrus IDs of closed segments; with `full` of every blob. Reads segments from the
    /// store, or from this client's own copy if the store lacks them.
    ///
    /// # Errors
    /// The chain's errors when a segment does not verify at all ([`ClientError::Protocol`]); single wrong
    /// blobs, IDs and receipts are in the report.
    pub async fn verify(&self, full: bool) -> Result<VerifyReport, ClientError> {
        verify::verify(&self.core, &self.open().await?, full).await
    }

    /// As [`SessionHandle::verify`], after waiting at most [`STORING_GRACE`] for the last turn to be stored: a blob
    /// on its way is not a lost one.
    ///
    /// # Errors
    /// As [`SessionHandle::verify`].
    pub async fn verify_when_stored(&self, full: bool) -> Result<VerifyReport, ClientError> {
        self.wait_settled(STORING_GRACE).await?;
        self.verify(full).await
    }

    /// Puts the blobs of these turns into the store again from this client's own copy, without a check: for
    /// the `not_stored` of [`SessionHandle::verify`].
    ///
    /// # Errors
    /// [`ClientError::Store`], the chain's for a turn that is not here, and as opening the session.
    pub async fn put_back_blobs(&self, turns: &[u64]) -> Result<(), ClientError> {
        verify::put_back_blobs(&self.core, &self.open().await?, turns).await
    }

    /// Lifetimes of the blobs that the session needs, oldest first.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn lifetimes(&self) -> Result<Vec<BlobLifetime>, ClientError> {
        Ok(self.core.lifetimes_of(&*self.open().await?))
    }

    /// Buys those of a session's blobs again that are due, or may expire `within` that time. A failure does
    /// not stop the others; each is one PUT and may cost money. Also checks that the store has the last
    /// turn's blob and the index this device's head, and restores missing ones. Stores the blobs that no store
    /// has confirmed, unless their nodes still have time to do so. Nothing else maintains a session at rest.
    ///
    /// A renewal whose answer was lost, or that the end of the process cut off, may have been paid. Such a
    /// blob is not due again for an eighth of an epoch. Dropping this future midway counts as the end of the
    /// process.
    ///
    /// # Errors
    /// [`ClientError::Store`] when the store does not answer within seconds, and as opening the session.
    pub async fn renew(&self, within: Option<Duration>) -> Result<RenewReport, ClientError> {
        renewal::renew(&self.core, &self.open().await?, within).await
    }

    /// Has a node check the last answer. It sees what the next turn's node would see, and adds no turn.
    ///
    /// # Errors
    /// - [`ClientError::NotAuditable`] for an answer that no node can check.
    /// - [`ClientError::NoNode`] when the node is not found or does not serve the answer's model.
    /// - [`ClientError::TurnFailed`] when it made no check.
    pub async fn audit(&self, node: NodeId) -> Result<AuditOutcome, ClientError> {
        Box::pin(turn::audit::audit(&self.core, &self.open().await?, node)).await
    }

    /// The session as JSON text (see `docs/PROTOCOL.md`), as secret as the conversation. Only with the root
    /// can it be imported; then its holder can also continue the session.
    ///
    /// # Errors
    /// [`baton_proto::ErrorCode::BadSequence`] for a session without turns, [`ClientError::ExportTooLarge`] for an export
    /// that could not be read again, and as opening the session.
    pub async fn export(&self, with_root: bool) -> Result<Zeroizing<String>, ClientError> {
        transfer::export(&self.open().await?, with_root).await
    }

    /// A session's root, which gives full access to the session. Also works for a damaged journal whose
    /// beginning is whole.
    ///
    /// # Errors
    /// [`ClientError::UnknownSession`], [`ClientError::File`].
    pub async fn backup(&self) -> Result<SessionRoot, ClientError> {
        sessions::backup(&self.core, self.id).await
    }

    /// Compacts a log client's log once it has grown; returns whether it did. The new log holds only the
    /// entries that the next turn needs; earlier turns are then in the store alone.
    ///
    /// # Errors
    /// [`ClientError::Busy`] while a turn runs; [`ClientError::Log`], after which the session must be opened
    /// anew.
    pub async fn compact_log(&self) -> Result<bool, ClientError> {
        if !matches!(self.core.journals.location, JournalLocation::Log(_)) {
            return Ok(false);
        }
        let session = self.open().await?;
        let _permit = session.begin()?;
        self.core.blocking(move |core| session.compact(&core.journals)).await
    }

    /// Deletes a session. Informs the head index if it can be reached, then removes the journal and the files
    /// kept beside it, including damaged ones. Blobs in the store expire by themselves.
    ///
    /// # Errors
    /// [`ClientError::Busy`] while a turn is under way, and as [`SessionHandle::info`].
    pub async fn delete(&self) -> Result<Deletion, ClientError> {
        match self.open_shortly().await {
            Ok(session) => sessions::delete(&self.core, &session).await,
            Err(ClientError::JournalDamaged { path, .. }) => {
                sessions::delete_damaged(&self.core, self.id, path).await
            }
            Err(error) => Err(error),
        }
    }

    /// Closes a session's file, so that another process may open it. Does nothing while a turn runs.
    pub fn release(&self) {
        let mut open = self.core.lock();
        if let Some(session) =
            open.get(&self.id).filter(|session| session.is_read_only() || session.begin().is_ok())
        {
            session.close(self.core.terms(), self.core.now_ms());
            open.remove(&self.id);
        }
    }
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionHandle").field("id", &self.id).finish_non_exhaustive()
    }
}
