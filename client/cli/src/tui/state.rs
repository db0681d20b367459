//! The state of the full-screen view, and its changes by keys and tasks. Pure: it does no I/O, and each call
//! carries the time.

use std::time::Duration;

use baton_proto::ids::SessionId;

use super::{
    conversation::{ConversationSnapshot, Status},
    editor::Editor,
    menu::Menu,
    pane::Pane,
    sidebar::Sidebar,
};
use crate::{
    chat::line::{HELP, Line, parse, unknown_command},
    out::{Tone, inbox::ViewMessage},
};

/// A key that needs an idle session: an answer may be running, or a conversation opening.
const BUSY_HINT: &str = "Baton is still at work: send this after it, or end it with Esc.";
/// The keys, for the help.
const KEYS: &str = "\
Enter           sends; Alt-Enter or Ctrl-J begins a new line
Esc, Ctrl-C     end a running answer; its text stays on the screen
Ctrl-C, Ctrl-D  on an empty line leave
PgUp, PgDn      scroll, and so does the mouse, which selects text with Shift; End follows again
Tab             goes to the list of conversations; Ctrl-B hides it
in the list     Enter opens, n new, r renames, d deletes
in the / menu   Up, Down choose, Tab or Enter takes, Esc closes
Up, Down        earlier lines
Ctrl-A E W U K  to the beginning, the end; delete a word, a line
Alt-B, Alt-F    a word back, a word forward
Ctrl-L          redraws the screen
F1              shows this help";

/// A request to the loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// Run a line.
    Act(String),
    /// Give a session a title.
    Rename(SessionId, String),
    /// Delete a session that is not on the screen.
    Delete(SessionId),
    /// End the running work.
    Stop,
    /// Redraw everything.
    Redraw,
    /// Leave.
    Leave,
}

/// The running work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunningWork {
    /// In a word.
    pub what: &'static str,
    /// Its start.
    pub since: Duration,
    /// Whether the user ended it, and it still runs.
    pub stopping: bool,
}

/// A question about a session, which the next keys answer. Its text is never a message: no node gets a title.
pub(super) enum Question {
    /// For a title, which is in the input.
    Title {
        /// The session.
        session: SessionId,
        /// The input of before.
        message: Box<Editor>,
    },
    /// Whether to delete it.
    Deletion(SessionId),
}

/// The whole state.
#[derive(Default)]
pub(super) struct State {
    /// The conversation.
    pub pane: Pane,
    /// The input.
    pub editor: Editor,
    /// The choice in the menu of commands.
    pub menu: Menu,
    /// The sessions.
    pub sidebar: Sidebar,
    /// Whether the user wants colours.
    pub color: bool,
    /// The session's state.
    pub status: Status,
    /// Known nodes.
    pub nodes: usize,
    /// The running work.
    pub busy: Option<RunningWork>,
    /// The open question about a session.
    pub question: Option<Question>,
    /// A hint about the last key, until the next.
    pub hint: Option<String>,
    /// Cells of the input, at the last draw.
    pub input_cells: usize,
    /// Time of the last event.
    pub now: Duration,
    /// The wall clock at the last tick, in milliseconds since the Unix epoch.
    pub wall_ms: u64,
}

impl State {
    /// The view before any data arrives.
    pub(super) fn new(color: bool) -> Self {
        Self { color, input_cells: 1, ..Self::default() }
    }

    /// Updates the time and the numbers of known nodes and unstored blobs.
    pub(super) fn tick(&mut self, now: Duration, nodes: usize, unstored: Option<u64>) {
        self.now = now;
        self.nodes = nodes;
        self.status.unstored = unstored.unwrap_or(self.status.unstored);
    }

    /// Work begins.
    pub(super) fn begin(&mut self, line: &str, now: Duration) {
        let what = match parse(line) {
            Line::Edit("") => "working",
            Line::Say(_) | Line::Edit(_) | Line::Regenerate | Line::Retry | Line::Continue => {
                "looking for a node"
            }
            Line::Verify { .. } => "verifying",
            Line::Switch(_) | Line::New | Line::Nothing => "opening the conversation",
            _ => "working",
        };
        self.busy = Some(RunningWork { what, since: now, stopping: false });
        self.now = now;
    }

    /// Takes a message of a task.
    pub(super) fn take(&mut self, message: ViewMessage, now: Duration) {
        self.now = now;
        match message {
            ViewMessage::Remark(tone, text) => self.pane.remark(tone, &text),
            ViewMessage::TurnStarted(text) => self.pane.begin(&text),
            ViewMessage::Turn(event) => self.pane.turn(&event, now),
            ViewMessage::TurnFinished(finished) => self.pane.finish(&finished),
            // For the terminal, not for the view.
            ViewMessage::Raw(_) => {}
        }
    }

    /// Takes a session as its journal has it.
    pub(super) fn set_session(&mut self, loaded: &ConversationSnapshot) {
        self.pane.set(loaded, self.status.session == loaded.status.session);
        if !loaded.status.pending {
            self.pane.give_up();
        }
        self.status = loaded.status.clone();
    }

    /// The running work is over, well or not. `may_be_kept` is false for a message that is in the input again.
    pub(super) fn end(&mut self, may_be_kept: bool) {
        let stopped = self.busy.take().is_some_and(|busy| busy.stopping);
        self.pane.end(stopped, may_be_kept && self.status.pending);
    }

    /// Puts a text into the input, where the user changes it; a text that the user wrote meanwhile stays.
    pub(super) fn prefill(&mut self, text: String) {
        let message = self.message();
        if message.is_empty() {
            message.set(text);
        }
    }

    /// Puts an unsent text back into the input.
    pub(super) fn give_back(&mut self, text: String) {
        let message = self.message();
        let written = message.take();
        let gap = if written.is_empty() { "" } else { "\n" };
        message.set(format!("{text}{gap}{written}"));
    }

    /// Sends the input. A line that cannot be sent now stays there.
    pub(super) fn submit(&mut self) -> Option<Effect> {
        self.pane.follow();
        let text = self.editor.text().to_owned();
        match parse(&text) {
            Line::Unknown(line) if line != "/rename" => {
                self.hint = Some(unknown_command(line));
                return None;
            }
            Line::Nothing | Line::Help | Line::Sessions | Line::Quit => {}
            _ if self.busy.is_some() => {
                self.hint = Some(BUSY_HINT.to_owned());
                return None;
            }
            _ => {}
        }
        self.editor.take();
        self.editor.remember(&text);
        match (parse(&text), self.status.session) {
            (Line::Nothing, _) => {}
            (Line::Help, _) => self.show_help(),
            (Line::Sessions, session) => self.sidebar.focus(session),
            (Line::Quit, _) => return Some(Effect::Leave),
            (Line::Delete { sure: false }, Some(session)) => {
                self.question = Some(Question::Deletion(session))
            }
            (Line::Unknown(_), Some(session)) => self.ask_title(session),
            _ => return Some(Effect::Act(text)),
        }
        None
    }

    /// Shows the keys and the commands.
    pub(super) fn show_help(&mut self) {
        self.pane.remark(Tone::Plain, &format!("{KEYS}\n\n{HELP}"));
        self.pane.follow();
    }

    /// Whether something runs; then a hint says so.
    pub(super) fn is_busy(&mut self) -> bool {
        if self.busy.is_some() {
            self.hint = Some(BUSY_HINT.to_owned());
        }
        self.busy.is_some()
    }

    /// Asks for a title of a session, in the input.
    pub(super) fn ask_title(&mut self, session: SessionId) {
        let mut title = Editor::default();
        title.set(self.sidebar.title_of(session));
        let message = Box::new(std::mem::replace(&mut self.editor, title));
        self.question = Some(Question::Title { session, message });
        self.sidebar.focused = false;
    }

    /// The message in the input, also while the keys edit a title.
    pub(super) fn message(&mut self) -> &mut Editor {
        match &mut self.question {
            Some(Question::Title { message, .. }) => message,
            _ => &mut self.editor,
        }
    }

    /// Closes the open question; returns whether there was one.
    pub(super) fn close_question(&mut self) -> bool {
        let question = self.question.take();
        let was_open = question.is_some();
        if let Some(Question::Title { message, .. }) = question {
            self.editor = *message;
        }
        was_open
    }

    /// Ends the running work, if any.
    pub(super) fn stop(&mut self) -> Option<Effect> {
        let busy = self.busy.as_mut()?;
        busy.stopping = true;
        Some(Effect::Stop)
    }
}
