//! What each line of a user does.

use std::path::Path;

use baton_client::Conversation;
use baton_kit::nearest::nearest;
use baton_proto::{
    ids::SessionId,
    receipt::EngineKind,
    record::{Message, Role},
};

use super::{Dialogue, DialogueStep};
use crate::{
    chat::line::{HELP, Line, unknown_command},
    failure::Failure,
    home::find_session,
    interrupt::cancellable,
    out::{MAX_COPY_BYTES, role, short, turn_number},
    search::served,
    session::{note_replaced, show_list, show_report, write},
    turn_display::{joined_text, show_memory},
};

/// The message that continues a cut answer.
const CONTINUE: &str = "Continue exactly where you stopped.";

impl Dialogue {
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
            Line::Continue if self.has_kept_message().await => self.retry().await?,
            Line::Continue => self.turn(vec![Message::new(Role::User, CONTINUE)], None).await?,
            Line::Model(name) => self.model(name).await?,
            Line::System(text) => self.system(text).await?,
            Line::Params(values) => self.params(values)?,
            Line::Export(file) => self.export(Path::new(file)).await?,
            Line::Copy => self.copy().await?,
            Line::Sessions => show_list(&self.client, &self.out).await?,
            Line::New => {
                let new = self.new_session().await?;
                return self.move_to(new).await;
            }
            Line::Switch(id) => {
                let session = find_session(&self.client, id).await?;
                return self.move_to(session).await;
            }
            Line::Verify { full } => {
                let report = cancellable(&self.out, self.handle().verify_when_stored(full)).await?;
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
            self.history.clear();
        }
        self.session = session;
        Ok(DialogueStep::Greet)
    }

    /// Deletes the session, and begins another.
    async fn delete(&mut self) -> Result<DialogueStep, Failure> {
        let deletion = self.handle().delete().await?;
        if let Some(error) = deletion.unpublished {
            self.out.warn(&format!("Deleted on this device. The head index was not informed: {error}"));
        } else {
            self.out.note("The conversation is deleted.");
        }
        self.is_stopped = false;
        self.history.clear();
        self.session = self.new_session().await?;
        Ok(DialogueStep::Greet)
    }

    /// Sets the model of the next turns, if a node serves it; without a name, lists the models.
    async fn model(&mut self, name: &str) -> Result<(), Failure> {
        let nodes = self.client.nodes().await;
        let offers = nodes.iter().flat_map(|node| &node.record.models);
        let offers = offers.filter(|offer| offer.engine != EngineKind::Embedding);
        let names = served(offers);
        let model = &mut self.options.template.route.model;
        match name {
            "" => {
                let used = model.as_deref().unwrap_or("any");
                return Ok(self.out.line(&format!("model: {used}; served: {}", names.join(", ")))?);
            }
            "any" => *model = None,
            name if names.contains(&name) => *model = Some(name.to_owned()),
            name => {
                let near = nearest(name, names.iter().copied());
                let near = near.map(|near| format!(" Did you mean {near}?")).unwrap_or_default();
                self.out.warn(&format!("No node serves {name}.{near} Served: {}", names.join(", ")));
                return Ok(());
            }
        }
        self.out.note(&format!("model: {name}"));
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
            self.options.set(value)?;
        }
        Ok(self.out.line(&self.options.params())?)
    }

    /// Copies the last answer to the terminal's clipboard.
    async fn copy(&self) -> Result<(), Failure> {
        let turns = self.handle().conversation().await?.turns;
        let mut messages = turns.iter().rev().flat_map(|turn| turn.messages.iter().rev());
        match messages.find(|message| message.role == Role::Assistant) {
            None => self.out.warn("There is no answer yet."),
            Some(answer) if answer.text.len() > MAX_COPY_BYTES => self.out.warn(&format!(
                "The answer is longer than {} KiB, the most for a terminal's clipboard: /export writes it to a file.",
                MAX_COPY_BYTES / 1024
            )),
            Some(answer) if self.out.copy(&answer.text)? => {
                self.out.note("The last answer is in the clipboard, if the terminal permits it (OSC 52).");
            }
            Some(_) => self.out.warn("There is no terminal to copy to."),
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

    /// Writes the conversation: as Markdown to a file of that name, otherwise with all proofs.
    async fn export(&self, file: &Path) -> Result<(), Failure> {
        let text = match file.extension().is_some_and(|name| name.eq_ignore_ascii_case("md")) {
            true => markdown_of(&self.handle().conversation().await?).into(),
            false => self.handle().export(false).await?,
        };
        write(&text, file, &self.out)
    }

    /// Puts the last message into the line: the one that was stopped, or that has no answer, or else that of the
    /// last turn.
    async fn prefill(&self) -> Result<DialogueStep, Failure> {
        let messages = match self.handle().pending_messages().await? {
            Some(messages) => messages,
            None => {
                self.handle().conversation().await?.turns.pop().map_or_else(Vec::new, |turn| turn.messages)
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
}

/// A conversation to read, in Markdown: its messages as quotations, then each answer with its node.
fn markdown_of(conversation: &Conversation) -> String {
    let turns = conversation.turns.iter().flat_map(|turn| {
        let node = format!("<sub>Turn {}: node {}</sub>", turn_number(turn.seq), short(&turn.node));
        let messages = turn.messages.iter().map(|message| match message.role {
            Role::Assistant => message.text.clone(),
            other => format!("**{}:**\n\n> {}", role(other), message.text.replace('\n', "\n> ")),
        });
        messages.chain([node])
    });
    let parts = std::iter::once(format!("# {}", conversation.title)).chain(turns);
    format!("{}\n", parts.collect::<Vec<_>>().join("\n\n"))
}
