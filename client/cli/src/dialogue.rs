//! The dialogue of `baton chat`: parses and runs lines. The prompt ([`super::repl`]) and the full-screen view
//! ([`super::tui`]) both drive it; [`Out`] and [`TurnDisplay`] display it.

use std::sync::Arc;

use baton_client::{Client, SessionHandle, TurnInput, TurnOutcome};
use baton_proto::{
    ids::SessionId,
    record::{Message, RecordKind, Role},
};

use super::{
    Failure,
    args::ChatArguments,
    devices, find_session,
    interrupt::cancellable_at,
    out::{Out, count},
    session::{show_list, show_report},
    talk::{Talk, TurnDisplay, open_session, show_memory},
};

/// The commands.
pub(crate) const HELP: &str = "\
/new            begin a session
/sessions       list the sessions
/switch ID      go on with another session (an id, its beginning, or last)
/edit TEXT      say your last message differently
/regenerate     ask for the last answer again
/retry          finish a message that was not answered
/drop           give up a message that was not answered
/verify [full]  check the session against the store
/memory         what was recalled for the last turn
/help           this list
/quit           leave (also Ctrl-D); Ctrl-C ends a running answer";

/// A parsed line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    Say(&'a str),
    New,
    Sessions,
    Switch(&'a str),
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
        ("edit", text) if !text.is_empty() => Line::Edit(text),
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

/// The step after a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DialogueStep {
    /// Read the next line.
    On,
    /// Greet: the dialogue moved to another session.
    Greet,
    /// Leave.
    Leave,
}

/// A conversation with a user who types.
pub(crate) struct Dialogue {
    client: Client,
    talk: Arc<Talk>,
    out: Out,
    session: SessionId,
    /// System text for the named session, until a turn may begin.
    system: Option<String>,
}

impl Dialogue {
    /// Opens the session that the call names, or a new one.
    pub(crate) async fn open(
        client: &Client,
        talk: Arc<Talk>,
        arguments: &ChatArguments,
        out: Out,
    ) -> Result<Self, Failure> {
        let session = open_session(client, &talk, arguments).await?;
        if arguments.drop_pending {
            client.session(session).abandon().await?;
        }
        let system = arguments.session.as_ref().and(arguments.system.clone());
        Ok(Self { client: client.clone(), talk, out, session, system })
    }

    /// The current session.
    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// The output of the dialogue.
    pub(crate) fn out(&self) -> &Out {
        &self.out
    }

    /// Shows the session and its head index's state, and finishes an unanswered turn.
    pub(crate) async fn greet(&mut self) -> Result<(), Failure> {
        let info = self.handle().info().await?;
        let id: String = info.id.to_string().chars().take(8).collect();
        self.out.note(&format!("session {id} · {} · /help", count(info.turns, "turn")));
        if info.turns > 0 {
            self.compare().await?;
        }
        if info.pending {
            self.out.note("an earlier message was not answered; finishing it");
            if let Err(failure) = self.retry().await {
                failure.report(&self.out);
            }
        }
        Ok(())
    }

    /// Compares with the head index: merges other devices' turns, and reports them and any problems.
    async fn compare(&self) -> Result<(), Failure> {
        match self.talk.reconcile(&self.client, self.session, &self.out).await {
            Ok(_) => devices::warn_of_indexes(&self.handle().info().await?, &self.out),
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
            Line::Unknown(text) => self.out.warn(&format!("there is no {text}; /help lists the commands")),
            Line::Say(text) => self.turn(vec![Message::new(Role::User, text)], None).await?,
            Line::Memory => self.memory().await?,
            Line::Edit(text) => self.replace(Some(text)).await?,
            Line::Regenerate => self.replace(None).await?,
            Line::Retry => self.retry().await?,
            Line::Drop => {
                self.handle().abandon().await?;
                self.out.note("given up");
            }
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
            }
        }
        Ok(DialogueStep::On)
    }

    async fn move_to(&mut self, session: SessionId) -> Result<DialogueStep, Failure> {
        // Opens the new one first, so that a session in use elsewhere leaves the current one as it is.
        self.client.session(session).info().await?;
        if session != self.session {
            self.handle().release();
            self.system = None;
        }
        self.session = session;
        Ok(DialogueStep::Greet)
    }

    fn handle(&self) -> SessionHandle {
        self.client.session(self.session)
    }

    /// Runs a turn; with a seq, it replaces the turns from there on.
    async fn turn(&mut self, messages: Vec<Message>, replaced: Option<u64>) -> Result<(), Failure> {
        let mut view = TurnDisplay::new(&self.out);
        view.begin(&messages);
        let mut input = self.talk.input(self.session, messages.clone(), &self.out);
        if replaced.is_some() {
            input = TurnInput { kind: RecordKind::Edit, supersedes_from: replaced, ..input };
        }
        if let Some(system) = &self.system {
            self.handle().set_system(vec![Message::new(Role::System, system)]).await?;
            self.system = None;
        }
        let handle = self.handle();
        let turn = handle.turn(input, |event| view.show(event));
        let result = cancellable_at(&self.out, turn).await;
        if let Ok(outcome) = &result {
            self.talk.remember(&messages, outcome, &self.out).await;
        }
        self.finish_turn(result.map(Some), &mut view).await
    }

    /// Shows the items recalled for the last turn.
    async fn memory(&self) -> Result<(), Failure> {
        match self.handle().last_turn().await? {
            Some(last) => show_memory(&last.memory, &self.out),
            None => self.out.note("nothing was said yet"),
        }
        Ok(())
    }

    async fn retry(&self) -> Result<(), Failure> {
        let mut view = TurnDisplay::new(&self.out);
        let result = self.talk.finish_pending(&self.client, self.session, &mut view, &self.out).await;
        self.finish_turn(result, &mut view).await
    }

    async fn finish_turn(
        &self,
        result: Result<Option<TurnOutcome>, Failure>,
        view: &mut TurnDisplay<'_>,
    ) -> Result<(), Failure> {
        match result {
            Ok(Some(outcome)) => view.finish(&outcome),
            Ok(None) => self.out.note("nothing is left unanswered"),
            // A user who cancels no longer wants the answer.
            Err(Failure::Interrupted) => {
                view.end_line();
                self.handle().abandon().await?;
                self.out.note("cancelled");
            }
            Err(failure) => {
                view.end_line();
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Sends the last message again, or a different text: a turn that replaces the last one.
    async fn replace(&mut self, text: Option<&str>) -> Result<(), Failure> {
        let conversation = self.handle().conversation().await?;
        let Some(last) = conversation.turns.last() else {
            self.out.warn("nothing was said yet");
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
            ("/edit say it again", Line::Edit("say it again")),
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
}
