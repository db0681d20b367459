//! The dialogue of `baton chat`: parses and runs lines. The prompt ([`super::repl`]) and the full-screen view
//! ([`super::tui`]) both drive it; [`Out`] and [`TurnDisplay`] display it.

use std::{path::Path, sync::Arc};

use baton_client::{Client, ClientError, Conversation, SessionHandle, TurnInput, TurnOutcome};
use baton_kit::nearest::nearest;
use baton_proto::{
    ids::SessionId,
    receipt::EngineKind,
    record::{Message, RecordKind, Role},
};

use super::{
    Failure,
    args::ChatArguments,
    devices, find_session,
    interrupt::cancellable_at,
    opening::{OpenedSession, open_session},
    out::{CopyOutcome, MAX_COPY_BYTES, Out, count, role, short, short_session, turn_number},
    session::{note_replaced, show_list, show_report},
    talk::{Talk, TurnDisplay, joined_text, show_memory, while_waiting},
    write_private,
};

/// The commands.
pub(crate) const HELP: &str = "\
/new            begin a conversation
/sessions       list the conversations
/switch ID      continue another conversation (an id, its first digits, or last)
/rename TITLE   give this conversation a title
/delete         delete this conversation, after a question
/edit [TEXT]    replace your last message; alone, it puts the message into the line
/regenerate     ask for the last answer again
/continue       continue an answer that was stopped, or that the limit cut
/retry          send a message again that was not answered
/drop           discard a message that was not answered
/model [NAME]   use another model, or show the models
/system [TEXT]  set the system text, or show it
/params [..]    set temperature=, max_tokens= or seed=, or show them
/export FILE    write this conversation: as Markdown to FILE.md, otherwise with all proofs
/verify [full]  check this conversation against the store
/memory         show the memories of the last turn
/copy           copy the last answer to the clipboard
/help           this list
/quit           leave (also Ctrl-D); Ctrl-C stops an answer";

/// The message that continues a cut answer.
const CONTINUE: &str = "Continue exactly where you stopped.";

/// A parsed line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    Say(&'a str),
    New,
    Sessions,
    Switch(&'a str),
    Rename(&'a str),
    Delete { sure: bool },
    Continue,
    Model(&'a str),
    System(&'a str),
    Params(&'a str),
    Export(&'a str),
    Copy,
    Edit(&'a str),
    Regenerate,
    Retry,
    Drop,
    Verify { full: bool },
    Memory,
    Help,
    Quit,
    Nothing,
    Unknown(&'a str),
}

/// Parses a line.
pub(crate) fn parse(line: &str) -> Line<'_> {
    let line = line.trim();
    let Some(command) = line.strip_prefix('/') else {
        return if line.is_empty() { Line::Nothing } else { Line::Say(line) };
    };
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    match (name, rest.trim()) {
        ("new", "") => Line::New,
        ("sessions", "") => Line::Sessions,
        ("switch", id) if !id.is_empty() => Line::Switch(id),
        ("rename", title) if !title.is_empty() => Line::Rename(title),
        ("delete", "") => Line::Delete { sure: false },
        ("delete", "yes") => Line::Delete { sure: true },
        ("continue", "") => Line::Continue,
        ("model", name) => Line::Model(name),
        ("system", text) => Line::System(text),
        ("params", values) => Line::Params(values),
        ("export", file) if !file.is_empty() => Line::Export(file),
        ("copy", "") => Line::Copy,
        ("edit", text) => Line::Edit(text),
        ("regenerate", "") => Line::Regenerate,
        ("retry", "") => Line::Retry,
        ("drop", "") => Line::Drop,
        ("verify", "") => Line::Verify { full: false },
        ("verify", "full") => Line::Verify { full: true },
        ("memory", "") => Line::Memory,
        ("help", _) => Line::Help,
        ("quit" | "exit", "") => Line::Quit,
        // Two slashes at the beginning send a message that begins with one.
        _ if command.starts_with('/') => Line::Say(command),
        _ => Line::Unknown(line),
    }
}

/// The names of the commands, each with its slash.
pub(crate) fn command_names() -> impl Iterator<Item = &'static str> {
    HELP.lines().filter_map(|line| line.split_whitespace().next()).filter(|name| name.starts_with('/'))
}

/// States that there is no such command, with the one that it may mean.
pub(crate) fn unknown_command(line: &str) -> String {
    let name = line.split_whitespace().next().unwrap_or_default();
    let near =
        nearest(name, command_names()).map(|near| format!(" Did you mean {near}?")).unwrap_or_default();
    format!("There is no {line}.{near} /help lists the commands.")
}

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

/// A conversation with a user who types.
pub(crate) struct Dialogue {
    client: Client,
    talk: Talk,
    out: Out,
    session: SessionId,
    /// System text for the named session, until a turn may begin.
    system: Option<String>,
    /// The messages of the last turn while it has no answer, and the turn from which they replace others.
    unanswered: Option<(Vec<Message>, Option<u64>)>,
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
        talk: Arc<Talk>,
        arguments: &ChatArguments,
        out: Out,
    ) -> Result<Self, Failure> {
        let OpenedSession { session, history } = open_session(client, &talk, arguments, &out).await?;
        if arguments.drop_pending {
            client.session(session).abandon().await?;
        }
        let named = arguments.session.as_ref().filter(|_| arguments.branch.is_none());
        let system = named.and(arguments.system.clone());
        let (client, talk) = (client.clone(), (*talk).clone());
        Ok(Self {
            client,
            talk,
            out,
            session,
            system,
            unanswered: None,
            history,
            is_stopped: false,
            given_back: None,
        })
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
        self.out.note(&format!("session {}{turns} · /help", short_session(&info.id)));
        if self.out.screen().is_some() && info.turns == 0 {
            self.out.note("Type a message, and Enter sends it. / lists the commands, Tab the conversations, F1 the keys.");
        }
        if info.deleted_elsewhere {
            self.warn_deleted();
            return Ok(());
        }
        self.talk.announce_nodes(&self.out);
        if info.turns > 0 {
            self.compare().await?;
        } else {
            self.out.note("A node reads the turn that it serves. Your history stays encrypted, and yours.");
        }
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
        match self.talk.reconcile(&self.client, self.session, &self.out).await {
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

    /// Runs a line.
    pub(crate) async fn act(&mut self, line: Line<'_>) -> Result<DialogueStep, Failure> {
        match line {
            Line::Nothing => {}
            Line::Quit => return Ok(DialogueStep::Leave),
            Line::Help => self.out.line(HELP)?,
            Line::Unknown(text) => self.out.warn(&unknown_command(text)),
            Line::Say(text) => self.turn(vec![Message::new(Role::User, text)], None).await?,
            Line::Memory => self.memory().await?,
            Line::Edit("") => return self.prefill().await,
            Line::Edit(text) => self.replace(Some(text)).await?,
            Line::Regenerate => self.replace(None).await?,
            Line::Retry => self.retry().await?,
            Line::Drop => {
                self.handle().abandon().await?;
                self.out.note("The message is discarded.");
            }
            Line::Rename(title) => {
                self.handle().rename(Some(title)).await?;
                self.out.note("The conversation is renamed.");
            }
            Line::Delete { sure: false } => {
                let title = self.handle().info().await?.title;
                self.out.warn(&format!("Delete \"{title}\"? Type /delete yes"));
            }
            Line::Delete { sure: true } => return self.delete().await,
            Line::Continue if self.unanswered.is_some() => self.retry().await?,
            Line::Continue => self.turn(vec![Message::new(Role::User, CONTINUE)], None).await?,
            Line::Model(name) => self.model(name).await?,
            Line::System(text) => self.system(text).await?,
            Line::Params(values) => self.params(values)?,
            Line::Export(file) => {
                let is_markdown =
                    Path::new(file).extension().is_some_and(|name| name.eq_ignore_ascii_case("md"));
                let text = match is_markdown {
                    true => markdown_of(&self.handle().conversation().await?).into(),
                    false => self.handle().export(false).await?,
                };
                write_private(Path::new(file), text.as_bytes())?;
                self.out.note(&format!("Written to {file}. The file is as secret as the conversation."));
            }
            Line::Copy => self.copy().await?,
            Line::Sessions => show_list(&self.client, &self.out).await?,
            Line::New => {
                let new = self.talk.new_session(&self.client).await?;
                return self.move_to(new).await;
            }
            Line::Switch(id) => {
                let session = find_session(&self.client, id).await?;
                return self.move_to(session).await;
            }
            Line::Verify { full } => {
                let report = cancellable_at(&self.out, self.handle().verify_when_stored(full)).await?;
                show_report(&report, &self.out)?;
                note_replaced(&self.handle().info().await?, &self.out);
            }
        }
        Ok(DialogueStep::On)
    }

    async fn move_to(&mut self, session: SessionId) -> Result<DialogueStep, Failure> {
        // Opens the new one first, so that a session in use elsewhere leaves the current one as it is.
        self.client.session(session).info().await?;
        if session != self.session {
            self.close().await;
            self.handle().release();
            self.system = None;
            self.unanswered = None;
            self.history.clear();
        }
        self.session = session;
        Ok(DialogueStep::Greet)
    }

    /// Gives up the message of an answer that the user stopped: nobody waits for it any more.
    pub(crate) async fn close(&mut self) {
        if std::mem::take(&mut self.is_stopped)
            && let Err(error) = self.handle().abandon().await
        {
            tracing::debug!(%error, "a stopped message was not given up");
        }
    }

    fn handle(&self) -> SessionHandle {
        self.client.session(self.session)
    }

    /// Runs a turn; with a seq, it replaces the turns from there on.
    async fn turn(&mut self, messages: Vec<Message>, replaced: Option<u64>) -> Result<(), Failure> {
        self.close().await;
        let mut view = TurnDisplay::new(&self.out);
        view.begin(&messages);
        self.unanswered = Some((messages.clone(), replaced));
        let mut input = self.talk.input(self.session, messages.clone(), &self.out);
        drop(input.messages.splice(..0, self.history.clone()));
        if replaced.is_some() {
            input = TurnInput { kind: RecordKind::Edit, supersedes_from: replaced, ..input };
        }
        if let Some(system) = &self.system {
            self.handle().set_system(vec![Message::new(Role::System, system)]).await?;
            self.system = None;
        }
        let handle = self.handle();
        let started = view.started();
        let turn = Box::pin(handle.turn(input, |event| view.show(event)));
        let result = cancellable_at(&self.out, while_waiting(&self.client, &self.out, started, turn)).await;
        if let Ok(outcome) = &result {
            self.talk.remember(&messages, outcome, &self.out).await;
        }
        match &result {
            Ok(_) => {
                self.unanswered = None;
                self.history.clear();
            }
            Err(Failure::Client(error)) if !handle.keeps_message(error, false).await? => {
                let text = joined_text(&messages);
                let command = match replaced {
                    Some(_) => "/edit ",
                    None if text.starts_with('/') => "/",
                    None => "",
                };
                self.given_back = Some(format!("{command}{text}"));
                // Another message waits, which /retry and /edit are about.
                if handle.pending_messages().await?.is_some() {
                    self.unanswered = None;
                }
            }
            Err(_) => {}
        }
        let is_stopped = matches!(result, Err(Failure::Interrupted));
        let finished = self.finish_turn(result.map(Some), &mut view).await;
        self.is_stopped = is_stopped;
        finished
    }

    /// Deletes the session, and begins another.
    async fn delete(&mut self) -> Result<DialogueStep, Failure> {
        let deletion = self.handle().delete().await?;
        if let Some(error) = deletion.unpublished {
            self.out.warn(&format!("Deleted on this device. The head index was not informed: {error}"));
        } else {
            self.out.note("The conversation is deleted.");
        }
        self.unanswered = None;
        self.is_stopped = false;
        self.history.clear();
        self.session = self.talk.new_session(&self.client).await?;
        Ok(DialogueStep::Greet)
    }

    /// Sets the model of the next turns, if a node serves it; without a name, lists the models.
    async fn model(&mut self, name: &str) -> Result<(), Failure> {
        let nodes = self.client.nodes().await;
        let offers = nodes.iter().flat_map(|node| &node.record.models);
        let offers = offers.filter(|offer| offer.engine != EngineKind::Embedding);
        let mut names: Vec<&str> = offers.map(|offer| offer.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        match name {
            "" => {
                let used = self.talk.template.model.as_deref().unwrap_or("any");
                self.out.line(&format!("model: {used}; served: {}", names.join(", ")))?;
            }
            "any" => self.talk.template.model = None,
            name if names.contains(&name) => self.talk.template.model = Some(name.to_owned()),
            name => {
                let near = nearest(name, names.iter().copied());
                let near = near.map(|near| format!(" Did you mean {near}?")).unwrap_or_default();
                self.out.warn(&format!("No node serves {name}.{near} Served: {}", names.join(", ")));
                return Ok(());
            }
        }
        if !name.is_empty() {
            self.out.note(&format!("model: {name}"));
        }
        Ok(())
    }

    /// Sets the system text of the next turns; without a text, shows it.
    async fn system(&mut self, text: &str) -> Result<(), Failure> {
        if text.is_empty() {
            let system = self.handle().system().await?;
            let system = self.system.clone().unwrap_or_else(|| joined_text(&system));
            self.out.line(if system.is_empty() { "There is no system text." } else { &system })?;
        } else {
            self.system = Some(text.to_owned());
            self.out.note("The system text is set for the next messages.");
        }
        Ok(())
    }

    /// Sets sampling parameters; without any, shows them.
    fn params(&mut self, values: &str) -> Result<(), Failure> {
        for value in values.split_whitespace() {
            self.talk.set(value)?;
        }
        Ok(self.out.line(&self.talk.params())?)
    }

    /// Copies the last answer to the terminal's clipboard.
    async fn copy(&self) -> Result<(), Failure> {
        let conversation = self.handle().conversation().await?;
        let answers = conversation.turns.iter().rev().flat_map(|turn| turn.messages.iter().rev());
        let answer = answers.into_iter().find(|message| message.role == Role::Assistant);
        let Some(answer) = answer else {
            self.out.warn("There is no answer yet.");
            return Ok(());
        };
        match self.out.copy(&answer.text)? {
            CopyOutcome::Sent => {
                self.out.note("The last answer is in the clipboard, if the terminal permits it (OSC 52).");
            }
            CopyOutcome::NoTerminal => self.out.warn("There is no terminal to copy to."),
            CopyOutcome::TooLong => self.out.warn(&format!(
                "The answer is longer than {} KiB, the most for a terminal's clipboard: /export writes it to a file.",
                MAX_COPY_BYTES / 1024
            )),
        }
        Ok(())
    }

    /// Shows the items recalled for the last turn.
    async fn memory(&self) -> Result<(), Failure> {
        match self.handle().last_turn().await? {
            Some(last) => show_memory(&last.memory, &self.out),
            None => self.out.note("There is no turn yet."),
        }
        Ok(())
    }

    async fn retry(&mut self) -> Result<(), Failure> {
        // A message that the journal has is finished there.
        if self.handle().pending_messages().await?.is_none()
            && let Some((messages, replaced)) = self.unanswered.take()
        {
            return self.turn(messages, replaced).await;
        }
        let mut view = TurnDisplay::new(&self.out);
        let result = self.talk.finish_pending(&self.client, self.session, &mut view, &self.out).await;
        let is_stopped = matches!(result, Err(Failure::Interrupted));
        let is_answered = result.is_ok();
        let finished = self.finish_turn(result, &mut view).await;
        self.is_stopped = is_stopped;
        if is_answered {
            self.unanswered = None;
            self.history.clear();
        }
        finished
    }

    async fn finish_turn(
        &self,
        result: Result<Option<TurnOutcome>, Failure>,
        view: &mut TurnDisplay<'_>,
    ) -> Result<(), Failure> {
        match result {
            Ok(Some(outcome)) => {
                view.finish(&outcome);
                self.talk.note_announced();
            }
            Ok(None) => self.out.note("Every message has its answer."),
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

    /// Puts the last message into the line: the one that was stopped, or that has no answer, or else that of the
    /// last turn.
    async fn prefill(&self) -> Result<DialogueStep, Failure> {
        let pending = self.handle().pending_messages().await?;
        let unanswered = self.unanswered.as_ref().map(|(messages, _)| messages.clone());
        let messages = match unanswered.or(pending) {
            Some(messages) => messages,
            None => {
                let turns = self.handle().conversation().await?.turns;
                turns.last().map(|turn| turn.messages.clone()).unwrap_or_default()
            }
        };
        match messages.into_iter().rfind(|message| message.role == Role::User) {
            Some(message) => Ok(DialogueStep::Prefill(format!("/edit {}", message.text))),
            None => {
                self.out.warn("There is no message yet.");
                Ok(DialogueStep::On)
            }
        }
    }

    /// Sends the last message again, or a different text: a turn that replaces the last one.
    async fn replace(&mut self, text: Option<&str>) -> Result<(), Failure> {
        // The message that the user stopped, or that has no answer, is the last one.
        let pending = self.handle().pending_messages().await?;
        let unanswered = self.unanswered.take();
        let replaced = unanswered.as_ref().and_then(|(_, replaced)| *replaced);
        // The first pending turn of a branch holds the history as well.
        if let Some(open) = unanswered.map(|(messages, _)| messages).or(pending) {
            self.handle().abandon().await?;
            let messages = text.map_or(open, |text| vec![Message::new(Role::User, text)]);
            return self.turn(messages, replaced).await;
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

/// A conversation to read, in Markdown: its messages as quotations, then each answer with its node.
fn markdown_of(conversation: &Conversation) -> String {
    let mut parts = vec![format!("# {}", conversation.title)];
    for turn in &conversation.turns {
        for message in &turn.messages {
            if message.role == Role::Assistant {
                parts.push(message.text.clone());
                continue;
            }
            let author = if message.role == Role::User { "You" } else { role(message.role) };
            let quoted: Vec<String> = message.text.lines().map(|line| format!("> {line}")).collect();
            parts.push(format!("**{author}:**\n\n{}", quoted.join("\n")));
        }
        parts.push(format!("<sub>Turn {}: node {}</sub>", turn_number(turn.seq), short(&turn.node)));
    }
    format!("{}\n", parts.join("\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_unless_they_name_a_command() {
        let cases = [
            ("hello /new", Line::Say("hello /new")),
            ("  ", Line::Nothing),
            ("/new", Line::New),
            ("/new now", Line::Unknown("/new now")),
            ("/switch", Line::Unknown("/switch")),
            ("/switch ab12", Line::Switch("ab12")),
            ("/rename my title", Line::Rename("my title")),
            ("/delete", Line::Delete { sure: false }),
            ("/delete yes", Line::Delete { sure: true }),
            ("/model", Line::Model("")),
            ("/params temperature=0", Line::Params("temperature=0")),
            ("/edit say it again", Line::Edit("say it again")),
            ("/edit", Line::Edit("")),
            ("/verify full", Line::Verify { full: true }),
            ("/verify fully", Line::Unknown("/verify fully")),
            ("//etc/hosts is a file", Line::Say("/etc/hosts is a file")),
            ("/etc", Line::Unknown("/etc")),
            ("/quit", Line::Quit),
        ];
        for (line, expected) in cases {
            assert_eq!(parse(line), expected, "{line}");
        }
    }

    #[test]
    fn a_mistyped_command_names_the_nearest() {
        assert!(unknown_command("/verfy full").contains("There is no /verfy full. Did you mean /verify?"));
        assert!(!unknown_command("/weather").contains("Did you mean"));
    }
}
