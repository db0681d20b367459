//! Random input in any order, at any size: it is shown, in bounds, and nothing panics.

use std::time::Duration;

use baton_client::TurnEvent;
use crossterm::event::{MouseEvent, MouseEventKind};
use proptest::prelude::*;

use super::*;
use crate::out::{Tone, printable};

#[derive(Debug, Clone)]
enum Step {
    Key(KeyCode, KeyModifiers),
    Paste(String),
    Wheel(bool),
    Message(ViewMessage),
    Session(ConversationSnapshot),
    Sessions(Vec<SessionEntry>),
    Begin(String),
    End(bool),
    Draw(u16, u16),
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z /\n\t]{0,30}",
        "\\PC{0,12}",
        "[日本👩\u{200d}👧e\u{301}\u{202e}\x1b\r\u{9b}\n]{0,20}",
        Just("/new".to_owned()),
        Just("/quit".to_owned()),
        Just("word ".repeat(200)),
    ]
}

fn key() -> impl Strategy<Value = KeyCode> {
    prop_oneof![
        6 => prop::char::any().prop_map(KeyCode::Char),
        4 => prop::sample::select("abcdefhjklnpuwy".chars().collect::<Vec<_>>()).prop_map(KeyCode::Char),
        8 => prop::sample::select(vec![
            KeyCode::Enter, KeyCode::Esc, KeyCode::Tab, KeyCode::Backspace, KeyCode::Delete, KeyCode::Left, KeyCode::Right,
            KeyCode::Up, KeyCode::Down, KeyCode::Home, KeyCode::End, KeyCode::PageUp, KeyCode::PageDown, KeyCode::F(1),
        ]),
    ]
}

fn message() -> impl Strategy<Value = ViewMessage> {
    let failed = text().prop_map(|reason| TurnEvent::AttemptFailed {
        attempt: 0,
        node: node(1),
        code: None,
        reason,
        noticed_ago: Duration::ZERO,
    });
    let event = prop_oneof![
        4 => text().prop_map(TurnEvent::Text),
        1 => (0u8..4, 0u32..3).prop_map(|(byte, continues)| attempt(byte, continues)),
        1 => failed,
        1 => any::<u32>().prop_map(TurnEvent::Waiting),
        1 => Just(TurnEvent::Restarted),
        1 => Just(TurnEvent::Accepted),
    ];
    prop_oneof![
        4 => event.prop_map(ViewMessage::Turn),
        2 => text().prop_map(ViewMessage::TurnStarted),
        2 => text().prop_map(|text| ViewMessage::Remark(Tone::Note, text)),
        1 => (0u8..5, text()).prop_map(|(byte, text)| finished(byte, &text, 9)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let modifiers = prop::sample::select(vec![
        KeyModifiers::NONE,
        KeyModifiers::NONE,
        KeyModifiers::CONTROL,
        KeyModifiers::ALT,
        KeyModifiers::SHIFT,
    ]);
    let turn =
        (0u8..5, text(), text()).prop_map(|(byte, message, answer)| journal_turn(byte, &message, &answer));
    let session = (0u8..3, prop::collection::vec(turn, 0..4), 0usize..3)
        .prop_map(|(session, turns, earlier)| ConversationSnapshot { earlier, ..loaded(session, &turns) });
    let listed = (0u8..5, text()).prop_map(|(byte, title)| listed(byte, &title));
    prop_oneof![
        8 => (key(), modifiers).prop_map(|(code, modifiers)| Step::Key(code, modifiers)),
        2 => text().prop_map(Step::Paste),
        1 => any::<bool>().prop_map(Step::Wheel),
        6 => message().prop_map(Step::Message),
        1 => session.prop_map(Step::Session),
        1 => prop::collection::vec(listed, 0..6).prop_map(Step::Sessions),
        1 => text().prop_map(Step::Begin),
        1 => any::<bool>().prop_map(Step::End),
        3 => (0u16..130, 0u16..40).prop_map(|(width, height)| Step::Draw(width, height)),
    ]
}

fn take(stage: &mut Stage, step: Step) {
    match step {
        Step::Key(code, modifiers) => drop(stage.state.input(Event::Key(KeyEvent::new(code, modifiers)))),
        Step::Paste(text) => drop(stage.state.input(Event::Paste(text))),
        Step::Wheel(up) => {
            let kind = if up { MouseEventKind::ScrollUp } else { MouseEventKind::ScrollDown };
            let mouse = MouseEvent { kind, column: 0, row: 0, modifiers: KeyModifiers::NONE };
            stage.state.input(Event::Mouse(mouse));
        }
        Step::Message(message) => stage.say(message),
        Step::Session(loaded) => stage.state.set_session(&loaded),
        Step::Sessions(listed) => stage.state.sidebar.set(listed),
        Step::Begin(line) => stage.state.begin(&line, stage.now),
        Step::End(may_be_kept) => stage.state.end(may_be_kept),
        Step::Draw(width, height) => check(stage, width, height),
    }
    stage.wait(7);
}

fn check(stage: &mut Stage, width: u16, height: u16) {
    for cell in stage.buffer(width, height).content() {
        assert!(!cell.symbol().chars().any(printable::acts), "{:?}", cell.symbol());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics(steps in prop::collection::vec(step(), 1..80)) {
        let mut stage = Stage::new();
        for step in steps {
            take(&mut stage, step);
        }
        for (width, height) in [(20, 5), (0, 0), (1, 1), (100, 30), (3, 200)] {
            check(&mut stage, width, height);
        }
    }
}
