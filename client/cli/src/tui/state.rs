//! The state of the full-screen view, and how keys and what tasks say change it. Pure: it does no I/O, and time comes with
//! each call.

use std::time::Duration;

use baton_proto::ids::SessionId;

use super::{
    conversation::Loaded, editor::Editor, inbox::Said, palette::Palette, pane::Pane, sidebar::Sidebar, wrap,
};
use crate::dialogue::{Line, parse};

/// What the loop is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// What a line asks for.
    Act(String),
    /// End what runs.
    Stop,
    /// Take the mouse, or leave it to the terminal.
    Mouse(bool),
    /// Draw everything anew.
    Redraw,
    /// The end.
    Leave,
}

/// What runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Busy {
    /// In a word.
    pub what: &'static str,
    /// Since when.
    pub since: Duration,
    /// Whether the user ended it, and it is not over yet.
    pub stopping: bool,
    /// Whether a message is given up by it.
    gives_up: bool,
}

/// What is known of the session, for the status line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// The session.
    pub session: Option<SessionId>,
    /// Turns of its chain.
    pub turns: u64,
    /// Whether a message was not answered.
    pub pending: bool,
    /// Blobs that the store is not known to have yet.
    pub unstored: u64,
    /// What is wrong with the head index.
    pub trouble: Option<&'static str>,
    /// Nodes that are known.
    pub nodes: usize,
}

/// All of it.
pub struct State {
    /// The conversation.
    pub pane: Pane,
    /// The input.
    pub editor: Editor,
    /// The sessions.
    pub sidebar: Sidebar,
    /// How it looks.
    pub palette: Palette,
    /// What is known of the session.
    pub status: Status,
    /// What runs.
    pub busy: Option<Busy>,
    /// What is sent as soon as nothing runs any more.
    pub queued: Option<String>,
    /// The first row of the help that is seen, while it is.
    pub help: Option<usize>,
    /// Whether the mouse is taken.
    pub mouse: bool,
    /// Something about the last key, until the next.
    pub hint: Option<String>,
    /// Whether the user asked to leave while an answer comes.
    pub(super) leaving: bool,
    /// Cells of the input, at the last look.
    pub input_cells: usize,
    /// When the last thing happened.
    pub now: Duration,
}

impl State {
    /// The view before anything is known.
    pub fn new(palette: Palette) -> Self {
        Self {
            pane: Pane::default(),
            editor: Editor::default(),
            sidebar: Sidebar::default(),
            palette,
            status: Status::default(),
            busy: None,
            queued: None,
            help: None,
            mouse: true,
            hint: None,
            leaving: false,
            input_cells: 1,
            now: Duration::ZERO,
        }
    }

    /// Time goes on, and so many nodes are known, and blobs not stored yet.
    pub fn tick(&mut self, now: Duration, nodes: usize, unstored: Option<u64>) {
        self.now = now;
        self.status.nodes = nodes;
        self.status.unstored = unstored.unwrap_or(self.status.unstored);
    }

    /// Something runs from now on.
    pub fn begin(&mut self, line: &str, now: Duration) {
        let (what, gives_up) = match parse(line) {
            Line::Say(_) | Line::Edit(_) | Line::Regenerate | Line::Retry => ("looking for a node", false),
            Line::Verify { .. } => ("verifying", false),
            Line::Switch(_) | Line::New | Line::Nothing => ("opening the session", false),
            Line::Drop => ("giving up", true),
            _ => ("working", false),
        };
        self.busy = Some(Busy { what, since: now, stopping: false, gives_up });
        self.now = now;
    }

    /// Takes what a task says.
    pub fn take(&mut self, said: Said, now: Duration) {
        self.now = now;
        match said {
            Said::Remark(tone, text) => self.pane.remark(tone, &text),
            Said::Begun(text) => self.pane.begin(&text),
            Said::Turn(event) => self.pane.turn(&event, now),
            Said::Finished(finished) => self.pane.finish(&finished),
            Said::Session(loaded) => self.set_session(&loaded),
            Said::Sessions(listed) => self.sidebar.set(listed),
        }
    }

    fn set_session(&mut self, loaded: &Loaded) {
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

    /// What ran is over, well or not. What waits is sent, if all went well; if not, it is the user's again.
    pub fn end(&mut self, good: bool) -> Option<Effect> {
        let busy = self.busy.take();
        let stopped = busy.as_ref().is_some_and(|busy| busy.stopping);
        self.pane.end(stopped);
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

    /// Puts a text that was not sent back into the input.
    fn give_back(&mut self, text: String) {
        let written = self.editor.take();
        let gap = if written.is_empty() { "" } else { "\n" };
        self.editor.set(format!("{text}{gap}{written}"));
    }

    /// What Enter does with what is written.
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
            Line::Quit if self.busy.is_none() => Some(Effect::Leave),
            Line::Unknown(_) => {
                let name = text.split_whitespace().next().unwrap_or_default();
                let name = wrap::fit(&wrap::clean_line(name), 20);
                self.hint =
                    Some(format!("there is no {name}; /help lists the commands, // begins a message with /"));
                self.editor.set(text);
                None
            }
            _ if self.busy.is_some() => {
                match self.queued.take() {
                    // One waits; what is sent after it joins it, unless one of them is a command.
                    Some(before) if is_message(&before) && is_message(&text) => {
                        self.queued = Some(format!("{before}\n{text}"));
                    }
                    Some(before) => {
                        self.queued = Some(before);
                        self.editor.set(text);
                        self.hint = Some("one waits already; ↑ takes it back".to_owned());
                    }
                    None => self.queued = Some(text),
                }
                None
            }
            _ => Some(Effect::Act(text)),
        }
    }

    /// Takes back what waits; whether there was such.
    pub(super) fn take_back(&mut self) -> bool {
        let Some(text) = self.queued.take() else { return false };
        self.give_back(text);
        true
    }

    /// Ends what runs; whether there is such.
    pub(super) fn stop(&mut self) -> Option<Effect> {
        let busy = self.busy.as_mut()?;
        busy.stopping = true;
        Some(Effect::Stop)
    }

    /// The end, asked for twice while an answer comes. Whatever else runs can be left.
    pub(super) fn leave(&mut self) -> Option<Effect> {
        if self.pane.runs().is_some() && !self.leaving {
            self.leaving = true;
            self.hint =
                Some("the answer still comes: Esc ends it; again leaves, and keeps the message".to_owned());
            return None;
        }
        Some(Effect::Leave)
    }
}

fn is_message(text: &str) -> bool {
    matches!(parse(text), Line::Say(_))
}
