//! Looks: widths, sizes, the visible part, and that no text drives the terminal.

use baton_client::TurnEvent;
use ratatui::style::Color;

use super::*;
use crate::out::{Tone, printable};

#[test]
fn a_conversation_of_wide_characters_keeps_its_columns() {
    let mut stage = Stage::new();
    stage.open(1, &[journal_turn(1, "日本語で", "はい、日本語です。ok")]);
    let screen = stage.screen(25, 12);
    assert_eq!(
        screen.iter().filter(|row| !row.is_empty()).take(4).collect::<Vec<_>>(),
        ["› 日本語で", "  はい、日本語です。ok", "  ✓ verified · turn 1", "─────────────────────────"],
    );
}

#[test]
fn the_smallest_terminal_shows_the_end_of_the_conversation_and_the_input() {
    let mut stage = Stage::new();
    stage.open(1, &[journal_turn(1, "hello", "there you are")]);
    stage.types("what I type");
    assert_eq!(
        stage.screen(20, 5),
        ["there you are", "✓ verified · turn 1", "────────────────────", "› what I type", "01010101"],
    );
    assert_eq!(stage.screen(6, 1), [""], "no room for the id");
}

#[test]
fn what_was_scrolled_to_stays_while_an_answer_comes_and_end_follows() {
    let mut stage = Stage::new();
    let turns: Vec<_> = (0..50).map(|n| journal_turn(n, &format!("question {n}"), "answer")).collect();
    stage.open(1, &turns);
    assert!(stage.screen(60, 20).join("\n").contains("question 49"));
    stage.press(KeyCode::PageUp);
    let before = stage.screen(60, 20);
    assert!(before.iter().any(|row| row.contains("more · End")));
    stage.say(ViewMessage::TurnStarted("more".to_owned()));
    stage.text(&"line\n".repeat(30));
    let after = stage.screen(60, 20);
    assert_eq!(before[..15], after[..15], "what is read does not move");
    stage.press(KeyCode::End);
    assert!(!stage.screen(60, 20).join("\n").contains("more · End"));
    stage.state.input(Event::Key(KeyEvent::new(KeyCode::Home, KeyModifiers::CONTROL)));
    assert!(stage.screen(60, 20).join("\n").contains("question 0"));
    // At a new width, the same turn stays in sight.
    assert!(stage.screen(31, 20).join("\n").contains("question 0"));
}

#[test]
fn whoever_wants_no_colour_gets_none() {
    for color in [true, false] {
        let mut stage = Stage::new();
        stage.state.color = color;
        stage.open(1, &[journal_turn(1, "hello", "there")]);
        stage.say(ViewMessage::Remark(Tone::Bad, "error".to_owned()));
        let buffer = stage.buffer(100, 20);
        let colored = buffer.content().iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        assert_eq!(colored, color);
    }
}

#[test]
fn nothing_that_came_from_elsewhere_drives_the_terminal() {
    const HOSTILE: &str =
        "a\x1b]0;owned\x07b\x1b[2J\u{9b}31mc\r\u{202e}d\u{2066}e\tf\u{7f}\0g\u{e0041}\u{200b}h";
    let mut stage = Stage::new();
    let link = LinkHash([1; 32]);
    stage.open(1, &[Turn::from_journal(link, HOSTILE, &[HOSTILE.to_owned()], HOSTILE, HOSTILE)]);
    stage.state.sidebar.set(vec![listed(1, HOSTILE)]);
    stage.say(ViewMessage::Remark(Tone::Warn, HOSTILE.to_owned()));
    stage.state.input(Event::Paste(HOSTILE.to_owned()));
    stage.press(KeyCode::Enter);
    stage.state.begin(HOSTILE, stage.now);
    stage.say(ViewMessage::TurnStarted(HOSTILE.to_owned()));
    let (model, engine) = (HOSTILE.to_owned(), EngineKind::Native);
    stage.event(TurnEvent::Attempt { attempt: 0, node: node(1), model, engine, continues: 0 });
    stage.text(HOSTILE);
    stage.types("waits");
    stage.state.input(Event::Paste(HOSTILE.to_owned()));
    stage.press(KeyCode::Enter);
    stage.state.input(Event::Paste(format!("/{HOSTILE}")));
    for _ in 0..2 {
        let buffer = stage.buffer(110, 60);
        for cell in buffer.content() {
            assert!(!cell.symbol().chars().any(printable::acts), "{:?}", cell.symbol());
        }
        stage.press(KeyCode::Enter);
    }
    let shown = stage.screen(110, 60).join("\n");
    assert!(shown.contains("a]0;ownedb[2J31mcde    fgh"), "{shown}");
}

#[test]
fn a_continued_answer_begins_right_below_its_node() {
    let mut stage = Stage::new();
    stage.ask("hello");
    stage.event(attempt(1, 0));
    stage.text("one.");
    stage.event(attempt(2, 1));
    stage.text("\n\ntwo");
    let screen = stage.screen(60, 20);
    let node = screen.iter().position(|row| row.contains("continues the answer")).unwrap();
    assert_eq!(screen[node + 1], "  two");
}

#[test]
fn the_first_conversation_in_the_list_does_not_move_the_text() {
    let mut stage = Stage::new();
    stage.ask("some words");
    stage.text(&"an answer of some words ".repeat(20));
    let text = |stage: &mut Stage| -> Vec<String> {
        let rows = stage.screen(120, 30).into_iter();
        rows.map(|row| row.chars().skip(34).collect::<String>()).collect()
    };
    let before = text(&mut stage);
    stage.state.sidebar.set(vec![listed(1, "words")]);
    assert_eq!(text(&mut stage), before);
}
