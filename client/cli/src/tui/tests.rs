//! The view as a user meets it: typed keys and events in, the screen out.

mod chaos;
mod rendering;
mod turns;
mod typing;

use std::time::Duration;

use baton_client::TurnEvent;
use baton_proto::{
    ids::{LinkHash, NodeId, SessionId},
    receipt::EngineKind,
};
use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::{Terminal, backend::TestBackend, buffer::Buffer};

use super::{
    block::Turn,
    conversation::{ConversationSnapshot, Status},
    draw::draw,
    sidebar::SessionEntry,
    state::{Effect, State},
};
use crate::out::inbox::{FinishedTurn, ViewMessage};

/// A view without a terminal.
struct Stage {
    state: State,
    now: Duration,
}

impl Stage {
    fn new() -> Self {
        let mut stage = Self { state: State::new(true), now: Duration::ZERO };
        stage.open(1, &[]);
        stage.screen(80, 40);
        stage
    }

    /// Advances the time.
    fn wait(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
        self.state.tick(self.now, 3, None);
    }

    /// Opens a session with these turns.
    fn open(&mut self, session: u8, turns: &[Turn]) {
        self.state.set_session(&loaded(session, turns));
    }

    fn say(&mut self, message: ViewMessage) {
        self.state.take(message, self.now);
    }

    fn event(&mut self, event: TurnEvent) {
        self.say(ViewMessage::Turn(event));
    }

    fn text(&mut self, text: &str) {
        self.event(TurnEvent::Text(text.to_owned()));
    }

    /// Sends a message, and begins its turn.
    fn ask(&mut self, text: &str) {
        self.types(text);
        assert_eq!(self.press(KeyCode::Enter), Some(Effect::Act(text.to_owned())));
        self.state.begin(text, self.now);
        self.say(ViewMessage::TurnStarted(text.to_owned()));
    }

    fn types(&mut self, text: &str) {
        for c in text.chars() {
            self.press(KeyCode::Char(c));
        }
    }

    fn press(&mut self, code: KeyCode) -> Option<Effect> {
        self.state.input(Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    fn control(&mut self, c: char) -> Option<Effect> {
        self.state.input(Event::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL)))
    }

    fn alt(&mut self, code: KeyCode) -> Option<Effect> {
        self.state.input(Event::Key(KeyEvent::new(code, KeyModifiers::ALT)))
    }

    fn buffer(&mut self, width: u16, height: u16) -> Buffer {
        let mut terminal =
            Terminal::new(TestBackend::new(width, height)).expect("a test backend always opens");
        terminal.draw(|frame| draw(&mut self.state, frame)).expect("and draws");
        terminal.backend().buffer().clone()
    }

    /// The rows of the screen, without spaces at their ends.
    fn screen(&mut self, width: u16, height: u16) -> Vec<String> {
        let buffer = self.buffer(width, height);
        let rows = (0..height).map(|y| {
            let mut skip = 0;
            let mut row = String::new();
            for x in 0..width {
                let symbol = buffer[(x, y)].symbol();
                if skip == 0 {
                    row.push_str(symbol);
                    skip = super::wrap::width(symbol).max(1);
                }
                skip -= 1;
            }
            row.trim_end().to_owned()
        });
        rows.collect()
    }

    /// The screen as one text.
    fn shown(&mut self) -> String {
        self.screen(80, 40).join("\n")
    }
}

fn node(byte: u8) -> NodeId {
    NodeId([byte; 32])
}

fn attempt(byte: u8, continues: u32) -> TurnEvent {
    let (node, model, engine) = (node(byte), "small".to_owned(), EngineKind::Echo);
    TurnEvent::Attempt { attempt: 0, node, model, engine, continues }
}

fn finished(byte: u8, text: &str, tokens: u32) -> ViewMessage {
    let verified = format!("✓ verified · turn 0 · 9 + {tokens} tokens");
    ViewMessage::TurnFinished(FinishedTurn {
        link: LinkHash([byte; 32]),
        text: text.to_owned(),
        verified,
        tokens,
    })
}

fn journal_turn(byte: u8, message: &str, answer: &str) -> Turn {
    let verified = format!("✓ verified · turn {byte}");
    Turn::from_journal(LinkHash([byte; 32]), message, &[], answer, &verified)
}

fn listed(session: u8, title: &str) -> SessionEntry {
    SessionEntry { session: SessionId([session; 32]), title: title.to_owned(), used_ms: 0 }
}

fn loaded(session: u8, turns: &[Turn]) -> ConversationSnapshot {
    let session = Some(SessionId([session; 32]));
    let status = Status { session, turns: turns.len() as u64, ..Status::default() };
    ConversationSnapshot { status, turns: turns.to_vec(), earlier: 0 }
}

/// Whether these stand on the screen in this order, from top to bottom.
fn in_order(shown: &str, parts: &[&str]) -> bool {
    let mut rest = shown;
    parts.iter().all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}
