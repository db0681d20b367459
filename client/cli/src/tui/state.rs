//! The state of the full-screen view, and its changes by keys and tasks. Pure: it does no I/O, and each call
//! carries the time.

use std::time::Duration;

use baton_kit::nearest::nearest;
use baton_proto::ids::SessionId;

use super::{
    conversation::ConversationSnapshot,
    editor::Editor,
    inbox::ViewMessage,
    menu::{Menu, commands},
    palette::Palette,
    pane::Pane,
    question::Question,
    sidebar::Sidebar,
    wrap,
};
use crate::chat::line::{Line, command_names, parse};

/// A key that needs an idle session.
pub(super) const BUSY_HINT: &str = "An answer is running. Esc here, then Esc stops it.";

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
    /// Take the mouse, or leave it to the terminal.
    Mouse(bool),
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
    /// Whether it gives up a message.
    gives_up: bool,
}

/// The session's state for the status line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Status {
    /// The session.
    pub session: Option<SessionId>,
    /// Turns of its chain.
    pub turns: u64,
    /// Whether a message is unanswered.
    pub pending: bool,
    /// Blobs not yet confirmed in the store.
    pub unstored: u64,
    /// The problem with the head index.
    pub trouble: Option<&'static str>,
    /// Known nodes.
    pub nodes: usize,
}

/// The whole state.
pub(super) struct State {
    /// The conversation.
    pub pane: Pane,
    /// The input.
    pub editor: Editor,
    /// The choice in the menu of commands.
    pub menu: Menu,
    /// The sessions.
    pub sidebar: Sidebar,
    /// The styles.
    pub palette: Palette,
    /// The session's state.
    pub status: Status,
    /// The running work.
    pub busy: Option<RunningWork>,
    /// The text to send as soon as nothing runs.
    pub queued: Option<String>,
    /// The open question about a session.
    pub question: Option<Question>,
    /// The first visible row of the help, while it is open.
    pub help: Option<usize>,
    /// Whether the view has the mouse.
    pub mouse: bool,
    /// A hint about the last key, until the next.
    pub hint: Option<String>,
    /// Whether the user asked to leave while an answer streams.
    pub(super) leaving: bool,
    /// Cells of the input, at the last draw.
    pub input_cells: usize,
    /// Time of the last event.
    pub now: Duration,
    /// The wall clock at the last tick, in milliseconds since the Unix epoch.
    pub wall_ms: u64,
}

impl State {
    /// The view before any data arrives.
    pub(super) fn new(palette: Palette) -> Self {
        Self {
            pane: Pane::default(),
            editor: Editor::default(),
            menu: Menu::default(),
            sidebar: Sidebar::default(),
            palette,
            status: Status::default(),
            busy: None,
            queued: None,
            question: None,
            help: None,
            mouse: true,
            hint: None,
            leaving: false,
            input_cells: 1,
            now: Duration::ZERO,
            wall_ms: 0,
        }
    }

    /// Updates the time and the numbers of known nodes and unstored blobs.
    pub(super) fn tick(&mut self, now: Duration, nodes: usize, unstored: Option<u64>) {
        self.now = now;
        self.status.nodes = nodes;
        self.status.unstored = unstored.unwrap_or(self.status.unstored);
    }

    /// Work begins.
    pub(super) fn begin(&mut self, line: &str, now: Duration) {
        let (what, gives_up) = match parse(line) {
            Line::Edit("") => ("working", false),
            Line::Say(_) | Line::Edit(_) | Line::Regenerate | Line::Retry | Line::Continue => {
                ("looking for a node", false)
            }
            Line::Verify { .. } => ("verifying", false),
            Line::Switch(_) | Line::New | Line::Nothing => ("opening the conversation", false),
            Line::Drop => ("discarding", true),
            _ => ("working", false),
        };
        self.busy = Some(RunningWork { what, since: now, stopping: false, gives_up });
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
            ViewMessage::Session(loaded) => self.set_session(&loaded),
            ViewMessage::Sessions(listed) => self.sidebar.set(listed),
            // For the terminal, not for the view.
            ViewMessage::Raw(_) => {}
        }
    }

    fn set_session(&mut self, loaded: &ConversationSnapshot) {
        let same = self.status.session == Some(loaded.session);
        self.pane.set(loaded, same);
        self.status = Status {
            session: Some(loaded.session),
            turns: loaded.total,
            pending: loaded.pending,
            unstored: loaded.unstored,
            trouble: loaded.trouble,
            nodes: self.status.nodes,
        };
    }

    /// The running work is over, well or not. A queued text is sent after success; otherwise it returns to
    /// the input.
    pub(super) fn end(&mut self, good: bool) -> Option<Effect> {
        let busy = self.busy.take();
        let stopped = busy.as_ref().is_some_and(|busy| busy.stopping);
        self.pane.end(stopped, self.status.pending);
        if good && busy.is_some_and(|busy| busy.gives_up) {
            self.pane.give_up();
        }
        self.leaving = false;
        let queued = self.queued.take()?;
        if good && !stopped {
            return self.send(queued);
        }
        self.give_back(queued);
        None
    }

    /// Puts a text into the input, where the user changes it; a text that the user wrote meanwhile stays.
    pub(super) fn prefill(&mut self, text: String) {
        if self.editor.is_empty() {
            self.editor.set(text);
        }
    }

    /// Puts an unsent text back into the input.
    pub(super) fn give_back(&mut self, text: String) {
        let written = self.editor.take();
        let gap = if written.is_empty() { "" } else { "\n" };
        self.editor.set(format!("{text}{gap}{written}"));
    }

    /// Sends the input.
    pub(super) fn submit(&mut self) -> Option<Effect> {
        let text = self.editor.take();
        self.pane.follow();
        if text.trim().is_empty() {
            return None;
        }
        self.editor.remember(&text);
        self.send(text)
    }

    fn send(&mut self, text: String) -> Option<Effect> {
        match parse(&text) {
            Line::Nothing => None,
            Line::Help => {
                self.help = Some(0);
                None
            }
            Line::Sessions => {
                self.sidebar.focus(self.status.session);
                None
            }
            Line::Delete { sure: false } => {
                match self.session_to_change() {
                    Some(session) => self.ask_deletion(session),
                    None => self.give_back(text),
                }
                None
            }
            Line::Unknown("/rename") => {
                match self.session_to_change() {
                    Some(session) => self.ask_title(session),
                    None => self.give_back(text),
                }
                None
            }
            Line::Quit if self.busy.is_none() => Some(Effect::Leave),
            Line::Unknown(_) => {
                let name = text.split_whitespace().next().unwrap_or_default();
                let known = commands().find(|(full, _)| full.split_whitespace().next() == Some(name));
                let near = nearest(name, command_names());
                let name = wrap::fit(&wrap::clean_line(name), 20);
                self.hint = Some(match (known, near) {
                    (Some((full, _)), _) => format!("{name} needs more: {full}"),
                    (None, Some(near)) => {
                        format!("There is no {name}. Did you mean {near}? /help lists the commands")
                    }
                    (None, None) => {
                        format!("There is no {name}. /help lists the commands; // begins a message with /")
                    }
                });
                self.editor.set(text);
                None
            }
            _ if self.busy.is_some() => {
                match self.queued.take() {
                    // One text is queued. A later one joins it, unless either is a command.
                    Some(before) if is_message(&before) && is_message(&text) => {
                        self.queued = Some(format!("{before}\n{text}"));
                    }
                    Some(before) => {
                        self.queued = Some(before);
                        self.editor.set(text);
                        self.hint =
                            Some("One line waits already. Send this one after the answer.".to_owned());
                    }
                    None => self.queued = Some(text),
                }
                None
            }
            _ => Some(Effect::Act(text)),
        }
    }

    /// The present session, unless something runs in it.
    fn session_to_change(&mut self) -> Option<SessionId> {
        if self.busy.is_some() {
            self.hint = Some(BUSY_HINT.to_owned());
            return None;
        }
        self.status.session
    }

    /// Takes the queued text back; returns whether there was one.
    pub(super) fn take_back(&mut self) -> bool {
        let Some(text) = self.queued.take() else { return false };
        self.give_back(text);
        true
    }

    /// Ends the running work, if any.
    pub(super) fn stop(&mut self) -> Option<Effect> {
        let busy = self.busy.as_mut()?;
        busy.stopping = true;
        Some(Effect::Stop)
    }

    /// Leaves; while an answer streams, only at the second call. Other work does not delay it.
    pub(super) fn leave(&mut self) -> Option<Effect> {
        if self.pane.running_turn().is_some() && !self.leaving {
            self.leaving = true;
            self.hint = Some(
                "An answer is running: Esc stops it; the same key again leaves, and keeps the message."
                    .to_owned(),
            );
            return None;
        }
        Some(Effect::Leave)
    }
}

fn is_message(text: &str) -> bool {
    matches!(parse(text), Line::Say(_))
}
