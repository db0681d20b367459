//! A conversation with a user: its session, and the turns of it. A single message ([`super::message`]), the prompt
//! ([`super::prompt`]) and the full-screen view drive it; [`Out`] and [`TurnDisplay`] display it.

mod commands;
mod exchange;

use baton_client::{Client, ClientError, NewSession, ReconcileReport, SessionHandle};
use baton_proto::{ids::SessionId, record::Message};

use super::{
    opening::{OpenedSession, open_session},
    options::TurnOptions,
};
use crate::{
    args::ChatArguments,
    failure::Failure,
    interrupt::cancellable,
    out::{Out, count, short},
    session::devices,
    turn_display::TurnDisplay,
};

/// The step after a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DialogueStep {
    /// Read the next line.
    On,
    /// Read the next line, which begins with this text: the user changes it.
    Prefill(String),
    /// Greet: the dialogue moved to another session.
    Greet,
    /// Leave.
    Leave,
}

/// A conversation with a user.
pub(crate) struct Dialogue {
    client: Client,
    pub(super) options: TurnOptions,
    out: Out,
    session: SessionId,
    /// System text for the named session, until a turn may begin.
    system: Option<String>,
    /// The parent's messages, which the first turn of a branch repeats.
    history: Vec<Message>,
    /// Whether the user stopped the last answer. Its message waits for `/continue`, and the next one takes its place.
    is_stopped: bool,
    /// The line of a message that is not kept, until it is in the user's line again.
    given_back: Option<String>,
}

impl Dialogue {
    /// Opens the session that the call names, or a new one.
    pub(crate) async fn open(
        client: &Client,
        options: TurnOptions,
        arguments: &ChatArguments,
        out: Out,
    ) -> Result<Self, Failure> {
        let opened = open_session(client, &options, arguments, &out).await?;
        if arguments.drop_pending {
            client.session(opened.session).abandon().await?;
        }
        let named = arguments.session.as_ref().filter(|_| arguments.branch.is_none());
        Ok(Self { system: named.and(arguments.system.clone()), ..Self::of(client, options, opened, out) })
    }

    /// A conversation in a session that is open.
    pub(super) fn of(client: &Client, options: TurnOptions, opened: OpenedSession, out: Out) -> Self {
        let OpenedSession { session, history } = opened;
        Self {
            client: client.clone(),
            options,
            out,
            session,
            system: None,
            history,
            is_stopped: false,
            given_back: None,
        }
    }

    /// The current session.
    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// Whether a message without an answer is in the journal.
    pub(crate) async fn has_kept_message(&self) -> bool {
        self.handle().info().await.is_ok_and(|info| info.pending)
    }

    /// Takes the line of the last message if it failed and is not kept: the user changes it, or sends it again.
    pub(crate) fn take_given_back(&mut self) -> Option<String> {
        self.given_back.take()
    }

    /// The output of the dialogue.
    pub(crate) fn out(&self) -> &Out {
        &self.out
    }

    /// Shows the session and its head index's state, and finishes an unanswered turn.
    pub(crate) async fn greet(&mut self) -> Result<(), Failure> {
        let info = self.handle().info().await?;
        // The full-screen view shows the present number of turns in its last line.
        let turns = match self.out.screen() {
            None if info.turns > 0 => format!(" · {}", count(info.effective_turns, "turn")),
            _ => String::new(),
        };
        self.out.note(&format!("session {}{turns} · /help", short(&info.id)));
        if self.out.screen().is_some() && info.turns == 0 {
            self.out.note("Type a message, and Enter sends it. / lists the commands, Tab the conversations, F1 the keys.");
        }
        if info.deleted_elsewhere {
            self.warn_deleted();
            return Ok(());
        }
        if info.turns > 0 {
            self.compare().await?;
        } else {
            self.options.announce_nodes(&self.out);
            self.out.note("A node reads the turn that it serves. Your history stays encrypted, and yours.");
        }
        self.options.announce_memory(&self.out);
        if self.handle().info().await?.pending {
            self.out.note("An earlier message has no answer yet; sending it again.");
            if let Err(failure) = self.retry().await {
                failure.report(&self.out);
            }
        }
        Ok(())
    }

    fn warn_deleted(&self) {
        self.out.warn("Another device deleted this conversation. Its turns can be read here.");
        self.out.note("  /delete removes it here, and /new begins another.");
    }

    /// Compares with the head index: merges other devices' turns, and reports them and any problems.
    async fn compare(&self) -> Result<(), Failure> {
        match self.reconcile().await {
            Ok(_) => devices::warn_of_indexes(&self.handle().info().await?, &self.out),
            Err(Failure::Client(ClientError::Deleted)) => self.warn_deleted(),
            Err(Failure::Client(error)) => {
                self.out.warn(&format!("head index: {error}"));
                if let Some(hint) = error.hint() {
                    self.out.note(&format!("  {hint}"));
                }
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Merges other devices' turns, and says so.
    pub(super) async fn reconcile(&self) -> Result<ReconcileReport, Failure> {
        let mut view = TurnDisplay::new(&self.out);
        cancellable(&self.out, self.handle().reconcile(|event| view.show(event))).await
    }

    /// Begins a session.
    async fn new_session(&self) -> Result<SessionId, ClientError> {
        self.client.new_session(with_system(self.options.system.as_deref())).await
    }

    /// Gives up the message of an answer that the user stopped: nobody waits for it any more.
    pub(crate) async fn close(&mut self) {
        if std::mem::take(&mut self.is_stopped)
            && let Err(error) = self.handle().abandon().await
        {
            tracing::debug!(%error, "a stopped message was not given up");
        }
    }

    pub(super) fn handle(&self) -> SessionHandle {
        self.client.session(self.session)
    }
}

/// A new session with this system text.
pub(super) fn with_system(text: Option<&str>) -> NewSession {
    text.map_or_else(NewSession::default, NewSession::with_system)
}
