//! Turns: how an answer comes, moves, fails, and counts.

use std::time::Duration;

use baton_client::TurnEvent;
use baton_proto::{ErrorCode, memory::MemoryItem};

use super::*;
use crate::out::Tone;

fn failed(byte: u8) -> TurnEvent {
    TurnEvent::AttemptFailed {
        attempt: 0,
        node: node(byte),
        code: Some(ErrorCode::StreamTruncated),
        reason: "the reply ended".to_owned(),
        noticed_ago: Duration::ZERO,
    }
}

#[test]
fn an_answer_is_seen_as_it_comes_and_is_verified_at_the_end() {
    let mut stage = Stage::new();
    stage.ask("how are you?");
    assert!(stage.shown().contains("looking for a node · 0 s · Esc stops it"));
    stage.event(attempt(0x11, 0));
    stage.event(TurnEvent::Waiting(2));
    assert!(stage.shown().contains("waiting; 2 ahead"));
    stage.event(TurnEvent::Admitted);
    stage.text("I am ");
    stage.wait(1500);
    assert!(in_order(
        &stage.shown(),
        &["› how are you?", "node 11111111 · small", "I am", "node 11111111 · small · 1 s"]
    ));
    assert!(!stage.shown().contains("ahead"), "that is over");
    stage.text("well");
    assert!(stage.shown().contains("  I am well\n"));
    stage.say(finished(1, "I am well", 4));
    stage.state.end(true);
    let shown = stage.shown();
    assert!(in_order(
        &shown,
        &["› how are you?", "  I am well", "✓ verified · turn 0 · 9 + 4 tokens · small · 2/s"]
    ));
    assert!(!shown.contains("node 11111111"), "one node, which the last line names");
    assert!(!shown.contains("Esc stops it"));
}

#[test]
fn a_takeover_is_seen_and_the_answer_is_in_one_piece_afterwards() {
    let mut stage = Stage::new();
    stage.ask("tell me");
    stage.event(attempt(0x11, 0));
    stage.text("once upon a ti");
    stage.event(failed(0x11));
    stage.event(attempt(0x22, 5));
    stage.text("me");
    assert!(in_order(
        &stage.shown(),
        &["once upon a ti", "node 11111111 stopped answering", "node 22222222 continues the answer", "  me"]
    ));
    stage.say(finished(1, "once upon a time", 6));
    let shown = stage.shown();
    assert!(in_order(
        &shown,
        &[
            "node 11111111 · small",
            "stopped answering",
            "continues the answer",
            "once upon a time",
            "✓ verified"
        ]
    ));
    assert_eq!(shown.matches("once upon").count(), 1);
}

#[test]
fn a_node_that_comes_back_is_not_told_as_another() {
    let mut stage = Stage::new();
    stage.ask("tell me");
    for event in [attempt(0x11, 0), failed(0x11), attempt(0x11, 5)] {
        stage.event(event);
    }
    assert!(in_order(&stage.shown(), &["stopped answering", "node 11111111 answers again, and continues"]));
}

#[test]
fn void_text_goes() {
    let mut stage = Stage::new();
    stage.ask("tell me");
    stage.text("lies");
    stage.event(failed(0x11));
    stage.event(TurnEvent::Restarted);
    stage.text("truth");
    let shown = stage.shown();
    assert!(!shown.contains("lies"));
    assert!(in_order(
        &shown,
        &["stopped answering", "The answer so far is discarded; it starts again.", "truth"]
    ));
}

#[test]
fn a_message_that_was_not_answered_is_kept_and_a_new_attempt_takes_its_place() {
    let mut stage = Stage::new();
    stage.ask("hello");
    stage.event(attempt(0x11, 0));
    stage.say(ViewMessage::Remark(Tone::Bad, "error: every attempt failed".to_owned()));
    stage.say(ViewMessage::Remark(Tone::Note, "  try: another node".to_owned()));
    let mut session = loaded(1, &[]);
    session.status.pending = true;
    stage.state.set_session(&session);
    stage.state.end(true);
    let shown = stage.shown();
    assert!(in_order(
        &shown,
        &["› hello", "error: every attempt failed", "try: another node", "No answer. The message is kept"]
    ));
    assert!(shown.contains("1 message not answered"));
    stage.state.begin("/retry", stage.now);
    stage.say(ViewMessage::TurnStarted("hello".to_owned()));
    stage.text("there you are");
    assert_eq!(stage.shown().matches("› hello").count(), 1);
    stage.state.end(true);
    stage.state.begin("/drop", stage.now);
    stage.open(1, &[]);
    stage.state.end(true);
    assert!(stage.shown().contains("Discarded: this is not part of the conversation"));
}

#[test]
fn escape_ends_an_answer_and_a_message_meanwhile_stays_in_the_line() {
    let mut stage = Stage::new();
    stage.ask("go on");
    stage.text("and on and on");
    stage.types("next");
    assert_eq!(stage.press(KeyCode::Enter), None);
    assert!(stage.shown().contains("send this after it, or end it with Esc"));
    assert_eq!(stage.press(KeyCode::Esc), Some(Effect::Stop));
    assert!(stage.shown().contains("stopping"));
    stage.say(ViewMessage::Remark(Tone::Note, "cancelled".to_owned()));
    let mut session = loaded(1, &[]);
    session.status.pending = true;
    stage.state.set_session(&session);
    stage.state.end(true);
    let parts = ["and on and on", "cancelled", "/continue takes it up", "› next"];
    assert!(in_order(&stage.shown(), &parts));
    assert_eq!(stage.press(KeyCode::Enter), Some(Effect::Act("next".to_owned())));
    // The next message takes its place, and so does /drop: nothing can be continued.
    stage.state.begin("/drop", stage.now);
    stage.open(1, &[]);
    stage.state.end(true);
    assert!(in_order(&stage.shown(), &["and on and on", "Discarded"]));
    assert!(!stage.shown().contains("/continue"), "{}", stage.shown());
}

#[test]
fn memories_and_other_devices_are_told_of() {
    let mut stage = Stage::new();
    stage.ask("what may I eat?");
    let item = |text: &str| MemoryItem { text: text.to_owned(), source: "fact".to_owned(), time_ms: 0 };
    stage.event(TurnEvent::Memory(vec![item("no peanuts"), item("likes\nrice")]));
    stage.say(ViewMessage::Remark(Tone::Warn, "another device also wrote turn 3".to_owned()));
    assert!(in_order(
        &stage.shown(),
        &[
            "2 memories added",
            "  · no peanuts (fact)",
            "  · likes rice (fact)",
            "another device also wrote turn 3"
        ]
    ));
}

#[test]
fn the_journal_decides_what_counts_and_remarks_stay_where_they_were() {
    let mut stage = Stage::new();
    stage.open(1, &[journal_turn(1, "one", "first"), journal_turn(2, "two", "second")]);
    stage.say(ViewMessage::Remark(Tone::Note, "a remark".to_owned()));
    stage.ask("three");
    stage.say(finished(3, "third", 2));
    // The second one was replaced, and another device's turn came in before the third.
    let turns = [
        journal_turn(1, "one", "first"),
        journal_turn(9, "nine", "ninth"),
        journal_turn(3, "three", "of the journal"),
    ];
    stage.open(1, &turns);
    stage.state.end(true);
    let shown = stage.shown();
    assert!(
        in_order(&shown, &["› one", "first", "› nine", "ninth", "a remark", "› three", "third"]),
        "{shown}"
    );
    assert!(!shown.contains("› two") && !shown.contains("of the journal"));
    // Another session shows nothing of it.
    stage.open(2, &[]);
    assert!(!stage.shown().contains("› one"));
}

#[test]
fn turns_before_those_that_are_shown_are_told_of_once() {
    let mut stage = Stage::new();
    let mut session = loaded(1, &[journal_turn(1, "one", "first")]);
    session.earlier = 7;
    stage.state.set_session(&session);
    stage.state.set_session(&session);
    let shown = stage.shown();
    assert!(in_order(&shown, &["7 turns before this: baton session show 01010101", "› one"]));
    assert_eq!(shown.matches("before this").count(), 1);
}

#[test]
fn a_message_that_is_not_kept_says_so() {
    let mut stage = Stage::new();
    stage.ask("hello");
    stage.say(ViewMessage::Remark(Tone::Bad, "error: it needs 5000 tokens".to_owned()));
    stage.open(1, &[]);
    stage.state.end(false);
    stage.state.give_back("hello".to_owned());
    let shown = stage.shown();
    assert!(shown.contains("The message is not kept: it is in the line again."), "{shown}");
    assert!(!shown.contains("/drop") && !shown.contains("not answered"), "{shown}");
    assert_eq!(stage.state.editor.text(), "hello");
}
