//! Turns of a conversation: a new message, the same again, another in its place, and the end of an unfinished one.

use baton_client::{ClientError, RouteOptions, TurnInput, TurnOutcome, TurnSettings};
use baton_proto::record::{Message, RecordKind, Role};

use super::Dialogue;
use crate::{
    failure::Failure,
    interrupt::cancellable,
    search::while_waiting,
    turn_display::{TurnDisplay, joined_text},
};

impl Dialogue {
    /// Runs a turn, and shows it; with a seq, it replaces the turns from there on. A failure leaves the message to the
    /// caller.
    pub(in crate::chat) async fn exchange(
        &mut self,
        messages: &[Message],
        replaced: Option<u64>,
        view: &mut TurnDisplay<'_>,
    ) -> Result<TurnOutcome, Failure> {
        let options = &self.options;
        let hint = options.memory.as_ref().map(|memory| memory.hint(self.session, messages, &self.out));
        let mut input = TurnInput {
            messages: [self.history.as_slice(), messages].concat(),
            route: RouteOptions { hint, ..options.template.route.clone() },
            ..options.template.clone()
        };
        input.sampling.seed = options.seed_of_turn();
        if replaced.is_some() {
            input = TurnInput { kind: RecordKind::Edit, supersedes_from: replaced, ..input };
        }
        let handle = self.handle();
        if let Some(system) = &self.system {
            handle.set_system(vec![Message::new(Role::System, system)]).await?;
            self.system = None;
        }
        let started = view.started();
        let turn = Box::pin(handle.turn(input, |event| view.show(event)));
        let outcome = cancellable(&self.out, while_waiting(&self.client, &self.out, started, turn)).await?;
        self.finish(messages, &outcome, view).await;
        Ok(outcome)
    }

    /// Runs the turn of a message. A call that repeats the message without an answer takes that one up.
    pub(in crate::chat) async fn ask(
        &mut self,
        message: Message,
        view: &mut TurnDisplay<'_>,
    ) -> Result<TurnOutcome, Failure> {
        if self.is_repeated(&message).await?
            && let Some(outcome) = self.finish_pending(view).await?
        {
            return Ok(outcome);
        }
        self.exchange(&[message], None, view).await
    }

    /// Whether a message is the one without an answer. The first turn of a branch holds the history before it.
    pub(in crate::chat) async fn is_repeated(&self, message: &Message) -> Result<bool, Failure> {
        Ok(self.handle().pending_messages().await?.is_some_and(|pending| pending.last() == Some(message)))
    }

    /// Finishes a pending turn, if there is one. The newest call decides its settings: a turn that was begun with others
    /// is given up, and its message asked anew.
    pub(in crate::chat) async fn finish_pending(
        &mut self,
        view: &mut TurnDisplay<'_>,
    ) -> Result<Option<TurnOutcome>, Failure> {
        let Some((messages, begun)) = self.pending().await? else { return Ok(None) };
        view.begin(&messages);
        let mut wanted = self.options.settings();
        wanted.supersedes_from = begun.supersedes_from;
        let is_same_system = match &self.system {
            Some(text) => self.handle().system().await? == [Message::new(Role::System, text)],
            None => true,
        };
        if is_same_system && begun.serve(wanted, self.options.seed.is_some()) {
            return self.resume(&messages, view).await;
        }
        // What cannot be sent is not given up for it.
        TurnInput { messages: messages.clone(), ..self.options.template.clone() }.check()?;
        let messages = self.take_back(messages).await?;
        self.exchange(&messages, begun.supersedes_from, view).await.map(Some)
    }

    /// The messages and settings of the pending turn.
    async fn pending(&self) -> Result<Option<(Vec<Message>, TurnSettings)>, Failure> {
        let handle = self.handle();
        Ok(handle.pending_messages().await?.zip(handle.pending_settings().await?))
    }

    /// Gives up the pending turn of these messages; returns them without the history that the first turn of a branch holds.
    async fn take_back(&self, mut messages: Vec<Message>) -> Result<Vec<Message>, Failure> {
        self.handle().abandon().await?;
        if messages.starts_with(&self.history) {
            messages.drain(..self.history.len());
        }
        Ok(messages)
    }

    /// Finishes the pending turn of these messages as it was begun: with memory recalled anew if this call has memory,
    /// and without it, with a remark, if the relayer gives none.
    async fn resume(
        &self,
        messages: &[Message],
        view: &mut TurnDisplay<'_>,
    ) -> Result<Option<TurnOutcome>, Failure> {
        let (handle, memory) = (self.handle(), self.options.memory.as_ref());
        let hint = memory.map(|memory| memory.hint(self.session, messages, &self.out));
        let hinted = hint.is_some();
        let options = RouteOptions { hint, ..self.options.template.route.clone() };
        let started = view.started();
        let resumed = Box::pin(handle.resume(options, |event| view.show(event)));
        let waited = while_waiting(&self.client, &self.out, started, resumed);
        let mut result = cancellable(&self.out, waited).await;
        if hinted && matches!(result, Err(Failure::Client(ClientError::TurnFailed { .. }))) {
            view.end_line();
            self.out.warn("The relayer did not answer. A node answers directly, without memory.");
            let options = RouteOptions { relayer: None, ..self.options.template.route.clone() };
            result = cancellable(&self.out, handle.resume(options, |event| view.show(event))).await;
        }
        if let Ok(Some(outcome)) = &result {
            self.finish(messages, outcome, view).await;
        }
        result
    }

    /// Shows the end of a turn, and sends it to be remembered, if the user wants that. An unreachable relayer costs a
    /// warning.
    async fn finish(&self, messages: &[Message], outcome: &TurnOutcome, view: &mut TurnDisplay<'_>) {
        view.finish(outcome);
        let Some(memory) = &self.options.memory else { return };
        if let Err(failure) = memory.send(None, messages, outcome).await {
            self.out.warn("The relayer did not remember this exchange:");
            failure.report(&self.out);
        }
    }

    /// Runs a turn of a line; with a seq, it replaces the turns from there on.
    pub(super) async fn turn(
        &mut self,
        messages: Vec<Message>,
        replaced: Option<u64>,
    ) -> Result<(), Failure> {
        self.close().await;
        let out = self.out.clone();
        let mut view = TurnDisplay::new(&out);
        view.begin(&messages);
        let result = self.exchange(&messages, replaced, &mut view).await;
        let is_kept = match &result {
            Ok(_) => true,
            Err(Failure::Client(error)) => self.handle().keeps_message(error, false).await?,
            Err(_) => self.has_kept_message().await,
        };
        if !is_kept {
            let text = joined_text(&messages);
            let command = match replaced {
                Some(_) => "/edit ",
                None if text.starts_with('/') => "/",
                None => "",
            };
            self.given_back = Some(format!("{command}{text}"));
        }
        self.end_turn(result.map(drop), &mut view).await
    }

    /// Sends a message again that was not answered.
    pub(super) async fn retry(&mut self) -> Result<(), Failure> {
        let out = self.out.clone();
        let mut view = TurnDisplay::new(&out);
        let result = self.finish_pending(&mut view).await;
        if let Ok(None) = &result {
            self.out.note("No message waits for an answer.");
        }
        self.end_turn(result.map(drop), &mut view).await
    }

    /// The end of a line's turn: an interruption is said, and is no failure.
    async fn end_turn(
        &mut self,
        result: Result<(), Failure>,
        view: &mut TurnDisplay<'_>,
    ) -> Result<(), Failure> {
        self.is_stopped = matches!(result, Err(Failure::Interrupted));
        match result {
            Ok(()) => self.history.clear(),
            Err(Failure::Interrupted) => {
                view.end_line();
                self.handle().stop_attempts().await?;
                // The full-screen view keeps the part and says so itself.
                if self.out.screen().is_none() {
                    self.out.note("Stopped: the part above is no part of the conversation. /continue takes it up, /edit changes the message.");
                }
            }
            Err(failure) => {
                view.end_line();
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Sends the last message again, or a different text: a turn that replaces the last one.
    pub(super) async fn replace(&mut self, text: Option<&str>) -> Result<(), Failure> {
        // The message that the user stopped, or that has no answer, is the last one.
        if let Some((messages, begun)) = self.pending().await? {
            let messages = self.take_back(messages).await?;
            let messages = text.map_or(messages, |text| vec![Message::new(Role::User, text)]);
            return self.turn(messages, begun.supersedes_from).await;
        }
        let conversation = self.handle().conversation().await?;
        let Some(last) = conversation.turns.last() else {
            self.out.warn("There is no message yet.");
            return Ok(());
        };
        let mut messages = last.messages.clone();
        messages.retain(|message| message.role != Role::Assistant);
        if let Some(text) = text {
            messages = vec![Message::new(Role::User, text)];
        }
        let from = last.replaced_from;
        self.turn(messages, Some(from)).await
    }
}
